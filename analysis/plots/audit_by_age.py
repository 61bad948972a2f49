"""Errors of remembered updates, and correctness of the conflicts that they report, by age."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedsim.analysis.drawing.picture import GREY, Key, Picture, arm_marker, arm_style, panels

_SHORT = 3
"""Most letters of a label on one line; longer labels take two lines."""
_LINES = (
    ("precision", "real among reported"),
    ("recall", "reported among real"),
    ("agreement", "balanced accuracy"),
)
_CAPTION = (
    "Remembered updates against what the clients would send now, with 95 % intervals. Age 0: those of the"
    " step itself, the noise floor. Balanced accuracy: mean share of right answers among real conflicts and among the"
    " others; 0.5 is chance."
)


def audit_by_age(ages: pd.DataFrame) -> Picture:
    """Draw a frame of `fedsim.analysis.statistics.audit.by_age`: cosines and norms above, conflicts below."""
    figure, (angle, conflict) = panels([1.9, 1.9])
    at = np.arange(len(ages))
    _with_interval(angle, at, ages, "cosine", 0)
    angle.axhline(0, color=GREY, linewidth=0.8)
    angle.set_ylabel("cosine to the\ntrue update", fontsize=9)
    angle.set_ylim(min(-0.05, angle.get_ylim()[0]), 1.05)
    for i, (name, _) in enumerate(_LINES):
        _with_interval(conflict, at, ages, name, i)
    conflict.axhline(0.5, color=GREY, linewidth=0.8)
    conflict.set_ylim(-0.05, 1.05)
    conflict.set_ylabel("share of\nconflicts", fontsize=9)
    names = [_name(a, b) for a, b in zip(ages["from_age"].tolist(), ages["to_age"].tolist(), strict=True)]
    conflict.set_xticks(at, [name.replace("–", "–\n") if len(name) > _SHORT else name for name in names])
    conflict.set_xlabel("age of the remembered update, server steps", fontsize=9)
    words = "; ".join(
        f"age {name}: cosine {_shown(cosine)}, balanced accuracy {_shown(agreement)}"
        for name, cosine, agreement in zip(names, ages["cosine"], ages["agreement"], strict=True)
    )
    keys = [
        Key(label, str(arm_style(i)["color"]), marker=arm_marker(i)) for i, (_, label) in enumerate(_LINES)
    ]
    return Picture(figure, f"Remembered updates by age. {words}.", _CAPTION, tuple(keys))


def _name(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _shown(value: float) -> str:
    return "not known" if math.isnan(value) else f"{value:.2f}"


def _with_interval(ax: Axes, at: np.ndarray, ages: pd.DataFrame, name: str, index: int) -> None:
    style, shift = arm_style(index), 0.08 * (index - 1) if name != "cosine" else 0.0
    ax.plot(at + shift, ages[name], **style, marker=arm_marker(index), markersize=4)
    ax.vlines(at + shift, ages[f"{name}_low"], ages[f"{name}_high"], color=style["color"], linewidth=1)

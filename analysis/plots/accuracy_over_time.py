"""Mean accuracy, accuracy of the worst-off clients, and angle over virtual time or steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedsim.analysis.drawing.picture import (
    Picture,
    arm_keys,
    arm_style,
    label_panels,
    panels,
    time_unit,
    whole_numbers,
)

if TYPE_CHECKING:
    import pandas as pd

METRICS = {
    "mean_percent": "mean\naccuracy, %",
    "worst10_percent": "worst 10 %\nof clients, %",
    "angle_rad": "angle, rad",
}
"""The columns of `Run.history` that are drawn, with the label of each panel."""


def accuracy_over_time(
    histories: Mapping[str, pd.DataFrame], by: Literal["time", "step"] = "time"
) -> Picture:
    """Draw `Run.history` of each arm, by label, over virtual time or over server steps."""
    figure, axes = panels([1.35] * len(METRICS))
    scale, unit = _scale(histories, by)
    for index, history in enumerate(histories.values()):
        x = history["time_us" if by == "time" else "step"].to_numpy() / scale
        marker = "o" if len(x) == 1 else None
        for ax, metric in zip(axes, METRICS, strict=True):
            ax.plot(x, history[metric].to_numpy(), marker=marker, markersize=4, **arm_style(index))
    for ax in axes:
        ax.margins(x=0.02, y=0.08)
    if by == "step":
        whole_numbers(axes[-1].xaxis)
    label_panels(figure, axes, METRICS.values(), unit)
    caption = f"Accuracy and fairness over {unit}; a smaller angle is fairer (0 is equal accuracy for all)."
    caption += evaluated_note(histories.values())
    return Picture(figure, _alt(histories, unit), caption, arm_keys(list(histories)))


def evaluated_note(histories: Iterable[pd.DataFrame]) -> str:
    """Return a note if evaluations covered different numbers of clients; empty otherwise."""
    counts = [int(n) for h in histories for n in h["clients"].unique()]
    if not counts or min(counts) == max(counts):
        return ""
    return f" Points are of {min(counts)} to {max(counts)} clients, which were evaluated there."


def _scale(histories: Mapping[str, pd.DataFrame], by: str) -> tuple[float, str]:
    if by == "step":
        return 1.0, "server steps"
    longest = max((int(h["time_us"].max()) for h in histories.values() if len(h)), default=0)
    scale, name = time_unit(longest)
    return scale, f"virtual time, {name}"


def _alt(histories: Mapping[str, pd.DataFrame], unit: str) -> str:
    ends = (
        f"{label} ends at {h['mean_percent'].iloc[-1]:.1f} % mean accuracy,"
        f" {h['worst10_percent'].iloc[-1]:.1f} % for the worst 10 % of clients"
        f" and an angle of {h['angle_rad'].iloc[-1]:.3f} rad"
        for label, h in histories.items()
        if len(h) and np.isfinite(h["mean_percent"].iloc[-1])
    )
    return f"Three line charts over {unit}. {'; '.join(ends)}."

"""Cumulative distribution of the final accuracies over clients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsim.analysis.drawing.picture import Picture, arm_keys, arm_style, panels
from fedsim.analysis.opening.evaluation import Evaluation
from fedsim.common.arrays import Floats

POINTS = 500


def client_accuracy(finals: Mapping[str, Evaluation | None]) -> Picture:
    """Draw the cumulative distribution over clients of each arm's final accuracy, by label (None: not evaluated)."""
    figure, (ax,) = panels([2.2])
    values = {label: accuracies_percent(e) for label, e in finals.items()}
    for index, accuracy in enumerate(values.values()):
        ax.step(*_cumulative(accuracy), where="post", **arm_style(index))
    ax.set_ylabel("clients at or below, %", fontsize=9)
    ax.set_xlabel("accuracy of the client, %", fontsize=9)
    ax.set_ylim(0, 102)
    ax.margins(x=0.02)
    words = (
        f"{label}: from {a.min():.1f} to {a.max():.1f} %, median {np.median(a):.1f} %"
        for label, a in values.items()
        if len(a) and np.isfinite(a).all()
    )
    alt = f"Cumulative distribution of accuracy over clients. {'; '.join(words)}."
    caption = "Share of clients whose final accuracy is at most that on the axis; a steep curve is fair."
    return Picture(figure, alt, caption, arm_keys(list(finals)))


def accuracies_percent(evaluation: Evaluation | None) -> Floats:
    """Return the accuracies in percent of the clients with samples; empty without an evaluation."""
    if evaluation is None:
        return np.zeros(0)
    return np.asarray(100 * evaluation.accuracy[evaluation.n > 0])


def _cumulative(accuracy: Floats) -> tuple[Floats, Floats]:
    """Return the steps of the distribution, at most `POINTS` of them."""
    x, counts = np.unique(accuracy, return_counts=True)
    if not len(x):
        return x, x
    share = np.concatenate([[0], 100 * np.cumsum(counts) / len(accuracy)])
    keep = np.unique(np.linspace(0, len(x), min(POINTS, len(x) + 1)).astype(int))
    return np.concatenate([x[:1], x])[keep], share[keep]

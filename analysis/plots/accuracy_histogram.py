"""Histogram of the final accuracies over clients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsim.analysis.drawing.picture import Picture, arm_keys, arm_style, panels
from fedsim.analysis.opening.evaluation import Evaluation
from fedsim.analysis.plots.client_accuracy import accuracies_percent

BINS = 20


def accuracy_histogram(finals: Mapping[str, Evaluation | None]) -> Picture:
    """Draw the share of clients in each of 20 equal classes of final accuracy, by label (None: not evaluated)."""
    figure, (ax,) = panels([2.2])
    fullest = []
    for index, (label, evaluation) in enumerate(finals.items()):
        accuracy = accuracies_percent(evaluation)
        if not len(accuracy):
            continue
        counts, edges = np.histogram(accuracy, bins=BINS, range=(0, 100))
        share = 100 * counts / len(accuracy)
        style = arm_style(index)
        ax.stairs(share, edges, fill=True, alpha=0.15, color=style["color"])
        ax.stairs(share, edges, **style)
        at = int(share.argmax())
        fullest.append(f"{label}: {share[at]:.0f} % of clients from {edges[at]:.0f} to {edges[at + 1]:.0f} %")
    ax.set_ylabel("clients, %", fontsize=9)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("accuracy of the client, %", fontsize=9)
    alt = f"Histogram of accuracy over clients. The fullest class: {'; '.join(fullest)}."
    caption = f"Share of clients in each of {BINS} equal classes of final accuracy."
    return Picture(figure, alt, caption, arm_keys(list(finals)))

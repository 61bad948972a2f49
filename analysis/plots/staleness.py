"""Distribution of the staleness of used updates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsim.analysis.drawing.picture import Picture, arm_keys, arm_style, panels, whole_numbers
from fedsim.analysis.opening.run import Run
from fedsim.common.arrays import Ints


def staleness(runs: Mapping[str, Run]) -> Picture:
    """Draw the share of used updates by their staleness in server steps, for each run by label."""
    figure, (ax,) = panels([1.9])
    used = {label: used_staleness(run) for label, run in runs.items()}
    for index, steps in enumerate(used.values()):
        if not len(steps):
            continue
        counts = np.bincount(steps)
        ax.stairs(100 * counts / len(steps), np.arange(len(counts) + 1) - 0.5, **arm_style(index))
    ax.set_xlabel("staleness, server steps", fontsize=9)
    whole_numbers(ax.xaxis)
    ax.set_ylabel("used updates, %", fontsize=9)
    ax.set_ylim(bottom=0)
    words = (f"{label}: mean {s.mean():.2f}, largest {s.max()}" for label, s in used.items() if len(s))
    alt = f"Distribution of the staleness of used updates. {'; '.join(words)}."
    caption = "Server steps between the model that an update started from and the step that used it."
    return Picture(figure, alt, caption, arm_keys(list(runs)))


def used_staleness(run: Run) -> Ints:
    """Return the staleness of each update that went into a step."""
    values: Ints = run.jobs["staleness"].to_numpy().astype(np.int64)
    return values[values >= 0]

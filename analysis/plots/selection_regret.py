"""Regret of selectors against a clairvoyant one over virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedsim.analysis.drawing.picture import Picture, arm_keys, arm_style, panels, time_unit

if TYPE_CHECKING:
    import pandas as pd

_CAPTION = (
    "Mean regret of the choices so far: how much sooner the updates that a step waits for could have arrived with the"
    " best clients among the same candidates, as a share of the longest time considered. 0 is a selector that knows the"
    " future."
)


def regret_over_time(regrets: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw the mean of `selection_regret` up to each choice, for each run by label."""
    figure, (ax,) = panels([1.9])
    last_us = max((int(frame["time_us"].max()) for frame in regrets.values() if len(frame)), default=0)
    scale, unit = time_unit(last_us)
    ends = []
    for index, (label, frame) in enumerate(regrets.items()):
        if not len(frame):
            continue
        so_far = frame["regret"].cumsum().to_numpy() / np.arange(1, len(frame) + 1)
        marker = "o" if len(frame) == 1 else None
        ax.plot(frame["time_us"].to_numpy() / scale, so_far, marker=marker, markersize=4, **arm_style(index))
        ends.append(f"{label} ends at {so_far[-1]:.3f}")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("mean regret so far", fontsize=9)
    ax.set_xlabel(f"virtual time, {unit}", fontsize=9)
    alt = f"Line chart of the mean regret of choices over virtual time. {'; '.join(ends)}."
    return Picture(figure, alt, _CAPTION, arm_keys(list(regrets)))

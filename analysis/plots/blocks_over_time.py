"""Number of blocks of layers that a layer-wise rule works on after merging."""

from __future__ import annotations

import numpy as np

from fedsim.analysis.drawing.picture import Picture, panels, time_unit, whole_numbers
from fedsim.analysis.opening.run import Run
from fedsim.analysis.plots.bands import over_steps
from fedsim.common.errors import FolderError


def blocks_over_time(run: Run) -> Picture:
    """Draw the number of blocks over virtual time. Raises FolderError if the rule never has several blocks."""
    steps = run.frame("steps")
    steps = steps[steps.blocks > 0]
    if not (steps.blocks > 1).any():
        raise FolderError(f"{run.folder}: the rule does not report several blocks of layers")
    figure, (ax,) = panels([1.5])
    scale, unit = time_unit(int(steps.time_us.max()))
    blocks = steps.blocks.to_numpy(dtype=float)
    over_steps(ax, steps.time_us.to_numpy() / scale, blocks, 0)
    ax.set_ylim(0, 1.1 * blocks.max())
    whole_numbers(ax.yaxis, 5)
    ax.set_ylabel("blocks", fontsize=9)
    ax.set_xlabel(f"virtual time, {unit}", fontsize=9)
    merged = 100 * np.mean(blocks < blocks.max())
    alt = (
        f"Line chart of blocks of layers over virtual time. From {blocks.min():.0f} to {blocks.max():.0f};"
        f" fewer than the most in {merged:.1f} % of steps."
    )
    caption = "Blocks of layers that the direction was computed on, after the rule merged those whose step was zero."
    return Picture(figure, alt, caption)

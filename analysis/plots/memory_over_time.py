"""Staleness of updates, and number and age of remembered updates, over virtual time."""

from __future__ import annotations

import numpy as np

from fedsim.analysis.drawing.picture import Picture, arm_keys, from_zero, label_panels, panels, time_unit
from fedsim.analysis.opening.run import Run
from fedsim.analysis.plots.bands import over_steps
from fedsim.analysis.statistics.observatory import history_age, recorded
from fedsim.common.errors import FolderError

_LABELS = ("updates that\ncount", "staleness,\nsteps", "age of\nhistory, steps")
_CAPTION = (
    "Updates of present clients and remembered ones of absent clients that count in a step, the mean staleness of the"
    " former, and the mean age of the latter. The area goes from the least to the largest of neighbouring steps."
)
_NO_AGES = (
    ' The age of remembered updates is known where conflicts are recorded: [record] conflicts = "model".'
)


def memory_over_time(run: Run) -> Picture:
    """Draw the updates that steps use, the mean staleness of updates and, if conflicts are recorded, the history's age.

    Raises FolderError if no step used an update.
    """
    steps = run.frame("steps")
    steps = steps[steps.updates > 0]
    if steps.empty:
        raise FolderError(f"{run.folder}: no step used an update")
    ages = history_age(recorded(run)) if len(run.conflicts) else None
    figure, axes = panels([1.3] * (2 if ages is None or ages.empty else 3))
    scale, unit = time_unit(int(steps.time_us.max()))
    x = steps.time_us.to_numpy() / scale
    over_steps(axes[0], x, steps.updates.to_numpy(dtype=float), 0)
    over_steps(axes[0], x, steps.remembered.to_numpy(dtype=float), 1)
    over_steps(axes[1], x, steps.mean_staleness.to_numpy(), 0)
    words = f"remembered updates that count: {steps.remembered.mean():.1f} on average"
    if len(axes) > 2 and ages is not None:
        over_steps(axes[2], x, ages["mean"].reindex(steps.step).to_numpy(), 1)
        words += f", {np.average(ages['mean']):.1f} steps old, the oldest {ages['max'].max()}"
    for ax in axes:
        from_zero(ax)
    label_panels(figure, axes, _LABELS[: len(axes)], f"virtual time, {unit}")
    alt = (
        f"Line charts of the age of what steps use. Updates in a step: {steps.updates.mean():.1f} on average, their"
        f" staleness {steps.mean_staleness.mean():.2f} steps; {words}."
    )
    keys = arm_keys(["updates of present clients", "remembered, of absent clients"])
    return Picture(figure, alt, _CAPTION if len(axes) > 2 else _CAPTION + _NO_AGES, keys)

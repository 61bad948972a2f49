"""`[tune]` of a study: the key whose value the levels of an axis choose."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from fedsim.config.section import Count, Section
from fedsim.config.study.axes import Levels, RunKey, levels_in
from fedsim.config.study.compare import Metric
from fedsim.config.study.seeds import Seeds


class TuneSection(Section):
    """`[tune]`: a key whose value each level of an axis or of several chooses before the study, on seeds of its own."""

    axis: str | tuple[str, ...]
    """The axis whose levels each choose a value, or several axes, each combination of whose levels does."""
    key: RunKey
    """The key of a run's configuration, such as `train.lr`."""
    values: Annotated[tuple[Any, ...], Field(min_length=2)]
    """The values to try."""
    seeds: Seeds
    """Seeds of the runs that choose; none of them is a seed of the study."""
    metric: Metric = "mean_percent"
    """The metric (docs/metrics.md) whose mean over the seeds and the other axes' levels decides, at the end of runs."""
    last: Count = 1
    """Take the metric's mean over this many evaluations at the end of each run: single ones vary."""
    levels: dict[str, str | Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """The levels of other axes at which values are tried, by axis; by default all."""
    chosen: dict[str, Any] = Field(default_factory=dict)
    """The values of levels of the axis, at which nothing is tried; of several axes, a table for each level of the
    first. `fedsim study` writes them into the study's folder, for all levels that are not skipped."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes whose levels choose a value."""
        return levels_in(self.axis)

    def at(self, levels: Levels) -> tuple[str, ...]:
        """Return those of a combination's levels that choose its value."""
        return tuple(levels[axis] for axis in self.axes)

    @property
    def criterion(self) -> str:
        """What decides in words, such as `mean_percent on seeds 101, 102, over the last 5 evaluations`."""
        seeds = f"on seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        return f"{self.metric} {seeds}{f', over the last {self.last} evaluations' if self.last > 1 else ''}"

    def choices(self) -> dict[tuple[str, ...], Any]:
        """Return the chosen values by the levels that chose them."""
        return _flat(self.chosen, len(self.axes))


def _flat(tables: Any, depth: int) -> dict[tuple[str, ...], Any]:
    """Return the values of nested tables by the keys that lead to them."""
    if not depth:
        return {(): tables}
    return {
        (key, *keys): value
        for key, inner in tables.items()
        for keys, value in _flat(inner, depth - 1).items()
    }

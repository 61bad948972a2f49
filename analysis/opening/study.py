"""A study that was opened: its cells, their runs, and the runs' metrics as one frame."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedsim.analysis.opening.evaluation import Evaluation, latest
from fedsim.analysis.opening.points import (
    COLUMN_OF,
    Point,
    last_up_to,
    require_up_to,
    same_clients,
    same_point,
)
from fedsim.analysis.opening.results import bytes_by, evaluation_of, how_to_repeat, of_split
from fedsim.analysis.opening.run import Run, open_run, shared_us
from fedsim.common import arguments
from fedsim.common.errors import ConfigError, FolderError, closest
from fedsim.config.study.compare import parse_point
from fedsim.config.study.published import PublishedSection
from fedsim.config.study.tune import TuneSection
from fedsim.records.study_results import RESULTS, LastEvaluation

if TYPE_CHECKING:
    import pandas as pd

Test = Literal["rank", "t"]
"""Tests that may decide: Wilcoxon's exact signed-rank test, or Student's t test of pairs."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study: a level of each axis, and a seed."""

    levels: dict[str, str]
    seed: int
    folder: Path
    status: str
    """`done`, `running`, `failed`, `interrupted` or `pending`."""
    error: str | None = None
    results: tuple[LastEvaluation, ...] = ()
    """The evaluations on each split, from `results.csv`, for a cell whose run folder is missing: the last ones at the
    end, and at the points that its study names."""

    @property
    def name(self) -> str:
        """Levels and seed in words, such as `rule=fedavg, seed 2`; unique in the study."""
        return ", ".join([*(f"{axis}={level}" for axis, level in self.levels.items()), f"seed {self.seed}"])


Group = list[tuple[Cell, dict[str, int], Sequence[Evaluation]]]
"""Cells that are compared, each with the columns of its point and the evaluations that count there."""


@dataclass(frozen=True)
class Study:
    """The folder of a study. Runs are opened when first used, and stay open."""

    folder: Path
    name: str
    description: str
    axes: dict[str, tuple[str, ...]]
    """The levels of each axis, in the order of the file."""
    seeds: tuple[int, ...]
    compare: dict[str, Any]
    """What to compare, by the keys of a study file's `[compare]`; each may be missing."""
    cells: tuple[Cell, ...]
    _runs: dict[Path, Run] = field(default_factory=dict, repr=False, compare=False)
    _evaluations: dict[tuple[Path, str], list[Evaluation]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _numbers: dict[tuple[Path, str], pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)
    published: PublishedSection | None = None
    """The values and claims of the paper whose table the study repeats."""
    tune: TuneSection | None = None
    """The key whose value each level of an axis, or of several, chose before the study, and these values."""

    @property
    def split(self) -> str | None:
        """The split that runs are compared on, that of `compare`; None: that of each run's configuration."""
        split: str | None = self.compare.get("split")
        return split

    @property
    def last(self) -> int:
        """How many evaluations, up to the point of comparison, a run's metrics are averaged over."""
        return int(self.compare.get("last", 1))

    @property
    def test(self) -> Test:
        """The test whose corrected p value decides whether two levels differ."""
        test: Test = self.compare.get("test", "rank")
        return test

    @property
    def finished(self) -> tuple[Cell, ...]:
        """The cells whose runs are done."""
        return tuple(cell for cell in self.cells if cell.status == "done")

    def planned(self, axis: str) -> tuple[str, ...]:
        """Return the levels of an axis that have cells, in the order of the file: those of a part, if it is one."""
        among = {cell.levels[axis] for cell in self.cells}
        return tuple(level for level in self.axes[axis] if level in among)

    @property
    def digest(self) -> str | None:
        """SHA-256 of the levels, seeds and digests of all runs, equal for equal results; None before all are done."""
        if len(self.finished) < len(self.cells):
            return None
        lines = sorted(f"{cell.name}: {self._digest_of(cell)}" for cell in self.cells)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _digest_of(self, cell: Cell) -> str:
        return cell.results[0].digest if cell.results else str(self.run(cell).manifest["digest"])

    @arguments.checked
    def run(self, cell: Cell) -> Run:
        """Open the run of a cell. Raises FolderError if its folder is missing."""
        if cell.folder not in self._runs:
            try:
                self._runs[cell.folder] = open_run(cell.folder)
            except FolderError as error:
                raise FolderError(f"{error}; {how_to_repeat(cell.results, self.folder / RESULTS)}") from error
        return self._runs[cell.folder]

    @arguments.checked
    def afresh(self, cell: Cell) -> Run:
        """Return the run of a cell without cached tables: the tables of all runs may not fit into memory."""
        return replace(self.run(cell))

    @arguments.checked
    def asked(self, changes: Mapping[str, Any]) -> Study:
        """Return the study with some keys of `compare` replaced.

        A new axis without a baseline takes its first level. Raises ConfigError for an unknown axis, level or point, and
        FolderError for an axis or baseline of a study without axes.
        """
        same_axis = self.compare.get("axis") == changes.get("axis", self.compare.get("axis"))
        kept = {key: value for key, value in self.compare.items() if same_axis or key != "baseline"}
        study = replace(self, compare=kept | dict(changes))
        if self.axes or "axis" in changes or "baseline" in changes:
            study.baseline(study.axis())
        for point in study.compare.get("at", ()):
            study.require_point(point)
        last = study.compare.get("last", 1)
        if not isinstance(last, int) or isinstance(last, bool) or last < 1:
            raise ConfigError(f"last: expected a whole number of evaluations of at least 1, found {last!r}")
        if study.test not in get_args(Test):
            raise ConfigError(f"test: expected rank or t, found {study.test!r}")
        return study

    @arguments.checked
    def titled(self, titles: Mapping[str, str]) -> Study:
        """Return the study with other names of levels, by their names, for figures and tables; without `published`.

        Raises ConfigError for a level that no axis has, and for levels of one axis with one name.
        """
        known = {level for levels in self.axes.values() for level in levels}
        for level in titles.keys() - known:
            raise ConfigError(f"{self.folder}: there is no level {level!r}{closest(level, known)}")
        axes = {
            axis: tuple(titles.get(level, level) for level in levels) for axis, levels in self.axes.items()
        }
        for axis, levels in axes.items():
            if twice := next((level for level in levels if levels.count(level) > 1), None):
                raise ConfigError(
                    f"{self.folder}: {axis}: expected a title for each level, found {twice!r} twice"
                )
        cells = (
            replace(cell, levels={axis: titles.get(level, level) for axis, level in cell.levels.items()})
            for cell in self.cells
        )
        baseline = {key: titles.get(level, level) for key, level in self.compare.items() if key == "baseline"}
        return replace(self, axes=axes, cells=tuple(cells), compare=self.compare | baseline, published=None)

    def require_point(self, at: str) -> tuple[str, int | None]:
        """Return what `parse_point` reads in `at`; raises ConfigError if it is no point."""
        try:
            return parse_point(at)
        except ValueError as error:
            raise ConfigError(f"{self.folder}: at: {error}") from error

    @arguments.checked
    def axis(self, name: str | None = None) -> str:
        """Return the axis whose levels are compared: by default that of `compare`, else the first.

        Raises ConfigError for an unknown axis, FolderError if the study has no axis.
        """
        wanted = name or self.compare.get("axis") or next(iter(self.axes), "")
        if wanted in self.axes:
            return str(wanted)
        if not self.axes:
            raise FolderError(f"{self.folder}: the study has no axis, so there are no levels to compare")
        raise ConfigError(f"{self.folder}: the study has no axis {wanted!r}{closest(str(wanted), self.axes)}")

    @arguments.checked
    def baseline(self, axis: str, level: str | None = None) -> str:
        """Return the level that others are compared with: by default that of `compare`, else the first.

        Raises ConfigError for an unknown axis or level.
        """
        axis = self.axis(axis)
        preset = self.compare.get("baseline") if axis == self.axis() else None
        wanted = str(level or preset or self.axes[axis][0])
        if wanted not in self.axes[axis]:
            raise ConfigError(
                f"{self.folder}: axis {axis!r} has no level {wanted!r}{closest(wanted, self.axes[axis])}"
            )
        return wanted

    @arguments.checked
    def frame(
        self,
        metrics: Sequence[str],
        at: Point = "end",
        split: str | None = None,
        axis: str | Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Return one row per finished cell: a column per axis, `seed`, the point, and a column per metric.

        The default of `split` is that of `compare`, else that of each run's configuration.

        The columns of the point are `step`, `time_us`, `bytes` (moved by jobs that had ended by then) and `clients`
        (evaluated). `end` takes each run's last evaluation. The other points compare cells with equal seeds and equal
        levels of all axes but `axis`, one (see `axis()`) or several, at a number that all of them reached: the largest
        one at which each was evaluated exactly, if it lies in the second half of the range that all reached, and not in
        the past that forks share; else the end of that range, where each cell counts with its last evaluation up to
        there; a cell with no other to be equal with is left out. A point with a number, such as `time=6h`, takes each
        cell's last evaluation up to there, and all must reach it. Metrics are means over the `last` evaluations up to
        the point, the other columns those of the last one. If evaluations of cells that are compared have different
        clients, as with `clients` in `[evaluate]`, those count that all of them have. Raises FolderError for a run that
        has too few evaluations or does not reach the point, for cells without a common client, and if no cell has
        another to be equal with; ConfigError for an unknown point or metric.
        """
        import pandas as pd  # imported here: opening a study does not need it

        metrics = list(dict.fromkeys(metrics))
        rows: list[dict[str, Any]] = []
        for group in self.at_point(at, split, axis):
            for cell, point, evaluations in group:
                each = [evaluation.summary(metrics) for evaluation in evaluations]
                means = {name: float(np.mean([values[name] for values in each])) for name in metrics}
                clients = {"clients": evaluations[-1].measured}
                rows.append({**cell.levels, "seed": cell.seed, **point, **clients, **means})
        columns = [*self.axes, "seed", *COLUMN_OF.values(), "clients", *metrics]
        rows.sort(key=self._place)
        return pd.DataFrame(rows, columns=columns)

    def at_point(
        self, at: Point = "end", split: str | None = None, axis: str | Sequence[str] | None = None
    ) -> Iterator[Group]:
        """Yield the cells that are compared with each other, with step, time and bytes of the point and evaluations.

        These are the `last` ones up to the point, on the clients that count there; see `frame`.
        """
        kind, amount = self.require_point(at)
        split = split or self.split
        for cells in self._compared(axis, among_equals=kind != "end" and amount is None):
            numbers = [self.positions(cell, split, at) for cell in cells]
            last = [len(n) - 1 for n in numbers]
            if kind == "end":
                chosen = last
            elif amount is not None:  # the results of a cell without a run folder end there
                chosen = [
                    i if cell.results else require_up_to(n, at, cell.folder)
                    for cell, n, i in zip(cells, numbers, last, strict=True)
                ]
            else:
                pairs = combinations(map(self.run, cells), 2)
                past_us = max((shared_us(a, b, split) for a, b in pairs), default=-1)
                chosen = same_point(numbers, COLUMN_OF[kind], past_us)
            windows = [self._window(cell, split, i, at) for cell, i in zip(cells, chosen, strict=True)]
            ends = [self.evaluations(cell, split)[-1] for cell in cells]
            if (counted := same_clients(windows, ends)) is None:
                names = " and ".join(str(cell.folder) for cell in cells)
                raise FolderError(f"{names}: no client was evaluated in all of them; compare them at the end")
            yield [
                (cell, {name: int(each[name].iloc[i]) for name in COLUMN_OF.values()}, window)
                for cell, each, i, window in zip(cells, numbers, chosen, counted, strict=True)
            ]

    def counted_clients(self, at: Point = "end") -> list[tuple[int, int]]:
        """Return for each run how many clients count at a point, and how many at its end."""
        return [
            (window[-1].measured, self.evaluations(cell)[-1].measured)
            for group in self.at_point(at)
            for cell, _, window in group
        ]

    def reaches(self, cell: Cell, at: Point) -> bool:
        """Return whether a finished cell has an evaluation at a point with a number.

        Raises FolderError for a run that came as far, whose folder is gone and whose results lack the point.
        """
        kind, amount = self.require_point(at)
        if cell.results:
            kept = of_split(cell.results, self.split, cell.folder)
            if any(result.at == at for result in kept):
                return True
            if amount is not None and max(getattr(result, COLUMN_OF[kind]) for result in kept) >= amount:
                self.run(cell)  # raises an error, as its evaluations there are gone
            return False
        return amount is None or last_up_to(self.positions(cell)[COLUMN_OF[kind]].tolist(), amount) >= 0

    def _window(self, cell: Cell, split: str | None, i: int, at: Point) -> Sequence[Evaluation]:
        """Return the `last` evaluations of a cell up to the one at `i`."""
        evaluations = self.evaluations(cell, split, at)[: i + 1]
        if len(evaluations) < self.last:
            self.run(cell)  # raises an error if earlier evaluations are gone
        return latest(cell.folder, evaluations, self.last)

    @arguments.checked
    def evaluations(self, cell: Cell, split: str | None = None, at: Point = "end") -> list[Evaluation]:
        """Return the evaluations of a cell's run by virtual time; without a run folder, the last ones up to a point.

        The default of `split` is as for `frame`. Raises FolderError if there are none.
        """
        split = split or self.split
        if cell.results:
            return [evaluation_of(result) for result in self._kept(cell, split, at)]
        key = (cell.folder, split or self.run(cell).split)
        if key not in self._evaluations:
            run = self.afresh(cell)
            run.final(key[1])  # raises an error that lists the recorded splits
            self._evaluations[key] = run.evaluations(key[1])
        return self._evaluations[key]

    def _place(self, row: dict[str, Any]) -> tuple[int, ...]:
        """Return the sort key of a row: its levels in the order of the file, then its seed."""
        return (*(levels.index(row[axis]) for axis, levels in self.axes.items()), row["seed"])

    def _kept(self, cell: Cell, split: str | None, at: Point) -> list[LastEvaluation]:
        """Return the results of a cell without a run folder, on a split and up to a point. Raises FolderError."""
        results = [result for result in of_split(cell.results, split, cell.folder) if result.at == at]
        if not results:
            self.run(cell)  # raises an error, as these are gone
        return results

    def positions(self, cell: Cell, split: str | None = None, at: Point = "end") -> pd.DataFrame:
        """Return how far a cell's run had come at each evaluation: step, time_us, bytes; see `evaluations`."""
        import pandas as pd

        split = split or self.split
        if cell.results:
            results = self._kept(cell, split, at)
            return pd.DataFrame({name: [getattr(r, name) for r in results] for name in COLUMN_OF.values()})
        key = (cell.folder, split or self.run(cell).split)
        if key not in self._numbers:
            run = self.afresh(cell)
            evaluations = self.evaluations(cell, split)
            times = np.array([e.time_us for e in evaluations], dtype=np.int64)
            steps = np.array([e.step for e in evaluations], dtype=np.int64)
            self._numbers[key] = pd.DataFrame(
                {"step": steps, "time_us": times, "bytes": bytes_by(run, times)}
            )
        return self._numbers[key]

    def _compared(self, axis: str | Sequence[str] | None, *, among_equals: bool) -> list[list[Cell]]:
        """Return groups of finished cells that differ in the compared axes alone.

        With `among_equals` those with a single cell are left out, if the axes have several levels: such a cell has no
        other to be equal with. Raises FolderError if there is no other group.
        """
        named = [axis] if axis is None or isinstance(axis, str) else axis
        among = [self.axis(name) for name in named] if self.axes else []
        groups: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in self.finished:
            others = tuple(level for name, level in cell.levels.items() if name not in among)
            groups.setdefault((*others, cell.seed), []).append(cell)
        found = list(groups.values())
        if among_equals and any(len(self.axes[name]) > 1 for name in among):
            found = [cells for cells in found if len(cells) > 1]
            if groups and not found:
                raise FolderError(
                    f"{self.folder}: no two levels of {' and '.join(among)} have finished runs of the same seed and "
                    "other levels, so there is no point that runs have in common; compare them at the end"
                )
        return found

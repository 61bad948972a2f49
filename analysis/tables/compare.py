"""Compare two runs client by client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from fedsim.analysis.opening.evaluation import Evaluation
from fedsim.analysis.opening.joining import join_runs
from fedsim.analysis.opening.points import POINTS, Point, kind_of, place_of
from fedsim.analysis.opening.run import Run
from fedsim.analysis.tables.closing import ACCURACIES, digits_of, fixed, with_status
from fedsim.analysis.tables.difference_tables import gap_note
from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import FolderError
from fedsim.common.terminal import ruled_table, shown
from fedsim.common.units import HOUR_US, show_bytes


@dataclass(frozen=True, slots=True)
class Comparison:
    """One evaluation of each of two runs, paired by client; printing it with rich shows `table()`."""

    first: str
    """Label of the first run, with its status unless it is done."""
    second: str
    split: str
    client: Ints
    """[K] clients that hold samples of the split."""
    difference_percent: Floats
    """[K] accuracy in the second run minus accuracy in the first, in percent."""
    metrics: dict[str, tuple[float, float]]
    """Each metric of the closing table in the first and in the second run."""
    same_world: bool | None
    """Whether `Run.world_digest` is the same; None if the trace of one is missing or cannot be read."""
    same_data: bool = True
    """Whether `Run.data_digest` is the same; clients and their numbers of samples are, in any case."""
    at: Point = "end"
    """The point at which the runs were compared."""
    points: tuple[tuple[int, int, int], ...] = ()
    """Step, virtual time in microseconds and bytes moved of the evaluation in the first and in the second run."""

    @property
    def point_gap(self) -> float:
        """Relative difference between the points of the two runs in steps, time or bytes; 0 at the end."""
        if self.at == "end":
            return 0.0
        first, second = (point[POINTS.index(kind_of(self.at)) - 1] for point in self.points)
        return abs(first - second) / max(first, second, 1)

    @property
    def mean_percent(self) -> float:
        """Mean difference over clients."""
        return float(self.difference_percent.mean())

    @property
    def standard_error_percent(self) -> float:
        """Standard error of the mean difference, `s / sqrt(K)`; NaN with one client."""
        k = len(self.difference_percent)
        return float(self.difference_percent.std(ddof=1) / np.sqrt(k)) if k > 1 else float("nan")

    @property
    def gained(self) -> int:
        """Number of clients with a higher accuracy in the second run."""
        return int((self.difference_percent > 0).sum())

    @property
    def lost(self) -> int:
        """Number of clients with a lower accuracy in the second run."""
        return int((self.difference_percent < 0).sum())

    @property
    def equal(self) -> int:
        """Number of clients with the same accuracy in both runs."""
        return int((self.difference_percent == 0).sum())

    @property
    def unknown(self) -> int:
        """Number of clients without an accuracy in a run, whose model has weights that are not finite."""
        return int(np.isnan(self.difference_percent).sum())

    def table(self) -> Table:
        """Return a table for the terminal."""
        table = ruled_table(f"{self.second} against {self.first}", self.note(), padding=1)
        for heading in ("", self.first, self.second, "difference"):
            table.add_column(
                shown(heading),
                justify="right" if heading else "left",
                overflow="fold",
                no_wrap=heading == "difference",
            )
        for row in self.rows():
            table.add_row(*row)
        return table

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the rows of the table: name, first run, second run, second minus first."""
        rows = []
        for heading, name in ACCURACIES.items():
            a, b = self.metrics[name]
            digits = digits_of(name)
            rows.append((heading, fixed(a, digits), fixed(b, digits), fixed(b - a, digits, "+")))
        counts = [
            ("clients better off", self.gained),
            ("clients worse off", self.lost),
            ("clients equal", self.equal),
        ]
        if self.unknown:
            counts.append(("clients without a number", self.unknown))
        paired = ("paired mean % ± s.e.", "", "", self.mean_shown)
        return [*rows, paired, *((name, "", "", str(count)) for name, count in counts)]

    @property
    def mean_shown(self) -> str:
        """The mean difference ± its standard error as text; the error of a single client is a dash."""
        error = self.standard_error_percent
        return f"{fixed(self.mean_percent, 2, '+')} ± {fixed(error, 2)}"

    def note(self) -> str:
        """Return point, split, clients, worlds and, if they differ, samples of the comparison in words."""
        worlds = {True: "same world", False: "different worlds", None: "world of one run not kept"}
        where = "last evaluation" if self.at == "end" else place_of(self.at)
        data = "" if self.same_data else ", different samples"
        return (
            f"{where} on the {self.split} split, {len(self.client)} clients, {worlds[self.same_world]}{data}"
        )

    def __rich__(self) -> Table:
        return self.table()


@arguments.checked
def compare(first: Run, second: Run, split: str | None = None, at: Point = "end") -> Comparison:
    """Pair the clients of two runs at their last evaluations, or at another point (see `Study.frame`).

    `split` is by default that of the first run. Raises FolderError if a run was not evaluated on it, or the runs have
    different data seeds, different clients or different numbers of samples, which a paired difference cannot compare.
    """
    split = split or first.split
    (a, b), points = _evaluations(first, second, split, at)
    _require_same_clients(first, second, a, b, at)
    measured = a.n > 0
    names = list(ACCURACIES.values())
    ours, theirs = a.summary(names), b.summary(names)
    return Comparison(
        first=with_status(first),
        second=with_status(second),
        split=split,
        client=a.client[measured],
        difference_percent=100 * (b.accuracy[measured] - a.accuracy[measured]),
        metrics={name: (ours[name], theirs[name]) for name in names},
        same_world=_same_world(first, second),
        same_data=first.data_digest == second.data_digest,
        at=at,
        points=points,
    )


def _evaluations(
    first: Run, second: Run, split: str, at: Point
) -> tuple[list[Evaluation], tuple[tuple[int, int, int], ...]]:
    """Return the evaluations of two runs to compare, and step, virtual time and bytes of each."""
    pair = join_runs(first, second)
    (cells,) = pair.at_point(at, split)
    points = tuple((point["step"], point["time_us"], point["bytes"]) for _, point, _ in cells)
    return [window[-1] for *_, window in cells], points


@arguments.checked
def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Return comparisons of the same two runs at several points as one table for the terminal, a row per point."""
    counts = " and ".join(dict.fromkeys(str(len(each.client)) for each in comparisons))
    title = f"{comparisons[0].second} against {comparisons[0].first}, at equal points, {counts} clients"
    gap = max(each.point_gap for each in comparisons)
    table = ruled_table(title, " ".join([_EQUAL_NOTE, *([gap_note(gap)] if gap > 0 else ())]), padding=1)
    for heading in _EQUAL_HEADINGS:
        table.add_column(
            heading, justify="left" if heading == "equal" else "right", overflow="fold", no_wrap=True
        )
    for each in comparisons:
        columns = zip(*each.points, strict=True)
        steps, times, moved = (
            "\n".join(show(v) for v in column) for show, column in zip(_SHOWN, columns, strict=True)
        )
        rest = [
            fixed(each.metrics[name][1] - each.metrics[name][0], digits_of(name), "+")
            for name in ("worst10_percent", "std_percent", "angle_rad")
        ]
        table.add_row(each.at, steps, times, moved, each.mean_shown, *rest)
    return table


_EQUAL_HEADINGS = (
    "equal",
    "steps",
    "virtual\nh",
    "moved",
    "mean %\n± s.e.",
    "worst\n10 %",
    "std %",
    "angle\nrad",
)
_SHOWN: tuple[Callable[[int], str], ...] = (str, lambda us: f"{us / HOUR_US:.2f}", show_bytes)
_EQUAL_NOTE = (
    "First run above second, then second minus first. The standard error is over clients, not over seeds."
)


def _require_same_clients(first: Run, second: Run, a: Evaluation, b: Evaluation, at: Point) -> None:
    after = "" if at == "end" else f", {place_of(at)}"
    where = (
        f"{first.folder} and {second.folder} cannot be compared client by client on split {a.split!r}{after}"
    )
    seeds = first.seed_of("data"), second.seed_of("data")
    if seeds[0] != seeds[1]:
        raise FolderError(
            f"{where}: their clients hold different data, of data seeds {seeds[0]} and {seeds[1]}; to compare over "
            "seeds, run a study (fedsim run --seeds)"
        )
    if not np.array_equal(a.client, b.client):
        odd = np.setxor1d(a.client, b.client)[0]
        raise FolderError(f"{where}: client {odd} was evaluated in only one of them")
    different = np.flatnonzero(a.n != b.n)
    if len(different):
        row = different[0]
        raise FolderError(
            f"{where}: client {a.client[row]} has {a.n[row]} samples in the first, {b.n[row]} in the second"
        )
    if not (a.n > 0).any():
        raise FolderError(f"{where}: no client has samples in it")


def _same_world(first: Run, second: Run) -> bool | None:
    a, b = first.world_digest, second.world_digest
    return None if a is None or b is None else a == b

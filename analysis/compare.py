"""Two runs side by side, client by client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.table import Table

from analysis.arrays import Floats, Ints
from analysis.closing import ACCURACIES
from analysis.run import Evaluation, Run
from fedsim.errors import RunError
from fedsim.terminal import shown


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last evaluations of two runs, paired by client; printing it with rich shows `table()`."""

    first: str
    second: str
    split: str
    client: Ints
    """[K] clients that hold samples of the split."""
    difference_percent: Floats
    """[K] accuracy in the second run minus accuracy in the first, in percent."""
    metrics: dict[str, tuple[float, float]]
    """Each metric of the closing table in the first and in the second run."""
    same_world: bool | None
    """Whether both runs saw the same trace; None if one of them did not keep it."""

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
        """Clients that are better off in the second run."""
        return int((self.difference_percent > 0).sum())

    @property
    def lost(self) -> int:
        """Clients that are worse off in the second run."""
        return int((self.difference_percent < 0).sum())

    @property
    def equal(self) -> int:
        """Clients with the same accuracy in both."""
        return len(self.difference_percent) - self.gained - self.lost

    def table(self) -> Table:
        """Return a table for the terminal."""
        table = Table(title=shown(f"{self.second} against {self.first}"), caption=self.note())
        for heading in ("", self.first, self.second, "difference"):
            table.add_column(shown(heading), justify="right" if heading else "left")
        for row in self.rows():
            table.add_row(*row)
        return table

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return what the table says: name, first, second, second minus first."""
        rows = []
        for heading, name in ACCURACIES.items():
            a, b = self.metrics[name]
            digits = 3 if name == "angle_rad" else 2
            rows.append((heading, f"{a:.{digits}f}", f"{b:.{digits}f}", f"{b - a:+.{digits}f}"))
        mean = f"{self.mean_percent:+.2f} ± {self.standard_error_percent:.2f}"
        counts = (
            ("clients better off", self.gained),
            ("clients worse off", self.lost),
            ("clients equal", self.equal),
        )
        paired = ("paired mean % ± s.e.", "", "", mean)
        return [*rows, paired, *((name, "", "", str(count)) for name, count in counts)]

    def note(self) -> str:
        """Say what the comparison rests on."""
        worlds = {True: "same world", False: "different worlds", None: "world of one run not kept"}
        evaluated = f"last evaluation on the {self.split} split, {len(self.client)} clients"
        return f"{evaluated}, {worlds[self.same_world]}"

    def __rich__(self) -> Table:
        return self.table()


def compare(first: Run, second: Run, split: str | None = None) -> Comparison:
    """Pair the clients of two runs by their last evaluation.

    `split` is by default that of the first run. Raises RunError if a run was not evaluated on it, or the two
    were evaluated on different clients or different numbers of samples: a paired difference would compare
    unlike things.
    """
    split = split or first.split
    a, b = first.final(split), second.final(split)
    _require_same_clients(first, second, a, b)
    held = a.n > 0
    names = list(ACCURACIES.values())
    ours, theirs = a.summary(names), b.summary(names)
    return Comparison(
        first=first.label,
        second=second.label,
        split=split,
        client=a.client[held],
        difference_percent=100 * (b.accuracy[held] - a.accuracy[held]),
        metrics={name: (ours[name], theirs[name]) for name in names},
        same_world=_same_world(first, second),
    )


def _require_same_clients(first: Run, second: Run, a: Evaluation, b: Evaluation) -> None:
    where = f"{first.folder} and {second.folder} cannot be compared client by client on split {a.split!r}"
    if not np.array_equal(a.client, b.client):
        odd = np.setxor1d(a.client, b.client)[0]
        raise RunError(f"{where}: client {odd} was evaluated in only one of them")
    different = np.flatnonzero(a.n != b.n)
    if len(different):
        at = different[0]
        raise RunError(
            f"{where}: client {a.client[at]} has {a.n[at]} samples in the first, {b.n[at]} in the second"
        )
    if not (a.n > 0).any():
        raise RunError(f"{where}: no client has samples in it")


def _same_world(first: Run, second: Run) -> bool | None:
    try:
        return bool(first.world.equals(second.world))
    except RunError:
        return None

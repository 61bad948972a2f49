"""Compare the arms of an experiment with one of them, client by client, in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from fedsim.analysis.opening.run import Run, with_distinct_labels
from fedsim.analysis.tables.closing import digits_of, fixed, with_status
from fedsim.analysis.tables.compare import Comparison, compare
from fedsim.common import arguments
from fedsim.common.errors import ConfigError, closest
from fedsim.common.terminal import ruled_table, shown

_METRICS = {
    "mean %": "mean_percent",
    "worst\n10 %": "worst10_percent",
    "std %": "std_percent",
    "angle\nrad": "angle_rad",
}
_HEADINGS = ("arm", *_METRICS, "paired mean\n% ± s.e.", "better / worse\n/ equal")
_NOTE = (
    "Below each metric its difference; how many clients are better and worse off. The standard error is over clients, "
    "not over seeds."
)


@arguments.checked
def arms_table(runs: Sequence[Run], baseline: str | None = None, split: str | None = None) -> Table:
    """Return a table for the terminal with each run's last evaluation against that of one of them.

    Args:
        runs: at least two, such as `open_all` returns for the folder of an experiment; the labels of those that share
            one get a part of their paths.
        baseline: the label of the run that the others are compared with; by default the first.
        split: by default that of the baseline.

    Raises ConfigError without a second run or with an unknown baseline, FolderError as `compare`.
    """
    if len(runs) < 2:
        raise ConfigError(f"runs: expected at least two, found {len(runs)}")
    runs = with_distinct_labels(runs)
    labels = [run.label for run in runs]
    if baseline is not None and baseline not in labels:
        raise ConfigError(f"there is no arm {baseline!r}{closest(baseline, labels)}")
    first = runs[0] if baseline is None else runs[labels.index(baseline)]
    comparisons = {run.label: compare(first, run, split) for run in runs if run is not first}
    anything, table = next(iter(comparisons.values())), _empty(first.label, comparisons)
    for run in runs:
        cells = _of_first(anything) if run is first else _of_other(comparisons[run.label])
        table.add_row(shown(with_status(run)), *cells)
    return table


def _empty(first: str, comparisons: Mapping[str, Comparison]) -> Table:
    """Return the table without rows. Its caption has the note of all comparisons, or each arm's if they differ."""
    notes = list(dict.fromkeys(each.note() for each in comparisons.values()))
    if len(notes) > 1:
        notes = [f"{label}: {each.note()}" for label, each in comparisons.items()]
    table = ruled_table(f"each arm against {first}", "\n".join([_NOTE, *notes]), padding=1)
    for heading in _HEADINGS:
        name = heading == "arm"
        table.add_column(heading, justify="left" if name else "right", overflow="fold", no_wrap=not name)
    return table


def _of_first(any_comparison: Comparison) -> list[str]:
    values = [fixed(any_comparison.metrics[name][0], digits_of(name)) for name in _METRICS.values()]
    return [*values, "", ""]


def _of_other(comparison: Comparison) -> list[str]:
    cells = []
    for name in _METRICS.values():
        first, second = comparison.metrics[name]
        digits = digits_of(name)
        cells.append(f"{fixed(second, digits)}\n{fixed(second - first, digits, '+')}")
    return [*cells, comparison.mean_shown, f"{comparison.gained} / {comparison.lost} / {comparison.equal}"]

"""Fairness against participation of a run or a study, as frames and as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from rich.table import Table
from rich.text import Text

from fedsim.analysis.opening.run import Run
from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.bootstrap import FEW_NOTE, spread_of
from fedsim.analysis.statistics.correlation import correlations
from fedsim.analysis.statistics.paired.differences import Better, PairedDifference, differences_of, has_pairs
from fedsim.analysis.statistics.participation import (
    BY_LABELS,
    groupings,
    groups,
    in_order,
    losses,
    run_clients,
    with_own,
    worst_group,
)
from fedsim.analysis.tables.difference_tables import (
    conditions,
    difference_frame,
    difference_table,
    on_split,
    plain,
    span,
    spread_text,
)
from fedsim.common import arguments
from fedsim.common.errors import ConfigError
from fedsim.common.terminal import from_to, ruled_table, shown

if TYPE_CHECKING:
    import pandas as pd

COMPARED: dict[str, Better] = {
    "worst_group_percent": "larger",
    "worst_group_over_samples_percent": "larger",
    "group_gap_percent": "smaller",
    "victims_gap_percent": "nearer zero",
}
"""Measures by which levels of a study are compared, and which values are better."""
ONE_BY_ONE = "clients, as if clients with the same labels were independent"
"""Over what intervals are taken where the labels of clients are not known."""
_GROUP = "availability"
_RUN_TITLES = {"groups": "accuracy by group of clients", "losses": "survivors against victims of dropout"}
_GROUP_HEADINGS = (
    "by",
    "group",
    "from",
    "to",
    "clients",
    "mean %\nclients",
    "mean %\nsamples",
    "std %",
    "min %",
)
_CLIENT_COLUMNS = {
    "name": "name",
    "accuracy %": "accuracy_percent",
    "samples": "n",
    "jobs": "jobs",
    "used": "used",
    "lost": "lost",
    "online %": "availability",
}
"""The columns of `run_clients` by heading."""
_CORRELATION_HEADINGS = ("with", "method", "weighted by", "clients", "value", "95 %")


@arguments.checked
def run_participation(
    run: Run, by: Sequence[str] | Mapping[str, ArrayLike] | None = None, split: str | None = None
) -> dict[str, pd.DataFrame]:
    """Return fairness against participation for one run at its last evaluation, with intervals over clients.

    Intervals draw clients one by one; with `label` or `labels` in `by`, clients with the same labels
    together.

    Frames by name: `groups`, `participation.groups` for each of `by`, by default for all columns of `groupings`
    (`label` and `labels` only if named); `losses`, survivors against victims of dropout; `correlations`.

    Groups of your own are a mapping: by name, the group [K] of each client, a number, a truth value or a text. Raises
    ConfigError for an unknown grouping.
    """
    import pandas as pd  # imported here: opening a run does not need it

    frame = run_clients(run, split, labels=_by_labels(by or ()))
    if isinstance(by, Mapping):
        frame = with_own(frame, by, _n_clients(run))
    tables = [groups(frame, name) for name in (groupings(frame) if by is None else by)]
    each = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    return {"groups": each, "losses": losses(frame), "correlations": correlations(frame)}


@arguments.checked
def study_participation(
    study: Study, by: str | Mapping[str, ArrayLike] | None = None, split: str | None = None
) -> dict[str, pd.DataFrame]:
    """Return fairness against participation for each finished cell of a study: the frames `groups` and `measures`.

    Both frames have a column per axis and `seed`. `groups` has the rows of `participation.groups` for `by`, by default
    the `group` of the study's `compare`, else availability, or one mapping as for `run_participation`; accuracies are
    means over the study's `last` evaluations on `split`, by default that of `Study.frame`. `measures` has per cell:

    - `worst_group_percent`, `worst_group_over_samples_percent`: mean accuracy of the worst group,
    - `group_gap_percent`: mean of the best group minus that of the worst,
    - `victims_gap_percent`: mean of clients that lost no job minus that of clients that lost some; NaN without either,
    - `spearman_used`, `spearman_availability`: correlations with accuracy, each client counting once.
    """
    import pandas as pd

    own, split = by if isinstance(by, Mapping) else {}, split or study.split
    if isinstance(by, Mapping) and len(by) != 1:
        raise ConfigError(f"by: expected one grouping, found {len(by)}")
    name = str(next(iter(own), None) or by or study.compare.get("group") or _GROUP)
    parts, rows = [], []
    for cell in study.finished:
        run = study.afresh(cell)
        frame = run_clients(run, split, labels=_by_labels([name]), last=study.last)
        if own:
            frame = with_own(frame, own, _n_clients(run))
        cell_groups = groups(frame, name, intervals=False)
        where = {**cell.levels, "seed": cell.seed}
        parts.append(pd.DataFrame([where] * len(cell_groups)).join(cell_groups))
        rows.append({**where, **_measures(frame, cell_groups)})
    return {
        "groups": pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(),
        "measures": pd.DataFrame(rows),
    }


def groups_of_levels(
    study: Study, groups: pd.DataFrame
) -> Iterator[tuple[tuple[Any, ...], str, pd.DataFrame]]:
    """Yield a combination of levels, the name of a group and its rows, one per seed that has such clients, in order."""
    axes = list(study.axes)
    for key, part in groups.groupby(axes, sort=False) if axes else [((), groups)]:
        for name in in_order(part["group"]):
            yield key, name, part[part["group"] == name]


def participation_differences(study: Study, measures: pd.DataFrame) -> list[list[PairedDifference]]:
    """Return the paired differences of each measure in `COMPARED` that has values in `measures`, a list per measure."""
    if not has_pairs(study):
        return []
    known = {name: better for name, better in COMPARED.items() if measures[name].notna().any()}
    return [differences_of(study, measures, name, better_is=better) for name, better in known.items()]


def participation_frames(study: Study) -> dict[str, pd.DataFrame]:
    """Return `participation.groups`, `participation.measures` and `participation.differences` of a study."""
    participation = study_participation(study)
    compared = list(chain(*participation_differences(study, participation["measures"])))
    frames = {f"participation.{name}": frame for name, frame in participation.items()}
    return frames | ({"participation.differences": difference_frame(compared)} if compared else {})


def participation_tables(study: Study) -> list[Table]:
    """Return the groups of a study with their spread over seeds, and paired differences, for the terminal."""
    participation = study_participation(study)
    if not len(participation["measures"]):
        return []
    compared = list(chain(*participation_differences(study, participation["measures"])))
    tables = [
        _study_groups(study, participation["groups"], participation["measures"]),
        _study_measures(study, participation["measures"]),
    ]
    return tables + ([difference_table(compared, conditions(study))] if compared else [])


@arguments.checked
def run_participation_tables(
    run: Run, by: Sequence[str] | None = None, split: str | None = None
) -> list[Table]:
    """Return fairness against participation of a run as tables for the terminal; see `run_participation`."""
    frames, place = run_participation(run, by, split), on_split(split or run.split)
    drawn = "sets of clients with the same labels" if _by_labels(by or ()) else ONE_BY_ONE
    note = f"Intervals are 95 % bootstrap intervals over {drawn}. {FEW_NOTE} "
    weights = "Clients: each client counts once; samples: each test sample does."
    tables = []
    for name, title in _RUN_TITLES.items():
        table = ruled_table(f"{run.label}: {title}{place}", note + weights)
        for i, heading in enumerate(_GROUP_HEADINGS):
            table.add_column(heading, justify="left" if i < 2 else "right", overflow="fold")
        for row in frames[name].to_dict("records"):
            table.add_row(*map(shown, _group_cells(row)))
        tables.append(table)
    caption = note + "A correlation says what goes together, not what causes what."
    table = ruled_table(f"{run.label}: correlation of accuracy with participation{place}", caption)
    for i, heading in enumerate(_CORRELATION_HEADINGS):
        table.add_column(heading, justify="left" if i < 3 else "right", overflow="fold")
    for each in frames["correlations"].to_dict("records"):
        words = [each["with"], each["method"], each["weighted_by"], str(each["clients"])]
        table.add_row(*map(shown, [*words, plain(each["value"]), span((each["low"], each["high"]))]))
    return [*tables, table]


@arguments.checked
def run_clients_table(run: Run, split: str | None = None, most: int | None = None) -> Table:
    """Return the clients of a run, those with the lowest accuracy first, as a table for the terminal.

    Args:
        split: on which their accuracy is that of the last evaluation; by default the run's.
        most: how many clients to show; all by default.

    Raises FolderError if there was no evaluation on the split.
    """
    frame = run_clients(run, split).sort_values("accuracy_percent", kind="stable")
    some = frame if most is None else frame.head(most)
    which = "worst off first" if len(some) == len(frame) else f"the {len(some)} worst off of {len(frame):,}"
    note = "used: updates that a step used or remembers; online: share of the run's virtual time"
    table = ruled_table(f"{run.label}: clients, {which}{on_split(split or run.split)}", note)
    columns = {heading: name for heading, name in _CLIENT_COLUMNS.items() if name in some}
    for heading, name in {"client": "client", **columns}.items():
        table.add_column(heading, justify="left" if name == "name" else "right", overflow="fold")
    for client, row in zip(some.index, some.to_dict("records"), strict=True):
        table.add_row(str(client), *(_client_cell(name, row[name]) for name in columns.values()))
    return table


def _client_cell(name: str, value: Any) -> Text:
    if name == "name":
        return shown(value)
    return shown(
        f"{value:,}" if isinstance(value, int) else plain(100 * value if name == "availability" else value)
    )


def _n_clients(run: Run) -> int:
    """Return the number of a run's clients, unseen ones included."""
    return (run.training_clients or 0) + len(run.manifest.get("unseen") or ())


def _by_labels(by: Collection[str]) -> bool:
    return not set(BY_LABELS).isdisjoint(by)


def _group_cells(row: Mapping[Any, Any]) -> list[str]:
    mean = f"{plain(row['mean_percent'])}\n{span((row['low'], row['high']), '')}"
    rest = [plain(row[name]) for name in ("mean_over_samples_percent", "std_percent", "min_percent")]
    return [row["by"], row["group"], plain(row["from"]), plain(row["to"]), str(row["clients"]), mean, *rest]


def _measures(frame: pd.DataFrame, grouped: pd.DataFrame) -> dict[str, float]:
    lost = losses(frame, intervals=False).set_index("group")["mean_percent"]
    each = correlations(frame, intervals=False)
    ranked = each[(each["method"] == "spearman") & (each["weighted_by"] == "clients")].set_index("with")[
        "value"
    ]
    return {
        "worst_group_percent": float(worst_group(grouped)["mean_percent"]),
        "worst_group_over_samples_percent": float(
            worst_group(grouped, weighted=True)["mean_over_samples_percent"]
        ),
        "group_gap_percent": float(grouped["mean_percent"].max() - grouped["mean_percent"].min()),
        "victims_gap_percent": float(lost.get("none lost", math.nan) - lost.get("some lost", math.nan)),
        "spearman_used": float(ranked.get("used", math.nan)),
        "spearman_availability": float(ranked.get("availability", math.nan)),
    }


def _study_groups(study: Study, groups: pd.DataFrame, measures: pd.DataFrame) -> Table:
    axes = list(study.axes)
    levels = measures.groupby(axes) if axes else [((), measures)]
    seeds = {key: part["seed"].nunique() for key, part in levels}  # some may lack a group
    by = str(groups["by"].iloc[0])
    note = "mean ± standard deviation over seeds, below it the 95 % bootstrap interval of the mean over seeds"
    table = ruled_table(f"{study.name}: accuracy by {by} at the end of each run{conditions(study)}, %", note)
    for heading in (*axes, "group"):
        table.add_column(shown(heading))
    for heading in ("clients", "each client once", "each sample once"):
        table.add_column(heading, justify="right")
    for key, name, part in groups_of_levels(study, groups):
        means = [
            _over_seeds(part[each], seeds[key]) for each in ("mean_percent", "mean_over_samples_percent")
        ]
        clients = from_to(part["clients"].min(), part["clients"].max())
        table.add_row(*map(shown, [*map(str, key), name, clients, *means]))
    return table


def _study_measures(study: Study, measures: pd.DataFrame) -> Table:
    axes = list(study.axes)
    names = [str(name) for name in measures if name not in (*axes, "seed")]
    note = "mean ± standard deviation over seeds, below it the 95 % bootstrap interval of the mean over seeds"
    table = ruled_table(f"{study.name}: fairness against participation{conditions(study)}", note)
    for heading in (*axes, *names):
        table.add_column(
            shown(heading.replace("_", " ")), justify="left" if heading in axes else "right", overflow="fold"
        )
    for key, part in measures.groupby(axes, sort=False) if axes else [((), measures)]:
        table.add_row(*map(shown, [*map(str, key), *(_over_seeds(part[name], len(part)) for name in names)]))
    return table


def _over_seeds(values: pd.Series[Any], seeds: int) -> str:
    known = values.dropna().to_numpy(dtype=np.float64)
    return spread_text({"n": len(known), **spread_of(known)}, seeds)

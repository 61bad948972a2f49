"""Fairness against participation: accuracy of clients by availability, speed, use of their updates, and lost jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsim.analysis.opening.evaluation import Evaluation, latest
from fedsim.analysis.opening.run import UNSEEN_SPLITS, Run
from fedsim.analysis.statistics.bootstrap import client_draws, interval, mean_of
from fedsim.analysis.statistics.waste import USED
from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ConfigError, FolderError, closest
from fedsim.records.file_names import CONFIG, WORLD
from fedsim.worlds.availability import UNKNOWNS, sessions_of
from fedsim.worlds.client_statistics import speed, time_us
from fedsim.worlds.interval_arithmetic import cut, repeated
from fedsim.worlds.trace import MODELLED, Trace, read_trace
from fedsim.worlds.transforms import laps_us

if TYPE_CHECKING:
    import pandas as pd

QUARTERS = ("lowest 1/4", "second 1/4", "third 1/4", "highest 1/4")
_UNKNOWN = "unknown"
"""The group of clients whose value is not known."""
_LABEL = "label_"
BY_LABELS = ("label", "labels")
"""Groupings that need the labels of clients."""
_LEAST_PERCENT = 10
"""A client holds a label if at least this share of its training samples has it."""
_MOST_WORDS = 20
"""A text fact with more distinct values, such as an id, is no grouping by default."""


@arguments.checked
def run_clients(run: Run, split: str | None = None, *, labels: bool = False, last: int = 1) -> pd.DataFrame:
    """Return one row per client with samples of a split (default: the run's), from the last evaluation.

    Columns: `name`, if the task names its clients; `n` samples, `accuracy_percent` and `loss`, both means over the
    `last` evaluations; `jobs`, of these `used` (aggregated or remembered) and `lost`. If the folder has the world:
    `availability`, the share of the run's virtual time that the client was online; the mean speeds `compute`
    (samples/s), `downlink`, `uplink` (bytes/s) that the world models; each fact of the trace's `about` (with `about_`
    before `label`, `labels`, `label_...` and names that are taken); unseen clients have no part in the world. With
    `labels`: `labels`, those of at least 10 % of the client's training samples, ascending, such as `2 7`; and
    `label_<c>`, its training samples of class c, see `label_counts`. Raises FolderError if the run was evaluated less
    often, or on other clients from one of these evaluations to the next.
    """
    import pandas as pd  # imported here: opening a run does not need it

    final = run.final(split)
    several = _same_clients(run, latest(run.folder, run.evaluations(split), last))
    accuracy, loss = (np.mean([getattr(e, name) for e in several], axis=0) for name in ("accuracy", "loss"))
    frame = pd.DataFrame(
        {"n": final.n, "accuracy_percent": 100 * accuracy, "loss": loss},
        index=pd.Index(final.client, name="client"),
    )
    if run.names is not None and final.split not in UNSEEN_SPLITS:
        frame.insert(0, "name", np.array(run.names)[final.client])
    jobs = _job_counts(run, int(final.client.max(initial=-1)) + 1)
    for name, counted in jobs.items():
        frame[name] = counted[final.client]
    if labels:
        counts = label_counts(run)[final.client]
        frame["labels"] = [" ".join(map(str, np.flatnonzero(row))) for row in held_labels(counts)]
        for label, of_label in enumerate(counts.T):
            frame[f"{_LABEL}{label}"] = of_label
    if (run.folder / WORLD).is_file() and final.split not in UNSEEN_SPLITS:
        columns = _world_columns(run, len(jobs["jobs"]))
        for name, values in columns.items():
            free = name
            while free in frame or _of_labels(free) or (free != name and free in columns):
                free = f"about_{free}"
            frame[free] = values[final.client]
    return frame[frame["n"] > 0]


def with_own(frame: pd.DataFrame, own: Mapping[str, ArrayLike], clients: int) -> pd.DataFrame:
    """Return a frame of `run_clients` with groups of the caller's own: by name, the group of each of all `clients`.

    Raises ConfigError for a name that is taken, and unless there is one group for each client.
    """
    for name, values in own.items():
        if name in frame or _of_labels(name):
            raise ConfigError(f"by: {name!r} is the name of another column; choose a name that is free")
        array = np.asarray(values)
        if array.shape != (clients,):
            raise ConfigError(
                f"by[{name!r}]: expected the group of each of the {clients} clients, found an array of shape "
                f"{list(array.shape)}"
            )
        frame = frame.assign(**{name: array[frame.index]})
    return frame


def _of_labels(name: str) -> bool:
    """Return whether a column has this name only if it is about the labels of samples."""
    return name in BY_LABELS or name.startswith(_LABEL)


def _job_counts(run: Run, least: int) -> dict[str, Ints]:
    """Return [K] the numbers of jobs, of used and of lost ones by client, for at least `least` clients."""
    status = np.asarray(run.jobs["status"].cast("string"))
    who = run.jobs["client"].to_numpy().astype(np.int64)
    size = max(int(who.max(initial=-1)) + 1, least)
    groups = {"jobs": who, "used": who[np.isin(status, USED)], "lost": who[status == "lost"]}
    return {name: np.bincount(among, minlength=size) for name, among in groups.items()}


def _same_clients(run: Run, evaluations: Sequence[Evaluation]) -> Sequence[Evaluation]:
    """Return the evaluations. Raises FolderError if they are not of the same clients and samples."""
    first = evaluations[0]
    for each in evaluations:
        if not (np.array_equal(each.client, first.client) and np.array_equal(each.n, first.n)):
            raise FolderError(
                f"{run.folder}: last: expected the same clients in all evaluations that are averaged, found others at"
                f" step {each.step} than at step {first.step}"
            )
    return evaluations


def availability(trace: Trace, end_us: int, unknown: str = "offline") -> Floats:
    """Return [clients] the share of [0, end_us) that each client is online, repeated intervals included.

    `unknown` is the policy for unknown stretches, as in `[world]`. NaN if `end_us` is not above 0. Raises TraceError if
    the policy is `error` and the trace has unknown stretches.
    """
    if end_us <= 0:
        return np.full(trace.clients, np.nan)
    policy = next(known for known in UNKNOWNS if known == unknown)
    sessions = sessions_of(trace, trace.clients, policy)  # type: ignore[arg-type]  # one of UNKNOWNS
    ends = end_us if trace.after_end == "repeat" else min(end_us, trace.horizon_us)
    laps = laps_us(trace, "online")
    return time_us(cut(repeated(sessions, laps, ends), 0, ends), trace.clients) / end_us


def label_counts(run: Run) -> Ints:
    """Return [K, classes] how many training samples of each class each client of a run holds, unseen ones last.

    They are those of the run's `clients.parquet`. Where the file does not have them all, as for unseen clients, this
    loads the data set and divides it as the configuration says, reading only the seeds and the tables of task and
    partition. Raises ConfigError or DataError if that fails, and FolderError if task or partitioner are not installed:
    opening a folder must not run code that the folder names.
    """
    if run.label_counts is not None and not run.manifest.get("unseen"):
        return run.label_counts
    from fedsim.config.data import federation
    from fedsim.config.load import parse
    from fedsim.data.federated_data import label_counts as count

    any_run = {"pacing": {"preset": "sync", "clients": 1}, "stop": {"steps": 1}}
    config = parse(_installed_data(run) | any_run, str(run.folder / CONFIG), "data")[0]
    divided = federation(config)[1]
    counts = count(divided)
    if divided.unseen is None:
        return counts
    return np.concatenate([counts, count(divided, divided.unseen.train)[len(counts) :]])


def _installed_data(run: Run) -> dict[str, Any]:
    """Return the tables of a run's configuration that determine its data. Raises FolderError as `label_counts`."""
    from fedsim import plugins

    keys = ("seed", "seeds", "task", "partition")
    data: dict[str, Any] = {key: run.config[key] for key in keys if key in run.config}
    for kind, section in (("task", "task"), ("partitioner", "partition")):
        table = data.get(section)
        name = table.get("name") if isinstance(table, dict) else None
        if name is not None and name not in plugins.names(kind):
            file = run.folder / CONFIG
            raise FolderError(f"{file}: {section}.name: expected one of the installed, found {name!r}")
    return data


def held_labels(counts: Ints) -> NDArray[np.bool_]:
    """Return [K, C] whether a label has at least 10 % of the client's samples, given `counts` [K, C] of them."""
    return np.asarray((counts > 0) & (100 * counts >= _LEAST_PERCENT * counts.sum(axis=1, keepdims=True)))


def groupings(frame: pd.DataFrame) -> list[str]:
    """Return the columns that clients can be grouped by: participation, speeds, facts of the trace, and labels."""
    numbers = ("availability", *MODELLED, "used", "lost")
    known = [name for name in numbers if name in frame and frame[name].nunique() > 1]
    others = {"n", "accuracy_percent", "loss", "jobs", *numbers, *BY_LABELS}
    facts = [str(c) for c in frame if c not in others and not str(c).startswith(_LABEL)]
    if {"name", "id"} <= set(facts) and frame["name"].equals(frame["id"].astype(str)):
        facts.remove("id")
    more = [
        c
        for c in facts
        if frame[c].nunique() > 1 and (_is_number(frame[c]) or frame[c].nunique() <= _MOST_WORDS)
    ]
    return [*known, *more, *(BY_LABELS if "labels" in frame else ())]


def label_sets(frame: pd.DataFrame) -> Ints | None:
    """Return [K] `sets_of_labels` of the clients in a frame of `run_clients`; None without labels."""
    labels = [c for c in frame.columns if str(c).startswith(_LABEL)]
    return sets_of_labels(frame[labels].to_numpy()) if labels else None


def sets_of_labels(counts: Ints) -> Ints:
    """Return [K] a number for the set of labels that each client holds, given `counts` [K, C] of its samples.

    Clients with the same set (see `held_labels`) are alike. A client that holds all labels, or none, shares its set by
    no choice of the partition, and has a number of its own.
    """
    held = held_labels(counts)
    numbers = np.unique(held, axis=0, return_inverse=True)[1].reshape(-1)
    alone = held.all(axis=1) | ~held.any(axis=1)
    return np.where(alone, len(held) + np.arange(len(held)), numbers)


def groups(frame: pd.DataFrame, by: str, *, intervals: bool = True) -> pd.DataFrame:
    """Return one row per group of clients: by a column of `run_clients`, such as `labels`, or by `label`.

    A column of numbers with more than four distinct values is cut at its quartiles (equal values stay together, so a
    group may be missing); any other column has a group for each value. `label` has a group for each class, the clients
    that hold a training sample of it; these groups overlap.

    Columns: `by`, `group`, `from` and `to` (the range of a column of numbers, else NaN), `clients`, `samples`,
    `mean_percent` (each client counts once) with its 95 % bootstrap interval over clients `low` and `high`, in which
    clients of one of `label_sets` are drawn together if the frame has labels,
    `mean_over_samples_percent` (each sample counts once), `std_percent` and `min_percent` (over clients). Raises
    ConfigError for an unknown column.
    """
    import pandas as pd

    rows = [_row(frame[mask], by, name, values, intervals) for name, mask, values in _members(frame, by)]
    return pd.DataFrame(rows)


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of groups without repetitions: quarters from the lowest, numbers by value, then other names."""

    def place(name: str) -> tuple[int, float, str]:
        if name in QUARTERS:
            return 0, QUARTERS.index(name), ""
        try:
            return 1, float(name), ""
        except ValueError:
            return 3 if name == _UNKNOWN else 2, 0.0, name

    return sorted(set(names), key=place)


def losses(frame: pd.DataFrame, *, intervals: bool = True) -> pd.DataFrame:
    """Return survivors and victims of dropout in the columns of `groups`.

    Clients with a job form the groups `none lost` and `some lost`, and `up to the median` and `above the median` of
    lost jobs; the others form `no job`. Groups without a client are left out.
    """
    import pandas as pd

    had = np.asarray(frame["jobs"] > 0)
    lost = frame["lost"].to_numpy(dtype=np.float64)
    middle = float(np.median(lost[had])) if had.any() else 0.0
    masks = {
        "none lost": had & (lost == 0),
        "some lost": had & (lost > 0),
        "up to the median": had & (lost <= middle),
        "above the median": had & (lost > middle),
        "no job": ~had,
    }
    rows = [_row(frame[m], "lost jobs", name, lost[m], intervals) for name, m in masks.items() if m.any()]
    return pd.DataFrame(rows)


def worst_group(groups: pd.DataFrame, weighted: bool = False) -> pd.Series[Any]:
    """Return the row of `groups` with the lowest mean accuracy over clients or, if `weighted`, over samples.

    Source: the worst-group accuracy of Sagawa et al., "Distributionally Robust Neural Networks", ICLR 2020.
    """
    column = groups["mean_over_samples_percent" if weighted else "mean_percent"]
    return groups.iloc[int(column.to_numpy(np.float64).argmin())]


def _world_columns(run: Run, clients: int) -> dict[str, NDArray[Any]]:
    """Return the columns about each client that come from the world. Raises TraceError or FolderError."""
    trace = read_trace(run.folder / WORLD)
    if trace.clients < clients:
        raise FolderError(
            f"{run.folder}: {WORLD} has {trace.clients} clients, but client {clients - 1} is in the tables"
        )
    shares = availability(trace, run.virtual_us, run.unknown)
    columns: dict[str, NDArray[Any]] = {"availability": shares}
    for kind in MODELLED:
        if len(trace.spans(kind).client):
            columns[kind] = speed(trace, kind)
    for name in trace.about.column_names:
        columns[name] = np.asarray(trace.about.column(name).to_pandas())
    return columns


def _members(
    frame: pd.DataFrame, by: str
) -> Iterator[tuple[str, NDArray[np.bool_], Sequence[float] | Floats]]:
    """Yield name, members [K] and, for columns of numbers, the members' values of each group."""
    labels = [c for c in frame.columns if c.startswith(_LABEL)]
    if by == "label" and labels:
        for column in labels:
            if (holders := np.asarray(frame[column] > 0)).any():
                yield column.removeprefix(_LABEL), holders, ()
        return
    if by not in frame:
        words = dict.fromkeys([*groupings(frame), "n", *BY_LABELS])
        hint = "; clients were read without labels" if by in BY_LABELS else closest(by, words)
        raise ConfigError(f"clients cannot be grouped by {by!r}{hint}")
    column_values, known = frame[by], np.asarray(frame[by].notna())
    if _is_number(column_values) and column_values.nunique() > len(QUARTERS):
        yield from _quantiles(column_values.to_numpy(np.float64), known)
    else:
        values = sorted(column_values[known].unique())
        for value, name in zip(values, _short(values), strict=True):
            mask = np.asarray(column_values == value)
            yield name, mask, column_values[mask].to_numpy(np.float64) if _is_number(column_values) else ()
    if not known.all():
        yield _UNKNOWN, ~known, ()


def _short(values: Sequence[Any]) -> list[str]:
    """Return distinct numbers as texts with the fewest digits, at least four, that differ; other values unchanged."""
    if not all(isinstance(value, float) for value in values):
        return [str(value) for value in values]
    written = ([f"{value:.{digits}g}" for value in values] for digits in range(4, 18))
    return next(names for names in written if len(set(names)) == len(names))


def _quantiles(values: Floats, known: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.bool_], Floats]]:
    edges = np.quantile(values[known], np.arange(1, len(QUARTERS)) / len(QUARTERS))
    part = np.searchsorted(edges, values, side="left")
    for i, name in enumerate(QUARTERS):
        mask = known & (part == i)
        if mask.any():
            yield name, mask, values[mask]


def _row(
    part: pd.DataFrame, by: str, name: str, values: Sequence[float] | Floats, intervals: bool
) -> dict[str, Any]:
    accuracy, n = part["accuracy_percent"].to_numpy(np.float64), part["n"].to_numpy(np.float64)
    low, high = (_bounds(part) if intervals else None) or (np.nan, np.nan)
    numbers = np.asarray(values, dtype=np.float64)
    return {
        "by": by,
        "group": name,
        "from": numbers.min() if len(numbers) else np.nan,
        "to": numbers.max() if len(numbers) else np.nan,
        "clients": len(part),
        "samples": int(n.sum()),
        "mean_percent": accuracy.mean(),
        "low": low,
        "high": high,
        "mean_over_samples_percent": np.average(accuracy, weights=n),
        "std_percent": accuracy.std(),
        "min_percent": accuracy.min(),
    }


def _bounds(part: pd.DataFrame) -> tuple[float, float] | None:
    """Return the interval of the mean accuracy of a group of clients; None without one."""
    accuracy, k = part["accuracy_percent"].to_numpy(np.float64), len(part)
    return interval(mean_of(accuracy), k, draws=client_draws(k), clusters=label_sets(part))


def _is_number(column: pd.Series[Any]) -> bool:
    return column.dtype.kind in "iuf"

"""Results of the oracle audit: errors of remembered updates by age, reported and real conflicts, changes of losses.

The table is `audit.parquet` (`fedsim.records.schemas.AUDIT`). The *true* update is the one that the client would send
now. A conflict is a negative cosine with the plain mean of the step's present updates, the step that a server without
history would take. It is *reported* if the remembered update has it, and *real* if the true update has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsim.analysis.opening.run import Run
from fedsim.analysis.statistics.bootstrap import FEWEST, LEAST_CLIENTS, ends
from fedsim.analysis.statistics.participation import label_counts, sets_of_labels
from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import FolderError

AGES = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
"""First age of each group of ages, in server steps."""
_DRAWS = 1000
GROUPS = ("present", "remembered", "unknown")
"""Clients whose update the step uses, absent clients whose update the server remembers, and all others."""


def audited(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that recorded an audit."""
    return [run for run in runs if len(run.audit)]


@arguments.checked
def audit_frame(runs: Run | Sequence[Run], *, labels: bool = False) -> pd.DataFrame:
    """Return the audits of one or several runs as one frame, with a first column `run` and a last column `group`.

    `run` is the run's label, with a number behind it if several runs have the same one. With `labels` a column `alike`
    has the share of the other clients with the same labels (`participation.sets_of_labels`) whose true update is in
    conflict at the same step; NaN where no such client was audited.

    Raises FolderError if no run recorded an audit; with `labels` also ConfigError or DataError, if the data of a run
    cannot be loaded.
    """
    several = [runs] if isinstance(runs, Run) else list(runs)
    shared = {label for label, times in Counter(run.label for run in several).items() if times > 1}
    names = [f"{run.label} #{i}" if run.label in shared else run.label for i, run in enumerate(several, 1)]
    read = _with_alike if labels else _frame
    frames = [read(run).assign(run=name) for run, name in zip(several, names, strict=True)]
    audit = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if audit.empty:
        folders = ", ".join(str(run.folder) for run in several) or "no run"
        raise FolderError(
            f"{folders}: there is no audit; record one with [audit] every = 20 in the configuration"
        )
    group = np.where(audit["present"], GROUPS[0], np.where(audit["age"] >= 0, GROUPS[1], GROUPS[2]))
    return audit.assign(group=group)[["run", *[c for c in audit.columns if c != "run"], "group"]]


def _frame(run: Run) -> pd.DataFrame:
    return run.frame("audit")


def _with_alike(run: Run) -> pd.DataFrame:
    """Return the audits of a run with the column `alike` of `audit_frame`."""
    audit = run.frame("audit")
    if audit.empty:
        return audit
    sets = sets_of_labels(label_counts(run))[audit["client"]]
    real = (audit["true_with_mean"] < 0).astype(float)
    those = real.groupby([audit["step"], sets])
    others = those.transform("size") - 1
    return audit.assign(alike=(those.transform("sum") - real) / others.where(others > 0))


@arguments.checked
def by_age(audit: pd.DataFrame, ages: Sequence[int] = AGES) -> pd.DataFrame:
    """Return one row per group of ages that occurs, the youngest first; the last group ends at the highest age.

    `ages` are the first ages of the groups, in server steps. Columns: `from_age`, `to_age`, `n` (audited updates),
    `clients` (a client of two runs counts twice), and each with `_low` and `_high`, a 95 % interval:

    - `cosine` between the remembered update and the true one (mean), `norm_ratio` (geometric mean),
    - `reported`, `real`: shares of updates in conflict,
    - `precision`: share of the reported conflicts that are real; `recall`: share of the real ones that are reported,
    - `agreement`: mean of the shares of right answers among real conflicts and among the others; 0.5 is chance,
    - of an audit with `labels`: `alike`, the agreement if the true updates of other clients with the same labels answer
      instead, and `gain`, that of the remembered updates minus `alike`; both where there are such clients.

    Present updates have age 0. They differ from the true ones only by the order of minibatches and their staleness, so
    they are the noise floor. A zero update has no cosine and no conflict, and is left out of `cosine`. Ratios with a
    denominator of 0 are NaN. Intervals are expanded percentiles (`bootstrap.ends`) of a bootstrap over clients, since
    the updates of one client are alike; of several runs, over runs and then over the clients of each drawn run, since
    the clients of one run share its data, world and models. They are NaN for two runs, and where fewer than 5 clients
    have a part in the denominator, such as a real conflict for `recall`.
    """
    remembered = audit[audit["age"] >= 0]
    edges = np.array(sorted(set(ages)))
    at = np.searchsorted(edges, remembered["age"].to_numpy(), side="right") - 1
    rows = []
    for i in np.unique(at[at >= 0]).tolist():
        some = remembered[at == i]
        last = edges[i + 1] - 1 if i < at.max() else some["age"].max()
        counts = {"n": len(some), "clients": len(_pairs(some)[0])}
        rows.append({"from_age": int(edges[i]), "to_age": int(last)} | counts | _measured(some))
    return pd.DataFrame(rows)


def _measured(some: pd.DataFrame) -> dict[str, float]:
    """Return the measures of `by_age` with their intervals for the updates of one group of ages."""
    columns = _indicators(some)
    table = np.nan_to_num(np.stack([np.asarray(c, dtype=np.float64) for c in columns.values()], axis=1))
    names = list(columns)
    whole = _ratios(table.sum(axis=0)[None], names)
    each, runs = _by_client(table, some)
    drawn = _ratios(_drawn_sums(each, runs), names)
    holders = dict(zip(names, (each > 0).sum(axis=0).tolist(), strict=True))
    measures: dict[str, float] = {}
    for name, value in whole.items():
        low, high = _interval(drawn[name], min(holders[part] for part in _DIVIDED_BY[name]), runs)
        measures |= {name: float(value[0]), f"{name}_low": low, f"{name}_high": high}
    return measures


def _indicators(some: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """Return the columns [n] whose sums make up the measures."""
    reported = (some["remembered_with_mean"] < 0).to_numpy()
    real = (some["true_with_mean"] < 0).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(some["norm_ratio"].to_numpy())
    cosine = some["cosine"].to_numpy()
    return {
        "one": np.ones(len(some)),
        "cosine": cosine,
        "cosines": np.isfinite(cosine),
        "log": np.where(np.isfinite(logs), logs, 0.0),
        "logs": np.isfinite(logs),
        "reported": reported,
        "real": real,
        "unreal": ~real,
        "hit": reported & real,
        "quiet": ~reported & ~real,
    } | (_against_alike(some["alike"].to_numpy(), reported, real) if "alike" in some else {})


def _against_alike(alike: Floats, reported: NDArray[Any], real: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the further columns [n] for the comparison with clients that hold the same labels."""
    known = np.isfinite(alike)
    return {
        "known_real": known & real,
        "known_unreal": known & ~real,
        "alike_hit": np.where(known & real, alike, 0.0),
        "alike_quiet": np.where(known & ~real, 1 - alike, 0.0),
        "known_hit": known & reported & real,
        "known_quiet": known & ~reported & ~real,
    }


def _interval(drawn: Floats, clients: int, runs: Ints) -> tuple[float, float]:
    """Return the interval of `drawn` [draws] from `clients` of `runs`; NaN for few of them, or for mostly no value."""
    several = len(np.unique(runs))
    units = clients if several == 1 else several
    if clients < LEAST_CLIENTS or units < FEWEST:
        return np.nan, np.nan
    return ends(np.where(np.isfinite(drawn), drawn, np.nan), units) or (np.nan, np.nan)


def _pairs(some: pd.DataFrame) -> tuple[Ints, Ints]:
    """Return the run, as a number, of each pair [p] of a run and a client, and the pair of each row [n]."""
    runs = pd.factorize(some["run"])[0] if "run" in some else np.zeros(len(some), dtype=np.int64)
    pairs, owner = np.unique(np.stack([runs, some["client"].to_numpy()], axis=1), axis=0, return_inverse=True)
    return pairs[:, 0].astype(np.int64), owner.reshape(-1)


def _by_client(table: Floats, some: pd.DataFrame) -> tuple[Floats, Ints]:
    """Return the sums [p, columns] of the rows of each client of each run, and the run [p] of each."""
    runs, owner = _pairs(some)
    each = np.zeros((len(runs), table.shape[1]))
    np.add.at(each, owner, table)
    return each, runs


def _drawn_sums(each: Floats, runs: Ints) -> Floats:
    """Return sums [draws, columns] over clients [p, columns] drawn with replacement from runs drawn likewise."""
    generator, names = np.random.default_rng(0), np.unique(runs)
    times = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=_DRAWS)
    sums = np.zeros((_DRAWS, each.shape[1]))
    for run, drawn in zip(names, times.T, strict=True):
        clients = each[runs == run]
        counts = generator.multinomial(drawn * len(clients), np.full(len(clients), 1 / len(clients)))
        sums += counts @ clients
    return sums


def _ratios(sums: Floats, names: list[str]) -> dict[str, Floats]:
    s = dict(zip(names, sums.T, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        measures = {
            "cosine": s["cosine"] / s["cosines"],
            "norm_ratio": np.exp(s["log"] / s["logs"]),
            "reported": s["reported"] / s["one"],
            "real": s["real"] / s["one"],
            "precision": s["hit"] / s["reported"],
            "recall": s["hit"] / s["real"],
            "agreement": (s["hit"] / s["real"] + s["quiet"] / s["unreal"]) / 2,
        }
        if "known_real" in s:
            alike = (s["alike_hit"] / s["known_real"] + s["alike_quiet"] / s["known_unreal"]) / 2
            own = (s["known_hit"] / s["known_real"] + s["known_quiet"] / s["known_unreal"]) / 2
            measures |= {"alike": alike, "gain": own - alike}
        return measures


_DIVIDED_BY = {
    "cosine": ("cosines",),
    "norm_ratio": ("logs",),
    "reported": ("one",),
    "real": ("one",),
    "precision": ("reported",),
    "recall": ("real",),
    "agreement": ("real", "unreal"),
    "alike": ("known_real", "known_unreal"),
    "gain": ("known_real", "known_unreal"),
}
"""The sums a client must have above 0 to count for a measure's interval."""


@arguments.checked
def conflicts_found(audit: pd.DataFrame) -> pd.DataFrame:
    """Return one row of `by_age` for all absent remembered clients together; empty if there were none."""
    return by_age(audit[audit["group"] == "remembered"], (0,))


@arguments.checked
def by_run(audit: pd.DataFrame) -> pd.DataFrame:
    """Return `conflicts_found` of each run by itself, a row per run with a first column `run`."""
    rows = [(run, conflicts_found(part)) for run, part in audit.groupby("run", sort=False)]
    return pd.concat(
        [row.assign(run=run)[["run", *row.columns]] for run, row in rows if len(row)] or [pd.DataFrame()]
    )


@arguments.checked
def useful_age(ages: pd.DataFrame) -> int | None:
    """Return the last age in `by_age` up to which remembered updates tell conflicts better than chance.

    That is the end of the last group, in an unbroken series from age 1 on, whose interval of `agreement` lies above
    0.5; None if there is no such group. With a column `gain` it must lie above 0: better than the updates of other
    clients with the same labels. A longer history (tau, or a window) adds noise.
    """
    useful: int | None = None
    older = ages[ages["from_age"] > 0]
    lows = older["gain_low"] if "gain" in ages else older["agreement_low"] - 0.5
    for last, low in zip(older["to_age"].tolist(), lows.tolist(), strict=True):
        if not low > 0:
            break
        useful = last
    return useful


@arguments.checked
def realised(audit: pd.DataFrame) -> pd.DataFrame:
    """Return one row per group of clients: how steps changed their training loss.

    Columns: `group`, `n`, `clients`, `change` (mean of loss after minus loss before, nat), `change_low`,
    `change_high` (as in `by_age`), `worse` (share of clients whose loss rose) and `against` (share whose true update
    points against the step).
    """
    parts = {group: audit[audit["group"] == group] for group in GROUPS}
    rows = [{"group": group} | _realised(part) for group, part in parts.items() if not part.empty]
    return pd.DataFrame(rows)


def _realised(some: pd.DataFrame) -> dict[str, float]:
    """Return the columns of `realised` for the updates of one group."""
    change = (some["loss_after"] - some["loss_before"]).to_numpy()
    table = np.stack([change, np.ones(len(change))], axis=1)
    each, runs = _by_client(table, some)
    sums = _drawn_sums(each, runs)
    low, high = _interval(sums[:, 0] / sums[:, 1], len(each), runs)
    return {
        "n": len(some),
        "clients": len(each),
        "change": float(change.mean()),
        "change_low": low,
        "change_high": high,
        "worse": float((change > 0).mean()),
        "against": float((some["true_with_step"] < 0).mean()),
    }

"""Results of the oracle audit: errors of remembered updates by age, reported and real conflicts, changes of losses.

The table is `audit.parquet` (`fedsim.records.schemas.AUDIT`). The *true* update is the one that the client would send
now. A conflict is a negative cosine with the plain mean of the step's present updates, the step that a server without
history would take. It is *reported* if the remembered update has it, and *real* if the true update has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsim.analysis.opening.arrays import Floats
from fedsim.analysis.opening.run import Run
from fedsim.common import arguments
from fedsim.common.errors import FolderError

AGES = (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
"""First age of each group of ages, in server steps."""
LEVEL = 0.95
_DRAWS = 1000
_LEAST_CLIENTS = 5
"""Fewest clients for which an interval is given."""
GROUPS = ("present", "remembered", "unknown")
"""Clients whose update the step uses, absent clients whose update the server remembers, and all others."""


@arguments.checked
def audit_frame(runs: Run | Sequence[Run]) -> pd.DataFrame:
    """Return the audits of one or several runs as one frame, with a first column `run` and a last column `group`.

    Raises FolderError if no run recorded an audit.
    """
    several = [runs] if isinstance(runs, Run) else list(runs)
    frames = [run.frame("audit").assign(run=run.label) for run in several]
    audit = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if audit.empty:
        names = ", ".join(str(run.folder) for run in several) or "no run"
        raise FolderError(
            f"{names}: there is no audit; record one with [audit] every = 20 in the configuration"
        )
    group = np.where(audit["present"], GROUPS[0], np.where(audit["age"] >= 0, GROUPS[1], GROUPS[2]))
    return audit.assign(group=group)[["run", *[c for c in audit.columns if c != "run"], "group"]]


@arguments.checked
def by_age(audit: pd.DataFrame, ages: Sequence[int] = AGES) -> pd.DataFrame:
    """Return one row per group of ages that occurs, the youngest first; the last group ends at the highest age.

    `ages` are the first ages of the groups, in server steps. Columns: `from_age`, `to_age`, `n` (audited updates),
    `clients`, and each with `_low` and `_high`, a 95 % interval:

    - `cosine` between the remembered update and the true one (mean), `norm_ratio` (geometric mean),
    - `reported`, `real`: shares of updates in conflict,
    - `precision`: share of the reported conflicts that are real; `recall`: share of the real ones that are reported,
    - `agreement`: mean of the shares of right answers among real conflicts and among the others; 0.5 is chance.

    Present updates have age 0. They differ from the true ones only by the order of minibatches and their staleness, so
    they are the noise floor. A zero update has no cosine and no conflict, and is left out of `cosine`. Ratios with a
    denominator of 0 are NaN. Intervals are percentiles of a bootstrap over clients, since the updates of one client are
    alike; they are NaN where fewer than 5 clients have a part in the denominator, such as a real conflict for `recall`.
    """
    remembered = audit[audit["age"] >= 0]
    edges = np.array(sorted(set(ages)))
    at = np.searchsorted(edges, remembered["age"].to_numpy(), side="right") - 1
    rows = []
    for i in np.unique(at[at >= 0]).tolist():
        some = remembered[at == i]
        last = edges[i + 1] - 1 if i < at.max() else some["age"].max()
        counts = {"n": len(some), "clients": some["client"].nunique()}
        rows.append({"from_age": int(edges[i]), "to_age": int(last)} | counts | _measured(some))
    return pd.DataFrame(rows)


def _measured(some: pd.DataFrame) -> dict[str, float]:
    """Return the measures of `by_age` with their intervals for the updates of one group of ages."""
    columns = _indicators(some)
    table = np.nan_to_num(np.stack([np.asarray(c, dtype=np.float64) for c in columns.values()], axis=1))
    names = list(columns)
    whole = _ratios(table.sum(axis=0)[None], names)
    each = _by_client(table, some["client"].to_numpy())
    drawn = _ratios(_drawn_sums(each), names)
    holders = dict(zip(names, (each > 0).sum(axis=0).tolist(), strict=True))
    measures: dict[str, float] = {}
    for name, value in whole.items():
        low, high = _interval(drawn[name], min(holders[part] for part in _DIVIDED_BY[name]))
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
    }


def _interval(drawn: Floats, clients: int) -> tuple[float, float]:
    """Return the interval of `drawn` [draws]; NaN for few clients, or if most draws have no value."""
    known = drawn[np.isfinite(drawn)]
    if clients < _LEAST_CLIENTS or len(known) <= _DRAWS // 2:
        return np.nan, np.nan
    low, high = np.percentile(known, (50 * (1 - LEVEL), 100 - 50 * (1 - LEVEL)))
    return float(low), float(high)


def _by_client(table: Floats, clients: np.ndarray) -> Floats:
    """Return the sums [clients, columns] of the rows of each client."""
    _, owner = np.unique(clients, return_inverse=True)
    each = np.zeros((owner.max() + 1, table.shape[1]))
    np.add.at(each, owner, table)
    return each


def _drawn_sums(each: Floats) -> Floats:
    """Return sums [draws, columns] over clients [clients, columns] drawn with replacement."""
    draws = np.random.default_rng(0).multinomial(len(each), np.full(len(each), 1 / len(each)), size=_DRAWS)
    return np.asarray(draws @ each)


def _ratios(sums: Floats, names: list[str]) -> dict[str, Floats]:
    s = dict(zip(names, sums.T, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "cosine": s["cosine"] / s["cosines"],
            "norm_ratio": np.exp(s["log"] / s["logs"]),
            "reported": s["reported"] / s["one"],
            "real": s["real"] / s["one"],
            "precision": s["hit"] / s["reported"],
            "recall": s["hit"] / s["real"],
            "agreement": (s["hit"] / s["real"] + s["quiet"] / s["unreal"]) / 2,
        }


_DIVIDED_BY = {
    "cosine": ("cosines",),
    "norm_ratio": ("logs",),
    "reported": ("one",),
    "real": ("one",),
    "precision": ("reported",),
    "recall": ("real",),
    "agreement": ("real", "unreal"),
}
"""The sums a client must have above 0 to count for a measure's interval."""


@arguments.checked
def conflicts_found(audit: pd.DataFrame) -> pd.DataFrame:
    """Return one row of `by_age` for all absent remembered clients together; empty if there were none."""
    return by_age(audit[audit["group"] == "remembered"], (0,))


@arguments.checked
def useful_age(ages: pd.DataFrame) -> int | None:
    """Return the last age in `by_age` up to which remembered updates tell conflicts better than chance.

    That is the end of the last group, in an unbroken series from age 1 on, whose interval of `agreement` lies above
    0.5; None if there is no such group. A longer history (tau, or a window) adds noise.
    """
    useful: int | None = None
    older = ages[ages["from_age"] > 0]
    for last, low in zip(older["to_age"].tolist(), older["agreement_low"].tolist(), strict=True):
        if not low > 0.5:
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
    each = _by_client(table, some["client"].to_numpy())
    sums = _drawn_sums(each)
    low, high = _interval(sums[:, 0] / sums[:, 1], len(each))
    return {
        "n": len(some),
        "clients": len(each),
        "change": float(change.mean()),
        "change_low": low,
        "change_high": high,
        "worse": float((change > 0).mean()),
        "against": float((some["true_with_step"] < 0).mean()),
    }

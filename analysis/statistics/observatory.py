"""Conflicts of steps with clients as frames over time, layers and clients, from `conflicts.parquet`.

A row of a step's stack is in conflict if it makes an angle above 90 degrees with the direction (FedLF, Pan et al.
2024, AAAI, Table 2). Rows of age 0 are updates of present clients; older rows are remembered updates of absent clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsim.analysis.drawing.picture import spans
from fedsim.analysis.opening.run import Run
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.common.errors import FolderError
from fedsim.server.conflicts import ORTHOGONAL

if TYPE_CHECKING:
    import pandas as pd

SETTING = '[record] conflicts = "layers"'
"""The setting with which a run records conflicts."""
KINDS = ("present", "absent")


def recorded(run: Run) -> pd.DataFrame:
    """Return the rows of `conflicts.parquet` with three more columns: `kind`, `against` (in conflict), `angle_deg`.

    Raises FolderError, with the setting that records conflicts, if there are none.
    """
    if not len(run.conflicts):
        raise FolderError(f"{run.folder}: no conflicts were recorded; run it with {SETTING}")
    rows = run.frame("conflicts")
    rows["kind"] = np.where(rows.age == 0, *KINDS)
    rows["against"] = rows.cosine < -ORTHOGONAL
    rows["angle_deg"] = angles_deg(rows.cosine.to_numpy())
    return rows


def angles_deg(cosines: Floats) -> Floats:
    """Return angles in degrees; cosines beyond 1 by rounding are 1."""
    return np.asarray(np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0))))


def over_time(rows: pd.DataFrame, times_us: pd.Series[int]) -> pd.DataFrame:
    """Return the conflicts of the whole model over steps, in at most 150 groups of neighbouring steps.

    `rows` comes from `recorded`; `times_us` is the time of each step. Columns: kind, time_us (of the group's last
    step), steps, rows, conflict_percent, and the median, 10 % and 90 % quantiles of the angle in degrees.
    """
    import pandas as pd

    whole = rows[rows.block < 0]
    steps = np.unique(whole.step)
    group = pd.Series(spans(len(steps)), index=steps)
    grouped = whole.assign(group=whole.step.map(group)).groupby(["group", "kind"])
    angle = grouped.angle_deg.quantile(np.array([0.1, 0.5, 0.9])).unstack()
    angle.columns = pd.Index(["angle_low_deg", "angle_deg", "angle_high_deg"])
    last = grouped.step.max()
    table = pd.DataFrame(
        {
            "time_us": last.map(times_us),
            "steps": grouped.step.nunique(),
            "rows": grouped.size(),
            "conflict_percent": 100 * grouped.against.mean(),
        }
    )
    return table.join(angle).reset_index("kind").reset_index(drop=True)


def by_layer(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per layer (block -1 is the whole model) and kind: rows, conflict_percent, median angle_deg."""
    grouped = rows.groupby(["block", "kind"])
    share = 100 * grouped.against.mean()
    table = (
        grouped.size().to_frame("rows").assign(conflict_percent=share, angle_deg=grouped.angle_deg.median())
    )
    return table.reset_index()


def layer_times(rows: pd.DataFrame, kind: str, bins: int) -> tuple[Floats, Floats]:
    """Return the edges [B + 1] of at most `bins` groups of steps, and [L, B] the % of rows of a kind in conflict.

    NaN where a group has no such row. Only layers count, not the whole model.
    """
    chosen = rows[(rows.block >= 0) & (rows.kind == kind)]
    first, last = int(rows.step.min()), int(rows.step.max())
    n = last - first + 1
    group = spans(n, bins)
    edges = first + np.searchsorted(group, np.arange(group[-1] + 2))
    layers = int(rows.block.max()) + 1
    share = chosen.groupby([chosen.block, group[chosen.step - first]]).against.mean().unstack()
    table = share.reindex(index=range(layers), columns=range(len(edges) - 1))
    return edges.astype(np.float64), 100 * table.to_numpy(dtype=np.float64)


def with_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the whole model with a column `share`, % of their step's sum of weights, or 0.

    The share is NaN where the rule combines updates column by column, without weights.
    """
    whole = rows[rows.block < 0]
    size = whole.weight.abs()
    total = size.groupby(whole.step).transform("sum")
    none = np.where(size.isna(), np.nan, 0.0)
    return whole.assign(share=np.where(total > 0, 100 * size / total.where(total > 0, 1), none))


def by_client(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per client: steps with its present or remembered updates, their weights, and their conflicts.

    - `present_steps`, `absent_steps`: steps with a present, or a remembered, update of the client,
    - `protected_steps`: steps in which its remembered update had a weight,
    - `present_weight_percent`, `absent_weight_percent`: mean share of its rows (a buffer may hold several) in the
      sum of all weights of such a step,
    - `against_percent`: share of its rows in conflict with the direction.
    """
    import pandas as pd

    whole = with_shares(rows)
    absent, present = whole[whole.kind == "absent"], whole[whole.kind == "present"]
    table = pd.DataFrame(
        {
            "present_steps": present.groupby("client").step.nunique(),
            "absent_steps": absent.groupby("client").step.nunique(),
            "protected_steps": absent[absent.weight != 0].groupby("client").step.nunique(),
            "present_weight_percent": _mean_share(present),
            "absent_weight_percent": _mean_share(absent),
            "against_percent": 100 * whole.groupby("client").against.mean(),
        }
    )
    counts = ["present_steps", "absent_steps", "protected_steps"]
    table[counts] = table[counts].fillna(0).astype("int64")
    return table.rename_axis("client").reset_index()


def _mean_share(rows: pd.DataFrame) -> pd.Series[float]:
    """Return each client's mean share of the weights, over the steps that have rows of the client."""
    return rows.groupby(["client", "step"]).share.sum(min_count=1).groupby("client").mean()


def merges(run: Run, rows: pd.DataFrame) -> pd.DataFrame:
    """Return for each layer but the last the share of steps in which the rule merged it with the next layer, in %.

    Two layers are merged if all rows have equal weights in both. Empty unless the rule works on blocks of parameters.
    """
    import pandas as pd

    layers = int(rows.block.max()) + 1
    if layers < 2 or run.steps["blocks"].to_numpy().max(initial=0) < 2:
        return pd.DataFrame({"layer": [], "merged_percent": []})
    ordered = rows[rows.block >= 0].sort_values(["block", "step", "client", "age"], kind="stable")
    weights = ordered.weight.to_numpy().reshape(layers, -1)
    step = ordered.step.to_numpy()[: weights.shape[1]]
    shares = [100 * _all_by(step, weights[i] == weights[i + 1]).mean() for i in range(layers - 1)]
    return pd.DataFrame({"layer": np.arange(layers - 1), "merged_percent": shares})


def history_age(rows: pd.DataFrame) -> pd.DataFrame:
    """Return per step the mean and the largest age, in steps, of remembered rows with a weight."""
    used = rows[(rows.block < 0) & (rows.age > 0) & (rows.weight != 0)]
    return used.groupby("step").age.agg(["mean", "max"])


def _all_by(group: NDArray[np.int_], values: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each group of neighbours whether all of its values hold."""
    starts = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    return np.asarray(np.logical_and.reduceat(values, starts))


@arguments.checked
def conflict_table(run: Run) -> pd.DataFrame:
    """Return the mean number of clients in conflict with the direction, present and absent, layer by layer.

    One row per block; block -1 is the whole model. `present` counts the clients of a step whose update makes an angle
    above 90 degrees with the direction, averaged over steps with updates: MC for the whole model, LC_l for layer l
    (FedLF, Table 2). `absent` counts remembered updates in the same way. Raises FolderError unless the run recorded
    conflicts.
    """
    each = recorded(run)
    steps = each.step.nunique()
    against = each[each.against]
    counts = against.groupby(["block", against.age == 0]).size().unstack(fill_value=0)
    counts = counts.reindex(index=sorted(each.block.unique()), columns=[True, False], fill_value=0) / steps
    return counts.rename(columns={True: "present", False: "absent"}).rename_axis(columns=None)

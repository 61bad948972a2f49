"""Weights of clients' updates over steps, while clients were present and while they were remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedsim.analysis.drawing.heatmap import LEAST_IN, heat, powers, scale_beside
from fedsim.analysis.drawing.picture import Picture, panels, spans, whole_numbers
from fedsim.analysis.opening.run import Run
from fedsim.analysis.statistics.observatory import KINDS, recorded, with_shares
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import FolderError

if TYPE_CHECKING:
    import pandas as pd

ROWS, BINS = 120, 200
"""Most groups of clients, and of steps."""


def weights_over_clients(run: Run) -> Picture:
    """Draw each client's share of the weights over steps, present and absent.

    Raises FolderError if the run did not record conflicts, or if its rule combines updates column by column.
    """
    whole = with_shares(recorded(run))
    if whole.share.isna().any():
        raise FolderError(
            f"{run.folder}: expected updates with weights, found a rule that combines them by column"
        )
    row_of, sizes = _groups(whole)
    first, last = int(whole.step.min()), int(whole.step.max())
    group = spans(last - first + 1, BINS)
    widths = np.bincount(group)
    kinds = [kind for kind in KINDS if (whole.kind == kind).any()]
    tables = [_shares(whole[whole.kind == kind], row_of, sizes, group, widths, first) for kind in kinds]
    height = max(min(1.0 + 0.02 * len(sizes), 2.6), LEAST_IN / len(kinds))
    figure, axes = panels([height] * len(kinds), width_in=9.5)
    norm = powers(tables)
    for ax, kind, table in zip(axes, kinds, tables, strict=True):
        heat(ax, table, [first, last + 1], norm)
        ax.set_ylabel(f"clients\n{kind}", fontsize=9)
        ax.set_yticks([])
    axes[-1].set_xlabel("server steps", fontsize=9)
    whole_numbers(axes[-1].xaxis)
    scale_beside(figure, axes, "share of the weights, %")
    return Picture(figure, _alt(whole, kinds), _caption(len(row_of), len(sizes)))


def _groups(whole: pd.DataFrame) -> tuple[pd.Series[int], Ints]:
    """Return the row of each client, those with the most weight first, and the number of clients in each row."""
    import pandas as pd

    total = whole.groupby("client").share.sum().sort_values(ascending=False, kind="stable")
    row_of = pd.Series(spans(len(total), ROWS), index=total.index)
    return row_of, np.bincount(row_of)


def _shares(
    rows: pd.DataFrame, row_of: pd.Series[int], sizes: Ints, group: Ints, widths: Ints, first: int
) -> Floats:
    """Return the mean share of a client [rows, bins]; NaN where none of the row's clients had a row in the stack."""
    row, column = rows.client.map(row_of).to_numpy(), group[rows.step.to_numpy() - first]
    shape = (len(sizes), len(widths))
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, (row, column), rows.share.to_numpy())
    np.add.at(count, (row, column), 1)
    return np.where(count > 0, total / (sizes[:, None] * widths), np.nan)


def _alt(whole: pd.DataFrame, kinds: list[str]) -> str:
    total = float(whole.share.sum())
    words = [
        f"{kind}: {100 * whole[whole.kind == kind].share.sum() / max(total, 1e-300):.1f} %" for kind in kinds
    ]
    top = whole.groupby("client").share.sum().sort_values(ascending=False)
    tenth = top.head(max(1, len(top) // 10)).sum() / max(total, 1e-300)
    return (
        f"Map of the weights of {len(top)} clients over steps. Of all weights, {'; '.join(words)}."
        f" The tenth of the clients with the most weight holds {100 * tenth:.1f} %."
    )


def _caption(clients: int, rows: int) -> str:
    grouped = (
        f" Each of the {rows} lines stands for about {clients / rows:.0f} clients." if rows < clients else ""
    )
    return (
        "Share of a client's update in the weights of a step, those with the most weight above: while the client was"
        f" present, and while only its last update was remembered. Blank: it was neither.{grouped}"
    )

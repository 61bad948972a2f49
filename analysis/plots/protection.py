"""Protection of absent clients: weights of remembered updates, and conflicts, by presence of the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedsim.analysis.drawing.picture import (
    COLOURS,
    Picture,
    arm_marker,
    from_zero,
    label_panels,
    panels,
    whole_numbers,
)
from fedsim.analysis.opening.run import Run
from fedsim.analysis.statistics.observatory import by_client, recorded
from fedsim.common.errors import FolderError

if TYPE_CHECKING:
    import pandas as pd

_MOST = 2000


_CAPTION = (
    "Each point is a client: the mean share of the weights that its remembered update had in steps without it"
    " (above), and the share of its updates at more than 90° from the direction (below)."
)


def protection(run: Run) -> Picture:
    """Draw each client's mean share of the weights while absent, and its share of conflicts, by presence.

    Raises FolderError if the run did not record conflicts, or never remembered an absent client.
    """
    clients = by_client(recorded(run))
    if not clients.absent_steps.any():
        raise FolderError(f"{run.folder}: no update of an absent client was in any step")
    shown = clients.iloc[:: -(-len(clients) // _MOST)]
    figure, axes = panels([1.7, 1.7])
    x = shown.present_steps.to_numpy()
    columns = ("absent_weight_percent", "against_percent")
    for index, (ax, column) in enumerate(zip(axes, columns, strict=True)):
        style: dict[str, Any] = {"s": 14, "alpha": 0.7, "linewidths": 0}
        ax.scatter(x, shown[column], color=COLOURS[1 - index], marker=arm_marker(index), **style)
        from_zero(ax)
    labels = ("mean weight\nwhile absent, %", "updates against\nthe step, %")
    label_panels(figure, axes, labels, "steps in which the client was present")
    whole_numbers(axes[1].xaxis)
    return Picture(figure, _alt(clients), _CAPTION)


def _alt(clients: pd.DataFrame) -> str:
    protected = int((clients.protected_steps > 0).sum())
    return (
        f"Two scatter plots of clients by the steps in which they were present. {protected} of {len(clients)} clients"
        f" had a weight while absent, on average {clients.absent_weight_percent.mean():.2f} % of a step's weights;"
        f" on average {clients.against_percent.mean():.1f} % of a client's updates were against the direction."
    )

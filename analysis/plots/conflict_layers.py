"""Conflicts by layer and step."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedsim.analysis.drawing.heatmap import LEAST_IN, heat, scale_beside, shares
from fedsim.analysis.drawing.picture import Picture, panels, whole_numbers
from fedsim.analysis.opening.run import Run
from fedsim.analysis.statistics.observatory import KINDS, by_layer, layer_times, recorded
from fedsim.common.errors import FolderError

BINS = 60
_CAPTION = (
    "Share of updates at more than 90° from the direction within a layer (0 is next to the input), over groups of"
    " neighbouring steps: updates of present clients, and remembered ones of absent clients."
)


def conflict_layers(run: Run) -> Picture:
    """Draw the share of updates in conflict with the direction by layer and step, present and absent.

    Raises FolderError if the run did not record conflicts layer by layer.
    """
    rows = recorded(run)
    layers = int(rows.block.max()) + 1
    if not layers:
        raise FolderError(
            f'{run.folder}: conflicts of the whole model alone were recorded, with [record] "model"'
        )
    kinds = [kind for kind in KINDS if (rows.kind == kind).any()]
    height = min(max(0.22 * layers, 0.8), 4.0)
    figure, axes = panels([max(height + 0.15, LEAST_IN / len(kinds))] * len(kinds))
    for ax, kind in zip(axes, kinds, strict=True):
        edges, share = layer_times(rows, kind, BINS)
        heat(ax, share, list(edges), shares())
        ax.set_ylabel(f"layer,\n{kind}", fontsize=9)
        ax.set_yticks(*_names(layers))
    axes[-1].set_xlabel("server steps", fontsize=9)
    whole_numbers(axes[-1].xaxis)
    scale_beside(figure, axes, "updates in conflict, %")
    alt = f"Map of conflicts by layer and step. Most of them: {_layers_of_most_conflicts(by_layer(rows))}."
    return Picture(figure, alt, _CAPTION)


def _layers_of_most_conflicts(table: pd.DataFrame) -> str:
    most = table[table.block >= 0].sort_values("conflict_percent", ascending=False).head(6)
    return "; ".join(
        f"layer {row.block}, {row.kind}: {row.conflict_percent:.1f} %" for row in most.itertuples()
    )


def _names(layers: int) -> tuple[list[float], list[str]]:
    """Return positions and texts of at most a dozen numbers of layers."""
    shown = np.unique(np.linspace(0, layers - 1, min(layers, 12)).round().astype(int))
    return [float(layer) + 0.5 for layer in shown], [str(layer) for layer in shown]

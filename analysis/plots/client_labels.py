"""Training samples of each client, and the share of each label in them."""

from __future__ import annotations

import numpy as np

from fedsim.analysis.drawing.heatmap import LEAST_IN, heat, scale_beside, shares
from fedsim.analysis.drawing.picture import GREY, Picture, panels, spans, whole_numbers
from fedsim.common.arrays import Floats, Ints

COLUMNS = 200
"""Most columns of clients."""
_LINE_IN = 0.16
"""Height of the name of a label, in inches."""


def client_labels(counts: Ints) -> Picture:
    """Draw how samples are divided among clients: their numbers, and below it the share of each label.

    Args:
        counts: [K, classes] training samples of each label that each client holds, at least one client and one label.
    """
    clients, classes = counts.shape
    group = spans(clients, COLUMNS)
    widths = np.bincount(group)
    edges = np.concatenate([[0], np.cumsum(widths)]) - 0.5
    totals = counts.sum(axis=1)
    labels_in = min(max(0.2 * classes, LEAST_IN), 4.5)
    figure, (above, below) = panels([1.0, labels_in], width_in=9.5)
    above.stairs(_mean(totals, group, widths), edges, fill=True, color=GREY, alpha=0.5)
    above.set_ylim(0, 1.05 * max(float(totals.max()), 1.0))
    above.set_ylabel("training\nsamples", fontsize=9)
    percent = _mean(100 * counts / np.maximum(totals, 1)[:, None], group, widths)
    heat(below, np.where(percent > 0, percent, np.nan).T, edges.tolist(), shares())
    named = range(0, classes, -(-classes // int(labels_in / _LINE_IN)))
    below.set_yticks([label + 0.5 for label in named], [str(label) for label in named])
    below.set_ylabel("label", fontsize=9)
    below.set_xlabel("client", fontsize=9)
    below.set_xlim(edges[0], edges[-1])
    whole_numbers(below.xaxis)
    scale_beside(figure, [below], "share of samples, %")
    figure.align_ylabels([above, below])
    pooled = f" Columns are means over about {clients / COLUMNS:.0f} clients." if clients > COLUMNS else ""
    caption = f"{_held(counts)} Blank: the client has no sample of the label.{pooled}"
    return Picture(figure, _alt(counts), caption)


def _held(counts: Ints) -> str:
    """Return a sentence on how many training samples and labels clients hold; `counts` is [K, classes]."""
    samples, labels = counts.sum(axis=1), (counts > 0).sum(axis=1)
    return (
        f"Clients hold {_range(samples)} training samples and {_range(labels)} of {counts.shape[1]} labels."
    )


def _alt(counts: Ints) -> str:
    rarest = int((counts > 0).sum(axis=0).argmin())
    return (
        f"Training samples by client, above the share of each label in them. {_held(counts)} Label {rarest} is with"
        f" the fewest clients, {int((counts[:, rarest] > 0).sum()):,}."
    )


def _range(values: Ints) -> str:
    """Return the least and the greatest of some numbers with their median between them."""
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {np.median(values):,g})"


def _mean(values: Ints | Floats, group: Ints, widths: Ints) -> Floats:
    """Return the mean over the clients of each group; `values` is [K] or [K, classes]."""
    total = np.zeros((len(widths), *values.shape[1:]))
    np.add.at(total, group, values)
    return total / widths.reshape(-1, *[1] * (values.ndim - 1))

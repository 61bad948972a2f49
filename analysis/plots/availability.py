"""Clients online in a world: their number over time, and a raster of clients by time."""

from __future__ import annotations

import numpy as np

from fedsim.analysis.drawing.picture import COLOURS, INK, Picture, panels, time_unit
from fedsim.analysis.worlds.summary import online_raster, online_share
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.worlds.trace import Trace

ROWS, BINS = 300, 600


@arguments.checked
def availability_picture(trace: Trace, title: str = "") -> Picture:
    """Draw the number of clients online over a trace's horizon, above a raster of clients by time."""
    scale, unit = time_unit(trace.horizon_us)
    end, bins = trace.horizon_us / scale, min(BINS, trace.horizon_us)
    count = trace.clients * online_share(trace, bins)
    figure, (above, below) = panels([1.5, 2.6], width_in=7.0)
    above.stairs(count, np.linspace(0, end, bins + 1), fill=True, color=COLOURS[0], alpha=0.35)
    above.stairs(count, np.linspace(0, end, bins + 1), color=COLOURS[0], linewidth=1.0)
    above.set_ylabel("clients online", fontsize=9)
    above.set_ylim(0, 1.08 * max(float(count.max()), 1e-9))
    if title:
        above.set_title(title, fontsize=10, color=INK, loc="left")
    raster, extent = online_raster(trace, ROWS, bins), (0, end, trace.clients, 0)
    below.imshow(raster, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=1, extent=extent)
    below.grid(visible=False)
    below.set_ylabel("clients, most online first", fontsize=9)
    below.set_xlabel(f"virtual time, {unit}", fontsize=9)
    below.set_xlim(0, end)
    caption = "Clients online over time; below, dark where a client is online."
    return Picture(figure, _alt(count, trace), caption)


def _alt(count: Floats, trace: Trace) -> str:
    return (
        f"Clients online over time: from {count.min():.0f} to {count.max():.0f} of {trace.clients},"
        f" {count.mean():.0f} on average; and a raster of clients by time."
    )

"""A plain table of intervals as text, as the importer `csv` reads it: client, start_us, end_us, kind, value.

Periods of single clients are written out up to the horizon. Clients that are never online have a row of kind `offline`.
"""

from __future__ import annotations

import csv as text
import io
from collections.abc import Iterator

import numpy as np

from fedsim.scenarios.exporters.exported import Exported, count, facts_left_out, ids
from fedsim.worlds.trace import Trace
from fedsim.worlds.transforms import tile


def csv(trace: Trace) -> Exported:
    """Return the intervals of a world as CSV, in order of client and start."""
    written = tile(trace, 1) if trace.periods else trace
    table, names, file = written.table, ids(trace), io.StringIO()
    client = table.column("client").to_numpy()
    present = np.isin(table.column("kind").to_pylist(), ["online", "unknown"])
    known = np.isin(np.arange(trace.clients), client[present])
    columns = [table.column(name).to_pylist() for name in ("start_us", "end_us", "kind", "value")]
    rows = list(zip(client.tolist(), *columns, strict=True))
    writer = text.writer(file, lineterminator="\n")
    writer.writerow(["client", "start_us", "end_us", "kind", "value"])
    offline = [(int(number), 0, trace.horizon_us, "offline", "") for number in np.flatnonzero(~known)]
    for number, *cells in sorted([*rows, *offline], key=lambda row: row[:2]):
        writer.writerow([names[number], *cells])
    options = (f"horizon={trace.horizon_us}us", f"after_end={trace.after_end}")
    return Exported(file.getvalue().encode(), list(_left_out(trace)), options)


def _left_out(trace: Trace) -> Iterator[str]:
    for kind, periods in trace.periods.items():
        yield from count(np.asarray(periods) > 0, f"periods of {kind}: written out up to the horizon instead")
    yield from facts_left_out(trace)

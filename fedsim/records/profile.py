"""The wall time of a run by process and part, for its manifest and as a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.common.files import write_atomically
from fedsim.common.stopwatch import SERVER, WORKER, Times
from fedsim.records.chrome_trace import ChromeTrace, writing

PROFILE = "profile.json"
SERVER_PARTS = ("gram", "solve", "combine", "diagnose")
"""The parts of a server step, in whichever process it runs."""


def seconds_by_process(driver: Times, others: Sequence[Times]) -> dict[str, Any]:
    """Return the manifest's `server_wall_s`, seconds by part, and `workers_wall_s`, a list of the same by worker.

    `others` are the times of the processes `server`, `worker 0`, `worker 1`, ..., including idle time. If there is no
    `server` among them, the server ran in the driver.
    """
    server = [times.all_parts() for times in others if times.label == SERVER]
    in_driver = {name: s for name, s in driver.parts().items() if name in SERVER_PARTS}
    return {
        "server_wall_s": server[0] if server else in_driver,
        "workers_wall_s": [times.all_parts() for times in others if times.label.startswith(WORKER)],
    }


def write_profile(folder: Path, name: str, tracks: Sequence[Times]) -> None:
    """Write `profile.json` into a run folder: a process for each stopwatch, with a span for each time in a part.

    All stopwatches share one time axis, which begins at the first start, by the wall clocks of their machines.
    """
    write_atomically(folder / PROFILE, lambda beside: _write(beside, name, tracks))


def _write(path: Path, name: str, tracks: Sequence[Times]) -> None:
    origin_s = min(times.origin_s for times in tracks)
    processes = [
        {"name": times.label, "total_s": times.total_s, "seconds": times.seconds}
        | {"shortest_s": times.spans.shortest_s if times.spans else None}
        for times in tracks
    ]
    with writing(path, {"run": name, "processes": processes}) as trace:
        for pid, times in enumerate(tracks, start=1):
            trace.process(pid, times.label)
            trace.thread(pid, pid, times.label)
            _write_spans(trace, pid, times, times.origin_s - origin_s)


def _write_spans(trace: ChromeTrace, pid: int, times: Times, late_s: float) -> None:
    """Write the spans of a stopwatch that was started `late_s` after the first; outer spans precede inner ones.

    Times are whole microseconds, rounded so that inner spans stay within outer ones.
    """
    if (spans := times.spans) is None:
        return
    start_us = np.floor((spans.start_s + late_s) * 1e6).astype(np.int64)
    length_us = np.floor((spans.start_s + spans.seconds + late_s) * 1e6).astype(np.int64) - start_us
    order = np.lexsort((spans.depth, -length_us, start_us))
    columns = (spans.part[order], start_us[order], length_us[order])
    for part, start, length in zip(*(c.tolist() for c in columns), strict=True):
        trace.span((pid, pid), spans.parts[part], start, length)

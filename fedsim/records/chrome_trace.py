"""Writes Chrome's trace event format, which Perfetto opens, event by event.

The format is "Trace Event Format" (Google, 2016) as a JSON object; `ts` and `dur` are microseconds. Perfetto colours a
span by its name without digits, and ignores `cname`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class ChromeTrace:
    """An open trace file. A track is a thread `tid` of a process `pid`; both start at 1, since 0 is the idle task."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._separator = file, "\n"

    def event(self, ph: str, pid: int, tid: int, name: str, **fields: Any) -> None:
        """Append an event of phase `ph` with further `fields`, such as `ts`, `dur` and `args`."""
        text = _encode({"ph": ph, "pid": pid, "tid": tid, "name": name} | fields)
        self._file.write(self._separator + text)
        self._separator = ",\n"

    def span(self, track: tuple[int, int], name: str, ts: float, dur: float, **fields: Any) -> None:
        """Append a span from `ts` of length `dur`."""
        self.event("X", *track, name, ts=ts, dur=dur, **fields)

    def instant(self, track: tuple[int, int], name: str, ts: float, args: Mapping[str, Any]) -> None:
        """Append an instantaneous event."""
        self.event("i", *track, name, ts=ts, s="t", args=args)

    def counter(self, track: tuple[int, int], name: str, ts: float, values: Mapping[str, float]) -> None:
        """Append the values of a counter from `ts` on."""
        self.event("C", *track, name, ts=ts, args=values)

    def process(self, pid: int, name: str) -> None:
        """Name a process, and sort it by its `pid`."""
        self.event("M", pid, pid, "process_name", args={"name": name})
        self.event("M", pid, pid, "process_sort_index", args={"sort_index": pid})

    def thread(self, pid: int, tid: int, name: str) -> None:
        """Name a track, and sort it by its `tid`."""
        self.event("M", pid, tid, "thread_name", args={"name": name})
        self.event("M", pid, tid, "thread_sort_index", args={"sort_index": tid})


@contextmanager
def writing(path: Path, about: Mapping[str, Any]) -> Iterator[ChromeTrace]:
    """Open a trace file for events, with the metadata `about`."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        yield ChromeTrace(file)
        file.write(f'\n],"otherData":{_encode(dict(about))}}}\n')

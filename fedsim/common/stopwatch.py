"""Measures wall-clock seconds by part of the program, for the manifest and profiles, never for tables."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from time import perf_counter, time
from typing import Any

import numpy as np
from numpy.typing import NDArray

DRIVER, SERVER, WORKER = "driver", "server", "worker"
"""Labels of the processes with a stopwatch."""
ENGINE = "engine"
"""The name of time outside of all parts, in the process that runs the event loop."""
IDLE = "idle"
"""The name of time outside of all parts, in a process that waits for calls."""
SHORT_S = 20e-6
"""Shorter spans are not recorded; their seconds count all the same."""
MOST_SPANS = 200_000


@dataclass(frozen=True, slots=True)
class Spans:
    """When parts were entered and for how long: arrays [n] in the order in which the parts were left.

    The seconds of a span include the parts within it, unlike the seconds of `Times`.
    """

    parts: tuple[str, ...]
    part: NDArray[np.int16]
    """Index into `parts`."""
    depth: NDArray[np.int16]
    """Number of parts around the span."""
    start_s: NDArray[np.float64]
    """Seconds since the stopwatch was started."""
    seconds: NDArray[np.float64]
    shortest_s: float
    """Shorter spans were left out."""


@dataclass(frozen=True, slots=True)
class Times:
    """The measurements of a stopwatch, as plain data for other processes."""

    label: str
    """The process: `driver`, `server` or `worker 0`."""
    origin_s: float
    """When the stopwatch was started, in seconds since 1970."""
    total_s: float
    seconds: dict[str, float]
    """Seconds by part, without the parts within it, and of `rest`. They add up to `total_s`."""
    rest: str
    """The name of time outside of all parts: `engine` or `idle`."""
    spans: Spans | None
    """None if the stopwatch records no spans."""

    def parts(self) -> dict[str, float]:
        """Return the seconds of each part by name, to 0.1 ms, without `rest`."""
        return {name: round(s, 4) for name, s in sorted(self.seconds.items()) if name != self.rest}

    def all_parts(self) -> dict[str, float]:
        """Return the seconds of each part and of `rest`, to 0.1 ms; they add up to the rounded total."""
        parts = self.parts()
        return parts | {self.rest: round(round(self.total_s, 4) - sum(parts.values()), 4)}


class Part:
    """A named part of the program: entering it stops the part around it, and leaving it resumes that part."""

    __slots__ = ("_watch", "name", "seconds")

    def __init__(self, watch: Stopwatch, name: str) -> None:
        self._watch, self.name, self.seconds = watch, name, 0.0

    def __enter__(self) -> None:
        watch = self._watch
        now = perf_counter()
        around = watch.current
        around.seconds += now - watch.since
        watch.around.append(around)
        watch.current = self
        watch.since = now

    def __exit__(self, *raised: object) -> None:
        watch = self._watch
        now = perf_counter()
        self.seconds += now - watch.since
        watch.current = watch.around.pop()
        watch.since = now


class _RecordedPart(Part):
    """A part that also records when it was entered and left."""

    __slots__ = ("_log", "_number")

    def __init__(self, watch: Stopwatch, name: str, log: _Log) -> None:
        super().__init__(watch, name)
        self._log, self._number = log, len(log.parts)
        log.parts.append(name)

    def __enter__(self) -> None:
        super().__enter__()
        self._log.entered.append(self._watch.since)

    def __exit__(self, *raised: object) -> None:
        super().__exit__()
        entered = self._log.entered.pop()
        self._log.add(self._number, entered, self._watch.since - entered)


class _Log:
    """At most `most` spans in compact columns; the shortest are dropped if there are more."""

    def __init__(self, most: int) -> None:
        self.most, self.least_s = most, SHORT_S
        self.parts: list[str] = []
        self.entered: list[float] = []
        """When each open part was entered."""
        self._columns: list[array[Any]] = [array("h"), array("h"), array("d"), array("d")]
        """The part, the depth, the start and the seconds of each span."""

    def add(self, part: int, entered: float, seconds: float) -> None:
        """Record a span unless it is short; `entered` is a time of `perf_counter`."""
        if seconds < self.least_s:
            return
        parts, depths, starts, lengths = self._columns
        parts.append(part)
        depths.append(len(self.entered))
        starts.append(entered)
        lengths.append(seconds)
        if len(lengths) > self.most:
            self._thin(np.array(lengths))

    def _thin(self, seconds: NDArray[np.float64]) -> None:
        """Keep the longer half, and record only spans as long from now on. The spans around a kept span stay too."""
        kept = np.sort(np.argsort(seconds, kind="stable")[-(self.most // 2 or 1) :])
        self.least_s = float(seconds[kept].min())
        self._columns = [array(c.typecode, np.array(c)[kept].tobytes()) for c in self._columns]

    def spans(self, origin: float) -> Spans:
        """Return the recorded spans, with times since `origin`."""
        part, depth, start, seconds = map(np.array, self._columns)
        return Spans(tuple(self.parts), part, depth, start - origin, seconds, self.least_s)


class Stopwatch:
    """Adds up the seconds spent in named parts, each without the parts within it.

    It belongs to one thread. At any time exactly one part runs, or the rest, so that all of them add up to the total.

    Args:
        rest: the name of time outside of all parts.
        spans: whether to record when each part was entered and left.
        most_spans: most spans to keep.
    """

    def __init__(self, rest: str = ENGINE, *, spans: bool = False, most_spans: int = MOST_SPANS) -> None:
        self._log = _Log(most_spans) if spans else None
        self._rest = Part(self, rest)
        self._parts: dict[str, Part] = {rest: self._rest}
        self.current = self._rest
        """The part that has run since `since`. Only `Part` uses these, and `around`, the parts that wait for it."""
        self.around: list[Part] = []
        self.origin_s = time()
        self.started = self.since = perf_counter()

    def part(self, name: str) -> Part:
        """Return a context manager that adds the time of its body to `name`."""
        part = self._parts.get(name)
        if part is None:
            part = Part(self, name) if self._log is None else _RecordedPart(self, name, self._log)
            self._parts[name] = part
        return part

    @property
    def recording(self) -> bool:
        """Whether spans are recorded."""
        return self._log is not None

    def dump(self, label: str) -> Times:
        """Return the measurements so far, as plain data."""
        now = perf_counter()
        self.current.seconds += now - self.since
        self.since = now
        seconds = {name: part.seconds for name, part in self._parts.items()}
        spans = None if self._log is None else self._log.spans(self.started)
        return Times(label, self.origin_s, now - self.started, seconds, self._rest.name, spans)

    def report(self) -> dict[str, float]:
        """Return the seconds of each part and of the rest, and their `total`, to 0.1 ms."""
        times = self.dump("")
        return times.all_parts() | {"total": round(times.total_s, 4)}

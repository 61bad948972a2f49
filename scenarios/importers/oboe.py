"""Bandwidth of video sessions, as published with Oboe (Akhtar et al., SIGCOMM 2018; USC-NSL/Oboe).

One file is one session, lines of `time ms, blank, bandwidth kbit/s`. Lines come in pairs with the same bandwidth:
start and end of one download. Between downloads, and before the first, the bandwidth was not observed.

One file becomes one client with a downlink that begins again after the file's last time. A kbit is 1000 bits.
Availability is unknown.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Literal

import numpy as np

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import TraceError
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.files import Problems
from fedsim.scenarios.importers.reading.series import BYTES_PER_KBIT, Series, downlinks, head_numbers, samples
from fedsim.worlds.importer import Importer, Source

Between = Literal["interpolate", "hold", "gap"]

PIECE_US = US
MOST_PIECES = 64


def oboe(*, between: Between = "interpolate") -> Importer:
    """Bandwidth of video sessions (Oboe): one file is one client's downlink.

    Args:
        between: what holds between downloads. "interpolate", the published advice: a linear change from the end of one
            to the start of the next, in equal pieces of at most 1 s, at most 64 of them. "hold": the last bandwidth.
            "gap": nothing moves. Before the first download the first bandwidth holds, except with "gap".
    """
    return Importer(
        recognises=_recognises,
        read=partial(downlinks, series_of=partial(_session, between=between)),
        licence="none stated; released for research",
        units="kbit/s x 125 = bytes per second (a kbit is 1000 bits)",
    )


def _recognises(source: Source) -> bool:
    numbers = head_numbers(source, " ")
    pairs = zip(numbers[0::2], numbers[1::2], strict=False)
    return bool(numbers) and all(a[1] == b[1] and a[0] <= b[0] for a, b in pairs)


def _session(source: Source, counts: Counter[str], between: Between) -> Series:
    lines, time_us, kbits_per_s = samples(source, " ", 1000, 1e11)
    _check_pairs(source, lines, time_us, kbits_per_s)
    start, end = time_us[0::2], time_us[1::2]
    speed = kbits_per_s[0::2] * BYTES_PER_KBIT
    counts["downloads"] += len(start)
    counts["time_between_downloads_ms"] += int(start[0] + (start[1:] - end[:-1]).sum()) // 1000
    if end[-1] == 0:
        raise TraceError(f"{source.name}: expected a session that lasts, found only time 0")
    pieces = [(start, end, speed)]
    if between == "hold":
        pieces.append((end[:-1], start[1:], speed[:-1]))
    elif between == "interpolate":
        pieces += [
            _ramp(int(a), int(b), float(u), float(v))
            for a, b, u, v in zip(end[:-1], start[1:], speed[:-1], speed[1:], strict=True)
        ]
    if between != "gap":
        pieces.append((np.zeros(1, np.int64), start[:1], speed[:1]))
    starts, ends, values = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.argsort(starts, kind="stable")
    order = order[starts[order] < ends[order]]
    return Series(starts[order], ends[order], values[order], int(end[-1]))


def _check_pairs(source: Source, lines: list[int], time_us: Ints, kbits_per_s: Floats) -> None:
    problems = Problems()
    if len(lines) % 2:
        problems.add(
            f"{source.name}, line {lines[-1]}: expected pairs of lines, found a start without an end"
        )
    for i in np.flatnonzero(np.diff(time_us) < 0).tolist():
        problems.add(
            f"{source.name}, line {lines[i + 1]}: expected a time of at least {time_us[i] / 1000} ms, that of line"
            f" {lines[i]}, found {time_us[i + 1] / 1000}"
        )
    for i in range(0, len(lines) - 1, 2):
        if kbits_per_s[i] != kbits_per_s[i + 1]:
            problems.add(
                f"{source.name}, line {lines[i + 1]}: expected the bandwidth of line {lines[i]}, {kbits_per_s[i]},"
                f" as both are one download, found {kbits_per_s[i + 1]}"
            )
    problems.check()


def _ramp(start_us: int, end_us: int, first: float, last: float) -> tuple[Ints, Ints, Floats]:
    """Return a linear change as pieces of constant speed, that in their middle, which move the same bytes."""
    n = max(1, min(MOST_PIECES, -(-(end_us - start_us) // PIECE_US)))
    edges = start_us + (end_us - start_us) * np.arange(n + 1, dtype=np.int64) // n
    value = first + (last - first) * (np.arange(n) + 0.5) / n
    return edges[:-1], edges[1:], value

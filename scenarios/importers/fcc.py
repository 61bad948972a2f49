"""Fixed broadband throughput (FCC, Measuring Broadband America, web-get test), as repackaged for video research.

One file is one household's line and web site, lines of `time s, tab, throughput Mbit/s` in steps of 5 s from 0, with no
header.

One file becomes one client with a downlink. A throughput holds for its 5 s; after the last one the file begins again.
Where it is 0, nothing moves. Availability is unknown.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from fedsim.common.errors import TraceError
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.series import (
    BYTES_PER_MBIT,
    MOST_MBITS_PER_S,
    Series,
    downlinks,
    head_numbers,
    samples,
    steps,
)
from fedsim.worlds.importer import Importer, Source

STEP_S = 5


def fcc() -> Importer:
    """Throughput of home lines in steps of 5 s (FCC): one file is one client's downlink."""
    return Importer(
        recognises=_recognises,
        read=partial(downlinks, series_of=lambda source, _: _line(source)),
        licence="MIT for the repackaging; FCC data are public domain",
        units="Mbit/s x 125,000 = bytes per second",
    )


def _recognises(source: Source) -> bool:
    times = [time for time, _ in head_numbers(source, "\t")]
    return bool(times) and all(time == STEP_S * i for i, time in enumerate(times))


def _line(source: Source) -> Series:
    lines, time_us, mbits_per_s = samples(source, "\t", US, MOST_MBITS_PER_S)
    wrong = np.flatnonzero(time_us != STEP_S * US * np.arange(len(time_us)))
    if len(wrong):
        i = int(wrong[0])
        raise TraceError(
            f"{source.name}, line {lines[i]}: expected the time {STEP_S * i}.0 s, in steps of {STEP_S} s from 0, found"
            f" {time_us[i] / US}; irregular steps are the format 'hsdpa'"
        )
    return steps(time_us, mbits_per_s * BYTES_PER_MBIT, STEP_S * US)

"""3G download throughput on commuter routes near Oslo (Riiser et al., MMSys 2013), as repackaged for video research.

One file is one ride, lines of `time s, tab, throughput Mbit/s` with irregular steps, with no header. Both packagings
are read: `cooked` (up to 317 s, named by vehicle) and whole routes (up to 70 minutes).

One file becomes one client with a downlink. A throughput holds until the next line's time, the last one for the
file's median step; then the ride begins again. Lines are put in order of time, and lines of one time become their
mean. Availability is unknown.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from fedsim.common.units import US
from fedsim.scenarios.importers.reading.series import (
    BYTES_PER_MBIT,
    MOST_MBITS_PER_S,
    Series,
    downlinks,
    head_numbers,
    in_order,
    samples,
    steps,
)
from fedsim.worlds.importer import Importer, Source


def hsdpa() -> Importer:
    """3G throughput on rides near Oslo (HSDPA): one file is one client's downlink."""
    return Importer(
        recognises=_recognises,
        read=partial(downlinks, series_of=_ride),
        licence="MIT for the repackaging; data of Riiser et al. 2013",
        units="Mbit/s x 125,000 = bytes per second",
    )


def _recognises(source: Source) -> bool:
    """Return whether lines hold two numbers and a tab, as `fcc` files do, but not in steps of 5 s."""
    times = [time for time, _ in head_numbers(source, "\t")]
    return bool(times) and times[0] == 0 and any(time != 5 * i for i, time in enumerate(times))


def _ride(source: Source, counts: Counter[str]) -> Series:
    _, time_us, mbits_per_s = samples(source, "\t", US, MOST_MBITS_PER_S)
    time_us, mbits_per_s, irregular = in_order(time_us, mbits_per_s)
    counts.update(irregular)
    last_us = US if len(time_us) == 1 else None
    return steps(time_us, mbits_per_s * BYTES_PER_MBIT, last_us)

"""Packet delivery opportunities of cellular links, as Mahimahi replays them (Winstein et al., NSDI 2013).

One whole number a line: the millisecond from the start at which one packet of 1500 bytes may leave; a repeated number
means more packets in that millisecond. The trace begins again after its last value. `<name>.down` and `<name>.up` are
the two directions of one link.

Each link becomes one client. Packets are counted in bins: speed = 1500 x packets / length of the bin, so a bin moves
exactly the bytes of its packets. Bins without a packet move nothing. The last bin ends with the file, and packets at
the very end belong to it. Numbers out of order are sorted. Availability is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np

from fedsim.common.arrays import Ints
from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.units import duration_us
from fedsim.scenarios.importers.reading.files import LONGEST_S, Problems, whole
from fedsim.scenarios.importers.reading.series import Series, head, labels, link_trace, noted
from fedsim.worlds.importer import Imported, Importer, Source

Direction = Literal["by_name", "down", "up"]

PACKET_BYTES = 1500
_KINDS = {".down": "downlink", ".up": "uplink", "down": "downlink", "up": "uplink"}


def mahimahi(*, bin: str | float = "1s", direction: Direction = "by_name") -> Importer:
    """Delivery opportunities of links (Mahimahi): `<name>.down` and `<name>.up` are one client.

    Args:
        bin: time over which packets are counted, at least 1 ms.
        direction: direction of files whose names end in neither `.down` nor `.up`: "down" or "up"; "by_name" refuses
            such files.
    """
    return Importer(
        recognises=_recognises,
        read=partial(_read, bin_us=_bin_us(bin), direction=direction),
        licence="GPL-3",
        units="1500 bytes x packets in a bin / length of the bin = bytes per second",
    )


def _read(sources: Sequence[Source], bin_us: int, direction: Direction) -> Imported:
    labels(sources)
    problems, links, counts = Problems(), dict[str, dict[str, Series]](), Counter[str]()
    for source in sources:
        with problems.caught():
            name, kind = _link(source, direction)
            directions = links.setdefault(name, {})
            if kind in directions:
                raise TraceError(f"{source.name}: expected one {kind} of {name!r}, found a second")
            directions[kind] = _series(_packets_ms(source, counts), bin_us, source)
    problems.check()
    kinds = [kind for kind in ("downlink", "uplink") if any(kind in link for link in links.values())]
    by_kind = {kind: [link.get(kind) for link in links.values()] for kind in kinds}
    trace, _ = link_trace(_short(list(links)), by_kind)
    return Imported(trace, noted(counts, bin_us=bin_us))


def _bin_us(bin: str | float) -> int:
    try:
        bin_us = duration_us(bin)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"importer 'mahimahi', option 'bin': {error}") from None
    if bin_us < 1000:
        raise ConfigError(f"importer 'mahimahi', option 'bin': expected at least 1 ms, found {bin!r}")
    return bin_us


def _recognises(source: Source) -> bool:
    lines = head(source, 50)
    return len(lines) > 1 and all(line.isascii() and line.isdigit() and len(line) < 16 for line in lines)


def _link(source: Source, direction: Direction) -> tuple[str, str]:
    """Return the name of the link, with its folders, and the kind that the file describes."""
    suffix = source.path.suffix
    if suffix in (".down", ".up"):
        return source.path.with_suffix("").as_posix(), _KINDS[suffix]
    if direction == "by_name":
        raise TraceError(
            f"{source.name}: expected a name that ends in .down or .up, found {suffix or 'no ending'!r};"
            " say which way it goes with direction = 'down' or 'up'"
        )
    return source.path.as_posix(), _KINDS[direction]


def _short(names: list[str]) -> list[str]:
    last = [name.rsplit("/", 1)[-1] for name in names]
    return last if len(set(last)) == len(last) else names


def _packets_ms(source: Source, counts: Counter[str]) -> Ints:
    lines = [(i, line.strip()) for i, line in enumerate(source.text().split("\n"), start=1)]
    times, problems = [], Problems()
    for i, line in lines:
        if line.isascii() and line.isdigit() and len(line) < 13:
            times.append(int(line))
        elif line:
            with problems.caught():
                times.append(whole(line, f"{source.name}, line {i}, time in ms", 0, LONGEST_S * 1000))
    problems.check()
    packets = np.array(times, np.int64)
    counts["packets"] += len(packets)
    counts["times_that_decrease"] += int((np.diff(packets) < 0).sum())
    return np.sort(packets)


def _series(packets_ms: Ints, bin_us: int, source: Source) -> Series:
    last_us = int(packets_ms[-1]) * 1000 if len(packets_ms) else 0
    if not 0 < last_us <= LONGEST_S * 1e6:
        raise TraceError(
            f"{source.name}: expected a last packet after 0 and within {LONGEST_S:g} s, found "
            + (f"{packets_ms[-1]} ms" if len(packets_ms) else "no packet")
        )
    bins, packets = np.unique(
        np.minimum(packets_ms * 1000 // bin_us, (last_us - 1) // bin_us), return_counts=True
    )
    start, end = bins * bin_us, np.minimum((bins + 1) * bin_us, last_us)
    return Series(start, end, PACKET_BYTES * packets * 1e6 / (end - start), last_us)

"""FedScale's `client_device_capacity`: how fast phones compute and communicate, and its variant with two directions.

A pickle: client id to `computation` (milliseconds to infer a sample) and `communication` (kbit/s, one speed both
ways); the variant of DistributedML/FedFetch adds `dl_kbps` and `ul_kbps` (kbit/s, M-Lab speed tests paired by rank).
FedScale takes three times the inference time for training. It divides bits by 1024 for a kbit; elsewhere, and here
unless asked otherwise, a kbit is 1000 bits. Source: SymbioticLab/FedScale, `internal/client_metadata.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

from fedsim.common.errors import TraceError
from fedsim.scenarios.importers.reading.device_tables import entries, fact, factor_option
from fedsim.scenarios.importers.reading.files import Problems, positive, speed_table
from fedsim.worlds.importer import Imported, Importer, Source

_FIELDS = ("computation", "communication", "dl_kbps", "ul_kbps")


def fedscale_capacity(
    *,
    training_factor: float = 3.0,
    network: Literal["auto", "communication", "dl_ul"] = "auto",
    bits_per_kbit: Literal[1000, 1024] = 1000,
) -> Importer:
    """Compute and network speeds of FedScale's client_device_capacity.

    Args:
        training_factor: ratio of the times to train on a sample and to infer it; 3 in FedScale.
        network: which speeds are taken. "communication": that field, both ways. "dl_ul": the pair `dl_kbps` and
            `ul_kbps`. "auto": the pair if all clients have it, else `communication`.
        bits_per_kbit: bits in a kbit. 1024 is FedScale's own arithmetic, for worlds in which `cost.formula` is not
            `fedscale`, which has the same factor.
    """
    factor_option("training_factor", training_factor)
    bytes_per_kbit = bits_per_kbit / 8
    return Importer(
        recognises=_recognises,
        read=partial(_read, factor=training_factor, network=network, bytes_per_kbit=bytes_per_kbit),
        licence="Apache-2.0 (FedScale); dl_kbps, ul_kbps: MIT (FedFetch), CC0 (M-Lab)",
        units=f"compute: ms a sample / 1000 x {training_factor:g}; network: kbit/s x {bits_per_kbit} / 8 bytes/s",
    )


def _read(sources: Sequence[Source], factor: float, network: str, bytes_per_kbit: float) -> Imported:
    ids, table = _table(sources)
    pairs = all(not math.isnan(v) for field in ("dl_kbps", "ul_kbps") for v in table[field])
    if network == "dl_ul" and not pairs:
        raise TraceError(
            f"{sources[0].name}: network='dl_ul' needs 'dl_kbps' and 'ul_kbps' of every client, found them not"
        )
    down = up = "communication"
    if pairs and network != "communication":
        down, up = "dl_kbps", "ul_kbps"
    speeds = {
        "compute": [v / 1000 * factor for v in table["computation"]],
        "downlink": [v * bytes_per_kbit for v in table[down]],
        "uplink": [v * bytes_per_kbit for v in table[up]],
    }
    names = ("computation_ms", "communication_kbps", "dl_kbps", "ul_kbps")
    facts = {name: fact(table[field]) for name, field in zip(names, _FIELDS, strict=True)}
    return Imported(speed_table(ids, speeds, facts), {"downlink_from": down, "uplink_from": up})


def _recognises(source: Source) -> bool:
    head = source.data[:65536]
    return head[:1] == b"\x80" and b"computation" in head and b"communication" in head


def _table(sources: Sequence[Source]) -> tuple[list[str], dict[str, list[float]]]:
    """Return ids and, by field, a number for each client: NaN where a client has no `dl_kbps` or `ul_kbps`."""
    problems, ids = Problems(), []
    table: dict[str, list[float]] = {field: [] for field in _FIELDS}
    for place, key, entry in entries(sources, _FIELDS[:2]):
        ids.append(key)
        for field in _FIELDS:
            with problems.caught():
                value = entry.get(field)
                absent = value is None and field in _FIELDS[2:]
                table[field].append(math.nan if absent else positive(value, f"{place}, {field!r}"))
    problems.check()
    return ids, table

"""Propius' `client_spec_speed`: hardware and inference time of phones, from the AI Benchmark of 2023.

A pickle: device id to `device` (name), `cpu_f` (CPU float score, points), `ram` (GB), `fp16_mem` (MB), `android_os`
(version) and `speed`: milliseconds for one inference, the same quantity as `computation` in FedScale's capacity file.
Clients keep the order of the file, in which ids are not sorted. Source: EricDinging/Propius.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from fedsim.scenarios.importers.reading.device_tables import entries, fact, factor_option
from fedsim.scenarios.importers.reading.files import Problems, number, of_type, positive, speed_table
from fedsim.worlds.importer import Imported, Importer, Source

_FACTS = {"cpu_f": "cpu_score", "ram": "ram_gb", "fp16_mem": "fp16_mem_mb", "android_os": "android"}


def device_spec(*, training_factor: float = 3.0) -> Importer:
    """Compute speeds of phones in Propius' client_spec_speed.

    Args:
        training_factor: ratio of the times to train on a sample and to infer it; 3 in FedScale.
    """
    factor_option("training_factor", training_factor)
    return Importer(
        recognises=_recognises,
        read=partial(_read, training_factor=training_factor),
        licence="MIT (EricDinging/Propius); scores from the AI Benchmark",
        units=f"compute: ms an inference / 1000 x {training_factor:g}",
    )


def _read(sources: Sequence[Source], training_factor: float) -> Imported:
    problems, ids, models, speeds = Problems(), [], [], []
    numbers: dict[str, list[float]] = {name: [] for name in _FACTS.values()}
    for place, key, entry in entries(sources, ("device", "speed")):
        with problems.caught():
            ids.append(key)
            models.append(of_type(entry["device"], str, f"{place}, 'device'"))
            speeds.append(positive(entry["speed"], f"{place}, 'speed'"))
            for field, name in _FACTS.items():
                value = entry.get(field)
                numbers[name].append(math.nan if value is None else number(value, f"{place}, {field!r}"))
    problems.check()
    facts = {"model": models, "inference_ms": speeds, **{n: fact(values) for n, values in numbers.items()}}
    compute = [ms / 1000 * training_factor for ms in speeds]
    return Imported(speed_table(ids, {"compute": compute}, facts))


def _recognises(source: Source) -> bool:
    head = source.data[:65536]
    return head[:1] == b"\x80" and b"cpu_f" in head and b"speed" in head and b"device" in head

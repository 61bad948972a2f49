"""Propius' `client_spec_speed`: hardware and inference time of phones, from the AI Benchmark of 2023.

A pickle: device id to `device` (name), `cpu_f` (CPU float score, points), `ram` (GB), `fp16_mem` (MB), `android_os`
(version) and `speed`: milliseconds for one inference, the same quantity as `computation` in FedScale's capacity file.
The ids are not in order in the file, and stay in the file's order. Source: EricDinging/Propius.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedsim.scenarios.importers.reading.device_tables import entries, fact, factor_option
from fedsim.scenarios.importers.reading.files import Problems, number, of_type, positive, speed_table
from fedsim.worlds.importer import Imported, Importer, Source

_FACTS = {"cpu_f": "cpu_score", "ram": "ram_gb", "fp16_mem": "fp16_mem_mb", "android_os": "android"}


def device_spec(*, training_factor: float = 3.0) -> Importer:
    """Compute speeds of phones in Propius' client_spec_speed.

    `training_factor` is how much longer training on a sample takes than inferring it (3 in FedScale).
    """
    factor_option("training_factor", training_factor)

    def read(sources: Sequence[Source]) -> Imported:
        problems, ids, models, speeds = Problems(), [], [], []
        facts: dict[str, list[float]] = {name: [] for name in _FACTS.values()}
        for place, key, entry in entries(sources, ("device", "speed")):
            with problems.caught():
                ids.append(key)
                models.append(of_type(entry["device"], str, f"{place}, 'device'"))
                speeds.append(positive(entry["speed"], f"{place}, 'speed'"))
                for field, name in _FACTS.items():
                    given = entry.get(field)
                    facts[name].append(math.nan if given is None else number(given, f"{place}, {field!r}"))
        problems.check()
        told = {name: fact(values) for name, values in facts.items()}
        compute = [ms / 1000 * training_factor for ms in speeds]
        return Imported(
            speed_table(ids, {"compute": compute}, {"model": models, "inference_ms": speeds, **told})
        )

    return Importer(
        recognises=_recognises,
        read=read,
        licence="MIT (EricDinging/Propius); scores from the AI Benchmark",
        units=f"compute: ms an inference / 1000 x {training_factor:g}",
    )


def _recognises(source: Source) -> bool:
    head = source.data[:65536]
    return head[:1] == b"\x80" and b"cpu_f" in head and b"speed" in head and b"device" in head

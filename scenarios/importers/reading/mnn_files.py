"""Recognise and read the files of the on-device training benchmark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsim.common.errors import TraceError
from fedsim.scenarios.importers.reading.files import (
    LONGEST_S,
    Problems,
    columns,
    missing,
    number,
    positive,
    rows,
    whole,
)
from fedsim.scenarios.importers.reading.series import Series, head, steps
from fedsim.worlds.importer import Source

LEFT_OUT = {
    "performance": "memory, processor share and battery readings by batch size: no times",
    "usage": "memory, processor share and battery readings over time: no training times",
    "energy": "joules by batch size: no times; joules a batch or sample add facts to time tables given with them",
    "frequencies": "the list of clock rates that the phone has: no times",
    "log": "the raw log of a benchmark: its times are in the time_table files",
}
"""Kinds of file that are no trace by themselves, and the reason."""

_TIMES = {"expr_train": "train_ms", "expr_infer": "infer_ms", "session_infer": "session_infer_ms"}
_ENERGY = re.compile(r"(singleBatch|singleSample)_energy_(\w+)\.csv")
_ENERGY_FACT = {"singleBatch": "joule_a_batch", "singleSample": "joule_a_sample"}


@dataclass(slots=True)
class Client:
    """A client: its seconds per sample over time, and facts.

    A constant is one interval with `period_us` 0; it is stretched over the whole world.
    """

    compute: Series
    network: str = ""
    setting: str = ""
    facts: dict[str, float | str | None] = field(default_factory=dict)


def kind_of(source: Source) -> str | None:
    """Return the kind of a file: `time_table`, `clocks`, a key of LEFT_OUT, or None for another format.

    Never raises.
    """
    if source.data.startswith(b"Processor\t:"):
        return "log"
    lines = head(source, 1)
    cells = [cell.strip() for cell in lines[0].split(",")] if lines else []
    if source.path.name == "freq_list.result":
        return "frequencies"
    if not cells or cells[0]:
        return None
    for kind, wanted in (
        ("time_table", ("batchsize", "expr_train")),
        ("performance", ("batchsize", "VIRT")),
        ("usage", ("stamp", "VIRT")),
        ("clocks", ("stamp", "cpu0")),
    ):
        if all(name in cells for name in wanted):
            return kind
    return "energy" if "_energy_" in source.path.name else None


def time_table(source: Source, batch: int, counts: Counter[str]) -> Client:
    """Return the client of a time table: ms a batch by batch size. Raises TraceError, also if `batch` is missing."""
    lines, (sizes, *times) = columns(source, ["batchsize", *_TIMES])
    problems, facts, train_ms = Problems(), dict[str, float | str | None](), dict[int, float | None]()
    for i, line in enumerate(lines):
        place = f"{source.name}, line {line}"
        with problems.caught():
            size = whole(sizes[i], f"{place}, batchsize", 1, 1e6)
            if size in train_ms:
                raise TraceError(f"{place}, batchsize: expected each once, found {size} again")
            for (column, name), cells in zip(_TIMES.items(), times, strict=True):
                value = None if missing(cells[i]) else positive(cells[i], f"{place}, {column}", 1e9)
                counts["missing_times"] += value is None
                facts[f"{name}_batch_{size}"] = value
            train_ms[size] = _number(facts[f"train_ms_batch_{size}"])
    problems.check()
    chosen = train_ms.get(batch)
    if chosen is None:
        has = ", ".join(str(size) for size, ms in sorted(train_ms.items()) if ms is not None)
        raise TraceError(
            f"{source.name}: expected a training time at batch size {batch}, found some for {has or 'none'}"
        )
    network = source.path.stem.removeprefix("time_table_")
    constant = Series(np.zeros(1, np.int64), np.ones(1, np.int64), np.array([chosen / batch / 1000]), 0)
    return Client(constant, network, _setting(source), {"network": network, **facts})


def clocks(source: Source, sample_ms: float, reference_khz: float, cores: Sequence[int]) -> Client:
    """Return the client of core clocks over time: a sample takes `sample_ms` at `reference_khz`, more at lower clocks.

    Raises TraceError with every wrong line.
    """
    names = ["stamp", "temperature", *(f"cpu{core}" for core in cores)]
    lines, cells = columns(source, names)
    problems, times, khz, degrees = Problems(), list[int](), list[float](), list[float]()
    for line, stamp, temperature, *clock in zip(lines, *cells, strict=True):
        place = f"{source.name}, line {line}"
        with problems.caught():
            time_us = round(number(stamp, f"{place}, stamp in ms", 0, LONGEST_S * 1000) * 1000)
            if times and time_us <= times[-1]:
                raise TraceError(f"{place}, stamp: expected one above that of the line before, found {stamp}")
            of_cores = [positive(c, f"{place}, {n}", 1e8) for n, c in zip(names[2:], clock, strict=True)]
            if not missing(temperature):
                degrees.append(number(temperature, f"{place}, temperature", -1e6, 1e6))
            times.append(time_us)
            khz.append(sum(of_cores) / len(of_cores))
    problems.check()
    if len(times) < 2:
        raise TraceError(f"{source.name}: expected at least 2 lines of clocks, found {len(times)}")
    seconds = sample_ms / 1000 * reference_khz / np.array(khz)
    return Client(steps(np.array(times, np.int64), seconds), facts=_clock_facts(khz, degrees))


def _clock_facts(khz: Sequence[float], degrees: Sequence[float]) -> dict[str, float | str | None]:
    facts: dict[str, float | str | None] = {"mean_clock_khz": float(np.mean(khz))}
    if degrees:
        facts |= {"least_temperature_raw": min(degrees), "most_temperature_raw": max(degrees)}
    return facts


def add_energy(source: Source, clients: Sequence[Client]) -> bool:
    """Add joules by batch size to the clients of the file's networks and setting; return whether there are any."""
    match = _ENERGY.fullmatch(source.path.name)
    table = rows(source)
    if match is None or not table:
        return False
    fits = [c for c in clients if c.setting == match[2] and c.network in table[0].cells]
    problems, header = Problems(), table[0].cells
    for row in table[1:]:
        place = f"{source.name}, line {row.line}"
        with problems.caught():
            if len(row.cells) != len(header):
                raise TraceError(f"{place}: expected {len(header)} columns, found {len(row.cells)}")
            size = whole(row.cells[0], f"{place}, batch size", 1, 1e6)
            for client in fits:
                text = row.cells[header.index(client.network)]
                joule = None if missing(text) else number(text, f"{place}, {client.network}", 0, 1e12)
                client.facts[f"{_ENERGY_FACT[match[1]]}_at_{size}"] = joule
    problems.check()
    return bool(fits)


def _number(value: float | str | None) -> float | None:
    return value if isinstance(value, float) else None


def _setting(source: Source) -> str:
    """Return the folder that names the phone, the cores and the clock of the measurement."""
    parts = source.path.parts
    at = parts.index("processed_data") if "processed_data" in parts else 0
    return parts[at - 1] if at else ""

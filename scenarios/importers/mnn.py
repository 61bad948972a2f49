"""Training times on a phone, from a benchmark of MNN (UbiquitousLearning/Benchmark-On-Device-Training).

Files `<setting>/processed_data/<network>/time_table_<network>.csv`: unnamed index, `batchsize`, `expr_train` ms to
train one batch, `expr_infer` and `session_infer` ms to infer one; `nan` for missing values. One file is one client
whose training takes `expr_train` / batch size a sample. All times are kept as facts; the folder names the phone, its
cores and their clock (`setting`).

`freq_temperature.csv`: clocks of the cores in kHz, and `stamp` in ms. One client, for which a sample takes
`sample_ms` x `reference_khz` / mean clock of `cores`, on the assumption that training time is proportional to
1 / clock. A clock holds until the next line, the last for the median step; then the file begins again.

Other tables and logs of the benchmark hold no times. Together with time tables, `singleBatch_energy_*` and
`singleSample_energy_*` add joules as facts, and the notes count the files that are ignored; alone they are refused.
Availability is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.units import DAY_US
from fedsim.scenarios.importers.reading.files import Problems, about
from fedsim.scenarios.importers.reading.mnn_files import (
    LEFT_OUT,
    Client,
    add_energy,
    clocks,
    kind_of,
    time_table,
)
from fedsim.scenarios.importers.reading.series import labels, noted
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import Trace

LENET_MS = 8.8252
"""Training one batch of one sample through LeNet at 1.7088 GHz, by the benchmark's own table."""


def mnn(
    *,
    batch: int = 1,
    sample_ms: float = LENET_MS,
    reference_khz: float = 1_708_800.0,
    cores: tuple[int, ...] = (0, 1, 2, 3),
) -> Importer:
    """Training times of a phone by network and batch size (MNN benchmark): one time table is one client.

    Args:
        batch: batch size whose time is taken from a time table.
        sample_ms: for files of clocks over time: milliseconds to train on one sample at `reference_khz`.
        reference_khz: for files of clocks over time: clock in kHz at which a sample takes `sample_ms`.
        cores: for files of clocks over time: numbers of the cores that train, whose mean clock counts.
    """
    option = "importer 'mnn', option"
    for name, value in (("batch", batch), ("sample_ms", sample_ms), ("reference_khz", reference_khz)):
        if not 1e-9 < value < 1e12:
            raise ConfigError(f"{option} {name!r}: expected a number above 0, found {value!r}")
    if not cores or len(set(cores)) < len(cores) or min(cores) < 0:
        raise ConfigError(f"{option} 'cores': expected different numbers from 0, found {cores!r}")
    clocks_of = partial(clocks, sample_ms=sample_ms, reference_khz=reference_khz, cores=cores)
    return Importer(
        recognises=lambda source: kind_of(source) is not None,
        read=partial(_read, batch=batch, clocks_of=clocks_of),
        licence="none stated",
        units="ms a batch / batch size / 1000 = seconds per sample of training; measured, so without a factor",
    )


def _read(sources: Sequence[Source], batch: int, clocks_of: Callable[[Source], Client]) -> Imported:
    problems, by_source, counts = Problems(), dict[int, Client](), Counter[str]()
    others = list[tuple[str, Source]]()
    for i, source in enumerate(sources):
        kind = kind_of(source)
        with problems.caught():
            if kind == "time_table":
                by_source[i] = time_table(source, batch, counts)
            elif kind == "clocks":
                by_source[i] = clocks_of(source)
            elif kind is None:
                raise TraceError(f"{source.name}: expected a time_table or freq_temperature file")
            else:
                others.append((kind, source))
    problems.check()
    clients = list(by_source.values())
    ignored = {f"passed_over_{kind}_files": n for kind, n in _ignored(others, clients).items()}
    return Imported(_trace(labels([sources[i] for i in by_source]), clients), noted(counts, **ignored))


def _ignored(others: Sequence[tuple[str, Source]], clients: Sequence[Client]) -> Counter[str]:
    """Add the facts of other files to the clients; return how many files are ignored, by kind.

    Raises TraceError if there are other files but no clients.
    """
    problems, ignored = Problems(), Counter[str]()
    for kind, source in others:
        if not clients:
            problems.add(f"{source.name}: not a trace: {LEFT_OUT[kind]}")
        elif not (kind == "energy" and add_energy(source, clients)):
            ignored[kind] += 1
    problems.check()
    return ignored


def _trace(ids: Sequence[str], clients: Sequence[Client]) -> Trace:
    n, series = len(clients), [c.compute for c in clients]
    periods = np.array([s.period_us for s in series])
    horizon_us = max(DAY_US, int(periods.max()))
    counts = [len(s.value) for s in series]
    ends = [s.end_us if s.period_us else np.array([horizon_us]) for s in series]
    names = dict.fromkeys(name for c in clients for name in c.facts)
    facts: dict[str, list[Any]] = {name: [c.facts.get(name) for c in clients] for name in names}
    facts["setting"] = [c.setting or None for c in clients]
    return Trace.of(
        np.concatenate([np.arange(n), np.repeat(np.arange(n), counts)]),
        np.concatenate([np.zeros(n, np.int64), *(s.start_us for s in series)]),
        np.concatenate([np.full(n, horizon_us), *ends]),
        ["unknown"] * n + ["compute"] * sum(counts),
        np.concatenate([np.ones(n), *(s.value for s in series)]),
        clients=n,
        horizon_us=horizon_us,
        after_end="repeat",
        periods={"compute": periods},
        about=about(ids, facts),
    )

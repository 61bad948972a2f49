"""Training times on a phone, from a benchmark of MNN (UbiquitousLearning/Benchmark-On-Device-Training).

Files `<setting>/processed_data/<network>/time_table_<network>.csv`: unnamed index, `batchsize`, `expr_train` ms to
train one batch, `expr_infer` and `session_infer` ms to infer one; `nan` where there is none. One file is one client
whose training takes `expr_train` / batch size a sample. All times are kept as facts; the folder tells phone, cores
and clock (`setting`).

`freq_temperature.csv`: clocks of the cores in kHz, and `stamp` in ms. One client, for which a sample takes
`sample_ms` x `reference_khz` / mean clock of `cores`; a clock holds until the next line, the last for the median
step; then it begins again. That training time goes with 1 / clock is assumed.

Other tables and logs of the benchmark hold no times. Given along with time tables, `singleBatch_energy_*` and
`singleSample_energy_*` add joules as facts and the rest is passed over, which is noted; alone they are refused.
Whether clients are there is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsim.common.errors import ConfigError, TraceError
from fedsim.scenarios.importers.reading.files import DAY_US, Problems, about
from fedsim.scenarios.importers.reading.mnn_files import (
    LEFT_OUT,
    Client,
    add_energy,
    clocks,
    kind_of,
    time_table,
)
from fedsim.scenarios.importers.reading.series import labels, told
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

    `batch` is the batch size whose time is used. `sample_ms` at `reference_khz`, and the `cores` that train, are for
    files of clocks over time.
    """
    for name, value in (("batch", batch), ("sample_ms", sample_ms), ("reference_khz", reference_khz)):
        if not 1e-9 < value < 1e12:
            raise ConfigError(f"importer 'mnn', option {name!r}: expected a number above 0, found {value!r}")
    if not cores or len(set(cores)) < len(cores) or min(cores) < 0:
        raise ConfigError(
            f"importer 'mnn', option 'cores': expected different numbers from 0, found {cores!r}"
        )

    def read(sources: Sequence[Source]) -> Imported:
        problems, clients, counts = Problems(), dict[int, Client](), Counter[str]()
        rest = list[tuple[str, Source]]()
        for i, source in enumerate(sources):
            kind = kind_of(source)
            with problems.caught():
                if kind == "time_table":
                    clients[i] = time_table(source, batch, counts)
                elif kind == "clocks":
                    clients[i] = clocks(source, sample_ms, reference_khz, cores)
                elif kind is None:
                    raise TraceError(f"{source.name}: expected a time_table or freq_temperature file")
                else:
                    rest.append((kind, source))
        problems.check()
        passed_over = _passed_over(rest, list(clients.values()))
        trace = _trace(labels([sources[i] for i in clients]), list(clients.values()))
        return Imported(
            trace, told(counts, **{f"passed_over_{kind}_files": n for kind, n in passed_over.items()})
        )

    return Importer(
        recognises=lambda source: kind_of(source) is not None,
        read=read,
        licence="none stated",
        units="ms a batch / batch size / 1000 = seconds per sample of training; measured, so without a factor",
    )


def _passed_over(rest: Sequence[tuple[str, Source]], clients: Sequence[Client]) -> Counter[str]:
    """Add what other files say to the clients; return how many are of no use, by kind. Raises without clients."""
    problems, unused = Problems(), Counter[str]()
    for kind, source in rest:
        if not clients:
            problems.add(f"{source.name}: not a trace: {LEFT_OUT[kind]}")
        elif not (kind == "energy" and add_energy(source, clients)):
            unused[kind] += 1
    problems.check()
    return unused


def _trace(ids: Sequence[str], clients: Sequence[Client]) -> Trace:
    periods = np.array([c.compute.period_us for c in clients])
    horizon_us = max(DAY_US, int(periods.max()))
    n = len(clients)
    often = [len(c.compute.value) for c in clients]
    ends = [c.compute.end_us if c.compute.period_us else np.array([horizon_us]) for c in clients]
    names = dict.fromkeys(name for c in clients for name in c.facts)
    facts: dict[str, list[Any]] = {name: [c.facts.get(name) for c in clients] for name in names}
    facts["setting"] = [c.setting or None for c in clients]
    return Trace.of(
        np.concatenate([np.arange(n), np.repeat(np.arange(n), often)]),
        np.concatenate([np.zeros(n, np.int64), *(c.compute.start_us for c in clients)]),
        np.concatenate([np.full(n, horizon_us), *ends]),
        ["unknown"] * n + ["compute"] * sum(often),
        np.concatenate([np.ones(n), *(c.compute.value for c in clients)]),
        clients=n,
        horizon_us=horizon_us,
        after_end="repeat",
        periods={"compute": periods},
        about=about(ids, facts),
    )

"""Running a scenario in SimPy, one process per client, and writing it down as a Trace."""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
import simpy

from fedsim.scenario import Clock, Me, Rows, Scenario
from fedsim.trace import KINDS, AfterEnd, Trace


def simulate(
    scenario: Scenario,
    *,
    clients: int,
    horizon_us: int,
    seed: int,
    after_end: AfterEnd = "error",
    source: str = "",
    origin: str = "",
) -> Trace:
    """Write down what happens to `clients` clients over [0, horizon_us); see `fedsim.scenario.make_trace`."""
    env, rows = simpy.Environment(initial_time=0), Rows(horizon_us)
    clock = cast(Clock, env)  # whole numbers in, whole numbers out
    if clients > 0 < horizon_us:  # otherwise the Trace says what is wrong
        for client in range(clients):
            env.process(scenario.client(clock, Me(client, seed, rows)))
        env.run(until=horizon_us)
    return Trace(_table(rows), clients, horizon_us, after_end, source, origin)


def _table(rows: Rows) -> pa.Table:
    kinds = pa.DictionaryArray.from_arrays(np.frombuffer(rows.kind, np.int8), pa.array(KINDS))
    return pa.table(
        {
            "client": np.frombuffer(rows.client, np.int32),
            "start_us": np.frombuffer(rows.start_us, np.int64),
            "end_us": np.frombuffer(rows.end_us, np.int64),
            "kind": kinds,
            "value": np.frombuffer(rows.value, np.float64),
        }
    )

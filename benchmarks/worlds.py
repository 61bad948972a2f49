"""How long worlds take to write down and to ask, and the most memory that takes. Prints medians.

python benchmarks/worlds.py --clients 10000 --days 7
python benchmarks/worlds.py --clients 100000 --days 1
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsim.common.machine import peak_bytes
from fedsim.common.units import HOUR_US, show_bytes
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import Trace, read_trace
from fedsim.worlds.world import Work, World


def median_s(act: Callable[[int], object], repeats: int) -> float:
    """Return the median time of `act(i)` in seconds."""
    times = []
    for i in range(repeats):
        start = time.perf_counter()
        act(i)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(clients: int, days: float, repeats: int) -> None:
    """Make a diurnal world, write and read it, and ask it at random times and event after event."""
    horizon_us = round(days * 24) * HOUR_US
    start = time.process_time()  # all of it is spent here: beside torch, which is imported, nothing is forked
    trace = make_trace("diurnal", {}, clients=clients, horizon_us=horizon_us, seed=1, after_end="repeat")
    print(
        f"make     {time.process_time() - start:9.3f} s   of one processor; {len(trace.table):,} intervals, "
        f"{show_bytes(trace.nbytes)}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "world.parquet"
        print(
            f"write    {median_s(lambda i: trace.write(path), 3):9.3f} s   {show_bytes(path.stat().st_size)}"
        )
        print(f"read     {median_s(lambda i: read_trace(path), 3):9.3f} s   with all checks")
    print(f"open     {median_s(lambda i: World(trace), 3):9.3f} s")
    ask(World(trace), repeats)
    print("and with loop periods of each client's own:")
    ask(World(looped(trace)), repeats)
    print(f"peak     {show_bytes(peak_bytes())} of memory")


def looped(trace: Trace) -> Trace:
    """Return the same intervals in a world a fifth longer, in which every other client begins again earlier."""
    periods = np.where(np.arange(trace.clients) % 2, 0, trace.horizon_us)
    horizon_us = trace.horizon_us * 6 // 5
    kinds = ("online", "compute", "downlink", "uplink", "fault")
    return replace(trace, horizon_us=horizon_us, periods=dict.fromkeys(kinds, periods))


def ask(world: World, repeats: int) -> None:
    """Time the questions that a run asks."""
    times = np.random.default_rng(0).integers(0, 2 * world.horizon_us, repeats).tolist()
    print(f"online   {1e6 * median_s(lambda i: world.online(times[i]), repeats):9.1f} us  at random times")
    now = 0

    def following(i: int) -> None:
        nonlocal now
        now = world.next_change(now) or 0
        world.online(now)

    print(f"online   {1e6 * median_s(following, repeats):9.1f} us  from one change to the next")
    work, t_us = Work(np.array(5e6), np.array(600.0), np.array(5e6)), 3 * HOUR_US
    there = np.flatnonzero(world.online(t_us))
    for k in (1, 100, len(there)):
        who = there[:k]
        took = median_s(lambda i, who=who: world.outcomes(who, t_us, work), max(repeats // 10, 3))  # type: ignore[misc]
        print(f"outcomes {1e6 * took:9.1f} us  of {len(there[:k])} jobs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--repeats", type=int, default=300)
    given = parser.parse_args()
    measure(given.clients, given.days, given.repeats)

"""How long planning takes: a week of buffered training among thousands of clients in a diurnal world, without training.

    python benchmarks/plan.py --clients 10000 --days 7 --concurrency 1000 --buffer 100

A plan costs by the job, so what counts is how long jobs take: two hours of computation on the median device by default,
half an hour with `--compute-scale 1000`.
"""

from __future__ import annotations

import argparse
import time

from fedsim.config.load import parse
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.state import RunState
from fedsim.runs.build import prepare
from fedsim.runs.plan.event_counts import CountingTrainer, Tally


def main() -> None:
    """Read the arguments, plan, and print how long each part took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--concurrency", type=int, default=1000)
    parser.add_argument("--buffer", type=int, default=100)
    parser.add_argument("--compute-scale", type=float, default=4000)
    given = parser.parse_args()
    raw = {
        "name": "plan",
        "seed": 1,
        "task": {"name": "synthetic", "clients": given.clients, "sizes": "fixed", "samples": 90},
        "world": {"scenario": "diurnal", "horizon": f"{given.days}d"},
        "pacing": {"preset": "fedbuff", "concurrency": given.concurrency, "buffer": given.buffer},
        "cost": {"payload": "20 MB", "compute_scale": given.compute_scale},
        "algorithm": {"name": "fedlf"},
        "stop": {"time": f"{given.days}d"},
    }
    started = time.perf_counter()
    setup = prepare(parse(raw, "plan", "plan")[0])
    prepared = time.perf_counter()
    run_state = RunState(setup.data.n_clients)
    tally = Tally(run_state, setup.plan.memory)
    event_loop = EventLoop(setup.world, setup.plan, CountingTrainer(setup, ahead=True), tally, run_state)
    event_loop.run()
    event_loop.abandon()
    tally.crowded()
    planned = time.perf_counter()
    jobs = sum(tally.jobs.values())
    print(
        "| clients | days | jobs | steps | data and world | event loop | per job |\n|---|---|---|---|---|---|---|"
    )
    print(
        f"| {given.clients:,} | {given.days:g} | {jobs:,} | {event_loop.run_state.step:,} | {prepared - started:.1f} s "
        f"| {planned - prepared:.1f} s | {1e6 * (planned - prepared) / max(jobs, 1):.0f} us |"
    )


if __name__ == "__main__":
    main()

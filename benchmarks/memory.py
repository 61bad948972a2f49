"""How much memory a run takes by the number of registered clients, against what the run had predicted of itself.

Softmax regression on 12 samples of 60 features each, FedAvg, and a rule that remembers every client if asked for. Each
run is a process of its own, since what counts is its highest resident memory.

    python benchmarks/memory.py --clients 1000 10000 100000
    python benchmarks/memory.py --clients 1000 10000 --rule fedlf --workers 2
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def manifest(clients: int, given: argparse.Namespace) -> dict[str, Any]:
    """Run, and return the manifest. A process counts what the one that made it held, so that one imports nothing."""
    from fedsim import analysis
    from fedsim.config.load import parse
    from fedsim.runs.simulate import simulate

    raw = {
        "name": "memory",
        "seed": 1,
        "task": {
            "name": "synthetic",
            "clients": clients,
            "sizes": "fixed",
            "samples": 15,
            "fractions": [0.8, 0, 0.2],
        },
        "world": {"scenario": given.scenario, "horizon": "1d"},
        "pacing": {"preset": "sync", "clients": min(given.per_round, clients)},
        "train": {"batch_size": 10, "lr": 0.01},
        "algorithm": {"name": given.rule},
        "stop": {"steps": given.rounds},
        "evaluate": {"every_steps": 0},
    }
    with tempfile.TemporaryDirectory() as folder:
        results = simulate(parse(raw, "memory.py", "memory"), out=folder, workers=given.workers, device="cpu")
        return analysis.open_run(results[0].folder).manifest


def main() -> None:
    """Measure one number of clients after the other, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--per-round", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rule", default="fedavg")
    parser.add_argument("--scenario", default="always_on")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a hundred clients and two rounds")
    given = parser.parse_args()
    if given.quick:
        given.clients, given.per_round, given.rounds = [100], 20, 2
    print("| clients | rule | predicted, MiB | peak, MiB | peak / predicted | seconds per round |")
    print("|---|---|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    for clients in given.clients:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found = pool.submit(manifest, clients, given).result()
        predicted, peak = found["memory"]["predicted_bytes"]["total"], found["memory"]["peak_bytes"]
        wall = found["wall_s"]
        print(
            f"| {clients:,} | {given.rule} | {predicted / 2**20:,.0f} | {peak / 2**20:,.0f} | {peak / predicted:.2f} "
            f"| {(wall['total'] - wall['start']) / given.rounds:.3f} |"
        )


if __name__ == "__main__":
    main()

"""What the simulator costs on top of local training, against a bare torch loop doing the same SGD in the same run.

The work: Fashion-MNIST, 100 clients with two classes each, 10 a round, batch 50, one epoch, mlp 784-200-200-10, FedAvg,
no evaluation but the first and the last. Bare: one process, one thread, a plain loop over clients on flat parameters,
no virtual clock, no records. Needs the data set (FEDSIM_DATA).

    python benchmarks/engine.py --rounds 20 --repeats 5 --workers 0 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.runs.build import prepare
from fedsim.runs.simulate import simulate
from fedsim.runs.spec import RunSpec

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "fashion_mnist.toml"


def config(rounds: int, pacing: str) -> RunConfig:
    """Return the FedAvg arm of the example with another number of rounds."""
    sets = [f"stop.steps={rounds}", "evaluate.every_steps=0"]
    if pacing == "fedbuff":
        sets += ["pacing={preset='fedbuff', concurrency=50, buffer=10}"]
    return load_config(EXAMPLE, tuple(sets))[0]


def bare_s(setup: RunSpec, rounds: int) -> float:
    """Seconds per round of the bare loop."""
    torch.set_num_threads(1)
    data, sgd = setup.data, setup.bench.sgd
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    flat = torch.empty(setup.network.P)
    module = setup.network.load(flat)
    weights = tuple(module.parameters())
    params, draws = setup.initial(), np.random.default_rng(0)
    started = perf_counter()
    for _ in range(rounds):
        total, samples = torch.zeros_like(params), 0
        for client in draws.choice(data.n_clients, 10, replace=False):
            rows = data.train.rows(client)
            order = torch.from_numpy(draws.permutation(rows))
            flat.copy_(params)
            cx, cy = x[order], y[order]
            for a in range(0, len(rows), sgd.batch_size or len(rows)):
                b = a + (sgd.batch_size or len(rows))
                loss = functional.cross_entropy(module(cx[a:b]), cy[a:b])
                with torch.no_grad():
                    torch._foreach_add_(weights, torch.autograd.grad(loss, weights), alpha=-sgd.lr)
            total += len(rows) * flat
            samples += len(rows)
        params = total / samples
    return (perf_counter() - started) / rounds


def fedsim_s(run: RunConfig, rounds: int, workers: int) -> tuple[float, float, int]:
    """Return seconds per round, overhead seconds (everything but training) and jobs; start-up and evaluation apart."""
    with tempfile.TemporaryDirectory() as folder:
        result = simulate(run, out=folder, workers=workers)[0]
        manifest = json.loads((result.folder / "manifest.json").read_text())
    wall = manifest["wall_s"]
    loop = wall["total"] - wall["start"] - wall["evaluate"] - wall["record"]
    jobs = sum(manifest["jobs"].values())
    return loop / rounds, loop - wall["train"] + wall["record"], jobs


def main() -> None:
    """Measure, interleaved, and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--pacing", choices=["sync", "fedbuff"], default="sync")
    options = parser.parse_args()
    run = config(options.rounds, options.pacing)
    setup = prepare(run)
    bare: list[float] = []
    ours: dict[int, list[tuple[float, float, int]]] = {w: [] for w in options.workers}
    for _ in range(options.repeats):
        bare.append(bare_s(setup, options.rounds))
        for workers in options.workers:
            ours[workers].append(fedsim_s(run, options.rounds, workers))
    table = Table("what", "rounds/s", "time, bare = 1", "overhead per job", box=None)
    floor = statistics.median(bare)
    table.add_row("bare torch loop, 1 thread", f"{1 / floor:.1f}", "1.00", "-")
    for workers, found in ours.items():
        each = statistics.median(seconds for seconds, _, _ in found)
        ratio = statistics.median(s / b for (s, _, _), b in zip(found, bare, strict=True))
        overhead = statistics.median(1e6 * cost / jobs for _, cost, jobs in found)
        name = "fedsim inline" if workers == 0 else f"fedsim, {workers} Ray workers + server"
        shown = f"{overhead:.0f} us" if workers == 0 else "-"
        table.add_row(name, f"{1 / each:.1f}", f"{ratio:.2f}", shown)
    Console(width=100).print(table)
    print(f"{options.repeats} interleaved repeats of {options.rounds} rounds, {options.pacing}; medians")


if __name__ == "__main__":
    main()

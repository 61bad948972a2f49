"""Whether memory grows with the number of steps: Ray's object store and the processes, measured during one long run.

    python benchmarks/soak.py --steps 5000 --workers 1

The run is asynchronous, with a rule that remembers the step before, and saved now and then. Its model is so small that
a step takes milliseconds, and so large that the rows of updates, more than 100 kB each, go through the object store.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedsim.config.load import parse
from fedsim.config.run import RunConfig
from fedsim.execution.actor_pool import RayPool
from fedsim.runs.progress import Progress
from fedsim.runs.simulate import simulate
from worker_kills import processes

TITLES = {"server": "ray::ServerHost", "workers": "ray::ClientHost"}


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory after a step, in bytes; that of processes is resident and theirs alone: without pages of shared memory."""

    step: int
    store: int
    """Pinned in Ray's object store."""
    objects: int
    """Number of objects that the driver refers to, there or, if they are small, in its own memory."""
    driver: int
    server: int
    workers: int
    """Of all of them together."""


def config(steps: int) -> RunConfig:
    """Return the run: ten clients' updates of 38,000 parameters in flight, two of them a step."""
    raw: dict[str, Any] = {
        "name": "soak",
        "seed": 1,
        "task": {"name": "digits", "clients": 20},
        "model": {"name": "mlp", "hidden": [512]},
        "partition": {"name": "pathological", "classes": 2},
        "world": {
            "scenario": "churn",
            "horizon": "1d",
            "after_end": "repeat",
            "options": {"mean_on": "20min", "mean_off": "5min"},
        },
        "cost": {"payload": "5 MB", "compute_scale": 10},
        "pacing": {"preset": "fedbuff", "concurrency": 10, "buffer": 2},
        "algorithm": {"name": "fedfv"},
        "train": {"batch_size": 100, "lr": 0.01},
        "stop": {"steps": steps},
        "evaluate": {"every_steps": max(1, steps // 10)},
        "checkpoint": {"every_steps": max(1, min(500, steps // 5))},
    }
    return parse(raw, "soak", "soak")[0]


def store_usage() -> tuple[int, int]:
    """Return the bytes pinned in the cluster's object stores, and the number of objects that this process refers to.

    The former as of a tenth of a second ago.
    """
    import ray  # not before the pool has prepared the environment that it reads

    asked: tuple[Any, ...] = (ray.cluster_resources, ray.available_resources)
    total, free = (found().get("object_store_memory", 0) for found in asked)
    core: Any = ray._private.worker.global_worker
    return int(total - free), len(core.core_worker.get_all_reference_counts())


def soak(steps: int, out: Path, pool: RayPool, *, samples: int = 10) -> list[Sample]:
    """Run in the processes of `pool`, and measure `samples` times, at equal distances, the last time after the end."""
    wanted = {round(steps * (i + 1) / samples) for i in range(samples)}
    found: list[Sample] = []

    def measure(progress: Progress) -> None:
        if progress.run_state.step in wanted:
            wanted.remove(progress.run_state.step)
            found.append(_sample(progress.run_state.step))

    simulate(config(steps), out=out, workers=pool, force=True, watch=measure)
    return found


def growth(found: list[Sample], of: str) -> float:
    """Return the bytes by which a quantity grows per 1,000 steps: the slope of a line through what was found."""
    steps, values = zip(*((sample.step, getattr(sample, of)) for sample in found), strict=True)
    return 1000 * float(np.polyfit(steps, values, 1)[0])


def _sample(step: int) -> Sample:
    store, objects = store_usage()
    sizes = {
        of: sum(_private_bytes(process) for process, _ in processes(title)) for of, title in TITLES.items()
    }
    return Sample(step, store, objects, _private_bytes(psutil.Process()), **sizes)


def _private_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def main() -> None:
    """Run, and print a table and the growth after the first fifth of the steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--samples", type=int, default=10)
    given = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, RayPool(given.workers) as pool:
        found = soak(given.steps, Path(folder), pool, samples=given.samples)
    print("| step | object store, MiB | objects | driver, MiB | server, MiB | workers, MiB |")
    print("|---|---|---|---|---|---|")
    for at in found:
        sizes = " | ".join(f"{size / 2**20:.1f}" for size in (at.driver, at.server, at.workers))
        print(f"| {at.step:,} | {at.store / 2**20:.2f} | {at.objects} | {sizes} |")
    late = [at for at in found if at.step >= given.steps / 5]
    grown = ", ".join(
        f"{name} {growth(late, of) / 2**20:+.2f}"
        for name, of in (("object store", "store"), ("driver", "driver"), *((t, t) for t in TITLES))
    )
    print(
        f"\ngrowth per 1,000 steps from step {late[0].step:,} to {late[-1].step:,}, in MiB: {grown}; "
        f"{time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()

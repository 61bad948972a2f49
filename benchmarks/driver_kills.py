"""Killing the process of a run at random instants, and letting it go on: the digest must be that of a run in peace.

    python benchmarks/driver_kills.py --kills 500

The run is asynchronous, 200 steps of a fair rule with a memory. Each life of it is a process of its own that ends by
SIGKILL; what it leaves on disk is all that the next one has.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedsim.config import RunConfig, parse
from fedsim.setup import prepare
from fedsim.simulation import resume, simulate

STEPS = 200


@dataclass(frozen=True, slots=True)
class Killed:
    """A run that was killed again and again, and how it ended."""

    seed: int
    kills: int
    from_step: tuple[int, ...]
    """The step of the last checkpoint at each kill, 0 without one."""
    same: bool
    """Whether its digest is that of the run in peace."""
    once: bool
    """Whether each of its jobs is there exactly once."""


def config(seed: int, steps: int = STEPS, **changes: Any) -> RunConfig:
    """Return an asynchronous run that ends in some seconds."""
    raw: dict[str, Any] = {
        "name": f"killed-{seed}",
        "seed": seed,
        "task": {"name": "digits", "clients": 20},
        "model": {"name": "mlp", "hidden": [8]},
        "partition": {"name": "pathological", "classes": 2},
        "world": {"scenario": "churn", "horizon": "1d", "options": {"mean_on": "20min", "mean_off": "10min"}},
        "cost": {"payload": "5 MB", "compute_scale": 10},
        "pacing": {"preset": "fedbuff", "concurrency": 8, "buffer": 4},
        "algorithm": {"name": "fedfv"},
        "stop": {"steps": steps},
        "checkpoint": {"every_steps": 3},
    }
    return parse(raw | changes, "killed", "killed")[0]


def killed_runs(kills: int, out: Path, *, seed: int = 0, steps: int = STEPS) -> Iterator[Killed]:
    """Kill runs, each life at a random instant, until there were so many kills altogether.

    A life may end before anything is done, and takes at most a fifth of the time that the run takes in peace, besides
    its start.
    """
    chance, done = random.Random(seed), 0
    while done < kills:
        run = config(seed, steps)
        started = time.monotonic()
        prepare(run)
        begun = time.monotonic()
        expected = simulate(run, out=out / "peace", workers=0)[0]
        life_s = 2 * (begun - started) + (time.monotonic() - begun) / 5
        folder, from_step = out / run.name, []
        while done < kills and not _life(run, out, chance.uniform(0, life_s)):
            from_step.append(_last_step(folder))
            done += 1
        if not (folder / "manifest.json").exists() or _status(folder) != "done":
            _life(run, out, None)
        yield Killed(
            seed, len(from_step), tuple(from_step), _digest(folder) == expected.digest, _each_once(folder)
        )
        seed += 1


def _life(run: RunConfig, out: Path, until_s: float | None) -> bool:
    """Let a process go on with a run, and kill it after a while; returns whether it came to the end before."""
    child = os.fork()
    if not child:
        _go_on(run, out)
    if until_s is not None:
        time.sleep(until_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"{run.name}: it ended with an error, see above")
    return os.WIFEXITED(status)


def _go_on(run: RunConfig, out: Path) -> None:
    """Run to the end, in a process that does nothing else."""
    try:
        folder = out / run.name
        begun = (folder / "world.parquet").exists() and (folder / "manifest.json").exists()
        if begun:
            resume(folder, workers=0)
        else:
            simulate(run, out=out, workers=0, force=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _status(folder: Path) -> object:
    from fedsim.manifest import read_manifest

    return read_manifest(folder).get("status")


def _digest(folder: Path) -> object:
    from fedsim.manifest import read_manifest

    return read_manifest(folder).get("digest")


def _last_step(folder: Path) -> int:
    from fedsim.checkpoint import checkpoints

    found = checkpoints(folder)
    return found[-1].step if found else 0


def _each_once(folder: Path) -> bool:
    jobs = pq.read_table(folder / "jobs.parquet", columns=["job"])["job"]
    return len(jobs) == pc.count_distinct(jobs).as_py() == pc.max(jobs).as_py() + 1


def main() -> None:
    """Read the arguments, kill, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    runs = kills = 0
    with tempfile.TemporaryDirectory() as folder:
        for found in killed_runs(given.kills, Path(folder), seed=given.seed, steps=given.steps):
            runs, kills = runs + 1, kills + found.kills
            print(
                f"seed {found.seed}: {found.kills} kills, after checkpoints of steps {list(found.from_step)}; digest "
                f"{'the same' if found.same else 'DIFFERS'}, jobs {'each once' if found.once else 'LOST OR DOUBLED'}",
                flush=True,
            )
            if not (found.same and found.once):
                raise SystemExit(1)
    print(f"{kills} kills of the process in {runs} runs of {given.steps} steps: every digest the same")


if __name__ == "__main__":
    main()

"""Killing the process of a run at random instants, and letting it go on: the digest must be that of a run in peace.

    python benchmarks/driver_kills.py --kills 500
    python benchmarks/driver_kills.py --kills 50 --workers 2

The run is asynchronous, 200 steps of a fair rule with a memory. Each life of it is a process of its own that ends by
SIGKILL; what it leaves on disk is all that the next one has. With workers a life is `fedsim run` or `fedsim resume`,
and its processes of Ray are killed with it; as starting them takes longer than the run, the clock of most lives begins
when they have got further than the one before.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tomli_w

from fedsim.config.load import parse
from fedsim.config.run import RunConfig
from fedsim.records.checkpoint import checkpoints
from fedsim.records.manifest import read_manifest
from fedsim.runs.build import prepare
from fedsim.runs.resume import resume
from fedsim.runs.simulate import simulate

STEPS = 200
_FEDSIM = [sys.executable, "-c", "from fedsim.cli.main import main; main()"]
_MARK = "FEDSIM_LIFE"
"""A variable in the environment of every process of a life, by which they are found."""
_FURTHER = 0.75
"""Share of the lives with workers whose time is counted from their first checkpoint."""


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


def killed_runs(
    kills: int, out: Path, *, seed: int = 0, steps: int = STEPS, workers: int = 0
) -> Iterator[Killed]:
    """Kill runs, each life at a random instant, until there were so many kills altogether.

    A life may end before anything is done, and takes at most a fifth of the time that the run takes in peace, besides
    its start.
    """
    chance, done = random.Random(seed), 0
    while done < kills:
        run = config(seed, steps)
        expected, life_s = _in_peace(run, out / "peace", workers)
        folder, from_step = out / run.name, []
        while done < kills:
            further = workers > 0 and chance.random() < _FURTHER
            until_s = chance.uniform(0, life_s / 8 if further else life_s)
            if _life(run, out, until_s, workers, further) or _done(folder):
                break
            from_step.append(_last_step(folder))
            done += 1
        if not _done(folder):
            _life(run, out, None, workers)
        yield Killed(seed, len(from_step), tuple(from_step), _digest(folder) == expected, _each_once(folder))
        seed += 1


def _in_peace(run: RunConfig, out: Path, workers: int) -> tuple[object, float]:
    """Run in one process undisturbed; returns the digest, and the most seconds that a life is given."""
    started = time.monotonic()
    prepare(run)
    begun = time.monotonic()
    expected = simulate(run, out=out, workers=0)[0].digest
    if not workers:
        return expected, 2 * (begun - started) + (time.monotonic() - begun) / 5
    started = time.monotonic()
    _life(run, out / "workers", None, workers)
    wall_s = read_manifest(out / "workers" / run.name)["wall_s"]
    return expected, time.monotonic() - started - 4 / 5 * (wall_s["total"] - wall_s["start"])


def _life(run: RunConfig, out: Path, until_s: float | None, workers: int, further: bool = False) -> bool:
    """Let a process go on with a run, and kill it after a while; returns whether it came to the end before.

    `further`: whether the while begins when the run has got further than it was.
    """
    if workers:
        return _life_in_ray(run, out, until_s, workers, further)
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


def _life_in_ray(run: RunConfig, out: Path, until_s: float | None, workers: int, further: bool) -> bool:
    """As `_life`, with a fresh process and those of Ray below it."""
    out.mkdir(parents=True, exist_ok=True)
    if _begun(out / run.name):
        command = ["resume", str(out / run.name)]
    else:
        (out / "run.toml").write_text(tomli_w.dumps(run.resolved()))
        command = ["run", str(out / "run.toml"), "--out", str(out), "--force"]
    command += ["--workers", str(workers), "--quiet"]
    mark, before = uuid.uuid4().hex, _last_step(out / run.name)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as ray, tempfile.TemporaryFile() as said:
        environment = os.environ | {_MARK: mark, "RAY_TMPDIR": ray}
        process = subprocess.Popen(
            [*_FEDSIM, *command], stdout=said, stderr=said, env=environment, start_new_session=True
        )
        try:
            while further and _last_step(out / run.name) <= before and process.poll() is None:
                time.sleep(0.01)
            ended = process.wait(until_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            ended = process.wait()
        finally:
            _kill_marked(mark)
        if ended not in (0, -signal.SIGKILL):
            said.seek(0)
            raise RuntimeError(
                f"{run.name}: it ended with exit code {ended}:\n{said.read().decode()[-4000:]}"
            )
        return ended == 0


def _kill_marked(mark: str) -> None:
    """Kill what is left of a life: processes that are in a group of their own, until there are none."""
    found = True
    while found:
        found = False
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                    process.kill()
                    found = True


def _go_on(run: RunConfig, out: Path) -> None:
    """Run to the end, in a process that does nothing else."""
    try:
        folder = out / run.name
        if _begun(folder):
            resume(folder, workers=0)
        else:
            simulate(run, out=out, workers=0, force=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _begun(folder: Path) -> bool:
    return (folder / "world.parquet").exists() and (folder / "manifest.json").exists()


def _done(folder: Path) -> bool:
    return (folder / "manifest.json").exists() and bool(read_manifest(folder).get("status") == "done")


def _digest(folder: Path) -> object:
    return read_manifest(folder).get("digest")


def _last_step(folder: Path) -> int:
    found = checkpoints(folder)
    return found[-1].step if found else 0


def _each_once(folder: Path) -> bool:
    jobs = pq.read_table(folder / "jobs.parquet", columns=["job"])["job"]
    return bool(len(jobs) == pc.count_distinct(jobs).as_py() == pc.max(jobs).as_py() + 1)


def main() -> None:
    """Read the arguments, kill, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=0, help="client actors in Ray; 0 runs in one process")
    given = parser.parse_args()
    runs = kills = 0
    with tempfile.TemporaryDirectory() as folder:
        for found in killed_runs(
            given.kills, Path(folder), seed=given.seed, steps=given.steps, workers=given.workers
        ):
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

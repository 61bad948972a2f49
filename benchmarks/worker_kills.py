"""Runs one experiment again and again while its worker processes are killed at random instants, and compares digests.

    python benchmarks/worker_kills.py examples/quickstart.toml --kills 100 --workers 2

Every finished run must have the digest of the same run in one process that nobody disturbs.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.execution.actor_pool import RayPool
from fedsim.runs.simulate import simulate

_TITLE = "ray::ClientHost"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of runs whose workers were killed."""

    kills: int
    busy: int
    """Kills of processes that were in the midst of a call."""
    digests: list[str | None]
    """Of each run that was finished meanwhile."""
    undisturbed: str | None
    """That of the run in one process."""
    seconds: float

    @property
    def same(self) -> bool:
        """Whether every run gave what the undisturbed one gave."""
        return set(self.digests) == {self.undisturbed}


class _Killer(threading.Thread):
    """Kills `kills` client processes below this one, at random instants that are `every_s` apart on average.

    If all but the last were idle, the last one is killed at work.
    """

    def __init__(self, kills: int, every_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.left, self.every_s, self.rng, self.busy = kills, every_s, random.Random(seed), 0

    def run(self) -> None:
        while self.left:
            time.sleep(self.rng.expovariate(1 / self.every_s))
            with suppress(psutil.NoSuchProcess, IndexError):
                last = self.left == 1 and not self.busy
                process, does = self.rng.choice([p for p in processes() if not last or p[1] != _TITLE])
                process.kill()
                self.left -= 1
                self.busy += does != _TITLE


def processes(title: str = _TITLE) -> list[tuple[psutil.Process, str]]:
    """Return the actors' processes that this one started, and what each says that it does."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, IndexError):
            if (does := process.cmdline()[0]).startswith(title):
                found.append((process, does))
    return found


def kill_workers(
    config: RunConfig, *, kills: int, workers: int = 2, every_s: float = 1.0, seed: int = 0
) -> Outcome:
    """Run `config` until so many processes were killed, then once to its end; once more in this process alone."""
    digests: list[str | None] = []
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = simulate(config, out=folder, workers=0)[0].digest
        with RayPool(workers) as pool:
            pool.processes()
            killer, started = _Killer(kills, every_s, seed), time.perf_counter()
            killer.start()
            while killer.is_alive() or not digests:
                digests.append(simulate(config, out=folder, force=True, workers=pool)[0].digest)
            seconds = time.perf_counter() - started
    return Outcome(kills, killer.busy, digests, undisturbed, seconds)


def main() -> None:
    """Kill, and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], help="a.b=value in the configuration")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every-s", type=float, default=1.0, help="mean seconds from kill to kill")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    config = load_config(given.config, given.set)[0]
    found = kill_workers(
        config, kills=given.kills, workers=given.workers, every_s=given.every_s, seed=given.seed
    )
    print(
        f"{found.kills} processes killed, {found.busy} of them at work, during {len(found.digests)} runs in "
        f"{found.seconds:.0f} s: digests {'all equal to' if found.same else 'NOT ALL equal to'} the undisturbed one"
    )


if __name__ == "__main__":
    main()

"""Playing one drawn configuration: run it, check its invariants, and run it again in other ways to the same digest."""

from __future__ import annotations

import json
import random
import re
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from safetensors.torch import load_file

from fedsim import Result, simulate
from fedsim.common.errors import INPUT_ERRORS, RunError
from fedsim.config.load import load_config, parse
from fedsim.config.run import RunConfig
from fedsim.engine.event_loop import EventLoop
from fedsim.invariants import check
from fedsim.records.digest import digest
from fedsim.runs.build import prepare
from fedsim.runs.checkpointer import Checkpointer
from fedsim.runs.fork import At, fork
from fedsim.runs.resume import resume
from fedsim.server.server import Server
from fedsim.training.workbench import Workbench
from fuzz_cases import case
from shuffled import ShuffledTrainer

_MOST_STOPS = 20
MOST_S = 20
"""A run that takes longer is taken to hang."""

Treatment = Callable[[RunConfig, Result, Path, random.Random], str | None]
"""`treat(config, plain, out, draw)`: make the run of `config` again below `out`, in another way than the `plain` one,
and return its digest, which must be equal."""


def _again(config: RunConfig, plain: Result, out: Path, draw: random.Random) -> str | None:
    """Run it once more."""
    return _run(config, out).digest


def _shuffled(config: RunConfig, plain: Result, out: Path, draw: random.Random) -> str | None:
    """Let jobs finish in any order."""

    def trainer(bench: Workbench, server: Server, clock: Any) -> ShuffledTrainer:
        return ShuffledTrainer(bench, server, draw.randrange(2**32))

    with patch("fedsim.runs.session.InlineTrainer", trainer):
        return _run(config, out).digest


def _resolved(config: RunConfig, plain: Result, out: Path, draw: random.Random) -> str | None:
    """Run what the folder says was run, in the world that it says was seen."""
    world = (f"world.trace={plain.folder / 'world.parquet'}",) if config.world.trace else ()
    return _run(load_config(plain.folder / "config.resolved.toml", world)[0], out).digest


def _in_small_parts(config: RunConfig, plain: Result, out: Path, draw: random.Random) -> str | None:
    """Write tables in many parts, also between steps."""
    with patch("fedsim.records.recorder._PART_ROWS", 2), patch("fedsim.engine.event_loop._CROWD", 3):
        return _run(config, out).digest


def _interrupted(config: RunConfig, plain: Result, out: Path, draw: random.Random) -> str | None:
    """Stop it at random instants, and let it go on from what is on disk."""
    between, chance = Checkpointer.between, draw.choice((0.02, 0.1, 0.5))

    def stopping(checkpointer: Checkpointer, event_loop: EventLoop) -> None:
        if draw.random() < chance:
            checkpointer.interrupts.asked = True
        between(checkpointer, event_loop)

    with patch.object(Checkpointer, "between", stopping):
        found, times = _run(config, out), 0
        while found.status == "interrupted":
            times += 1
            chance = chance if times < _MOST_STOPS else 0.0
            found = resume(found.folder, workers=0)
    return found.digest


def _forked(config: RunConfig, plain: Result, out: Path, draw: random.Random) -> str | None:
    """Branch it at a random step, without a change."""
    steps = json.loads((plain.folder / "manifest.json").read_text())["steps"]
    if not steps:
        return plain.digest
    at = At(step=draw.randrange(steps))
    return fork(plain.folder, at, name="forked", out=out, workers=0).digest


def _audited(config: RunConfig, plain: Result, out: Path, draw: random.Random) -> str | None:
    """Audit it: nothing but the table of the audit may be another one."""
    if config.audit.every or prepare(config).bench.method().keeps:
        return plain.digest
    audit = config.audit.model_copy(update={"every": draw.choice((1, 3)), "clients": draw.choice((2, 30))})
    found = _run(config.model_copy(update={"audit": audit}), out).folder
    (found / "audit.parquet").unlink()
    return digest(found, load_file(found / "model.safetensors"))


TREATMENTS: dict[str, Treatment] = {
    "again": _again,
    "shuffled": _shuffled,
    "resolved": _resolved,
    "in small parts": _in_small_parts,
    "interrupted": _interrupted,
    "forked": _forked,
    "audited": _audited,
}
"""Ways to make the same run; a new one is added here."""


@dataclass
class Played:
    """What became of one seed."""

    seed: int
    outcome: str = "done"
    """`done`, `refused`, `stopped` (it could not go on, and said why) or `finding`."""
    reason: str = ""
    findings: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """What occurred: statuses of jobs, causes of steps, invariants checked, treatments."""
    config: dict[str, Any] = field(default_factory=dict)
    took_s: float = 0.0


def play(seed: int, treatments: Sequence[str] = ()) -> Played:
    """Run what `seed` stands for, check it, and treat it as named. Nothing is raised: what goes wrong is a finding."""
    played, started = Played(seed), time.monotonic()
    with tempfile.TemporaryDirectory(dir=_memory(), prefix="fuzz") as place:
        folder = Path(place)
        played.config = case(seed, folder)
        try:
            config = parse(played.config, "fuzz", "fuzz")[0]
            with _no_longer_than(MOST_S):
                plain = _run(config, folder / "plain")
        except INPUT_ERRORS as error:
            played.outcome, played.reason = "refused", _kind_of(str(error))
        except RunError as error:
            played.outcome, played.reason = "stopped", _kind_of(str(error))
        except Exception as error:  # anything else is what the fuzzer is for
            _find(played, _where(error))
        else:
            _treat(played, config, plain, folder, treatments)
        if (folder / "plain" / f"fuzz{seed}" / "manifest.json").is_file():
            _check(played, folder / "plain" / f"fuzz{seed}")
    played.took_s = time.monotonic() - started
    return played


def perturb(
    config: RunConfig, plain: Result, out: Path, draw: random.Random, names: Sequence[str]
) -> list[str]:
    """Make a run again in each of the ways named; return what differed."""
    found = []
    for name in names:
        digest = TREATMENTS[name](config, plain, out / name, draw)
        if digest != plain.digest:
            found.append(f"{name}: digest {digest}, expected that of the plain run, {plain.digest}")
    return found


def _treat(played: Played, config: RunConfig, plain: Result, folder: Path, names: Sequence[str]) -> None:
    try:
        with _no_longer_than(MOST_S * max(len(names), 1)):
            for found in perturb(config, plain, folder, random.Random(played.seed), names):
                _find(played, found)
    except Exception as error:
        _find(played, f"treated ({', '.join(names)}): {_where(error)}")
    played.seen.update(f"treatment: {name}" for name in names)


def _where(error: Exception) -> str:
    """Return an error with the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def _check(played: Played, folder: Path) -> None:
    try:
        verdict = check(folder)
    except Exception as error:
        _find(played, f"check: {_where(error)}")
        return
    for violation in verdict.violations:
        _find(played, str(violation))
    played.seen.update(f"invariant: {name}" for name in verdict.checked)
    played.seen.update(_events(folder))


def _events(folder: Path) -> Counter[str]:
    from fedsim import analysis

    run = analysis.open_run(folder)
    seen = Counter({f"job: {status}": n for status, n in run.manifest["jobs"].items()})
    for row in run.steps.select(["cause", "status"]).to_pylist():
        seen[f"step: {row['cause']}, {row['status']}"] += 1
    seen[f"ended by: {run.manifest['ended_by']}"] += 1
    return seen


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the middle of what takes longer."""

    def stop(signum: int, frame: object) -> None:
        raise TimeoutError(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _find(played: Played, what: str) -> None:
    played.outcome = "finding"
    played.findings.append(what)


def _run(config: RunConfig, out: Path) -> Result:
    return simulate(config, out=out, workers=0, device="cpu")[0]


def _memory() -> str | None:
    """Return a folder in memory, where there is one: a run flushes each of its files to disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _kind_of(message: str) -> str:
    """Return what an error says but for numbers and names, so that equal reasons count together."""
    line = message.strip().splitlines()[0].removeprefix("fuzz: ")
    return re.sub(r"'[^']*fuzz[^']*'|\S*/\S*fuzz\S*", "...", re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "N", line))[
        :120
    ]

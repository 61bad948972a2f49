"""How fast fedsim trains, against the floors in bare torch and against other frameworks, on four works.

All of it is FedAvg with one local epoch of plain SGD, from the same start parameters, on the same samples of the same
clients. Every contestant runs in a process of its own, one at a time, and all of them once per repetition; a cell is
the median over repetitions, and a ratio is taken within each. fedsim has its clock on and writes its records.

    python benchmarks/works.py --works W1 W2 --repeats 5
    python benchmarks/works.py --quick

`peers/README.md` says how to make the environment of the other frameworks; without it their columns are left out.
W1 and W3 need their data sets (FEDSIM_DATA).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.config.load import changed, parse
from fedsim.config.run import RunConfig

if TYPE_CHECKING:
    from fedsim.runs.spec import RunSpec

HERE = Path(__file__).resolve().parent
PEERS_PYTHON = Path(os.environ.get("FEDSIM_PEERS_PYTHON", HERE.parent / ".venv-peers" / "bin" / "python"))
OURS = ("p2", "loop1", "loop2", "inline", "ray2")
PEERS = ("pfl", "flgo", "flower")
TITLES = {"inline": "fedsim inline", "ray2": "fedsim, 2 workers", "flgo": "FLGo", "flower": "Flower"}

Measured = dict[str, float]


@dataclass(frozen=True, slots=True)
class Work:
    """What is trained, as tables of a configuration."""

    clients: int
    per_round: int
    task: Mapping[str, Any]
    model: Mapping[str, Any]
    batch_size: int
    lr: float
    rounds: int
    partition: Mapping[str, Any] | None = None
    quick: Mapping[str, int] = field(default_factory=dict)
    """What is smaller with `--quick`."""


WORKS = {
    "W1": Work(
        clients=100,
        per_round=10,
        task={"name": "fashion_mnist", "normalise": True, "fractions": [6 / 7, 0, 1 / 7]},
        partition={"name": "pathological", "classes": 2},
        model={"name": "mlp", "hidden": [200, 200]},
        batch_size=50,
        lr=0.1,
        rounds=100,
        quick={"per_round": 4},
    ),
    "W2": Work(
        clients=1000,
        per_round=100,
        task={"name": "synthetic", "sigma": 0.5, "least": 60, "fractions": [0.8, 0, 0.2]},
        model={"name": "softmax"},
        batch_size=10,
        lr=0.01,
        rounds=50,
        quick={"clients": 50, "per_round": 10},
    ),
    "W3": Work(
        clients=100,
        per_round=10,
        task={"name": "cifar10", "fractions": [5 / 6, 2 / 15, 1 / 30]},
        partition={"name": "iid"},
        model={
            "name": "cnn",
            "channels": [64, 64],
            "kernel": 5,
            "padding": "valid",
            "hidden": [384, 192],
        },
        batch_size=50,
        lr=0.05,
        rounds=5,
        quick={"per_round": 2},
    ),
    "W4": Work(
        clients=10_000,
        per_round=1000,
        task={"name": "synthetic", "sizes": "fixed", "samples": 15, "fractions": [0.8, 0, 0.2]},
        model={"name": "softmax"},
        batch_size=10,
        lr=0.01,
        rounds=20,
        quick={"clients": 200, "per_round": 20},
    ),
}


def configured(
    work: Work,
    *,
    name: str = "work",
    rounds: int = 1,
    every: int = 0,
    quick: bool = False,
    sets: Sequence[str] = (),
) -> RunConfig:
    """Return the configuration of `rounds` rounds, with an evaluation after `every` so many (0: none but the last).

    `sets` are assignments `a.b=value` as on fedsim's command line.
    """
    small = work.quick if quick else {}
    raw = {
        "name": name,
        "seed": 1,
        "task": {**work.task, "clients": small.get("clients", work.clients)},
        "model": dict(work.model),
        "pacing": {"preset": "sync", "clients": small.get("per_round", work.per_round)},
        "train": {"epochs": 1, "batch_size": work.batch_size, "lr": work.lr},
        "stop": {"steps": rounds},
        "evaluate": {"every_steps": every},
    } | ({} if work.partition is None else {"partition": dict(work.partition)})
    return parse(changed(raw, sets), "works.py", name)[0]


def write_partition(setup: RunSpec, path: Path) -> None:
    """Write who holds which samples, for the contestants that are not fedsim."""
    from contest import Partition, Spec  # torch, which this process needs for nothing else

    data, config = setup.data, setup.config
    assert config.model is not None
    work = Partition(
        Spec(
            model=config.model.name,
            model_options=dict(config.model.options),
            n_classes=data.n_classes,
            clients_per_round=setup.plan.pacing.concurrency,
            batch_size=setup.bench.sgd.batch_size or 0,
            lr=setup.bench.sgd.lr,
        ),
        x=data.x[data.train.indices],
        y=data.y[data.train.indices],
        offsets=data.train.offsets,
        test_x=data.x[data.test.indices],
        test_y=data.y[data.test.indices],
        initial=setup.initial().numpy(),
    )
    work.write(path)


def command(name: str, work: str, file: Path, given: argparse.Namespace) -> list[str]:
    """Return the command line of a contestant, without what all of them are told."""
    if name in ("inline", "ray2"):
        workers = ["--workers", "0" if name == "inline" else "2"]
        quick = ["--quick"] if given.quick else []
        sets = [f"--set={text}" for text in (f"algorithm.name={given.rule}", *given.set)]
        return [sys.executable, str(HERE / "fedsim_run.py"), work, *workers, *quick, *sets]
    if name not in PEERS:
        return [sys.executable, str(HERE / "floors.py"), str(file), name]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2"] if name == "pfl" else []
    rule = ["--rule", given.rule] if name == "flgo" else []
    return [str(given.peers_python), *launcher, str(HERE / "peers" / f"{name}_run.py"), str(file), *rule]


def environment(threads: int = 1) -> dict[str, str]:
    """Return the environment of a contestant: where `contest.py` is, and how many threads it may use."""
    return os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": str(threads)}


def compete(name: str, argv: Sequence[str], rounds: int, timeout_s: float) -> Measured | None:
    """Run a contestant and return what it printed; None, with its last words on standard error, if it failed."""
    since = time.time()
    try:
        done = subprocess.run(
            [*argv, "--rounds", str(rounds), "--since", str(since)],
            capture_output=True,
            text=True,
            env=environment(2 if name == "loop2" else 1),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"{name}: not ready after {timeout_s:g} s", file=sys.stderr)
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"first_s"')]
    if done.returncode or not lines:
        print(f"{name} failed ({done.returncode}):\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    found: Measured = json.loads(lines[-1])
    return found


def measure(work: str, names: Sequence[str], given: argparse.Namespace) -> dict[str, list[Measured | None]]:
    """Let all contestants run once per repetition, one after the other; returns what each found by repetition."""
    from fedsim.runs.build import prepare  # torch, which contestants that import this module load later

    found: dict[str, list[Measured | None]] = {name: [] for name in names}
    rounds = given.rounds or (2 if given.quick else WORKS[work].rounds)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "work.npz"
        write_partition(prepare(configured(WORKS[work], quick=given.quick)), file)
        for repeat in range(given.repeats):
            for name in names:
                late = name in PEERS and repeat >= given.peer_repeats
                argv = command(name, work, file, given)
                found[name].append(None if late else compete(name, argv, rounds, given.timeout))
    return found


def median(values: Sequence[float]) -> float:
    """Return the median of the values that are there, NaN if none is."""
    there = [value for value in values if not math.isnan(value)]
    return statistics.median(there) if there else math.nan


def rows(work: str, found: Mapping[str, Sequence[Measured | None]]) -> list[list[str]]:
    """Return the four rows of a work: a title and a cell per contestant in each."""

    def cells(key: str, show: str, *, ratios: bool = False) -> list[str]:
        values = {name: [run[key] if run else math.nan for run in runs] for name, runs in found.items()}
        base = values.get("p2") if ratios else None
        texts = []
        for name, own in values.items():
            as_ratio = base is not None and name != "p2"
            middle = median([v / b for v, b in zip(own, base or own, strict=True)] if as_ratio else own)
            texts.append("-" if math.isnan(middle) else ("{:.2f}" if as_ratio else show).format(middle))
        return texts

    return [
        [work, "round", *cells("round_s", "{:.4f} s", ratios=True)],
        [work, "evaluation", *cells("evaluate_s", "{:.4f} s", ratios=True)],
        [work, "start-up and first round", *cells("first_s", "{:.1f} s")],
        [work, "accuracy after the last round", *cells("accuracy", "{:.3f}")],
    ]


def table(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    head = ["work", "what (ratios: p2 = 1)", *(TITLES.get(name, name) for name in names)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument(
        "--only", nargs="+", choices=(*OURS, *PEERS), help="contestants (default: all that are there)"
    )
    parser.add_argument("--rounds", type=int, help="timed rounds (default: those of the work)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-repeats", type=int, default=1, help="repetitions in which peers take part")
    parser.add_argument(
        "--rule", default="fedavg", help="rule of fedsim and of FLGo; the others stay with FedAvg"
    )
    parser.add_argument(
        "--set", action="append", default=[], help="a.b=value in the configuration of fedsim alone"
    )
    parser.add_argument("--peers-python", type=Path, default=PEERS_PYTHON)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that a contestant may take")
    parser.add_argument(
        "--quick", action="store_true", help="smaller works, two rounds, once: whether it runs, not how fast"
    )
    parser.add_argument("--json", type=Path, help="also write what each contestant found in each repetition")
    return parser


def main() -> None:
    """Measure, and print one table."""
    given = arguments().parse_args()
    peers = PEERS if given.peers_python.is_file() else ()
    names = given.only or (*OURS, *peers)
    given.repeats = 1 if given.quick else given.repeats
    found, lines = {}, []
    for work in given.works:
        found[work] = measure(work, names, given)
        lines += rows(work, found[work])
        print(f"{work} done", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    print(table(names, lines))
    print(f"\n{given.repeats} interleaved repetitions, {given.rule}; medians")


if __name__ == "__main__":
    main()

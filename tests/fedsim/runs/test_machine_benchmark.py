"""The quick benchmark: what it measures, and what it advises."""

from __future__ import annotations

import json
import math

import pytest
from rich.console import Console

from fedsim.cli.main import main
from fedsim.common.errors import RunError
from fedsim.runs.machine_benchmark import _COHORT, _WORKS, Benchmark, Measured, bench, modes, worker_counts


def made_up(*cells: tuple[str, str, int, float]) -> Benchmark:
    measured = tuple(Measured(*cell) for cell in cells)
    return Benchmark(measured, {m.workers: 1.5 * m.workers for m in measured})


def test_fewer_workers_are_advised_if_they_come_near_to_the_best() -> None:
    found = made_up(
        ("softmax", "loop", 0, 100),
        ("softmax", "dense", 0, 950),
        ("softmax", "dense", 2, 1000),
        ("mlp", "loop", 0, 50),
        ("mlp", "dense", 0, 40),
        ("mlp", "loop", 2, 70),
        ("mlp", "dense", 2, 90),
    )
    assert found.best("softmax") == Measured("softmax", "dense", 0, 950)
    assert found.best("mlp") == Measured("mlp", "dense", 2, 90)
    assert found.advice() == (
        'Use --workers 0 and train.mode = "dense" for models like softmax, '
        '--workers 2 and train.mode = "dense" for models like mlp.'
    )


def test_one_choice_for_all_is_said_once() -> None:
    found = made_up(("softmax", "loop", 0, 10), ("mlp", "loop", 0, 10), ("mlp", "dense", 0, math.nan))
    assert found.advice() == 'Use --workers 0 and train.mode = "loop".'
    assert found.plain()["updates"][2]["updates_per_s"] is None
    console = Console(width=80)
    with console.capture() as captured:
        console.print(found.table())
    assert [line.split() for line in captured.get().splitlines()[1:]] == [
        ["work", "mode", "inline"],
        ["softmax", "loop", "10"],
        ["mlp", "loop", "10"],
        ["mlp", "dense", "–"],
        ["start", "and", "first", "step,", "s", "0.0"],
    ]


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(RunError, match="no two steps of work 'mlp'"):
        made_up(("mlp", "loop", 0, math.nan)).best("mlp")


@pytest.mark.parametrize(("cores", "counts"), [(1, [0, 1]), (2, [0, 2, 1]), (6, [0, 6, 1, 2, 4])])
def test_worker_counts_are_none_all_cores_then_powers_of_two(cores: int, counts: list[int]) -> None:
    assert worker_counts(cores) == counts


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Works of which two steps take milliseconds."""
    for work in _WORKS:
        task = {"name": "synthetic", "clients": 4, "sizes": "fixed", "samples": 4}
        monkeypatch.setitem(_WORKS, work, _WORKS[work] | {"task": task})
        monkeypatch.setitem(_COHORT, work, 2)


@pytest.mark.usefixtures("tiny")
def test_every_mode_is_measured() -> None:
    told: list[str] = []
    found = bench(workers=[0], works=["softmax"], device="cpu", seconds=1.0, repeats=1, tell=told.append)
    assert [(m.work, m.mode, m.workers) for m in found.measured] == [("softmax", mode, 0) for mode in modes()]
    assert all(m.updates_per_s > 0 for m in found.measured)
    assert found.start_s[0] > 0
    assert told == ["inline"]
    assert "loop" in modes()
    assert "auto" not in modes()


@pytest.mark.usefixtures("tiny")
def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--json", "--workers", "0", "--seconds", "1", "--device", "cpu"])
    assert (ended.value.code or 0) == 0
    found = json.loads(capsys.readouterr().out)
    assert {m["work"] for m in found["updates"]} == {"softmax", "mlp"}
    assert found["advice"].startswith("Use --workers 0")
    assert found["use"]["mlp"]["workers"] == 0


def test_bad_worker_counts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--workers", "two"])
    assert ended.value.code == 2
    assert "--workers: expected numbers of at least 0" in capsys.readouterr().err

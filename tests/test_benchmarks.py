"""The benchmarks run on small sizes, and the floors do the work that fedsim does. Nothing here asks how fast it is."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import contest
import fair_rules
import floors
import gpu
import interval_coverage
import long_run
import pacing
import plan
import rules
import startup
import watching
import who_pays
import works
import worlds
from fedsim.config.run import RunConfig
from fedsim.runs.build import prepare
from fedsim.runs.simulate import simulate
from synthetic_runs import evals_table, jobs_table
from synthetic_studies import write_study

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
CLIENTS = 6
Capture = pytest.CaptureFixture[str]


def whole(model: dict[str, Any]) -> RunConfig:
    """Return a round in which every client takes one step on all of its samples: chance has no part in it."""
    work = replace(
        works.WORKS["W2"], clients=CLIENTS, per_round=CLIENTS, model=model, batch_size=10_000, lr=0.05
    )
    return works.configured(work, rounds=1)


def partition(config: RunConfig, path: Path) -> contest.Partition:
    works.write_partition(prepare(config), path)
    return contest.Partition.read(path)


def run(script: str, *given: str) -> str:
    """Run a benchmark as users do, and return what it prints."""
    argv = [sys.executable, str(BENCHMARKS / script), *given]
    done = subprocess.run(argv, capture_output=True, text=True, env=works.environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed(
    main: Callable[[], None], given: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> list[list[str]]:
    """Run a benchmark in this process, and return the rows of its table, the first two of which are its head."""
    monkeypatch.setattr(sys, "argv", ["benchmark", *given.split()])
    main()
    return [cells(line) for line in capsys.readouterr().out.splitlines() if line.startswith("|")]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.mark.parametrize("model", [{"name": "softmax"}, {"name": "mlp", "hidden": [7, 5]}])
def test_the_floor_trains_as_fedsim_does(model: dict[str, Any], tmp_path: Path) -> None:
    config = whole(model)
    floor = floors.Loop(partition(config, tmp_path / "work.npz"))
    floor.round(list(range(CLIENTS)))
    result = simulate(config, out=tmp_path, workers=0)[0]
    expected = load_file(result.folder / "model.safetensors")["params"]
    assert np.abs(expected - floor.bench.work.initial).max() > 1e-3
    np.testing.assert_allclose(floor.params.numpy(), expected, rtol=0, atol=1e-6)


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    path = tmp_path / "work.npz"
    work = partition(whole({"name": "softmax"}), path)
    one = floors.Loop(work)
    for _ in range(4):
        one.round(list(range(CLIENTS)))
    two = json.loads(run("floors.py", str(path), "p2", "--rounds", "3").splitlines()[-1])
    assert two["accuracy"] == pytest.approx(one.correct() / len(work.test_y), abs=0.01)
    assert min(two["first_s"], two["round_s"], two["evaluate_s"]) > 0


def test_images_are_counted_by_the_same_network(tmp_path: Path) -> None:
    """The convolutions of the bare model are fedsim's: equal start parameters give equal predictions."""
    work = replace(
        works.WORKS["W3"],
        clients=4,
        per_round=2,
        task={"name": "digits"},
        model={"name": "cnn", "channels": [3], "kernel": 3, "padding": "valid", "hidden": [9]},
    )
    setup = prepare(works.configured(work))
    works.write_partition(setup, tmp_path / "work.npz")
    found = contest.Partition.read(tmp_path / "work.npz")
    model = contest.build_model(found)
    x = contest.torch.from_numpy(found.test_x)
    expected = setup.network.load(setup.initial())(x)
    np.testing.assert_allclose(model(x).detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    assert contest.test_accuracy(model, found) == np.mean(expected.argmax(1).numpy() == found.test_y)


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    found = partition(whole({"name": "softmax"}), tmp_path / "work.npz")
    spec = replace(found.spec, model_options={"hidden": [3]})
    with pytest.raises(ValueError, match="has 223 parameters here, and 610 in the file"):
        contest.build_model(replace(found, spec=spec))


@pytest.mark.parametrize("name", works.WORKS)
@pytest.mark.parametrize("quick", [False, True])
def test_works_have_the_sizes_of_their_names(name: str, quick: bool) -> None:
    config = works.configured(works.WORKS[name], rounds=3, every=1, quick=quick)
    clients = {"W1": 100, "W2": 1000, "W3": 100, "W4": 10_000}[name]
    assert config.pacing.clients < config.task.clients <= clients
    if not quick:
        assert (config.task.clients, config.pacing.clients) == (clients, clients // 10)
    assert (config.stop.steps, config.evaluate.every_steps) == (3, 1)


def test_a_table_says_who_did_not_make_it(capsys: Capture) -> None:
    assert works.compete("p2", [sys.executable, "-c", "raise SystemExit('no such thing')"], 1, 60) is None
    assert "p2 failed (1):\nno such thing" in capsys.readouterr().err
    done = {"round_s": 0.5, "evaluate_s": math.nan, "first_s": 2.0, "accuracy": 0.25}
    half = done | {"round_s": 0.25}
    rows = works.rows("W1", {"p2": [done, done], "inline": [half, None], "flgo": [None, None]})
    assert [row[2:] for row in rows] == [
        ["0.5000 s", "0.50", "-"],
        ["-", "-", "-"],
        ["2.0 s", "2.0 s", "-"],
        ["0.250", "0.250", "-"],
    ]


def test_works_compares_contestants(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    given = "--works W4 --quick --only p2 inline --rule fedfv --set algorithm.alpha=0.2"
    head, _, *rows = printed(works.main, given, monkeypatch, capsys)
    assert head[2:] == ["p2", "fedsim inline"]
    names = ["round", "evaluation", "start-up and first round", "accuracy after the last round"]
    assert [row[1] for row in rows] == names
    assert float(rows[0][2].removesuffix(" s")) > 0
    assert math.isfinite(
        float(rows[0][3])
    )  # a difference between runs: of so short ones it may be below zero
    assert all(0 < float(cell) <= 1 for cell in rows[3][2:])


def test_start_up_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    *_, row = printed(startup.main, "--quick --works W4 --only p2", monkeypatch, capsys)
    assert row[:2] == ["W4", "p2"]
    assert 0 < float(row[3]) == float(row[2])


def test_memory_is_measured() -> None:
    row = cells(run("memory.py", "--quick").splitlines()[-1])
    assert row[0] == "100"
    assert 0.5 < float(row[4]) < 2


def test_planning_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    given = "--clients 30 --days 1 --concurrency 10 --buffer 5"
    *_, row = printed(plan.main, given, monkeypatch, capsys)
    assert row[:2] == ["30", "1"]
    assert min(int(row[2]), int(row[3])) > 0


def test_worlds_are_measured(capsys: Capture) -> None:
    worlds.measure(40, 1, 3)
    said = capsys.readouterr().out
    assert len(re.findall(r"outcomes +[0-9.]+ us  of [0-9]+ jobs", said)) == 6


def test_watchers_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    _, _, *rows = printed(watching.main, "--repeat 1 --set stop.steps=2", monkeypatch, capsys)
    assert [row[0] for row in rows] == ["`--live`", "`--tensorboard`"]
    assert all(0 < float(row[1]) < 100 for row in rows)


def test_pacings_are_compared(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    *_, rounds, buffered = printed(pacing.main, "--quick --work W2", monkeypatch, capsys)
    assert rounds[2] == "1.00"
    assert float(buffered[1]) > 0


def test_fair_rules_are_compared(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    *_, fedavg, fedprox, ditto, scaffold, feddyn, fedfv, _, fedlf, some = printed(
        fair_rules.main, "--quick --work W2", monkeypatch, capsys
    )
    assert fedavg[2] == "1.00"
    names = ["fedavg, clients fedprox", "fedavg, clients ditto", "scaffold", "feddyn", "fedfv"]
    assert [row[0] for row in (fedprox, ditto, scaffold, feddyn, fedfv)] == names
    assert [row[0] for row in (fedlf, some)] == ["fedlf", "fedlf, losses on 100 samples"]
    assert all(float(row[1]) > 0 for row in (fedavg, fedprox, ditto, scaffold, feddyn, fedfv, fedlf, some))


def test_coverage_is_the_share_of_intervals_that_hold_the_truth(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Of Student's interval for normal data 95 %; intervals from minus one to one hold a normal number in 68 %."""
    assert interval_coverage.coverage(interval_coverage.student, 5, 400) == pytest.approx(0.95, abs=0.04)

    def unit(generator: np.random.Generator, n: int) -> tuple[tuple[float, float], float]:
        return (-1.0, 1.0), generator.standard_normal()

    assert interval_coverage.coverage(unit, 3, 1000) == pytest.approx(0.683, abs=0.05)
    assert math.isnan(interval_coverage.coverage(lambda generator, n: (None, 0.0), 3, 10))
    _, _, *rows = printed(interval_coverage.main, "--replicates 2", monkeypatch, capsys)
    assert [row[0] for row in rows] == list(interval_coverage.LAWS)


def lost_by_label(clients: int = 12) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[float]]:
    """Return lost shares of clients, whether they hold labels, and the mean share of others with the same, by hand."""
    given = np.random.default_rng(4)
    held = np.array([given.permutation([True, True, False, False, False]) for _ in range(clients)])
    lost = given.integers(0, 11, clients) / 10
    lost[3] = np.nan
    rows = [
        [lost[j] for j in range(clients) if j not in (i, 3) and (held[i] & held[j]).any()]
        for i in range(clients)
    ]
    return lost, held, [float(np.mean(row)) for row in rows]


def test_effects_of_own_and_of_others_losses_are_told_apart() -> None:
    """Of 10 points of jobs, the own cost 3 points of accuracy and those of others with the same label 7."""
    lost, held, expected = lost_by_label()
    others = who_pays.others_share(lost, held)
    np.testing.assert_allclose(others, expected, rtol=1e-12)
    change = 2 - 30 * lost - 70 * others
    assert who_pays.fitted(change, lost, others) == pytest.approx({"own": -3, "shared": -7, "explained": 100})
    noise = np.random.default_rng(2).normal(0, 9, 12)
    fit = who_pays.fitted(noise, lost, others)
    rest = (noise - 10 * (fit["own"] * lost + fit["shared"] * others))[~np.isnan(lost)]
    assert fit["explained"] == pytest.approx(100 * (1 - rest.var() / noise[~np.isnan(lost)].var()))
    alone = who_pays.others_share(lost, np.eye(12, dtype=bool))
    assert np.isnan(alone).all()
    assert math.isnan(who_pays.fitted(noise, np.full(12, 0.3), others)["own"])
    least, middle, most = (who_pays.thirds(change, lost)[f"{name}_lost"] for name in who_pays.THIRDS)
    parts = np.array_split(np.sort(lost[~np.isnan(lost)]), 3)
    assert (least, middle, most) == pytest.approx([100 * part.mean() for part in parts])


def test_who_pays_for_dropout_is_read_from_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Accuracies fall by half of the lost share; losses in the computation and unfinished jobs do not count."""
    lost, held, _ = lost_by_label()
    counted = np.nan_to_num(10 * lost).astype(np.int64)

    def made(levels: dict[str, str], seed: int) -> dict[str, Any]:
        some = levels["rate"] == "some"
        client, number = np.repeat(np.arange(12), 12), np.tile(np.arange(12), 12)
        early = (number == 10) | (client == 3)
        status = np.where(early | (some & (number < counted[client])), "lost", "aggregated")
        status = np.where(number == 11, "unfinished", status)
        compute = np.where(early, -1, 1)
        jobs = {"client": client, "status": status, "compute_us": compute}
        after = np.full(12, 0.9) - some * np.nan_to_num(lost) / 2
        return {
            "jobs": jobs_table(dispatch_us=np.zeros(144), end_us=np.ones(144), **jobs),
            "evals": evals_table([after / 2, after]),
        }

    axes = {"rate": ("none", "some"), "phase": ("upload",), "rule": ("fair",)}
    study = write_study(tmp_path / "s", made, axes=axes, seeds=(1, 2, 3))
    monkeypatch.setattr(who_pays, "label_counts", lambda run: held * 10)
    assert np.nanmax(np.abs(who_pays.lost_share(study.run(study.cells[3]), 12) - lost)) < 1e-12
    given = f"{tmp_path / 's'} --figure {tmp_path}"
    head, _, own, shared, *_ = printed(who_pays.main, given, monkeypatch, capsys)
    assert own[:3] == ["some", "fair", "own"]
    assert own[4] == "-5.00 [-5.00, -5.00]"
    assert abs(float(shared[4].split()[0])) < 1e-9
    assert head[5:] == ["p", "p Holm"]
    assert own[5] == "0.250"
    assert who_pays.measured(study, 2).own.tolist() == pytest.approx([-3.75] * 3)
    assert "some, others, same label: " in (tmp_path / "who-pays.svg").read_text()


def test_rules_of_columns_are_measured(capsys: Capture) -> None:
    rules.columns_table(rules.Clock(0.0), [("0.2M", 30)])
    _, _, *rows = [cells(line) for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [row[:3] for row in rows] == [["0.2M", "30", rule] for rule in rules.OF_COLUMNS]
    for *_, taken, held in rows:
        assert int(taken) < int(held) == 23
    block = bytearray()
    assert rules.peak_of(lambda: block.extend(b"1" * 2**26)) >= 2**26


def test_both_ends_of_a_long_run_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    changes = ["task={name='digits', clients=40}", "pacing={preset='fedbuff', concurrency=10, buffer=5}"]
    changes += [
        "stop={steps=8}",
        "world.horizon=1d",
        "model.hidden=[8]",
        "memory.slots=20",
        "evaluate.clients=5",
    ]
    argv = ["long_run.py", "--ends", "3", "--after", "2", *(f"--set={text}" for text in changes)]
    monkeypatch.setattr(sys, "argv", argv)
    long_run.main()
    row = cells(next(line for line in reversed(capsys.readouterr().out.splitlines()) if line.startswith("|")))
    assert row[0] == "8"
    assert float(row[3]) > 0
    assert float(row[6]) > 0


def test_training_and_the_server_are_measured_where_one_says(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    small = gpu.Work("mlp", {"hidden": [4]}, (1, 4, 4), 3, 8, gpu.LocalSGD(batch_size=4))
    monkeypatch.setattr(gpu, "WORKS", {"small": small})
    monkeypatch.setitem(gpu.MODELS, "1.2M", [30, 20])
    given = "--quick --device cpu --seconds 0"
    _, _, *rows = printed(gpu.main, given, monkeypatch, capsys)
    assert [row[:2] for row in rows[:3]] == [["small", mode] for mode in ("loop", "vmap", "dense")]
    assert all(float(row[2].replace(",", "")) > 0 for row in rows[:3])
    assert [row[0] for row in rows[-2:]] == ["float32", "bfloat16"]
    assert all(min(map(float, row[2:])) >= 0 and float(row[3]) > 0 for row in rows[-2:])


def test_a_gpu_that_is_not_there_is_said_not_to_be(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        printed(gpu.main, "", monkeypatch, capsys)
    assert "torch sees no GPU here" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not works.PEERS_PYTHON.is_file(), reason="no environment of the peers")
@pytest.mark.parametrize("peer", works.PEERS)
def test_a_peer_trains_the_same_work(peer: str, tmp_path: Path) -> None:
    path = tmp_path / "work.npz"
    partition(works.configured(works.WORKS["W2"], quick=True), path)
    given = Namespace(peers_python=works.PEERS_PYTHON, rule="fedavg")
    found = works.compete(peer, works.command(peer, "W2", path, given), 2, 250)
    assert found is not None
    assert found["first_s"] > found["round_s"] > 0
    assert 0 < found["accuracy"] < 1

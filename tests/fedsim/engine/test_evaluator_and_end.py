"""When a run evaluates, whom, and what ends it: whole runs of a small configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim import analysis
from fedsim.common.errors import ConfigError
from fedsim.common.stopwatch import Stopwatch
from fedsim.common.units import US
from fedsim.engine.evaluator import Evaluator
from fedsim.engine.pacing import sync
from fedsim.engine.state import Evaluate, RunState, Stop
from fedsim.execution.actor_pool import RayPool
from fedsim.execution.null_trainer import NullTrainer
from fedsim.invariants import check
from fedsim.training.evaluation import Evaluation
from fedsim.worlds.trace import Trace
from small import run, small
from timelines import Book, plan_of

FEDBUFF = {"preset": "fedbuff", "concurrency": 5, "buffer": 2}
ASKING = {"name": "power_of_choice", "losses": "asked", "d": 6}


def done(out: Path, **changes: Any) -> analysis.Run:
    return analysis.open_run(run(small(**changes), out).folder)


def evaluated(found: analysis.Run) -> list[tuple[int, int, list[int]]]:
    """Return the step, the time and the clients of each evaluation."""
    return [(e.step, e.time_us, e.client.tolist()) for e in found.evaluations()]


def ended_by(found: analysis.Run) -> str:
    return str(found.manifest["ended_by"])


# Evaluation


@pytest.mark.parametrize("steps", [6, 7])
def test_a_part_of_the_clients_is_evaluated_and_all_of_them_at_the_end(tmp_path: Path, steps: int) -> None:
    """Also if the last step asks for an evaluation by itself."""
    found = done(tmp_path, evaluate={"every_steps": 3, "clients": 5}, stop={"steps": steps})
    *before, last = evaluated(found)
    assert [step for step, _, _ in before] == ([0, 3] if steps == 6 else [0, 3, 6])
    assert len({tuple(clients) for _, _, clients in before}) == 1, "they are drawn once"
    assert len(before[0][2]) == 5
    assert last == (steps, found.manifest["virtual_us"], list(range(12)))
    assert len(found.evals) == 5 * len(before) + 12


def test_a_split_that_nobody_has_samples_of_is_refused(tmp_path: Path) -> None:
    task = {"name": "digits", "clients": 12, "fractions": [0.8, 0.0, 0.2]}
    with pytest.raises(
        ConfigError, match=r"evaluate\.split: no client has samples of 'valid': give it a share in task"
    ):
        done(tmp_path, task=task, evaluate={"split": "valid"})


def test_a_part_is_drawn_by_the_seed_and_is_everybody_if_it_is_large_enough(tmp_path: Path) -> None:
    evaluate = {"every_steps": 0, "clients": 6}
    drawn = [
        evaluated(done(tmp_path / str(seed), seed=seed, evaluate=evaluate, stop={"steps": 1}))[0][2]
        for seed in (3, 4, 5)
    ]
    assert len({tuple(clients) for clients in drawn}) > 1
    whole, all_of_them = (
        done(tmp_path / name, evaluate=how, stop={"steps": 2})
        for name, how in (("whole", {"every_steps": 1}), ("all", {"every_steps": 1, "clients": 12}))
    )
    assert whole.manifest["digest"] == all_of_them.manifest["digest"]


def test_evaluating_a_part_changes_nothing_but_what_is_seen(tmp_path: Path) -> None:
    whole = done(tmp_path / "a", evaluate={"every_steps": 2})
    part = done(tmp_path / "b", evaluate={"every_steps": 2, "clients": 4})
    for table in ("jobs", "steps"):
        assert part.frame(table).equals(whole.frame(table))
    ours, theirs = part.frame("evals"), whole.frame("evals")
    merged = ours.merge(theirs, on=["step", "client"], suffixes=("", "_whole"))
    assert len(merged) == len(ours)
    assert (merged.correct == merged.correct_whole).all()
    # A batch of other size may round the scores of a sample differently, which depends on the processor.
    np.testing.assert_allclose(merged.loss, merged.loss_whole, rtol=1e-6)


@pytest.mark.parametrize("clients", [None, 5])
def test_evaluation_by_time_sees_the_model_of_that_instant(tmp_path: Path, clients: int | None) -> None:
    every = {"every": "20s", "every_steps": 0} | ({"clients": clients} if clients else {})
    found = done(tmp_path, pacing=FEDBUFF, evaluate=every, stop={"steps": 25})
    step_us = found.steps["time_us"].to_numpy()
    *before, last = evaluated(found)
    assert len(before) > 3
    seen = -1
    for time_us in range(0, last[1], 20 * US):
        taken = int((step_us < time_us).sum())
        if taken > seen:
            step, at_us, who = before.pop(0)
            assert (step, at_us, len(who)) == (taken, time_us, clients or 12)
            seen = taken
    assert before == []
    assert last == (25, step_us[-1], list(range(12)))


def test_steps_and_time_may_both_ask(tmp_path: Path) -> None:
    how = {"every": "20s", "every_steps": 5, "clients": 5}
    found = done(tmp_path, pacing=FEDBUFF, evaluate=how, stop={"steps": 20})
    steps = [step for step, _, _ in evaluated(found)]
    assert {0, 5, 10, 15, 20} <= set(steps)
    assert len(steps) > 5
    assert len(set(steps)) == len(steps), "no model is evaluated twice but the last, on all clients"


def test_personal_models_of_a_part_are_evaluated_too(tmp_path: Path) -> None:
    found = done(
        tmp_path, client={"name": "ditto"}, evaluate={"every_steps": 3, "clients": 5}, stop={"steps": 6}
    )
    for split in ("test", "test_personal"):
        assert [len(e.client) for e in found.evaluations(split)] == [5, 5, 12]


# The end


@pytest.mark.parametrize("clients", [None, 5])
def test_a_target_ends_a_run_at_the_evaluation_that_reaches_it(tmp_path: Path, clients: int | None) -> None:
    evaluate = {"every_steps": 2} | ({"clients": clients} if clients else {})
    found = done(
        tmp_path, evaluate=evaluate, stop={"steps": 300, "target": 40.0}, algorithm={"name": "fedavg"}
    )
    assert ended_by(found) == "target"
    steps = found.manifest["steps"]
    assert 0 < steps < 300
    assert steps % 2 == 0
    watched = found.history(metrics=["mean_percent"])
    assert (watched.mean_percent[:-1] < 40).all()
    if clients is None:
        assert watched.mean_percent.iloc[-1] >= 40
    else:
        assert watched.clients.tolist() == [5] * (len(watched) - 1) + [12]


@pytest.mark.parametrize("stop", [{"target": 40.0}, {"patience": 2}])
def test_an_evaluation_by_time_ends_a_run_at_its_own_time(tmp_path: Path, stop: dict[str, Any]) -> None:
    given = {
        "pacing": FEDBUFF,
        "evaluate": {"every": "20s", "every_steps": 0},
        "algorithm": {"name": "fedavg"},
    }
    found = done(tmp_path / "a", **given, stop={"steps": 300, "metric": "mean_percent", **stop})
    end_us, cause = found.manifest["virtual_us"], next(iter(stop))
    assert ended_by(found) == cause
    assert end_us % (20 * US) == 0
    assert [time_us for _, time_us, _ in evaluated(found)][-1] == end_us
    assert (found.steps["time_us"].to_numpy() < end_us).all()
    assert (found.jobs["dispatch_us"].to_numpy() < end_us).all()
    assert not list(check(found.folder).violations)
    longer = {"steps": 300, "metric": "mean_percent", "time": f"{end_us + 1}us", **stop}
    again = done(tmp_path / "b", **given, stop=longer)
    assert (ended_by(again), again.manifest["virtual_us"]) == (cause, end_us)
    assert again.manifest["digest"] == found.manifest["digest"]


def test_a_target_may_be_reached_from_above(tmp_path: Path) -> None:
    stop = {"steps": 300, "metric": "gini", "target": 0.4, "rising": False}
    found = done(tmp_path, evaluate={"every_steps": 1}, stop=stop, algorithm={"name": "fedavg"})
    gini = found.history(metrics=["gini"]).gini
    assert ended_by(found) == "target"
    assert gini.iloc[-1] <= 0.4
    assert (gini[:-1] > 0.4).all()


def test_patience_counts_evaluations_without_an_improvement(tmp_path: Path) -> None:
    never = {"steps": 300, "patience": 3, "least": 1000.0}
    found = done(tmp_path / "a", evaluate={"every_steps": 2}, stop=never)
    assert (ended_by(found), found.manifest["steps"]) == ("patience", 6)
    plain = done(tmp_path / "b", evaluate={"every_steps": 1}, stop={"steps": 300, "patience": 3})
    seen = plain.history(metrics=["mean_percent"]).mean_percent.tolist()
    assert ended_by(plain) == "patience"
    assert max(seen[:-3]) >= max(seen[-3:])
    for end in range(4, len(seen)):
        assert max(seen[: end - 3]) < max(seen[end - 3 : end]), "it would have ended before"


def training_loss(found: analysis.Run) -> list[float]:
    """Return the mean training loss over samples at each evaluation."""
    rows = found.frame("evals").query("split == 'train'")
    summed = (rows.loss * rows.n).groupby(rows.step).sum()
    return (summed / rows.n.groupby(rows.step).sum()).tolist()


def test_a_run_ends_when_its_training_loss_stalls(tmp_path: Path) -> None:
    stop = {"steps": 300, "metric": "loss", "split": "train", "patience": 3, "least": 0.05}
    train = {"epochs": 1, "batch_size": 10, "lr": 0.5}
    found = done(tmp_path / "a", train=train, evaluate={"every_steps": 1, "also": ["train"]}, stop=stop)
    losses = training_loss(found)
    assert (ended_by(found), len(losses)) == ("patience", found.manifest["steps"] + 1)
    best, unimproved = losses[0], 0
    for loss in losses[1:]:
        assert unimproved < 3, "it would have ended before"
        best, unimproved = (loss, 0) if best - loss > 0.05 else (best, unimproved + 1)
    assert unimproved == 3
    assert losses[0] - min(losses) > 0.05
    assert [v.invariant for v in check(found.folder).violations] == []


def test_further_splits_change_no_other_record(tmp_path: Path) -> None:
    plain = done(tmp_path / "a", evaluate={"every_steps": 2}, stop={"steps": 4})
    more = done(tmp_path / "b", evaluate={"every_steps": 2, "also": ["train", "valid"]}, stop={"steps": 4})
    for split, steps in (("test", [0, 2, 4]), ("train", [0, 2, 4]), ("valid", [0, 2, 4])):
        assert [e.step for e in more.evaluations(split)] == steps
    of_test = more.frame("evals").query("split == 'test'").reset_index(drop=True)
    assert plain.frame("evals").astype({"split": str}).equals(of_test.astype({"split": str}))
    assert plain.frame("jobs").equals(more.frame("jobs"))
    assert more.manifest["accuracy"] == plain.manifest["accuracy"] == more.final().accuracy.mean()


def test_a_finished_run_has_the_accuracy_of_its_own_split(tmp_path: Path) -> None:
    config = small(evaluate={"also": ["train"]}, stop={"steps": 3})
    first = fedsim.simulate(config, out=tmp_path, workers=0)[0]
    again = fedsim.simulate(config, out=tmp_path, workers=0, resume=True)[0]
    assert again.accuracy == first.accuracy


def test_a_metric_on_a_split_that_is_not_evaluated_is_refused() -> None:
    stop = {"steps": 3, "metric": "loss", "split": "train", "patience": 2}
    with pytest.raises(ConfigError, match="evaluated on 'test', not on 'train': add it to evaluate"):
        small(stop=stop)


@pytest.mark.parametrize("also", [["test"], ["train", "train"]])
def test_further_splits_are_others_each_once(also: list[str]) -> None:
    with pytest.raises(ConfigError, match="also: expected splits other than 'test', each once"):
        small(evaluate={"also": also})


def test_patience_ends_a_run_whose_metric_is_never_a_number(tmp_path: Path) -> None:
    none = tmp_path / "nothing.py"
    none.write_text("def nothing(accuracy, n):\n    return float('nan')\n")
    stop = {"steps": 30, "patience": 3, "metric": f"{none}:nothing"}
    found = done(tmp_path, evaluate={"every_steps": 1}, stop=stop)
    assert (ended_by(found), found.manifest["steps"]) == ("patience", 2)


def test_bytes_end_a_run_with_the_step_that_moves_them(tmp_path: Path) -> None:
    found = done(tmp_path, stop={"bytes": "150 MB"})
    jobs = found.frame("jobs")
    assert ended_by(found) == "bytes"
    settled = jobs[jobs.status != "unfinished"]
    moved = settled.download_bytes + settled.upload_bytes
    assert moved.sum() >= 150e6
    at_the_last = settled.step == found.manifest["steps"] - 1
    assert moved[~at_the_last].sum() < 150e6


def test_wall_time_ends_a_run(tmp_path: Path) -> None:
    found = done(tmp_path, stop={"steps": 10**6, "wall": "400 ms"})
    assert ended_by(found) == "wall"
    assert found.manifest["status"] == "done"
    assert 0 < found.manifest["steps"] < 10**6
    assert found.manifest["wall_s"]["total"] >= 0.4


def test_virtual_time_and_the_end_of_the_world_end_a_run(tmp_path: Path) -> None:
    found = done(tmp_path / "a", stop={"time": "3min"})
    assert (ended_by(found), found.manifest["virtual_us"]) == ("time", 180 * US)
    path = tmp_path / "short.parquet"
    rows = [[*range(12)] * 2, [0] * 24, [100 * US] * 24, ["online"] * 12 + ["compute"] * 12, [0.01] * 24]
    Trace.of(*rows, clients=12, horizon_us=100 * US, after_end="stop").write(path)
    found = done(tmp_path / "b", world={"trace": str(path)}, stop={"steps": 10**4})
    assert ended_by(found) == "world"
    assert found.manifest["virtual_us"] <= 100 * US


def test_the_first_reason_counts(tmp_path: Path) -> None:
    both = {"steps": 4, "target": 0.0, "patience": 1, "least": 1000.0, "bytes": "900 GB", "time": "300d"}
    found = done(tmp_path, evaluate={"every_steps": 1}, stop=both)
    assert (ended_by(found), found.manifest["steps"]) == ("target", 0)


# In actors


@pytest.mark.ray
def test_actors_evaluate_a_part_and_answer_for_losses_as_one_process_does(
    tmp_path: Path, two_workers: RayPool
) -> None:
    changes = {
        "selection": ASKING,
        "evaluate": {"every_steps": 3, "every": "20s", "clients": 5},
        "stop": {"steps": 10, "target": 99.0},
    }
    for name, pacing in (("sync", {"preset": "sync", "clients": 4}), ("fedbuff", FEDBUFF)):
        config = small(pacing=pacing, **changes)
        inline = run(config, tmp_path / f"inline-{name}")
        actors = run(config, tmp_path / f"ray-{name}", workers=two_workers)
        assert actors.digest == inline.digest
        assert [len(who) for _, _, who in evaluated(analysis.open_run(actors.folder))][-1] == 12


def after(percents: Sequence[int], stop: Stop) -> RunState:
    """Return where a run stands after evaluations, two clients each."""
    run_state = RunState(2)
    evaluator = Evaluator(plan_of(sync(1), 2, stop), NullTrainer(), Book(run_state), run_state, Stopwatch())
    for percent in percents:
        evaluator._watch(Evaluation(np.arange(2), np.full(2, 100), np.full(2, percent), np.zeros(2)))
    return run_state


def test_a_target_that_was_reached_stays_reached() -> None:
    """Time may ask for an evaluation just before a step after which the model is worse again."""
    assert after((60, 10), Stop(steps=9, metric="mean_percent", target=50.0)).reached


def test_a_patience_that_is_at_its_end_stays_so() -> None:
    """And just before a step after which it is better; an instant may have several steps, too."""
    assert after((60, 60, 60, 70), Stop(steps=9, metric="mean_percent", patience=2)).unimproved == 2
    assert after((60, 60, 70, 70), Stop(steps=9, metric="mean_percent", patience=2)).unimproved == 1


def test_a_long_time_in_which_nothing_happens_costs_nothing() -> None:
    run_state = RunState(1)
    plan = plan_of(sync(1), 1, Stop(steps=1), evaluate=Evaluate(every_steps=0, every_us=7))
    evaluator = Evaluator(plan, NullTrainer(), Book(run_state), run_state, Stopwatch())
    evaluator.until(7)
    assert (run_state.evaluated, run_state.evaluate_us) == (-1, 7)
    evaluator.until(10**15)
    assert (run_state.evaluated, run_state.now_us) == (0, 7)
    assert run_state.evaluate_us == -(-(10**15) // 7) * 7

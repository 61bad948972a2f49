"""A plan foretells a run: the same steps, jobs and staleness, without training anything."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tomli_w
from rich.console import Console

from fedsim import analysis
from fedsim.analysis.report.report import run_document
from fedsim.cli.main import main
from fedsim.common.errors import ConfigError, RunError, UnusedWorld
from fedsim.common.units import US
from fedsim.config.run import RunConfig
from fedsim.execution.inline_trainer import InlineTrainer
from fedsim.plugins.kinds import shipped
from fedsim.records.schemas import JOBS, STEPS
from fedsim.runs.build import prepare
from fedsim.runs.inputs import InputCache
from fedsim.runs.plan import time_estimate as trials
from fedsim.runs.plan.plan import PlannedRun, plan, plan_run, table
from fedsim.runs.simulate import simulate
from fedsim.server.rule import Stack
from fedsim.server.server import Server
from fedsim.training.job import Cohort
from fedsim.training.minibatches import Steps
from fedsim.training.workbench import Workbench
from fedsim.worlds.trace import Trace
from small import run, small

LEARNED = {"loss_before", "loss_train"}
"""Columns of jobs that only training can fill."""
TIMED = ["step", "time_us", "cause", "updates", "lost", "late", "nonfinite", "waits", "online", "in_flight"]
TIMED += ["mean_staleness"]

KINDS: dict[str, dict[str, Any]] = {
    "sync": {},
    "history": {
        "pacing": {"preset": "deadline", "clients": 5, "deadline": "90s", "late": "history", "minimum": 2},
        "dropout": {"partial": True, "leave": "pause_resume"},
        "train": {"batch_size": 20, "epochs": 2},
    },
    "fedbuff": {"pacing": {"preset": "fedbuff", "concurrency": 6, "buffer": 3, "max_staleness": 1}},
    "fedasync": {
        "pacing": {"preset": "fedasync", "concurrency": 4},
        "dropout": {"chance": 0.3, "retries": 2, "notice": "15s"},
        "cost": {"payload": "5 MB", "compute_scale": 10, "jitter": {"compute": 0.5}},
        "stop": {"steps": 20, "time": "20min"},
    },
    "long": {"pacing": {"preset": "fedbuff", "concurrency": 4, "buffer": 2}, "stop": {"time": "10min"}},
    "little": {"stop": {"bytes": "150 MB"}, "evaluate": {"every_steps": 1, "clients": 3}},
    "completeness": {
        "train": {"batch_size": 20, "epochs": 3},
        "cost": {"payload": "5 MB", "completeness": {"mode": "epochs", "low": 1, "high": 3}},
        "client": {"name": "fedprox"},
    },
}


Pair = tuple[PlannedRun, analysis.Run, Path]
CACHE = InputCache()


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One trial of each part is enough here: the prediction of wall time is not what is tested."""
    monkeypatch.setattr("fedsim.runs.plan.time_estimate._MEASURED_S", 0.0)
    monkeypatch.setattr("fedsim.runs.plan.time_estimate._OFTEN", 1)


@pytest.fixture(autouse=True)
def _quick_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


def pair(kind: str, tmp_path: Path, **changes: Any) -> Pair:
    """Return the plan of a small run, the run, and the folder of the plan's tables."""
    config: RunConfig = small(**KINDS[kind] | changes)
    found = plan_run(config, workers=0, out=tmp_path / "plan")
    return found, analysis.open_run(run(config, tmp_path / "run").folder), tmp_path / "plan" / "small"


same_process = pytest.mark.xdist_group("plans")  # each is made once, for three tests


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A plan of each kind, its run, and the folder of the plan's tables."""
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        yield pair(request.param, tmp_path_factory.mktemp("pair"))


@same_process
def test_the_timeline_of_a_plan_is_that_of_the_run(both: Pair) -> None:
    found, done, folder = both
    assert found.exact == ""
    jobs, steps = (pq.read_table(folder / f"{name}.parquet") for name in ("jobs", "steps"))
    timed = [name for name in JOBS.names if name not in LEARNED]
    assert jobs.select(timed).to_pandas().equals(done.jobs.select(timed).to_pandas())
    assert steps.select(TIMED).to_pandas().equals(done.steps.select(TIMED).to_pandas())
    assert jobs.schema.equals(JOBS)
    assert steps.schema.equals(STEPS)
    manifest = done.manifest
    assert (found.steps, found.ended_by, found.virtual_us) == tuple(
        manifest[key] for key in ("steps", "ended_by", "virtual_us")
    )
    assert (found.jobs, found.waits) == (manifest["jobs"], manifest["waits"])
    assert found.memory_bytes == manifest["memory"]["predicted_bytes"]


@same_process
def test_what_a_plan_counts_is_what_the_run_recorded(both: Pair) -> None:
    found, done, _ = both
    jobs, steps, evals = (done.frame(name) for name in ("jobs", "steps", "evals"))
    used = jobs[jobs.status == "aggregated"]
    assert found.staleness.tolist() == used.staleness.tolist()
    assert found.step_us.tolist() == steps.time_us.tolist()
    assert found.moved_bytes == (jobs.download_bytes + jobs.upload_bytes).sum()
    assert (found.clients, found.chosen) == (12, jobs.client.nunique())
    assert found.evaluations == evals[["step", "time_us", "split"]].drop_duplicates().shape[0]
    arrived = jobs[jobs.status.isin(["aggregated", "remembered", "stale", "void", "nonfinite"])]
    least = np.bincount(arrived.client, minlength=12)
    waiting = np.bincount(jobs[jobs.status == "unfinished"].client, minlength=12)
    assert (found.received >= least).all()
    assert (found.received <= least + waiting).all()


@same_process
def test_passes_are_those_of_the_jobs_that_reported(both: Pair) -> None:
    found, done, _ = both
    jobs = done.frame("jobs")
    trained = jobs[jobs.loss_train.notna()]
    epochs = done.config["train"]["epochs"]
    assert found.passes == pytest.approx((trained.n_samples * trained.share).sum() * epochs)
    assert found.passes > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "fedlf"}},
        {"algorithm": {"name": "fedfv", "tau": 2}},
        {"algorithm": {"name": "fedlf", "memory": "3min"}},
        {"algorithm": {"name": "fedlf"}, "memory": {"slots": 4}},
        {"algorithm": {"name": "fedavg"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["sync", "fedbuff", "history"])
def test_a_plan_knows_how_much_the_server_remembers(
    kind: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "history" and changes["algorithm"]["name"] == "fedavg":
        return  # late updates refresh a memory, and it has none
    seen: list[int] = []
    weigh = Server._weigh

    def noting(server: Server, stack: Stack, rows: Any) -> Any:
        seen.append(stack.n - stack.m)
        return weigh(server, stack, rows)

    monkeypatch.setattr(Server, "_weigh", noting)
    config = small(**KINDS[kind] | changes)
    run(config, tmp_path)
    foretold: list[int] = []

    def told(setup: Any, passes: float, evaluations: int, remembered: Any, *rest: Any) -> float:
        foretold.extend(remembered.tolist())
        return 0.0

    monkeypatch.setattr("fedsim.runs.plan.plan.wall_s", told)
    plan_run(config, workers=0)
    if kind == "history":  # late rows count from their own step on, a little later than foretold
        assert np.abs(np.array(foretold) - seen).max() <= 2
    else:
        assert foretold == seen
    assert (max(seen) > 0) == (changes["algorithm"]["name"] != "fedavg")


@pytest.mark.parametrize("memory", [{"history": "host_bfloat16"}, {"budget": "4 KB", "host_budget": "1 MB"}])
def test_a_history_for_a_gpu_is_planned_without_one(memory: dict[str, Any]) -> None:
    config = small(memory=memory, algorithm={"name": "fedlf"}, model={"name": "mlp", "hidden": [2]})
    planned = plan_run(config, workers=0)
    assert planned.memory_bytes["history"] == prepare(config, "cuda").footprint(0).parts()["history"] > 0
    on_cpu = plan_run(config.model_copy(update={"memory": small().memory}), workers=0)
    assert planned.virtual_us == on_cpu.virtual_us


def test_actors_train_ahead_what_nobody_will_use() -> None:
    config = small(**KINDS["fedbuff"])
    used, ahead = (plan_run(config, workers=workers).passes for workers in (0, 2))
    assert ahead > used


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"selection": {"name": "power_of_choice"}}, "selector 'power_of_choice' looks at losses"),
        ({"selection": {"name": "tifl"}}, "selector 'tifl' looks at accuracy"),
        ({"stop": {"steps": 8, "target": 99.0}}, "may end earlier, when 'mean_percent' reaches its target"),
        (
            {"stop": {"steps": 8, "patience": 3, "metric": "jain"}},
            "may end earlier, when 'jain' reaches its target",
        ),
        ({"stop": {"steps": 8, "wall": "1h"}}, "may end earlier, by wall time"),
        ({"bad_updates": {"policy": "stop"}}, "may end earlier, by an update that [bad_updates] refuses"),
        ({"bad_updates": {"limit": 1.0}}, "may leave out updates that are longer than bad_updates.limit"),
        (
            {"adversary": {"name": "nan", "share": 0.5}},
            "may leave out updates that adversary 'nan' changes",
        ),
    ],
    ids=str,
)
def test_a_plan_says_why_it_might_be_wrong(changes: dict[str, Any], reason: str) -> None:
    found = plan_run(small(**changes), workers=0)
    assert reason in found.exact
    assert found.steps == 8
    assert f"approximate: {found.exact}" in dict(lines(found))["timeline"]


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        ({"selection": {"name": "oort"}}, False),
        ({"selection": {"name": "loss_based"}}, False),
        ({"selection": {"name": "quota", "group": "label"}}, True),
        ({"bad_updates": {"policy": "clip", "limit": 1.0}}, True),
        ({"adversary": {"name": "label_flip", "share": 0.5}}, True),
    ],
    ids=str,
)
def test_what_training_cannot_change_is_planned_exactly(changes: dict[str, Any], exact: bool) -> None:
    assert (plan_run(small(**changes), workers=0, cache=CACHE).exact == "") == exact


@pytest.mark.parametrize("rule", sorted(shipped("rule")))
def test_every_rule_is_planned(rule: str) -> None:
    client = rule if rule in ("scaffold", "feddyn") else "plain"
    config = small(algorithm={"name": rule}, client={"name": client}, train={"batch_size": "full"})
    assert plan_run(config, workers=0, cache=CACHE).steps == 8


def lines(found: PlannedRun) -> list[tuple[str, str]]:
    made = table(found)
    names, texts = ([str(cell) for cell in column.cells] for column in made.columns)
    return list(zip(names, texts, strict=True))


def printed(found: PlannedRun) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(table(found))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_the_table_tells_the_plan() -> None:
    found = plan_run(small(), workers=0)
    said = dict(lines(found))
    assert said["steps"].startswith("8 in 00:")
    assert said["steps"].endswith("ended by steps")
    total = sum(found.jobs.values())
    assert (
        f"{found.jobs['aggregated']} aggregated ({100 * found.jobs['aggregated'] / total:.1f} %)"
        in said["jobs"]
    )
    assert said["clients chosen"] == f"{found.chosen} of 12"
    assert said["samples"] == "1,437 train, 180 valid, 180 test"
    assert said["labels per client*"] == "2 | 2 | 2 of 10"
    assert said["timeline"] == "exactly that of the run"
    assert said["staleness*"] == "0 | 0 | 0 steps"
    assert "plan of small" in printed(found)
    assert found.wall_s > found.planned_s > 0


def test_samples_that_no_client_trains_on_are_counted() -> None:
    task = {"name": "digits", "clients": 12, "unseen": 3, "fractions": [0.8, 0.0, 0.2]}
    config = small(task=task)
    found, data = plan_run(config, workers=0), prepare(config).data
    assert found.samples == {
        "train": sum(len(data.train.rows(k)) for k in range(9)),
        "valid": 0,
        "test": sum(len(data.test.rows(k)) for k in range(9)),
        "other": len(data.unseen.train.indices) + len(data.unseen.test.indices) if data.unseen else 0,
    }
    assert sum(found.samples.values()) == len(data.y) == 1797
    assert "other" in dict(lines(found))["samples"]


def test_what_takes_long_is_tried_for_a_few_minibatches_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job takes 2 s for the loss of the received model and half a second a minibatch, a sample evaluated 0.1 s."""
    setup = prepare(small(train={"batch_size": 10, "epochs": 5}))
    sizes, sgd = setup.data.train.sizes, setup.bench.sgd
    now_s, minibatches = [0.0], [0]

    def train(self: Workbench, cohort: Cohort, *given: Any) -> None:
        steps = Steps.of(cohort, sizes[cohort.clients], sgd).total.sum()
        minibatches[0] += steps
        now_s[0] += 2.0 * len(cohort) * self.spec.losses + 0.5 * steps

    def evaluate(self: Workbench, params: Any, split: str, start: int, stop: int) -> None:
        now_s[0] += 0.1 * (stop - start)

    monkeypatch.setattr(Workbench, "train", train)
    monkeypatch.setattr(Workbench, "evaluate", evaluate)
    monkeypatch.setattr("fedsim.runs.plan.time_estimate.time.perf_counter", lambda: now_s[0])
    monkeypatch.setattr("fedsim.runs.plan.time_estimate._steps_s", lambda setup, remembered: np.zeros(1))
    passes, rows = 1000.0, len(setup.data.splits(None)[setup.plan.evaluate.split].indices)
    found = trials.wall_s(setup, passes, 3 * rows, np.zeros(1, dtype=np.int64), workers=0)
    each = 2.0 + 0.5 * 5 * -(-sizes // 10)
    assert found == pytest.approx(passes * each.sum() / (5 * sizes.sum()) + 3 * 0.1 * rows, rel=0.03)
    assert minibatches[0] == 1 + 4 + 4 + 12
    assert now_s[0] < 0.1 * rows + 40


def test_an_evaluation_of_some_clients_is_predicted_by_their_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def wall_s(setup: Any, passes: float, evaluated: int, *rest: Any) -> float:
        asked.append(evaluated)
        return 0.0

    monkeypatch.setattr("fedsim.runs.plan.plan.wall_s", wall_s)
    config = small(evaluate={"every_steps": 3, "clients": 3})
    plan_run(config, workers=0)
    evals = analysis.open_run(run(config, tmp_path).folder).frame("evals")
    assert evals.groupby("step")["client"].count().tolist() == [3, 3, 3, 12]
    assert asked == [evals["n"].sum()]


@pytest.mark.parametrize("most", ["all", 30])
def test_losses_that_a_selector_asks_for_count_as_evaluations(
    most: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first choice is that of the run; what follows depends on losses."""
    foretold, asked, losses = [], [], InlineTrainer.losses

    def told(setup: Any, passes: float, evaluated: int, *rest: Any) -> float:
        foretold.append(evaluated)
        return 0.0

    def noting(trainer: InlineTrainer, clients: Any, version: int) -> Any:
        sizes = setup.data.train.sizes[clients]
        asked.append((sizes if most == "all" else np.minimum(sizes, most)).sum())
        return losses(trainer, clients, version)

    monkeypatch.setattr("fedsim.runs.plan.plan.wall_s", told)
    monkeypatch.setattr(InlineTrainer, "losses", noting)
    train, selection = {"batch_size": 10, "loss_samples": most}, {"name": "power_of_choice", "d": 6}
    config = small(train=train, selection=selection, stop={"steps": 1})
    setup = prepare(config, cache=CACHE)
    plan_run(config, workers=0, cache=CACHE)
    evals = analysis.open_run(run(config, tmp_path).folder).frame("evals")
    assert len(asked) == 1
    assert foretold == [evals["n"].sum() + asked[0]]


def test_no_more_workers_train_than_jobs_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = prepare(small(pacing={"preset": "fedasync", "concurrency": 2}), cache=CACHE)
    monkeypatch.setattr(trials, "_pass_s", lambda setup, bench, start: 1.0)
    monkeypatch.setattr(trials, "_ready_s", lambda work: 0.0)
    monkeypatch.setattr(trials, "_seconds", lambda work: 0.0)
    monkeypatch.setattr(trials, "_steps_s", lambda setup, remembered: np.zeros(1))
    nothing = np.zeros(1, dtype=np.int64)
    found = [trials.wall_s(setup, 12.0, 0, nothing, workers) for workers in (0, 1, 2, 8)]
    assert found == [12.0, 12.0, 6.0, 6.0]


def test_a_plan_and_a_run_say_what_they_do_not_use_of_their_world(tmp_path: Path) -> None:
    start, end = np.zeros(7, dtype=np.int64), np.full(7, 10 * US)
    trace = Trace.of(
        np.arange(7),
        start,
        end,
        ["online"] * 7,
        np.ones(7),
        clients=7,
        horizon_us=10 * US,
        after_end="repeat",
    )
    trace.write(tmp_path / "w.parquet")
    tables = {
        "task": {"name": "synthetic", "clients": 5},
        "pacing": {"preset": "sync", "clients": 2},
        "stop": {"steps": 2},
    }
    (planned,) = plan(tables | {"world": {"trace": str(tmp_path / "w.parquet")}})
    first, none = planned.unused
    assert "takes the first 5 of its world's 7 clients; `fedsim trace edit --resample 5` draws them" in first
    assert "jobs take no time, because the world models no downlink, compute or uplink; [world.join]" in none
    with pytest.warns(UnusedWorld) as told:
        simulate(tables | {"world": {"trace": str(tmp_path / "w.parquet")}}, out=tmp_path / "r", workers=0)
    assert [str(each.message) for each in told] == list(planned.unused)
    assert plan_run(small()).unused == ()


def test_unseen_clients_are_planned_as_they_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def wall_s(
        setup: Any, passes: float, evaluated: int, remembered: Any, workers: int, adapted: int = 0
    ) -> float:
        asked.append((evaluated, adapted))
        return 0.0

    monkeypatch.setattr("fedsim.runs.plan.plan.wall_s", wall_s)
    task = {"name": "digits", "clients": 12, "unseen": 4}
    for client in ("plain", "qmaml"):
        config = small(task=task, evaluate={"every_steps": 3, "clients": 3}, client={"name": client})
        planned = plan_run(config, workers=0)
        said = dict(lines(planned))
        assert (planned.clients, planned.unseen) == (8, 4)
        assert said["clients chosen"] == f"{planned.chosen} of 8"
        assert said["unseen clients"] == "4, only evaluated"
        evals = analysis.open_run(run(config, tmp_path / client).folder).frame("evals")
        assert planned.measured == len(evals)
        assert planned.evaluations == len(evals.groupby(["step", "split"], observed=True))
        adapted = (evals["split"] == "unseen_personal").sum()
        assert asked.pop() == (evals["n"].sum(), adapted)
        assert adapted == (3 + 3 + 3 + 4 if client == "qmaml" else 0)
    assert "unseen clients" not in dict(lines(plan_run(small(), workers=0)))


def test_the_adaptation_of_unseen_clients_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that adapts the model takes a hundredth of a second for each of its training samples."""
    task, partition = {"name": "digits", "clients": 12, "unseen": 5}, {"name": "iid", "sizes": "lognormal"}
    setup = prepare(small(task=task, partition=partition, client={"name": "qmaml"}))
    assert setup.data.unseen is not None
    sizes, now_s, asked = setup.data.unseen.train.sizes, [0.0], list[int]()

    def evaluate_personal(self: Workbench, params: Any, kept: Any, split: str, first: int) -> None:
        assert (split, list(kept)) == ("unseen", [None])
        asked.append(first)
        now_s[0] += 0.01 * sizes[first]

    monkeypatch.setattr(Workbench, "evaluate_personal", evaluate_personal)
    monkeypatch.setattr("fedsim.runs.plan.time_estimate.time.perf_counter", lambda: now_s[0])
    monkeypatch.setattr("fedsim.runs.plan.time_estimate._pass_s", lambda setup, bench, start: 0.0)
    monkeypatch.setattr("fedsim.runs.plan.time_estimate._seconds", lambda work: 0.0)
    monkeypatch.setattr("fedsim.runs.plan.time_estimate._steps_s", lambda setup, remembered: np.zeros(1))
    nothing = np.zeros(1, dtype=np.int64)
    assert trials.wall_s(setup, 0.0, 0, nothing, 0, adapted=30) == pytest.approx(
        30 * 0.01 * np.median(sizes[7:])
    )
    assert set(asked) <= set(range(7, 12))
    asked.clear()
    assert trials.wall_s(setup, 0.0, 0, nothing, 0) == 0.0
    assert not asked


def test_what_the_first_calls_take_to_get_ready_is_not_taken_for_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A minibatch takes 10 ms, the first of one client and the first of several 0.4 s more, a loss 0.1 to 0.2 s."""
    setup = prepare(small(train={"batch_size": 10, "epochs": 20}))
    sizes, sgd = setup.data.train.sizes, setup.bench.sgd
    now_s, seen, calls = [0.0], set[bool](), [0]

    def train(self: Workbench, cohort: Cohort, *given: Any) -> None:
        calls[0] += 1
        steps = Steps.of(cohort, sizes[cohort.clients], sgd).total.sum()
        now_s[0] += 0.01 * steps + self.spec.losses * len(cohort) * (0.1 if calls[0] % 2 else 0.2)
        if (len(cohort) > 1) not in seen:
            now_s[0] += 0.4
            seen.add(len(cohort) > 1)

    monkeypatch.setattr(Workbench, "train", train)
    monkeypatch.setattr("fedsim.runs.plan.time_estimate.time.perf_counter", lambda: now_s[0])
    monkeypatch.setattr("fedsim.runs.plan.time_estimate._steps_s", lambda setup, remembered: np.zeros(1))
    found = trials.wall_s(setup, 1000.0, 0, np.zeros(1, dtype=np.int64), workers=0)
    each = 0.15 + 0.01 * 20 * -(-sizes // 10)
    assert found == pytest.approx(1000 * each.sum() / (20 * sizes.sum()), rel=0.05)


def test_what_the_machine_does_besides_is_not_taken_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 10 ms and 1 us for each pair of remembered rows; of three, two take two to eight times as long."""
    now_s, calls, remembered = [0.0], [0], set[int]()

    def step(self: Server, *given: Any) -> None:
        there = int((self.history.client >= 0).sum())
        remembered.add(there)
        calls[0] += 1
        now_s[0] += (0.01 + 1e-6 * there**2) * (1 if calls[0] % 3 == 0 else 2 + calls[0] % 7)

    monkeypatch.setattr(Server, "step", step)
    monkeypatch.setattr("fedsim.runs.plan.time_estimate.time.perf_counter", lambda: now_s[0])
    monkeypatch.setattr(trials, "_OFTEN", 9)
    setup = prepare(small(task={"name": "digits", "clients": 400}, partition={"name": "iid"}))
    rows = np.array([0, 100, 300])
    products_s = 64e-6 * rows  # as the trial with 64 rows says
    assert trials._steps_s(setup, rows) == pytest.approx(0.01 + products_s + 1e-6 * rows**2, rel=0.01)
    assert remembered == {0, 64, 150, 300}


def test_a_plan_in_which_nothing_happens_can_be_told() -> None:
    found = plan_run(small(dropout={"chance": 1.0}, stop={"steps": 2}), workers=0)
    assert set(found.jobs) == {"lost"}
    assert dict(lines(found))["staleness*"] == "none"
    assert found.passes == 0


def test_a_plan_without_a_step_can_be_told() -> None:
    found = plan_run(small(stop={"time": "1us"}), workers=0)
    told = dict(lines(found))
    assert found.steps == 0
    assert told["time between steps*"] == told["staleness*"] == "none"


def test_a_written_plan_opens_like_a_run_that_is_not_complete(tmp_path: Path) -> None:
    found, done, folder = pair("sync", tmp_path)
    plan = analysis.open_run(folder)
    assert not plan.done
    shared = ("name", "label", "seed", "rule", "ended_by", "virtual_us", "steps", "jobs", "waits")
    assert {key: plan.manifest[key] for key in shared} == {key: done.manifest[key] for key in shared}
    assert plan.manifest["status"] == "planned"
    assert plan.config == done.config
    assert len(plan.steps) == found.steps
    assert not (folder / "model.safetensors").exists()
    assert plan.label_counts is not None
    assert np.array_equal(plan.label_counts, found.label_counts)
    assert plan.world_digest == done.world_digest is not None
    assert "labels" in run_document([plan]).figures
    assert "status planned" in analysis.write_report([plan], tmp_path / "plan.html").read_text()


def test_a_plan_replaces_a_plan_if_forced_and_never_a_run(tmp_path: Path) -> None:
    _, done, folder = pair("sync", tmp_path)
    with pytest.raises(RunError, match="--force"):
        plan_run(small(), workers=0, out=tmp_path / "plan")
    plan_run(small(stop={"steps": 2}), workers=0, out=tmp_path / "plan", force=True)
    assert len(analysis.open_run(folder).steps) == 2
    for force in (False, True):
        with pytest.raises(
            RunError,
            match=r"another folder with --out, or overwrite it with --force; in Python out= or force=True$"
            if not force
            else "is a run, and no plan replaces it",
        ):
            plan_run(small(), workers=0, out=done.folder.parent, force=force)
    assert (done.folder / "model.safetensors").is_file()
    assert run(small(), tmp_path / "plan", force=True).status == "done"


def test_bad_input_is_refused_as_the_run_would(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers"):
        plan_run(small(), workers=-1)
    with pytest.raises(ConfigError, match="wall time alone ends"):
        plan_run(small(stop={"wall": "1min"}), workers=0, out=tmp_path)
    with pytest.raises(ConfigError, match=r"give \[partition\]"):
        plan_run(small(partition=None), workers=0, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_plans_every_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.toml"
    raw = small().resolved() | {"arms": {"a": {}, "b": {"algorithm": {"name": "fedavg"}}}}
    file.write_text(tomli_w.dumps(raw))
    arguments = ["plan", file, "--workers", "0", "--out", tmp_path / "plans", "--set", "stop.steps=3"]
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    assert not ended.value.code
    out = capsys.readouterr().out
    assert "plan of small/a" in out
    assert "plan of small/b" in out
    assert len(pq.read_table(tmp_path / "plans" / "small" / "a" / "steps.parquet")) == 3

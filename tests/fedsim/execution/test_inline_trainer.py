"""One test for every trainer: in this process, in Ray with one to three workers, and finishing in any order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedsim.common.errors import ConfigError
from fedsim.data.federated_data import FederatedData, Split
from fedsim.data.split import federate
from fedsim.data.tasks.digits import digits
from fedsim.engine.trainer import Pending, Stepped, Trainer
from fedsim.execution.client_state import ClientStates
from fedsim.execution.inline_trainer import InlineTrainer
from fedsim.execution.workers import ClientActor, TrainerSpec
from fedsim.plugins import Source
from fedsim.server.decision import Proposal
from fedsim.server.server import Server, Starts
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.attack import Adversary
from fedsim.training.job import Cohort, Job
from fedsim.training.network import build_network
from fedsim.training.settings import LocalSGD, Mode, WorkbenchSpec
from fedsim.training.workbench import Workbench
from shuffled import ShuffledTrainer

K = 12
BENCH = WorkbenchSpec(
    model="mlp",
    model_options={"hidden": [8]},
    in_shape=(1, 8, 8),
    n_classes=10,
    sgd=LocalSGD(batch_size=8, lr=0.1),
    seed=5,
    losses=True,
    mode="loop",
)
BENCHES = {
    name: dataclasses.replace(BENCH, client=name) for name in ("plain", "fedprox", "ditto", "fedcka", "qmaml")
} | {"dense": dataclasses.replace(BENCH, mode="dense")}
Driven = tuple[list[object], dict[str, torch.Tensor]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As `simulate` does; the bits of a sum may depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def data() -> FederatedData:
    task = digits(clients=K, seed=0, data_dir=None)
    return federate(task, n_clients=K, partitioner="iid", options={"sizes": "lognormal"}, seed=0)


def parts(rule: str = "fedlf") -> tuple[ServerSpec, torch.Tensor, FederatedData]:
    network = build_network(BENCH.model, BENCH.model_options, BENCH.in_shape, BENCH.n_classes)
    shared = data()
    server = ServerSpec(rule, {}, K, int(shared.train.sizes.sum()), 4, network.blocks)
    return server, network.initial(0), shared


def inline(bench: WorkbenchSpec = BENCH) -> InlineTrainer:
    server, initial, shared = parts()
    return InlineTrainer(Workbench(bench, shared), Server(server, initial))


def shuffled(bench: WorkbenchSpec, seed: int) -> InlineTrainer:
    server, initial, shared = parts()
    return ShuffledTrainer(Workbench(bench, shared), Server(server, initial), seed)


def drive(trainer: Trainer) -> Driven:
    """Three steps in which jobs of different versions overlap; one job is forgotten, one client has two waiting."""
    seen: list[object] = []
    running: list[Job] = []
    number = 0
    for step, clients in enumerate(([0, 5, 2, 9], [1, 7, 9], [5, 0, 1])):
        jobs = [Job(number + i, c, step, step) for i, c in enumerate(clients)]
        number += len(jobs)
        trainer.submit(Cohort.of(jobs))
        running += jobs
        if step == 1:
            trainer.forget(Cohort.of([running.pop(1)]))
        landed, running = running[:3], running[3:]
        columns = collect(trainer, landed, step, ask=step == 2)()
        found, own = trainer.evaluate("test")(), trainer.evaluate("test", personal=True)()
        seen += [
            repr(columns.reports),
            sorted(columns.columns.items()),
            found.correct.tolist(),
            found.loss.tolist(),
            own.loss.tolist(),
        ]
    return seen, trainer.params()


def collect(trainer: Trainer, jobs: list[Job], step: int = 0, *, ask: bool = False) -> Pending[Stepped]:
    """Let the server step with jobs; `ask`: for what they report beforehand."""
    cohort = Cohort.of(jobs)
    early = trainer.reports(cohort) if ask else None
    arrivals = StepInput(
        step=step,
        clients=cohort.clients,
        staleness=step - cohort.versions,
        n_samples=np.full(len(jobs), 10),
        online=np.arange(K),
    )
    result = trainer.step(arrivals, cohort)
    assert early is None or repr(early) == repr(result().reports)
    return result


def assert_same(found: Driven, expected: Driven) -> None:
    assert repr(found[0]) == repr(expected[0])
    assert found[1].keys() == expected[1].keys()
    for name, tensor in expected[1].items():
        assert torch.equal(found[1][name], tensor), name


@pytest.fixture(scope="module")
def expected() -> dict[str, Driven]:
    return {name: drive(inline(bench)) for name, bench in BENCHES.items()}


def test_it_moves_the_model(expected: dict[str, Driven]) -> None:
    for _, final in expected.values():
        assert not torch.equal(final["params"], parts()[1])
    assert len({tuple(expected[name][1]["params"].tolist()) for name in expected if name != "dense"}) == 4, (
        "only Ditto equals plain"
    )
    assert expected["ditto"][1]["personal_clients"].tolist() == [0, 1, 2, 5, 7, 9]


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_finishing_does_not_matter(expected: dict[str, Driven], seed: int) -> None:
    for name, bench in BENCHES.items():
        assert_same(drive(shuffled(bench, seed)), expected[name])


def rows_of(trainer: InlineTrainer, jobs: list[Job], ask: list[int]) -> dict[int, torch.Tensor]:
    """Submit jobs one by one, and ask for them in another order; return what the server was given."""
    given: list[torch.Tensor] = []
    propose = trainer.server.propose

    def listen(arrivals: StepInput, rows: torch.Tensor, starts: Starts) -> Proposal:
        given.extend(rows.clone())
        return propose(arrivals, rows, starts)

    trainer.server.propose = listen  # type: ignore[assignment, method-assign]
    for job in jobs:
        trainer.submit(Cohort.of([job]))
    collect(trainer, [jobs[i] for i in ask])
    return {jobs[i].id: row for i, row in zip(ask, given, strict=True)}


def test_a_job_continues_the_one_before_even_if_that_is_asked_for_later() -> None:
    jobs = [Job(i, 4, i, 0) for i in range(3)]
    in_order = rows_of(inline(BENCHES["fedcka"]), jobs, [0, 1, 2])
    reverse = rows_of(inline(BENCHES["fedcka"]), jobs, [2, 0, 1])
    for job in jobs:
        assert torch.equal(in_order[job.id], reverse[job.id])
    alone = rows_of(inline(BENCHES["fedcka"]), jobs[1:], [0, 1])
    assert not torch.equal(in_order[1], alone[1]), "without the job before, the client remembers nothing"


def test_a_forgotten_job_leaves_the_client_as_it_was() -> None:
    first, dropped, last = (Job(i, 4, i, min(i, 1)) for i in range(3))
    with_it, without = inline(BENCHES["ditto"]), inline(BENCHES["ditto"])
    for trainer in (with_it, without):
        trainer.submit(Cohort.of([first]))
        collect(trainer, [first])
    with_it.submit(Cohort.of([dropped]))
    with_it.forget(Cohort.of([dropped]))
    for trainer in (with_it, without):
        trainer.submit(Cohort.of([last]))
        collect(trainer, [last], step=1)
    assert torch.equal(with_it.params()["personal"], without.params()["personal"])


def test_a_job_in_flight_is_not_evaluated_yet() -> None:
    trainer = shuffled(BENCHES["ditto"], seed=1)
    trainer.submit(Cohort.of([Job(0, 4, 0, 0)]))
    collect(trainer, [Job(0, 4, 0, 0)])
    before = trainer.evaluate("test", personal=True)().loss.tolist()
    for nth in range(1, 5):  # some of these are trained at once
        trainer.submit(Cohort.of([Job(nth, 4, nth, 1)]))
    assert trainer.evaluate("test", personal=True)().loss.tolist() == before


def test_what_clients_keep_stays_on_the_processor_when_a_run_goes_on() -> None:
    """Where a job finds it and leaves it: of the rows of one run none is elsewhere than the others."""
    jobs = [Job(0, 4, 0, 0), Job(1, 7, 0, 0)]
    before, after = inline(BENCHES["ditto"]), inline(BENCHES["ditto"])
    before.submit(Cohort.of(jobs))
    collect(before, jobs)
    after.bench.device = torch.device("meta")  # as if it were a GPU
    after.load(before.save(), [])
    assert torch.equal(after.params()["personal"], before.params()["personal"])


def test_what_clients_keep_is_followed_from_job_to_job() -> None:
    client_states: ClientStates[str] = ClientStates()
    assert client_states.of(7) is None
    client_states.submit(0, 7, "after 0")
    client_states.submit(1, 7, "after 1")
    assert client_states.settled == {}
    client_states.settle(0, 7)
    assert (client_states.of(7), client_states.settled) == ("after 1", {7: "after 0"})
    client_states.forget(1, 7)
    assert client_states.of(7) == "after 0"
    client_states.submit(1, 7, "again")
    client_states.submit(2, 7, "after 2")
    with pytest.raises(ValueError, match="job 1 cannot be forgotten: client 7 has a later one"):
        client_states.forget(1, 7)
    client_states.forget(9, 7)  # was never submitted


@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
def test_workers_share_the_losses_of_fewer_clients_than_they_are(mode: Mode) -> None:
    _, initial, shared = parts()
    actor = ClientActor()
    actor.build(dataclasses.replace(BENCH, mode=mode), shared, False)
    models, clients = initial.numpy()[None], np.array([7, 3])
    every = [actor.trial_losses(models, clients, 0, worker, 5) for worker in range(5)]
    assert [found.shape for found in every] == [(1, 1), (1, 1), (1, 0), (1, 0), (1, 0)]
    assert np.array_equal(np.concatenate(every, axis=1), actor.trial_losses(models[0], clients, 0))


@pytest.fixture(params=["one_worker", "two_workers"])
def pool(request: pytest.FixtureRequest) -> object:
    return request.getfixturevalue(request.param)


@pytest.mark.ray
def test_ray_gives_the_same_bits(pool: object, expected: dict[str, Driven]) -> None:
    server, initial, shared = parts()
    for name, bench in BENCHES.items():  # a pool serves one run after the other
        trainer = pool.trainer(TrainerSpec(bench, server, shared, initial))  # type: ignore[attr-defined]
        assert_same(drive(trainer), expected[name])
        server_times, *worker_times = trainer.times()
        assert server_times.parts().keys() == {"gram", "solve", "combine", "diagnose"}
        assert min(times.parts()["train"] for times in worker_times) >= 0
        trainer.close()


@pytest.mark.ray
def test_jobs_of_one_client_that_are_sent_together_follow_one_another(pool: object) -> None:
    server, initial, shared = parts()
    bench = BENCHES["ditto"]
    trainer = pool.trainer(TrainerSpec(bench, server, shared, initial))  # type: ignore[attr-defined]
    jobs = [Job(i, client, nth, 0) for i, (client, nth) in enumerate([(4, 0), (3, 0), (4, 1), (4, 2)])]
    found, expected = (
        (each.submit(Cohort.of(jobs)), collect(each, jobs)(), each.params())
        for each in (trainer, inline(bench))
    )
    for name, tensor in expected[2].items():
        assert torch.equal(found[2][name], tensor), name


def test_own_models_are_sent_of_those_who_are_evaluated() -> None:
    from fedsim.execution.ray_trainer import RayTrainer  # it imports Ray

    trainer = object.__new__(RayTrainer)
    trainer._clients = [SimpleNamespace(evaluate_personal=None)] * 2
    trainer._memories = ClientStates()
    trainer._params = trainer._average = None
    for client in (0, 1, 3):
        trainer._memories.begin(client, f"row of {client}")
    rows, nothing = np.arange(3), np.arange(0)
    trainer._splits = {
        "test": Split.of([rows] * 4),
        "test_some": Split.of([nothing, rows, rows, nothing]),
        "unseen": Split.of([nothing] * 4 + [rows] * 3),
    }
    sent = {
        split: [args[3:] for _, args in trainer._calls(split, personal=True)] for split in trainer._splits
    }
    assert sent == {
        "test": [(0, "row of 0", "row of 1"), (2, None, "row of 3")],
        "test_some": [(1, "row of 1", None), (3, None)],
        "unseen": [(4, None, None), (6, None)],
    }


def test_the_files_of_all_plug_ins_go_along(tmp_path: Path) -> None:
    files = {kind: tmp_path / f"{kind}.py" for kind in ("rule", "wrapper", "model", "client", "adversary")}
    for kind, path in files.items():
        path.write_text(f"# {kind}")
    named = {kind: f"{path}:mine" for kind, path in files.items()}
    adversaries = (Adversary("zero"), Adversary(named["adversary"]))
    bench = dataclasses.replace(BENCH, model=named["model"], client=named["client"], adversaries=adversaries)
    server = dataclasses.replace(parts()[0], rule=named["rule"], wrap=[{"name": named["wrapper"]}])
    spec = TrainerSpec(bench, server, parts()[1], torch.zeros(1))
    assert spec.plugin_files() == {str(path): Source(path, f"# {kind}") for kind, path in files.items()}


@pytest.mark.ray
def test_an_error_in_an_actor_is_raised_as_itself(pool: object) -> None:
    server, initial, shared = parts("fedavg")
    bad = ServerSpec("fedavgg", {}, K, 1, 4, server.blocks)
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        pool.trainer(TrainerSpec(BENCH, bad, shared, initial))  # type: ignore[attr-defined]

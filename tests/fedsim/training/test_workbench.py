"""Local training against torch.optim.SGD on a copy of the module, and evaluation against plain means."""

from __future__ import annotations

import dataclasses
import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedsim.config.train import AugmentSection, TrainSection
from fedsim.data.federated_data import FederatedData, Split
from fedsim.data.split import Division, federate
from fedsim.data.tasks.digits import digits
from fedsim.training import augmentation as augment
from fedsim.training import client_method as client
from fedsim.training import local_sgd as descent
from fedsim.training import minibatches
from fedsim.training import workbench as local
from fedsim.training.augmentation import Augment
from fedsim.training.client_method import ClientMethod, Trained
from fedsim.training.evaluation import EVAL_ROWS, SCORED_ROWS, Samples, chunks_of, per_client
from fedsim.training.job import Job
from fedsim.training.minibatches import orders
from fedsim.training.modes import dense
from fedsim.training.network import build_network
from fedsim.training.settings import LocalSGD, Mode, WorkbenchSpec
from fedsim.training.workbench import Workbench

SPEC = WorkbenchSpec(
    model="mlp",
    model_options={"hidden": [16]},
    in_shape=(1, 8, 8),
    n_classes=10,
    sgd=LocalSGD(),
    seed=3,
    losses=True,
)


@pytest.fixture(scope="module")
def data() -> FederatedData:
    task = digits(clients=20, seed=0, data_dir=None)
    options = {"sizes": "lognormal"}
    return federate(
        task,
        n_clients=20,
        partitioner="iid",
        options=options,
        division=Division(fractions=(0.7, 0.1, 0.2)),
        seed=0,
    )


def start() -> torch.Tensor:
    return build_network("mlp", {"hidden": [16]}, (1, 8, 8), 10).initial(0)


SETTINGS = [
    LocalSGD(epochs=1, batch_size=7, lr=0.1),
    LocalSGD(epochs=3, batch_size=None, lr=0.05),
    LocalSGD(epochs=1, batch_size=None, lr=0.05),
    LocalSGD(epochs=2, batch_size=10, lr=0.1, momentum=0.9, weight_decay=0.01),
    LocalSGD(epochs=1, batch_size=10_000, lr=0.1, lr_decay=0.5),
]


@pytest.mark.parametrize("sgd", SETTINGS, ids=str)
def test_it_is_sgd(data: FederatedData, sgd: LocalSGD) -> None:
    bench = Workbench(dataclasses.replace(SPEC, sgd=sgd), data)
    job, params = Job(id=9, client=4, nth=2, version=3), start()
    row = torch.empty_like(params)
    report, _ = bench.work(job, params, row)
    expected, loss = oracle(data, job, sgd, params)
    torch.testing.assert_close(params - row, expected, rtol=1e-4, atol=1e-6)
    assert report.loss_before == pytest.approx(loss, rel=1e-5)
    assert report.finite
    assert math.isnan(report.loss_after)


def oracle(data: FederatedData, job: Job, sgd: LocalSGD, params: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The readable version: a module, an optimiser, one minibatch after the other."""
    network = build_network("mlp", {"hidden": [16]}, (1, 8, 8), 10)
    module = network.load(params.clone())
    lr = sgd.lr * sgd.lr_decay**job.version
    optimiser = torch.optim.SGD(
        module.parameters(), lr=lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    rows = data.train.rows(job.client)
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    loss = functional.cross_entropy(module(x[rows]), y[rows]).item()
    for epoch in range(sgd.epochs):
        one = (np.array([value]) for value in (job.client, job.nth, epoch, len(rows)))
        order = rows[orders(3, "batches", *one)]
        for a in range(0, len(order), sgd.batch_size or len(order)):
            batch = order[a : a + (sgd.batch_size or len(order))]
            optimiser.zero_grad()
            functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]), loss


def test_settings_that_are_not_given_are_those_of_a_configuration() -> None:
    assert LocalSGD() == TrainSection().local_sgd()
    assert Augment() == Augment(AugmentSection().crop, AugmentSection().flip)
    assert Augment().views == 1, "images as they are"


@pytest.mark.parametrize(
    "module", [augment, client, dense, descent, local, minibatches], ids=lambda m: m.__name__
)
def test_what_jobs_share_cannot_be_changed(module: ModuleType) -> None:
    values = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    for kind in filter(dataclasses.is_dataclass, values):
        name = dataclasses.fields(kind)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(object.__new__(kind), name, None)


def test_a_job_does_not_depend_on_what_was_trained_before(data: FederatedData) -> None:
    job, params = Job(0, 1, 0, 0), start()
    fresh, used = Workbench(SPEC, data), Workbench(SPEC, data)
    first, second = torch.empty_like(params), torch.empty_like(params)
    fresh.work(job, params, first)
    for other in (3, 5, 2):
        used.work(Job(other, other, 1, 0), params + 0.1, second)
    used.evaluate(params, "test", 0, 50)
    used.work(job, params, second)
    assert torch.equal(first, second)


def test_a_method_that_changes_its_rows_in_place_changes_no_later_job(data: FederatedData) -> None:
    def train(local: Any, begin: torch.Tensor, kept: Any) -> Trained:
        local.rows.copy_(local.rows.flip(0))
        return Trained(*local.sgd(begin))

    bench = Workbench(SPEC, data)
    bench.method = ClientMethod(train, draws=False)
    first, second = torch.empty(bench.columns), torch.empty(bench.columns)
    for out in (first, second):
        bench.work(Job(0, 1, 0, 0), start(), out)
    assert torch.equal(first, second)


def test_asking_for_a_loss_leaves_the_model_in_training_as_it_is(data: FederatedData) -> None:
    def trained(ask: bool) -> tuple[torch.Tensor, list[bool]]:
        modes: list[bool] = []

        def train(local: Any, begin: torch.Tensor, kept: Any) -> Trained:
            def objective(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
                losses = local.losses(local.logits(local.weights, batch.x), batch.y)
                if ask:
                    assert local.mean_loss(begin, local.rows) > 0
                modes.append(bench.module.training)
                return losses.mean(), losses

            return Trained(*local.sgd(begin, objective=objective))

        bench = Workbench(dataclasses.replace(SPEC, sgd=LocalSGD(epochs=2, batch_size=8)), data)
        bench.method = ClientMethod(train, draws=False)
        out = torch.empty(bench.columns)
        bench.work(Job(0, 0, 0, 0), start(), out)
        return out, modes

    (plain, _), (asked, modes) = trained(False), trained(True)
    assert torch.equal(asked, plain)
    assert all(modes)


def test_a_method_does_not_depend_on_what_was_done_before(data: FederatedData) -> None:
    """q-MAML adapts before it descends: with dropout, whatever the module was used for last."""
    model = {"channels": [4], "kernel": 3, "hidden": [16], "dropout": [0.0, 0.5]}
    spec = dataclasses.replace(SPEC, model="cnn", model_options=model, client="qmaml")
    used = Workbench(spec, data)
    params, job = used.network.initial(0), Job(0, 1, 0, 0)

    def trained(bench: Workbench) -> tuple[float, list[float]]:
        row = torch.empty_like(params)
        return bench.work(job, params, row)[0].loss_before, row.tolist()

    expected = trained(Workbench(spec, data))
    own = Workbench(spec, data).evaluate_personal(params, [None], "test", 1)[0].tolist()
    for _ in range(2):
        assert trained(used) == expected
        used.evaluate(params, "test", 0, 50)
        assert used.evaluate_personal(params, [None], "test", 1)[0].tolist() == own


def test_the_nth_job_of_a_client_has_its_own_minibatches(data: FederatedData) -> None:
    bench, params = Workbench(SPEC, data), start()
    rows = torch.empty(3, len(params))
    for i, job in enumerate((Job(0, 1, 0, 0), Job(1, 1, 1, 0), Job(7, 1, 0, 0))):
        bench.work(job, params, rows[i])
    assert not torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2]), "the number of the job alone must not matter"


def test_without_being_asked_no_loss_is_computed(data: FederatedData) -> None:
    bench, params = Workbench(dataclasses.replace(SPEC, losses=False), data), start()
    report, _ = bench.work(Job(0, 1, 0, 0), params, torch.empty_like(params))
    assert math.isnan(report.loss_before)
    assert report.loss_train > 0


def test_loss_and_accuracy_after_training_are_those_of_the_client_s_own_model(data: FederatedData) -> None:
    bench, params = Workbench(dataclasses.replace(SPEC, after=True), data), start()
    row = torch.empty_like(params)
    report, _ = bench.work(Job(0, 1, 0, 0), params, row)
    found = per_client(data.train, [bench.evaluate(params - row, "train", 0, len(data.train.indices))])
    assert report.loss_after == pytest.approx(found.loss[1], rel=1e-4)
    assert report.accuracy_after == found.correct[1] / found.n[1]
    assert report.loss_after < report.loss_before


def test_training_that_diverges_is_reported(data: FederatedData) -> None:
    bench, params = Workbench(dataclasses.replace(SPEC, sgd=LocalSGD(lr=1e30, batch_size=2)), data), start()
    assert not bench.work(Job(0, 1, 0, 0), params, torch.empty_like(params))[0].finite


def test_evaluation_adds_up_client_by_client(data: FederatedData) -> None:
    bench, params = Workbench(SPEC, data), start()
    found = per_client(data.test, [bench.evaluate(params, "test", a, b) for a, b in chunks_of(data.test, 3)])
    module = build_network("mlp", {"hidden": [16]}, (1, 8, 8), 10).load(params.clone())
    for i, holder in enumerate(found.clients):
        rows = data.test.rows(holder)
        logits, y = module(torch.from_numpy(data.x[rows])), torch.from_numpy(data.y[rows])
        assert found.n[i] == len(rows)
        assert found.correct[i] == int((logits.argmax(1) == y).sum())
        assert found.loss[i] == pytest.approx(functional.cross_entropy(logits, y).item(), rel=1e-5)


@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
def test_losses_of_many_samples_are_those_of_each(data: FederatedData, mode: Mode) -> None:
    """More than are scored together, which is more than pass the model at once."""
    bench, params = Workbench(dataclasses.replace(SPEC, mode=mode), data), start()
    module = build_network("mlp", {"hidden": [16]}, (1, 8, 8), 10).load(params.clone())
    every = functional.cross_entropy(
        module(torch.from_numpy(data.x)), torch.from_numpy(data.y), reduction="none"
    )
    rows = torch.from_numpy(np.random.default_rng(1).integers(0, len(data.y), SCORED_ROWS + EVAL_ROWS + 9))
    np.testing.assert_allclose(bench.losses(params, rows), every[rows].tolist(), rtol=1e-4, atol=1e-6)


def test_each_client_is_evaluated_with_the_model_it_would_use(data: FederatedData) -> None:
    """Ditto's clients use what they keep, and the global model until then; one has no samples to look at."""
    held = [data.test.rows(k) if k != 4 else np.zeros(0, dtype=np.int64) for k in range(20)]
    bench = Workbench(
        dataclasses.replace(SPEC, client="ditto"), dataclasses.replace(data, test=Split.of(held))
    )
    models = [build_network("mlp", {"hidden": [16]}, (1, 8, 8), 10).initial(seed) for seed in range(4)]
    losses, correct = bench.evaluate_personal(models[0], [models[1], models[2], None, models[3]], "test", 3)
    some = [(3, models[1]), (5, models[0]), (6, models[3])]
    expected = [bench.losses(model, torch.from_numpy(held[client])) for client, model in some]
    assert losses.tolist() == np.concatenate(expected).tolist()
    assert len(correct) == len(losses)
    assert correct.dtype == bool


def test_a_model_that_is_trained_on_the_spot_takes_steps_of_the_first_rate(data: FederatedData) -> None:
    """It belongs to no job, whose start model would be of some step."""
    found = []
    for decay in (0.5, 1.0):
        bench = Workbench(dataclasses.replace(SPEC, sgd=LocalSGD(lr_decay=decay)), data)
        bench.method = ClientMethod(personal=lambda local, model, kept: local.sgd(model)[0])
        found.append(bench.evaluate_personal(start(), [None], "test", 2)[0].tolist())
    assert found[0] == found[1] != bench.losses(start(), torch.from_numpy(data.test.rows(2))).tolist()


def test_samples_that_stay_gathered_are_those_asked_for() -> None:
    x, samples = torch.randn(7000, 60, generator=torch.Generator().manual_seed(1)), Samples()
    rows = torch.randperm(7000, generator=torch.Generator().manual_seed(2))[:5000]
    for first, count in ((0, 5000), (0, 5000), (3000, 2000), (0, 5000)):
        asked = rows[first : first + count]
        batches = list(samples.batches(x, asked, ("test", first, first + count)))
        assert [len(batch) for batch in batches] == [len(part) for part in torch.split(asked, EVAL_ROWS)]
        assert torch.equal(torch.cat(batches), x[asked])
    again = torch.cat(list(samples.batches(x, rows[:10])))
    assert torch.equal(again, x[rows[:10]]), "rows that belong to no range are gathered anew"


def test_many_samples_are_gathered_batch_by_batch() -> None:
    x, samples = torch.randn(9000, 500, generator=torch.Generator().manual_seed(3)), Samples()
    rows = torch.randperm(9000, generator=torch.Generator().manual_seed(4))
    batches = iter(samples.batches(x, rows, ("test", 0, 9000)))
    assert next(batches).untyped_storage().nbytes() == EVAL_ROWS * 500 * 4
    assert torch.equal(next(batches), x[rows[EVAL_ROWS : 2 * EVAL_ROWS]])


def test_evaluation_chunks_end_at_batches_whatever_their_number() -> None:
    split = Split.of([np.arange(5000), np.arange(5000, 9001)])
    for pieces in (1, 2, 3, 7):
        chunks = chunks_of(split, pieces)
        assert len(chunks) <= pieces
        assert chunks[0][0] == 0
        assert chunks[-1][1] == 9001
        assert all(a % 2048 == 0 for a, _ in chunks)
        assert [b for _, b in chunks[:-1]] == [a for a, _ in chunks[1:]]


def test_clients_without_samples_of_a_split_are_left_out() -> None:
    split = Split.of([np.array([4, 5]), np.array([], dtype=np.int64), np.array([6])])
    found = per_client(split, [(np.array([1.0, 3.0, 5.0]), np.array([True, False, True]))])
    assert found.clients.tolist() == [0, 2]
    assert found.n.tolist() == [2, 1]
    assert found.correct.tolist() == [1, 1]
    assert found.loss.tolist() == [2.0, 5.0]

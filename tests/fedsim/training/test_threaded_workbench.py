"""Benches in threads: the bits of one bench, wherever several are worth it and nowhere else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import workbenches
from fedsim.common.threads import at_most
from fedsim.config.load import parse
from fedsim.data.federated_data import FederatedData, Split
from fedsim.execution.inline_trainer import InlineTrainer
from fedsim.runs.resume import resume
from fedsim.runs.simulate import simulate
from fedsim.training.attack import Adversary
from fedsim.training.augmentation import Augment
from fedsim.training.client_method import ClientMethod
from fedsim.training.job import Cohort, Reports
from fedsim.training.network import build_network
from fedsim.training.settings import LocalSGD, WorkbenchSpec
from fedsim.training.threaded_workbench import ThreadedWorkbench, worth
from fedsim.training.workbench import Workbench
from noise import noise

K, CLASSES = 23, 10
SPEC = WorkbenchSpec(
    model="mlp",
    model_options={"hidden": [200, 200]},
    in_shape=(1, 8, 8),
    n_classes=CLASSES,
    sgd=LocalSGD(batch_size=20, lr=0.1),
    seed=3,
    losses=True,
)
CASES: dict[str, dict[str, Any]] = {
    "dense": {},
    "loop": {"mode": "loop"},
    "vmap": {"mode": "vmap"},
    "after": {"after": True},
    "some losses": {"sgd": LocalSGD(batch_size=20, lr=0.1, loss_samples=7)},
    "augmented": {"sgd": LocalSGD(batch_size=20, lr=0.1, epochs=2, augment=Augment(2, True))},
    "attacked": {
        "adversaries": (
            Adversary("label_flip", {}, clients=(1, 2, 3)),
            Adversary("gaussian_noise", {"sigma": 1.0}, clients=(4, 5)),
        )
    },
    "two softmaxes": {"model_options": {"hidden": [200, 200], "doubled_softmax": True}},
    "a method of its own": {"client": "fedprox", "client_options": {"mu": 0.1}},
    "personal models": {"client": "qmaml", "client_options": {}},
    "models that are kept": {"client": "ditto", "client_options": {}},
    "vectors that are kept and sent": {"client": "scaffold", "client_options": {}},
    "updates that are kept": {"adversaries": (Adversary("replay", {}, clients=(1, 2, 6)),)},
    "residuals": {
        "model": "nfresnet",
        "model_options": {"stem": 16, "stages": [8, 16], "blocks": 1},
        "mode": "loop",
    },
    "convolutions": {"model": "cnn", "model_options": {"channels": [16, 16], "kernel": 3}, "mode": "loop"},
}


@pytest.fixture(scope="module")
def data() -> FederatedData:
    made = noise(K, (1, 60), 8, CLASSES)
    many = np.random.default_rng(1).integers(0, len(made.y), 9000)
    return dataclasses.replace(made, test=Split(many, np.linspace(0, len(many), K + 1).astype(np.int64)))


def cohort(k: int) -> Cohort:
    shares = np.where(np.arange(k) % 5 == 3, 0.4, 1.0)
    return Cohort(np.arange(k), np.arange(k) % K, np.arange(k) % 3, np.arange(k) % 2, shares, np.arange(k))


def trained(made: Workbench | ThreadedWorkbench, k: int) -> tuple[torch.Tensor, Reports]:
    return workbenches.trained(made, cohort(k), same=False)


def equal(a: Reports, b: Reports) -> bool:
    return all(
        np.array_equal(getattr(a, f.name), getattr(b, f.name), equal_nan=f.name != "finite")
        for f in dataclasses.fields(Reports)
    )


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_benches_gives_the_bits_of_one(data: FederatedData, case: str) -> None:
    spec = dataclasses.replace(SPEC, **CASES[case])
    bench = Workbench(spec, data)
    model, clients = bench.network.initial(7), np.array([5, 2, 19, 2, 0])
    models = torch.stack([model, 0.5 * model])
    tests = len(data.test.indices)
    alone = {k: trained(bench, k) for k in (29, 2, 1)}
    same = bench.evaluate(model, "test", 0, tests)
    own_same = bench.evaluate_personal(model, [None] * 5, "test", 3)
    for count in (2, 3):
        pool = ThreadedWorkbench(spec, data)
        with at_most(count):
            for k, expected in alone.items():
                rows = trained(pool, k)
                assert torch.equal(expected[0], rows[0])
                assert equal(expected[1], rows[1])
            losses = pool.trial_losses(models, clients, 1)
            found = pool.evaluate(model, "test", 0, tests)
            own = pool.evaluate_personal(model, [None] * 5, "test", 3)
        assert pool._count == count
        assert np.array_equal(losses, bench.trial_losses(models, clients, 1))
        for mine, theirs in zip((*found, *own), (*same, *own_same), strict=True):
            assert np.array_equal(mine, theirs)


def test_nothing_is_evaluated(data: FederatedData) -> None:
    with at_most(2):
        pool = ThreadedWorkbench(SPEC, data)
        assert len(pool.evaluate(pool.first.network.initial(0), "test", 0, 0)[0]) == 0


def test_what_fails_on_one_bench_is_raised_and_the_others_go_on(
    data: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_most(3):
        pool = ThreadedWorkbench(SPEC, data)
        expected = trained(pool, 20)[0]
        whole = Workbench.train

        def fails(bench: Workbench, jobs: Cohort, *rest: Any) -> Any:
            if 4 in jobs.clients:
                raise RuntimeError("client 4 cannot")
            return whole(bench, jobs, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(Workbench, "train", fails)
            with pytest.raises(RuntimeError, match="client 4 cannot"):
                trained(pool, 20)
        assert torch.equal(trained(pool, 20)[0], expected)
        assert pool._count == len(pool._idle) == 3


@pytest.mark.parametrize(
    ("changes", "pays"),
    [
        ({}, True),
        ({"device": "cuda"}, False),
        ({"model": "softmax", "model_options": {}}, False),
        ({"sgd": LocalSGD(batch_size=10)}, False),
        ({"sgd": LocalSGD(batch_size=None)}, True),
        ({"sgd": LocalSGD(batch_size=1000), "model_options": {"hidden": [64]}}, False),
        ({"model": "cnn", "model_options": {}}, True),
        ({"model": "cnn", "model_options": {"dropout": [0.5, 0.5]}}, False),
        ({"client": "fedprox", "client_options": {"mu": 0.1}}, True),
        ({"client": "ditto", "client_options": {"lam": 0.1}}, True),
        ({"adversaries": (Adversary("replay", {}, clients=(1,)),)}, True),
    ],
)
def test_what_is_worth_threads(changes: dict[str, Any], pays: bool) -> None:
    spec = dataclasses.replace(SPEC, **changes)
    network = build_network(spec.model, spec.model_options, spec.in_shape, spec.n_classes)
    assert worth(spec, network, spec.method(), np.full(K, 40)) is pays


@pytest.mark.parametrize("draws", [True, False])
def test_own_models_that_may_draw_at_random_are_made_in_one_thread(draws: bool) -> None:
    network = build_network(SPEC.model, SPEC.model_options, SPEC.in_shape, SPEC.n_classes)
    method = ClientMethod(draws=draws, personal=lambda local, model, kept: model)
    assert worth(SPEC, network, method, np.full(K, 40)) is not draws


CONFIG: dict[str, Any] = {
    "name": "threads",
    "task": {"name": "digits", "clients": 12},
    "partition": {"name": "pathological", "classes": 2},
    "model": {"name": "mlp", "hidden": [200, 200]},
    "train": {"batch_size": 20, "lr": 0.1},
    "world": {"scenario": "churn", "horizon": "1d"},
    "pacing": {"preset": "fedbuff", "concurrency": 8, "buffer": 4},
    "algorithm": {"name": "fedlf"},
    "audit": {"every": 3, "clients": 5},
    "stop": {"steps": 8},
}


def test_a_run_has_the_digest_of_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, made = parse(CONFIG, "test", "threads")[0], []
    whole = InlineTrainer.__init__
    monkeypatch.setattr(
        InlineTrainer,
        "__init__",
        lambda self, bench, *rest: (made.append(bench), whole(self, bench, *rest))[1],
    )
    digests = set()
    for count in (1, 2, 3):
        with at_most(count):
            digests.add(simulate(config, out=tmp_path / str(count), workers=0)[0].digest)
        assert made[-1]._count == count
    assert len(digests) == 1


def test_an_interrupt_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    """Ctrl-C raised while threads train: the second one, which does not wait for the step."""
    config = parse(CONFIG | {"checkpoint": {"every_steps": 2}}, "test", "threads")[0]
    whole, calls = Workbench.train, []

    def interrupted(bench: Workbench, jobs: Cohort, *rest: Any) -> Any:
        calls.append(len(jobs))
        if len(calls) == 12:
            raise KeyboardInterrupt
        return whole(bench, jobs, *rest)

    with at_most(2):
        expected = simulate(config, out=tmp_path / "whole", workers=0)[0].digest
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Workbench, "train", interrupted)
            stopped = simulate(config, out=tmp_path, workers=0)[0]
        assert stopped.status == "interrupted"
        assert resume(stopped.folder, workers=0).digest == expected

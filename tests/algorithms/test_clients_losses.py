"""FedCKA and q-MAML against versions written out with plain torch."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call
from torch.nn import functional

from client_cases import JOB, SPEC, divided_digits, model, work
from fedsim.algorithms.clients.fedcka import cka, contrast
from fedsim.algorithms.clients.qmaml import divided
from fedsim.common.rng import rng
from fedsim.data.federated_data import FederatedData, Split
from fedsim.training.local_sgd import ClientTools
from fedsim.training.network import build_network
from fedsim.training.settings import LocalSGD
from fedsim.training.workbench import Workbench


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return divided_digits()


representations = st.integers(0, 10**6).map(lambda seed: np.random.default_rng(seed).normal(size=(9, 5)))


@settings(max_examples=50, deadline=None)
@given(representations, representations, st.floats(0.1, 10))
def test_cka_is_a_similarity(a: Any, b: Any, scale: float) -> None:
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    turn, _ = torch.linalg.qr(y.T @ y)
    assert cka(x, x).item() == pytest.approx(1)
    assert 0 <= cka(x, y).item() <= 1 + 1e-9
    assert cka(x, y).item() == pytest.approx(cka(y, x).item())
    assert cka(scale * x @ turn + 3, y).item() == pytest.approx(cka(x, y).item())
    centred = [z - z.mean(0) for z in (x, y)]
    cross, own = centred[0].T @ centred[1], [(z.T @ z).norm() for z in centred]
    assert cka(x, y).item() == pytest.approx((cross.norm() ** 2 / (own[0] * own[1])).item())


def test_a_constant_representation_is_like_nothing_and_gives_no_nan() -> None:
    x = torch.zeros(6, 3, requires_grad=True)
    similarity = cka(x, torch.randn(6, 3, generator=torch.Generator().manual_seed(0)))
    similarity.backward()  # type: ignore[no-untyped-call]
    assert similarity.item() == 0
    assert torch.isfinite(x.grad).all()  # type: ignore[arg-type]


def test_the_contrast_falls_towards_the_received_model() -> None:
    draws = torch.Generator().manual_seed(0)
    received, before = (torch.randn(20, 4, generator=draws) for _ in range(2))
    near, even, far = (contrast(m, received, before).item() for m in (received, received + before, before))
    assert near < even < far
    assert contrast(received, before, before).item() == pytest.approx(math.log(2))


def test_fedcka_remembers_the_end_of_the_job_before(data: FederatedData) -> None:
    _, first, keeps = work(data, "fedcka")
    assert keeps is not None
    torch.testing.assert_close(keeps, model() - first)
    assert torch.equal(first, work(data)[1]), "without a model before there is nothing to contrast"
    report, second, _ = work(data, "fedcka", kept=model(1), mu=3.0)
    assert not torch.equal(second, first)
    assert report.loss_train == pytest.approx(work(data)[0].loss_train, rel=0.2), (
        "the loss is that of the data"
    )


def test_fedcka_descends_the_loss_and_its_contrast(data: FederatedData) -> None:
    sgd, own, mu = LocalSGD(batch_size=None, lr=0.1), model(1), 2.0
    _, row, _ = work(data, "fedcka", kept=own, sgd=sgd, mu=mu, layers=2)
    rows = rng(SPEC.seed, "batches", JOB.client, JOB.nth)
    rows.integers(2**63)
    order = data.train.rows(JOB.client)[rows.permutation(len(data.train.rows(JOB.client)))]
    x, y = torch.from_numpy(data.x[order]), torch.from_numpy(data.y[order])
    modules = [
        build_network("mlp", {"hidden": [12, 8]}, (1, 8, 8), 10).load(w) for w in (model(), model(), own)
    ]
    outs = [(h := m.fc1(x.flatten(1)), m.fc2(functional.relu(h))) for m in modules]  # type: ignore[operator]
    loss = functional.cross_entropy(modules[0](x), y) + mu / 2 * sum(
        contrast(*o) for o in zip(*outs, strict=True)
    )
    grads = torch.autograd.grad(loss, list(modules[0].parameters()))
    torch.testing.assert_close(row, 0.1 * torch.cat([g.reshape(-1) for g in grads]), rtol=1e-3, atol=1e-6)


ROOT = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor, self.out = torch.nn.Parameter(torch.ones(())), torch.nn.Linear(6, 5)
    def forward(self, x):
        return self.factor * self.out(x)

def scaled(*, in_shape, n_classes) -> torch.nn.Module:
    return Scaled()
"""


@pytest.mark.parametrize("name", ["lstm", "own"])
def test_fedcka_contrasts_recurrent_layers_and_models_with_parameters_of_their_own(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(ROOT)
    draws = np.random.default_rng(0)
    x, y = draws.integers(0, 5, (30, 6)).astype(np.float32), draws.integers(0, 5, 30)
    rows = Split.of([np.arange(30)])
    sequences = FederatedData(x, y, 5, rows, rows, rows)
    spec = dataclasses.replace(SPEC, in_shape=(6,), n_classes=5, client="fedcka")
    if name == "lstm":
        spec = dataclasses.replace(spec, model="lstm", model_options={"embedding": 3, "hidden": [4]})
    else:
        spec = dataclasses.replace(spec, model=f"{tmp_path}/own.py:scaled", model_options={})
    updates = []
    for mu in (0.0, 3.0):
        bench = Workbench(dataclasses.replace(spec, client_options={"mu": mu, "layers": 2}), sequences)
        start, kept = (bench.network.initial(seed) for seed in range(2))
        report, _ = bench.work(
            dataclasses.replace(JOB, client=0), start, row := torch.empty_like(start), kept
        )
        assert report.finite
        updates.append(row)
    assert not torch.equal(*updates)


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("steps", [1, 3])
def test_qmaml_descends_the_loss_after_adapting(data: FederatedData, order: str, steps: int) -> None:
    sgd = LocalSGD(batch_size=None, lr=0.2)
    options = {"inner_lr": 0.3, "inner_steps": steps, "order": order}
    report, row, _ = work(data, "qmaml", sgd=sgd, **options)
    support, query = divided(ClientTools(Workbench(SPEC, data), JOB), 0.5)
    network = build_network("mlp", {"hidden": [12, 8]}, (1, 8, 8), 10)
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)

    def loss(flat: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        logits = functional_call(network.module, network.views(flat), (x[rows],))
        return functional.cross_entropy(logits, y[rows])

    theta = model().requires_grad_()
    adapted = theta
    for _ in range(steps):
        grad = torch.func.grad(loss)(adapted, support)
        adapted = adapted - 0.3 * (grad if order == "second" else grad.detach())
    after = loss(adapted, query)
    (outer,) = torch.autograd.grad(after, theta)
    torch.testing.assert_close(row, 0.2 * outer, rtol=1e-3, atol=1e-6)
    assert report.loss_before == pytest.approx(after.item(), rel=1e-4)
    assert report.loss_train == pytest.approx(after.item(), rel=1e-4)


def test_qmaml_s_own_model_takes_steps_on_all_training_samples(data: FederatedData) -> None:
    spec = dataclasses.replace(SPEC, client="qmaml", client_options={"inner_lr": 0.3, "inner_steps": 2})
    bench = Workbench(spec, data)
    found = bench.evaluate_personal(model(), [None], "test", JOB.client)
    steps = LocalSGD(epochs=2, batch_size=None, lr=0.3, lr_decay=1.0)
    _, row, _ = work(data, sgd=steps)
    rows = torch.from_numpy(data.test.rows(JOB.client))
    np.testing.assert_allclose(found[0], bench.losses(model() - row, rows), rtol=1e-4)


@pytest.mark.parametrize(("n", "support", "query"), [(1, 1, 1), (2, 1, 1), (10, 8, 2), (5, 4, 1)])
def test_support_and_query_share_no_sample_but_where_there_is_only_one(
    n: int, support: int, query: int
) -> None:
    class Few:
        rows = torch.arange(n) + 100

        def draws(self, purpose: str) -> np.random.Generator:
            return rng(0, purpose)

    inner, outer = divided(Few(), 0.8)  # type: ignore[arg-type]
    assert (len(inner), len(outer)) == (support, query)
    assert set(inner.tolist()) | set(outer.tolist()) == set(Few.rows.tolist())

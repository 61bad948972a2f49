"""Client-side methods: their formulas on least squares and on a small network, and what all of them must do."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from client_cases import JOB, SPEC, divided_digits, model, oracle, work
from fedsim import plugins
from fedsim.algorithms.clients.fedprox import fedprox
from fedsim.data.federated_data import FederatedData
from fedsim.plugins import build
from fedsim.plugins.options import options_of
from fedsim.training.client_method import ClientMethod
from fedsim.training.settings import LocalSGD
from fedsim.training.workbench import Workbench
from golden_other_parts import LeastSquares

METHODS = plugins.names("client")


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return divided_digits()


def test_twice_the_strength_is_the_doubled_form() -> None:
    draw = np.random.default_rng(0)
    case = {"X": draw.normal(size=(3, 5, 4)), "y": draw.normal(size=(3, 5)), "lr": 0.1, "E": 2}
    ends = [
        LeastSquares(case).end_of(m, torch.ones(4, dtype=torch.float64))
        for m in (fedprox(mu=0.1, form="doubled"), fedprox(mu=0.2), fedprox(mu=0.1))
    ]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


@pytest.mark.parametrize(
    ("name", "options"), [("fedprox", {"mu": 0.0}), ("fedcka", {"mu": 0.0}), ("ditto", {})]
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_must_equal_plain_does_bit_for_bit(
    data: FederatedData, name: str, options: dict[str, float], momentum: float
) -> None:
    sgd = dataclasses.replace(SPEC.sgd, momentum=momentum)
    report, row, _ = work(data, name, kept=model(1), sgd=sgd, **options)
    plain, expected, kept = work(data, sgd=sgd)
    assert torch.equal(row, expected)
    # Side by side the loss before is summed up in another order.
    assert report.loss_before == pytest.approx(plain.loss_before, rel=1e-6)
    ours, theirs = (dataclasses.asdict(dataclasses.replace(r, loss_before=0)) for r in (report, plain))
    assert ours == pytest.approx(theirs, rel=0, abs=0, nan_ok=True)
    assert kept is None


MOMENTUM = LocalSGD(epochs=2, batch_size=9, lr=0.1, lr_decay=0.5, momentum=0.5, weight_decay=0.01)


@pytest.mark.parametrize("sgd", [SPEC.sgd, MOMENTUM], ids=["plain", "momentum"])
def test_fedprox_is_sgd_on_the_loss_with_a_proximal_term(data: FederatedData, sgd: LocalSGD) -> None:
    _, row, _ = work(data, "fedprox", sgd=sgd, mu=0.7)
    torch.testing.assert_close(
        model() - row, oracle(data, sgd, model(), model(), 0.7, "batches"), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("lam", [0.0, 0.7])
@pytest.mark.parametrize("before", [None, 1])
def test_ditto_moves_its_own_model_near_the_global_one(
    data: FederatedData, lam: float, before: int | None
) -> None:
    """With lam = 0 that is local SGD continued."""
    own = None if before is None else model(before)
    _, _, keeps = work(data, "ditto", kept=own, lam=lam)
    expected = oracle(data, SPEC.sgd, model() if own is None else own, model(), lam, "personal")
    torch.testing.assert_close(keeps, expected, rtol=1e-4, atol=1e-6)


def test_ditto_s_own_model_has_its_own_epochs_and_step(data: FederatedData) -> None:
    _, row, keeps = work(data, "ditto", lam=0.2, epochs=1, lr=0.05)
    sgd = dataclasses.replace(SPEC.sgd, epochs=1, lr=0.05)
    torch.testing.assert_close(
        keeps, oracle(data, sgd, model(), model(), 0.2, "personal"), rtol=1e-4, atol=1e-6
    )
    assert torch.equal(row, work(data)[1])


def test_a_strong_pull_keeps_the_own_model_at_the_global_one(data: FederatedData) -> None:
    far = [
        (work(data, "ditto", lam=lam, kept=model(1))[2] - model()).norm()  # type: ignore[operator]
        for lam in (0.0, 1.0, 10.0)
    ]
    assert far[0] > far[1] > far[2]


def test_a_job_that_diverges_leaves_what_was_kept(data: FederatedData) -> None:
    own = model(1)
    for kept in (own, None):
        report, _, keeps = work(data, "ditto", kept=kept, sgd=LocalSGD(lr=1e30, batch_size=2))
        assert not report.finite
        assert keeps is kept


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_a_pure_function(data: FederatedData, name: str) -> None:
    start, kept = model(), model(1)
    before = start.clone(), kept.clone()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second = (work(data, name, kept=kept, start=start) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(start, before[0])
    assert torch.equal(kept, before[1])
    assert repr(first[0]) == repr(second[0])
    assert torch.equal(first[1], second[1])
    method: ClientMethod = plugins.build("client", name, {})
    assert (first[2] is kept) != method.keeps
    assert first[2] is not None
    assert second[2] is not None
    assert torch.equal(first[2], second[2])
    assert method.passes(3) > 0


@pytest.mark.parametrize("name", [name for name in METHODS if build("client", name, {}).train])
def test_a_method_says_whether_it_draws_from_torch(data: FederatedData, name: str) -> None:
    """Clients of one that does not may train in several threads."""
    bench = Workbench(dataclasses.replace(SPEC, client=name), data)
    bench.seeded = lambda draws: nullcontext()  # type: ignore[method-assign]
    before = torch.get_rng_state()
    start = torch.cat([model(), *(torch.zeros_like(model()) for _ in bench.method.receives)])
    bench.work(JOB, start, torch.empty(bench.columns), model(1))
    bench.evaluate_personal(model(), [model(1)], "test", JOB.client)
    assert bench.method.draws is not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns(data: FederatedData, name: str) -> None:
    report, row, _ = work(data, name, sgd=LocalSGD(epochs=15, batch_size=8, lr=0.2))
    assert report.finite
    losses = Workbench(SPEC, data)
    rows = torch.from_numpy(data.train.rows(JOB.client))
    assert losses.losses(model() - row, rows).mean() < losses.losses(model(), rows).mean()


@pytest.mark.parametrize("name", METHODS)
def test_the_page_names_every_option(name: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "clients.md"
    (row,) = (line for line in page.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    for option in options_of(plugins.factory("client", name)):
        assert f"`{option}`" in row, option


def test_fedcka_counts_two_more_forward_passes() -> None:
    """Forward and backward are three units of work, and the two models that are compared with take one each."""
    assert build("client", "fedcka", {}).passes(3) == pytest.approx(5)

"""What the server keeps of clients' last updates for selectors, and that the rule does not notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsim.execution.serialization import packed, unpacked
from fedsim.server.history_storage import HistoryPlan, Rung
from fedsim.server.last_updates import LastUpdates
from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.server.update_screening import UpdateScreening
from fedsim.training.job import Report, Reports
from pretend_gpu import CUDA, pretended

K, P = 8, 5003
PLAN = HistoryPlan(3, K)


def arrivals(
    step: int, clients: list[int], staleness: Any = 0, finite: Any = True, **changed: Any
) -> StepInput:
    n = len(clients)
    reports = Reports.of([Report(1.0, finite=bool(ok)) for ok in np.broadcast_to(finite, n)])
    columns = {"staleness": np.full(n, staleness), "n_samples": np.ones(n, dtype=np.int64)}
    return StepInput(
        step, np.array(clients, dtype=np.int64), **columns, online=np.arange(K), reports=reports, **changed
    )


def rows(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, P, generator=torch.Generator().manual_seed(seed))


def kept(plan: HistoryPlan | None = PLAN) -> LastUpdates:
    return LastUpdates(K, plan, P, torch.device("cpu"))


def assert_products(updates: LastUpdates, held: dict[int, torch.Tensor], tolerance: float = 1e-5) -> None:
    """Norms and products are those of the updates held, NaN for other clients, whatever the order of the question."""
    everybody = np.random.default_rng(0).permutation(K)
    found = updates.products(everybody)
    scale = max([float(row.norm()) for row in held.values()], default=1.0)
    for i, a in enumerate(everybody.tolist()):
        for j, b in enumerate(everybody.tolist()):
            known = a in held and b in held
            expected = float(held[a].double() @ held[b].double()) if known else np.nan
            np.testing.assert_allclose(found[i, j], expected, atol=tolerance * scale**2)
    norms = [float(held[c].double().norm()) if c in held else np.nan for c in range(K)]
    np.testing.assert_allclose(updates.norms, norms, rtol=1e-6)


@pytest.mark.parametrize("rung", ["float32", "bfloat16"])
@pytest.mark.parametrize("asked", ["always", "at the end"])
def test_products_are_those_of_the_last_updates(rung: Rung, asked: str) -> None:
    updates, held = kept(HistoryPlan(3, K, rung)), dict[int, torch.Tensor]()
    tolerance = 1e-5 if rung == "float32" else 1e-2
    for step, clients in enumerate([[4, 1], [], [7, 1, 2], [0, 4], [3, 5, 6]]):
        fresh = rows(len(clients), step)
        updates.add(arrivals(step, clients), fresh)
        held |= dict(zip(clients, fresh, strict=True))
        if asked == "always":
            assert_products(updates, held, tolerance)
    assert_products(updates, held, tolerance)


def test_products_are_computed_from_what_is_stored() -> None:
    """Rounded updates have products of rounded ones: distances of equal updates are 0."""
    updates, same = kept(HistoryPlan(3, K, "bfloat16")), rows(1, 0)[0]
    updates.add(arrivals(0, [2]), [same])
    updates.add(arrivals(1, [5]), [same.clone()])
    products = updates.products(np.array([2, 5]))
    assert products[0, 0] + products[1, 1] - 2 * products[0, 1] == 0
    rounded = same.bfloat16().double()
    assert products[0, 0] == pytest.approx(float(rounded @ rounded), rel=1e-6)


def test_norms_alone_need_no_updates() -> None:
    updates = kept(None)
    fresh = rows(2, 1)
    updates.add(arrivals(0, [3, 6]), fresh)
    assert updates.history is None
    np.testing.assert_allclose(updates.norms[[3, 6]], fresh.double().norm(dim=1).numpy(), rtol=1e-12)
    assert np.isnan(updates.norms[[0, 1, 2, 4, 5, 7]]).all()


def test_a_late_update_gives_way_to_one_that_counts_and_an_older_to_a_newer() -> None:
    fresh = rows(4, 2)
    for plan in (PLAN, None):
        updates = kept(plan)
        updates.add(arrivals(5, [1, 2, 1, 2], np.array([0, 2, 3, 1]), present=1), fresh)
        expected = [float(fresh[0].double().norm()), float(fresh[3].double().norm())]
        np.testing.assert_allclose(updates.norms[[1, 2]], expected)
        if plan is not None:
            products = updates.products(np.array([1, 2]))
            assert products[0, 1] == pytest.approx(float(fresh[0] @ fresh[3]), rel=1e-4)


def test_updates_that_do_not_fit_are_given_up_and_their_norms_stay() -> None:
    updates = kept(HistoryPlan(2, 2, capped=True))
    for step, client in enumerate([3, 4, 5]):
        updates.add(arrivals(step, [client]), rows(1, step))
    assert np.isnan(updates.products(np.array([3, 4, 5])).diagonal()).tolist() == [True, False, False]
    assert not np.isnan(updates.norms[3])


@pytest.mark.parametrize("rung", ["float32", "bfloat16", "host_float32", "host_bfloat16"])
def test_on_a_gpu(rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = rows(2, 1)
    with pretended(monkeypatch):
        updates = LastUpdates(K, HistoryPlan(3, K, rung), P, CUDA)
        updates.add(arrivals(0, [3, 6]), fresh.to(CUDA))
        updates.add(arrivals(1, [3]), [rows(1, 2)[0]])
        found = updates.products(np.array([6, 3, 0]))
        norms = updates.norms
    expected = float(fresh[1] @ rows(1, 2)[0])
    assert found[0, 1] == pytest.approx(expected, abs=0.02 * norms[3] * norms[6])
    assert np.isnan(found[2]).all()


# In a server


def server(rule: str = "fedavg", **changes: Any) -> Server:
    return Server(ServerSpec(rule, {}, K, 100, 3, [(0, 5000), (5000, P)], **changes), torch.zeros(P))


def played(made: Server, steps: int, first: int = 0) -> list[dict[str, Any]]:
    columns = []
    for step in range(first, steps):
        clients = np.random.default_rng(step).choice(K, 3, replace=False).tolist()
        columns.append(made.step(arrivals(step, clients), list(rows(3, step))))
        if made.updates is not None and made.updates.history is not None:
            made.update_products(np.arange(K))
    return columns


@pytest.mark.parametrize("rule", ["fedavg", "mifa", "fedfv", "fedlf"])
@pytest.mark.parametrize("rung", ["float32", "bfloat16"])
def test_the_rule_sees_the_same_bits_without(rule: str, rung: Rung) -> None:
    history = HistoryPlan(3, K, rung)
    plain = server(rule, history=history)
    watched = server(rule, history=history, norms=True, updates=HistoryPlan(3, K, rung))
    assert repr(played(plain, 6)) == repr(played(watched, 6))
    assert torch.equal(plain.params, watched.params)


def test_a_rule_without_memory_is_no_obstacle() -> None:
    made = server("fedavg", norms=True, updates=PLAN)
    played(made, 6)
    assert not np.isnan(made.update_norms(np.arange(K))).any()
    assert np.isfinite(made.update_products(np.arange(K))).all()


def test_updates_are_as_they_were_received() -> None:
    """Not measured from the current model, and without those that cannot be used."""
    made = server("fedasync", rows="current", norms=True)
    played(made, 2)
    late = rows(1, 9)
    made.step(arrivals(2, [0], staleness=1), list(late), {1: torch.ones(P)})
    assert made.update_norms(np.array([0]))[0] == pytest.approx(float(late[0].double().norm()))
    made = server("fedavg", norms=True, bad_updates=UpdateScreening("clip", 2.0))
    made.step(arrivals(0, [1, 2], finite=[False, True]), [torch.full((P,), torch.nan), late[0]])
    assert np.isnan(made.update_norms(np.array([1]))[0])
    assert made.update_norms(np.array([2]))[0] == pytest.approx(2.0)


@pytest.mark.parametrize("plan", [None, PLAN, HistoryPlan(3, K, "bfloat16")])
@pytest.mark.parametrize("sent", [False, True])
def test_a_checkpoint_keeps_them(plan: HistoryPlan | None, sent: bool) -> None:
    whole, first = (server("mifa", norms=True, updates=plan) for _ in range(2))
    played(whole, 8)
    played(first, 4)
    saved = unpacked(packed(first.save())) if sent else first.save()
    second = server("mifa", norms=True, updates=plan)
    second.load(saved)
    played(second, 8, 4)
    np.testing.assert_array_equal(second.update_norms(np.arange(K)), whole.update_norms(np.arange(K)))
    if plan is not None:
        np.testing.assert_array_equal(
            second.update_products(np.arange(K)), whole.update_products(np.arange(K))
        )
    assert torch.equal(second.params, whole.params)


@pytest.mark.parametrize("before", ["updates", "norms", "history", "nothing"])
def test_another_server_inherits_what_there_is(before: str) -> None:
    specs: dict[str, Any] = {
        "updates": {"rule": "fedavg", "norms": True, "updates": PLAN},
        "norms": {"rule": "fedavg", "norms": True},
        "history": {"rule": "mifa"},
        "nothing": {"rule": "fedavg"},
    }
    parent, child = server(**specs[before]), server("fedavg", norms=True, updates=HistoryPlan(2, K))
    played(parent, 6)
    child.inherit(parent.save(), 1, same_rule=False)
    reference = server("fedavg", norms=True, updates=PLAN)
    played(reference, 6)
    everybody = np.arange(K)
    norms, products = child.update_norms(everybody), child.update_products(everybody)
    if before == "nothing":
        assert np.isnan(norms).all()
    else:
        np.testing.assert_allclose(norms, reference.update_norms(everybody))
    if before in ("updates", "history"):
        expected = reference.update_products(everybody)
        np.testing.assert_allclose(products, expected, rtol=1e-4, atol=1e-3 * expected.max())
    else:
        assert np.isnan(products).all()

"""A saved server comes out as it went in, in the bytes that it has."""

from __future__ import annotations

import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.execution.serialization import packed, unpacked
from fedsim.execution.workers import ServerActor
from fedsim.server.history_storage import HistoryPlan, Rung
from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.job import Report, Reports

K, P = 40, 3000
BLOCKS = [(0, 2000), (2000, P)]


def arrivals(step: int, clients: list[int]) -> StepInput:
    m = len(clients)
    return StepInput(
        step=step,
        clients=np.array(clients),
        staleness=np.zeros(m, dtype=np.int64),
        n_samples=np.ones(m, dtype=np.int64),
        reports=Reports.of([Report(loss_before=1.0)] * m),
        online=np.arange(K),
    )


def rows(step: int) -> torch.Tensor:
    return torch.randn(4, P, generator=torch.Generator().manual_seed(step))


def spec(rung: Rung, **more: Any) -> ServerSpec:
    return ServerSpec("fedlf", {}, K, 100, 4, BLOCKS, history=HistoryPlan(4, K, rung), **more)


def actor(rung: Rung, steps: int = 4, **more: Any) -> ServerActor:
    made = ServerActor()
    made.build(spec(rung, **more), np.zeros(P, dtype=np.float32), False)
    for step in range(steps):
        made.server.step(arrivals(step, list(range(3 * step, 3 * step + 4))), rows(step))
    return made


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert_same(mine, theirs)
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rung", ["float32", "bfloat16", "host_float32", "host_bfloat16"])
def test_a_server_that_travels_is_the_one_that_was_saved(rung: Rung) -> None:
    made = actor(rung, rows="current", wrap=[{"name": "server_opt"}])
    saved = made.server.save()
    sent = pickle.loads(pickle.dumps(packed(saved), protocol=5))
    assert_same(unpacked(sent), saved)
    assert saved["vectors"], "the wrapper keeps something"
    other = actor(rung, steps=0, rows="current", wrap=[{"name": "server_opt"}])
    other.load(sent)
    columns = [each.server.step(arrivals(4, [1, 30]), rows(4)[:2]) for each in (made, other)]
    assert torch.equal(made.server.params, other.server.params)
    assert columns[0].keys() == columns[1].keys()


@pytest.mark.parametrize("rung", ["float32", "bfloat16"])
def test_a_saved_server_is_sent_in_no_more_bytes_than_it_has(rung: Rung) -> None:
    made = actor(rung)
    history = made.server.save()["history"]
    rows_bytes = sum(row.nbytes for tier in history["rows"] for row in tier)
    assert len([row for tier in history["rows"] for row in tier]) == 13
    sent = len(pickle.dumps(made.save(), protocol=5))
    assert rows_bytes < sent < rows_bytes + history["grams"].nbytes + 4 * P + 8000


def test_a_process_lets_go_of_a_server_before_it_makes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made, there = actor("float32"), []
    old = weakref.ref(made.server.history)
    monkeypatch.setattr("fedsim.execution.workers.Server", lambda *given: there.append(old()))
    made.build(spec("float32"), np.zeros(P, dtype=np.float32), False)
    assert there == [None]


def test_a_server_that_remembers_nothing_travels_too() -> None:
    made = Server(ServerSpec("fedavg", {}, K, 100, 4, BLOCKS), torch.zeros(P))
    assert_same(unpacked(packed(made.save())), made.save())

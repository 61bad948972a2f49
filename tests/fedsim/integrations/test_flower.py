"""Flower's rounds, aggregated by the rules of fedsim: the same steps as from `fedsim.combine`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import ConfigError

pytestmark = pytest.mark.skipif(
    find_spec("flwr") is None,
    reason="the package flwr is not installed: pip install '.[flower]'",
)

SHAPES = {"layer.weight": (3, 2), "layer.bias": (2,), "head.weight": (2, 2)}
SIZES = [8, 4]
NODES = [2**63 + 5, 17, 99]
RNG = np.random.default_rng(3)
START = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def flat(arrays: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in SHAPES])


def record(arrays: dict[str, Any]) -> Any:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def reply(node: int, arrays: dict[str, Any], **metrics: float) -> Any:
    """Return what a grid hands back: content, and who sent it."""
    from flwr.app import MetricRecord, RecordDict

    named = {key.replace("_", "-"): value for key, value in metrics.items()}
    return SimpleNamespace(
        content=RecordDict({"arrays": record(arrays), "metrics": MetricRecord(named)}),
        metadata=SimpleNamespace(src_node_id=node),
        has_error=lambda: False,
    )


def trained(seed: int, start: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: (a + rng.normal(size=a.shape)).astype(np.float32) for name, a in start.items()}


class Grid:
    def get_node_ids(self) -> list[int]:
        return NODES


def rounds(
    strategy: Any,
    plan: list[dict[int, tuple[int, float, int]]],
    grid: Any = Grid(),  # noqa: B008
) -> list[dict[str, Any]]:
    """Play rounds, each by node: seed of its training, loss and samples; return the arrays before and after each."""
    from flwr.app import ConfigRecord

    models = [dict(START)]
    for number, of_round in enumerate(plan, start=1):
        list(strategy.configure_train(number, record(models[-1]), ConfigRecord(), grid))
        replies = [
            reply(node, trained(seed, models[-1]), loss=loss, num_examples=n)
            for node, (seed, loss, n) in of_round.items()
        ]
        arrays, metrics = strategy.aggregate_train(number, replies)
        assert metrics is not None
        models.append({name: array.numpy() for name, array in arrays.items()})
    return models


def strategy(rule: str, **options: Any) -> Any:
    from fedsim.integrations.flower import FedsimStrategy

    return FedsimStrategy(rule, fraction_train=0.0, **options)  # messages can be made in a running app alone


ROUND = {NODES[0]: (0, 0.5, 10), NODES[1]: (1, 2.5, 30), NODES[2]: (2, 1.0, 20)}


def test_fedavg_is_flowers_fedavg() -> None:
    from flwr.serverapp.strategy import FedAvg

    plan = [ROUND, {NODES[1]: (5, 1.0, 3), NODES[2]: (6, 1.0, 4)}]
    ours = rounds(strategy("fedavg"), plan)
    theirs = rounds(FedAvg(fraction_train=0.0), plan)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(flat(a), flat(b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rule", "options"), [("fedfv", {"alpha": 0.1}), ("fedlf", {}), ("fedmgda", {})])
def test_a_round_is_the_step_that_combine_gives(rule: str, options: dict[str, Any]) -> None:
    before, after = rounds(strategy(rule, options=options), [ROUND])
    rows = np.stack([flat(before) - flat(trained(seed, before)) for seed, _, _ in ROUND.values()])
    losses, samples = ([entry[i] for entry in ROUND.values()] for i in (1, 2))
    step = fedsim.combine(
        rule, rows, losses=losses, n_samples=samples, options=options, blocks=SIZES, n_clients=3, n_seen=0
    )
    np.testing.assert_allclose(flat(after), flat(before) - step.direction, rtol=1e-5, atol=1e-6)
    assert np.abs(flat(after) - flat(before)).max() > 1e-3


def test_a_rule_with_memory_uses_the_last_updates_of_absent_clients() -> None:
    plan = [ROUND, {NODES[1]: (5, 2.0, 30)}]
    first, second, third = rounds(strategy("mifa"), plan)
    remembered = [flat(first) - flat(trained(seed, first)) for seed in (0, 2)]
    now = flat(second) - flat(trained(5, second))
    np.testing.assert_allclose(
        flat(third), flat(second) - np.mean([*remembered, now], axis=0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("rule", ["fedvarp", "ca2fl", "fedstale"])
def test_a_rule_may_use_the_earlier_update_of_a_client_that_is_present(rule: str) -> None:
    """The second round has one of the three clients of the first: its earlier update is replaced, not forgotten."""
    first, second, third = rounds(strategy(rule), [ROUND, {NODES[1]: (5, 2.0, 30)}])
    earlier = [flat(first) - flat(trained(seed, first)) for seed in (0, 1, 2)]
    now = flat(second) - flat(trained(5, second))
    step = fedsim.combine(
        rule, np.stack([now, *earlier]), losses=None, n_samples=[30, 10, 30, 20], clients=[1, 0, 1, 2],
        ages=[0, 1, 1, 1], participations=[2, 1, 1, 1], blocks=SIZES, step=1, n_clients=3, total_samples=60, n_seen=3,
        state=fedsim.combine(
            rule, np.stack(earlier), losses=None, n_samples=[10, 30, 20], clients=[0, 1, 2], participations=[1, 1, 1],
            blocks=SIZES, n_clients=3, total_samples=60, n_seen=0,
        ).state,
    )  # fmt: skip
    np.testing.assert_allclose(flat(third), flat(second) - step.direction, rtol=1e-5, atol=1e-6)


def test_the_population_is_all_clients_connected_or_seen() -> None:
    """Two are connected, and a third took part before."""
    scaled = strategy("mifa", options={"divisor": "all"})
    grid = SimpleNamespace(get_node_ids=lambda: [NODES[0], 1234])
    first, second = rounds(scaled, [{NODES[1]: (0, 1.0, 10)}], grid)
    update = flat(first) - flat(trained(0, first))
    np.testing.assert_allclose(flat(second), flat(first) - update / 3, rtol=1e-5, atol=1e-6)


def test_local_steps_come_as_a_metric() -> None:
    nova = strategy("fednova")
    from flwr.app import ConfigRecord

    list(nova.configure_train(1, record(START), ConfigRecord(), Grid()))
    replies = [
        reply(node, trained(node % 5, START), num_examples=10, local_steps=s)
        for node, s in ((17, 2), (99, 4))
    ]
    arrays, _ = nova.aggregate_train(1, replies)
    rows = np.stack([flat(START) - flat(trained(node % 5, START)) for node in (17, 99)])
    step = fedsim.combine("fednova", rows, losses=None, n_samples=[10, 10], local_steps=[2, 4], n_clients=3)
    found = {name: array.numpy() for name, array in arrays.items()}
    np.testing.assert_allclose(flat(found), flat(START) - step.direction, rtol=1e-5, atol=1e-6)


def test_integers_are_averaged_by_samples_and_keep_their_type() -> None:
    from flwr.app import ConfigRecord

    start = START | {"norm.batches": np.array(4)}
    averaging = strategy("fedavg")
    list(averaging.configure_train(1, record(start), ConfigRecord(), Grid()))
    replies = [
        reply(node, trained(0, START) | {"norm.batches": np.array(count)}, num_examples=n)
        for node, count, n in ((1, 10, 1), (2, 20, 3))
    ]
    arrays, _ = averaging.aggregate_train(1, replies)
    assert list(arrays) == list(start)
    found = arrays["norm.batches"].numpy()
    assert (found, found.dtype) == (np.rint(17.5), np.int64)


def test_a_reply_that_is_not_finite_is_left_out_and_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.app import ConfigRecord

    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    several = strategy("mifa")
    list(several.configure_train(1, record(START), ConfigRecord(), Grid()))
    broken = {name: np.full_like(array, np.nan) for name, array in START.items()}
    replies = [
        reply(NODES[0], trained(0, START), loss=1.0, num_examples=10),
        reply(NODES[1], broken, loss=1.0, num_examples=10),
    ]
    arrays, _ = several.aggregate_train(1, replies)
    alone = strategy("mifa")
    list(alone.configure_train(1, record(START), ConfigRecord(), Grid()))
    expected, _ = alone.aggregate_train(1, replies[:1])
    for name in START:
        np.testing.assert_array_equal(arrays[name].numpy(), expected[name].numpy())
    assert f"node {NODES[1]}: left out, as its arrays are not finite" in caplog.text
    assert several.aggregate_train(2, replies[1:]) == (None, None)


def test_a_round_without_replies_changes_nothing() -> None:
    averaging = strategy("fedfv")
    assert averaging.aggregate_train(1, []) == (None, None)


def test_what_cannot_work_is_refused() -> None:
    from flwr.app import ConfigRecord

    with pytest.raises(ConfigError, match=r"no rule 'fedfvv'; did you mean 'fedfv'"):
        strategy("fedfvv")
    with pytest.raises(ConfigError, match="alhpa"):
        strategy("fedfv", options={"alhpa": 0.1})
    with pytest.raises(ConfigError, match="asks clients for losses after trial steps"):
        strategy("fedmdfg", options={"search": 3})
    with pytest.raises(ConfigError, match="other half is the client method 'scaffold'"):
        strategy("scaffold")
    with pytest.raises(ConfigError, match="starts clients from the models that they received last"):
        strategy("fedawe")
    averaging = strategy("afl")
    list(averaging.configure_train(1, record(START), ConfigRecord(), Grid()))
    with pytest.raises(ConfigError, match="evaluates an average of models"):
        averaging.aggregate_train(1, [reply(17, trained(0, START), loss=1.0, num_examples=3)])
    lossless = strategy("fedfv", loss_key="my-loss")
    list(lossless.configure_train(1, record(START), ConfigRecord(), Grid()))
    with pytest.raises(
        ConfigError, match=r"node 17: rule 'fedfv' needs the metric 'my-loss', found num-examples"
    ):
        lossless.aggregate_train(1, [reply(17, trained(0, START), num_examples=3)])


@pytest.mark.slow
def test_rounds_of_flowers_simulation_are_the_steps_that_combine_gives(tmp_path: Path) -> None:
    import flower_rounds

    environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0"}
    command = [sys.executable, flower_rounds.__file__, str(tmp_path / "models.npz")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = -np.stack([flower_rounds.update(client).ravel() for client in range(flower_rounds.CLIENTS)])
    step, state, vectors = np.zeros(6), None, None
    for number in range(flower_rounds.ROUNDS):
        combined = fedsim.combine(
            "fedfv",
            rows,
            losses=[1.0, 2.0, 3.0],
            n_samples=[10] * 3,
            options={"alpha": 0.1},
            blocks=[6],
            step=number,
            n_clients=3,
            n_seen=3 if number else 0,
            participations=[number + 1] * 3,
            state=state,
            vectors=vectors,
        )
        step, state, vectors = step - combined.direction, combined.state, combined.vectors
    assert np.abs(step / flower_rounds.ROUNDS + rows.mean(axis=0)).max() > 0.05  # unlike FedAvg's
    np.testing.assert_allclose(np.load(tmp_path / "models.npz")["last"].ravel(), step, rtol=1e-5, atol=1e-6)

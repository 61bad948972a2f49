"""Every rule found in its folder runs in the simulator, synchronous and buffered, to the same bits twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import analysis
from fedsim import plugins
from fedsim.setup import prepare
from small import run, small

TIMINGS: dict[str, dict[str, Any]] = {
    "sync": {"preset": "sync", "clients": 4},
    "fedbuff": {"preset": "fedbuff", "concurrency": 5, "buffer": 3},
}


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("rule", plugins.names("rule"))
def test_a_rule_runs(rule: str, timing: str, tmp_path: Path) -> None:
    config = small(algorithm={"name": rule}, pacing=TIMINGS[timing], stop={"steps": 5})
    first = run(config, tmp_path / "a")
    opened = analysis.open(first.folder)
    steps = opened.frame("steps")
    assert (steps.status == "applied").sum() >= 3
    assert (steps[steps.status == "applied"].direction_norm > 0).all()
    accuracy = opened.history()
    assert accuracy.step.tolist() == [0, 3, 5]
    assert run(config, tmp_path / "b").digest == first.digest


def test_a_rule_knows_how_the_learning_rate_decays() -> None:
    spec = prepare(small(train={"lr": 0.2, "lr_decay": 0.5})).server
    assert (spec.lr, spec.lr_decay) == (0.2, 0.5)


@pytest.mark.parametrize("wrapper", plugins.names("wrapper"))
def test_a_wrapper_runs(wrapper: str, tmp_path: Path) -> None:
    rule = "fedavg" if wrapper in ("clipped", "discounted", "server_opt") else "fedmgda_plus"
    plain = small(algorithm={"name": rule}, pacing=TIMINGS["fedbuff"], stop={"steps": 6})
    wrapped = small(
        algorithm={"name": rule, "wrap": [{"name": wrapper}]},
        pacing=TIMINGS["fedbuff"],
        stop={"steps": 6},
    )
    first, second = run(plain, tmp_path / "a"), run(wrapped, tmp_path / "b")
    assert second.status == "done"
    opened = analysis.open(second.folder)
    assert opened.config["algorithm"]["wrap"][0]["name"] == wrapper
    assert first.digest != second.digest, f"{wrapper} changed nothing"


def test_an_averaged_iterate_is_evaluated_and_kept(tmp_path: Path) -> None:
    import safetensors.torch
    import torch

    result = run(small(algorithm={"name": "afl"}), tmp_path)
    found = safetensors.torch.load_file(result.folder / "model.safetensors")
    assert sorted(found) == ["average", "params"]
    assert not torch.equal(found["average"], found["params"])


def test_a_line_search_finds_steps_that_lower_every_loss(tmp_path: Path) -> None:
    config = small(
        algorithm={"name": "fedmdfg", "search": 4}, train={"batch_size": "full"}, stop={"steps": 6}
    )
    steps = analysis.open(run(config, tmp_path / "a").folder).frame("steps")
    lengths = steps[steps.status == "applied"].step_length
    assert set(lengths) <= {2.0**k for k in range(-12, 5)}
    assert lengths.nunique() > 1
    plain = small(algorithm={"name": "fedmdfg"}, train={"batch_size": "full"}, stop={"steps": 6})
    assert set(analysis.open(run(plain, tmp_path / "b").folder).frame("steps").step_length.dropna()) == {1.0}

"""Keys without effect are refused with a remedy; of several runs only one needs to give a key an effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.config.load import load_config, parse
from fedsim.config.run import RunConfig
from fedsim.config.study.study import StudyConfig
from fedsim.studies.grid import cells_of

BUFFERED = {"preset": "fedbuff", "concurrency": 4, "buffer": 2}
RAW: dict[str, Any] = {
    "name": "small",
    "task": {"name": "digits", "clients": 12},
    "partition": {"name": "iid"},
    "pacing": {"preset": "sync", "clients": 4},
    "stop": {"steps": 8},
}
IDLE: list[tuple[str, dict[str, Any], str]] = [
    ("dropout.partial", {"dropout": {"partial": True}}, "give pacing.deadline"),
    ("dropout.replace", {"dropout": {"replace": True}, "pacing": BUFFERED}, 'it needs "step"'),
    ("dropout.law", {"dropout": {"law": "uniform"}}, "it needs another 'chance'"),
    ("dropout.within", {"dropout": {"within": "upload"}}, "it needs another 'chance'"),
    ("dropout.leave", {"dropout": {"leave": "bernoulli"}}, 'leave = "ignore"'),
    ("cost.fedscale_steps", {"cost": {"fedscale_steps": 5}}, 'it needs formula = "fedscale"'),
    ("cost.flash_most_samples", {"cost": {"flash_most_samples": 5}}, 'it needs formula = "flash"'),
    ("cost.jitter.law", {"cost": {"jitter": {"law": "normal"}}}, "give downlink, compute or uplink"),
    (
        "cost.completeness.fixed",
        {"cost": {"completeness": {"mode": "PDU", "fixed": True}}},
        'mode = "epochs"',
    ),
    ("cost.completeness.chance", {"cost": {"completeness": {"mode": "FSU", "chance": 0.5}}}, 'mode = "PDU"'),
    ("cost.completeness.low", {"cost": {"completeness": {"mode": "FSU", "low": 2}}}, 'mode = "ADU"'),
    ("cost.completeness.high", {"cost": {"completeness": {"mode": "PDU", "high": 2}}}, 'mode = "ASU"'),
    ("stop.metric", {"stop": {"steps": 8, "metric": "min_percent"}}, "without 'target' or 'patience'"),
    ("stop.split", {"stop": {"steps": 8, "split": "test"}}, "without 'target' or 'patience'"),
    ("stop.rising", {"stop": {"steps": 8, "rising": False}}, "without 'target' or 'patience'"),
    ("stop.least", {"stop": {"steps": 8, "target": 3.0, "least": 1.0}}, "without 'patience'"),
    ("selection.window", {"selection": {"name": "oort", "window": 2.0}}, 'it needs variant = "fedscale"'),
    (
        "selection.preferred",
        {"selection": {"name": "oort", "variant": "fedscale", "preferred": "1s"}},
        'variant = "paper"',
    ),
    (
        "selection.barred_share",
        {"selection": {"name": "oort", "barred_after": "never", "barred_share": 0.1}},
        "nobody is barred",
    ),
    (
        "algorithm.epsilon",
        {"algorithm": {"name": "fedmgda_plus", "cap": 0.5, "epsilon": 0.2}},
        "beside 'cap'",
    ),
    ("algorithm.seed", {"algorithm": {"name": "fedfv", "seed": 3}}, 'it needs order = "random"'),
    ("algorithm.memory", {"algorithm": {"name": "fedavg", "memory": "1h"}}, "remembers no absent clients"),
    (
        "algorithm.merging",
        {"algorithm": {"name": "fedlf", "level": "model", "merging": False}},
        "another 'level'",
    ),
    (
        "train.epochs",
        {"train": {"epochs": 3}, "client": {"name": "fedprox", "form": "released"}},
        "which take one step a job",
    ),
    (
        "world.options.zone_spread",
        {"world": {"scenario": "diurnal", "options": {"time_zones": 1, "zone_spread": "3h"}}},
        "another 'time_zones'",
    ),
    ("algorithm.rows", {"algorithm": {"rows": "current"}}, "every update starts from the newest model"),
    (
        "algorithm.wrap.0.b",
        {"algorithm": {"wrap": [{"name": "discounted", "b": 2.0}]}},
        'staleness = "hinge"',
    ),
    (
        "pacing.max_staleness",
        {"pacing": {"preset": "sync", "clients": 4, "max_staleness": 1}},
        "newest model",
    ),
    ("memory.slots", {"memory": {"slots": 3}}, "remembers no absent clients"),
    (
        "train.loss_samples",
        {"train": {"loss_samples": 3}},
        "neither the rule nor the selector asks clients for losses",
    ),
    (
        "train.loss_samples",
        {"train": {"loss_samples": 3}, "selection": {"name": "oort"}},
        "neither the rule nor the selector asks clients for losses",
    ),
    (
        "stop.target",
        {"stop": {"steps": 9, "target": 40}, "evaluate": {"every_steps": 0}},
        "give evaluate.every",
    ),
    (
        "stop.patience",
        {"stop": {"steps": 9, "patience": 1}, "evaluate": {"every_steps": 0}},
        "give evaluate.every",
    ),
    (
        "dropout.partial",
        {"dropout": {"partial": True}, "pacing": {"preset": "deadline", "clients": 3, "deadline": "1min"}},
        "give train.epochs",
    ),
    ("evaluate.personal", {"evaluate": {"personal": False}}, "which has no personal models"),
    ("audit.clients", {"audit": {"clients": 3}}, "it needs another 'every'"),
    (
        "world.options.devices.fault_length",
        {
            "world": {
                "scenario": "always_on",
                "options": {"devices": {"fault_every": 0, "fault_length": "1h"}},
            }
        },
        "without faults",
    ),
    (
        "world.options.mean_on",
        {"world": {"scenario": "stragglers", "options": {"mean_on": "1h"}}},
        "it needs another 'mean_off'",
    ),
]
"""A key, a configuration in which it has no effect, and the remedy in the message."""


def refusal(raw: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(raw, "small.toml", "small")
    return str(caught.value)


@pytest.mark.parametrize(("key", "changes", "remedy"), IDLE, ids=[key for key, _, _ in IDLE])
def test_a_key_without_effect_is_refused_with_a_remedy(
    key: str, changes: dict[str, Any], remedy: str
) -> None:
    said = refusal(RAW | changes)
    assert said.startswith(f"small.toml: {key}: it would have no effect ")
    assert remedy in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "changes",
    [
        {"selection": {"name": "oort"}, "algorithm": {"name": "fedmgda_plus", "cap": 0.5}},
        {
            "selection": {"name": "oort", "variant": "fedscale"},
            "client": {"name": "fedprox", "form": "released"},
        },
        {"algorithm": {"name": "term", "wrap": [{"name": "discounted"}]}, "world": {"scenario": "flgo"}},
        {
            "world": {"scenario": "fitted"},
            "selection": {"name": "loss_based"},
            "algorithm": {"name": "fedasync"},
        },
    ],
    ids=str,
)
def test_a_configuration_with_every_default_written_out_is_the_same(changes: dict[str, Any]) -> None:
    resolved = parse(RAW | changes, "small.toml", "small")[0].resolved()
    assert resolved["dropout"]["law"] == "same"
    assert parse(resolved, "config.resolved.toml", "small")[0].resolved() == resolved


def arms(**tables: dict[str, Any]) -> list[RunConfig]:
    return parse(RAW | tables, "small.toml", "small")


def test_one_arm_with_an_effect_is_enough_and_the_others_take_the_default() -> None:
    dropout = {"law": "uniform", "within": "upload"}
    never, often = arms(
        dropout=dropout, arms={"never": {"dropout": {"chance": 0.0}}, "often": {"dropout": {"chance": 0.3}}}
    )
    assert (never.dropout.law, never.dropout.within) == ("same", "any")
    assert (often.dropout.law, often.dropout.within) == ("uniform", "upload")
    assert parse(never.resolved(), "again", "again")[0].dropout == never.dropout


def test_an_arm_without_a_chance_of_loss_ignores_how_losses_happen() -> None:
    never, often = arms(
        dropout={"leave": "bernoulli"},
        arms={"never": {"dropout": {"chance": 0.0}}, "often": {"dropout": {"chance": 0.3}}},
    )
    assert (never.dropout.leave, often.dropout.leave) == ("ignore", "bernoulli")


def test_a_key_without_effect_in_any_arm_is_refused() -> None:
    said = refusal(RAW | {"dropout": {"law": "uniform"}, "arms": {"a": {}, "b": {"train": {"lr": 0.2}}}})
    assert said.startswith("small.toml, arm 'a': dropout.law: it would have no effect with chance = 0")


def test_one_cell_of_a_study_with_an_effect_is_enough() -> None:
    axes = {
        "rate": {"none": {"dropout": {"chance": 0.0}}, "some": {"dropout": {"chance": 0.3}}},
        "phase": {
            "download": {"dropout": {"within": "download"}},
            "upload": {"dropout": {"within": "upload"}},
        },
    }
    run = {key: value for key, value in RAW.items() if key != "name"}
    study = StudyConfig.model_validate({"name": "s", "seeds": [1], "run": run, "axes": axes})
    found = {cell.title: cell.config.dropout.within for cell in cells_of(study, "s.toml")}
    assert found == {
        "rate=none, phase=download, seed 1": "any",
        "rate=none, phase=upload, seed 1": "any",
        "rate=some, phase=download, seed 1": "download",
        "rate=some, phase=upload, seed 1": "upload",
    }
    alone = StudyConfig.model_validate(
        {"name": "s", "seeds": [1], "run": run, "axes": {"phase": axes["phase"]}}
    )
    with pytest.raises(
        ConfigError, match=r"s\.toml: dropout\.within: .* \(in: phase=download\)|dropout\.within"
    ):
        cells_of(alone, "s.toml")


def test_an_assignment_may_remove_the_effect_of_a_key_but_not_set_a_key_without_effect(
    tmp_path: Path,
) -> None:
    file = tmp_path / "lossy.toml"
    file.write_text(tomli_w.dumps(RAW | {"dropout": {"chance": 0.3, "law": "uniform"}}))
    assert load_config(file, ("dropout.chance=0",))[0].dropout.law == "same"
    with pytest.raises(ConfigError, match=r"dropout\.partial: it would have no effect without a deadline"):
        load_config(file, ("dropout.partial=true",))


def test_building_a_plug_in_refuses_options_without_effect() -> None:
    with pytest.raises(
        ConfigError, match="selector 'oort', option 'window': it would have no effect with variant"
    ):
        plugins.build("selector", "oort", {"window": 2.0})
    assert plugins.build("selector", "oort", {"window": 2.0, "variant": "fedscale"})

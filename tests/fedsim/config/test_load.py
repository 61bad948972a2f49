"""Configurations from files and dicts, with changes as texts or as values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedsim.common.errors import ConfigError
from fedsim.config.errors import assignments
from fedsim.config.load import load_config
from fedsim.engine import pacing
from fedsim.studies.load_study import load_study
from small import small

TABLES: dict[str, Any] = {
    "task": {"name": "digits", "clients": 12},
    "partition": {"name": "iid"},
    "pacing": {"preset": "sync", "clients": 4},
    "stop": {"steps": 8},
}


def test_a_dict_is_read_as_the_file_of_its_tables(tmp_path: Path) -> None:
    tables = TABLES | {"name": "x", "arms": {"a": {}, "b": {"algorithm": {"name": "fedfv"}}}}
    path = tmp_path / "x.toml"
    path.write_text(tomli_w.dumps(tables))
    assert load_config(tables) == load_config(path) == load_config(str(path))
    assert [run.name for run in load_config(tables)] == ["x/a", "x/b"]
    assert load_config(TABLES)[0].name == "run"


def test_a_dict_is_left_as_it_was() -> None:
    before = TABLES | {"algorithm": {"name": "fedfv", "alpha": 0.1}}
    load_config(before, {"algorithm.name": "fedlf", "stop.steps": 3})
    assert before == TABLES | {"algorithm": {"name": "fedfv", "alpha": 0.1}}


def test_another_metric_has_its_own_direction() -> None:
    tables = TABLES | {"stop": {"steps": 8, "metric": "mean_percent", "target": 90, "rising": True}}
    assert load_config(tables, ["stop.metric=std_percent"])[0].stop.rising is False
    assert load_config(tables, ["stop.metric=mean_percent"])[0].stop.rising is True
    assert load_config(tables, ["stop.metric=std_percent", "stop.rising=true"])[0].stop.rising is True


@pytest.mark.parametrize("place", ["set", "arm", "arm of the file"])
def test_another_scenario_has_its_own_end(place: str) -> None:
    """`after_end` of a resolved file is the first scenario's default; another one than that was chosen and stays."""
    world = {"scenario": "churn", "horizon": "2h", "after_end": "repeat"}
    other = {"world": {"scenario": "permanent_dropout"}}
    ends = []
    for end in ("repeat", "error"):
        raw = TABLES | {"world": world | {"after_end": end}}
        if place == "set":
            (config,) = load_config(raw, {"world.scenario": "permanent_dropout"})
        elif place == "arm":
            (config,) = load_config(
                raw | {"arms": {"a": {"seed": 2}}}, {"arms.a.world.scenario": "permanent_dropout"}
            )
        else:
            (config,) = load_config(raw | {"arms": {"a": other}})
        ends.append(config.world.after_end)
    assert ends == [None, "error"]


def test_another_plugin_in_an_arm_drops_the_options_of_the_first() -> None:
    raw = TABLES | {"arms": {"a": {"algorithm": {"name": "fedfv", "alpha": 0.2}}, "b": {}}}
    changed, same = load_config(raw, {"arms.a.algorithm.name": "fedlf"})
    assert changed.algorithm.options == {}
    assert same.algorithm.name == TABLES.get("algorithm", {"name": "fedavg"})["name"]
    (kept, _) = load_config(raw, {"arms.a.algorithm.name": "fedfv", "arms.a.algorithm.tau": 2})
    assert kept.algorithm.options == {"alpha": 0.2, "tau": 2}


def test_an_arm_without_a_name_has_options_of_the_plug_in_that_it_inherits() -> None:
    base = {"algorithm": {"name": "fedexp"}, "stop": {"steps": 2, "metric": "loss", "target": 1.0}}
    base |= {"evaluate": {"every_steps": 1}, "world": {"scenario": "diurnal"}}
    arm = {"algorithm": {"weighting": "uniform"}, "stop": {"rising": False}}
    raw = (
        TABLES
        | base
        | {"arms": {"a": arm | {"world": {"options": {"time_zones": 2}, "after_end": "repeat"}}}}
    )
    (default,) = load_config(raw, {"arms.a.algorithm.name": "fedavg", "arms.a.stop.metric": "mean_percent"})
    assert (default.algorithm.name, default.algorithm.options) == ("fedavg", {})
    assert default.stop.stop().rising
    (same,) = load_config(raw, {"arms.a.algorithm.name": "fedexp", "arms.a.world.scenario": "diurnal"})
    assert same.algorithm.options == {"weighting": "uniform"}
    assert same.world.options == {"time_zones": 2}
    (other,) = load_config(raw, {"arms.a.world.scenario": "churn"})
    assert other.world.options == {}


@pytest.mark.parametrize("key", ['arms."0.4"', "arms.0.4", "arms . '0.4'", "arms.x", 'arms."x"'])
def test_an_arm_may_be_named_in_quotes(key: str) -> None:
    arm = {"algorithm": {"name": "fedasync", "alpha": 0.4}}
    raw = TABLES | {"arms": {"0.4": arm, "x": arm}}
    runs = load_config(raw, [f"{key}.algorithm.name=fedfv"])
    (changed,) = [run for run in runs if run.algorithm.name == "fedfv"]
    assert changed.algorithm.options == {}
    assert changed.name.endswith("0.4" if "0.4" in key else "x")


def test_naming_the_default_plugin_is_no_change() -> None:
    wrap = {"wrap": [{"name": "server_opt"}]}
    raw = TABLES | {"algorithm": wrap, "arms": {"named": {"algorithm": {"name": "fedavg"}}, "not": {}}}
    named, not_named = load_config(raw)
    assert named.algorithm == not_named.algorithm
    (changed,) = load_config(TABLES | {"algorithm": wrap | {"q": 2}}, ["algorithm.name=qfedavg"])
    assert changed.algorithm.options == {}
    (same,) = load_config(TABLES | {"algorithm": wrap | {"weighting": "uniform"}}, ["algorithm.name=fedavg"])
    assert same.algorithm.options == {"weighting": "uniform"}


@pytest.mark.parametrize("key", ["pacing.clients", "pacing.minimum", "task.unseen"])
def test_one_as_a_fraction_is_no_number(key: str) -> None:
    """It would be one client where all may be meant."""
    periodic = ["pacing.preset=deadline", "pacing.deadline=1min"] if key == "pacing.minimum" else []
    assert load_config(TABLES, [*periodic, f"{key}=0.5"])
    with pytest.raises(
        ConfigError, match=rf"{key}: expected a whole number such as 1, or a share below 1, found 1.0"
    ):
        load_config(TABLES, [*periodic, f"{key}=1.0"])


@pytest.mark.parametrize(
    ("sets", "mode"),
    [
        (["model.name=mlp"], "loop"),
        (["client.name=plain"], "loop"),
        (['model={name="mlp",hidden=[8]}'], "loop"),
        (["model.name=softmax"], "auto"),
        (['model={name="softmax"}'], "auto"),
        (["client.name=fedprox", "client.mu=0.1"], "auto"),
        (["model.name=softmax", "train.mode=loop"], "loop"),
    ],
)
def test_another_model_or_client_method_drops_the_mode(sets: list[str], mode: str) -> None:
    tables = TABLES | {
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"mode": "loop"},
    }
    assert load_config(tables, sets)[0].train.mode == mode


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.lr", 0.25),
        ("train.lr", np.float64(1e-5)),
        ("seed", np.int64(7)),
        ("task.shuffle", False),
        ("task.fractions", (0.5, 0.25, 0.25)),
        ("stop.time", "2h"),
        ("name", 'no"quote'),
        ("model", {"name": "mlp", "hidden": [4]}),
        ("task.data_dir", Path("some/folder")),
    ],
)
def test_a_value_means_what_it_means_in_the_file(key: str, value: Any, tmp_path: Path) -> None:
    """The file is written by another library."""
    tables: dict[str, Any] = {table: dict(keys) for table, keys in TABLES.items()}
    table, _, name = key.rpartition(".")
    plain = (
        value.item() if isinstance(value, np.generic) else str(value) if isinstance(value, Path) else value
    )
    (tables.setdefault(table, {}) if table else tables)[name] = (
        list(plain) if isinstance(plain, tuple) else plain
    )
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(tables))
    try:
        expected: object = load_config(path)
    except ConfigError as error:
        expected = str(error).replace("run.toml", "config")
    try:
        found: object = load_config(TABLES, {key: value})
    except ConfigError as error:
        found = str(error)
    assert found == expected


def test_values_and_texts_are_the_same_changes() -> None:
    texts = ["algorithm.name=fedfv", "algorithm.alpha=0.4"]
    assert load_config(TABLES, texts) == load_config(
        TABLES, {"algorithm.name": "fedfv", "algorithm.alpha": 0.4}
    )
    assert assignments(texts) == texts


@pytest.mark.parametrize("value", [None, object(), {1, 2}])
def test_a_value_that_toml_lacks_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^sets: train\.lr: expected a number, text, .* found "):
        load_config(TABLES, {"train.lr": value})


def test_a_wrong_key_in_a_dict_is_named() -> None:
    with pytest.raises(ConfigError, match="config: sede: unknown key; did you mean 'seed'"):
        load_config(TABLES | {"sede": 1})


def test_a_study_is_read_from_a_dict() -> None:
    tables = {
        "name": "two",
        "seeds": 2,
        "run": {key: value for key, value in small().resolved().items() if key not in ("name", "seed")},
        "axes": {"rule": {"a": {"algorithm": {"name": "fedavg"}}, "b": {"algorithm": {"name": "fedfv"}}}},
    }
    study = load_study(tables, sets={"run.stop.steps": 2}, seeds=[3, 5])
    assert study.seeds == (3, 5)
    assert study.run["stop"]["steps"] == 2
    assert load_study(tables, sets=["run.stop.steps=2"], seeds="3,5") == study
    with pytest.raises(ConfigError, match="study: expected a study, found the configuration of a run"):
        load_study(TABLES)


@pytest.mark.parametrize("scenario", ["churn", "always_on"])
def test_another_scenario_drops_the_options_of_the_first(scenario: str) -> None:
    options = {"mean_on": "1h", "mean_off": "2h"}
    raw = TABLES | {"world": {"scenario": "churn", "horizon": "2h", "options": options}}
    kept = options if scenario == "churn" else {}
    (by_arm,) = load_config(raw | {"arms": {"a": {"world": {"scenario": scenario}}}})
    (by_set,) = load_config(raw, {"world.scenario": scenario})
    for run in (by_arm, by_set):
        assert (run.world.scenario, run.world.options, run.world.horizon) == (scenario, kept, 7200 * 10**6)
    (own,) = load_config(raw, {"world.scenario": "diurnal", "world.options.time_zones": 2})
    assert own.world.options == {"time_zones": 2}
    (own,) = load_config(
        raw | {"arms": {"a": {"world": {"scenario": "diurnal", "options": {"time_zones": 2}}}}}
    )
    assert own.world.options == {"time_zones": 2}


FEDBUFF = {"preset": "fedbuff", "concurrency": 6, "buffer": 3, "least_candidates": 4}


def test_another_preset_drops_the_keys_that_only_the_first_needs() -> None:
    raw = TABLES | {"pacing": FEDBUFF}
    changes = {"preset": "sync", "clients": 5}
    (by_arm, _) = load_config(raw | {"arms": {"a": {"pacing": changes}, "b": {}}})
    (by_set,) = load_config(raw, {f"pacing.{key}": value for key, value in changes.items()})
    (arm, _) = load_config(
        raw | {"arms": {"a": {"pacing": {"buffer": 2}}, "b": {}}},
        {f"arms.a.pacing.{key}": value for key, value in changes.items()},
    )
    for run in (by_arm, by_set, arm):
        assert run.pacing.pacing() == replace(pacing.sync(5), least_candidates=4)
    (shared,) = load_config(raw, {"pacing.preset": "fedasync"})
    assert shared.pacing.pacing() == replace(pacing.fedasync(6), least_candidates=4)
    (same,) = load_config(raw, {"pacing.preset": "fedbuff", "pacing.buffer": 2})
    assert same.pacing.pacing() == replace(pacing.fedbuff(6, 2), least_candidates=4)
    factor = {"pacing": {"preset": "overselect", "clients": 4, "factor": 1.5}}
    (waits,) = load_config(TABLES | factor, {"pacing.preset": "sync"})
    assert waits.pacing.pacing() == pacing.sync(4)


def test_a_key_of_a_preset_that_each_arm_leaves_is_refused() -> None:
    arms = {"a": {"pacing": {"preset": "sync", "clients": 5}}, "b": {"pacing": {"preset": "fedasync"}}}
    with pytest.raises(
        ConfigError, match=r"pacing.buffer: no effect, as each of arms.a, arms.b names another preset"
    ):
        load_config(TABLES | {"pacing": FEDBUFF, "arms": arms})

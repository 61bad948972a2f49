"""What a newcomer is told who writes the words of another framework, or a name in the wrong table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.config.errors import models_in
from fedsim.config.load import load_config, parse
from fedsim.config.run import RunConfig
from fedsim.config.section import PluginSection
from fedsim.config.suggestions import ADVICE, KEYS, NAMES, key_text, name_hint
from fedsim.engine.pacing import Preset
from fedsim.studies.load_study import load_study

RAW: dict[str, Any] = {
    "task": {"name": "digits", "clients": 12},
    "partition": {"name": "dirichlet"},
    "pacing": {"clients": 4},
    "stop": {"steps": 8},
}

MISTAKES = {
    "a client method as a rule": (
        {"algorithm": {"name": "fedprox"}},
        "there is no rule 'fedprox': it is a client method: client.name = \"fedprox\"",
    ),
    "a rule as a client method": ({"client": {"name": "fedavg"}}, 'it is a rule: algorithm.name = "fedavg"'),
    "a rule as a selector": ({"selection": {"name": "term"}}, 'it is a rule: algorithm.name = "term"'),
    "a selector as a rule": ({"algorithm": {"name": "oort"}}, 'it is a selector: selection.name = "oort"'),
    "a rule as a wrapper": (
        {"algorithm": {"wrap": [{"name": "fedfv"}]}},
        'it is a rule: algorithm.name = "fedfv"',
    ),
    "a wrapper as a rule": (
        {"algorithm": {"name": "with_absent"}},
        'it is a wrapper: [[algorithm.wrap]] with name = "with_absent"',
    ),
    "a preset as a rule": (
        {"algorithm": {"name": "sync"}},
        'it is a pacing preset: pacing.preset = "sync"',
    ),
    "a rule as a preset": (
        {"pacing": {"preset": "fedavg", "clients": 4}},
        'it is a rule: algorithm.name = "fedavg"',
    ),
    "two kinds have the name": (
        {"client": {"name": "fedbuff"}},
        'it is a rule: algorithm.name = "fedbuff" and a pacing preset: pacing.preset = "fedbuff"',
    ),
    "a name of another kind with an error": (
        {"algorithm": {"name": "fedprx"}},
        'did you mean a client method: client.name = "fedprox"?',
    ),
    "capitals": ({"algorithm": {"name": "FedAvg"}}, "there is no rule 'FedAvg': here it is 'fedavg'"),
    "another framework's strategy": (
        {"algorithm": {"name": "FedAdam"}},
        '[[algorithm.wrap]] with name = "server_opt"',
    ),
    "another framework's pacing": ({"pacing": {"preset": "async"}}, "here it is 'fedasync'"),
    "another framework's metric": (
        {"stop": {"steps": 8, "metric": "accuracy", "target": 80}},
        "here it is 'mean_percent'",
    ),
    "a model of another name": ({"model": {"name": "ResNet18"}}, "here it is 'nfresnet'"),
    "a scenario as a task": (
        {"task": {"name": "diurnal", "clients": 12}},
        'it is a scenario: world.scenario = "diurnal"',
    ),
    "a task as a scenario": ({"world": {"scenario": "mnist"}}, 'it is a task: task.name = "mnist"'),
    "an attack as a client method": (
        {"client": {"name": "sign_flip"}},
        'it is an attack: adversary.name = "sign_flip"',
    ),
    "a learning rate at the top": ({"learning_rate": 0.1}, "learning_rate: unknown key: here it is train.lr"),
    "a learning rate of the rule": (
        {"algorithm": {"learning_rate": 0.1}},
        "rule 'fedavg' has no option 'learning_rate': here it is train.lr",
    ),
    "rounds": ({"numRounds": 100}, "unknown key: here it is stop.steps"),
    "rounds of training": ({"train": {"num_rounds": 100}}, "unknown key: here it is stop.steps"),
    "clients at the top": ({"num_clients": 100}, "unknown key: here it is task.clients"),
    "a share of clients": (
        {"C": 0.1},
        "here it is pacing.clients, a number of clients or a share such as 0.1",
    ),
    "a fraction of clients, for a selector with a share": (
        {"selection": {"name": "divfl", "fraction_fit": 0.1}},
        "has no option 'fraction_fit': here it is pacing.clients, a number of clients or a share",
    ),
    "a fraction of attackers": (
        {"adversary": {"name": "zero", "fraction": 0.2}},
        "adversary 'zero' has no option 'fraction': here it is share, such as 0.2",
    ),
    "local epochs": ({"train": {"local_epochs": 5}}, "here it is train.epochs"),
    "an optimiser": ({"train": {"optimizer": "adam"}}, "clients train by SGD: train.lr"),
    "an optimiser, in the server's": (
        {"algorithm": {"name": "fedavg", "wrap": [{"name": "server_opt", "optimizer": "adam"}]}},
        'is [[algorithm.wrap]] with name = "server_opt"; known: betas, kind, lr, tau',
    ),
    "Dirichlet's alpha": ({"task": RAW["task"] | {"dirichlet_alpha": 0.1}}, "here it is partition.alpha"),
    "loss by chance": ({"dropout_rate": 0.1}, "here it is dropout.chance"),
    "several seeds": ({"seeds": [1, 2]}, "--seeds 5"),
    "a device": ({"device": "cuda"}, "--device cuda"),
    "no pacing": ({"pacing": None}, "pacing: missing; give [pacing]: clients = 10"),
    "no name of a task": (
        {"task": {"clients": 12}},
        "task.name: missing; the name of a task: adult, cifar10",
    ),
    "an option of a scenario": (
        {"world": {"scenario": "diurnal", "night_share": 0.3}},
        "an option of a scenario stands in [world.options]: world.options.night_share",
    ),
    "a word for another": ({"pacing": {"clients": 4, "late": "keeps"}}, "did you mean 'keep'?"),
}


def told(raw: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse({key: value for key, value in raw.items() if value is not None}, "run.toml", "run")
    return str(caught.value)


@pytest.mark.parametrize(("changes", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_newcomer_is_told_what_to_write(changes: dict[str, Any], words: str) -> None:
    assert words in told(RAW | changes)


def test_an_option_like_one_of_the_plug_in_comes_before_the_words_of_others() -> None:
    assert "did you mean 'dropout'?" in told(RAW | {"model": {"name": "cnn", "dropout_rate": 0.1}})


def test_the_same_hint_comes_for_files_assignments_and_studies(tmp_path: Path) -> None:
    run, study = tmp_path / "one.toml", tmp_path / "two.toml"
    run.write_text(tomli_w.dumps(RAW))
    with pytest.raises(ConfigError, match=r"train\.batch: unknown key: here it is train\.batch_size"):
        load_config(run, ("train.batch=10",))
    study.write_text(tomli_w.dumps({"name": "two", "seeds": 1, "run": RAW, "lr": 0.1}))
    with pytest.raises(ConfigError, match=r"two\.toml: lr: unknown key: here it is run\.train\.lr"):
        load_study(study)
    study.write_text(tomli_w.dumps({"name": "two", "seeds": 1, "run": RAW}))
    with pytest.raises(
        ConfigError, match=r"two\.toml: train: unknown key; it belongs to \[run\]: run\.train$"
    ):
        load_study(study, sets=["train.lr=0.1"])
    with pytest.raises(
        ConfigError, match=r"--set run\.train\.lr=0\.1,0\.2: expected one value, found several"
    ):
        load_study(study, sets=["run.train.lr=0.1,0.2"])
    with pytest.raises(ConfigError, match="--seeds: expected a number of seeds from 1 to 100,000"):
        load_study(study, seeds="0")
    with pytest.raises(ConfigError, match=r"one\.toml: arm: unknown key; did you mean 'arms'\?"):
        load_config(run, ("arm.x.algorithm.name=fedfv",))
    with pytest.raises(ConfigError, match=r"arm 'x': arms: unknown key; known: adversary, algorithm, audit"):
        load_config(run, ("arms.x.arms.y=1",))


def test_every_suggested_key_exists() -> None:
    tables = {
        key: (models_in(field.annotation) or [None])[0] for key, field in RunConfig.model_fields.items()
    }
    for text in (*KEYS, *ADVICE):
        for table, key in re.findall(r"\b([a-z_]+)\.([a-z_]+)\b", text):
            model = tables[table]
            assert model is not None
            assert key in model.model_fields or issubclass(model, PluginSection), f"{table}.{key}"
        for table, key, name in re.findall(r'\b([a-z_]+)\.([a-z_]+) = "([a-z_]+)"', text):
            section = tables[table]
            known = section is not None and issubclass(section, PluginSection) and plugins.names(section.kind)
            assert name in (known or get_args(Preset)), f"{table}.{key} = {name}"


def test_every_suggested_name_exists_and_no_name_of_its_kind_is_renamed() -> None:
    for kind, names in NAMES.items():
        known = get_args(Preset) if kind == "preset" else plugins.names(kind)
        assert set(names.values()) <= set(known), kind
        assert not set(names) & set(known), kind


def test_no_word_stands_for_two_keys() -> None:
    words = [word for group in (*KEYS.values(), *ADVICE.values()) for word in group.split()]
    assert sorted(words) == sorted(set(words))


def test_an_unknown_word_has_no_hint() -> None:
    assert key_text("xyzzy") == "" == name_hint("rule", "xyzzy")

"""Configurations: every mistake is named, with its place and the closest valid name, all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.config.load import load_config, parse
from fedsim.config.run import RunConfig
from fedsim.config.timing import CostSection
from fedsim.engine.pacing import Pacing
from small import small

GOOD: dict[str, Any] = {
    "task": {"name": "digits", "clients": 20},
    "partition": {"name": "iid"},
    "pacing": {"preset": "sync", "clients": 5},
    "stop": {"steps": 3},
}


def one(**changes: Any) -> RunConfig:
    return parse(GOOD | changes, "run.toml", "run")[0]


BAD = {
    "unknown key": ({"trian": {}}, ["run.toml", "trian", "did you mean 'train'"]),
    "unknown nested key": ({"train": {"epoch": 2}}, ["train.epoch", "did you mean 'epochs'"]),
    "wrong type": ({"train": {"lr": "fast"}}, ["train.lr", "'fast'"]),
    "out of range": ({"train": {"lr": -1}}, ["train.lr", "-1"]),
    "unknown rule": (
        {"algorithm": {"name": "fedavgg"}},
        ["algorithm", "no rule 'fedavgg'", "did you mean 'fedavg'"],
    ),
    "unknown option": (
        {"algorithm": {"name": "fedfv", "aplha": 0.1}},
        ["algorithm", "no option 'aplha'", "did you mean 'alpha'"],
    ),
    "option of wrong type": ({"algorithm": {"name": "fedfv", "tau": "long"}}, ["'tau'", "'long'"]),
    "option out of range": ({"algorithm": {"name": "fedfv", "alpha": 2}}, ["'alpha'", "2"]),
    "unknown scenario": ({"world": {"scenario": "diurnall"}}, ["world", "did you mean 'diurnal'"]),
    "unknown scenario option": (
        {"world": {"scenario": "churn", "options": {"mean_onn": "1h"}}},
        ["mean_onn", "did you mean 'mean_on'"],
    ),
    "unknown task": ({"task": {"name": "digit", "clients": 5}}, ["no task 'digit'", "did you mean 'digits'"]),
    "bad duration": ({"stop": {"time": "5 parsecs"}}, ["stop.time", "5 parsecs"]),
    "never ends": ({"stop": {}}, ["stop", "give 'steps', 'time', 'bytes' or 'wall'"]),
    "more clients than there are": (
        {"pacing": {"preset": "sync", "clients": 50}},
        ["pacing asks for 50 clients at once, but task.clients is 20"],
    ),
    "key of another preset": (
        {"pacing": {"preset": "fedasync", "concurrency": 5, "extra": 3}},
        ["does not use 'extra'; it uses concurrency"],
    ),
    "missing key of the preset": ({"pacing": {"preset": "fedbuff", "concurrency": 5}}, ["needs 'buffer'"]),
    "buffer above concurrency": (
        {"pacing": {"preset": "fedbuff", "concurrency": 3, "buffer": 5}},
        ["pacing", "larger than concurrency"],
    ),
    "two ways to over-select": (
        {"pacing": {"preset": "overselect", "clients": 5, "extra": 1, "factor": 1.3}},
        ["give 'extra' or 'factor', not both"],
    ),
    "another number of jobs than over-selection has": (
        {"pacing": {"preset": "overselect", "clients": 3, "extra": 2, "concurrency": 4}},
        ["has 'clients' + 'extra' jobs in flight: leave out 'concurrency'"],
    ),
    "a number of clients that other keys replace": (
        {"pacing": {"preset": "sync", "clients": 5, "concurrency": 6, "buffer": 3}},
        ["'clients' has no effect beside 'concurrency' and 'buffer'"],
    ),
    "fields that do not fit together": (
        {"pacing": {"preset": "fedbuff", "concurrency": 5, "buffer": 2, "late": "drop"}},
        ['late must be "keep"'],
    ),
    "unknown metric to watch": (
        {"stop": {"steps": 5, "metric": "mean_procent"}},
        ["did you mean 'mean_percent'"],
    ),
    "FLGo's own default": (
        {"cost": {"completeness": {"mode": "ADU"}}},
        ["cost.completeness", "expected high of at least 2, found 1"],
    ),
    "target that is no percentage": (
        {"stop": {"steps": 5, "target": 110}},
        ["stop", "target: expected a percentage, from 0 to 100, found 110"],
    ),
    "number without end": ({"train": {"weight_decay": float("inf")}}, ["train.weight_decay", "finite"]),
    "share that is no number": (
        {"task": GOOD["task"] | {"fractions": [float("nan"), 0.5, 0.5]}},
        ["fractions.0", "finite"],
    ),
    "target that is no number": ({"stop": {"steps": 5, "target": float("nan")}}, ["stop.target", "finite"]),
    "unknown way of leaving": ({"dropout": {"leave": "stay"}}, ["dropout.leave", "pause_resume"]),
    "unknown preset": ({"pacing": {"preset": "synch", "clients": 5}}, ["pacing.preset", "sync"]),
    "path as a name": ({"name": "../../etc"}, ["name", "../../etc"]),
    "negative seed": ({"seed": -1}, ["seed", "-1"]),
}


@pytest.mark.parametrize(("changes", "words"), BAD.values(), ids=BAD.keys())
def test_a_mistake_is_named(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        one(**changes)
    for word in words:
        assert word in str(caught.value)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        one(train={"lr": -1, "epochz": 1}, algorithm={"name": "fedavgg"}, stop={"steps": "many"})
    message = str(caught.value)
    for word in ("train.lr", "epochz", "fedavgg", "stop.steps"):
        assert word in message


def test_missing_tables_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({}, "empty.toml", "empty")
    for word in ("empty.toml", "task", "pacing", "stop"):
        assert word in str(caught.value)


def test_defaults_are_written_out_and_read_back(tmp_path: Path) -> None:
    config = one(algorithm={"name": "fedfv", "tau": 3}, world={"scenario": "diurnal", "horizon": "2d"})
    tables = config.resolved()
    assert tables["algorithm"]["alpha"] == 0.1
    assert tables["world"]["horizon"] == 2 * 86400
    path = tmp_path / "resolved.toml"
    path.write_text(tomli_w.dumps(tables))
    assert load_config(path)[0].resolved() == tables


def test_a_model_of_more_operations_than_the_reference_takes_longer() -> None:
    assert CostSection(reference_flops=100).work_formula(1000).scale == 10
    assert CostSection(reference_flops=100, compute_scale=3).work_formula(50).scale == 1.5


def test_presets_become_one_object() -> None:
    assert one(pacing={"preset": "deadline", "clients": 4, "deadline": "90s"}).pacing.pacing() == Pacing(
        4, 4, deadline_us=90_000_000
    )
    assert one(pacing={"preset": "overselect", "clients": 4, "extra": 2}).pacing.pacing() == Pacing(6, 4)
    buffered = one(pacing={"preset": "fedbuff", "concurrency": 9, "buffer": 2}).pacing.pacing()
    assert buffered == Pacing(9, 2, refill="arrival", late="keep")


def test_arms_are_laid_over_the_file() -> None:
    arms = {"a": {"algorithm": {"name": "fedfv", "tau": 2}}, "b": {"train": {"lr": 0.5}}}
    first, second = parse(GOOD | {"name": "x", "train": {"epochs": 2}, "arms": arms}, "x.toml", "x")
    assert (first.name, first.label, first.algorithm.name) == ("x/a", "a", "fedfv")
    assert (second.name, second.algorithm.name, second.train.lr, second.train.epochs) == (
        "x/b",
        "fedavg",
        0.5,
        2,
    )


def test_an_arm_with_another_plug_in_drops_the_options_below() -> None:
    base = GOOD | {"algorithm": {"name": "fedfv", "tau": 2}, "arms": {"a": {"algorithm": {"name": "fedavg"}}}}
    assert parse(base, "x.toml", "x")[0].algorithm.options == {}


@pytest.mark.parametrize("arms", [{}, {"a": 3}, ["a"]])
def test_bad_arms_are_refused(arms: Any) -> None:
    with pytest.raises(ConfigError, match="arms"):
        parse(GOOD | {"arms": arms}, "x.toml", "x")


def test_an_arm_has_the_name_of_its_table() -> None:
    with pytest.raises(ConfigError, match=r"arms\.a\.name: an arm has the name of its table"):
        parse(GOOD | {"arms": {"a": {"name": "b"}}}, "x.toml", "x")


def test_a_mistake_in_an_arm_names_the_arm() -> None:
    with pytest.raises(ConfigError, match="arm 'b'"):
        parse(GOOD | {"arms": {"a": {}, "b": {"seed": "x"}}}, "x.toml", "x")


def test_options_of_a_plug_in_that_no_arm_keeps_are_refused() -> None:
    arms = {"a": {"algorithm": {"name": "fedfv"}}, "b": {"algorithm": {"name": "fedlf"}}}
    with pytest.raises(
        ConfigError,
        match=r"config: algorithm\.memory: no effect, as each of arms\.a, arms\.b names another algorithm",
    ):
        load_config(GOOD | {"algorithm": {"memory": 5}, "arms": arms})
    some = {
        "a": {"algorithm": {"name": "fedlf"}},
        "b": {"algorithm": {"memory": 7}},
        "c": {"train": {"lr": 0.5}},
    }
    kept = load_config(GOOD | {"algorithm": {"name": "fedfv", "memory": 5}, "arms": some})
    assert [run.algorithm.memory for run in kept] == [0, 7 * US, 5 * US]
    written_out = {"algorithm": {"name": "qfedavg", "q": 2.0, "memory": 0, "wrap": [], "rows": "start"}}
    load_config(GOOD | written_out | {"arms": arms})  # defaults, and an option of another rule
    with pytest.raises(ConfigError, match=r"algorithm\.q: no effect"):
        load_config(GOOD | {"algorithm": {"q": 2.0}, "arms": arms})


def test_an_assignment_that_every_arm_replaces_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    arms = {
        "a": {"algorithm": {"name": "fedfv"}},
        "b": {"algorithm": {"name": "fedlf"}, "train": {"lr": 0.5}},
    }
    path.write_text(tomli_w.dumps(GOOD | {"arms": arms}))
    for text in ("algorithm.name=qfedavg", "algorithm.name=fedlf", "algorithm.alpha = 0.3"):
        with pytest.raises(
            ConfigError,
            match=r"no effect, as each of arms\.a, arms\.b .*such as arms\.a\.algorithm\.(name=|alpha)",
        ):
            load_config(path, (text,))
    assert [run.train.lr for run in load_config(path, ("train.lr=0.2",))] == [0.2, 0.5]
    both = load_config(path, ("algorithm.name=fedfv", "algorithm.alpha=0.4"))
    assert [run.algorithm.options for run in both] == [{"alpha": 0.4}, {}]
    assert load_config(path, ("seed=0", "seed=0"))[0].seed == 0, (
        "an assignment that changes nothing is allowed"
    )
    clients = 'adversary={name="scale", share=0.2}', "adversary.factor=3"
    path.write_text(tomli_w.dumps(GOOD | {"arms": arms, "adversary": [{"name": "noise", "share": 0.1}]}))
    assert [len(run.adversary) for run in load_config(path, clients)] == [1, 1], "the second needs the first"
    path.write_text(tomli_w.dumps(GOOD | {"arms": arms}))
    first, _ = load_config(path, ("arms.a.algorithm.alpha=0.3", "train.lr=1", "train.lr=2"))
    assert (first.algorithm.options, first.train.lr) == ({"alpha": 0.3}, 2)


def test_assignments_come_before_the_check(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(GOOD))
    config = load_config(
        path, ("algorithm.name=fedfv", "algorithm.alpha=0.3", "train.lr=0.5", "stop.time=2h")
    )[0]
    assert (config.algorithm.name, config.algorithm.options, config.train.lr) == (
        "fedfv",
        {"alpha": 0.3},
        0.5,
    )
    assert config.stop.time == 7200 * 10**6
    assert config.name == "run"


@pytest.mark.parametrize(
    ("share", "clients", "count"), [(0.1, 30, 3), (0.1, 23, 2), (0.29, 100, 29), (0.99, 5, 4), (0.001, 5, 1)]
)
def test_a_share_of_clients_is_rounded_down_to_at_least_one(share: float, clients: int, count: int) -> None:
    config = small(task={"name": "digits", "clients": clients}, pacing={"preset": "sync", "clients": share})
    assert config.pacing.clients == config.resolved()["pacing"]["clients"] == count
    task = {"name": "digits", "clients": float(clients)}
    assert small(task=task, pacing={"preset": "sync", "clients": share}).pacing.clients == count


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (1.5, "pacing.clients: .*a number with a fractional part"),
        (0.0, "pacing.clients"),
        (-0.1, "pacing.clients"),
    ],
)
def test_what_is_no_share_is_refused(share: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(pacing={"preset": "sync", "clients": share})


@pytest.mark.parametrize(
    ("rule", "own"),
    [
        ({"name": "fedfv", "order": "random"}, {"seed": 4}),
        ({"name": "fednova"}, {"momentum": 0.5}),
    ],
)
def test_options_whose_default_is_the_runs_are_resolved_only_where_written(
    rule: dict[str, Any], own: dict[str, Any]
) -> None:
    """Their default outside of runs is another one, with which the resolved file would be another run."""
    assert not own.keys() & one(algorithm=rule).resolved()["algorithm"].keys()
    assert one(algorithm=rule | own).resolved()["algorithm"].items() >= own.items()

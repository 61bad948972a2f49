"""The JSON schemas: they accept what fedsim accepts, and name the place of what is wrong."""

from __future__ import annotations

import json
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from fedsim import plugins
from fedsim.cli.main import main
from fedsim.config.load import parse
from fedsim.config.schema import run_schema, study_schema
from fedsim.studies.load_study import load_study
from small import small

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").rglob("*.toml"))
RAW: dict[str, Any] = {
    "name": "one",
    "task": {"name": "digits", "clients": 12},
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "world": {"scenario": "churn", "horizon": "2h", "options": {"mean_on": "10min"}},
    "pacing": {"preset": "fedbuff", "concurrency": 4, "buffer": 2},
    "algorithm": {
        "name": "fedlf",
        "lengths": "raw",
        "memory": "2h",
        "wrap": [{"name": "clipped", "norm": 2.0}],
    },
    "adversary": {"name": "sign_flip", "share": 0.2, "after": 60},
    "memory": {"budget": "8 GB"},
    "stop": {"steps": 8, "time": 3600.5},
}

WRONG_RUNS: dict[str, tuple[dict[str, Any], list[str | int]]] = {
    "unknown key": ({"sede": 1}, []),
    "unknown key of a table": ({"train.learning_rate": 0.1}, ["train"]),
    "unknown option": ({"algorithm.alpha": 0.1}, ["algorithm"]),
    "unknown rule": ({"algorithm.name": "fedprox"}, ["algorithm", "name"]),
    "unknown wrapper": ({"algorithm.wrap": [{"name": "fedlf"}]}, ["algorithm", "wrap", 0, "name"]),
    "wrapper without a name": ({"algorithm.wrap": [{"norm": 2.0}]}, ["algorithm", "wrap", 0]),
    "type of an option": ({"partition.alpha": "much"}, ["partition", "alpha"]),
    "unknown scenario": ({"world.scenario": "mnist"}, ["world", "scenario"]),
    "unknown option of a scenario": ({"world.options": {"mean_onn": "1h"}}, ["world", "options"]),
    "two worlds": ({"world.trace": "mine.parquet"}, ["world"]),
    "no number of clients": ({"task": {"name": "digits"}}, ["task"]),
    "no clients": ({"task.clients": 0}, ["task", "clients"]),
    "a preset without its keys": ({"pacing": {"preset": "fedbuff"}}, ["pacing"]),
    "the default preset without its key": ({"pacing": {}}, ["pacing"]),
    "unknown preset": ({"pacing.preset": "async"}, ["pacing", "preset"]),
    "a number as text": ({"train": {"lr": "fast"}}, ["train", "lr"]),
    "a duration without a number": ({"evaluate": {"every": "often"}}, ["evaluate", "every"]),
    "a negative size": ({"memory.budget": -1}, ["memory", "budget"]),
    "no end": ({"stop": {}}, ["stop"]),
    "no pacing": ({"pacing": None}, []),
    "unknown metric": ({"stop.metric": "accuracy"}, ["stop", "metric"]),
    "adversary without a name": ({"adversary": [{"share": 0.1}]}, ["adversary", 0]),
    "option of another plug-in without a name": ({"selection": {"percentile": 3}}, ["selection"]),
    "a rule of an arm": ({"arms": {"a": {"algorithm": {"name": "x"}}}}, ["arms", "a", "algorithm", "name"]),
    "unknown key of an arm": ({"arms": {"a": {"trian": {}}}}, ["arms", "a"]),
    "no arm": ({"arms": {}}, ["arms"]),
}

STUDY: dict[str, Any] = {
    "name": "grid",
    "seeds": 3,
    "run": {key: RAW[key] for key in ("task", "partition", "pacing", "stop")},
    "axes": {
        "rule": {"fedavg": {"algorithm": {"name": "fedavg"}}, "fedfv": {"algorithm": {"name": "fedfv"}}}
    },
    "compare": {"axis": "rule", "baseline": "fedavg", "metrics": ["mean_percent"]},
    "scales": {"small": {"seeds": [1], "run": {"stop": {"steps": 1}}}},
}
WRONG_STUDIES: dict[str, tuple[dict[str, Any], list[str | int]]] = {
    "unknown key": ({"axs": {}}, []),
    "no seeds": ({"seeds": 0}, ["seeds"]),
    "a run without a run": ({"run": None}, []),
    "a seed in the run": ({"run.seed": 1}, ["run"]),
    "unknown rule": (
        {"axes.rule.fedfv.algorithm.name": "x"},
        ["axes", "rule", "fedfv", "algorithm", "name"],
    ),
    "unknown key of a scale": ({"scales.small.runs": {}}, ["scales", "small"]),
    "unknown metric": ({"compare.metrics": ["accuracy"]}, ["compare", "metrics", 0]),
}


@pytest.fixture(scope="module")
def of_run() -> Draft202012Validator:
    return Draft202012Validator(run_schema())


@pytest.fixture(scope="module")
def of_study() -> Draft202012Validator:
    return Draft202012Validator(study_schema())


def changed(raw: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = deepcopy(raw)
    for path, value in changes.items():
        *tables, key = path.split(".")
        below = result
        for table in tables:
            below = below.setdefault(table, {})
        if value is None:
            del below[key]
        else:
            below[key] = value
    return result


def place_of_error(validator: Draft202012Validator, raw: dict[str, Any]) -> list[str | int]:
    error = best_match(validator.iter_errors(raw))
    assert error is not None
    return list((error.parent or error).absolute_path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_validates(
    path: Path, of_run: Draft202012Validator, of_study: Draft202012Validator
) -> None:
    raw = tomllib.loads(path.read_text())
    assert not [*(of_study if "seeds" in raw else of_run).iter_errors(raw)]


def test_the_schemas_are_schemas(of_run: Draft202012Validator, of_study: Draft202012Validator) -> None:
    for validator in (of_run, of_study):
        Draft202012Validator.check_schema(validator.schema)
        assert validator.schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(("changes", "place"), WRONG_RUNS.values(), ids=WRONG_RUNS.keys())
def test_a_wrong_run_is_refused_at_its_place(
    changes: dict[str, Any], place: list[str | int], of_run: Draft202012Validator
) -> None:
    of_run.validate(RAW)
    assert place_of_error(of_run, changed(RAW, changes)) == place


@pytest.mark.parametrize(("changes", "place"), WRONG_STUDIES.values(), ids=WRONG_STUDIES.keys())
def test_a_wrong_study_is_refused_at_its_place(
    changes: dict[str, Any], place: list[str | int], of_study: Draft202012Validator
) -> None:
    of_study.validate(STUDY)
    assert place_of_error(of_study, changed(STUDY, changes)) == place


@pytest.mark.parametrize("kind", ["rule", "client", "selector", "task", "model", "partitioner", "scenario"])
def test_every_plug_in_validates_with_all_defaults(kind: str, of_run: Draft202012Validator) -> None:
    tables = {"rule": "algorithm", "selector": "selection", "partitioner": "partition"}
    for name in plugins.names(kind):
        options = plugins.resolved(kind, name, {}, plugins.KINDS[kind].supplied)
        if kind == "scenario":
            raw = RAW | {"world": {"scenario": name, "options": options}}
        else:
            fixed = {"clients": 12} if kind == "task" else {}
            raw = RAW | {tables.get(kind, kind): {"name": name} | fixed | options}
        errors = [error for error in of_run.iter_errors(raw) if error.validator != "required"]
        assert not errors, (name, errors)


def test_code_elsewhere_has_any_options(of_run: Draft202012Validator) -> None:
    assert not [*of_run.iter_errors(RAW | {"algorithm": {"name": "mine.py:rule", "anything": 1}})]
    world = {"scenario": "mine.py:world", "options": {"anything": 1}}
    assert not [*of_run.iter_errors(RAW | {"world": world})]


def test_what_runs_write_validates(of_run: Draft202012Validator, of_study: Draft202012Validator) -> None:
    for config in (small(), parse(RAW, "one.toml", "one")[0]):
        assert not [*of_run.iter_errors(json.loads(json.dumps(config.resolved())))]
    study = load_study(ROOT / "examples/studies/smallest.toml")
    assert not [*of_study.iter_errors(json.loads(json.dumps(study.resolved())))]


def test_an_arm_may_add_what_the_file_lacks_and_change_an_option_of_its_rule(
    of_run: Draft202012Validator,
) -> None:
    raw = {key: RAW[key] for key in ("task", "partition", "pacing")}
    arms = {"short": {"stop": {"steps": 2}, "algorithm": {"fair_row": True}}}
    assert not [*of_run.iter_errors(raw | {"arms": arms})]


def test_keys_and_options_are_described(of_run: Draft202012Validator) -> None:
    defs = of_run.schema["$defs"]
    assert defs["TrainSection"]["properties"]["lr"]["description"] == "Learning rate."
    (diurnal,) = (c["then"] for c in defs["WorldConfig"]["allOf"] if "diurnal" in json.dumps(c["if"]))
    share = diurnal["properties"]["options"]["properties"]["night_share"]
    assert share["description"].startswith("A typical client's probability to be online")


def test_nothing_is_null_as_toml_has_no_such_value(
    of_run: Draft202012Validator, of_study: Draft202012Validator
) -> None:
    assert ["null" in json.dumps(validator.schema) for validator in (of_run, of_study)] == [False, False]


@pytest.mark.parametrize("of", ["run", "study"])
def test_the_command_prints_the_schema(of: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["schema", of])
    assert json.loads(capsys.readouterr().out) == (run_schema() if of == "run" else study_schema())

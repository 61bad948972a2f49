"""Reading TOML, assignments, and the messages of validation errors."""

import time
import tomllib
from typing import Annotated, Literal

import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedsim import Algorithm, Direction, Needs, stateless
from fedsim.common.errors import ConfigError
from fedsim.config.errors import assign, read_toml, validated
from fedsim.config.load import changed, parse
from small import small


class Leaf(BaseModel):
    model_config = ConfigDict(extra="forbid")
    buffer: int = 1
    deadline: float | None = None

    @field_validator("buffer")
    @classmethod
    def _even(cls, value):
        if value % 2 and value > 1:
            raise ValueError("should be even,\nor 1")
        return value


class Root(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    pacing: Leaf | None = None
    arms: dict[str, Leaf] = {}
    stages: list[Leaf] = []
    size: Annotated[int, Field(gt=0)] | Literal["full", "half"] = 1
    sizes: list[Annotated[int, Field(gt=0)] | Literal["full"]] = []


def lines_of_error(raw):
    with pytest.raises(ConfigError) as caught:
        validated(Root, raw, "run.toml")
    return str(caught.value).split("\n")


def test_a_valid_table_becomes_the_model():
    assert validated(Root, {"name": "x", "pacing": {"buffer": 4}}, "run.toml").pacing == Leaf(buffer=4)


def test_every_problem_is_one_line_with_file_key_and_the_closest_name():
    raw = {
        "nam": "x",
        "pacing": {"bufer": 3, "deadline": "soon"},
        "arms": {"a": {"deadlin": 1}},
        "stages": [{}, {"buffer": 3}, {"zzz": 0}],
    }
    assert lines_of_error(raw) == [
        "run.toml: name: missing",
        "run.toml: pacing.deadline: input should be a valid number, found 'soon'",
        "run.toml: pacing.bufer: unknown key; did you mean 'buffer'?",
        "run.toml: arms.a.deadlin: unknown key; did you mean 'deadline'?",
        "run.toml: stages.1.buffer: should be even,",
        "run.toml: stages.1.buffer: or 1",
        "run.toml: stages.2.zzz: unknown key; known: buffer, deadline",
        "run.toml: nam: unknown key; did you mean 'name'?",
    ]


def test_a_value_of_several_kinds_has_one_line():
    assert lines_of_error(
        {"name": "x", "size": "ful", "sizes": ["full", 0], "pacing": {"buffer": "x", "deadline": "x"}}
    ) == [
        "run.toml: pacing.buffer: input should be a valid integer, found 'x'",
        "run.toml: pacing.deadline: input should be a valid number, found 'x'",
        "run.toml: size: input should be a valid integer or 'full' or 'half', found 'ful'",
        "run.toml: sizes.1: input should be greater than 0 or 'full', found 0",
    ]


@pytest.mark.parametrize(
    ("assignment", "place"),
    [
        ("stop.steps=true", "stop.steps"),
        ("checkpoint.every_s=false", "checkpoint.every_s"),
        ("task.fractions=[true, 0, 0]", "task.fractions"),
        ("algorithm={name='fedfv', alpha=true}", "rule 'fedfv', option 'alpha'"),
        ("world.options.devices.fault_every=true", "scenario 'churn', option 'devices'"),
    ],
)
def test_truth_is_no_number(assignment, place):
    raw = small().resolved()
    with pytest.raises(
        ConfigError, match=f"{place}: expected a number, not true or false, found .*(True|False)"
    ):
        parse(changed(raw, [assignment]), "small.toml", "small")


def test_a_value_in_place_of_all_tables_is_refused():
    assert lines_of_error(3)[0].startswith("run.toml: expected a table, found 3")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": 1}),
        ("a.b=0.5", {"a": {"b": 0.5}}),
        ("a.b = true", {"a": {"b": True}}),
        ("a=7d", {"a": "7d"}),
        ("a=churn", {"a": "churn"}),
        ('a="1"', {"a": "1"}),
        ("a=[1, 2]", {"a": [1, 2]}),
        ("a=x=y", {"a": "x=y"}),
        ("a=", {"a": ""}),
        ("a=1\nb=2", {"a": "1\nb=2"}),
    ],
)
def test_assignments_are_toml_values_or_bare_text(text, expected):
    config: dict[str, object] = {}
    assign(config, text)
    assert config == expected


def test_an_assignment_changes_one_key_only():
    config = {"a": {"b": 1, "c": 2}, "d": 3}
    assign(config, "a.b=9")
    assert config == {"a": {"b": 9, "c": 2}, "d": 3}


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", ".a=1"])
def test_texts_without_a_key_or_a_sign_are_refused(text):
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        assign({}, text)


def dotted(parts: int) -> str:
    return ".".join(["a"] * parts) + "=1"


@pytest.mark.parametrize("parts", [2_000, 50_000])
def test_a_key_of_thousands_of_parts_is_refused_at_once(tmp_path, parts):
    start_s = time.process_time()
    with pytest.raises(ConfigError, match=f"expected a key of at most 100 parts, found {parts:,}") as caught:
        assign({}, dotted(parts))
    assert len(str(caught.value)) < 400
    (file := tmp_path / "long.toml").write_text(dotted(parts))
    with pytest.raises(ConfigError, match=f"expected keys of at most 100 parts, found one of {parts:,}"):
        read_toml(file)
    assert time.process_time() - start_s < 1


def test_a_key_of_a_hundred_parts_is_read(tmp_path):
    (file := tmp_path / "long.toml").write_text(dotted(100))
    assign(table := {}, dotted(100))
    assert table == read_toml(file)


def test_dots_in_values_are_no_parts_of_keys(tmp_path):
    (file := tmp_path / "many.toml").write_text("x = [" + "1.5, " * 1_000 + "]\ny = '" + "a.b " * 500 + "'")
    assert len(read_toml(file)["x"]) == 1_000


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(ConfigError) as caught:
        validated(Root, {"name": "x", "size": "x" * 100_000}, "file")
    assert len(str(caught.value)) < 400
    assert "(100,002 signs)" in str(caught.value)


def _by_loss() -> Algorithm:
    return stateless(lambda stack: Direction(stack.losses), Needs(losses=True))


TEXT = "input should be a valid string"
FILE = "save the function in a file (in a notebook: %%writefile FILE.py), and write 'FILE.py:"
CODE = {
    "a function as a name": (
        {"algorithm": {"name": _by_loss}},
        f"algorithm.name: {TEXT}, found function: {FILE}_by_loss'",
    ),
    "a function as a table": (
        {"algorithm": _by_loss},
        f"algorithm: expected a table, such as algorithm.KEY = VALUE, found function: {FILE}_by_loss'",
    ),
    "what a function made": (
        {"algorithm": {"name": _by_loss()}},
        f"algorithm.name: {TEXT}, found Algorithm: {FILE}FUNCTION'",
    ),
    "a lambda": (
        {"selection": {"name": lambda: None}},
        f"selection.name: {TEXT}, found function: {FILE}FUNCTION'",
    ),
    "a model": (
        {"model": {"name": torch.nn.Linear}},
        f"model.name: {TEXT}, found type: pass it beside the configuration, model=...",
    ),
}


@pytest.mark.parametrize(("tables", "told"), CODE.values(), ids=CODE)
def test_code_in_place_of_a_name_is_told_where_to_go(tables, told):
    with pytest.raises(ConfigError) as caught:
        small(**tables)
    assert str(caught.value).endswith(told)


def test_an_assignment_into_a_value_is_refused():
    with pytest.raises(ConfigError, match=r"--set a.b.c=1: a.b is 3, not a table"):
        assign({"a": {"b": 3}}, "a.b.c=1")


@given(
    st.one_of(
        st.integers(-(2**62), 2**62), st.booleans(), st.floats(allow_nan=False), st.lists(st.integers(0, 9))
    )
)
@settings(max_examples=60, deadline=None)
def test_any_toml_value_survives_an_assignment(value):
    config: dict[str, object] = {}
    text = tomli_w.dumps({"value": value}).partition("=")[2]
    assign(config, f"key={text}")
    assert config == {"key": tomllib.loads(f"v={text}")["v"]}


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.toml: there is no such file$"):
        read_toml(tmp_path / "run.toml")
    (tmp_path / "run1.toml").write_text("a = 1\nb = = 2\n")
    with pytest.raises(ConfigError, match=r"run\.toml: there is no such file; did you mean 'run1\.toml'\?"):
        read_toml(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match=r"run1\.toml: not valid TOML: .*line 2"):
        read_toml(tmp_path / "run1.toml")
    with pytest.raises(ConfigError, match=r"expected a TOML file, found a folder$"):
        read_toml(tmp_path)
    (tmp_path / "study.toml").touch()
    with pytest.raises(ConfigError, match=r"expected a TOML file, found a folder; it holds .*study\.toml"):
        read_toml(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'a = "\xe9"')
    with pytest.raises(ConfigError, match=r"latin\.toml: cannot be read"):
        read_toml(tmp_path / "latin.toml")

"""The pages made from the code name every key, option, command and public name, with ranges, defaults and meanings."""

from __future__ import annotations

import csv
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import BaseModel, Field

import fedsim
import reference_pages
from fedsim import analysis, plugins
from fedsim.cli.main import app
from fedsim.common.option_requirements import Unless, Where, With
from fedsim.config.run import RunConfig
from fedsim.config.section import Count, Size
from fedsim.config.study.study import StudyConfig
from fedsim.config.world import Duration
from option_tables import attribute_docs, in_words, option_table, tables_inside
from reference_pages import LISTS, TITLES

ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return {path.stem: text for path, text in reference_pages.pages()}


def sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, below, _ in tables_inside(model):
        yield from sections(below, f"{path}.{name}" if path else name)


def rows(text: str) -> dict[str, list[str]]:
    return {name: re.split(r" (?<!\\)\| ", rest) for name, rest in ROW.findall(text)}


@pytest.mark.parametrize("model", [RunConfig, StudyConfig], ids=lambda m: m.__name__)
def test_every_key_has_a_row_with_its_meaning(model: type[BaseModel], written: dict[str, str]) -> None:
    half = written["configuration"].partition("\n## A study\n")[0 if model is RunConfig else 2]
    for path, section in sections(model):
        if not path:
            text = half.partition("\n### ")[0]
            keys = set(section.model_fields) - {name for name, _, _ in tables_inside(section)}
        else:
            (text,) = re.findall(
                rf"^### `\[+{re.escape(path)}\]+`\n(.*?)(?=^### |\Z)", half, re.MULTILINE | re.DOTALL
            )
            keys = set(section.model_fields)
        found = rows(text)
        assert set(found) == keys, path
        assert not [key for key in keys if len(found[key][-1]) < 10], f"[{path}]: keys without a docstring"


def test_every_kind_of_plugin_has_its_page(written: dict[str, str]) -> None:
    assert set(TITLES) == set(plugins.KINDS)
    for kind in TITLES:
        headings = re.findall(r"^## (\w+)$", written[LISTS[kind]], re.MULTILINE)
        assert headings == sorted(plugins.shipped(kind)), kind


@pytest.mark.parametrize("kind", sorted(set(TITLES) - {"metric"}))
def test_the_options_of_plugins_are_those_that_a_configuration_may_set(
    kind: str, written: dict[str, str]
) -> None:
    for part in re.split(r"^## ", written[LISTS[kind]], flags=re.MULTILINE)[1:]:
        name, _, text = part.partition("\n")
        options = plugins.resolved(kind, name, {}, plugins.KINDS[kind].supplied)
        shown = rows(text.partition(":::")[0])
        assert set(options) <= set(shown), name
        refused = "no_such_option"
        with pytest.raises(fedsim.ConfigError, match=refused):
            plugins.check(kind, name, {refused: 1}, plugins.KINDS[kind].supplied)


def test_oort_has_the_docstrings_of_its_options(written: dict[str, str]) -> None:
    oort = rows(written["selectors"].partition("\n## oort\n")[2].partition("\n## ")[0])
    assert oort["percentile"][:2] == ["a number from 0 to 100", "`30`"]
    assert (
        oort["pacer_delta"][2]
        == 'Change of the percentile. Only with `variant = "fedscale"`. Not with `pacer = 0`.'
    )


def test_what_fedsim_passes_to_a_factory_is_no_option(written: dict[str, str]) -> None:
    passed = {kind: set(facts.supplied) for kind, facts in plugins.KINDS.items() if facts.supplied}
    assert passed["wrapper"] == {"rule"}
    for kind, hidden in passed.items():
        assert not hidden & set(rows(written[LISTS[kind]])), kind


def test_every_command_and_option_has_its_place(written: dict[str, str]) -> None:
    def walk(command: Any, path: str) -> Iterator[tuple[str, set[str]]]:
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, f"{path} {name}")
        if not hasattr(command, "commands"):
            yield path, {opt for p in command.params for opt in p.opts if opt.startswith("--")}

    parts = dict(
        re.findall(r"^## (fedsim [^\n]*)\n(.*?)(?=^## |\Z)", written["commands"], re.MULTILINE | re.DOTALL)
    )
    expected = dict(walk(typer.main.get_command(app), "fedsim"))
    assert set(parts) == set(expected)
    for command, options in expected.items():
        assert {
            o for o in options if not re.search(rf"^\| `[^`]*{o}\b", parts[command], re.MULTILINE)
        } == set()


@pytest.mark.parametrize(("module", "page"), [(fedsim, "python"), (analysis, "python_analysis")])
def test_every_public_name_is_given_to_autodoc(module: Any, page: str, written: dict[str, str]) -> None:
    named = re.findall(rf"^\.\. auto(\w+):: {module.__name__}\.(\w+)$", written[page], re.MULTILINE)
    assert sorted(name for _, name in named) == sorted(set(module.__all__) - {"analysis"})
    for kind, name in named:
        value = getattr(module, name)
        assert (kind in ("class", "exception")) == isinstance(value, type), name
        assert (kind == "function") == inspect.isfunction(value), name


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bool, "`true` or `false`"),
        (Count, "a whole number from 1"),
        (Annotated[float, Field(ge=0, lt=1)], "a number from 0 to below 1"),
        (Annotated[float, Field(gt=0, le=1)] | None, "a number above 0 and up to 1"),
        (Annotated[int, Field(ge=1)] | Literal["all"], 'a whole number from 1 or `"all"`'),
        (Duration, "a duration"),
        (Size | None, "a size"),
        (tuple[float, float], "a list of 2 values, each a number"),
        (tuple[int, ...], "a list, each a whole number"),
        (Annotated[Count, With("mode", "a")], "a whole number from 1"),
    ],
)
def test_values_in_words(annotation: Any, words: str) -> None:
    assert in_words(annotation) == words


class Base(BaseModel):
    """Fields of a table."""

    first: Annotated[int, With("second", "a", "b")] = 1
    """Before the
    line break."""
    second: str | None = None
    third: Annotated[float, Unless("second", None), Where(lambda o: False, "on Sundays")] = 0.5


def test_a_table_has_defaults_and_requirements() -> None:
    table = option_table(Base, {"first": "What | it is."})
    assert table.splitlines()[2:] == [
        '| `first` | a whole number | `1` | What \\| it is. Only with `second = "a"` or `second = "b"`. |',
        "| `second` | text | none |  |",
        "| `third` | a number | `0.5` | Only with `second`. No effect on Sundays. |",
    ]


def test_docstrings_of_fields_are_found_in_bases_too() -> None:
    selection = RunConfig.model_fields["selection"].annotation
    assert isinstance(selection, type)
    assert attribute_docs(selection)["name"].startswith("Name of the selector")


def test_the_page_of_published_traces_has_every_file_of_the_table(
    written: dict[str, str], root: Path
) -> None:
    with (root / "docs" / "published_traces.csv").open(encoding="utf-8", newline="") as file:
        told = list(csv.DictReader(file))
    page = written["published_traces"]
    assert len(told) > 600
    for row in told:
        section = page.partition(f"\n## {row['file'].partition('/')[0]}\n")[2].partition("\n## ")[0]
        line = f"| `{row['file'].partition('/')[2]}` | "
        line += row["refused"] or f"`{row['format']}` | {row['clients']} | {row['intervals']} | {row['span']}"
        assert f"{line} |\n" in section, row["file"]

"""The defaults that the manual's tables print are those of the plug-ins and of the configuration."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fedsim import plugins
from fedsim.common.files import from_toml
from fedsim.config.run import AlgorithmSection, TaskSection
from fedsim.config.timing import CostSection, DropoutSection, EvaluateSection, StopSection
from fedsim.config.train import TrainSection
from fedsim.config.world import WorldConfig
from fedsim.plugins.options import options_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {
    "rule": "rules.md",
    "wrapper": "rules.md",
    "client": "clients.md",
    "selector": "selection.md",
    "adversary": "adversaries.md",
}
_REQUIRED = inspect.Parameter.empty
_PRINTED = re.compile(r"`(\w+)` \(([^()]*)\)")
"""An option and what stands in brackets behind it, of which the first word is the default."""


def rows(page: str) -> dict[str, str]:
    """Return the lines of the tables of a page whose first cell is a name."""
    lines = (DOCS / page).read_text().splitlines()
    return {m[1]: line for line in lines if (m := re.match(r"\| `(\w+)` \|", line))}


def printed(line: str) -> dict[str, str]:
    """Return what a row prints in brackets behind its options."""
    return dict(_PRINTED.findall(line))


def read(said: str, default: Any) -> Any:
    """Return the default that is printed, as the signature has it; None for one in plain words."""
    if isinstance(default, tuple):
        return tuple(from_toml(f"v = [{said}]")["v"])
    first = said.partition(",")[0].strip()
    if isinstance(default, str) and (first.startswith("`") or default == first):
        return first.strip("`")
    try:
        return from_toml(f"v = {first}")["v"]
    except ValueError:
        return first if first.startswith("`") else None


PLUGINS = [(kind, name) for kind in PAGES for name in plugins.names(kind)]


STANDS_FOR_NONE = {("clipped", "median_multiple"): 1}
"""Numbers that are taken where an option is left out."""


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_a_row_prints_the_defaults_of_its_plugin(kind: str, name: str) -> None:
    options = options_of(plugins.factory(kind, name), plugins.KINDS[kind].supplied)
    said = printed(rows(PAGES[kind])[name])
    assert set(said) <= set(options)
    defaults = {
        option: options[option].default for option in said if options[option].default is not _REQUIRED
    }
    expected = {key: STANDS_FOR_NONE.get((name, key), default) for key, default in defaults.items()}
    assert {key: read(said[key], defaults[key]) for key in defaults} == expected


def test_enough_defaults_are_printed_for_this_to_mean_something() -> None:
    assert sum(len(printed(rows(PAGES[kind])[name])) for kind, name in PLUGINS) > 60


def test_oorts_own_table_prints_its_defaults() -> None:
    table = (DOCS / "selection.md").read_text().partition("## Oort")[2].partition("\n## ")[0]
    options = options_of(plugins.factory("selector", "oort"))
    found = re.findall(r"`(\w+)` (?:α = )?([\d.]+)", table)
    assert {option for option, _ in found} == {"uncertainty", "penalty", "barred_share", "fairness"}
    assert {option: float(number) for option, number in found} == {o: options[o].default for o, _ in found}


SECTIONS: dict[str, type[BaseModel]] = {
    "task": TaskSection,
    "world": WorldConfig,
    "train": TrainSection,
    "algorithm": AlgorithmSection,
    "evaluate": EvaluateSection,
    "cost": CostSection,
    "dropout": DropoutSection,
    "stop": StopSection,
}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_configurations_tables_print_the_defaults_of_its_models(name: str) -> None:
    text = (DOCS / "config.md").read_text().partition(f"\n`[{name}]`")[2]
    table, fields, compared = (
        text.partition("\n\n`[")[0].partition("\n## ")[0],
        SECTIONS[name].model_fields,
        0,
    )
    for keys, defaults in re.findall(r"^\| ([^|]+) \| .* \| ([^|]+) \|$", table, re.MULTILINE):
        names, said = re.findall(r"`(\w+)`", keys), re.split("[,;] ", defaults)
        assert set(names) <= set(fields)
        for key, text in zip(names, said, strict=False):
            try:
                value = from_toml(f"v = {text.strip('`')}")["v"]
            except ValueError:
                value = None
            expected = fields[key].default
            if value is not None and isinstance(expected, bool | int | float | str):
                compared += 1
                assert value == expected, key
    assert compared

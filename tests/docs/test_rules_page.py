"""The page about rules: every rule and wrapper has its row, and the row names every option."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.plugins import factory, names
from fedsim.plugins.options import options_of

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
SHARED = {"fedavg_n": {"lambda0", "server_lr", "decay"}, "qfedsgd": {"q", "lr", "L", "guard"}}
"""Options that a row gives by reference to another one's."""


def row_of(name: str) -> str:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"{name} has {len(rows)} rows in {PAGE.name}"
    return rows[0]


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ("rule", "wrapper") for n in names(k)])
def test_row_names_every_option(kind: str, name: str) -> None:
    row = row_of(name)
    for option in set(options_of(factory(kind, name), ["rule"])) - SHARED.get(name, set()):
        assert f"`{option}`" in row, f"option {option!r} of {name} is missing in {PAGE.name}"


def test_page_has_no_rule_that_does_not_exist() -> None:
    tables = [line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert {name.strip("`") for name in tables} == {*names("rule"), *names("wrapper")}

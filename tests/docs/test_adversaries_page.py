"""The page about adversaries: every attack has its row, and the row names every option."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.config.adversary import AdversarySection
from fedsim.plugins import factory, names
from fedsim.plugins.options import options_of

PAGE = Path(__file__).parents[2] / "docs" / "adversaries.md"


@pytest.mark.parametrize("name", names("adversary"))
def test_row_names_every_option(name: str) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"{name} has {len(rows)} rows in {PAGE.name}"
    for option in options_of(factory("adversary", name)):
        assert f"`{option}`" in rows[0], f"option {option!r} of {name} is missing in {PAGE.name}"


def test_options_do_not_hide_behind_the_keys_of_all_attacks() -> None:
    for name in names("adversary"):
        assert not set(options_of(factory("adversary", name))) & set(AdversarySection.model_fields)


def test_every_key_of_the_table_is_documented() -> None:
    text = PAGE.read_text()
    for key in AdversarySection.model_fields:
        assert f"`{key}`" in text or f"{key} = " in text, key

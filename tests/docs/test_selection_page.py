"""The page about selectors: every selector has its row, every option is named, and the example works."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.plugins import factory, names
from fedsim.plugins.options import options_of
from views import choose, stated, used_view, view

PAGE = Path(__file__).parents[2] / "docs" / "selection.md"


def rows() -> dict[str, str]:
    found = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {line.split("|")[1].strip(" `"): line for line in found}


@pytest.mark.parametrize("name", names("selector"))
def test_row_names_every_option(name: str) -> None:
    row = rows()[name]
    where = PAGE.read_text() if "see below" in row else row
    for option in options_of(factory("selector", name)):
        assert f"`{option}`" in where, f"option {option!r} of {name} is missing in {PAGE.name}"


def test_page_has_no_selector_that_does_not_exist() -> None:
    assert set(rows()) == set(names("selector"))


def test_example_gives_clients_a_rest() -> None:
    scope: dict[str, Any] = {}
    exec(PAGE.read_text().split("```python\n")[1].split("```")[0], scope)
    selector = scope["rested"](rest=2)
    state, chosen = selector.start(), []
    for _ in range(5):
        some, state = choose(selector, view(6), 2, len(chosen), state)
        chosen.append(some)
    assert sorted(np.ravel(chosen[:3])) == list(range(6))
    assert not any(set(a) & set(b) for a, b in pairwise(chosen))


def test_page_lists_the_selectors_that_state_no_probabilities() -> None:
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith("| nothing | `"))
    silent = {
        name
        for name in names("selector")
        if name != "replayed" and np.isnan(stated(name, used_view(10), 3)[0].inclusion).all()
    }
    assert set(re.findall(r"`(\w+)`", row)) == silent - {"weighted"}
    assert np.isnan(stated("weighted", used_view(10), 3)[0].inclusion).all(), "for several of unequal sizes"

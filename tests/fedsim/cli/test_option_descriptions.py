"""Options in words: what each may be, its default, its meaning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from fedsim import plugins
from fedsim.cli.option_descriptions import described_options
from fedsim.common.option_requirements import Unless, With
from fedsim.plugins.options import documentation, field_docstrings, options_of, plain


class Speeds(BaseModel, frozen=True):
    """A table of options."""

    median: Annotated[float, Field(gt=0)] = 2.0
    """Median speed,
    in samples per second."""
    spread: float = 0.5


FAST = Speeds(median=7.0)


@dataclass(frozen=True, kw_only=True)
class Base:
    """Options of a base class."""

    width: Annotated[int, Field(ge=1)] = 3
    """Width."""


Level = TypeAliasType("Level", Annotated[float, Field(ge=0, le=1)])
"""As `type Level = ...` makes from Python 3.12 on."""


@dataclass(frozen=True, kw_only=True)
class Mine(Base):
    """Options of a class."""

    form: Literal["long", "short", 3] = "long"
    """Form."""
    share: Annotated[float, Field(ge=0, le=1), With("form", "short")] | None = None
    quiet: Annotated[bool, Unless("width", 0), With("form", None)] = False
    """Whether it is quiet."""
    layers: Sequence[Annotated[int, Field(ge=1)]] = (4, 5)
    pair: tuple[float, bool] = (1.0, True)
    level: Level = 0.5
    wait: str | float = "2h"
    file: Path
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    speeds: Speeds = FAST
    other: Speeds | None = None


def factory(options: Mine, supplied: int) -> None:
    """Make nothing."""


def test_every_annotation_is_said_in_words() -> None:
    found = {o.name: (o.takes, o.default, o.meaning) for o in described_options(factory, ("supplied",))}
    assert found == {
        "width": ("a whole number of at least 1", "3", "Width."),
        "form": ('"long", "short" or 3', '"long"', "Form."),
        "share": ("a number from 0 to 1", "none", ""),
        "quiet": ("true or false", "false", "Whether it is quiet. Not with width = 0. Only without 'form'."),
        "layers": ("a list of whole numbers of at least 1", "[4, 5]", ""),
        "pair": ("[a number, true or false]", "[1.0, true]", ""),
        "level": ("a number from 0 to 1", "0.5", ""),
        "wait": ("text or a number", '"2h"', ""),
        "file": ("a path", "required", ""),
        "seed": ("a whole number of at least 0", "0", ""),
        "speeds.median": ("a number above 0", "7.0", "Median speed, in samples per second."),
        "speeds.spread": ("a number", "0.5", ""),
        "other": ("a table of median, spread", "none", ""),
    }


def test_docstrings_of_fields_are_those_of_all_bases() -> None:
    assert field_docstrings(Mine) == {"width": "Width.", "form": "Form.", "quiet": "Whether it is quiet."}
    assert field_docstrings(int) == {}


@pytest.mark.parametrize("kind", [kind for kind in plugins.KINDS if kind != "metric"])
def test_defaults_are_those_that_the_factory_has(kind: str) -> None:
    for name in plugins.names(kind):
        make = plugins.factory(kind, name)
        supplied = plugins.KINDS[kind].supplied
        shown: dict[str, Any] = {}
        for option in described_options(make, supplied):
            outer, _, inner = option.name.partition(".")
            value = None if option.default == "none" else option.default
            if value not in (None, "required"):
                value = json.loads(option.default)
            if inner:
                shown.setdefault(outer, {})[inner] = value
            else:
                shown[outer] = value
        for option_name, parameter in options_of(make, supplied).items():
            found = shown[option_name]
            if isinstance(found, dict):
                assert {k: v for k, v in found.items() if v is not None} == plain(parameter.default)
            elif parameter.default is parameter.empty:
                assert found == "required"
            else:
                assert found == plain(parameter.default)


def _documented(*, q: float = 1.0, r: int = 2, s: str = "a") -> None:
    """Weigh by losses.

    Args:
        q: the exponent; 0 is the mean,
            and more is fairer.
        r, s: two things.

    Source: a paper.
    """


def test_the_arguments_of_a_docstring_explain_the_options() -> None:
    assert documentation(_documented) == (
        "Weigh by losses.\n\nSource: a paper.",
        {"q": "the exponent; 0 is the mean, and more is fairer.", "r": "two things.", "s": "two things."},
    )
    assert [each.meaning for each in described_options(_documented)] == list(
        documentation(_documented)[1].values()
    )
    assert documentation(lambda: None) == ("", {})


@pytest.mark.parametrize("kind", [kind for kind in plugins.KINDS if kind != "metric"])
def test_every_option_that_fedsim_ships_is_explained(kind: str) -> None:
    for name in plugins.shipped(kind):
        make = plugins.factory(kind, name)
        options = described_options(make, plugins.KINDS[kind].supplied)
        assert [option.name for option in options if not option.meaning] == [], name
        assert documentation(make)[1].keys() <= options_of(make).keys(), f"{name}: Args of other arguments"

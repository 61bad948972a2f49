"""What each rule promises of its weights, which the invariants of a run then check: a row as its paper has it."""

from __future__ import annotations

from typing import Any

import pytest

from fedsim.plugins import build

AVERAGES = frozenset({"convex"})


@pytest.mark.parametrize(
    ("name", "options", "promises"),
    [
        ("afl", {}, AVERAGES),
        ("afl", {"partial": "importance"}, frozenset()),  # the weights of those absent are missing
        ("afl", {"projection": "fair_flearn"}, frozenset()),  # that code's mixture is off the simplex
        ("afl", {"projection": "gfedplat"}, frozenset()),
        ("centred_clipping", {}, frozenset()),  # shortened updates
        ("coordinate_median", {}, frozenset()),  # no weights
        ("drfl", {}, AVERAGES),
        ("fedavg", {"weighting": "data"}, AVERAGES),
        ("fedavg", {"weighting": "uniform"}, AVERAGES),
        ("fedavg", {"weighting": "scaled"}, frozenset()),
        ("fedexp", {}, frozenset()),  # stretched
        ("fedfa", {}, AVERAGES),
        ("fedgini", {}, AVERAGES),
        ("fedmgda", {}, frozenset({"convex", "descent"})),
        ("fedmgda_plus", {}, frozenset()),  # rows are divided by their norms
        ("fedstaleweight", {}, AVERAGES),
        ("geometric_median", {}, AVERAGES),
        ("krum", {"keep": 3}, AVERAGES),
        ("mifa", {}, AVERAGES),
        ("refl", {}, AVERAGES),
        ("term", {"normaliser": "cohort"}, AVERAGES),
        ("term", {"normaliser": "running"}, frozenset()),
        ("term_released", {}, frozenset()),
        ("trimmed_mean", {}, frozenset()),
        ("fedmdfg", {}, frozenset({"descent"})),
        ("fedasync", {}, frozenset()),
        ("fedbuff", {}, frozenset()),
        ("qfedavg", {"lr": 0.5}, frozenset()),
    ],
)
def test_a_rule_promises_what_its_paper_gives(
    name: str, options: dict[str, Any], promises: frozenset[str]
) -> None:
    assert build("rule", name, options).promises == promises

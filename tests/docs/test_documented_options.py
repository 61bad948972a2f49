"""Options of rules, wrappers, client methods and selectors: defaults as on the pages, ranges as in the papers."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest

from fedsim.common.errors import ConfigError
from fedsim.plugins import KINDS, check, factory, names
from fedsim.plugins.options import options_of

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"rule": "rules.md", "wrapper": "rules.md", "client": "clients.md", "selector": "selection.md"}

IN_WORDS = {
    ("rule", "fedmdfg", "lr"), ("rule", "fedmgda_plus", "lr"), ("rule", "fednova", "lr"), ("rule", "krum", "attackers"),
    ("rule", "fedfv", "seed"), ("rule", "fednova", "momentum"),
    ("wrapper", "clipped", "median_multiple"),
    ("client", "ditto", "epochs"), ("client", "ditto", "lr"), ("client", "ditto", "adapt_steps"),
    ("selector", "fedcs", "deadline"), ("selector", "power_of_choice", "d"), ("selector", "tifl", "odds"),
    ("selector", "tifl", "credits"), ("selector", "refl", "target"), ("selector", "availability_forecast", "ahead"),
}  # fmt: skip
"""Options whose default the page describes, such as "that of `[train]`": nothing is set."""

BY_HAND: dict[tuple[str, str, str], Any] = {
    ("rule", "fedsgd", "weighting"): "data",
    ("rule", "fedmgda", "solver"): "direct",
    ("rule", "fedmgda_plus", "solver"): "direct",
    ("rule", "fedlf", "solver"): "direct",
    ("rule", "fedlf_released", "solver"): "direct",
    ("rule", "fedmdfg", "solver"): "direct",
    ("rule", "fedavg_n", "lambda0"): "uniform",
    ("rule", "fedavg_n", "server_lr"): 1.0,
    ("rule", "fedavg_n", "decay"): 1.0,
    ("rule", "qfedsgd", "q"): 1.0,
    ("rule", "qfedsgd", "guard"): 1e-10,
    # the table of Oort's options
    ("selector", "oort", "variant"): "paper",
    ("selector", "oort", "uncertainty"): 0.1,
    ("selector", "oort", "penalty"): 2.0,
    ("selector", "oort", "exploration"): 0.9,
    ("selector", "oort", "exploration_decay"): 0.98,
    ("selector", "oort", "few_samples"): 600,
    ("selector", "oort", "window"): 5.0,
    ("selector", "oort", "percentile"): 30.0,
    ("selector", "oort", "pacer"): 20,
    ("selector", "oort", "pacer_delta"): 5.0,
    ("selector", "oort", "barred_share"): 0.3,
    ("selector", "oort", "fairness"): 0.0,
}
"""Defaults that a page gives once for several plug-ins, or in a table of another form."""

RANGES = """
rule afl              gamma_lambda      [0, inf)
rule centred_clipping radius            (0, inf)
rule centred_clipping iterations        {1, inf}
rule drfl             q                 [0, inf)
rule fedasync         alpha             (0, 1]
rule fedasync         a                 (0, inf)
rule fedasync         b                 [0, inf)
rule fedawe           server_lr         (0, inf)
rule fedawe           clip              (0, inf)
rule fedavg_n         server_lr         (0, inf)
rule fedavg_n         decay             (0, 1]
rule fedbuff          server_lr         (0, inf)
rule fedexp           epsilon           [0, inf)
rule fedfa            beta              [0, 1]
rule fedfa            gamma             [0, 1)
rule fedfa            server_lr         (0, inf)
rule fedfv            alpha             [0, 1]
rule fedfv            tau               {0, inf}
rule fedfv_released   alpha             [0, 1]
rule fedfv_released   tau               {0, inf}
rule fedfv_released   guard             [0, inf)
rule fedgini          epsilon           [0, 1]
rule fedlf            zero_tolerance    [0, 1)
rule fedmdfg          theta_deg         [0, 90]
rule fedmdfg          search            {1, 30}
rule fedmdfg          guard             [0, inf)
rule fedmdfg          zero_tolerance    [0, 1)
rule fedmgda_plus     epsilon           [0, 1]
rule fedmgda_plus     cap               (0, 1]
rule fedmgda_plus     server_lr         (0, inf)
rule fedmgda_plus     decay             (0, 1]
rule fedstaleweight   window            {1, 10000}
rule fedstaleweight   offset            [0, inf)
rule geometric_median nu                (0, inf)
rule geometric_median iterations        {0, inf}
rule geometric_median tolerance         [0, inf)
rule krum             attackers         {0, inf}
rule krum             keep              {1, inf}
rule qfedavg          q                 [0, inf)
rule qfedavg          lr                (0, inf)
rule qfedavg          L                 (0, inf)
rule qfedavg          guard             (0, inf)
rule qfedsgd          q                 [0, inf)
rule qfedsgd          lr                (0, inf)
rule qfedsgd          L                 (0, inf)
rule qfedsgd          guard             (0, inf)
rule refl             beta              [0, 1]
rule term             t                 (0, inf)
rule term             smoothing         (0, 1]
rule term_released    t                 (0, inf)
rule trimmed_mean     beta              [0, 0.5)
wrapper clipped       norm              (0, inf)
wrapper clipped       median_multiple   (0, inf)
wrapper discounted    a                 (0, inf)
wrapper discounted    b                 [0, inf)
wrapper external      tau               {1, inf}
wrapper layerwise     zero_tolerance    [0, 1)
wrapper server_opt    lr                (0, inf)
wrapper server_opt    tau               (0, inf)
wrapper with_absent   window            {1, inf}
client ditto          lam               [0, inf)
client ditto          epochs            {1, inf}
client ditto          lr                (0, inf)
client ditto_global   lam               [0, inf)
client fedcka         mu                [0, inf)
client fedcka         layers            {1, inf}
client fedprox        mu                [0, inf)
client qmaml          inner_lr          (0, inf)
client qmaml          inner_steps       {1, inf}
client qmaml          support           (0, 1)
selector biased       strength          [0, 1]
selector fedcs        upload_share      [0, 1]
selector loss_based   alpha1            [0, 1]
selector loss_based   alpha2            [0, inf)
selector loss_based   alpha3            [0, 1]
selector oort         exploration       [0, 1]
selector oort         exploration_decay [0, 1]
selector oort         exploration_floor [0, 1]
selector oort         clip              [0, 1]
selector oort         uncertainty       [0, inf)
selector oort         penalty           [0, inf)
selector oort         cut_off           [0, 1]
selector oort         fairness          [0, 1]
selector oort         percentile        [0, 100]
selector oort         pacer             {0, inf}
selector oort         pacer_delta       (0, inf)
selector oort         barred_after      {0, inf}
selector oort         barred_share      [0, 1]
selector oort         few_samples       {1, inf}
selector oort         window            [1, inf)
selector power_of_choice d              {1, inf}
selector quota        floor             [0, 1]
selector refl         a                 [0, 1)
selector refl         kept              [0, 1]
selector refl         target            {1, inf}
selector refl         cap               [0, 1]
selector tifl         tiers             {1, inf}
selector tifl         credits           {1, inf}
selector tifl         interval          {1, inf}
"""
"""Square brackets: the end is allowed; round ones: it is not; braces: whole numbers, both ends are."""


def row_of(kind: str, name: str) -> str:
    lines = (DOCS / PAGES[kind]).read_text().splitlines()
    return next(line for line in lines if line.startswith(f"| `{name}` |"))


def documented(row: str, option: str) -> Any:
    """Return the first value in brackets behind an option's name, or `...` where there is none."""
    found = re.search(rf"`{option}`[^`(]{{0,12}}\((`(\w+)`|[^)]*)", row)
    if found is None:
        return ...
    first = found[2] or found[1].split(",")[0].strip()
    if first in ("true", "false") and not found[2]:
        return first == "true"
    if first in ("none", "equal", "no limit") and not found[2]:
        return None
    try:
        return float(first)
    except ValueError:
        return first


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in PAGES for name in names(kind)])
def test_defaults_are_those_that_the_page_names(kind: str, name: str) -> None:
    for option, parameter in options_of(factory(kind, name), KINDS[kind].supplied).items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            continue
        if (kind, name, option) in BY_HAND:
            assert default == BY_HAND[kind, name, option], option
        elif (kind, name, option) in IN_WORDS:
            assert default is None, option
        elif isinstance(default, tuple):
            numbers = re.search(rf"`{option}` \(([^)]*)\)", row_of(kind, name))
            assert numbers is not None, option
            assert default == tuple(map(float, numbers[1].split(","))), option
        else:
            said = documented(row_of(kind, name), option)
            assert default == (None if said is ... else said), option


@pytest.mark.parametrize("line", RANGES.strip().splitlines(), ids=lambda line: "-".join(line.split()[:3]))
def test_a_range_ends_where_it_should(line: str) -> None:
    kind, name, option, low, high = line.split()
    whole = low[0] == "{"
    beyond = 1 if whole else 1e-9
    for end, edge, outwards in ((low[0], float(low[1:-1]), -beyond), (high[-1], float(high[:-1]), beyond)):
        if math.isinf(edge):
            check(kind, name, {option: 10**6 if whole else 1e6}, KINDS[kind].supplied)
            continue
        inside, outside = (edge, edge + outwards) if end in "[]{}" else (edge - outwards, edge)
        check(kind, name, {option: int(inside) if whole else inside}, KINDS[kind].supplied)
        with pytest.raises(ConfigError, match=option):
            check(kind, name, {option: int(outside) if whole else outside}, KINDS[kind].supplied)


@pytest.mark.parametrize("at", [0, 1])
def test_betas_of_server_opt_are_at_least_0_and_below_1(at: int) -> None:
    for beta, right in ((0.0, True), (1 - 1e-9, True), (-1e-9, False), (1.0, False)):
        betas = [0.5, 0.5]
        betas[at] = beta
        if right:
            check("wrapper", "server_opt", {"betas": betas}, ["rule"])
        else:
            with pytest.raises(ConfigError, match="betas"):
                check("wrapper", "server_opt", {"betas": betas}, ["rule"])


def test_odds_of_tifl_are_at_least_0() -> None:
    check("selector", "tifl", {"odds": [0.0, 1.0]}, [])
    with pytest.raises(ConfigError, match="odds"):
        check("selector", "tifl", {"odds": [-1e-9, 1.0]}, [])

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import tomli_w

from fedsim.common.errors import ConfigError
from fedsim.config.study.published import Claim, PublishedSection, axis_of, parse_claim, rest_of
from fedsim.studies.load_study import load_study

RUN = {
    "task": {"name": "digits", "clients": 4},
    "partition": {"name": "iid"},
    "world": {"scenario": "always_on"},
    "stop": {"steps": 2},
}
AXES = {
    "rule": {name: {"algorithm": {"name": name}} for name in ("fedavg", "fedfv", "fedlf")},
    "lr": {"low": {}, "high": {"train": {"lr": 0.5}}},
}
ROWS = [("rule", "fedfv"), ("rule", "fedlf"), ("lr", "low")]


def study(**published: Any) -> Any:
    tables = {
        "name": "s",
        "seeds": 1,
        "run": RUN,
        "axes": AXES,
        "published": {"source": "a paper"} | published,
    }
    return load_study(tables).published


@pytest.mark.parametrize(
    ("text", "groups", "within"),
    [
        ("std_percent: a < b", (("a",), ("b",)), None),
        ("std_percent: a > b", (("b",), ("a",)), None),
        ("std_percent:a<b,c < *", (("a",), ("b", "c"), ("*",)), None),
        ("x: c > a , b > d", (("d",), ("a", "b"), ("c",)), None),
        ("x: a = b ± 2", (("a",), ("b",)), 2.0),
        ("x: a-1 = b.2 ± 0.5", (("a-1",), ("b.2",)), 0.5),
    ],
)
def test_a_claim_is_an_order_or_an_equality(text: str, groups: Any, within: float | None) -> None:
    column = text.partition(":")[0]
    assert parse_claim(text) == Claim(column, groups, within)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("x: a < b", ()),
        ("x: a < b for data=iid", (("data", "iid"),)),
        ("x: a < b, c for lr = 0.1 , data= non-iid", (("lr", "0.1"), ("data", "non-iid"))),
        ("x: for < form", ()),
    ],
)
def test_a_claim_may_be_made_for_some_levels_alone(text: str, where: Any) -> None:
    claim = parse_claim(text)
    assert claim.where == where
    assert claim.about(dict(where) | {"other": "level"})
    assert claim.about({}) == (not where)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "std_percent: fedavg < fedfv for lrate=low",
            "for lrate=low: there is no axis 'lrate'; known: lr, rule",
        ),
        ("std_percent: fedavg < fedfv for lr=lo", "for lr=lo: there is no level 'lo'; did you mean 'low'?"),
        ("std_percent: fedavg < fedfv for low", "expected axis=level behind for"),
        (
            "std_percent: fedavg < fedfv for rule=fedlf",
            "for rule=...: the order is that of the levels of rule: expected another axis",
        ),
        ("std_percent: fedavg < fedfv for lr=low, lr=high", "for: expected each axis once, found lr twice"),
    ],
)
def test_levels_behind_for_are_those_of_the_study(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        study(claims={"C": text})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "a < b",
        "x: a = b ± 2.5.1",
        "x: a = b ± .",
        "x: a",
        "x: a < b > c",
        "x: a = b",
        "x: a < ",
        "x: < b",
        "x: a < b < a",
        "x: a <= b",
        "x: a = a ± 2",
        "x:",
    ],
)
def test_what_is_no_claim_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"published\.claims\.C: .*(such as|each level once)"):
        study(claims={"C": text})


def test_levels_that_two_axes_have_belong_to_the_one_that_for_leaves() -> None:
    axes = {"rule": ("off", "on"), "softmax": ("off", "on", "half")}
    claim = "std_percent: off < on"
    (fault,) = PublishedSection(source="a paper", claims={"C": (claim,)}).faults_with(axes)
    assert "rule and softmax have the levels off, on: rename those of one" in fault
    assert axis_of(parse_claim(claim + " for softmax=half"), axes) == "rule"
    told = PublishedSection(source="a paper", claims={"C": (claim + " for softmax=half",)})
    assert list(told.faults_with(axes)) == []


def test_a_star_stands_for_the_levels_that_the_claim_does_not_name() -> None:
    assert rest_of([("b",), ("*",), ("d",)], "abcd") == [("b",), ("a", "c"), ("d",)]
    assert rest_of([("b",), ("*",), ("d",)], "bd") == [("b",), ("d",)]


@pytest.mark.parametrize("claim", ["mean_percent: one < *", "mean_percent: * = one ± 2"])
def test_a_claim_that_compares_no_levels_is_refused(claim: str) -> None:
    (fault,) = PublishedSection(source="a paper", claims={"C": claim}).faults_with({"rule": ("one",)})
    assert fault.startswith("published.claims.C: expected levels of rule that * stands for, found none")


def test_values_are_means_with_or_without_a_deviation() -> None:
    row = {
        "levels": {"rule": "fedfv"},
        "values": {"mean_percent": 80, "std_percent": [1.5, 0.2], "shirt": 70.5},
    }
    found = study(rows=[row], clients={"shirt": 2})
    assert found.rows[0].values == {
        "mean_percent": (80, None),
        "std_percent": (1.5, 0.2),
        "shirt": (70.5, None),
    }


def test_what_is_written_reads_as_the_same() -> None:
    row = {"levels": {"rule": "fedfv"}, "values": {"mean_percent": 80, "std_percent": [1.5, 0.2]}}
    published = study(rows=[row], claims={"C": "angle_rad: fedfv < fedlf"})
    assert (
        study(**tomllib.loads(tomli_w.dumps(published.model_dump(mode="json", exclude_none=True))))
        == published
    )


@pytest.mark.parametrize(
    ("published", "message"),
    [
        (
            {"rows": [{"levels": {"rul": "fedfv"}, "values": {}}]},
            "rows.0.levels.rul: there is no axis 'rul'.*'rule'",
        ),
        ({"rows": [{"levels": {"rule": "fedf"}, "values": {}}]}, "there is no level 'fedf'.*'fedlf'"),
        (
            {"rows": [{"levels": {}, "values": {"mean": 1}}]},
            "rows.0.values: there is no metric or client 'mean'",
        ),
        ({"rows": [{"levels": {}, "values": {"mean_percent": [1, 2, 3]}}]}, "rows.0.values.mean_percent"),
        ({"rows": [{"levels": {}, "values": {"mean_percent": [1, -2]}}]}, "rows.0.values.mean_percent"),
        ({"claims": {"C": "std_percent: fedav < fedfv"}}, "claims.C: there is no level 'fedav'.*'fedavg'"),
        (
            {"claims": {"C": "std_percent: fedavg < low"}},
            "claims.C: expected levels of one axis, found fedavg, low",
        ),
        (
            {"claims": {"C": ["std_percent: fedavg < fedfv", "std_percent: low < high"]}},
            "claims.C: expected orders of the levels of one axis, found rule and lr: make a statement for each",
        ),
        (
            {"rows": [{"levels": {axis: level}, "values": {"gini": 1}} for axis, level in ROWS]},
            "rows.2: gini has a value for the same levels in published.rows.0",
        ),
        ({"claims": {"C": "variance: fedavg < fedfv"}}, "no metric or client 'variance'.*variance_percent2"),
        ({"clients": {"rule": 0}}, "clients.rule: a metric or an axis has this name"),
        ({"clients": {"seed": 0}}, "clients.seed: .* or a column of the study's tables: choose another one"),
        ({"clients": {"shirt": -1}}, "clients.shirt"),
        ({"claims": {"C": []}}, "published.claims.C: "),
        (
            {"rows": [{"levels": {"rule": "fedfv"}, "values": {}}]},
            "rows.0.values: expected a value by metric",
        ),
        (
            {"rows": [{"levels": {"rule": "fedfv"}, "at": "steps", "values": {"gini": 1}}]},
            "rows.0.at: expected end or a point with a number, such as steps=500, found 'steps'",
        ),
        (
            {"rows": [{"levels": {}, "at": at, "values": {"gini": 1}} for at in ("time=60s", "time=1m")]},
            "rows.1: gini has a value for the same levels in published.rows.0",
        ),
        ({"spread": "both"}, "spread"),
        ({"runs": 0}, "runs"),
    ],
)
def test_what_the_study_does_not_have_is_named(published: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(**published)

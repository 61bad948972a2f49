from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsim import analysis
from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.paired.significance import holm
from fedsim.common.errors import ConfigError
from synthetic_runs import evals_table
from synthetic_studies import write_study

SEEDS = tuple(range(1, 7))
RULES = ("fedavg", "fedfv", "fedlf")
NOISE = dict(zip(SEEDS, (0.3, -0.4, 0.1, 0.6, -0.5, -0.1), strict=True))
GAIN = {"fedavg": 0.0, "fedfv": 4.0, "fedlf": 4.2}


def made(levels: dict[str, str], seed: int) -> dict[str, Any]:
    """Clients 0 and 1 of a seed have the seed's level and the rule's gain, client 1 with a noise of its own."""
    gain = GAIN[levels["rule"]] * (1 if levels["softmax"] == "one" else -1)
    base = 40 + 3 * seed + gain
    twist = NOISE[seed] * (1 + RULES.index(levels["rule"]))
    return {"evals": evals_table(np.array([[base, base + 2 * twist]]) / 100, n=1000)}


def study_of(folder: Path, **published: Any) -> Study:
    axes = {"rule": RULES, "softmax": ("one", "two")}
    return write_study(
        folder / "made", made, axes=axes, seeds=SEEDS, published={"source": "a paper"} | published
    )


def means(rule: str, softmax: str = "one") -> np.ndarray:
    sign = 1 if softmax == "one" else -1
    return np.array([40 + 3 * s + sign * GAIN[rule] + NOISE[s] * (1 + RULES.index(rule)) for s in SEEDS])


def test_an_order_is_tested_pair_by_pair_at_each_level_of_the_other_axes(tmp_path: Path) -> None:
    study = study_of(
        tmp_path,
        claims={"FedAvg is last": "mean_percent: fedavg < *", "FedLF first": "mean_percent: fedlf > fedfv"},
    )
    results = analysis.claim_results(study)
    assert [(r.text, r.others["softmax"], r.verdict) for r in results] == [
        ("FedAvg is last", "one", "holds"),
        ("FedAvg is last", "two", "does not hold"),
        ("FedLF first", "one", "cannot be told"),
        ("FedLF first", "two", "cannot be told"),
    ]
    pairs = [pair for result in results for pair in result.pairs]
    assert [(p.lower, p.higher) for p in pairs[:2]] == [("fedavg", "fedfv"), ("fedavg", "fedlf")]
    names = [
        (p.higher, p.lower, softmax) for r in results for softmax in [r.others["softmax"]] for p in r.pairs
    ]
    p_values = [stats.ttest_rel(means(a, s), means(b, s)).pvalue for a, b, s in names]
    assert [p.p_holm for p in pairs] == pytest.approx(holm(p_values).tolist())
    assert (results[0].count("holds"), results[1].count("does not hold")) == (2, 2)


def test_a_star_between_the_only_two_levels_leaves_their_pair(tmp_path: Path) -> None:
    axes = {"rule": ("fedavg", "fedfv"), "softmax": ("one",)}
    published = {"source": "a paper", "claims": {"order": "mean_percent: fedavg < * < fedfv"}}
    study = write_study(tmp_path / "two", made, axes=axes, seeds=SEEDS, published=published)
    (result,) = analysis.claim_results(study)
    assert [(pair.lower, pair.higher, pair.verdict) for pair in result.pairs] == [
        ("fedavg", "fedfv", "holds")
    ]
    assert len(analysis.published_tables(study)) == 1


def test_a_claim_for_some_levels_is_tested_there_alone(tmp_path: Path) -> None:
    orders = ["mean_percent: fedavg > fedfv for softmax=two", "std_percent: fedavg < fedfv"]
    study = study_of(tmp_path, claims={"both": orders, "one": orders[0]})
    found = analysis.claim_results(study)
    results = [(r.text, r.others["softmax"], [pair.column for pair in r.pairs]) for r in found]
    assert found[2].verdict == "holds"
    assert results == [
        ("both", "one", ["std_percent"]),
        ("both", "two", ["mean_percent", "std_percent"]),
        ("one", "two", ["mean_percent"]),
    ]


def test_a_claim_for_levels_without_a_run_is_not_run(tmp_path: Path) -> None:
    orders = ["mean_percent: fedavg > fedfv for softmax=two", "std_percent: fedavg < fedfv"]
    study = study_of(tmp_path, claims={"both": orders, "one": orders[0]})
    part = replace(study, cells=tuple(cell for cell in study.cells if cell.levels["softmax"] == "one"))
    results = analysis.claim_results(part)
    assert [(r.text, r.others["softmax"], [p.column for p in r.pairs]) for r in results] == [
        ("both", "one", ["std_percent"]),
        ("both", "two", ["mean_percent"]),
        ("one", "two", ["mean_percent"]),
    ]
    assert [r.verdict == "not run" for r in results] == [False, True, True]


@pytest.mark.parametrize(
    ("within", "verdict"), [(6.0, "holds"), (2.0, "does not hold"), (4.05, "cannot be told")]
)
def test_equality_within_a_margin_needs_evidence_too(tmp_path: Path, within: float, verdict: str) -> None:
    study = study_of(tmp_path, claims={"equal": f"mean_percent: fedavg = fedfv ± {within}"})
    assert [r.verdict for r in analysis.claim_results(study)] == [verdict, verdict]


def test_the_p_value_of_equality_is_that_of_the_two_one_sided_tests(tmp_path: Path) -> None:
    (first, _) = analysis.claim_results(study_of(tmp_path, claims={"e": "mean_percent: fedavg = fedfv ± 6"}))
    difference = means("fedfv") - means("fedavg")
    sides = [
        stats.ttest_1samp(difference, -6, alternative="greater").pvalue,
        stats.ttest_1samp(difference, 6, alternative="less").pvalue,
    ]
    assert first.pairs[0].p_holm == pytest.approx(2 * max(sides))


def test_equality_is_refuted_to_both_sides(tmp_path: Path) -> None:
    """Within 0 it is the two-sided t test; a margin beside which the other side is far off, the one-sided test."""
    (exact, near) = (
        analysis.claim_results(
            study_of(tmp_path / str(d), claims={"e": f"mean_percent: fedavg = fedfv ± {d}"})
        )[0]
        for d in (0, 2)
    )
    difference = means("fedfv") - means("fedavg")
    assert exact.pairs[0].p_holm == pytest.approx(2 * stats.ttest_1samp(difference, 0).pvalue)
    assert near.pairs[0].p_holm == pytest.approx(
        2 * stats.ttest_1samp(difference, 2, alternative="greater").pvalue, rel=1e-2
    )


def test_few_seeds_tell_nothing(tmp_path: Path) -> None:
    study = write_study(
        tmp_path / "few",
        made,
        axes={"rule": RULES, "softmax": ("one",)},
        seeds=(1, 2),
        published={"source": "a paper", "claims": {"C": "mean_percent: fedavg < fedfv"}},
    )
    (result,) = analysis.claim_results(study)
    assert result.verdict == "cannot be told"
    assert math.isnan(result.pairs[0].p_holm)


def test_pairs_that_were_not_run_are_counted_apart(tmp_path: Path) -> None:
    def partly(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
        return None if levels["rule"] == "fedlf" else made(levels, seed)

    study = write_study(
        tmp_path / "s",
        partly,
        axes={"rule": RULES, "softmax": ("one",)},
        seeds=SEEDS,
        published={
            "source": "a paper",
            "claims": {
                "C": "mean_percent: fedavg < fedfv, fedlf",
                "reversed": "mean_percent: fedfv < fedavg, fedlf",
                "open": "mean_percent: fedfv < fedlf",
            },
        },
    )
    open_claim, refuted, not_run = analysis.claim_results(study)
    assert [pair.verdict for pair in open_claim.pairs] == ["holds", "not run"]
    assert open_claim.verdict == "cannot be told"
    assert [pair.verdict for pair in refuted.pairs] == ["does not hold", "not run"]
    assert refuted.verdict == "does not hold"
    assert not_run.verdict == "not run"
    # The correction counts the two pairs that were run.
    p_value = stats.ttest_rel(means("fedfv"), means("fedavg")).pvalue
    assert open_claim.pairs[0].p_holm == pytest.approx(2 * p_value)


ORDERS = ["mean_percent: fedavg < fedfv, fedlf for softmax=one", "std_percent: fedavg = fedfv ± 1"]


def test_claims_of_a_reader_are_tested_as_those_of_a_paper(tmp_path: Path) -> None:
    study = study_of(tmp_path, claims={order: order for order in ORDERS})
    papers = [(r.text, r.others, r.pairs[0].p_holm) for r in analysis.claim_results(study)]
    for of in (study, replace(study, published=None)):
        own = analysis.claim_results(of, ORDERS)
        assert [(r.text, r.others, r.pairs[0].p_holm) for r in own] == papers
    assert len(papers) == 3


def test_claims_are_tested_at_a_point_that_the_runs_share(tmp_path: Path) -> None:
    """Both gain 4 points a step and `long` runs for twice as many; at equal steps `short` is ahead by its start."""

    def run_of(levels: dict[str, str], seed: int) -> dict[str, Any]:
        steps = np.arange(11 if levels["rule"] == "long" else 6)
        start = 0.1 if levels["rule"] == "long" else 0.2
        return {
            "evals": evals_table(np.repeat((start + 0.04 * steps + 0.001 * seed)[:, None], 2, axis=1), n=1000)
        }

    study = write_study(tmp_path / "s", run_of, axes={"rule": ("long", "short")}, seeds=SEEDS)
    for at, wanted in (("end", -10), ("steps", 10), ("steps=4", 10)):
        (result,) = analysis.claim_results(study, ["mean_percent: long < short"], at)
        assert result.pairs[0].differences == pytest.approx([wanted] * len(SEEDS))
    assert (
        str(analysis.claim_table(study, ["mean_percent: long < short"], "steps=4").title)
        == "s, after 4 steps"
    )


def test_each_claim_of_a_reader_may_be_about_another_axis(tmp_path: Path) -> None:
    results = analysis.claim_results(study_of(tmp_path), [ORDERS[0], "std_percent: one < two"])
    assert [(r.others, len(r.pairs)) for r in results] == [
        ({"softmax": "one"}, 2),
        ({"rule": "fedavg"}, 1),
        ({"rule": "fedfv"}, 1),
        ({"rule": "fedlf"}, 1),
    ]


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ("mean_percent: fedavg < fedfw", "made: claim: there is no level 'fedfw'; did you mean 'fed"),
        ("mean: fedavg < fedfv", "no metric or client 'mean'.*mean_percent"),
        ("mean_percent: fedavg", "expected an order by < or >"),
    ],
)
def test_a_claim_that_cannot_be_tested_is_refused(tmp_path: Path, claim: str, message: str) -> None:
    study = study_of(tmp_path)
    with pytest.raises(ConfigError, match=message):
        analysis.claim_results(study, [ORDERS[0], claim])


def test_a_claim_may_name_a_client_of_the_paper(tmp_path: Path) -> None:
    study = study_of(tmp_path, clients={"shirt": 1})
    (result,) = analysis.claim_results(study, ["shirt: fedavg < fedlf for softmax=one"])
    twist = np.array([2 * 2 * NOISE[s] for s in SEEDS])
    assert result.pairs[0].differences == pytest.approx(4.2 + twist)

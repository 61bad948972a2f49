from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsim import analysis
from fedsim.common.errors import FolderError
from synthetic_runs import evals_table
from synthetic_studies import write_study

SEEDS = tuple(range(1, 7))
NOISE = dict(zip(SEEDS, (0.3, -0.4, 0.1, 0.6, -0.5, -0.1), strict=True))
AXES = {"rule": ("fedfv",), "softmax": ("one", "two")}


def made(levels: dict[str, str], seed: int) -> dict[str, Any]:
    """Both clients have the seed's and the softmax's level, client 1 with a noise of its own."""
    base = {"one": 44, "two": 36}[levels["softmax"]] + 3 * seed
    return {"evals": evals_table(np.array([[base, base + 4 * NOISE[seed]]]) / 100, n=1000)}


def test_values_of_metrics_and_of_single_clients_stand_beside_the_papers(tmp_path: Path) -> None:
    row = {"levels": {"rule": "fedfv"}, "values": {"shirt": [30.0, 1.0], "mean_percent": 54.4}}
    paper = {"source": "a paper", "runs": 5, "spread": "population", "clients": {"shirt": 1}, "rows": [row]}
    study = write_study(tmp_path / "made", made, axes=AXES, seeds=SEEDS, published=paper)
    shirt, mean, *others = analysis.published_values(study)
    assert (shirt.column, shirt.levels) == ("shirt", {"rule": "fedfv", "softmax": "one"})
    ours = np.array([44 + 3 * s + 4 * NOISE[s] for s in SEEDS])
    assert shirt.values == pytest.approx(ours)
    low, high = shirt.interval or (math.nan, math.nan)
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 5, ours.mean(), ours.std(ddof=1) / np.sqrt(6)))
    theirs = 1.0 * np.sqrt(5 / 4)
    p = stats.ttest_ind_from_stats(ours.mean(), ours.std(ddof=1), 6, 30, theirs, 5, equal_var=False).pvalue
    other = next(o for o in others if o.column == "shirt")
    assert shirt.p_holm == pytest.approx(2 * p)  # of two, it is the smaller
    assert other.p_holm > shirt.p_holm
    assert shirt.differs
    assert math.isnan(mean.p_holm)
    assert not mean.differs


def test_values_at_a_point_are_those_of_the_last_evaluation_up_to_there(tmp_path: Path) -> None:
    def curve(levels: dict[str, str], seed: int) -> dict[str, Any]:
        times = 5 if levels["softmax"] == "two" else 2
        return {"evals": evals_table([[(10 * t + seed) / 100, 0.9] for t in range(times)], n=1000)}

    values = {"shirt": 30.0, "mean_percent": [61.0, 1.0]}
    rows = [
        {"levels": {"rule": "fedfv"}, "values": {"mean_percent": 70.0}},
        {"levels": {"rule": "fedfv"}, "at": "steps=3", "values": values},
        {"levels": {"rule": "fedfv"}, "at": "steps=9", "values": values},
    ]
    paper = {"source": "a paper", "runs": 5, "clients": {"shirt": 0}, "rows": rows}
    study = write_study(tmp_path / "made", curve, axes=AXES, seeds=SEEDS, published=paper)
    *ends, shirt, mean = analysis.published_values(study)
    assert [(each.at, each.levels["softmax"]) for each in ends] == [("end", "one"), ("end", "two")]
    assert (shirt.at, shirt.levels["softmax"]) == ("steps=3", "two")  # the other runs end before
    assert shirt.values == pytest.approx([30 + seed for seed in SEEDS])
    assert mean.values == pytest.approx([(30 + seed + 90) / 2 for seed in SEEDS])
    table, *_ = analysis.published_tables(study)
    assert [str(column.header) for column in table.columns][2] == "at"
    assert "1 published row was not run: rule=fedfv at=steps=9." in str(table.caption)


def test_a_single_client_s_value_is_a_mean_over_the_evaluations_that_the_study_averages(
    tmp_path: Path,
) -> None:
    row = {"levels": {"rule": "fedfv"}, "values": {"shirt": [30.0, 1.0]}}
    study = write_study(
        tmp_path / "last",
        lambda levels, seed: {"evals": evals_table([[0.1, 0.2], [0.3, 0.4], [0.5, 0.9]], n=1000)},
        axes={"rule": ("fedfv",)},
        seeds=SEEDS,
        compare={"axis": "rule", "baseline": "fedfv", "last": 2},
        published={"source": "a paper", "runs": 5, "clients": {"shirt": 1}, "rows": [row]},
    )
    (shirt,) = analysis.published_values(study)
    assert shirt.values == pytest.approx([65] * len(SEEDS))


def test_equal_runs_differ_from_an_exact_value_of_another_size_alone(tmp_path: Path) -> None:
    """The mean of six times 36.7 is rounded, so that numpy's deviation is above 0."""
    for paper, p in ((36.7, 1.0), (37.7, 0.0)):
        study = write_study(
            tmp_path / f"{p}",
            lambda levels, seed: {"evals": evals_table(np.array([[0.367]]), n=1000)},
            axes={"rule": ("fedfv",)},
            seeds=SEEDS,
            published={
                "source": "a paper",
                "runs": 5,
                "rows": [{"levels": {"rule": "fedfv"}, "values": {"mean_percent": [paper, 0.0]}}],
            },
        )
        assert next(iter(analysis.published_values(study))).p_holm == p


def test_a_study_without_a_paper_is_refused(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", made, axes=AXES, seeds=(1,))
    for ask in (analysis.claim_results, analysis.published_values, analysis.published_tables):
        with pytest.raises(FolderError, match=r"no \[published\]"):
            ask(study)

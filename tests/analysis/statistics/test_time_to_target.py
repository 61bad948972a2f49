from __future__ import annotations

import io
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from fedsim import analysis
from fedsim.analysis.opening.study import Study
from fedsim.analysis.report.document import Heading, Text
from fedsim.analysis.report.study_report import study_document
from fedsim.analysis.statistics.time_to_target import _interval_of_median
from fedsim.analysis.tables.target_tables import target_notes
from fedsim.common.arrays import Floats
from fedsim.common.errors import ConfigError, FolderError
from fedsim.common.units import HOUR_US
from fedsim.config.study.axes import COLUMNS
from synthetic_runs import evals_table, jobs_table
from synthetic_studies import write_study

CURVES = {  # by level and seed, the accuracy in percent of four clients at evaluations one hour apart
    ("slow", 1): [10, 20, 30, 60],
    ("slow", 2): [10, 60, 60, 60],
    ("slow", 3): [10, 20, 30, 40],
    ("slow", 4): [10, 20, 30, 40],
    ("fast", 1): [10, 60, 20, 60],
    ("fast", 2): [10, 20, 60, 60],
    ("fast", 3): [10, 20, 60, 60],
    ("fast", 4): [10, 20, 30, 40],
}


def study_of(
    folder: Path,
    curves: dict[tuple[str, int], list[int]],
    missing: Collection[tuple[str, int]] = (),
    **compare: Any,
) -> Study:
    def made(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
        if (levels["rule"], seed) in missing:
            return None
        curve = np.array(curves[levels["rule"], seed])
        ends = np.arange(len(curve)) * HOUR_US
        jobs = jobs_table(dispatch_us=ends, end_us=ends, download_bytes=np.full(len(ends), 100))
        evals = evals_table(np.repeat(curve[:, None] / 100, 4, axis=1), n=100, every_us=HOUR_US)
        return {"evals": evals, "jobs": jobs}

    levels = tuple(dict.fromkeys(level for level, _ in curves))
    seeds = sorted({seed for _, seed in curves})
    return write_study(
        folder,
        made,
        axes={"rule": levels},
        seeds=seeds,
        compare={"axis": "rule", "baseline": levels[0]} | compare,
    )


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return study_of(tmp_path / "made", CURVES)


def test_the_first_evaluation_that_reaches_the_value_counts(study: Study) -> None:
    frame = analysis.time_to_target(study, "mean_percent", 60)
    assert frame["rule"].tolist() == 4 * ["slow"] + 4 * ["fast"]
    assert frame["step"].tolist() == [3, 1, math.inf, math.inf, 1, 2, 2, math.inf]
    assert frame["time_us"].tolist() == (frame["step"] * HOUR_US).tolist()
    assert frame["bytes"][0] == 100 * (3 + 1)  # of the jobs that ended by then
    assert analysis.time_to_target(study, "mean_percent", 60.1)["step"].eq(math.inf).all()


def test_a_target_below_the_accuracy_before_training_is_told(study: Study) -> None:
    told = "All runs reached it at step 0, before any training; percentages run from 0 to 100."
    for value, wanted in ((0.5, True), (60, False)):
        (table,) = analysis.target_tables(study, "mean_percent", value)
        assert (told in str(table.caption)) == wanted


def test_the_median_of_an_even_number_of_steps_is_not_rounded(tmp_path: Path) -> None:
    study = study_of(tmp_path / "made", {("slow", 1): [0, 60, 60], ("slow", 2): [0, 0, 60]}, at=["steps"])
    (table,) = analysis.target_tables(study, "mean_percent", 60)
    console = Console(width=200, file=io.StringIO())
    console.print(table)
    assert "1.5" in console.file.getvalue().split()  # type: ignore[attr-defined]


def test_a_metric_of_which_less_is_better_is_reached_from_above(tmp_path: Path) -> None:
    def made(levels: dict[str, str], seed: int) -> dict[str, Any]:
        apart = np.array([[0.2, 0.8], [0.4, 0.6], [0.5, 0.5]])
        return {"evals": evals_table(apart, n=100)}

    made_up = write_study(tmp_path / "made", made, axes={}, seeds=[1])
    assert analysis.time_to_target(made_up, "std_percent", 10)["step"].tolist() == [1]
    assert analysis.speed_ups(made_up, analysis.time_to_target(made_up, "std_percent", 10)) == []
    assert "reached" in str(analysis.target_tables(made_up, "std_percent", 10)[0].columns[0].header)


def test_means_of_the_last_evaluations_reach_it_later(tmp_path: Path) -> None:
    study = study_of(tmp_path / "made", CURVES, last=2)
    steps = analysis.time_to_target(study, "mean_percent", 60)["step"].tolist()
    assert steps == [math.inf, 2, math.inf, math.inf, math.inf, 3, 3, math.inf]
    longer = study_of(tmp_path / "longer", CURVES, last=5)
    with pytest.raises(FolderError, match="last: expected 5 evaluations to average, found"):
        analysis.time_to_target(longer, "mean_percent", 0)


def test_a_run_that_never_reaches_it_is_slower_than_one_that_does(study: Study) -> None:
    frame = analysis.time_to_target(study, "mean_percent", 60)
    (found,) = analysis.speed_ups(study, frame, "steps")
    assert (found.level, found.baseline, found.seeds) == ("fast", "slow", (1, 2, 3))
    assert found.ratios.tolist() == [3, 0.5, math.inf]
    assert (found.median, found.faster, found.interval) == (3, 2, None)
    assert found.p_value == stats.binomtest(2, 3).pvalue
    (turned,) = analysis.speed_ups(study.asked({"baseline": "fast"}), frame, "steps")
    assert turned.ratios.tolist() == [1 / 3, 2, 0]
    assert turned.p_value == found.p_value


@pytest.mark.parametrize(
    ("slow", "fast", "median"),
    [([1, 4], [2, 2], 1), ([1, 2], [2, 1], 1), ([1, 9], [9, 1], math.nan), ([2, 9], [1, 1], math.inf)],
)
def test_the_speed_up_of_the_baseline_is_the_reciprocal(
    slow: list[int], fast: list[int], median: float, tmp_path: Path
) -> None:
    """Numbers are the evaluation that reaches the target; 9: none does."""
    curves = {
        (level, seed): [60 if step >= first else 0 for step in range(5)]
        for level, numbers in (("slow", slow), ("fast", fast))
        for seed, first in enumerate(numbers)
    }
    study = study_of(tmp_path / "made", curves)
    frame = analysis.time_to_target(study, "mean_percent", 50)
    (found,) = analysis.speed_ups(study, frame, "steps")
    (turned,) = analysis.speed_ups(study.asked({"baseline": "fast"}), frame, "steps")
    assert found.median == pytest.approx(median, nan_ok=True)
    assert turned.median == pytest.approx(1 / median, nan_ok=True)


@pytest.mark.parametrize("metric", ["mean_percent", "min_percent"])
def test_a_value_that_rounding_misses_is_reached(metric: str, tmp_path: Path) -> None:
    assert 100 * 0.29 < 29
    study = study_of(tmp_path / "made", {("only", 1): [10, 29]})
    assert analysis.time_to_target(study, metric, 29)["step"].tolist() == [1]
    assert analysis.time_to_target(study, metric, 29.001)["step"].tolist() == [math.inf]


def test_equal_times_decide_nothing_and_p_values_are_corrected(tmp_path: Path) -> None:
    curves = {(level, seed): [0, 0, 60, 60] for level in ("base", "same") for seed in range(8)}
    curves |= {("first", seed): [60, 60, 60, 60] for seed in range(8)}
    study = study_of(tmp_path / "made", curves)
    same, first = analysis.speed_ups(study, analysis.time_to_target(study, "mean_percent", 50))
    assert (same.median, same.faster, same.p_value, same.p_holm) == (1, 0, 1, 1)
    assert first.ratios.tolist() == 8 * [math.inf]  # reached at the first evaluation, at virtual time 0
    assert first.p_value == 2 * 0.5**8
    assert first.p_holm == 2 * first.p_value


def test_the_notes_count_only_comparisons_with_a_p_value(tmp_path: Path) -> None:
    """With six seeds the smallest p is 0.031, and twice that for two comparisons; no seed of "never" counts."""
    curves = {(level, seed): [0, 0, 0] for level in ("base", "never") for seed in range(6)}
    curves |= {("first", seed): [60, 60, 60] for seed in range(6)}
    study = study_of(tmp_path / "made", curves, target="mean_percent=50")
    note = " ".join(target_notes(analysis.study_frames(study)["target.time"], "time"))
    assert "corrected for 1 comparison." in note
    assert "cannot be below" not in note


def test_a_study_with_a_target_counts_the_time_in_frames_tables_and_report(tmp_path: Path) -> None:
    study = study_of(tmp_path / "made", CURVES, target="mean_percent=60", at=["end", "steps", "time"])
    frames = analysis.study_frames(study)
    assert [name for name in frames if name.startswith("target")] == ["target.steps", "target.time"]
    slow, fast = frames["target.steps"].to_dict("records")
    assert (slow["n"], slow["reached"], slow["median"], slow["least"], slow["most"]) == (
        4,
        2,
        math.inf,
        1,
        math.inf,
    )
    assert (fast["n"], fast["reached"], fast["median"], fast["least"], fast["most"]) == (4, 3, 2, 1, math.inf)
    assert (fast["baseline"], fast["speed_up"], fast["faster"], fast["seeds"]) == ("slow", 3, 2, 3)
    assert math.isnan(slow["speed_up"])
    assert frames["target.time"]["least"].tolist() == [HOUR_US, HOUR_US]
    assert {*slow} <= {"rule", *COLUMNS}
    titles = [str(table.title) for table in analysis.study_tables(study)]
    assert titles[-2:] == [
        "made: steps to mean accuracy of 60 %",
        "made: virtual time to mean accuracy of 60 %",
    ]
    document = study_document(study, tmp_path)
    assert Heading("Time to mean accuracy of 60 %") in document.blocks
    in_hours = document.tables["target-time"]
    assert [column.heading for column in in_hours.columns][3:7] == [
        "median, h",
        "least, h",
        "most, h",
        "speed-up over slow",
    ]
    assert list(in_hours.texts())[1][:7] == ("fast", "4", "3", "2.000", "1.000", "–", "3.00")


def test_a_level_of_which_no_run_is_done_is_not_compared(tmp_path: Path) -> None:
    """As when a study is stopped in its second run."""
    missing = [("fast", seed) for seed in (1, 2, 3, 4)]
    study = study_of(tmp_path / "made", CURVES, missing, target="mean_percent=60")
    frame = analysis.study_frames(study)["target.time"]
    assert frame["rule"].tolist() == ["slow"]
    assert frame.columns.tolist() == ["rule", "n", "reached", "median", "least", "most"]
    assert [len(table.columns) for table in analysis.target_tables(study, "mean_percent", 60)] == [5]
    assert len(study_document(study, tmp_path).tables["target-time"].columns) == 6


def test_without_a_target_nothing_is_counted(study: Study) -> None:
    assert not [name for name in analysis.study_frames(study) if "target" in name]
    assert not [name for name in study_document(study, study.folder).tables if "target" in name]


def test_a_report_says_why_a_target_is_not_counted(tmp_path: Path) -> None:
    study = study_of(tmp_path / "made", CURVES, target="mean_percnt=60")
    texts = [block.text for block in study_document(study, tmp_path).blocks if isinstance(block, Text)]
    assert [text for text in texts if text.startswith("Not counted: there is no metric 'mean_percnt'")]


@pytest.mark.parametrize("n", [6, 8, 9, 17, 40])
def test_the_interval_covers_the_median(n: int) -> None:
    generator, hits = np.random.default_rng(n), 0
    draws: Floats = generator.exponential(size=(2000, n))
    for values in draws:
        low, high = _interval_of_median(values) or (math.nan, math.nan)
        hits += low <= math.log(2) <= high
    assert 0.94 < hits / 2000 < 0.995
    assert _interval_of_median(draws[0, :5]) is None


def test_bad_questions_are_refused(study: Study) -> None:
    with pytest.raises(ConfigError, match="mean_percen"):
        analysis.time_to_target(study, "mean_percen", 60)
    (study.folder / "runs" / "slow" / "seed-1" / "manifest.json").unlink()
    with pytest.raises(FolderError, match="seed-1"):
        analysis.time_to_target(analysis.open_study(study.folder), "mean_percent", 60)

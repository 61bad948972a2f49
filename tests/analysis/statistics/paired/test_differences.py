from __future__ import annotations

import io
import math
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from fedsim import analysis, plugins
from fedsim.analysis.opening.study import Cell, Study
from fedsim.analysis.plots.paired_differences import paired_differences
from fedsim.analysis.statistics.paired.differences import differences_of
from fedsim.analysis.statistics.paired.power import detectable_effect, seeds_needed
from fedsim.analysis.statistics.paired.significance import holm, signed_rank_test
from fedsim.analysis.tables.difference_tables import cells, difference_frame, difference_table, notes
from fedsim.analysis.tables.study_tables import level_frame, study_frames, study_tables
from fedsim.common.errors import RunError
from synthetic_runs import evals_table
from synthetic_studies import write_study

FEDFV = {1: 3.0, 2: -1.0, 3: 4.0, 4: 2.0, 5: 0.0, 6: 5.0}
"""By seed, in percent, how much better than FedAvg."""


def made(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
    if (levels["rule"], levels["dropout"], seed) == ("fedlf", "high", 4):
        return None
    gain = {"fedavg": 0.0, "fedfv": FEDFV[seed], "fedlf": 2.0 * seed}[levels["rule"]]
    base = 40 + 5 * seed + gain - 3 * (levels["dropout"] == "high")
    accuracy = np.array([[0.1] * 4, [base - 2, base + 2, base, base]]) / [[1], [100]]
    return {"evals": evals_table(accuracy, n=1000)}


AXES = {"rule": ("fedavg", "fedfv", "fedlf"), "dropout": ("none", "high")}
COMPARE = {
    "axis": "rule",
    "baseline": "fedavg",
    "metrics": ["mean_percent", "angle_rad"],
    "at": ["end", "steps"],
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("studies") / "made"
    return write_study(folder, made, axes=AXES, seeds=tuple(FEDFV), compare=COMPARE)


def text_of(printable: object, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(printable)
    return console.export_text()


def test_differences_are_taken_seed_by_seed(study: Study) -> None:
    found = analysis.differences(study, "mean_percent")
    assert [(d.level, d.others["dropout"]) for d in found] == [
        (rule, dropout) for rule in ("fedfv", "fedlf") for dropout in ("none", "high")
    ]
    first = found[0]
    assert dict(zip(first.seeds, first.values.tolist(), strict=True)) == pytest.approx(FEDFV)
    values = np.array(list(FEDFV.values()))
    assert (first.mean, first.std) == pytest.approx((values.mean(), values.std(ddof=1)))
    assert first.effect_size == pytest.approx(values.mean() / values.std(ddof=1))
    assert (first.better, first.worse) == pytest.approx((4 / 6, 1 / 6))
    assert first.sign_p == pytest.approx(0.375)  # 4 above, 1 below, 1 left out
    assert first.p_value == pytest.approx(0.125)  # ranks 3, -1, 4, 2, 5: 4 of 32 ways are as far from 7.5
    half = 2.570581835636314 * values.std(ddof=1) / np.sqrt(6)
    assert first.t_interval == pytest.approx((values.mean() - half, values.mean() + half))
    assert first.interval is not None
    assert -1 < first.interval[0] < values.mean() < first.interval[1] < 5
    assert first.family == 4
    assert first.seeds_needed == seeds_needed(first.effect_size, 0.05 / 4)
    assert math.isinf(first.detectable)  # six seeds: at least 4 / 32
    assert np.isnan(first.point_gap)


def test_a_seed_with_a_run_missing_is_left_out_and_named(study: Study) -> None:
    last = analysis.differences(study, "mean_percent")[-1]
    assert (last.level, last.others, last.missing) == ("fedlf", {"dropout": "high"}, (4,))
    assert last.values.tolist() == pytest.approx([2, 4, 6, 10, 12])
    assert last.sign_p == last.p_value == pytest.approx(1 / 16)
    text = " ".join(text_of(difference_table(analysis.differences(study, "mean_percent"))).split())
    assert "Left out for fedlf (dropout=high): seed 4, of which a run is missing, not done" in text
    assert "mean percent: with 6 seeds that differ and 4 comparisons p Holm cannot be below 0.125" in text
    assert "corrected for all comparisons of the metric" in text
    assert "Seeds without a difference are left out of both tests." in text


def test_seeds_left_out_of_one_metric_alone_are_named_with_it() -> None:
    nan = float("nan")
    study, frame = by_hand(
        {"mean": [(0.0, 1.0), (0.0, 2.0), (1.0, 2.0)], "spread_of": [(1.0, nan), (1.0, 2.0), (nan, 3.0)]}
    )
    found = [*differences_of(study, frame, "mean"), *differences_of(study, frame, "spread_of")]
    assert [each.n for each in found] == [3, 1]
    assert "Left out of spread of for b: seeds 0, 2, of which" in notes(found)
    assert "Left out for b: seeds 0, 2, of which" in notes(found[1:])
    assert "Left out" not in notes(found[:1])


def test_the_t_test_decides_if_asked_for(study: Study) -> None:
    found = analysis.differences(study.asked({"test": "t"}), "mean_percent")
    p = [stats.ttest_1samp(each.values, 0).pvalue for each in found]
    assert [each.p_value for each in found] == pytest.approx(p)
    assert [each.p_holm for each in found] == pytest.approx(list(holm(p)))
    assert {each.test for each in found} == {"t"}
    first, by_rank = found[0], analysis.differences(study, "mean_percent")[0]
    assert first.detectable == pytest.approx(first.std * detectable_effect(6, 0.05 / 4, test="t"))
    assert first.seeds_needed == seeds_needed(first.effect_size, 0.05 / 4, test="t")
    assert (first.t_interval, first.interval) == (by_rank.t_interval, by_rank.interval)
    assert (by_rank.test, set(difference_frame(found)["test"])) == ("rank", {"t"})
    text = " ".join(text_of(difference_table(found)).split())
    assert "(t)" in text
    assert "(rank)" not in text
    assert "p Holm is that of the paired t test (Student), two-sided" in text
    assert "p Holm cannot be below" not in text
    assert "Seeds without a difference are left out of the sign test." in text


def test_holm_covers_the_comparisons_of_one_list(study: Study) -> None:
    found = analysis.differences(study, "mean_percent")
    assert [d.p_holm for d in found] == pytest.approx([0.25, 0.25, 0.125, 0.1875])
    (alone,) = analysis.differences(study.asked({"axis": "dropout"}), "mean_percent")[:1]
    assert alone.p_value <= alone.p_holm


def test_a_size_of_interest_has_its_own_number_of_seeds(study: Study) -> None:
    first = analysis.differences(study, "mean_percent", size=first_std(study))[0]
    assert first.seeds_needed == seeds_needed(1.0, 0.05 / 4)
    assert first.size == pytest.approx(first.std)


def first_std(study: Study) -> float:
    return analysis.differences(study, "mean_percent")[0].std


def test_smaller_can_be_better(study: Study) -> None:
    first = analysis.differences(study, "angle_rad")[0]
    assert first.better_is == "smaller"
    assert first.better == pytest.approx(np.mean(first.values < 0)) == pytest.approx(4 / 6)
    small = {n for n in plugins.names("metric") if plugins.smaller_is_better(n)}
    spread = {"variance_percent2", "std_percent", "std_over_samples_percent"}
    spread |= {"std_true_percent", "std_true_over_samples_percent"}
    assert small == spread | {"angle_rad", "angle_deg", "kl_nats", "gini"}


def test_a_metric_of_ones_own_says_that_smaller_is_better(tmp_path: Path) -> None:
    for name, said in (("spread", "SMALLER_IS_BETTER = True\n"), ("level", "")):
        (tmp_path / f"{name}.py").write_text(f"{said}def {name}(accuracy, n):\n    return accuracy.std()\n")
    assert plugins.smaller_is_better(f"{tmp_path}/spread.py:spread")
    assert not plugins.smaller_is_better(f"{tmp_path}/level.py:level")
    assert not plugins.smaller_is_better("clients")
    assert not plugins.smaller_is_better("a:b")


def test_two_seeds_give_no_interval(tmp_path: Path) -> None:
    study = write_study(tmp_path / "two", made, axes=AXES, seeds=(1, 2), compare=COMPARE)
    first = analysis.differences(study, "mean_percent")[0]
    assert first.interval is first.t_interval is first.pairing_interval is None
    assert cells(first)[3] == "+1\n–\n–"
    assert "With fewer than 3 seeds no interval is given." in " ".join(
        text_of(difference_table([first])).split()
    )


def test_no_pair_at_all_is_shown_as_such(tmp_path: Path) -> None:
    def apart(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
        both = levels | {"dropout": "none"}
        return made(both, seed) if (levels["rule"] == "fedfv") == (seed == 1) else None

    study = write_study(tmp_path / "apart", apart, axes={"rule": ("fedavg", "fedfv")}, seeds=(1, 2))
    (found,) = analysis.differences(study, "mean_percent")
    assert (found.n, found.missing) == (0, (1, 2))
    assert np.isnan([found.mean, found.p_value, found.better]).all()
    assert cells(found)[2:6] == ["0", "–\n–\n–", "–\n(–)\n(–)", "–\n–"]
    assert "fedfv: no seed with both runs." in paired_differences([found], ("fedavg", "fedfv")).alt


def test_the_table_says_what_the_correction_puts_out_of_reach(study: Study) -> None:
    found = [d for d in analysis.differences(study, "mean_percent") if d.level == "fedlf"][:1]
    assert (found[0].n, found[0].p_value) == (6, pytest.approx(1 / 32))
    assert "whatever the difference" not in notes([replace(found[0], family=1)])
    both = [replace(found[0], family=2, level=level) for level in ("fedlf", "other")]
    warning = "mean percent: with 6 seeds that differ and 2 comparisons p Holm cannot be below 0.0625"
    assert warning in notes(both)
    tied = replace(both[0], metric="min_percent", values=np.zeros(6))
    assert warning in notes([*both, tied])  # of a comparison without any difference p is 1


def test_each_metric_is_warned_of_by_itself(study: Study) -> None:
    (one, *_) = [
        replace(d, family=1) for d in analysis.differences(study, "mean_percent") if d.level == "fedlf"
    ]
    few = replace(one, metric="min_percent", values=np.array([0.0, 0, 1, 2, 3, 4]))
    text = notes([one, few, replace(few, metric="angle_rad")])
    assert (
        "min percent, angle rad: with 4 seeds that differ and 1 comparison p Holm cannot be below 0.125"
        in text
    )
    assert "mean percent" not in text
    text = notes([replace(few, values=np.array([0.0, 0, 0, 0, 0, 4]))])
    assert "min percent: with 1 seed that differs and 1 comparison p Holm" in text


def test_the_detectable_difference_is_what_the_rank_test_sees_in_four_studies_of_five() -> None:
    rng = np.random.default_rng(4)
    (found,) = differences_of(*by_hand({"x": [(0.0, x) for x in rng.normal(0, 3, 10)]}), "x")
    studies = rng.normal(found.detectable, found.std, (1500, 10))
    assert np.mean([signed_rank_test(s) <= 0.05 for s in studies]) == pytest.approx(0.8, abs=0.04)
    assert cells(found)[6] == f"{found.detectable:.3g}\n{found.seeds_needed:,}"


def test_equal_differences_have_no_spread() -> None:
    study, frame = by_hand({"x": [(0.0, 0.1)] * 3})
    (found,) = differences_of(study, frame, "x")
    assert found.values.tolist() == [0.1] * 3
    assert (found.std, found.effect_size, found.seeds_needed) == (0, np.inf, 6)
    assert found.t_interval == (found.mean, found.mean)


def test_nothing_to_compare_with_says_so(tmp_path: Path) -> None:
    study = write_study(tmp_path / "one", made, axes={"rule": ("fedavg",), "dropout": ("none",)}, seeds=(1,))
    with pytest.raises(RunError, match="no level of axis 'rule' has runs beside those of 'fedavg'"):
        analysis.differences(study, "mean_percent")
    assert [name for name in study_frames(study) if "differences" in name] == []
    assert len(list(study_tables(study))) == 1


def by_hand(columns: dict[str, list[tuple[float, float]]]) -> tuple[Study, pd.DataFrame]:
    """A study of rules a and b, and a frame of columns of pairs (of a, of b) by seed."""
    seeds = tuple(range(len(next(iter(columns.values())))))
    planned = tuple(Cell({"rule": rule}, seed, Path(), "done") for seed in seeds for rule in "ab")
    rows = [
        {"rule": r, "seed": s} | {name: pairs[s]["ab".index(r)] for name, pairs in columns.items()}
        for s in seeds
        for r in "ab"
    ]
    return Study(Path(), "made", "", {"rule": ("a", "b")}, seeds, {}, planned), pd.DataFrame(rows)


def test_runs_that_are_compared_before_any_training_are_told() -> None:
    said = "compared at step 0, before any training"
    for steps, untrained in (([(0, 0), (0, 9)], 3), ([(5, 9), (9, 9)], 0)):
        study, frame = by_hand({"x": [(1.0, 1.0)] * 2, "step": [(float(a), float(b)) for a, b in steps]})
        (found,) = differences_of(study, frame, "x", "time=1h")
        assert found.untrained == untrained
        assert (said in notes([found])) == (untrained > 0)
        assert np.isnan(found.detectable), "equal differences have no spread to judge by"


@pytest.mark.parametrize(("at", "column"), [("steps", "step"), ("time", "time_us"), ("bytes", "bytes")])
def test_the_point_gap_is_the_largest_share_by_which_a_pair_is_apart(at: str, column: str) -> None:
    x = [(0.0, 1.0)] * 3
    for pairs, gap in (
        ([(8, 10), (10, 10), (10, 9)], 0.2),
        ([(10, 8), (9, 10), (10, 10)], 0.2),
        ([(10, 10)] * 3, 0.0),
        ([(0, 0), (0, 0), (0, 1)], 1.0),
    ):
        study, frame = by_hand({"x": x, column: [(float(a), float(b)) for a, b in pairs]})
        assert differences_of(study, frame, "x", at)[0].point_gap == gap
        assert np.isnan(differences_of(study, frame, "x", "end")[0].point_gap)
    assert np.isnan(differences_of(study, frame.drop(columns=column), "x", at)[0].point_gap)


def test_differences_that_differ_by_rounding_alone_are_equal() -> None:
    study, frame = by_hand({"x": [(0.1, 0.3), (0.3, 0.5), (0.7, 0.9)]})
    assert len({b - a for a, b in [(0.1, 0.3), (0.3, 0.5), (0.7, 0.9)]}) == 3
    (found,) = differences_of(study, frame, "x")
    assert found.values.tolist() == [0.2] * 3
    assert (found.std, found.effect_size) == (0, np.inf)
    (back,) = differences_of(study.asked({"baseline": "b"}), frame, "x")
    assert back.effect_size == -np.inf
    (none,) = differences_of(study, frame.assign(x=1.0), "x")
    assert np.isnan(none.effect_size)
    assert none.seeds_needed is None


def test_how_to_compare_is_said_by_name() -> None:
    study, frame = by_hand({"x": [(0.0, 1.0)] * 3})
    with pytest.raises(TypeError, match="positional"):
        analysis.differences(study, "mean_percent", "end", "rule")  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        differences_of(study, frame, "x", "end", "rule")  # type: ignore[misc]


def test_a_difference_of_a_millionth_of_a_millionth_is_one() -> None:
    (found,) = differences_of(*by_hand({"x": [(0.0, 1e-12), (0.0, 4e-13), (0.0, -1e-12)]}), "x")
    assert found.values.tolist() == [1e-12, 0.0, -1e-12]
    with pytest.raises(FrozenInstanceError):
        found.values = np.zeros(3)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("pairs", "how", "better", "worse"),
    [
        ([(1.0, 2.0), (1.0, 3.0), (2.0, 2.0), (4.0, 3.0)], {}, 0.5, 0.25),
        ([(1.0, 2.0), (1.0, 3.0), (2.0, 2.0), (4.0, 3.0)], {"better_is": "smaller"}, 0.25, 0.5),
        # From 3 to -2 and from -1 to 0 is nearer to zero, from -2 to 2 is as near, from 1 to -4 is not.
        ([(3.0, -2.0), (-1.0, 0.0), (-2.0, 2.0), (1.0, -4.0)], {"better_is": "nearer zero"}, 0.5, 0.25),
    ],
)
def test_better_is_what_the_metric_says(
    pairs: list[tuple[float, float]], how: dict[str, str], better: float, worse: float
) -> None:
    study, frame = by_hand({"x": pairs})
    (found,) = differences_of(study, frame, "x", **how)  # type: ignore[arg-type]
    assert (found.better, found.worse) == (better, worse)


def test_a_column_that_a_metric_is_named_after_follows_it() -> None:
    for name in ("angle_rad", "mean_percent", "anything"):
        study, frame = by_hand({name: [(1.0, 2.0)] * 3})
        wanted = "smaller" if name == "angle_rad" else "larger"
        assert differences_of(study, frame, name)[0].better_is == wanted
    with pytest.raises(RunError, match="there is no column 'anythin' to compare; did you mean 'anything'"):
        differences_of(study, frame, "anythin")


def test_differences_that_cancel_have_the_mean_zero() -> None:
    gains = [0.1, 0.2, -0.3]
    assert sum(gains) != 0
    (found,) = differences_of(*by_hand({"x": [(0.0, gain) for gain in gains]}), "x")
    assert (found.mean, found.effect_size) == (0, 0)


def test_runs_evaluated_on_other_numbers_of_clients_are_not_compared() -> None:
    alike = {"x": [(1.0, 2.0)] * 3, "clients": [(12.0, 12.0), (5.0, 5.0), (12.0, 12.0)]}
    assert differences_of(*by_hand(alike), "x")[0].n == 3
    with pytest.raises(RunError, match=r"rule=b and rule=a, seed 1: evaluated on 12\.0 and 5\.0 clients"):
        differences_of(*by_hand(alike | {"clients": [(12.0, 12.0), (5.0, 12.0), (5.0, 12.0)]}), "x")


def test_the_two_interval_methods_need_three_seeds() -> None:
    for n in (1, 2, 3):
        (found,) = differences_of(*by_hand({"x": [(0.0, 1.0 + seed) for seed in range(n)]}), "x")
        assert (found.interval is None, found.t_interval is None) == (n < 3, n < 3)
        assert np.isnan(found.std) == (n < 2)
    # 2 ± 4.3027 / √3, the quantile of Student's t with two degrees of freedom
    assert found.t_interval == pytest.approx((2 - 2.48414, 2 + 2.48414), abs=1e-4)


numbers = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=9)


@settings(max_examples=40, deadline=None)
@given(numbers)
def test_swapping_level_and_baseline_turns_the_signs(pairs: list[tuple[int, int]]) -> None:
    study, frame = by_hand({"x": [(a / 7, b / 7) for a, b in pairs]})
    (there,) = differences_of(study.asked({"baseline": "a"}), frame, "x")
    (back,) = differences_of(study.asked({"baseline": "b"}), frame, "x")
    np.testing.assert_array_equal(there.values, -back.values)
    same = ("sign_p", "p_value", "p_holm", "seeds_needed", "detectable", "std")
    assert [getattr(there, n) for n in same] == pytest.approx([getattr(back, n) for n in same], nan_ok=True)
    assert there.pairing_factor == pytest.approx(back.pairing_factor, nan_ok=True)
    assert (there.better, there.worse) == (back.worse, back.better)
    if there.interval and back.interval:
        assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]))


def test_frames_hold_what_the_differences_say(study: Study) -> None:
    frames = study_frames(study)
    assert list(frames) == [
        f"{name}.{at}" for at in ("end", "steps") for name in ("levels", "differences", "interactions")
    ]
    frame = frames["differences.end"]
    assert len(frame) == 2 * 4
    found = analysis.differences(study, "mean_percent")
    row = difference_frame(found).iloc[0]
    assert (row["mean"], row["low"], row["high"]) == (found[0].mean, *(found[0].interval or ()))
    assert frame.iloc[0]["dropout"] == "none"
    levels = level_frame(study, metrics=["mean_percent"])
    plain = levels[(levels["rule"] == "fedavg") & (levels["dropout"] == "none")].iloc[0]
    assert (plain["n"], plain["mean"], plain["std"]) == pytest.approx(
        (6, 57.5, np.std(5 * np.arange(6), ddof=1))
    )
    assert plain["low"] < 57.5 < plain["high"]


def test_tables_fit_a_terminal_and_never_break_a_number(study: Study) -> None:
    for table in study_tables(study):
        text = text_of(table, width=80)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
    assert all(
        part in text_of(difference_table(analysis.differences(study, "mean_percent")), 80)
        for part in ("+2.17",)
    )


def test_names_from_a_file_are_shown_as_they_are(tmp_path: Path) -> None:
    def either(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
        hostile = levels["rule"] != "plain"
        return None if hostile and seed == 2 else made({"rule": "fedavg", "dropout": "none"}, seed)

    study = write_study(tmp_path / "s", either, axes={"rule": ("plain", "[red]x")}, seeds=(1, 2))
    text = " ".join(text_of(difference_table(analysis.differences(study, "mean_percent"))).split())
    assert "Left out for [red]x: seed 2" in text

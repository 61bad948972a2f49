from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsim import analysis
from fedsim.analysis.opening.study import Study
from fedsim.analysis.report.study_report import study_document
from fedsim.analysis.statistics.paired.interaction import interactions
from fedsim.analysis.tables.study_tables import study_frames, study_tables
from fedsim.common.arrays import Floats
from synthetic_runs import evals_table
from synthetic_studies import write_study

SEEDS = tuple(range(1, 11))
RULES, WORLDS = ("fedavg", "fedfv", "fedlf"), ("calm", "night", "churn")


def noise(seeds: int, cells: int, spread: float = 1.0) -> Floats:
    return np.random.default_rng(7).normal(0, spread, (seeds, cells))


def study_of(
    folder: Path, effect: dict[tuple[str, str], float], spread: float = 1.0, **more: tuple[str, ...]
) -> Study:
    """A study of rules and worlds: worlds have levels of their own, and `effect` what a rule adds in a world."""
    own = noise(len(SEEDS) + 1, 9, spread)

    def made(levels: dict[str, str], seed: int) -> dict[str, Any]:
        rule, world = levels["rule"], levels["world"]
        value = 50 + 3 * seed + 5 * WORLDS.index(world) + effect.get((rule, world), 0.0)
        value += own[seed, 3 * RULES.index(rule) + WORLDS.index(world)]
        return {"evals": evals_table(np.full((1, 4), value / 100), n=10_000)}

    return write_study(
        folder,
        made,
        axes={"rule": RULES, "world": WORLDS, **more},
        seeds=SEEDS,
        compare={"axis": "rule", "baseline": "fedavg", "metrics": ["mean_percent"]},
    )


def cell(study: Study, **levels: str) -> Floats:
    frame = study.frame(["mean_percent"])
    for axis, level in levels.items():
        frame = frame[frame[axis] == level]
    return frame.sort_values("seed")["mean_percent"].to_numpy()


def test_an_interaction_is_the_difference_of_two_paired_differences(tmp_path: Path) -> None:
    study = study_of(tmp_path / "made", {("fedfv", "night"): 4.0})
    found = interactions(study, "mean_percent")
    assert [(d.axis, d.baseline, d.level, d.others) for d in found] == [
        ("world", "calm", world, {"rule": rule}) for world in WORLDS[1:] for rule in RULES[1:]
    ]
    for each in found:
        rule, world = each.others["rule"], each.level
        there = cell(study, rule=rule, world=world) - cell(study, rule="fedavg", world=world)
        here = cell(study, rule=rule, world="calm") - cell(study, rule="fedavg", world="calm")
        np.testing.assert_allclose(each.values, there - here, atol=1e-9)
        assert each.p_value == pytest.approx(stats.wilcoxon(there - here, method="exact").pvalue)
        assert each.family == 4
    assert found[0].mean == pytest.approx(4, abs=1.2)
    assert found[0].p_holm == pytest.approx(4 * 2**-9)


def test_the_four_runs_of_an_interaction_meet_at_one_point(tmp_path: Path) -> None:
    """Runs gain 1 point a step, the fair rule 2; at night they end after 5 steps, by day after 10."""

    def made(levels: dict[str, str], seed: int) -> dict[str, Any]:
        steps = np.arange(6 if levels["world"] == "night" else 11)
        gained = 0.01 * steps * (2 if levels["rule"] == "fair" else 1) + 0.001 * seed
        return {"evals": evals_table(np.repeat(gained[:, None], 4, axis=1))}

    axes = {"rule": ("plain", "fair"), "world": ("day", "night")}
    study = write_study(tmp_path / "s", made, axes=axes, seeds=(1, 2, 3), compare={"axis": "rule"})
    for asked in (study, study.asked({"axis": "world"})):
        (found,) = interactions(asked, "mean_percent", "steps")
        assert found.values == pytest.approx([0, 0, 0], abs=1e-9), "5 points at step 5 in both worlds"
        (at_the_end,) = interactions(asked, "mean_percent")
        assert at_the_end.values == pytest.approx([-5, -5, -5])


def test_interactions_without_a_pair_are_left_out(tmp_path: Path) -> None:
    study = study_of(tmp_path / "made", {})
    at_night = {"rule": "fedavg", "world": "night"}
    fewer = replace(study, cells=tuple(cell for cell in study.cells if cell.levels != at_night))
    assert {d.level for d in interactions(fewer, "mean_percent")} == {"churn"}
    assert {d.family for d in interactions(fewer, "mean_percent")} == {2}


def test_interactions_are_with_the_first_level_at_which_the_baseline_ran(tmp_path: Path) -> None:
    study = study_of(tmp_path / "made", {("fedfv", "churn"): 4.0})
    when_calm = {"rule": "fedavg", "world": "calm"}
    without = replace(study, cells=tuple(cell for cell in study.cells if cell.levels != when_calm))
    failed = replace(
        study,
        cells=tuple(
            replace(cell, status="failed") if cell.levels == when_calm else cell for cell in study.cells
        ),
    )
    for fewer in (without, failed):
        found = interactions(fewer, "mean_percent")
        assert [(d.baseline, d.level, d.others["rule"]) for d in found] == [
            ("night", "churn", rule) for rule in RULES[1:]
        ]
        gains = {w: cell(study, rule="fedfv", world=w) - cell(study, rule="fedavg", world=w) for w in WORLDS}
        np.testing.assert_allclose(found[0].values, gains["churn"] - gains["night"], atol=1e-9)


def test_interactions_of_a_part_are_with_its_first_level(tmp_path: Path) -> None:
    study = study_of(tmp_path / "made", {("fedfv", "churn"): 4.0})
    part = replace(study, cells=tuple(cell for cell in study.cells if cell.levels["world"] != "calm"))
    found = interactions(part, "mean_percent")
    assert [(d.baseline, d.level, d.others["rule"]) for d in found] == [
        ("night", "churn", rule) for rule in RULES[1:]
    ]
    assert found[0].mean == pytest.approx(4, abs=1.2)
    one = replace(study, cells=tuple(cell for cell in study.cells if cell.levels["world"] == "churn"))
    assert interactions(one, "mean_percent") == []


def test_equal_effects_in_all_worlds_are_no_interaction(tmp_path: Path) -> None:
    """Both rules gain everywhere the same, which one world may show and another not."""
    same = {(rule, world): 2.0 for rule in RULES[1:] for world in WORLDS}
    study = study_of(tmp_path / "same", same, spread=0.0)
    assert all(each.mean == pytest.approx(0, abs=1e-9) for each in interactions(study, "mean_percent"))
    assert all(each.p_holm == 1 for each in interactions(study, "mean_percent"))
    assert all(each.mean == pytest.approx(2) for each in analysis.differences(study, "mean_percent"))


def test_several_axes_are_corrected_together(tmp_path: Path) -> None:
    study = study_of(tmp_path / "three", {("fedfv", "night"): 4.0}, lr=("low", "high"))
    found = interactions(study, "mean_percent")
    counts = {axis: sum(d.axis == axis for d in found) for axis in ("world", "lr")}
    assert counts == {"world": 2 * 2 * 2, "lr": 1 * 2 * 3}
    assert {d.family for d in found} == {14}
    assert [d.p_holm for d in found] == pytest.approx(list(stats_holm([d.p_value for d in found])))


def stats_holm(p: list[float]) -> Floats:
    """Holm's correction, written again."""
    order, corrected, least = np.argsort(p, kind="stable"), np.empty(len(p)), 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, p[i] * (len(p) - rank)))
        corrected[i] = least
    return corrected


def test_interactions_are_tested_as_the_study_asks(tmp_path: Path) -> None:
    study = study_of(tmp_path / "made", {("fedfv", "night"): 4.0}).asked({"test": "t"})
    for each in interactions(study, "mean_percent"):
        assert each.p_value == pytest.approx(stats.ttest_1samp(each.values, 0).pvalue)


def test_without_a_second_axis_there_is_none(tmp_path: Path) -> None:
    def made(levels: dict[str, str], seed: int) -> dict[str, Any]:
        return {"evals": evals_table(np.full((1, 4), 0.1 * seed))}

    for axes in ({"rule": ("a", "b")}, {"rule": ("a", "b"), "world": ("calm",)}):
        study = write_study(tmp_path / f"s{len(axes)}", made, axes=axes, seeds=(1, 2, 3))
        assert interactions(study, "mean_percent") == []
        assert not [name for name in study_frames(study) if "interaction" in name]


def test_a_missing_cell_leaves_its_seed_out(tmp_path: Path) -> None:
    def made(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
        if (levels["rule"], levels["world"], seed) == ("a", "night", 2):
            return None
        return {"evals": evals_table(np.full((1, 4), 0.1 * seed))}

    study = write_study(
        tmp_path / "s", made, axes={"rule": ("a", "b"), "world": ("calm", "night")}, seeds=(1, 2, 3)
    )
    (found,) = interactions(study, "mean_percent")
    assert (found.seeds, found.missing) == ((1, 3), (2,))


def test_frames_tables_report_and_findings_tell_of_them(tmp_path: Path) -> None:
    study = study_of(tmp_path / "made", {("fedfv", "night"): 9.0, ("fedlf", "churn"): -9.0}, spread=0.3)
    frame = study_frames(study)["interactions.end"]
    found = interactions(study, "mean_percent")
    assert frame["mean"].tolist() == [each.mean for each in found]
    titles = [str(table.title) for table in study_tables(study)]
    assert titles[-1] == (
        "interaction of rule and world: difference from fedavg at a level of world minus that at calm, at the end of "
        "each run"
    )
    document = study_document(study, tmp_path)
    assert len(document.tables["interactions-world-end-mean-percent"].rows) == 4
    (text,) = (each.text for each in document.findings if each.topic == "interaction")
    better, worse, unseen = text.split("; ")
    assert better.startswith("In mean accuracy, fedfv at world=night (+")
    assert better.endswith("is better against fedavg than at world=calm")
    assert "fedlf at world=churn (−" in worse
    assert "is worse against" in worse
    assert "fedlf at world=night" in unseen
    assert unseen.endswith("(corrected for 4 interactions).")

"""Variance components of studies whose results are made up, so that each cell is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tomli_w
from matplotlib.patches import Rectangle
from typer.testing import CliRunner

from fedsim import analysis
from fedsim.analysis.opening.study import Study
from fedsim.analysis.plots.variance_shares import variance_shares
from fedsim.analysis.report.study_report import study_document
from fedsim.analysis.statistics.variance.anova import components
from fedsim.cli.main import app
from fedsim.common.errors import ConfigError, FolderError, RunError
from synthetic_runs import evals_table
from synthetic_studies import write_study

RULES, DATA, WORLDS, SEEDS = ("fedavg", "fedfv"), ("d1", "d2"), ("w1", "w2", "w3"), (4, 7)
AXES: dict[str, Sequence[str]] = {"data_seed": DATA, "rule": RULES, "world_seed": WORLDS}
LEVELS: dict[str, Any] = {
    "data_seed": {name: {"seeds": {"data": n}} for n, name in enumerate(DATA)},
    "rule": {name: {"algorithm": {"name": name}} for name in RULES},
    "world_seed": {name: {"seeds": {"world": n}} for n, name in enumerate(WORLDS)},
}
PERCENT = np.random.default_rng(0).uniform(40, 90, (2, 2, 3, 2))
"""[rule, data, world, seed] mean accuracy of each cell."""


def percent_of(levels: Mapping[str, str], seed: int) -> float:
    place = RULES.index(levels["rule"]), DATA.index(levels["data_seed"]), WORLDS.index(levels["world_seed"])
    return float(PERCENT[(*place, SEEDS.index(seed))])


def study_of(
    folder: Path, lost: Sequence[tuple[str, int]] = (), levels: Any = LEVELS, times: int = 1, **changes: Any
) -> Study:
    def made(levels: Mapping[str, str], seed: int) -> Mapping[str, Any] | None:
        if ("-".join(levels.values()), seed) in lost:
            return None
        return {"evals": evals_table([[percent_of(levels, seed) / 100] * 3] * times)}

    compare = {"axis": "rule", "baseline": "fedavg", "metrics": ["mean_percent"]}
    study = write_study(folder, made, **({"axes": AXES, "seeds": SEEDS, "compare": compare} | changes))
    (folder / "study.toml").write_text(tomli_w.dumps({"axes": levels}))
    return study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study_of(tmp_path_factory.mktemp("studies") / "crossed")


def test_components_are_those_of_the_split(tmp_path: Path) -> None:
    """Accuracies on the training split are half those on the test split, and their components a quarter."""

    def made(levels: Mapping[str, str], seed: int) -> Mapping[str, Any]:
        percent = percent_of(levels, seed)
        tables = [
            evals_table([[percent / scale / 100] * 3], n=10_000, split=split)
            for split, scale in (("test", 1), ("train", 2))
        ]
        return {"evals": pa.concat_tables(tables)}

    compare = {"axis": "rule", "baseline": "fedavg", "metrics": ["mean_percent"]}
    both = write_study(tmp_path / "s", made, axes=AXES, seeds=SEEDS, compare=compare)
    (tmp_path / "s" / "study.toml").write_text(tomli_w.dumps({"axes": LEVELS}))
    test, train = (
        analysis.variance_components(both, "mean_percent", split=split) for split in (None, "train")
    )
    for a, b in zip(test, train, strict=True):
        assert [c.estimate for c in b.components] == pytest.approx(
            [c.estimate / 4 for c in a.components], abs=1e-3
        )


def test_each_level_and_its_paired_difference_have_components(study: Study) -> None:
    found = analysis.variance_components(study, "mean_percent")
    assert [(each.levels["rule"], each.baseline) for each in found] == [
        ("fedavg", None),
        ("fedfv", None),
        ("fedfv", "fedavg"),
    ]
    for each, values in zip(found, (PERCENT[0], PERCENT[1], PERCENT[1] - PERCENT[0]), strict=True):
        expected = components(values, ["data_seed", "world_seed", "seed"])
        assert [c.factors for c in each.components] == [c.factors for c in expected]
        assert [c.estimate for c in each.components] == pytest.approx([c.estimate for c in expected])
        assert each.mean == pytest.approx(values.mean())
        assert sum(each.share(c) for c in each.components) == pytest.approx(1)
    assert found[2].axis == "rule"


def test_another_baseline_turns_the_difference(study: Study) -> None:
    first = analysis.variance_components(study, "mean_percent")[-1]
    turned = analysis.variance_components(study.asked({"axis": "rule", "baseline": "fedfv"}), "mean_percent")[
        1
    ]
    assert turned.levels["rule"] == "fedavg"
    assert turned.mean == pytest.approx(-first.mean)
    assert [c.estimate for c in turned.components] == pytest.approx([c.estimate for c in first.components])


def test_an_axis_that_sets_more_than_seeds_is_no_factor(tmp_path: Path) -> None:
    levels = LEVELS | {"data_seed": {name: {"seeds": {"data": 1}, "train": {"lr": 0.1}} for name in DATA}}
    found = analysis.variance_components(study_of(tmp_path / "s", levels=levels), "mean_percent")
    assert [each.levels for each in found if each.baseline is None] == [
        {"data_seed": data, "rule": rule} for data in DATA for rule in RULES
    ]
    assert {c.factors for c in found[0].components} == {("world_seed",), ("seed",), ("world_seed", "seed")}


def test_a_study_with_one_seed_has_the_factors_of_its_axes(tmp_path: Path) -> None:
    found = analysis.variance_components(study_of(tmp_path / "s", seeds=[7]), "mean_percent")
    expected = components(PERCENT[0, :, :, 1], ["data_seed", "world_seed"])
    assert [c.estimate for c in found[0].components] == pytest.approx([c.estimate for c in expected])


def test_a_part_has_the_levels_that_it_ran(study: Study) -> None:
    part = replace(study, cells=tuple(cell for cell in study.cells if cell.levels["world_seed"] != "w1"))
    found = analysis.variance_components(part, "mean_percent")
    for each, values in zip(found, (PERCENT[0], PERCENT[1], PERCENT[1] - PERCENT[0]), strict=True):
        expected = components(values[:, 1:], ["data_seed", "world_seed", "seed"])
        assert [c.estimate for c in each.components] == pytest.approx([c.estimate for c in expected])
    one = replace(study, cells=tuple(cell for cell in study.cells if cell.levels["world_seed"] == "w2"))
    (first, *_) = analysis.variance_components(one, "mean_percent")
    assert first.levels == {"rule": "fedavg", "world_seed": "w2"}
    assert {c.factors for c in first.components} == {("data_seed",), ("seed",), ("data_seed", "seed")}


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    study = study_of(tmp_path / "s", lost=[("d2-fedfv-w1", 7)])
    with pytest.raises(RunError, match="none with rule=fedfv, data_seed=d2, world_seed=w1, seed=7"):
        analysis.variance_components(study, "mean_percent")


def test_a_study_without_two_factors_is_refused(tmp_path: Path) -> None:
    rules = {"rule": LEVELS["rule"] | {}, "data_seed": {d: {"train": {}} for d in DATA}, "world_seed": {}}
    study = study_of(tmp_path / "s", levels=rules)
    with pytest.raises(FolderError, match=r"expected two or more crossed factors.*found seed"):
        analysis.variance_components(study, "mean_percent")
    (tmp_path / "s" / "study.toml").unlink()
    with pytest.raises(FolderError, match=r"study\.toml: cannot be read"):
        analysis.variance_components(study, "mean_percent")


def compared(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)], env={"COLUMNS": "110"})
    if code:
        raise result.exception or AssertionError("no error")
    assert result.exit_code == 0
    return result.output


def test_the_command_shows_a_table_per_metric(study: Study) -> None:
    text = compared(study.folder, "--components", "--metric", "mean_percent", "--metric", "min_percent")
    assert "variance components of mean percent, at the end of each run" in text
    assert "variance components of min percent" in text
    rows = [line.split() for line in text.splitlines()]
    (total,) = {row[-2] for row in rows if row[:2] == ["one", "run"]} & {
        f"{np.sqrt(analysis.variance_components(study, 'mean_percent')[2].variance):.3g}"
    }
    assert total
    assert ["data_seed", "×", "world_seed", "×", "seed", "2"] in [row[:6] for row in rows]
    assert "minus fedavg" in text


def test_the_title_says_what_is_averaged(tmp_path: Path) -> None:
    (table,) = analysis.component_tables(study_of(tmp_path / "s", times=2).asked({"last": 2}))
    assert str(table.title).endswith("at the end of each run, averaged over the last 2 evaluations")


@pytest.mark.parametrize(
    ("more", "option"),
    [(["--by", "label"], "components"), (["--published"], "published"), (["other"], "components")],
)
def test_what_does_not_go_together_is_refused(study: Study, more: list[str], option: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{option}: "):
        compared(study.folder, *more, "--components", code=2)


def test_a_run_has_no_components(study: Study) -> None:
    with pytest.raises(ConfigError, match="--components: it is for studies"):
        compared(study.cells[0].folder, "--components", code=2)


def test_the_picture_has_a_bar_for_each_level_and_shares_that_fill_it(study: Study) -> None:
    found = analysis.variance_components(study, "mean_percent")
    picture = variance_shares(found)
    (ax,) = picture.figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == [each.name for each in found]
    widths = np.array([bar.get_width() for bar in ax.patches if isinstance(bar, Rectangle)])
    shares = [[100 * each.share(part) for part in each.components] for each in found]
    assert pytest.approx(np.array(shares)) == widths.reshape(len(found[0].components), len(found)).T
    assert [key.label for key in picture.keys] == [" × ".join(part.factors) for part in found[0].components]


def test_the_report_of_a_study_of_seeds_shows_their_shares(study: Study, tmp_path: Path) -> None:
    shown = study_document(study, tmp_path / "r.html").figures
    assert "variance-end-mean-percent" in shown
    axes = {axis: {level: {} for level in levels} for axis, levels in AXES.items()}  # they set something else
    other = study_document(study_of(tmp_path / "s", levels=axes), tmp_path / "r.html").figures
    assert not [name for name in other if name.startswith("variance")]

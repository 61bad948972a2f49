"""`[tune]`: each level of an axis chooses a key's value before the study, on seeds of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedsim import analysis
from fedsim.analysis.metrics.mean_percent import mean_percent
from fedsim.cli.main import main
from fedsim.common.errors import Changed, ConfigError, FolderError, RunError
from fedsim.config.errors import read_toml, validated
from fedsim.config.study.study import StudyConfig
from fedsim.studies import run as studies
from fedsim.studies.grid import cells_of
from fedsim.studies.load_study import load_study
from fedsim.studies.tune import extremes, provisional, scores, tuned, tuning_study

SMALLEST = Path(__file__).resolve().parents[3] / "examples" / "studies" / "smallest.toml"
VALUES = [0.003, 0.3, 0.1]
TUNE = {"axis": "rule", "key": "train.lr", "values": VALUES, "seeds": [11, 12]}


def tables(**changes: Any) -> dict[str, Any]:
    """Return the smallest study, shorter, with some of its tables replaced."""
    raw = read_toml(SMALLEST)
    raw["run"] |= {"stop": {"steps": 8}, "evaluate": {"every_steps": 8}}
    return raw | {"seeds": [1], "tune": TUNE} | changes


def checked(**changes: Any) -> StudyConfig:
    return validated(StudyConfig, tables(**changes), "s")


def accuracies(folder: Path, rule: str, value: float) -> list[float]:
    """Return the mean accuracies at the ends of the runs that tried a value, from their own tables."""
    runs = [analysis.open_run(folder / "runs" / f"{rule}.{value}" / f"seed-{seed}") for seed in (11, 12)]
    return [mean_percent(run.final().accuracy, run.final().n) for run in runs]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned")
    outcome = studies.study(tables(), out=out, jobs=1, device="cpu")
    assert (outcome.done, outcome.failed) == (2, ())
    return out


def test_each_level_chooses_the_value_with_the_best_mean_over_the_tuning_seeds(done: Path) -> None:
    for rule in ("fedavg", "fedfv"):
        means = {value: fmean(accuracies(done / "smallest_tuning", rule, value)) for value in VALUES}
        best = max(means, key=lambda value: means[value])
        assert best != VALUES[0]  # so small a rate learns nothing in eight steps
        assert analysis.open_run(done / "smallest" / "runs" / rule / "seed-1").config["train"]["lr"] == best


def test_the_study_is_the_one_with_these_values_written_by_hand(done: Path, tmp_path: Path) -> None:
    chosen = analysis.open_study(done / "smallest").tune
    assert chosen is not None
    axes = {
        rule: {"algorithm": {"name": rule}, "train": {"lr": value}} for rule, value in chosen.chosen.items()
    }
    raw = tables(axes={"rule": axes})
    del raw["tune"]
    studies.study(raw, out=tmp_path, jobs=1, device="cpu")
    assert analysis.open_study(tmp_path / "smallest").digest == analysis.open_study(done / "smallest").digest


def test_the_folder_repeats_the_study_without_tuning(done: Path, tmp_path: Path) -> None:
    studies.study(done / "smallest" / "study.toml", out=tmp_path, jobs=1, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["smallest"]
    assert analysis.open_study(tmp_path / "smallest").digest == analysis.open_study(done / "smallest").digest


def test_the_best_of_a_metric_that_should_be_small_is_its_smallest(done: Path) -> None:
    tried = analysis.open_study(done / "smallest_tuning")
    largest = tuned(checked(), tried).tune
    smallest = tuned(checked(tune=TUNE | {"metric": "variance_percent2"}), tried).tune
    assert largest is not None
    assert smallest is not None
    for rule in ("fedavg", "fedfv"):
        runs = {
            value: fmean(
                analysis.open_run(done / "smallest_tuning" / "runs" / f"{rule}.{value}" / f"seed-{seed}")
                .final()
                .summary()["variance_percent2"]
                for seed in (11, 12)
            )
            for value in VALUES
        }
        assert smallest.chosen[rule] == min(runs, key=lambda value: runs[value])


def test_means_of_the_last_evaluations_can_choose(tmp_path: Path) -> None:
    raw = tables(tune=TUNE | {"last": 3})
    raw["run"]["evaluate"] = {"every_steps": 2}
    studies.study(raw, out=tmp_path, jobs=1, device="cpu")
    study, tried = (analysis.open_study(tmp_path / name) for name in ("smallest", "smallest_tuning"))
    assert study.tune is not None
    assert study.tune.criterion == "mean_percent on seeds 11, 12, over the last 3 evaluations"
    for rule in ("fedavg", "fedfv"):
        means = {
            value: fmean(
                each.summary()["mean_percent"]
                for seed in (11, 12)
                for each in analysis.open_run(
                    tried.folder / f"runs/{rule}.{value}/seed-{seed}"
                ).evaluations()[-3:]
            )
            for value in VALUES
        }
        assert scores(study.tune, tried)[(rule,)] == pytest.approx(
            {str(v): mean for v, mean in means.items()}
        )
        assert study.tune.chosen[rule] == max(means, key=lambda value: means[value])


def test_the_first_of_equal_values_is_chosen(tmp_path: Path) -> None:
    """How often a run is evaluated does not change how it ends."""
    raw = tables(tune=TUNE | {"key": "evaluate.every_steps", "values": [8, 4]})
    raw["run"]["evaluate"] = {}
    studies.study(raw, out=tmp_path, jobs=1, device="cpu")
    tune = analysis.open_study(tmp_path / "smallest").tune
    assert tune is not None
    assert tune.chosen == {"fedavg": 8, "fedfv": 8}


def test_rounding_makes_no_value_the_best(done: Path) -> None:
    study, tune = analysis.open_study(done / "smallest_tuning"), TUNE
    values = study.frame(["mean_percent"])
    values["mean_percent"] = 50.0 + 1e-13 * np.arange(len(values))

    class Equal:
        axes, cells, folder = study.axes, study.cells, study.folder

        def frame(self, metrics: list[str]) -> Any:
            return values

    chosen = tuned(checked(tune=tune), Equal()).tune  # type: ignore[arg-type]
    assert chosen is not None
    assert chosen.chosen == dict.fromkeys(("fedavg", "fedfv"), VALUES[0])


def test_a_study_without_a_place_is_refused_before_its_tuning(tmp_path: Path) -> None:
    (tmp_path / "smallest").write_text("mine")
    with pytest.raises(FolderError, match="smallest exists and is not the folder of a study"):
        studies.study(tables(tune=TUNE), out=tmp_path, jobs=1, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["smallest"]


def test_values_are_tried_at_some_levels_of_other_axes(tmp_path: Path) -> None:
    world = {"calm": {"train": {"batch_size": 5}}, "busy": {}, "late": {}}
    study = checked(
        axes=tables()["axes"] | {"world": world},
        tune=TUNE | {"levels": {"world": ["busy", "late"]}},
        skip=[{"rule": "fedfv", "world": ["late", "calm"]}],
    )
    cells = cells_of(tuning_study(study, "s"), "s")
    tried = {(c.levels["rule"], c.levels["world"], c.config.train.lr, c.seed) for c in cells}
    places = [("fedavg", "busy"), ("fedavg", "late"), ("fedfv", "busy")]
    assert tried == {(*place, value, seed) for place in places for value in VALUES for seed in (11, 12)}
    assert len(cells) == len(tried)


def test_a_value_with_a_run_that_ends_without_a_number_is_not_chosen(done: Path) -> None:
    study = analysis.open_study(done / "smallest_tuning")
    tune = checked().tune
    assert tune is not None
    values = study.frame(["mean_percent"])
    values.loc[0, "mean_percent"] = float("nan")

    class Partly:
        axes, cells = study.axes, study.cells

        def frame(self, metrics: list[str]) -> Any:
            return values

    means = scores(tune, Partly())  # type: ignore[arg-type]
    rule, value = values.loc[0, ["rule", list(study.axes)[-1]]]
    assert [(r, v) for r in means for v in means[r] if means[r][v] != means[r][v]] == [((rule,), value)]


def test_a_part_of_a_study_tries_what_the_whole_one_does() -> None:
    """So it chooses the same values, though it runs at none of the levels where they are tried."""
    world = {"calm": {"train": {"batch_size": 5}}, "busy": {}}
    changes = {"axes": tables()["axes"] | {"world": world}, "tune": TUNE | {"levels": {"world": "busy"}}}
    whole, part = checked(**changes), checked(**changes, only={"rule": "fedfv", "world": "calm"})
    cells, some = (cells_of(tuning_study(study, "s"), "s") for study in (whole, part))
    assert [cell.folder for cell in some] == [c.folder for c in cells if c.levels["rule"] == "fedfv"]
    assert [cell.folder for cell in cells_of(provisional(part), "s")] == ["runs/fedfv.calm/seed-1"]


def test_a_value_whose_run_fails_is_not_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.toml"
    strict = {"run": tables()["run"] | {"bad_updates": {"policy": "stop"}}}
    file.write_text(tomli_w.dumps(tables(tune=TUNE | {"values": [1e30, 0.01, 0.1]}, **strict)))
    with pytest.raises(SystemExit) as ended:
        main(["study", str(file), "--out", str(tmp_path / "runs"), "--jobs", "1", "--device", "cpu"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    assert "train.lr by mean_percent on seeds 11, 12; * is chosen" in " ".join(printed.split())
    assert re.search(r"^fedavg +failed +[0-9.]+[ *]+[0-9.]+[ *]*$", printed, re.MULTILINE)
    assert "fedavg chose the largest one" not in printed  # 1e30 is
    assert "2 of 2 cells done" in printed
    with pytest.raises(
        RunError, match=r"no value of train.lr has a mean_percent at rule=fedavg, as a run of each"
    ):
        studies.study(
            tables(tune=TUNE | {"values": [1e30, 1e29]}, **strict), out=tmp_path, jobs=1, device="cpu"
        )


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"axis": []}, "tune.axis: expected an axis, or a list of different axes, found []"),
        ({"axis": ["rule", "rule"]}, "or a list of different axes, found ['rule', 'rule']"),
        ({"axis": ["rule", "rules"]}, "tune.axis: there is no axis 'rules'; did you mean 'rule'?"),
        ({"axis": "rules"}, "tune.axis: there is no axis 'rules'; did you mean 'rule'?"),
        ({"seeds": [1, 12]}, "tune.seeds: expected none of the study's seeds, so that its results do not choose"),
        ({"levels": {"rule": "fedfv"}}, "tune.levels.rule: every level of 'rule' chooses a value; leave it out"),
        ({"levels": {"world": "x"}}, "tune.levels.world: there is no axis 'world'"),
        ({"chosen": {"fedav": 1.0}}, "tune.chosen: axis 'rule' has no level 'fedav'; did you mean 'fedavg'?"),
        ({"values": [0.1]}, "tune.values"),
        ({"key": "seed"}, "tune.key: expected a key of [run], such as train.lr, found 'seed'"),
        ({"key": "run.train.lr"}, "tune.key: expected a key of [run] without run. before it, train.lr, found"),
        ({"metric": "mean"}, "tune.metric"),
    ],
)  # fmt: skip
def test_what_cannot_be_tuned_is_refused(tune: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_study(tables(tune=TUNE | tune))
    assert message in str(refused.value)


def test_an_assignment_of_the_key_that_is_tuned_is_refused() -> None:
    load_study(tables(), sets=("run.train.batch_size=4",))
    with pytest.raises(
        ConfigError,
        match=r"^--set run\.train\.lr=0\.2: no effect, as \[tune\] chooses train\.lr at each level of rule",
    ):
        load_study(tables(), sets=("run.train.lr=0.2",))


def test_values_and_keys_that_no_run_accepts_are_refused_before_any_run(tmp_path: Path) -> None:
    for tune, message in (
        ({"key": "train.lrr"}, r"train.lrr: unknown key; did you mean 'lr'.*\(tune\.key is train\.lrr\)"),
        ({"levels": {"rule": []}}, "tune.levels.rule"),
        ({"values": [0.1, -1.0]}, r"train.lr: .*found -1.0 \(in: rule=fedavg, lr=minus1.0"),
        ({"values": [0.1, 0.1]}, r"tune.values: expected different values, found '0.1' twice"),
        ({"values": [1, 1.0]}, r"tune.values: expected different values, found '1.0' twice"),
    ):
        with pytest.raises(ConfigError, match=message):
            studies.study(tables(tune=TUNE | tune), out=tmp_path, jobs=1)
    axes = {"rule": {"fedavg": {"train": {"lr": 0.1}}}}
    with pytest.raises(ConfigError, match=r"axes rule and \[tune\] both set train.lr"):
        studies.study(tables(axes=axes), out=tmp_path, jobs=1)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_estimates_both_studies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.toml"
    file.write_text(tomli_w.dumps(tables()))
    with pytest.raises(SystemExit) as ended:
        main(["study", str(file), "--out", str(tmp_path / "runs"), "--dry-run"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "plan of study smallest_tuning" in printed
    assert "12: 0 done, 12 left" in printed
    assert "plan of study smallest " in printed
    assert not (tmp_path / "runs").exists()
    studies.study(file, out=tmp_path / "runs", jobs=1)
    with pytest.raises(SystemExit) as ended:
        main(["study", str(file), "--out", str(tmp_path / "runs"), "--dry-run"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.count(" done, 0 left") == 2  # with the values that were chosen
    file.write_text(tomli_w.dumps(tables(tune=TUNE | {"values": [*VALUES, 1.0]})))
    with pytest.raises(SystemExit) as ended:
        main(["study", str(file), "--out", str(tmp_path / "runs"), "--dry-run"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "16: 12 done, 4 left" in printed
    assert "2: 0 done, 2 left" in printed, "another value may be chosen"


def test_a_dry_run_of_a_part_reads_the_runs_that_were_tried_for_another_one(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done, tmp_path / "runs")
    with pytest.warns(Changed, match=r"other cells there are not part of this study \(1\)"):
        studies.study(tables(only={"rule": "fedfv"}), out=tmp_path / "runs", jobs=1, device="cpu")
    file = tmp_path / "s.toml"
    for changes, message in (
        ({"only": {"rule": "fedavg"}}, "1: 1 done, 0 left"),
        ({"tune": TUNE | {"values": VALUES[:2]}}, "2: 2 done, 0 left"),
    ):
        fewer = tables(**changes)
        file.write_text(tomli_w.dumps(fewer))
        with pytest.raises(SystemExit) as ended:
            main(["study", str(file), "--out", str(tmp_path / "runs"), "--dry-run"])
        assert ended.value.code == 0
        assert message in capsys.readouterr().out


def test_a_level_of_which_skip_leaves_nothing_to_try_is_refused(tmp_path: Path) -> None:
    world = {"calm": {"train": {"batch_size": 5}}, "busy": {}}
    study = tables(
        axes=tables()["axes"] | {"world": world},
        tune=TUNE | {"levels": {"world": "busy"}},
        skip=[{"rule": "fedfv", "world": "busy"}],
    )
    message = r"^study: tune\.levels: skip leaves out each combination of them with rule=fedfv.*tune\.chosen\.fedfv$"
    with pytest.raises(ConfigError, match=message):
        studies.study(study, out=tmp_path, jobs=1)
    assert list(tmp_path.iterdir()) == []


def test_a_skipped_level_needs_no_value_until_it_is_run(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^s: skip\.0\.rul: there is no axis 'rul'; did you mean 'rule'\?$"
    ):
        checked(skip=[{"rul": "fedfv"}])
    some = tables(skip=[{"rule": "fedfv"}])
    outcome = studies.study(some, out=tmp_path, jobs=1, device="cpu")
    assert (outcome.done, outcome.failed) == (1, ())
    tune = analysis.open_study(outcome.folder).tune
    assert tune is not None
    assert list(tune.chosen) == ["fedavg"]
    outcome = studies.study(tables(), out=tmp_path, jobs=1, device="cpu")
    assert (outcome.done, outcome.failed) == (2, ())
    tune = analysis.open_study(outcome.folder).tune
    assert tune is not None
    assert list(tune.chosen) == ["fedavg", "fedfv"]


def test_a_level_with_a_value_is_not_tried(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here it is the worst value, which no run would choose."""
    file = tmp_path / "s.toml"
    file.write_text(tomli_w.dumps(tables(tune=TUNE | {"chosen": {"fedavg": VALUES[0]}})))
    with pytest.raises(SystemExit) as ended:
        main(["study", str(file), "--out", str(tmp_path / "runs"), "--jobs", "1", "--device", "cpu"])
    assert ended.value.code == 0
    assert {
        cell.levels["rule"] for cell in analysis.open_study(tmp_path / "runs" / "smallest_tuning").cells
    } == {"fedfv"}
    full, study = (analysis.open_study(folder / "smallest") for folder in (done, tmp_path / "runs"))
    assert full.tune is not None
    assert study.tune is not None
    assert study.tune.chosen == {"fedavg": VALUES[0], "fedfv": full.tune.chosen["fedfv"]}
    for rule, value in study.tune.chosen.items():
        run = analysis.open_run(study.folder / "runs" / rule / "seed-1")
        assert run.config["train"]["lr"] == value


def test_a_study_without_its_runs_can_be_extended_by_levels(done: Path, tmp_path: Path) -> None:
    """Its study file has the values of its levels, so that only the new one tries any."""
    some = tables(skip=[{"rule": "fedfv"}])
    kept = studies.study(some, out=tmp_path, jobs=1, device="cpu").folder
    for folder in (kept / "runs", tmp_path / "smallest_tuning"):
        shutil.rmtree(folder)
    wider = read_toml(kept / "study.toml")
    del wider["skip"]
    outcome = studies.study(wider, out=tmp_path, jobs=1, device="cpu")
    assert (outcome.done, outcome.failed) == (2, ())
    assert [path.parent.name for path in (kept / "runs").glob("*/seed-*")] == ["fedfv"]
    tried = {path.name for path in (tmp_path / "smallest_tuning" / "runs").iterdir()}
    assert tried == {f"fedfv.{value}" for value in VALUES}
    assert analysis.open_study(kept).digest == analysis.open_study(done / "smallest").digest


def test_the_ends_of_the_values_are_named() -> None:
    tune = checked(tune=TUNE | {"chosen": {"fedavg": 0.3, "fedfv": 0.1}}).tune
    assert tune is not None
    assert extremes(tune) == {"fedavg": "largest"}
    words = checked(tune=TUNE | {"key": "algorithm.name", "values": ["fedavg", "qffl"]})
    rules = provisional(words).tune
    assert rules is not None
    assert extremes(rules) == {}


WORLD = {"calm": {"train": {"batch_size": 2}}, "busy": {}}
"""A second axis: at `calm` every update has many local steps, so that a smaller rate suits it."""
BOTH: dict[str, Any] = {"axis": ["rule", "world"], "seeds": [11]}


@pytest.fixture(scope="module")
def by_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study in which each rule chooses a value in each world."""
    out = tmp_path_factory.mktemp("by_world")
    outcome = studies.study(
        tables(axes=tables()["axes"] | {"world": WORLD}, tune=TUNE | BOTH), out=out, jobs=1, device="cpu"
    )
    assert (outcome.done, outcome.failed) == (4, ())
    return out


def chosen_in(folder: Path) -> dict[str, Any]:
    tune = analysis.open_study(folder).tune
    assert tune is not None
    return tune.chosen


def test_each_combination_of_the_levels_of_several_axes_chooses(by_world: Path) -> None:
    chosen = chosen_in(by_world / "smallest")
    assert list(chosen) == ["fedavg", "fedfv"]
    for rule, world in [(rule, world) for rule in chosen for world in ("calm", "busy")]:
        runs = [
            analysis.open_run(by_world / "smallest_tuning" / "runs" / f"{rule}.{world}.{value}" / "seed-11")
            for value in VALUES
        ]
        means = [mean_percent(run.final().accuracy, run.final().n) for run in runs]
        best = VALUES[means.index(max(means))]
        assert chosen[rule][world] == best
        run = analysis.open_run(by_world / "smallest" / "runs" / f"{rule}.{world}" / "seed-1")
        assert run.config["train"]["lr"] == best
    assert len({value for values in chosen.values() for value in values.values()}) > 1


def test_the_folder_of_several_axes_repeats_the_study_without_tuning(by_world: Path, tmp_path: Path) -> None:
    studies.study(by_world / "smallest" / "study.toml", out=tmp_path, jobs=1, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["smallest"]
    digests = [analysis.open_study(folder / "smallest").digest for folder in (by_world, tmp_path)]
    assert digests[0] == digests[1]


def test_only_combinations_without_a_value_are_tried() -> None:
    axes = tables()["axes"] | {"world": WORLD}
    some = TUNE | BOTH | {"chosen": {"fedavg": {"calm": 0.3}, "fedfv": {"busy": 0.1}}}

    def tried(**changes: Any) -> set[tuple[str, str]]:
        study = tuning_study(checked(axes=axes, tune=some, **changes), "s")
        return {(cell.levels["rule"], cell.levels["world"]) for cell in cells_of(study, "s")}

    assert tried() == {("fedavg", "busy"), ("fedfv", "calm")}
    assert tried(only={"world": "calm"}) == {("fedfv", "calm")}
    assert tried(skip=[{"rule": "fedfv", "world": "calm"}]) == {("fedavg", "busy")}
    rates = {
        (cell.levels["rule"], cell.levels["world"]): cell.config.train.lr
        for cell in cells_of(provisional(checked(axes=axes, tune=some)), "s")
    }
    first = VALUES[0]
    assert rates == {
        ("fedavg", "calm"): 0.3, ("fedavg", "busy"): first, ("fedfv", "calm"): first, ("fedfv", "busy"): 0.1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        (
            {"chosen": {"fedavg": 0.1}},
            "tune.chosen.fedavg: expected a table with the value of each level of 'world', found 0.1",
        ),
        (
            {"chosen": {"fedavg": {"clam": 0.1}}},
            "tune.chosen.fedavg: axis 'world' has no level 'clam'; did you mean 'calm'?",
        ),
        ({"chosen": {"calm": {"fedavg": 0.1}}}, "tune.chosen: axis 'rule' has no level 'calm'"),
        ({"levels": {"world": "calm"}}, "tune.levels.world: every level of 'world' chooses a value; leave it out"),
    ],
)  # fmt: skip
def test_what_several_axes_cannot_choose_is_refused(tune: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_study(tables(axes=tables()["axes"] | {"world": WORLD}, tune=TUNE | BOTH | tune))
    assert message in str(refused.value)


def test_tables_name_the_levels_that_chose(by_world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = by_world / "again.toml"
    file.write_text(tomli_w.dumps(tables(axes=tables()["axes"] | {"world": WORLD}, tune=TUNE | BOTH)))
    with pytest.raises(SystemExit) as ended:
        main(["study", str(file), "--out", str(by_world), "--jobs", "1", "--device", "cpu"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    chosen = chosen_in(by_world / "smallest")
    for rule, world in [(rule, world) for rule in chosen for world in WORLD]:
        (row,) = re.findall(rf"^{rule} +{world} +(.+[*].*)$", printed, re.MULTILINE)
        assert [cell.endswith("*") for cell in row.split()] == [v == chosen[rule][world] for v in VALUES]
        if chosen[rule][world] == max(VALUES):
            largest = re.search(
                r"tried may be better: [^;]*?([^;]+) chose the largest one", " ".join(printed.split())
            )
            assert largest is not None
            assert f"{rule} at {world}" in largest[1].split(", ")
    with pytest.raises(SystemExit):
        main(["report", str(by_world / "smallest")])
    page = (by_world / "smallest" / "report.html").read_text()
    assert f"fedavg at calm {chosen['fedavg']['calm']}, fedavg at busy {chosen['fedavg']['busy']}" in page
    assert "best mean_percent on seed 11, among" in page


def test_a_study_whose_tuning_is_kept_without_runs_too_can_be_extended_by_levels(
    done: Path, tmp_path: Path
) -> None:
    some = tables(skip=[{"rule": "fedfv"}])
    kept = studies.study(some, out=tmp_path, jobs=1, device="cpu").folder
    results = tmp_path / "smallest_tuning" / "results.csv"
    for folder in (kept, results.parent):
        shutil.rmtree(folder / "runs")
    before = results.read_text().splitlines()
    wider = read_toml(kept / "study.toml")
    del wider["skip"]
    outcome = studies.study(wider, out=tmp_path, jobs=1, device="cpu")
    assert (outcome.done, outcome.failed) == (2, ())
    after = results.read_text().splitlines()
    assert set(before) < set(after)
    assert len(after) == 2 * len(before) - 1  # the heading, and as many lines for the other rule
    repeated = studies.study(kept / "study.toml", out=tmp_path, jobs=1, device="cpu")
    assert (repeated.done, repeated.failed) == (2, ())

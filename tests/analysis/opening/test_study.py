from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fedsim import analysis
from fedsim.analysis.opening.joining import join_runs, join_studies
from fedsim.analysis.opening.points import POINTS
from fedsim.analysis.opening.results import last_evaluations
from fedsim.analysis.opening.study import Study, bytes_by
from fedsim.analysis.tables.study_tables import study_tables
from fedsim.common.errors import ConfigError, FolderError, RunError
from fedsim.config.errors import validated
from fedsim.config.study.axes import COLUMNS
from fedsim.config.study.study import StudyConfig
from fedsim.records.study_results import write_results
from synthetic_runs import evals_table, jobs_table
from synthetic_studies import write_study

HOUR = 3600 * 10**6


def flat(value: float, *, times: int = 2, clients: int = 4, every_us: int = HOUR) -> dict[str, Any]:
    """Evaluations of clients that all have the accuracy `value` plus 1 % for each evaluation."""
    levels = value + 0.01 * np.arange(times)
    return {"evals": evals_table(np.repeat(levels[:, None], clients, axis=1), n=100, every_us=every_us)}


def by_rule(levels: dict[str, str], seed: int) -> dict[str, Any]:
    return flat(0.5 + 0.1 * (levels["rule"] == "fedfv") + 0.01 * seed)


SPLITS = {"valid": 0.9, "test": 0.5}
AXES = {"rule": ("fedavg", "fedfv"), "dropout": ("none", "high")}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return write_study(tmp_path / "made", by_rule, axes=AXES, seeds=(1, 2), compare={"axis": "rule"})


def test_a_study_knows_its_axes_cells_and_runs(study: Study) -> None:
    assert (study.name, study.description, study.seeds) == ("made", "made up", (1, 2))
    assert study.axes == AXES
    assert len(study.finished) == len(study.cells) == 8
    cell = study.cells[0]
    assert cell.name == "rule=fedavg, dropout=none, seed 1"
    assert study.run(cell) is study.run(cell)
    assert study.run(cell).folder == cell.folder


def test_the_frame_has_a_row_per_finished_cell_in_the_order_of_the_file(tmp_path: Path) -> None:
    def some(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
        return None if (levels["rule"], seed) == ("fedavg", 2) else by_rule(levels, seed)

    study = write_study(tmp_path / "made", some, axes=AXES, seeds=(2, 1))
    frame = study.frame(["mean_percent", "gini"])
    assert list(frame.columns) == [
        "rule", "dropout", "seed", "step", "time_us", "bytes", "clients", "mean_percent", "gini",
    ]  # fmt: skip
    assert list(zip(frame["rule"], frame["dropout"], frame["seed"], strict=True)) == [
        ("fedavg", "none", 1),
        ("fedavg", "high", 1),
        ("fedfv", "none", 1),
        ("fedfv", "none", 2),
        ("fedfv", "high", 1),
        ("fedfv", "high", 2),
    ]
    assert frame["mean_percent"].tolist() == pytest.approx([52, 52, 62, 63, 62, 63])
    assert set(frame["clients"]) == {4}


def test_a_study_without_axes_is_its_seeds(tmp_path: Path) -> None:
    study = write_study(tmp_path / "bare", lambda _, seed: flat(0.1 * seed), axes={}, seeds=(1, 2, 3))
    assert study.frame(["mean_percent"], "steps")["mean_percent"].tolist() == pytest.approx([11, 21, 31])
    with pytest.raises(RunError, match="has no axis, so there are no levels to compare"):
        analysis.differences(study, "mean_percent")


def lengths(levels: dict[str, str], seed: int) -> dict[str, Any]:
    """One rule is evaluated 11 times by the hour, the other 6 times every 90 minutes."""
    return flat(0.2, times=11) if levels["rule"] == "long" else flat(0.6, times=6, every_us=HOUR * 3 // 2)


@pytest.mark.parametrize(
    ("at", "steps", "hours"),
    [("end", [10, 5], [10, 7.5]), ("steps", [5, 5], [5, 7.5]), ("time", [6, 4], [6, 6])],
)
def test_runs_meet_at_a_point_that_all_were_evaluated_at(
    tmp_path: Path, at: Any, steps: list[int], hours: list[float]
) -> None:
    study = write_study(tmp_path / "made", lengths, axes={"rule": ("long", "short")}, seeds=(1,))
    frame = study.frame(["mean_percent"], at)
    assert frame["step"].tolist() == steps
    assert (frame["time_us"] / HOUR).tolist() == hours
    assert frame["mean_percent"].tolist() == pytest.approx([20 + steps[0], 60 + steps[1]])


def test_without_a_shared_point_each_is_taken_at_its_last_one_not_beyond(tmp_path: Path) -> None:
    def odd(levels: dict[str, str], seed: int) -> dict[str, Any]:
        return flat(0.2, times=5, every_us=7 if levels["rule"] == "a" else 11)

    study = write_study(tmp_path / "made", odd, axes={"rule": ("a", "b")}, seeds=(1,))
    assert study.frame([], "time")["time_us"].tolist() == [28, 22]


def test_bytes_are_those_of_jobs_that_had_ended(tmp_path: Path) -> None:
    def moving(levels: dict[str, str], seed: int) -> dict[str, Any]:
        each = 10 if levels["rule"] == "light" else 20
        ends = np.arange(1, 5) * HOUR
        jobs = jobs_table(
            dispatch_us=np.zeros(4), end_us=ends, download_bytes=np.full(4, each - 1), upload_bytes=np.ones(4)
        )
        return flat(0.5, times=5) | {"jobs": jobs}

    study = write_study(tmp_path / "made", moving, axes={"rule": ("light", "heavy")}, seeds=(1,))
    run = study.run(study.cells[0])
    assert bytes_by(run, np.array([0, HOUR - 1, HOUR, 9 * HOUR])).tolist() == [0, 0, 10, 40]
    frame = study.frame([], "bytes")
    assert frame["bytes"].tolist() == [40, 40]
    assert frame["step"].tolist() == [4, 2]


def test_runs_that_evaluated_other_clients_are_not_compared(tmp_path: Path) -> None:
    def parts(levels: dict[str, str], seed: int) -> dict[str, Any]:
        return flat(0.5, clients=3 if levels["rule"] == "b" else 4)

    study = write_study(tmp_path / "made", parts, axes={"rule": ("a", "b")}, seeds=(7,))
    with pytest.raises(RunError, match="rule=b and rule=a, seed 7: evaluated on 3 and 4 clients"):
        analysis.differences(study, "mean_percent")


def sampled(levels: dict[str, str], seed: int) -> dict[str, Any]:
    """Hourly evaluations of clients 0 and 1, which the last one has with two worse ones; rule b is shorter."""
    table = flat(0.5 + 0.2 * (levels["rule"] == "b"), times=5 if levels["rule"] == "b" else 9)["evals"]
    last = pc.equal(table["step"], pc.max(table["step"]))
    worse = pc.and_(last, pc.greater(table["client"], 1))
    column = table.column_names.index("accuracy")
    accuracy = pc.if_else(worse, 0.0, table["accuracy"]).cast(pa.float64())
    return {
        "evals": table.set_column(column, "accuracy", accuracy).filter(
            pc.or_(last, pc.less(table["client"], 2))
        )
    }


def test_runs_are_compared_on_the_clients_that_all_evaluations_have(tmp_path: Path) -> None:
    study = write_study(tmp_path / "made", sampled, axes={"rule": ("a", "b")}, seeds=(1, 2, 3))
    end = study.frame(["mean_percent"])
    assert set(end["clients"]) == {4}
    assert set(end["mean_percent"].round(6)) == {29.0, 37.0}  # half of 58 % and of 74 %
    for at in ("steps", "time"):
        frame = study.frame(["mean_percent"], at)
        assert set(frame["clients"]) == {2}
        assert set(frame["step"]) == {4}
        assert set(frame["mean_percent"].round(6)) == {54.0, 74.0}
        assert [d.mean for d in analysis.differences(study, "mean_percent", at)] == pytest.approx([20])
    averaged = study.asked({"last": 2})
    assert set(averaged.frame(["mean_percent"])["mean_percent"].round(6)) == {57.5, 73.5}
    assert analysis.time_to_target(study, "mean_percent", 57.5)["step"].tolist() == [8, 8, 8, 0, 0, 0]
    asked = study.asked({"at": ["end", "time"], "target": "mean_percent=57.5"})
    titles = [str(table.title) for table in analysis.study_tables(asked)]
    assert titles == [
        "made: mean ± standard deviation over seeds, at the end of each run",
        "rule: difference from a, at the end of each run",
        "made: mean ± standard deviation over seeds, after equal virtual time on 2 of 4 clients",
        "rule: difference from a, after equal virtual time on 2 of 4 clients",
        "made: virtual time to mean accuracy of 57.5 % on 2 of 4 clients",
    ]
    first, second = (study.run(cell) for cell in study.cells if cell.seed == 1)
    assert analysis.compare(first, second, at="time").mean_percent == pytest.approx(20)
    assert analysis.compare(first, second).mean_percent == pytest.approx(8)


def of_clients(levels: dict[str, str], seed: int) -> dict[str, Any]:
    """Clients 0 to 2 or 2 to 4 in all evaluations but the last, of which the clients have 10 % a number."""
    first, last = levels["sample"].split("-")
    accuracy = np.tile(np.arange(5) / 10, (3, 1))
    table = evals_table(accuracy + (seed if levels["sample"] == "2-4" else 0) / 100, n=100)
    known = pc.and_(pc.greater_equal(table["client"], int(first)), pc.less_equal(table["client"], int(last)))
    return {"evals": table.filter(pc.or_(known, pc.equal(table["step"], 2)))}


def test_pairs_are_compared_on_clients_of_both(tmp_path: Path) -> None:
    axes = {"sample": ("0-2", "2-4", "0-4")}
    study = write_study(tmp_path / "made", of_clients, axes=axes, seeds=(1, 2, 3))
    ends = study.frame(["mean_percent"], "steps")
    assert set(ends["clients"]) == {5}  # all ended at the same step
    averaged = study.asked({"last": 2}).frame(["mean_percent"])
    assert set(averaged["clients"]) == {1}  # client 2 alone is in all of them
    assert averaged["mean_percent"].round(9).tolist() == [20, 20, 20, 21, 22, 23, 20, 20, 20]
    found = analysis.differences(study.asked({"last": 2}), "mean_percent")
    assert [d.mean for d in found] == pytest.approx([2, 0])
    apart = write_study(tmp_path / "apart", of_clients, axes={"sample": ("0-1", "2-4")}, seeds=(1,))
    with pytest.raises(
        FolderError, match="seed-1: no client was evaluated in all of them; compare them at the end"
    ):
        apart.asked({"last": 2}).frame(["mean_percent"])
    told = analysis.target_tables(study, "mean_percent", 10)[0].title
    assert str(told) == "made: virtual time to mean accuracy of 10 % on 3 to 5 of 5 clients"


def test_a_point_without_a_comparison_leaves_the_others(tmp_path: Path) -> None:
    study = write_study(tmp_path / "made", lengths, axes={"rule": ("long", "short")}, seeds=(1,))
    asked = study.asked({"at": ["end", "time"], "last": 6})
    *tables, why = analysis.study_tables(asked)
    assert ["at the end of each run" in str(table.title) for table in tables] == [True, True]
    assert str(why).startswith("not compared: ")
    assert "expected 6 evaluations to average, found 5" in str(why)
    with pytest.raises(FolderError, match="expected 7 evaluations to average"):
        list(analysis.study_tables(study.asked({"at": ["end"], "last": 7})))


def test_a_mean_over_fewer_seeds_than_there_are_runs_says_so(tmp_path: Path) -> None:
    """The true spread is unknown where each client has one sample."""

    def made(levels: dict[str, str], seed: int) -> dict[str, Any]:
        return {"evals": evals_table(np.array([[0.5, 1.0]]), n=1 if seed == 3 else 8)}

    study = write_study(tmp_path / "made", made, axes={}, seeds=(1, 2, 3, 4))
    (table,) = analysis.study_tables(study.asked({"metrics": ["mean_percent", "std_true_percent"]}))
    rows = [str(cell).split("\n") for column in table.columns for cell in column.cells]
    assert [row[-1] for row in rows] == ["4", "[75, 75]", "3 seeds"]


def test_what_is_asked_can_be_changed(study: Study) -> None:
    asked = study.asked({"axis": "dropout", "metrics": ["gini"], "at": ["time"]})
    assert (asked.axis(), asked.baseline("dropout")) == ("dropout", "none")
    assert study.asked({"baseline": "fedfv"}).baseline("rule") == "fedfv"
    for changes, message in (
        ({"axis": "rul"}, "no axis 'rul'; did you mean 'rule'"),
        ({"baseline": "fedfw"}, "axis 'rule' has no level 'fedfw'; did you mean 'fedfv'"),
        ({"at": ["stepz"]}, "no point 'stepz' to compare runs at; did you mean 'steps'"),
        ({"test": "student"}, "test: expected rank or t, found 'student'"),
    ):
        with pytest.raises(ConfigError, match=message):
            study.asked(changes)
    with pytest.raises(ConfigError, match="did you mean 'gini'"):
        study.frame(["ginni"])


def test_a_study_without_an_axis_has_no_baseline(tmp_path: Path) -> None:
    study = write_study(tmp_path / "made", lambda levels, seed: flat(0.5), axes={}, seeds=(7,))
    assert study.asked({"last": 1}).axes == {}
    for changes in ({"axis": "rule"}, {"baseline": "fedavg"}):
        with pytest.raises(FolderError, match="the study has no axis, so there are no levels to compare"):
            study.asked(changes)


def spoil(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda said: said.update(keys)


def spoil_cell(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda said: said["cells"][3].update(keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoil(format=2), "format: expected 1, found 2"),
        (spoil(seeds="1"), "study.json: seeds"),
        (spoil(compare={"at": ["stepz"]}), "study.json: compare.at"),
        (
            lambda said: said["cells"].append(said["cells"][0]),
            "cells.8: it has the levels and the seed of cells.0",
        ),
        (spoil(compare={"test": "student"}), "study.json: compare.test"),
        (spoil_cell(status="gone"), "study.json: cells.3.status"),
        (
            spoil_cell(levels={"rule": "fedavg"}),
            r"cells.3.levels: expected a level of each axis \(rule, dropout\)",
        ),
        (
            spoil_cell(levels={"rule": "fedav", "dropout": "none"}),
            "unknown level 'fedav'; did you mean 'fedavg'",
        ),
        (spoil_cell(folder="../../other"), "cells.3.folder: expected a folder within the study"),
        (spoil_cell(folder="/etc"), "cells.3.folder: expected a folder within the study"),
    ],
)
def test_a_bad_file_is_named(study: Study, change: Callable[[dict[str, Any]], None], message: str) -> None:
    file = study.folder / "study.json"
    said = json.loads(file.read_text())
    change(said)
    file.write_text(json.dumps(said))
    with pytest.raises(FolderError, match=message):
        analysis.open_study(study.folder)


def test_what_is_no_study_says_so(study: Study, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="is not the folder of a study: study"):
        analysis.open_study(tmp_path / "nothing")
    (study.folder / "study.json").write_text("{")
    with pytest.raises(FolderError, match=r"study\.json: cannot be read"):
        analysis.open_study(study.folder)


def test_a_cell_without_its_folder_is_run_anew_by_the_study(study: Study) -> None:
    cell = study.cells[0]
    cell.folder.rename(study.folder / "elsewhere")
    with pytest.raises(FolderError, match=f"no run folder {cell.folder}.*; fedsim study repeats cells"):
        study.run(cell)


def test_two_runs_are_a_study(study: Study) -> None:
    runs = [study.run(study.cells[i]) for i in (0, 4)]
    pair = join_runs(*runs)
    (found,) = analysis.differences(pair, "mean_percent")
    assert found.mean == pytest.approx(10)
    for at in POINTS:
        compared = analysis.compare(*runs, at=at)
        assert compared.mean_percent == pytest.approx(10)
        assert [point[0] for point in compared.points] == [1, 1]


@pytest.mark.parametrize(
    ("at", "step", "words"),
    [
        ("steps=2", 2, "after 2 steps"),
        ("steps=4", 4, "after 4 steps"),
        ("time=2h", 2, "after 2h of virtual time"),
        ("time=3.9h", 3, "after 3.9h of virtual time"),
        ("bytes=250B", 2, "after 250B moved"),
    ],
)
def test_runs_are_compared_at_their_last_evaluation_up_to_a_point(
    at: str, step: int, words: str, tmp_path: Path
) -> None:
    jobs = jobs_table(
        dispatch_us=np.zeros(4),
        end_us=np.arange(1, 5) * HOUR,
        download_bytes=np.full(4, 60),
        upload_bytes=np.full(4, 40),
    )
    study = write_study(
        tmp_path / "made",
        lambda levels, seed: flat(0.5 + 0.01 * seed, times=5) | {"jobs": jobs},
        axes={"rule": ("a", "b")},
        seeds=(1, 2, 3),
        compare={"axis": "rule", "at": ["end", at]},
    )
    frame = study.frame(["mean_percent"], at)
    assert frame["step"].tolist() == [step] * 6
    assert frame["mean_percent"].tolist() == pytest.approx([50 + step + seed for seed in (1, 2, 3)] * 2)
    runs = [study.run(cell) for cell in study.cells if cell.seed == 1]
    assert words in analysis.compare(*runs, at=at).note()
    levels, differences = list(study_tables(study))[2:]
    assert words in str(levels.title)
    assert words in str(differences.title)
    last = study.asked({"last": 2}).frame(["mean_percent"], at)
    assert last["mean_percent"].tolist() == pytest.approx([49.5 + step + seed for seed in (1, 2, 3)] * 2)


def test_a_run_that_does_not_reach_a_point_is_not_compared_there(study: Study) -> None:
    for at, last in {"steps=2": "step 1", "time=61m": "01:00:00"}.items():
        message = f"seed-1: expected evaluations before and after {at}, .* last at {last}; .* without a number takes"
        with pytest.raises(FolderError, match=message):
            study.frame(["mean_percent"], at)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("steps=", "expected a whole number of steps, such as steps=500, found ''"),
        ("steps=0", "expected a point above 0, found 'steps=0'"),
        ("steps=1.5", "expected a whole number of steps, such as steps=500, found '1.5'"),
        ("time=6x", "expected a duration such as .*, found unit 'x'"),
        ("bytes=much", "expected a size such as .*, found 'much'"),
        ("end=5", "expected end without a number, found 'end=5'"),
        ("step=5", "there is no point 'step' to compare runs at; did you mean 'steps'"),
    ],
)
def test_what_is_no_point_is_told(at: str, words: str, study: Study) -> None:
    with pytest.raises(ConfigError, match=words):
        study.frame(["mean_percent"], at)
    with pytest.raises(ConfigError, match=words):
        study.asked({"at": [at]})


def test_two_studies_are_compared_level_by_level(study: Study, tmp_path: Path) -> None:
    def better(levels: dict[str, str], seed: int) -> dict[str, Any]:
        return flat(0.55 + 0.1 * (levels["rule"] == "fedfv") + 0.01 * seed)

    other = write_study(tmp_path / "other", better, axes=AXES, seeds=(2, 3))
    both = join_studies(study, other)
    assert both.axes == {"study": ("made", "other")} | AXES
    found = analysis.differences(both, "mean_percent")
    assert [each.others for each in found] == [
        {"rule": rule, "dropout": dropout} for rule in AXES["rule"] for dropout in AXES["dropout"]
    ]
    assert all(each.seeds == (2,) and each.missing == (1, 3) for each in found)
    assert [each.mean for each in found] == pytest.approx([5] * 4)
    assert both.description == ""  # but for the name of the study they have the same configurations
    apart = write_study(tmp_path / "apart", better, axes=AXES, seeds=(4, 5))
    with pytest.raises(RunError, match=r"found none; seeds 1, 2 and 4, 5$"):
        join_studies(study, apart)
    with pytest.raises(RunError, match="expected two different studies"):
        join_studies(study, study)
    bare = write_study(tmp_path / "bare", lambda *_: flat(0.5), axes={}, seeds=(1,))
    with pytest.raises(RunError, match="same axes, found rule, dropout and none"):
        join_studies(study, bare)


def test_two_studies_name_the_keys_in_which_they_differ(tmp_path: Path) -> None:
    first, second = (
        write_study(tmp_path / name, by_rule, axes=AXES, seeds=(1, 2)) for name in ("first", "second")
    )
    for cell in second.cells:
        file = cell.folder / "config.resolved.toml"
        lr = 0.1 if cell.seed == 1 else 0.2
        file.write_text(file.read_text() + f"\n[train]\nlr = {lr}\n\n[evaluate]\nsplit = 'valid'\n")
    assert join_studies(first, second).description == (
        "The studies differ in train.lr (in several ways), evaluate.split (nothing and 'valid')."
    )


def test_a_run_without_another_to_be_equal_with_counts_at_no_shared_point(tmp_path: Path) -> None:
    """Seed 2 of the second study goes on to 20 hours; the first has no such seed."""

    def longer(levels: dict[str, str], seed: int) -> dict[str, Any]:
        return flat(0.3, times=11 if seed == 1 else 21)

    first = write_study(tmp_path / "first", lambda *_: flat(0.2, times=6), axes={"rule": ("a",)}, seeds=(1,))
    second = write_study(tmp_path / "second", longer, axes={"rule": ("a",)}, seeds=(1, 2))
    both = join_studies(first, second)
    assert both.frame([], "time")[["study", "seed", "step"]].to_numpy().tolist() == [
        ["first", 1, 5],
        ["second", 1, 5],
    ]
    assert both.frame([])["step"].tolist() == [5, 10, 20]
    level, _ = analysis.study_tables(both.asked({"at": ["time"]}))
    assert "Left out: 1 run without another one to be equal with." in str(level.caption)
    half = replace(second, axes={"rule": ("a", "b")})  # of a rule b that has not run yet
    assert half.frame([])["step"].tolist() == [10, 20]
    with pytest.raises(FolderError, match="no two levels of rule have finished runs of the same seed"):
        half.frame([], "time")


def test_two_studies_are_compared_on_the_split_of_the_first(tmp_path: Path) -> None:
    """Runs of the second name `valid`, with 90 %, and were evaluated on `test` too, with 50 %."""

    def both_splits(*_: object) -> dict[str, Any]:
        splits = [evals_table(np.full((2, 4), value), split=split) for split, value in SPLITS.items()]
        return flat(0.5) | {"evals": pa.concat_tables(splits)}

    first = write_study(tmp_path / "first", lambda *_: flat(0.39), axes={"rule": ("a",)}, seeds=(1,))
    second = write_study(tmp_path / "second", both_splits, axes={"rule": ("a",)}, seeds=(1,))
    configuration = second.cells[0].folder / "config.resolved.toml"
    configuration.write_text(configuration.read_text() + '\n[evaluate]\nsplit = "valid"\n')
    for studies, split, difference in (((first, second), None, 10), ((second, first), "test", -10)):
        both = join_studies(*studies).asked({"split": split} if split else {})
        assert [each.mean for each in analysis.differences(both, "mean_percent")] == pytest.approx(
            [difference]
        )
    with pytest.raises(FolderError, match="no evaluation on split 'valid' was recorded; found test"):
        analysis.differences(join_studies(second, first), "mean_percent")


def test_no_axis_can_have_the_name_of_a_column_beside_it(tmp_path: Path) -> None:
    asked = {"axis": "rule", "baseline": "fedavg", "group": "used", "metrics": ["gini"]}
    made = write_study(tmp_path / "made", by_rule, axes=AXES, seeds=(1, 2), compare=asked)
    frames = [made.frame(["gini"]), *analysis.study_frames(made).values()]
    columns = {str(column) for frame in frames for column in frame} - {*AXES, "gini"}
    assert {column for column in columns if column.isalpha()} <= set(COLUMNS)
    for name in ("clients", "gini"):
        said = {"name": "x", "seeds": 1, "run": {}, "axes": {name: {"a": {}}}}
        with pytest.raises(ConfigError, match=f"axes.{name}: a column of the study's tables has this name"):
            validated(StudyConfig, said, "x.toml")


def test_tables_of_all_runs_are_not_kept(study: Study) -> None:
    study.frame(["mean_percent"], "bytes")
    analysis.study_participation(study, "used")
    assert study.cells
    for cell in study.cells:
        opened = study.run(cell)
        assert not {"jobs", "evals", "world"} & set(vars(opened))
        assert len(opened.evals)
        assert "evals" in vars(opened), "where a run keeps a table that it was asked for"


def with_unseen(levels: dict[str, str], seed: int) -> dict[str, Any]:
    """Evaluations of four clients, and an earlier one of two unseen clients, which the other rule suits better."""
    seen = by_rule(levels, seed)["evals"]
    value = 0.5 - 0.2 * (levels["rule"] == "fedfv") + 0.01 * seed
    unseen = evals_table(np.full((1, 2), value), n=100, split="unseen", every_us=HOUR)
    client = pa.array(np.asarray(unseen["client"]) + 4, pa.int32())
    unseen = unseen.set_column(unseen.schema.get_field_index("client"), "client", client)
    return {"evals": pa.concat_tables([seen, unseen]).unify_dictionaries()}


def test_a_study_compares_at_the_split_that_it_names(tmp_path: Path) -> None:
    axes, seeds = {"rule": ("fedavg", "fedfv")}, (1, 2, 3)
    plain = write_study(tmp_path / "plain", with_unseen, axes=axes, seeds=seeds)
    named = write_study(tmp_path / "named", with_unseen, axes=axes, seeds=seeds, compare={"split": "unseen"})
    for study in (plain.asked({"split": "unseen"}), named):
        assert study.split == "unseen"
        frame = study.frame(["mean_percent"])
        assert frame["mean_percent"].tolist() == pytest.approx([51, 52, 53, 31, 32, 33])
        assert set(frame["clients"]) == {2}
        (difference,) = analysis.differences(study, "mean_percent")
        assert difference.mean == pytest.approx(-20)
        titles = [str(table.title) for table in analysis.study_tables(study)]
        assert all(title.endswith("at the end of each run on the unseen split") for title in titles)
        assert study.frame(["mean_percent"], split="test")["mean_percent"].iloc[0] == pytest.approx(52)
        document = analysis.study_document(study, tmp_path)
        accuracy = next(str(f) for f in document.findings if f.topic == "accuracy")
        assert accuracy.startswith("In mean accuracy on the unseen split, ")
        assert "from fedavg (52.0 %)" in accuracy
    assert plain.split is None
    assert analysis.differences(plain, "mean_percent")[0].mean == pytest.approx(10)
    with pytest.raises(FolderError, match="there is no split 'unsen'; did you mean 'unseen'"):
        plain.asked({"split": "unsen"}).frame(["mean_percent"])


@pytest.mark.parametrize(("at", "steps"), [("end", [10, 5]), ("steps", [5, 5]), ("time", [6, 4])])
@pytest.mark.parametrize("last", [1, 2, 5])
def test_metrics_are_means_over_the_last_evaluations_up_to_the_point(
    tmp_path: Path, at: Any, steps: list[int], last: int
) -> None:
    """Accuracies rise by one percent with each evaluation, so the mean of five lies two percent below the last."""
    study = write_study(tmp_path / "made", lengths, axes={"rule": ("long", "short")}, seeds=(1,))
    frame = study.asked({"last": last}).frame(["mean_percent"], at)
    expected = [20 + steps[0] - (last - 1) / 2, 60 + steps[1] - (last - 1) / 2]
    assert frame["mean_percent"].tolist() == pytest.approx(expected)
    assert frame["step"].tolist() == steps


def test_averages_of_evaluations_that_are_not_there_are_refused(tmp_path: Path) -> None:
    study = write_study(tmp_path / "made", lengths, axes={"rule": ("long", "short")}, seeds=(1,))
    with pytest.raises(FolderError, match=r"short.seed-1: last: expected 7 evaluations to average, found 6"):
        study.asked({"last": 7}).frame(["mean_percent"])
    with pytest.raises(FolderError, match="expected 6 evaluations to average, found 5"):
        study.asked({"last": 6}).frame(["mean_percent"], "time")
    for wrong in (0, -1, 2.0, True, "5"):
        with pytest.raises(
            ConfigError, match="last: expected a whole number of evaluations of at least 1, found"
        ):
            study.asked({"last": wrong})
    for findings in (analysis.findings, lambda each: analysis.study_document(each, tmp_path)):
        with pytest.raises(FolderError, match="expected 7 evaluations"):
            findings(study.asked({"last": 7}))
        with pytest.raises(FolderError, match="expected 6 evaluations"):
            findings(study.asked({"last": 6, "at": ["time"]}))


@pytest.mark.parametrize(
    ("kept", "said"), [(1, "its last evaluation alone"), (3, "its last 3 evaluations alone")]
)
def test_a_cell_without_its_run_has_the_evaluations_that_were_kept(
    tmp_path: Path, kept: int, said: str
) -> None:
    study = write_study(tmp_path / "made", lengths, axes={"rule": ("long", "short")}, seeds=(1,))
    asked = [study.asked({"last": last}) for last in range(1, kept + 1)]
    before = [each.frame(["mean_percent", "angle_rad"]) for each in asked]
    results = [
        r
        for cell in study.cells
        for r in last_evaluations(study.run(cell), str(cell.folder.relative_to(study.folder)), kept)
    ]
    write_results(study.folder, results)
    shutil.rmtree(study.folder / "runs")
    alone = analysis.open_study(study.folder)
    assert before[0]["mean_percent"].tolist() == pytest.approx([30, 65])
    for last, frame in enumerate(before, start=1):
        found = alone.asked({"last": last}).frame(["mean_percent", "angle_rad"])
        pd.testing.assert_frame_equal(found, frame)
    for changes in ({"last": kept + 1}, {"at": ["steps"]}):
        with pytest.raises(FolderError, match=rf"results.csv has {said}"):
            alone.asked(changes).frame(["mean_percent"], changes.get("at", ["end"])[0])


def test_all_evaluations_of_a_run_with_fewer_are_kept(tmp_path: Path) -> None:
    study = write_study(tmp_path / "made", lengths, axes={"rule": ("long", "short")}, seeds=(1,))
    results = [last_evaluations(study.run(cell), "it", 100) for cell in study.cells]
    wanted = [study.positions(cell)["step"].tolist() for cell in study.cells]
    assert [[r.step for r in each] for each in results] == wanted
    assert [[r.bytes for r in each] for each in results] == [
        study.positions(cell)["bytes"].tolist() for cell in study.cells
    ]

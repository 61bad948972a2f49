"""Studies: the grid of a file, cells that are skipped, resumed or fail, and processes that are killed."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch
from rich.console import Console

import fedsim
from fedsim import analysis, plugins
from fedsim.cli import study as cli_study
from fedsim.cli.main import main
from fedsim.common import threads
from fedsim.common.errors import Changed, ConfigError, FolderError
from fedsim.common.signals import Interrupts
from fedsim.common.units import US
from fedsim.config.errors import read_toml, validated
from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.config.study.compare import CompareSection
from fedsim.config.study.study import ScaleSection, StudyConfig
from fedsim.config.study.tune import TuneSection
from fedsim.data.federated_data import Task
from fedsim.records.checkpoint import checkpoints
from fedsim.records.existing_run import State
from fedsim.records.manifest import read_manifest
from fedsim.records.recorder import Recorder
from fedsim.runs import inputs as materials
from fedsim.runs.simulate import simulate
from fedsim.studies import folder as study_folder
from fedsim.studies.cell import CellRunner
from fedsim.studies.estimate import plan_study
from fedsim.studies.folder import StudyFolder
from fedsim.studies.grid import Cell, CellProgress, cells_of
from fedsim.studies.load_study import load_study
from fedsim.studies.progress import Board, board_on
from fedsim.studies.queue import Queue
from fedsim.studies.run import Outcome, opened, run_study
from fedsim.studies.tune import provisional
from fedsim.worlds.trace import Trace
from interrupted_runs import stopped_at
from small import small

SMALLEST = Path(__file__).resolve().parents[3] / "examples" / "studies" / "smallest.toml"
FEDSIM = Path(sys.executable).with_name("fedsim")
STEPS = ("run.stop.steps=12",)

Ended = tuple[int, str, str]


def study(**changes: Any) -> StudyConfig:
    """Return the smallest study with some of its tables replaced."""
    return validated(StudyConfig, read_toml(SMALLEST) | changes, "small.toml")


def of_rules(steps: int, **rules: dict[str, Any]) -> StudyConfig:
    """Return a short study of these rules with one seed."""
    run = read_toml(SMALLEST)["run"] | {"stop": {"steps": steps}}
    return study(
        seeds=1, run=run, axes={"rule": {n: {"algorithm": r} for n, r in rules.items()}}, compare=None
    )


def run_here(asked: StudyConfig, out: Path) -> Outcome:
    board = Board(opened(asked, "small.toml", out), Console(quiet=True))
    return run_study(board, jobs=1, device="cpu")


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ended:
    """Run `fedsim study`; return its exit code, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main(["study", *map(str, arguments)])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def cells_in(folder: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads((folder / "study.json").read_text())["cells"]
    return cells


def digests(folder: Path) -> list[str]:
    return [cell["digest"] for cell in cells_in(folder)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the smallest study, cut, run in this process."""
    out = tmp_path_factory.mktemp("finished")
    run_here(load_study(SMALLEST, sets=STEPS), out)
    return out / "smallest"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished study, in which a test may run."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / "smallest"))


RULE = '''
import os
from pathlib import Path
from fedsim.server.rule import Algorithm, Direction, stateless

def own() -> Algorithm:
    """The mean of the updates, times a number of the environment."""
    factor = float(os.environ.get("FACTOR", 1))
    return stateless(lambda stack: Direction([factor / stack.m] * stack.m))
'''
EDITING = '''
def own() -> Algorithm:
    """The mean of the updates, by a rule that breaks this file at each step."""
    def direction(stack):
        Path(__file__).write_text("broken (")
        return Direction([1 / stack.m] * stack.m)
    return stateless(direction)
'''


# the grid


def test_a_part_has_the_runs_of_the_whole_and_is_extended_to_it(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", *STEPS, "--jobs", 1, "--device", "cpu", "--out", tmp_path)
    code, out, _ = command(capsys, SMALLEST, *options, "--only", "rule=fedfv")
    assert code == 0
    printed = " ".join(out.split())
    assert "No level was run beside the baseline rule=fedavg, so there are no differences." in printed
    assert "2 of 2 cells done" in printed
    whole = {cell["folder"]: cell["digest"] for cell in cells_in(finished)}
    part = {cell["folder"]: cell["digest"] for cell in cells_in(tmp_path / "smallest")}
    assert part == {run: digest for run, digest in whole.items() if "fedfv" in run}
    code, out, _ = command(capsys, SMALLEST, *options, "--only", "rule=fedfv", "--only", "rule = fedavg")
    assert code == 0
    assert "4 of 4 cells done" in out
    assert len(re.findall(r"^\[\d/4\] rule=fedfv", out, re.MULTILINE)) == 0, "those were done"
    assert digests(tmp_path / "smallest") == digests(finished)


def test_results_without_runs_are_not_dropped(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copied / "runs")
    before = (copied / "results.csv").read_text()
    for part in (("--only", "rule=fedavg"), ("--seeds", "1"), ("--only", "rule=fedavg", "--force")):
        code, _, err = command(capsys, copied / "study.toml", "--out", copied.parent, *part)
        assert code == 2
        assert "results.csv: it has results of 2 other cells, such as runs/fed" in err
        assert (copied / "results.csv").read_text() == before
    code, out, _ = command(capsys, copied / "study.toml", "--out", copied.parent)
    assert (code, "4 of 4 cells done" in out) == (0, True)


def test_a_part_without_its_baseline_has_groups_and_no_differences(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "smallest")
    options = ("--set", *STEPS, "--jobs", 1, "--out", tmp_path, "--set", 'compare.group="availability"')
    code, out, err = command(capsys, SMALLEST, *options, "--only", "rule=fedfv")
    assert code == 0, err
    assert "2 of 2 cells done" in out
    frames = analysis.study_frames(tmp_path / "smallest")
    assert len(frames["participation.groups"])
    assert [name for name in frames if "differences" in name and len(frames[name])] == []


def test_a_metric_named_twice_counts_once(finished: Path) -> None:
    study = analysis.open_study(finished)
    once, twice = (study.asked({"metrics": ["mean_percent"] * n}) for n in (1, 2))
    for name, frame in analysis.study_frames(once).items():
        assert frame.equals(analysis.study_frames(twice)[name]), name


def test_a_part_has_the_named_levels_and_all_of_other_axes() -> None:
    run, axes = read_toml(SMALLEST)["run"], read_toml(SMALLEST)["axes"]
    axes["batch"] = {str(size): {"train": {"batch_size": size}} for size in (5, 10, 20)}
    asked = study(run=run, axes=axes, only={"batch": ["20", "5"]}, skip=[{"rule": "fedfv", "batch": "5"}])
    assert [tuple(levels.values()) for levels in asked.combinations()] == [
        ("fedavg", "5"),
        ("fedavg", "20"),
        ("fedfv", "20"),
    ]
    assert validated(StudyConfig, asked.resolved(), "again").combinations() == asked.combinations()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "rul=fedfv"], "small.toml: only.rul: there is no axis 'rul'; did you mean 'rule'?"),
        (["--only", "rule=fedfw"], "small.toml: only.rule: axis 'rule' has no level 'fedfw'; did you mean 'fedfv'?"),
        (["--only", "rule"], "--only: expected AXIS=LEVEL, such as rule=fedavg,fedfv, found 'rule'"),
        (["--only", "=fedfv"], "--only: expected AXIS=LEVEL, such as rule=fedavg,fedfv, found '=fedfv'"),
        (["--only", "ru.le=fedfv"], "--only: expected AXIS=LEVEL, such as rule=fedavg,fedfv, found 'ru.le=fedfv'"),
        (["--set", "only={rule=[]}"], "small.toml: only.rule: expected a level, or a list of levels, found none"),
        (["--set", 'skip=[{rule=["fedavg","fedfv"]}]'], "small.toml: skip leaves out every combination of levels"),
        (
            ["--only", "rule=fedfv", "--set", 'skip=[{rule="fedfv"}]'],
            "small.toml: only: skip leaves out every combination of levels",
        ),
    ],
)  # fmt: skip
def test_a_part_that_does_not_exist_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SMALLEST.read_text())
    code, _, err = command(capsys, file, *arguments, "--out", tmp_path / "runs")
    assert (code, err.strip()) == (2, f"error: {message}")
    assert not (tmp_path / "runs").exists()


def test_cells_are_levels_and_seeds_in_the_order_of_the_file() -> None:
    cells = cells_of(study(seeds=[7, 3]), "small.toml")
    assert [c.folder for c in cells] == [
        f"runs/{rule}/seed-{s}" for rule in ("fedavg", "fedfv") for s in (7, 3)
    ]
    assert [(c.levels["rule"], c.seed, c.config.seed, c.config.algorithm.name) for c in cells] == [
        (rule, s, s, rule) for rule in ("fedavg", "fedfv") for s in (7, 3)
    ]
    assert cells[0].title == "rule=fedavg, seed 7"


def test_an_option_of_one_axis_stays_when_another_names_the_rule() -> None:
    window = {"none": {}, "long": {"algorithm": {"memory": "2h"}}}
    rule = {name: {"algorithm": {"name": name}} for name in ("fedavg", "fedlf")}
    for axes in ({"window": window, "rule": rule}, {"rule": rule, "window": window}):
        found = {
            tuple(c.levels.values()): c.config.algorithm
            for c in cells_of(study(seeds=1, axes=axes, compare=None), "s")
        }
        assert len(found) == 4
        for levels, algorithm in found.items():
            assert algorithm.name in levels
            remembers = algorithm.name == "fedlf"  # in the others it has no effect, and is left out
            assert (algorithm.memory > 0) == ("long" in levels and remembers)


def test_a_level_replaces_values_and_keeps_the_rest_of_a_table() -> None:
    cells = cells_of(study(axes={"lr": {"0.5": {"train": {"lr": 0.5}}}}, compare=None), "small.toml")
    assert {(c.config.train.lr, c.config.train.batch_size) for c in cells} == {(0.5, 10)}
    assert cells[0].folder == "runs/0.5/seed-1"


def test_axes_that_set_the_same_key_are_refused() -> None:
    lr = {"a": {"train": {"lr": 0.5}}}
    with pytest.raises(ConfigError, match=r"axes one and two both set train\.lr"):
        cells_of(study(axes={"one": lr, "two": lr}, compare=None), "small.toml")


def test_combinations_are_skipped() -> None:
    axes = {"a": {"x": {}, "y": {}, "z": {}}, "b": {"u": {}, "v": {}}}
    cells = cells_of(
        study(seeds=1, axes=axes, compare=None, skip=[{"a": ["x", "y"], "b": "v"}]), "small.toml"
    )
    assert [tuple(c.levels.values()) for c in cells] == [("x", "u"), ("y", "u"), ("z", "u"), ("z", "v")]


def test_too_many_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="a number of seeds from 1 to 100,000, or a list of seeds, found"):
        study(seeds=10**14)


def test_a_study_without_axes_is_seeds_alone() -> None:
    assert [c.folder for c in cells_of(study(axes={}, compare=None), "s")] == [
        "runs/all/seed-1",
        "runs/all/seed-2",
    ]


def test_an_assignment_that_every_level_replaces_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--set run\.algorithm\.name=afl: no effect, as each of axes\.rule\.fedavg, "
    ):
        load_study(SMALLEST, sets=("run.stop.steps=9", "run.algorithm.name=afl"))
    own_rate = "axes.rule.fedfv.train.lr=0.2"
    load_study(SMALLEST, sets=("run.train.lr=0.3", own_rate))  # that of the other rule
    with pytest.raises(
        ConfigError,
        match=r"--set run\.train\.lr=0\.3: no effect, as axes\.rule\.fedfv replaces it; .* axes\.",
    ):
        load_study(SMALLEST, sets=("run.train.lr=0.3", own_rate, "only.rule=fedfv"))


def test_options_of_a_plug_in_that_no_level_keeps_are_refused() -> None:
    rules = {rule: {"algorithm": {"name": rule}} for rule in ("fedfv", "fedlf")}
    raw = {
        "name": "s",
        "seeds": 1,
        "run": read_toml(SMALLEST)["run"] | {"algorithm": {"memory": 5}},
        "axes": {"rule": rules},
    }
    with pytest.raises(
        ConfigError,
        match=r"study: run\.algorithm\.memory: no effect, as each of axes\.rule\.fedfv, axes\.rule\.fedlf names",
    ):
        load_study(raw)


def test_a_scale_replaces_seeds_and_keys_and_assignments_come_after_it() -> None:
    full = load_study(
        SMALLEST, scale="full", sets=("run.stop.steps=9", "axes.rule.fedfv.algorithm.alpha=0.2")
    )
    assert len(full.seeds) == 10
    assert full.run["task"] == {"name": "digits", "clients": 50}
    assert full.run["stop"] == {"steps": 9}
    assert {c.config.algorithm.options.get("alpha") for c in cells_of(full, "s")} == {None, 0.2}
    assert load_study(SMALLEST, seeds="4,9").seeds == (4, 9)


def test_a_study_that_is_written_down_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    asked = study(skip=[{"rule": "fedfv"}])
    file.write_text(tomli_w.dumps(asked.at_scale("full").resolved()))
    assert cells_of(load_study(file), "s") == cells_of(asked.at_scale("full"), "s")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"axs": {}}, "axs: unknown key; did you mean 'axes'"),
    "unknown key of a run": (
        {"run": read_toml(SMALLEST)["run"] | {"trin": {}}},
        "trin: unknown key; did you mean 'train'",
    ),
    "unknown option": (
        {"axes": {"rule": {"fedavg": {}, "fedfv": {"algorithm": {"name": "fedfv", "alfa": 1}}}}},
        r"did you mean 'alpha'.*\(in: rule=fedfv\)",
    ),
    "seed in the run": ({"run": {"seed": 1}}, "run: seed: the study sets it"),
    "no seeds": ({"seeds": []}, "at least one seed"),
    "equal seeds": ({"seeds": [1, 1]}, "different seeds, found 1"),
    "seeds without effect": (
        {
            "axes": {"rule": {"fedavg": {}, "fedfv": {"seeds": {"data": 1, "world": 1, "train": 1}}}},
            "seeds": [1, 2],
        },
        r"seeds: no effect, as seeds.data, seeds.world and seeds.train are all set \(rule=fedfv\)",
    ),
    "no level": ({"axes": {"rule": {}}}, r"axes\.rule: expected a table for each level"),
    "level that is a value": ({"axes": {"rule": {"a": 1}}}, r"axes\.rule\.a"),
    "name of a column": (
        {"axes": {"seed": {"a": {}}}, "compare": None},
        r"axes\.seed: a column .* has this name",
    ),
    "name of a column of counts": ({"axes": {"clients": {"a": {}}}, "compare": None}, "has this name"),
    "name of a column of metrics": ({"axes": {"gini": {"a": {}}}, "compare": None}, "has this name"),
    "metric that is code": (
        {"compare": {"axis": "rule", "baseline": "fedavg", "metrics": ["mine.py:mine"]}},
        "expected names of installed metrics",
    ),
    "target that is code": (
        {"compare": {"axis": "rule", "baseline": "fedavg", "target": "mine.py:mine=1"}},
        r"compare\.target: expected names of installed metrics",
    ),
    "target without a value": (
        {"compare": {"axis": "rule", "baseline": "fedavg", "target": "mean_percent"}},
        r"compare\.target: expected a metric and a value, such as mean_percent=80, found 'mean_percent'",
    ),
    "name of a column of targets": ({"axes": {"reached": {"a": {}}}, "compare": None}, "has this name"),
    "name that leads elsewhere": ({"axes": {"a": {"../x": {}}}, "compare": None}, r"found '\.\./x'"),
    "unknown axis": ({"skip": [{"rul": "fedavg"}]}, "did you mean 'rule'"),
    "unknown level": ({"skip": [{"rule": ["fedav"]}]}, "did you mean 'fedavg'"),
    "unknown baseline": ({"compare": {"axis": "rule", "baseline": "fedav"}}, "did you mean 'fedavg'"),
    "unknown metric": (
        {"compare": {"axis": "rule", "baseline": "fedavg", "metrics": ["mean_percnt"]}},
        "did you mean 'mean_percent'",
    ),
    "nothing left": ({"skip": [{"rule": ["fedavg", "fedfv"]}]}, "every combination"),
    "equal folders": (
        {"axes": {"a": {"x.y": {}, "x": {}}, "b": {"z": {}, "y.z": {}}}, "compare": None},
        r"would have the same folder 'x\.y\.z'",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD.keys())
def test_bad_studies_are_refused_with_the_key_and_the_closest_name(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        cells_of(study(**changes), "small.toml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scale", "ful"), "did you mean 'full'"),
        (("--jobs", "0"), "--jobs: expected 'auto' or a number of at least 1"),
        (("--seeds", "few"), "--seeds"),
        (("--set", "run.train.epoch=2"), "did you mean 'epochs'"),
        (("--set", "run.task={name='mnist', clients=12, data_dir='/nonexistent/data'}"), "/nonexistent/data"),
    ],
)
def test_bad_input_is_exit_code_2_and_nothing_is_written(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = command(capsys, SMALLEST, "--out", tmp_path / "runs", *arguments)
    assert code == 2, err
    assert message in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("jobs", [0, -1])
def test_python_too_refuses_less_than_one_process(jobs: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^jobs: expected 'auto' or a number of at least 1, found {jobs}$"):
        fedsim.study(SMALLEST, out=tmp_path, jobs=jobs)
    assert not any(tmp_path.iterdir())


# runs


def test_the_folder_holds_the_configuration_and_the_results(finished: Path) -> None:
    found = json.loads((finished / "study.json").read_text())
    assert found["axes"] == {"rule": ["fedavg", "fedfv"]}
    assert found["seeds"] == [1, 2]
    assert found["compare"]["baseline"] == "fedavg"
    for cell in found["cells"]:
        manifest = json.loads((finished / cell["folder"] / "manifest.json").read_text())
        assert cell["status"] == manifest["status"] == "done"
        assert cell["digest"] == manifest["digest"]
        assert cell["seed"] == manifest["seed"]
        assert cell["levels"] == {"rule": manifest["rule"]}
    assert load_study(finished / "study.toml") == load_study(SMALLEST, sets=STEPS)
    assert not (finished / ".lock").exists()


def test_equal_seeds_mean_equal_chance_and_different_ones_do_not(finished: Path) -> None:
    def read(rule: str, seed: int, table: str) -> Any:
        return pq.read_table(finished / "runs" / rule / f"seed-{seed}" / f"{table}.parquet")

    def before_training(rule: str, seed: int) -> Any:
        evals = read(rule, seed, "evals").to_pandas()
        return evals[evals["step"] == 0].reset_index(drop=True)

    def first_jobs(rule: str, seed: int) -> Any:
        jobs = read(rule, seed, "jobs").to_pandas()
        return jobs[jobs["version"] == 0].drop(columns="loss_before").reset_index(drop=True)  # FedFV's alone

    for seed in (1, 2):
        assert read("fedavg", seed, "world").equals(read("fedfv", seed, "world"))
        assert len(before_training("fedavg", seed)) == 12
        assert before_training("fedavg", seed).equals(before_training("fedfv", seed))
        assert len(first_jobs("fedavg", seed)) >= 4
        # With the losses while they trained: equal minibatches.
        assert first_jobs("fedavg", seed).equals(first_jobs("fedfv", seed))
    assert not read("fedavg", 1, "world").equals(read("fedavg", 2, "world"))
    assert not before_training("fedavg", 1).equals(before_training("fedavg", 2))
    assert len(set(digests(finished))) == 4


def test_cells_with_equal_seeds_share_their_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def federation(config: RunConfig) -> Any:
        made.append(config.seed)
        return genuine(config)

    genuine = materials.federation
    monkeypatch.setattr(materials, "federation", federation)
    assert run_here(load_study(SMALLEST, sets=("run.stop.steps=1",)), tmp_path).done == 4
    assert made == [1, 2]


def test_finished_cells_are_skipped(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (copied / "runs").glob("*/seed-*/*")}

    before = times()
    code, out, err = command(capsys, SMALLEST, "--out", copied.parent, "--jobs", 1, "--set", STEPS[0])
    assert code == 0, err
    assert "4 of 4 cells are done already" in out
    digest = analysis.open_study(copied).digest
    assert f"4 of 4 cells done  digest {str(digest)[:16]}\n" in out
    assert times() == before


def without_runs(folder: Path) -> Path:
    """Remove the run folders of a study; its three files stay."""
    shutil.rmtree(folder / "runs")
    return folder


def test_three_files_show_a_study_and_continue_it_on_another_machine(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tables() -> tuple[Any, Any]:
        with pytest.raises(SystemExit):
            main(["compare", str(copied), "--metric", "gini", "--metric", "worst10_percent"])
        opened = analysis.open_study(copied)
        return capsys.readouterr().out, opened.digest

    whole = tables()
    assert [path.name for path in sorted(without_runs(copied).iterdir())] == [
        "results.csv",
        "study.json",
        "study.toml",
    ]
    assert tables() == whole
    out = ("--out", copied.parent, "--jobs", 1, "--set", STEPS[0])
    code, said, err = command(capsys, SMALLEST, *out, "--seeds", 3)
    assert code == 0, err
    assert "4 of 6 cells are done already" in said
    groups = list((copied / "runs").iterdir())
    assert [[run.folder.name for run in analysis.open_all(group)] for group in groups] == 2 * [["seed-3"]]
    lines = (copied / "results.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [cell["folder"] for cell in cells_in(copied)]
    assert len(analysis.open_study(copied).frame(["mean_percent"])) == 6


def test_results_of_another_configuration_are_refused(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_runs(copied)
    again = (SMALLEST, "--out", copied.parent, "--jobs", 1, "--set", "run.stop.steps=2")
    code, _, err = command(capsys, *again)
    assert code == 2
    assert "was run with a different configuration" in err
    assert "stop.steps: expected 2, found 12" in err
    code, said, err = command(capsys, *again, "--force")
    assert code == 0, err
    assert "done already" not in said
    assert analysis.open_study(copied).frame([])["step"].tolist() == 4 * [2]


def test_settings_edited_beside_results_without_runs_are_noticed(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As its own `study.toml` is the only other record of the configuration of its cells."""
    without_runs(copied)
    file = copied / "study.toml"
    text = file.read_text()
    again = (file, "--out", copied.parent, "--jobs", 1)
    file.write_text(text.replace('description = "', 'description = "Another: '))
    code, said, err = command(capsys, *again)
    assert (code, "4 of 4 cells are done already" in said) == (0, True), err
    rule = read_toml(SMALLEST)["axes"]["rule"]["fedfv"]["algorithm"]
    default = str(plugins.resolved("rule", "fedfv", {}, ())["tau"])
    assert "tau" not in rule
    code, said, err = command(capsys, *again, "--set", f"axes.rule.fedfv.algorithm.tau={default}")
    assert (code, "4 of 4 cells are done already" in said) == (0, True), err
    file.write_text(text.replace("steps = 12", "steps = 2"))
    code, _, err = command(capsys, *again)
    assert code == 2
    assert "was run with a different configuration" in err
    assert "study.toml was edited after its results" in err
    code, _, err = command(capsys, *again, "--force")
    assert code == 0, err
    assert analysis.open_study(copied).frame([])["step"].tolist() == 4 * [2]


def test_columns_of_clients_that_no_run_has_are_refused() -> None:
    clients = read_toml(SMALLEST)["run"]["task"]["clients"]
    published = {"source": "a paper", "clients": {"far": clients}}
    with pytest.raises(
        ConfigError, match=rf"published\.clients\.far: expected a client from 0 to {clients - 1}"
    ):
        cells_of(study(published=published), "small.toml")


def test_processes_have_the_environment_and_the_plugin_files_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their fork server started with those of an earlier study."""
    rule = tmp_path / "own.py"

    def mean_accuracies(factor: str, name: str) -> list[float]:
        rule.write_text(RULE)
        monkeypatch.setenv("FACTOR", factor)
        asked = of_rules(3, own={"name": f"{rule}:own"}).model_copy(update={"name": name, "seeds": (1, 2)})
        board = Board(opened(asked, "small.toml", tmp_path), Console(quiet=True))
        assert run_study(board, jobs=2, device="cpu").done == 2
        found: list[float] = (
            analysis.open_study(tmp_path / name).frame(["mean_percent"])["mean_percent"].tolist()
        )
        return found

    assert mean_accuracies("1", "first") != mean_accuracies("0", "second")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_plugin_file_that_is_edited_during_a_study_changes_none_of_its_cells(
    jobs: int, tmp_path: Path
) -> None:
    rule = tmp_path / "own.py"
    rule.write_text(RULE + EDITING)
    asked = of_rules(3, own={"name": f"{rule}:own"}).model_copy(update={"name": "edited", "seeds": (1, 2, 3)})
    board = Board(opened(asked, "small.toml", tmp_path), Console(quiet=True))
    assert run_study(board, jobs=jobs, device="cpu").done == 3
    assert rule.read_text() == "broken ("
    folders = [tmp_path / "edited" / cell["folder"] for cell in cells_in(tmp_path / "edited")]
    assert len({read_manifest(folder)["code"][str(rule)] for folder in folders}) == 1


def test_a_cell_without_run_folder_and_line_runs_again(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (copied / "results.csv").read_text()
    first, *lines = before.splitlines()
    without_runs(copied)
    (copied / "results.csv").write_text("\n".join([first, *lines[1:]]) + "\n")
    code, said, err = command(capsys, SMALLEST, "--out", copied.parent, "--jobs", 1, "--set", STEPS[0])
    assert code == 0, err
    assert "3 of 4 cells are done already" in said
    assert (copied / "results.csv").read_text() == before


def test_what_needs_a_run_names_the_file_that_lacks_it(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_runs(copied)
    for command_line in (["compare", str(copied), "--at", "steps"], ["report", str(copied)]):
        with pytest.raises(SystemExit) as ended:
            main(command_line)
        assert ended.value.code == 2
        assert "results.csv has its last evaluation alone" in capsys.readouterr().err
    (copied / "study.toml").write_text("name = 3")
    code, _, err = command(capsys, SMALLEST, "--out", copied.parent, "--jobs", 1, "--set", STEPS[0])
    assert code == 2
    assert "study.toml: the configuration of the cells in results.csv cannot be read: remove" in err


def test_results_hold_the_evaluations_that_the_study_averages(tmp_path: Path) -> None:
    sets = ["run.stop.steps=4", "run.evaluate.every_steps=1", "run.evaluate.also=['train']", "compare.last=1"]
    run_here(load_study(SMALLEST, sets=tuple(sets), seeds=1), tmp_path)
    folder = tmp_path / "smallest"
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 2 * 2
    run_here(load_study(SMALLEST, sets=(*sets[:-1], "compare.last=3"), seeds=1), tmp_path)
    lines = (folder / "results.csv").read_text().splitlines()[1:]
    assert [tuple(line.split(",")[i] for i in (2, 3)) for line in lines[:6]] == [
        *(("test", step) for step in "234"),
        *(("train", step) for step in "234"),
    ]
    whole = analysis.open_study(folder)
    before = {split: whole.frame(["mean_percent"], split=split) for split in ("train", "test")}
    digest = whole.digest
    stored = analysis.open_study(without_runs(folder))
    assert stored.digest == digest
    for split, frame in before.items():
        assert stored.frame(["mean_percent"], split=split).equals(frame)
    results = (folder / "results.csv").read_text()
    run_here(load_study(folder / "study.toml"), tmp_path)
    assert (folder / "results.csv").read_text() == results


def test_results_hold_the_points_with_a_number_that_the_study_names(tmp_path: Path) -> None:
    row = {"levels": {}, "at": "steps=3", "values": {"mean_percent": 50}}
    sets = {
        "run.stop.steps": 5,
        "run.evaluate.every_steps": 1,
        "compare.at": ["steps=2", "time=1000d"],
        "compare.last": 2,
        "published": {"source": "a paper", "rows": [row]},
    }
    run_here(load_study(SMALLEST, sets=sets, seeds=3), tmp_path)
    folder = tmp_path / "smallest"
    heading, *lines = (folder / "results.csv").read_text().splitlines()
    assert heading.endswith(",n,correct,at")
    first = [line.split(",") for line in lines[:6]]
    assert [(each[3], each[-1]) for each in first] == [
        ("4", "end"), ("5", "end"), ("1", "steps=2"), ("2", "steps=2"), ("2", "steps=3"), ("3", "steps=3"),
    ]  # fmt: skip
    whole = analysis.open_study(folder)
    points = ("end", "steps=2", "steps=3")
    before = [whole.frame(["mean_percent"], at) for at in points]
    published = analysis.published_values(whole)
    assert [len(each.values) for each in published] == [3, 3]
    stored = analysis.open_study(without_runs(folder))
    for at, frame in zip(points, before, strict=True):
        assert stored.frame(["mean_percent"], at).equals(frame)
    for now, then in zip(analysis.published_values(stored), published, strict=True):
        assert now.values.tolist() == then.values.tolist()
    for at in ("steps=4", "steps"):
        with pytest.raises(FolderError, match="for fedsim compare --at end or steps=2 or steps=3; to run it"):
            stored.frame(["mean_percent"], at)
    results = (folder / "results.csv").read_text()
    run_here(load_study(folder / "study.toml"), tmp_path)
    assert (folder / "results.csv").read_text() == results


def test_results_of_other_seeds_may_be_appended(tmp_path: Path) -> None:
    """As docs/slurm.md divides a study among machines."""
    for out, seeds in {"a": "1-2", "b": "3-4", "all": "4"}.items():
        run_here(load_study(SMALLEST, sets=STEPS, seeds=seeds), tmp_path / out)
    first, second = (tmp_path / out / "smallest" for out in "ab")
    with (first / "results.csv").open("a") as file:
        file.writelines((second / "results.csv").read_text().splitlines(keepends=True)[1:])
    settings = tomllib.loads((first / "study.toml").read_text())
    (first / "study.toml").write_text(tomli_w.dumps(settings | {"seeds": [1, 2, 3, 4]}))
    run_here(load_study(first / "study.toml"), tmp_path / "a")
    merged, whole = (analysis.open_study(tmp_path / out / "smallest") for out in ("a", "all"))
    assert merged.digest == whole.digest is not None
    assert not (first / "runs" / "fedavg" / "seed-3").exists()


def test_results_hold_every_split(tmp_path: Path) -> None:
    asked = load_study(SMALLEST, sets=("run.stop.steps=1", "run.evaluate.also=['train']"), seeds=1)
    run_here(asked, tmp_path)
    whole = analysis.open_study(tmp_path / "smallest")
    before = {split: whole.frame(["mean_percent"], split=split) for split in ("train", "test")}
    stored = analysis.open_study(without_runs(tmp_path / "smallest"))
    for split, frame in before.items():
        assert stored.frame(["mean_percent"], split=split).equals(frame)
    assert stored.frame(["mean_percent"]).equals(before["test"])
    with pytest.raises(FolderError, match="no evaluation on split 'valid' was recorded; found test, train"):
        stored.frame(["mean_percent"], split="valid")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda lines: [lines[0], *lines[2:]],
            "seed 1: expected evaluations on the splits of seed 2, test, train, found train|"
            "seed 2: expected evaluations on the splits of seed 1, train, found test, train",
        ),
        (
            lambda lines: [lines[0], lines[1].replace(lines[1].split(",")[1], "ab12"), *lines[2:]],
            "found ab12",
        ),
    ],
)
def test_results_that_do_not_belong_together_are_refused(
    tmp_path: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    asked = load_study(SMALLEST, sets=("run.stop.steps=1", "run.evaluate.also=['train']"), seeds=2)
    run_here(asked, tmp_path)
    file = without_runs(tmp_path / "smallest") / "results.csv"
    file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")
    with pytest.raises(FolderError, match=message):
        analysis.open_study(file.parent)


def test_the_digest_of_a_study_is_that_of_its_runs(finished: Path, copied: Path) -> None:
    whole = analysis.open_study(finished)
    assert analysis.open_study(copied).digest == whole.digest
    assert len(str(whole.digest)) == 64
    cell = whole.cells[0]
    file = copied / cell.folder.relative_to(finished) / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest | {"digest": "0" * 64}))
    assert analysis.open_study(copied).digest not in (None, whole.digest)
    states = json.loads((copied / "study.json").read_text())
    states["cells"][0]["status"] = "pending"
    (copied / "study.json").write_text(json.dumps(states))
    assert analysis.open_study(copied).digest is None


def test_more_seeds_and_levels_are_added_to_existing_cells(finished: Path, copied: Path) -> None:
    axes = {"rule": {name: {"algorithm": {"name": name}} for name in ("fedavg", "afl", "fedfv")}}
    asked = study(axes=axes, seeds=[2, 3], run=load_study(SMALLEST, sets=STEPS).run)
    folder = opened(asked, "s", copied.parent)
    assert [(c.levels["rule"], c.seed) for c in folder.left] == [
        ("fedavg", 3),
        ("afl", 2),
        ("afl", 3),
        ("fedfv", 3),
    ]


def test_done_cells_with_another_configuration_are_not_lost_unasked(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (SMALLEST, "--out", copied.parent, "--jobs", 1, "--set", "run.stop.steps=3", "--seeds", "1")
    before = cells_in(copied)
    code, _, err = command(capsys, *arguments)
    assert code == 2
    assert "stop.steps: expected 3, found 12" in err
    assert "--force" in err
    assert cells_in(copied) == before
    assert command(capsys, *arguments, "--force")[0] == 0
    assert [
        json.loads((copied / c["folder"] / "manifest.json").read_text())["steps"] for c in cells_in(copied)
    ] == [3, 3]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "smallest").mkdir()
    (tmp_path / "smallest" / "thesis.txt").write_text("years of work")
    code, _, err = command(capsys, SMALLEST, "--out", tmp_path, "--force")
    assert code == 2
    assert "not the folder of a study" in err
    assert [p.name for p in (tmp_path / "smallest").iterdir()] == ["thesis.txt"]


def failing(tmp_path: Path, what: str) -> str:
    """Write a rule that works for two steps, and then does `what`. Returns its name."""
    code = f"""
import os
import signal

import numpy as np

from fedsim.server.rule import Algorithm, Direction, Stack, stateless


def bad() -> Algorithm:
    steps = []

    def weigh(stack: Stack) -> Direction:
        steps.append(stack)
        if len(steps) > 2:
            {what}
        return Direction(np.ones(stack.n) / stack.n)

    return stateless(weigh)
"""
    (tmp_path / "bad.py").write_text(code)
    return f"{tmp_path / 'bad.py'}:bad"


def test_an_edited_rule_is_told_with_the_cells_that_ran_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = failing(tmp_path, "pass")
    file = tmp_path / "s.toml"
    file.write_text(tomli_w.dumps(of_rules(1, mine={"name": mine}, fedavg={"name": "fedavg"}).resolved()))
    arguments = (file, "--out", tmp_path / "runs", "--jobs", 1)
    assert command(capsys, *arguments)[0] == 0
    failing(tmp_path, "pass  # edited")
    with pytest.warns(Changed, match=r"changed since cells started: .*bad\.py edited"):
        fedsim.study(file, out=tmp_path / "runs", jobs=1)
    code, out, _ = command(capsys, *arguments, "--seeds", 2)
    assert code == 0
    assert f"changed since cells started: {tmp_path / 'bad.py'} edited; " in out
    assert "of new cells: rule=mine, seed 1\n2 of 4 cells are done" in out


def test_a_mended_rule_is_not_told_of_cells_that_failed_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They begin again, with the rule as it is now."""
    mine = failing(tmp_path, "raise ValueError('wrong')")
    file = tmp_path / "s.toml"
    file.write_text(tomli_w.dumps(of_rules(4, mine={"name": mine}, fedavg={"name": "fedavg"}).resolved()))
    arguments = (file, "--out", tmp_path / "runs", "--jobs", 1)
    assert command(capsys, *arguments)[0] == 1
    failing(tmp_path, "pass")
    code, out, err = command(capsys, *arguments)
    assert (code, "changed since" in out) == (0, False), err


def test_an_edited_trace_file_is_told_with_the_cells_that_ran_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, clients = tmp_path / "w1.parquet", read_toml(SMALLEST)["run"]["task"]["clients"]

    def write(span_us: int) -> None:
        Trace.of(0, 0, span_us, "online", clients=clients, horizon_us=span_us, after_end="stop").write(trace)

    write(US)
    world = {"trace": str(tmp_path / "w{seed}.parquet"), "unknown": "online", "after_end": "repeat"}
    run = of_rules(1, fedavg={"name": "fedavg"}).run | {"world": world}
    file, folder = tmp_path / "s.toml", tmp_path / "runs" / "smallest"
    file.write_text(tomli_w.dumps(study(seeds=1, run=run, axes={}, compare=None).resolved()))
    arguments = (file, "--out", tmp_path / "runs", "--jobs", 1)
    assert command(capsys, *arguments)[0] == 0
    manifest = json.loads(next(folder.rglob("manifest.json")).read_text())
    assert manifest["world_files"] == {str(trace): hashlib.sha256(trace.read_bytes()).hexdigest()}
    assert "changed since" not in command(capsys, *arguments)[1]
    write(2 * US)
    assert f"changed since cells started: {trace} edited; " in command(capsys, *arguments)[1]
    trace.unlink()
    assert f"changed since cells started: {trace} missing; " in command(capsys, *arguments)[1]


def test_a_cell_that_fails_is_reported_and_the_others_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repaired = tmp_path / "repaired"
    bad = failing(tmp_path, f"assert os.path.exists({str(repaired)!r}), 'no direction today'")
    file, folder = tmp_path / "s.toml", tmp_path / "runs" / "smallest"
    file.write_text(tomli_w.dumps(of_rules(4, bad={"name": bad}, fedavg={"name": "fedavg"}).resolved()))
    arguments = (file, "--out", tmp_path / "runs", "--jobs", 1)
    code, out, err = command(capsys, *arguments)
    assert code == 1
    assert "1 of 2 cells failed" in err
    assert "no direction today" in out
    assert [cell["status"] for cell in cells_in(folder)] == ["failed", "done"]
    assert "AssertionError: no direction today" in cells_in(folder)[0]["error"]
    assert cells_in(folder)[0]["error"].endswith(" (bad.py, line 16)")
    repaired.touch()
    assert command(capsys, *arguments)[0] == 0
    assert [cell["status"] for cell in cells_in(folder)] == ["done", "done"]


class Killer(Board):
    """Kills all processes when a cell first reports its progress, and keeps the lines."""

    def __init__(self, folder: StudyFolder, number: int) -> None:
        super().__init__(folder, Console(quiet=True))
        self.number, self.killed, self.lines = number, False, list[str]()

    def update(self, progress: CellProgress) -> None:
        super().update(progress)
        if progress.number == self.number and not self.killed:
            self.killed = True
            for process in multiprocessing.active_children():
                os.kill(process.pid or 0, signal.SIGKILL)

    def print(self, text: str) -> None:
        self.lines.append(text)


def test_a_script_without_a_main_part_is_told_so(tmp_path: Path) -> None:
    """Each process imports it, and would call `fedsim.study` there."""
    script = tmp_path / "mine.py"
    tables = {"name": "s", "seeds": 4, "run": small(stop={"steps": 1}).resolved()}
    for key in ("name", "seed", "seeds"):
        tables["run"].pop(key, None)
    script.write_text(f"import fedsim\nfedsim.study({tables!r}, out={str(tmp_path)!r}, jobs=2)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'call it below `if __name__ == "__main__":`, or with jobs=1' in done.stderr.splitlines()[-1]


def test_an_outcome_is_shown_in_a_line() -> None:
    tables = small().resolved()
    run_tables = {key: tables[key] for key in tables.keys() - {"name", "seed", "seeds"}}
    finished_cell = cells_of(load_study({"name": "s", "seeds": 1, "run": run_tables}), "s")[0]
    failed = ((finished_cell, "why"),)
    assert repr(Outcome(Path("runs/s"), 3, failed, True)) == "<Outcome runs/s: 3 done, 1 failed, interrupted>"
    assert repr(failed) == "((<Cell seed 1>, 'why'),)"


def test_killed_processes_are_replaced_and_a_cell_that_kills_each_fails_alone(
    finished: Path, tmp_path: Path
) -> None:
    fair, lethal = ({"name": "fedfv"}, {"name": failing(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")})
    asked = of_rules(12, fedavg={"name": "fedavg"}, lethal=lethal, fedfv=fair)
    board = Killer(opened(asked, "small.toml", tmp_path), 0)
    outcome = run_study(board, jobs=2, device="cpu")
    assert board.killed
    assert any(
        line.startswith("rule=fedavg, seed 1: its process was ended by SIGKILL; a new process")
        for line in board.lines
    )
    assert [(cell.levels["rule"], error) for cell, error in outcome.failed] == [
        ("lethal", "its process was ended by SIGKILL, for the second time")
    ]
    found = {cell["levels"]["rule"]: cell for cell in cells_in(tmp_path / "smallest")}
    assert {rule: cell["status"] for rule, cell in found.items()} == {
        "fedavg": "done",
        "lethal": "failed",
        "fedfv": "done",
    }
    expected = {cell["levels"]["rule"]: cell["digest"] for cell in cells_in(finished) if cell["seed"] == 1}
    assert {rule: found[rule]["digest"] for rule in expected} == expected
    assert not multiprocessing.active_children()


SLOW = ("--set", "run.checkpoint.every_steps=10", "--set", "run.stop.steps=240")


def listen_to_interrupts() -> None:
    """Undo what a shell does to commands in the background, which its children inherit: to ignore interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def under_way(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A study in two processes that stand still, of which a cell has been saved, and the arguments of its command.

    Its working folder has a module named as one of Python's.
    """
    (tmp_path / "random.py").write_text("raise ImportError('not this one')", encoding="utf-8")
    arguments = [str(SMALLEST), "--out", str(tmp_path), *SLOW]
    with subprocess.Popen(
        [FEDSIM, "study", *arguments, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=listen_to_interrupts,
    ) as process:
        try:
            while not any(map(checkpoints, tmp_path.glob("smallest/runs/*/*"))):
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGSTOP)  # nothing is over before a test has done what it wants to
            yield process, arguments
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)


slow_study = pytest.mark.xdist_group("slow study")  # one process runs it uninterrupted, for both tests


@pytest.fixture(scope="module")
def slow_digests(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    out = tmp_path_factory.mktemp("slow")
    run_here(load_study(SMALLEST, sets=("run.stop.steps=240",)), out)
    return digests(out / "smallest")


def resumed(folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run the same command to its end in this process; some cell must resume. Returns the digests."""
    assert {cell["status"] for cell in cells_in(folder)} != {"done"}
    code, _, err = command(capsys, *arguments, "--jobs", 1, "--quiet")
    assert code == 0, err
    manifests = [
        json.loads((folder / cell["folder"] / "manifest.json").read_text()) for cell in cells_in(folder)
    ]
    assert any(resumption["step"] > 0 for manifest in manifests for resumption in manifest["resumed"])
    return digests(folder)


@slow_study
def test_a_killed_study_is_resumed(
    under_way: tuple[subprocess.Popen[str], list[str]],
    slow_digests: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    process, arguments = under_way
    code, _, err = command(capsys, *arguments, "--jobs", 1)
    assert code == 2
    assert "another process is running it" in err
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= 2
    process.kill()
    process.wait()
    os.killpg(process.pid, signal.SIGCONT)
    assert resumed(tmp_path / "smallest", arguments, capsys) == slow_digests
    assert not psutil.wait_procs(below, timeout=10)[1]


@slow_study
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "scheduler"])
def test_a_signal_to_all_processes_saves_the_running_cells(
    number: signal.Signals,
    under_way: tuple[subprocess.Popen[str], list[str]],
    slow_digests: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    process, arguments = under_way
    os.killpg(process.pid, number)  # as a terminal and some schedulers do
    os.killpg(process.pid, signal.SIGCONT)
    out, _ = process.communicate()
    assert process.returncode == 130, out
    assert out.count("stopping") == 1
    assert "interrupted, and saved; continue with: fedsim study " in out
    assert "Traceback" not in out
    assert "its process" not in out
    found = cells_in(tmp_path / "smallest")
    assert "running" not in {cell["status"] for cell in found}
    stopped = [tmp_path / "smallest" / cell["folder"] for cell in found if cell["status"] == "interrupted"]
    assert stopped
    for folder in stopped:
        run = analysis.open_run(folder)
        assert checkpoints(folder)[-1].step == len(run.steps), "saved where it stopped"
    assert resumed(tmp_path / "smallest", arguments, capsys) == slow_digests


# plans and progress


def test_cells_are_predicted_with_the_one_thread_that_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def predicted(*args: Any, **options: Any) -> Any:
        seen.append(threads.most())
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsim.studies.estimate.plan_run", predicted)
    folder = opened(load_study(SMALLEST, sets=STEPS), "s", tmp_path)
    with threads.at_most(4), pytest.raises(KeyboardInterrupt):
        plan_study(folder, jobs=1)
    assert seen == [1]


def test_a_dry_run_counts_and_predicts_and_writes_nothing(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (copied / "study.json").stat().st_mtime_ns
    arguments = (SMALLEST, "--out", copied.parent, "--set", STEPS[0], "--seeds", 5, "--jobs", 2, "--dry-run")
    code, out, err = command(capsys, *arguments)
    assert code == 0, err
    assert "10: 4 done, 6 left" in out
    assert re.search(r"one cell +(under 1|\d+) s", out)
    assert re.search(r"wall time +(under 1|about \d+) s with 2 processes, (under 1|\d+) s of work", out)
    assert (copied / "study.json").stat().st_mtime_ns == before
    assert not (copied / "runs" / "fedavg" / "seed-3").exists()


def test_predicted_disk_and_memory_are_near_what_a_study_takes(finished: Path, tmp_path: Path) -> None:
    plan = plan_study(opened(load_study(SMALLEST, sets=STEPS), "s", tmp_path), jobs=2)
    took = sum(path.stat().st_size for path in (finished / "runs").rglob("seed-*/*"))
    assert took / 2 < plan.disk_bytes < took * 2
    assert 0 < plan.cell_s[0] <= plan.cell_s[1] < plan.work_s < 60
    assert 700 * 2**20 <= plan.memory_bytes < 2**30
    assert (plan.cells, plan.done, plan.processes, plan.unsure) == (4, 0, 2, ())


def test_checkpoints_that_stay_take_their_room_on_the_disk(tmp_path: Path) -> None:
    kept = {"model": {"name": "mlp"}, "checkpoint": {"keep": "all", "every_steps": 1}}
    run = read_toml(SMALLEST)["run"] | {"stop": {"steps": 6}, "algorithm": {"name": "fedlf"}} | kept
    config = study(run=run, seeds=1, axes={}, compare=None)
    plan = plan_study(opened(config, "s", tmp_path), jobs=2)
    run_here(config, tmp_path)
    took = sum(path.stat().st_size for path in (tmp_path / "smallest").rglob("*") if path.is_file())
    assert took / 2 < plan.disk_bytes < took * 2


def test_processes_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = psutil.virtual_memory()._replace(available=2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    for more in ((), ("--dry-run",)):
        code, _, err = command(capsys, SMALLEST, "--out", tmp_path / "runs", "--jobs", 2, *more)
        assert code == 2
        assert "1.0 GiB are free; take --jobs 1" in err
    assert not (tmp_path / "runs").exists()


def test_the_table_shows_running_cells_and_counts(tmp_path: Path) -> None:
    console = Console(record=True, width=100, file=io.StringIO())
    folder = opened(study(), "s", tmp_path)
    (tmp_path / "smallest").mkdir()
    folder.states[1] = State("done")
    board = Board(folder, console)
    board.begin()
    board.start(folder.cells[0])
    board.update(CellProgress(0, 1, 10_000_000, 0.1))
    assert "to go" in str(board.table().renderables[1])
    board.update(CellProgress(0, 7, 90_000_000, 0.5))
    console.print(board.table())
    text = console.export_text()
    assert "rule=fedavg, seed 1" in text
    assert "50%" in text
    assert "00:01:30" in text
    assert "1 of 4 done, 0 failed, 1 running, 2 left, to go under 1 s" in text


def test_every_key_and_option_is_documented() -> None:
    manual = (SMALLEST.parents[2] / "docs" / "studies.md").read_text()
    tables = (StudyConfig, CompareSection, ScaleSection, TuneSection)
    for key in (key for table in tables for key in table.model_fields):
        assert f"`{key}`" in manual or f"[{key}" in manual, key
    for option in inspect.signature(cli_study.study).parameters:
        name = {"file": "STUDY.toml", "sets": "--set"}.get(option, f"--{option.replace('_', '-')}")
        assert f"{name}" in manual, option


def taken(queue: Queue, last: Cell | None, *others: Cell) -> tuple[str, int]:
    cell = queue.take(last, others)
    assert cell is not None
    return cell.levels["rule"], cell.seed


def test_cells_that_share_data_and_world_follow_each_other_in_one_process() -> None:
    cells = cells_of(study(seeds=3), "s")
    queue = Queue(cells, (1, 2, 3))
    assert taken(queue, None) == ("fedavg", 1)
    assert taken(queue, None, cells[0]) == ("fedavg", 2)  # another process begins with another seed
    assert taken(queue, cells[0], cells[1]) == ("fedfv", 1)
    assert taken(queue, cells[3], cells[1]) == ("fedavg", 3)
    queue.put_back(cells[2])
    assert taken(queue, cells[2]) == ("fedavg", 3)
    assert len(queue) == 2
    assert taken(queue, cells[1], cells[2]) == ("fedfv", 2)
    assert taken(queue, cells[4], cells[2]) == (
        "fedfv",
        3,
    )  # nothing else is left: two processes share a seed
    assert queue.take() is None


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    file = io.StringIO()
    folder = opened(load_study(SMALLEST, sets=STEPS), "s", copied.parent)
    with board_on(folder, Console(file=file, force_terminal=True)) as board:
        board.begin()
    assert "4 of 4 cells are done already" in file.getvalue()


def test_an_assignment_to_a_scale_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--set scales\.full\.seeds=3: no effect, as --scale is applied first"
    ):
        load_study(SMALLEST, scale="full", sets=("scales.full.seeds=3",))


@pytest.mark.parametrize("place", ["smallest", ""])
def test_a_file_in_the_place_of_the_folder_is_named(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    if place:
        out.mkdir()
    (out / place if place else out).write_text("mine")
    code, _, err = command(capsys, SMALLEST, "--out", out, "--jobs", 1)
    assert code == 2
    assert f"{out / place} exists" in err if place else f"out: expected a folder, found the file {out}" in err
    assert (out / place).read_text() == "mine"


def test_a_run_and_a_study_are_told_apart() -> None:
    with pytest.raises(ConfigError, match=r"smallest\.toml: .* found that of a study: use fedsim study"):
        load_config(SMALLEST)
    with pytest.raises(ConfigError, match=r"quickstart\.toml: expected a study, .*: use fedsim run"):
        load_study(SMALLEST.parents[1] / "quickstart.toml")


# data and models from Python


def given_task() -> Task:
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    return Task.from_arrays(x, (x[:, 0] > 0).long(), torch.arange(120) % 6)


OF_PYTHON: dict[str, Any] = {
    "name": "own",
    "seeds": 2,
    "run": {"pacing": {"clients": 3}, "stop": {"steps": 6}, "checkpoint": {"every_steps": 2}},
    "axes": {"rule": {"fedavg": {}, "fedfv": {"algorithm": {"name": "fedfv"}}}},
}


def of_simulate(out: Path) -> list[str]:
    """Return the digests of the runs of OF_PYTHON, each run by `simulate`."""
    runs = [
        OF_PYTHON["run"] | level | {"name": f"{rule}-{seed}", "seed": seed}
        for rule, level in OF_PYTHON["axes"]["rule"].items()
        for seed in (1, 2)
    ]
    task = given_task()
    results = simulate(runs, task=task, model=lambda: torch.nn.Linear(4, 2), out=out, workers=0)
    return [str(result.digest) for result in results]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_study_trains_a_model_of_python_on_data_of_python_in_every_process(
    tmp_path: Path, jobs: int
) -> None:
    outcome = run_study_of_python(tmp_path, jobs=jobs, model=lambda: torch.nn.Linear(4, 2))
    assert digests(outcome.folder) == of_simulate(tmp_path / "runs")


def run_study_of_python(out: Path, **given: Any) -> Outcome:
    return fedsim.study(OF_PYTHON, task=given_task(), out=out, device="cpu", **given)


def test_an_interrupted_study_of_python_goes_on_with_the_same_data_and_model(tmp_path: Path) -> None:
    calls = [0]

    class Linear(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            calls[0] += self.training
            if self.training and calls[0] == 10:  # in the middle of the first run
                signal.raise_signal(signal.SIGTERM)
            return super().forward(input)

    def model() -> Linear:
        return Linear(4, 2)

    assert run_study_of_python(tmp_path, jobs=1, model=model).interrupted
    assert "interrupted" in {cell["status"] for cell in cells_in(tmp_path / "own")}
    with pytest.raises(ConfigError, match=r"model\.name: expected 'python:\w+', found 'python:\w+'"):
        run_study_of_python(tmp_path, jobs=1, model=lambda: torch.nn.Linear(4, 2, bias=False))
    assert run_study_of_python(tmp_path, jobs=1, model=model).done == 4
    whole = run_study_of_python(tmp_path / "whole", jobs=1, model=model)
    assert digests(tmp_path / "own") == digests(whole.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"run": OF_PYTHON["run"] | {"model": {"name": "softmax"}}},
            "study: model: given twice, as model= and as",
        ),
        (
            {"axes": {"model": {"mlp": {"model": {"name": "mlp"}}}}},
            "study: model: given twice, as model= and as",
        ),
        (
            {"axes": {"task": {"d": {"task": {"name": "digits"}}}}},
            "study: task.name: given twice, as task= and as",
        ),
    ],
)
def test_a_study_names_no_task_or_model_beside_those_of_python(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fedsim.study(
            OF_PYTHON | changes, task=given_task(), model=lambda: torch.nn.Linear(4, 2), out=tmp_path, jobs=1
        )
    assert not any(tmp_path.iterdir())


def test_a_model_that_takes_shapes_needs_the_data_of_a_study_too(tmp_path: Path) -> None:
    def model(*, in_shape: tuple[int, ...], n_classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(in_shape[0], n_classes))

    run = OF_PYTHON["run"] | {"task": {"name": "digits", "clients": 6}, "partition": {"name": "iid"}}
    with pytest.raises(
        ConfigError, match="model: expected a function without arguments, found one that takes"
    ):
        fedsim.study(OF_PYTHON | {"run": run}, model=model, out=tmp_path, jobs=1)
    assert run_study_of_python(tmp_path, model=model, jobs=1).done == 4


def of_unseen(**compare: Any) -> StudyConfig:
    """Return a study of two rules and two seeds with unseen clients."""
    run = read_toml(SMALLEST)["run"] | {"stop": {"steps": 2}}
    run |= {"task": run["task"] | {"unseen": 3}, "client": {"name": "qmaml"}}
    return study(run=run, compare={"axis": "rule", "baseline": "fedavg", **compare})


def test_unseen_clients_are_compared_with_and_without_the_runs(tmp_path: Path) -> None:
    run_here(of_unseen(split="unseen_personal", metrics=["mean_percent"]), tmp_path)
    folder = tmp_path / "smallest"
    first = analysis.open_study(folder)
    assert first.split == "unseen_personal"
    lasts = {cell.name: first.evaluations(cell)[-1] for cell in first.cells}
    unseen = {name: last.client.tolist() for name, last in lasts.items()}
    assert all(clients == [9, 10, 11] for clients in unseen.values())
    frames = {split: first.frame(["mean_percent"], split=split) for split in (None, "test", "unseen")}
    tables = [str(table.title) for table in analysis.study_tables(first)]
    assert all("on the unseen_personal split" in title for title in tables)
    shutil.rmtree(folder / "runs")
    later = analysis.open_study(folder)
    for split, frame in frames.items():
        assert later.frame(["mean_percent"], split=split).equals(frame)
    assert analysis.differences(later, "mean_percent", split="unseen")[0].n == 2


@pytest.mark.parametrize("split", ["unseen", "unsen", "test_personal"])
def test_a_split_that_no_run_records_is_refused_before_any_run(split: str, tmp_path: Path) -> None:
    compare = {"axis": "rule", "baseline": "fedavg", "split": split}
    message = f"small.toml: compare.split: expected a split that all runs record, found '{split}'; recorded are test"
    with pytest.raises(ConfigError, match=message):
        run_here(study(compare=compare), tmp_path)
    assert not (tmp_path / "smallest" / "runs").exists()


@pytest.mark.parametrize("group", ["availability", "used", "region"])
def test_groups_that_unseen_clients_do_not_form_are_refused(group: str) -> None:
    expected = f"expected label, labels, n or none, found '{group}'"
    for split in ("unseen", "unseen_personal"):
        message = f"small.toml: compare.group: the clients of split '{split}' never train: {expected}"
        with pytest.raises(ConfigError, match=message):
            of_unseen(split=split, group=group)
    for taken in ({"split": "unseen", "group": "labels"}, {"split": "test", "group": group}):
        assert of_unseen(**taken).compare is not None


def test_an_unknown_group_costs_no_other_table(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--set", *STEPS, "--jobs", 1, "--device", "cpu", "--out", copied.parent)
    code, out, err = command(capsys, SMALLEST, *options, "--set", "compare.group=colour")
    assert code == 2
    assert "mean ± standard deviation over seeds" in " ".join(out.split())
    assert "difference from fedavg" in out
    assert "4 of 4 cells done  digest " in out
    assert "clients cannot be grouped by 'colour'" in err


def test_the_split_of_a_comparison_must_be_recorded_by_all_runs(tmp_path: Path) -> None:
    run = read_toml(SMALLEST)["run"]
    levels = {"some": {"task": {"unseen": 2}}, "none": {"task": {"unseen": 0}}}
    compare = {"axis": "kept", "baseline": "some", "split": "unseen"}
    with pytest.raises(ConfigError, match=r"compare\.split: .*recorded are test \(kept=none\)"):
        run_here(study(run=run, axes={"kept": levels}, compare=compare), tmp_path)


EXAMPLES = sorted((SMALLEST.parent).glob("*.toml"))


def _cells(study: StudyConfig, path: Path) -> tuple[Cell, ...]:
    return cells_of(provisional(study) if study.tune else study, path.name)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_any_level_of_an_example_can_run_alone(path: Path) -> None:
    """Also one at which a key of the others has no effect."""
    whole = load_study(path)
    for axis, levels in whole.axes.items():
        for level in {one[axis] for one in whole.combinations()} & levels.keys():
            part = load_study(path, sets={"only": {axis: level}})
            configs = {cell.config.name: cell.config for cell in _cells(part, path)}
            assert configs
            known = {cell.config.name: cell.config for cell in _cells(whole, path)}
            assert all(known[name] == config for name, config in configs.items())


@pytest.mark.parametrize("where", ["write_text", "write_results"])
def test_results_of_other_settings_are_not_taken_for_done(
    copied: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a `--force` is stopped: the files of a study without its runs are replaced one after the other."""
    shutil.rmtree(copied / "runs")
    other = load_study(copied / "study.toml", sets=("run.train.lr=0.001",))
    with monkeypatch.context() as patched:
        patched.setattr(study_folder, where, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            opened(other, "s", copied.parent, force=True).begin()
    if where == "write_text":
        assert len(opened(other, "s", copied.parent).left) == len(cells_of(other, "s"))
    else:
        with pytest.raises(ConfigError, match=r"train\.lr: expected 0\.001, found"):
            opened(other, "s", copied.parent)
    assert len(opened(other, "s", copied.parent, force=True).left) == len(cells_of(other, "s"))


def test_a_resumed_cell_draws_no_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small(checkpoint={"every_steps": 2})
    folder = stopped_at(5, config, tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    capsys.readouterr()
    cell = Cell(0, {}, config)
    result = CellRunner("cpu", Interrupts()).run(cell, folder, lambda progress: None)
    assert result.state.status == "done"
    assert capsys.readouterr().err == ""


def test_an_interrupt_while_a_cell_is_written_starts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Recorder.close

    def interrupted(recorder: Recorder, params: Any) -> Any:
        if params is not None:
            signal.raise_signal(signal.SIGINT)
        return close(recorder, params)

    monkeypatch.setattr(Recorder, "close", interrupted)
    outcome = fedsim.study(SMALLEST, ["run.stop.steps=3"], out=tmp_path, jobs=1)
    assert (outcome.done, outcome.interrupted) == (1, True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_while_a_study_begins_leaves_one_that_can_be_continued(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = StudyFolder.begin

    def interrupted(folder: StudyFolder) -> None:
        signal.raise_signal(signal.SIGINT)
        begin(folder)

    with monkeypatch.context() as patch:
        patch.setattr(StudyFolder, "begin", interrupted)
        outcome = fedsim.study(SMALLEST, ["run.stop.steps=3"], out=tmp_path, jobs=jobs)
    assert (outcome.done, outcome.interrupted) == (0, True)
    assert fedsim.study(SMALLEST, ["run.stop.steps=3"], out=tmp_path, jobs=jobs).done == 4

"""TensorBoard reads what was written: the curves say what the tables say, while a run goes on and afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedsim import analysis
from fedsim.analysis.export.tensorboard import TensorBoardWriter, export_tensorboard
from fedsim.cli.main import main
from fedsim.common.errors import ConfigError, RunError
from fedsim.integrations.trackers import TensorBoardLogger
from fedsim.runs.progress import Progress
from fedsim.runs.resume import resume
from fedsim.runs.simulate import simulate
from small import run
from synthetic_runs import write_run
from synthetic_studies import write_study
from tracked import assert_whole, config

there = pytest.mark.skipif(
    not any((Path(path) / "tensorboard" / "__init__.py").exists() for path in sys.path),
    reason="the package tensorboard is not installed: pip install '.[tensorboard]'",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of two runs and of the events that were written while they went on."""
    folder = tmp_path_factory.mktemp("both")
    configs = [config(name="both/one"), config(name="both/two", algorithm={"name": "fedavg"})]
    with TensorBoardLogger(folder / "events") as watch:
        simulate(configs, out=folder / "runs", workers=0, watch=watch)
    return folder / "runs" / "both", folder / "events" / "both"


def curves(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Return step, time and value of every point, by tag, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    read.Reload()
    found = {
        tag: [(e.step, e.wall_time, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]
    }
    return found | {
        tag: [(e.step, e.wall_time, e.histogram_value.num) for e in read.Histograms(tag)]
        for tag in read.Tags()["histograms"]
    }


def assert_events(found: dict[str, list[tuple[int, float, float]]], opened: analysis.Run) -> None:
    assert_whole(found, opened)
    history = opened.history(metrics=["mean_percent"])
    assert [n for *_, n in found["evaluation_test/clients_percent"]] == history["clients"].tolist()


@there
@pytest.mark.parametrize("name", ["one", "two"])
def test_events_hold_what_the_tables_hold(runs: tuple[Path, Path], name: str, tmp_path: Path) -> None:
    opened = analysis.open_run(runs[0] / name)
    written = curves(runs[1] / name)
    assert_events(written, opened)
    export_tensorboard([opened], tmp_path)
    assert curves(tmp_path / name) == written


@there
def test_a_run_that_is_resumed_has_all_of_its_events(tmp_path: Path) -> None:
    cut = config(checkpoint={"every_steps": 2})

    def interrupting(progress: Progress) -> None:
        watch(progress)
        if progress.run_state.step == 5:
            raise KeyboardInterrupt

    with TensorBoardLogger(tmp_path / "events") as watch:
        folder = run(cut, tmp_path / "runs", watch=interrupting).folder
    with TensorBoardLogger(tmp_path / "events") as watch:
        resume(folder, workers=0, watch=watch)
    assert_events(curves(tmp_path / "events" / "small"), analysis.open_run(folder))


@there
def test_what_was_written_is_skipped(runs: tuple[Path, Path], tmp_path: Path) -> None:
    opened = analysis.open_run(runs[0] / "one")
    with TensorBoardWriter(tmp_path) as board:
        board.catch_up(opened)
        counted = board.steps, board.evaluations
        board.catch_up(opened)
        assert (board.steps, board.evaluations) == counted == (8, len(opened.evaluations()))


@there
def test_events_can_be_read_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.integrations.trackers._FLUSH_S", 0.0)
    seen: list[int] = []

    def watch(progress: Progress) -> None:
        writing(progress)
        seen.append(len(curves(tmp_path / "events" / "small").get("steps/online", ())))

    with TensorBoardLogger(tmp_path / "events") as writing:
        run(config(), tmp_path / "runs", watch=watch)
    assert seen == list(range(9))  # rows follow one step later, the last at the end


@there
def test_the_command_writes_beside_the_runs_or_elsewhere(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", "tensorboard", str(runs[0]), "--out", str(tmp_path / "the events")])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "8 steps, 5 evaluations" in said
    assert f"tensorboard --logdir '{tmp_path / 'the events'}'" in said
    assert curves(tmp_path / "the events" / "one").keys() == curves(tmp_path / "the events" / "two").keys()
    [found] = export_tensorboard([analysis.open_run(runs[0] / "one")])
    assert found.file.parent == runs[0] / "one" / "tensorboard"


@there
def test_the_finished_runs_of_a_study_are_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
        return None if seed == 2 else {}

    study = write_study(tmp_path / "made", made, axes={"rule": ["fedavg", "fedfv"]}, seeds=[1, 2])
    with pytest.raises(SystemExit) as ended:
        main(["export", "tensorboard", str(study.folder)])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for rule in ("fedavg", "fedfv"):
        assert str(study.folder / "runs" / rule / "seed-1" / "tensorboard") in said
    assert "seed-2" not in said


@there
def test_runs_of_one_name_get_folders_of_their_own(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / place / "same") for place in ("a", "b")]
    found = export_tensorboard([analysis.open_run(f) for f in folders], tmp_path / "out")
    assert [f.file.parent for f in found] == [tmp_path / "out" / place / "same" for place in ("a", "b")]
    assert [(f.steps, f.evaluations) for f in found] == [(0, 0), (0, 0)]


@there
def test_a_folder_that_cannot_be_written_is_named(runs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file/one"):
        export_tensorboard([analysis.open_run(runs[0] / "one")], tmp_path / "file")


@there
def test_a_full_disk_is_named(runs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "events.out.tfevents.0.fedsim").symlink_to("/dev/full")
    with pytest.raises(RunError, match="events cannot be written: No space left"):
        export_tensorboard([analysis.open_run(runs[0] / "one")], tmp_path)


@there
def test_neither_tensorflow_nor_torch_is_imported_for_it(runs: tuple[Path, Path], tmp_path: Path) -> None:
    code = (
        "import sys; from fedsim import analysis; from pathlib import Path;"
        "from fedsim.analysis.export.tensorboard import export_tensorboard;"
        f"export_tensorboard([analysis.open_run({str(runs[0] / 'one')!r})], Path({str(tmp_path)!r}));"
        "print(sorted({'tensorflow', 'torch', 'ray', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning:typer", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["run", "export"])
@pytest.mark.parametrize(
    ("extra", "module"),
    [("tensorboard", "tensorboard.summary.writer.record_writer"), ("wandb", "wandb"), ("mlflow", "mlflow")],
)
def test_without_the_package_the_command_that_installs_it_is_named(
    extra: str,
    module: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [module, *(name for name in sys.modules if name.startswith(f"{extra}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    folder = write_run(tmp_path / "made-up")
    argv = {
        "run": ["run", "nothing.toml", f"--{extra}", str(tmp_path / "out")],
        "export": ["export", extra, str(folder)],
    }[command]
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert f"pip install '.[{extra}]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_before_it_is_known_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(ConfigError, match="pip install"):
        TensorBoardLogger(tmp_path / "events")
    assert not (tmp_path / "events").exists()

"""What a command that trains shows after an interruption: the exact command that continues it."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedsim.cli.main import main
from fedsim.records.manifest import read_manifest
from fedsim.records.recorder import Recorder
from fedsim.runs.session import Session
from interrupted_runs import stopped_at
from small import run, small

MARK = "continue with: "
QUIET = ("--workers", "0", "--quiet")


def called(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    printed = capsys.readouterr()
    assert int(ended.value.code or 0) == code, printed.err
    return printed.out


def interrupted(capsys: pytest.CaptureFixture[str], *arguments: object, step: int = 1) -> str:
    """Return what a command prints that gets interrupts when it records its n-th step."""
    record, calls = Recorder.step, iter(range(1, 1000))

    def interrupting(recorder: Recorder, *args: Any) -> None:
        record(recorder, *args)
        if next(calls) == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "step", interrupting)
        return called(capsys, *arguments, code=130)


def continuation(out: str) -> list[str]:
    """Return the arguments of the command that continues."""
    fedsim, *arguments = shlex.split(out.partition(MARK)[2].splitlines()[0])
    assert fedsim == "fedsim"
    return arguments


def digest(folder: Path) -> str:
    manifest = read_manifest(folder)
    assert manifest["status"] == "done"
    return str(manifest["digest"])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("my file.toml")
    path.write_text(tomli_w.dumps(small(stop={"steps": 4}).resolved()))
    return path


@pytest.fixture
def whole(tmp_path: Path) -> str:
    """The digest of an uninterrupted run."""
    return digest(run(small(stop={"steps": 4}), tmp_path / "whole").folder)


def test_a_run_and_its_resumption_are_continued(
    file: Path, whole: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = interrupted(capsys, "run", file, "-o", "my runs", *QUIET, "--device", "cpu")
    assert (
        f"interrupted, and saved; {MARK}fedsim resume 'my runs/small' --workers 0 --device cpu --quiet\n"
        in out
    )
    assert "small: my runs/small\n" in out
    again = interrupted(capsys, *continuation(out))
    assert continuation(again) == continuation(out)
    called(capsys, *continuation(again))
    assert digest(Path("my runs/small")) == whole


def test_a_run_that_was_stopped_at_once_is_continued(
    file: Path, whole: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second Ctrl-C may come while the first one's records are written."""

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_finish", stopped)
        out = interrupted(capsys, "run", file, *QUIET, step=2)
    assert out == f"interrupted; {MARK}fedsim resume runs/small --workers 0 --quiet\n"
    called(capsys, *continuation(out))
    assert digest(Path("runs/small")) == whole


def test_a_run_that_has_not_begun_is_started(
    file: Path, whole: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "create", stopped)
        out = called(capsys, "run", file, *QUIET, code=130)
    assert out == f"interrupted; {MARK}fedsim run 'my file.toml' --resume --workers 0 --quiet\n"
    called(capsys, *continuation(out))
    assert digest(Path("runs/small")) == whole


def test_an_interrupt_at_the_end_of_an_arm_stops_the_others(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arm itself is done then, and nothing of it is lost."""
    with file.open("a") as text:
        text.write("[arms.early.stop]\nsteps = 2\n[arms.late.stop]\nsteps = 3\n")
    finish = Session._finish

    def interrupted_while_it_ends(session: Session, *arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return finish(session, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_finish", interrupted_while_it_ends)
        out = called(capsys, "run", file, *QUIET, code=130)
    assert "not started: small/late\n" in out
    assert read_manifest(Path("runs/small/early"))["status"] == "done"
    assert continuation(out)[:3] == ["run", "my file.toml", "--resume"]


def test_options_that_were_not_given_are_left_out(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert continuation(interrupted(capsys, "run", file)) == ["resume", "runs/small"]


def test_the_rest_of_several_arms_is_run_by_one_command(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with file.open("a") as text:
        text.write("[arms.early.stop]\nsteps = 2\n[arms.late.stop]\nsteps = 3\n")
    arguments = ("run", file, *QUIET, "--set", "algorithm.lengths='raw'", "--set", "seed=5")
    out = interrupted(capsys, *arguments)
    assert "not started: small/late\n" in out
    assert continuation(out)[:3] == ["run", "my file.toml", "--resume"]
    called(capsys, *continuation(out))
    for arm, steps in (("early", 2), ("late", 3)):
        manifest = read_manifest(Path("runs/small") / arm)
        assert (manifest["status"], manifest["steps"], manifest["seed"]) == ("done", steps, 5)
    out = interrupted(capsys, *arguments, "--force", step=3)
    assert continuation(out) == ["resume", "runs/small/late", *QUIET]


def test_a_fork_and_a_replay_are_continued(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, "run", file, *QUIET, "--set", 'checkpoint={every_steps=1, keep="all"}')
    fork = ("fork", "runs/small", "--at", "2", "--set", "algorithm.name=fedavg")
    replay = ("replay", "runs/small", "--set", "algorithm.name=fedavg")
    for number, command in enumerate((fork, replay)):
        called(capsys, *command, *QUIET, "--name", f"whole{number}")
        out = interrupted(capsys, *command, *QUIET, "--name", f"cut{number}", step=2)
        assert continuation(out) == ["resume", f"runs/cut{number}", *QUIET]
        called(capsys, *continuation(out))
        assert digest(Path(f"runs/cut{number}")) == digest(Path(f"runs/whole{number}"))


def test_a_fork_that_has_not_left_its_parent_is_started_again(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called(capsys, "run", file, *QUIET)
    command = ["fork", "runs/small", "--at", "2", "--name", "branch", "--set", "algorithm.name=fedavg"]
    command += ["--out", "my runs"]
    out = interrupted(capsys, *command, *QUIET)
    assert "interrupted; continue" in out
    again = continuation(out)
    assert sorted(again) == sorted([*command, *QUIET, "--force"])
    called(capsys, *again)
    assert read_manifest(Path("my runs/branch"))["status"] == "done"


def test_a_run_that_was_done_already_has_no_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.toml"
    path.write_text(tomli_w.dumps(small(stop={"steps": 1}).resolved()))
    arguments = ("run", path, "--workers", "0", "--out", tmp_path)
    called(capsys, *arguments)
    again = called(capsys, *arguments, "--resume", "--profile")
    assert "no profile, as the run was done already" in again
    assert "the parts add up" not in again
    assert "the parts add up" in called(capsys, *arguments, "--force", "--profile")


def test_several_arms_that_are_resumed_are_all_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of two interrupted arms is interrupted again: the command that continues is that for both."""
    for arm in ("a", "b"):
        stopped_at(2, small(name=f"exp/{arm}", stop={"steps": 4}), tmp_path)
    (tmp_path / "exp" / "arms.json").write_text('{"arms": ["a", "b"]}')
    printed = interrupted(capsys, "resume", tmp_path / "exp", *QUIET)
    assert printed.rpartition(MARK)[2].split()[:3] == ["fedsim", "resume", str(tmp_path / "exp")]

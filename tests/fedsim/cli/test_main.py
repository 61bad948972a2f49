"""The command line as a user meets it: exit codes, messages, interrupts."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

import fedsim
from fedsim import analysis
from fedsim.cli.main import main
from fedsim.common.terminal import PLAIN
from small import small

FEDSIM = Path(sys.executable).with_name("fedsim")


def call(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(small().resolved()))
    return path


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version", capsys=capsys)[:2] == (0, f"fedsim {fedsim.__version__}\n")


def test_a_run_ends_with_its_table_and_report(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call("run", file, "--out", tmp_path, "--workers", 0, "--report", "--quiet", capsys=capsys)
    assert code == 0
    assert "mean" in out
    assert "angle" in out
    assert (tmp_path / "small" / "report.html").is_file()
    code, out, _ = call("report", tmp_path / "small", "--out", tmp_path / "r.html", capsys=capsys)
    assert code == 0
    assert (tmp_path / "r.html").is_file()


@pytest.mark.parametrize(
    "kind",
    ["rules", "wrappers", "clients", "selectors", "scenarios", "tasks", "models", "partitioners", "metrics"],
)
def test_list(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call("list", kind, capsys=capsys)
    assert code == 0
    assert len(out.splitlines()) > 1


BAD = {
    "no such file": (["run", "nowhere.toml"], "nowhere.toml"),
    "unknown key": (["run", "FILE", "--set", "train.epoch=2"], "did you mean 'epochs'"),
    "wrong type": (["run", "FILE", "--set", "train.lr=fast"], "train.lr"),
    "missing data": (
        ["run", "FILE", "--set", "task={name='mnist', clients=12, data_dir='/nonexistent/data'}"],
        "/nonexistent/data",
    ),
    "too many per round": (["run", "FILE", "--set", "pacing.clients=99"], "99 clients at once"),
    "bad workers": (["run", "FILE", "--workers", "many"], "--workers"),
    "negative workers": (["run", "FILE", "--workers", "-1"], "--workers"),
    "no GPU": (["run", "FILE", "--device", "tpu"], "tpu"),
    "unknown kind": (["list", "rulez"], "did you mean 'rules'"),
    "unknown command": (["runn"], "runn"),
    "missing argument": (["run"], "Missing argument"),
    "no client to keep online": (
        ["fork", "r", "--at", "1", "--keep-online", ","],
        "--keep-online: expected numbers of clients",
    ),
    "plan with force and without out": (
        ["plan", "FILE", "--force"],
        "--force: expected --out beside it, found none",
    ),
    "bad assignment": (["run", "FILE", "--set", "nonsense"], "KEY=VALUE"),
    "an option twice": (
        ["run", "FILE", "--seeds", "2", "--seeds=3"],
        "--seeds: expected one value, found the option 2 times",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_exit_code_2_and_says_why(
    arguments: list[str], message: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [str(file) if a == "FILE" else a for a in arguments]
    if arguments[:2] == ["run", "FILE"]:
        filled += ["--out", str(tmp_path / "runs")]
        filled += [] if "--workers" in arguments else ["--workers", "0"]
    code, _, err = call(*filled, capsys=capsys)
    assert code == 2, err
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_arms_that_fail_are_told_after_the_others(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with file.open("a") as text:
        text.write("[arms.lost.partition]\nclasses = 11\n[arms.found]\n")
    arguments = ("run", file, "--out", tmp_path, "--workers", 0, "--quiet", "--set", "stop.steps=1")
    code, out, err = call(*arguments, capsys=capsys)
    assert code == 2
    assert "small/found  digest" in out
    assert "error: 1 of 2 runs failed\nsmall/lost: " in err
    assert "Traceback" not in err


def test_arguments_that_are_no_utf_8_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call("run", file, "--out", "runs\udcff", capsys=capsys)
    assert code == 2
    assert r"argument: expected text in UTF-8, found the bytes b'runs\xff'" in err


def test_a_removed_working_directory_is_said(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = tmp_path / "gone"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    code, _, err = call("run", file, "--out", tmp_path / "runs", capsys=capsys)
    assert code == 2
    assert "the working directory has been removed" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        (("A", "a"), "the arms 'A' and 'a' would have one folder where file names ignore case"),
        (("report.html", "b"), "'report.html' is the name of a file that fedsim writes"),
        (("Arms.json", "b"), "'Arms.json' is the name of a file"),
        (("con", "b"), "'con' is not a name for a folder on every system"),
        (("a.", "b"), "'a.' is not a name for a folder on every system"),
        (("..", "b"), "expected letters, digits"),
    ],
)
def test_names_of_arms_that_are_no_folders_of_their_own(
    arms: tuple[str, str], message: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with file.open("a") as text:
        text.writelines(f"[arms.{arm!r}]\n" for arm in arms)
    code, _, err = call("run", file, "--out", tmp_path / "runs", "--workers", 0, capsys=capsys)
    assert code == 2
    assert message in err
    assert not (tmp_path / "runs").exists()


def test_a_run_that_exists_is_exit_code_2(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("run", file, "--out", tmp_path, "--workers", 0, "--quiet", "--set", "stop.steps=1")
    assert call(*arguments, capsys=capsys)[0] == 0
    code, _, err = call(*arguments, capsys=capsys)
    assert code == 2
    assert "--force" in err
    assert "--resume" in err
    results = [call(*arguments, more, capsys=capsys) for more in ("--resume", "--force")]
    assert [code for code, _, _ in results] == [0, 0]
    assert len({out.split("digest")[1] for _, out, _ in results}) == 1


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.ray)])
def test_ctrl_c_leaves_a_readable_run(file: Path, tmp_path: Path, workers: int) -> None:
    run = subprocess.Popen(
        [FEDSIM, "run", file, "--out", tmp_path, "--workers", str(workers), "--set", "stop.steps=100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=listen_to_interrupts,
    )
    try:
        assert run.stdout
        assert any(" step " in line for line in run.stdout), run.wait()
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: every process of the foreground group gets it
        out, _ = run.communicate(timeout=240)
    finally:
        run.kill()
    assert run.returncode == 130, out
    assert "interrupted" in out
    assert "Traceback" not in out
    opened = analysis.open_run(tmp_path / "small")
    assert opened.manifest["status"] == "interrupted"
    assert len(opened.steps) == opened.manifest["steps"] > 0
    assert len(opened.jobs) == sum(opened.manifest["jobs"].values())


def test_ctrl_c_outside_of_training_is_told(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsim.runs.plan.plan.plan_run", stopped)
    assert call("plan", file, capsys=capsys) == (130, "", "interrupted\n")


def listen_to_interrupts() -> None:
    """Undo what a shell does to commands in the background, which its children inherit: to ignore interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_while_modules_are_imported_is_told(tmp_path: Path) -> None:
    stop = "import os, signal, sys\nif 'fedsim' in sys.argv[0]:\n    os.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "rich.py").write_text(stop)  # the commands import it
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [FEDSIM, "list"],
        env=environment,
        preexec_fn=listen_to_interrupts,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


def test_a_killed_run_can_be_read(file: Path, tmp_path: Path) -> None:
    code = (
        "import fedsim.records.recorder as r; r._PART_S = 0.2\n"
        f"from fedsim.cli.main import main; main(['run', {str(file)!r}, '--out', {str(tmp_path)!r}, '--workers', '0', "
        "'--set', 'stop.steps=100000', '--quiet'])"
    )
    run = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not (tmp_path / "small" / "parts" / "steps-00002.parquet").is_file():
            assert run.poll() is None
            time.sleep(0.01)
    finally:
        run.kill()
        run.wait()
    opened = analysis.open_run(tmp_path / "small")
    assert json.loads((tmp_path / "small" / "manifest.json").read_text())["status"] == "running"
    assert len(opened.steps) > 0
    assert analysis.write_report([opened], tmp_path / "r.html").is_file()


def test_a_run_that_fails_says_where_its_records_are_and_how_it_goes_on(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--out", tmp_path / "my runs", "--workers", 0, "--quiet", "--set", "train.lr=1e30")
    code, _, err = call("run", file, *arguments, "--set", "bad_updates.policy=stop", capsys=capsys)
    assert code == 1
    assert f"continue it with: fedsim resume '{tmp_path / 'my runs' / 'small'}'" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
@pytest.mark.parametrize("arguments", [("--help",), ("list", "metrics")])
def test_a_full_disk_is_said_in_a_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([FEDSIM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_narrow_terminal_loses_no_number(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("run", file, "--out", tmp_path, "--workers", 0, "--quiet", "--set", "stop.steps=1")
    wide = call(*arguments, capsys=capsys)[1]
    monkeypatch.setenv("COLUMNS", "40")
    narrow = call(*arguments, "--force", capsys=capsys)[1]
    assert [row.split()[:10] for row in wide.splitlines()[:5]] == [
        row.split()[:10] for row in narrow.splitlines()[:5]
    ]


def test_a_folder_that_is_not_there_is_not_called_one_without_a_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    for command in (("resume",), ("verify",), ("fork", "--at", 1), ("replay",)):
        code, _, err = call(*command, tmp_path / "mien", capsys=capsys)
        assert (code, err) == (
            2,
            f"error: there is no run folder {tmp_path / 'mien'}; did you mean 'mine'?\n",
        )


def test_a_folder_of_several_runs_asks_for_one_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.json").touch()
    code, _, err = call("resume", tmp_path, capsys=capsys)
    assert (
        f"{tmp_path} is the folder of a study: name one of its runs, or continue it with fedsim study" in err
    )
    for arm in ("fedavg", "fedfv"):
        (tmp_path / arm).mkdir()
        (tmp_path / arm / "manifest.json").write_text("{}")
    for command in (("resume",), ("verify",), ("fork", "--at", 1)):
        code, _, err = call(*command, tmp_path, capsys=capsys)
        assert code == 2
        assert err == f"error: {tmp_path} holds several runs (fedavg, fedfv): name one of these folders\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_signs_that_a_terminal_lacks_are_spelt(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([FEDSIM, "list", "rules"], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"eta" in done.stdout
    assert "a ± b – c".encode("ascii", PLAIN) == b"a +- b - c"


def test_what_the_system_refuses_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "runs/a/study.json")

    monkeypatch.setattr("fedsim.analysis.is_study", refused)
    code, _, err = call("report", tmp_path, capsys=capsys)
    assert (code, err) == (2, "error: [Errno 13] Permission denied: 'runs/a/study.json'\n")


@pytest.mark.parametrize("closed", [(1,), (1, 2)], ids=["output", "output and error"])
def test_a_command_whose_output_is_closed_does_its_work(
    file: Path, tmp_path: Path, closed: tuple[int, ...]
) -> None:
    done = subprocess.run(
        [
            *("bash", "-c", f'exec "$@" {" ".join(f"{n}>&-" for n in closed)}', "bash"),
            *(FEDSIM, "run", file, "--out", tmp_path, "--workers", "0"),
        ],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    opened = analysis.open_run(tmp_path / "small")
    assert opened.manifest["status"] == "done"
    assert len(opened.steps) == 8


@pytest.mark.parametrize(
    ("arguments", "code"), [(("run", "FILE"), 0), (("list", "rules"), 0), (("run", "none.toml"), 2)]
)
def test_a_reader_that_goes_away_stops_no_command(
    file: Path, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    """As `| true` does; a run is worth more than what it prints."""
    words = [str(file) if a == "FILE" else a for a in arguments]
    more = ["--out", str(tmp_path), "--workers", "0"] if words[0] == "run" else []
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([FEDSIM, *words, *more], stdout=writer, stderr=writer)
    os.close(writer)
    assert done.returncode == code
    if words[1] == str(file):
        assert analysis.open_run(tmp_path / "small").manifest["status"] == "done"

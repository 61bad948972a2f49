"""The same fault has the same exit code in every command, and one message: docs/reliability.md says which."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from safetensors.numpy import save_file

from fedsim.cli.main import main
from fedsim.records.run_folder import lock
from small import run, small

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs."""
    out = tmp_path_factory.mktemp("runs")
    for name in ("small", "other"):
        run(small(name=name, stop={"steps": 3}, checkpoint={"every_steps": 1, "keep": "all"}), out)
    return out


def rewritten(name: str, change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Return what rewrites a table, so that its checksums are right."""

    def damage(folder: Path) -> None:
        path = folder / f"{name}.parquet"
        pq.write_table(change(pq.read_table(path)), path)

    return damage


def doubled(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table])


def of_client_99(table: pa.Table) -> pa.Table:
    at = table.column_names.index("client")
    return table.set_column(at, table.field(at), pa.array([99] * len(table), table.field(at).type))


def impossible(table: pa.Table) -> pa.Table:
    at = table.column_names.index("accuracy")
    return table.set_column(at, table.field(at), pa.array([5.0] * len(table), table.field(at).type))


def said(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "manifest.json"
        text = json.dumps(json.loads(path.read_text()) | changes)
        path.write_text(text.replace('"10^400"', "1" + "0" * 400))

    return damage


FAULTS: dict[str, tuple[Damage, str]] = {
    "no folder": (shutil.rmtree, "there is no run folder"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    "a number of 400 digits": (said(virtual_us="10^400"), "virtual_us: input should be less than"),
    "adversaries of no clients": (said(adversaries=[{"x": 1}]), "adversaries.0.clients: missing"),
    "a text for a configuration": (
        lambda folder: (folder / "config.resolved.toml").write_text("x"),
        "config.resolved.toml",
    ),
}
"""What every command that reads a run refuses."""
TABLES: dict[str, tuple[Damage, str]] = {
    "each job twice": (
        rewritten("jobs", doubled),
        "jobs.parquet, row 12: expected each job once",
    ),
    "each step twice": (rewritten("steps", doubled), "steps.parquet, row 3: expected each step once"),
    "each evaluation twice": (
        rewritten("evals", doubled),
        "expected each step and time_us and split and client once",
    ),
    "clients of another run": (
        rewritten("jobs", of_client_99),
        "expected one of the run's 12 clients, found client 99",
    ),
    "an accuracy of 500 %": (
        rewritten("evals", impossible),
        "evals.parquet, row 0: expected an accuracy from 0 to 1, found 5",
    ),
    "columns of another table": (
        lambda folder: shutil.copy(folder / "steps.parquet", folder / "jobs.parquet"),
        "jobs.parquet: missing column job, client",
    ),
}
"""What commands refuse that read all tables."""
VIOLATIONS = {
    "each job twice": "each job has exactly one row: jobs row 12: expected each job once",
    "each step twice": "values of steps are valid: steps row 3: expected step 3, found 0",
    "each evaluation twice": "steps and evaluations are in order of time: evals row 24:",
    "clients of another run": "values of jobs are valid: jobs row 0: expected client from 0 to 11, found client = 99",
}
"""What `fedsim check` finds in such tables: to find it is what it was asked for."""
MODELS: dict[str, tuple[Damage, str]] = {
    name: (
        lambda folder, tensors=tensors: save_file(tensors, folder / "model.safetensors"),  # type: ignore[misc]
        f"model.safetensors: expected float32 'params' [P], found {found}",
    )
    for name, tensors, found in (
        ("other names", {"foo": np.ones(3, np.float32)}, "foo float32[3]"),
        ("another shape", {"params": np.ones((3, 2), np.float32)}, "params float32[3, 2]"),
        ("whole numbers", {"params": np.ones(3, np.int64)}, "params int64[3]"),
    )
}
READ = {
    "report": ["report", "RUN", "--out", "OUT/r.html"],
    "compare": ["compare", "RUN", "OTHER"],
    "check": ["check", "RUN"],
}
COMMANDS = READ | {
    "verify": ["verify", "RUN", "--workers", "0"],
    "resume": ["resume", "RUN", "--workers", "0"],
    "fork": ["fork", "RUN", "--at", "2", "--out", "OUT", "--workers", "0"],
    "replay": ["replay", "RUN", "--out", "OUT", "--workers", "0"],
    "audit": ["audit", "RUN"],
    "perfetto": ["export", "perfetto", "RUN"],
    "tensorboard": ["export", "tensorboard", "RUN"],
}
CASES = (
    [(command, fault, FAULTS) for command in COMMANDS for fault in FAULTS]
    + [("report", fault, TABLES) for fault in TABLES]
    + [("compare", fault, TABLES) for fault in TABLES if fault != "each step twice"]  # it reads none
    + [("check", "columns of another table", TABLES)]
    + [("check", fault, MODELS) for fault in MODELS]
)


def call(arguments: list[str], run: Path, out: Path) -> int:
    words = {"RUN": str(run), "OTHER": str(run.parent / "other")}
    with pytest.raises(SystemExit) as ended:
        main([words.get(word, word.replace("OUT", str(out))) for word in arguments])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("fault", VIOLATIONS)
def test_rows_that_cannot_be_are_violations(
    fault: str, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(sound, tmp_path / "runs") / "small"
    TABLES[fault][0](folder)
    assert call(READ["check"], folder, tmp_path / "out") == 1
    assert VIOLATIONS[fault] in capsys.readouterr().out


@pytest.mark.parametrize(("command", "fault", "of"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_a_faulty_folder_is_exit_code_2_and_one_message(
    command: str, fault: str, of: Any, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(sound, tmp_path / "runs") / "small"
    damage, message = of[fault]
    if command == "resume":
        said(status="interrupted")(folder)
    damage(folder)
    code = call(COMMANDS[command], folder, tmp_path / "out")
    told = capsys.readouterr().err
    if message == "there is no run folder" and command == "compare":
        message = "there is no folder"
    assert message in told
    assert code == 2, told
    assert told.startswith("error: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["check", "verify", "resume"])
def test_a_folder_in_use_is_exit_code_2(command: str, sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "runs") / "small"
    said(status="running")(folder)
    with lock(folder):
        assert call(COMMANDS[command], folder, tmp_path / "out") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "FILE", "--workers", "0"],
        ["plan", "FILE", "--out", "RUNS"],
        ["run", "FILE", "--workers", "-1"],
        ["run", "FILE", "--nothing"],
        ["run", "nofile.toml"],
        ["report", "RUN", "--only", "x"],
        ["verify", "RUN", "--steps", "3"],
        ["list", "nothing"],
        ["nothing"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_code_2(
    arguments: list[str], sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is in the way is named by the command line."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sound, tmp_path / "runs")
    (tmp_path / "small.toml").write_text(tomli_w.dumps(small().resolved()))
    words = {"FILE": "small.toml", "RUNS": "runs"}
    assert call([words.get(a, a) for a in arguments], tmp_path / "runs/small", tmp_path) == 2


def test_what_was_begun_and_failed_or_found_a_fault_is_exit_code_1(sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "runs") / "small"
    said(waits=99)(folder)
    assert call(COMMANDS["check"], folder, tmp_path) == 1
    (tmp_path / "mine.py").write_text(
        "from fedsim.server.rule import stateless\nfrom fedsim.common.errors import ConfigError\n"
        "def mine():\n    def weigh(s): raise ConfigError('no')\n    return stateless(weigh)\n"
    )
    config = small().resolved() | {"algorithm": {"name": f"{tmp_path}/mine.py:mine"}}
    (tmp_path / "small.toml").write_text(tomli_w.dumps(config))
    words = ["run", str(tmp_path / "small.toml"), "--workers", "0", "--out", "OUT", "--quiet"]
    assert call(words, folder, tmp_path / "out") == 1
    assert json.loads((tmp_path / "out/small/manifest.json").read_text())["status"] == "failed"

"""`fedsim check` reads a finished run; `fedsim verify --invariants` names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.cli.main import main
from small import run, small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(small(stop={"steps": 2}), tmp_path_factory.mktemp("my runs")).folder


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return (int(ended.value.code or 0), *capsys.readouterr())


def test_a_sound_run_passes_and_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, out, _ = called(capsys, "check", str(folder))
    assert code == 0
    assert out.startswith("not checked: ")
    assert out.endswith("invariants that could be checked hold\n")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_violation_is_named_and_ends_with_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(json.dumps(json.loads(text) | {"steps": 7}))
    code, out, err = called(capsys, "check", str(folder))
    manifest.write_text(text)
    assert code == 1
    assert "the manifest has the counts of the tables" in out
    assert "break an invariant" in err

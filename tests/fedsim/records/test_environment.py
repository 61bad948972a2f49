"""A run records versions and plug-in files, and its continuation reports what changed."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedsim
from fedsim.cli.main import main
from fedsim.common.errors import Changed
from fedsim.records.environment import changed, code, hardware, versions
from fedsim.records.manifest import read_manifest
from fedsim.runs.resume import resume
from fedsim.runs.simulate import simulate
from small import run, small

RULE = """
import numpy as np

from fedsim.server.rule import Algorithm, Direction


def halves():
    def weigh(stack, state):
        return Direction(np.full(stack.n, {scale} / stack.n)), state

    return Algorithm(weigh=weigh)
"""


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    """A file with a rule."""
    path = tmp_path / "mine.py"
    path.write_text(RULE.format(scale=0.5))
    return path


def edit(path: Path) -> None:
    path.write_text(RULE.format(scale=1.0))


def table(path: Path) -> dict[str, object]:
    return {"algorithm": {"name": f"{path}:halves"}}


def test_files_of_plug_ins_are_identified_by_their_contents(rule: Path, tmp_path: Path) -> None:
    config = {"algorithm": {"name": f"{rule}:halves", "wrap": [{"name": f"{tmp_path}/gone.py:x"}]}, "seed": 1}
    before = code(config)
    assert list(before) == [str(rule)]
    assert changed({"versions": versions(), "code": before}, config) == []
    rule.write_text(RULE.format(scale=1.0))
    assert changed({"versions": versions(), "code": before}, config) == [f"{rule} edited"]
    rule.unlink()
    assert changed({"code": before}, config) == [f"{rule} missing"]
    assert changed({"versions": {"torch": "0.1", "abacus": "1"}}, {}) == [
        f"torch 0.1, now {versions()['torch']}"
    ]


def test_another_processor_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(small(stop={"steps": 2}), tmp_path / "runs").folder
    hardware = read_manifest(folder)["hardware"]
    assert changed({"hardware": hardware}, {}) == []
    assert changed({"hardware": {"cpu": "some cpu", "cores": 1}}, {}) == [], "bits do not depend on them"
    file = folder / "manifest.json"
    other = {"hardware": hardware | {"instructions": "MMX"}, "status": "interrupted"}
    file.write_text(json.dumps(json.loads(file.read_text()) | other))
    with pytest.raises(SystemExit):
        main(["resume", str(folder), "--workers", "0", "--quiet"])
    change = f"instructions MMX, now {hardware['instructions']}"
    assert f"changed since it started: {change}; its results may differ" in capsys.readouterr().out
    assert [entry["changed"] for entry in read_manifest(folder)["resumed"]] == [[change]]


@pytest.mark.skipif("openblas" not in hardware("cpu")["blas"], reason="NumPy has another BLAS here")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names of kernels are those of x86")
@pytest.mark.parametrize("kernels", ["Haswell", "Sandybridge"])
def test_the_kernels_of_numpy_are_recorded(kernels: str) -> None:
    code = "from fedsim.records.environment import hardware; print(hardware('cpu')['blas'])"
    environment = os.environ | {"OPENBLAS_CORETYPE": kernels}
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert told.stdout.strip() == f"openblas for {kernels}"
    here = {"hardware": hardware("cpu") | {"blas": "openblas for Katmai"}}
    assert changed(here, {}) == [f"blas openblas for Katmai, now {hardware('cpu')['blas']}"]


def test_the_processor_is_that_of_the_system() -> None:
    found = hardware("cpu")
    assert found["instructions"] == torch.backends.cpu.get_cpu_capability()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        text = cpuinfo.read_text()
        assert f": {found['vendor']}\n" in text or found["vendor"] == "unknown"
        assert f": {found['cpu']}\n" in text or "model name" not in text


@pytest.mark.parametrize("command", [("resume", ""), ("run", "config.resolved.toml", "--resume", "--out")])
def test_resuming_with_another_rule_reports_it(
    command: tuple[str, ...], rule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(small(stop={"steps": 4}, **table(rule)), tmp_path / "runs").folder
    assert list(read_manifest(folder)["code"]) == [str(rule)]
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"status": "interrupted"}))
    edit(rule)
    name, config, *options = command
    out = [str(folder.parent)] if options else []
    with pytest.raises(SystemExit) as ended:
        main([name, str(folder / config), *options, *out, "--workers", "0", "--quiet"])
    assert not ended.value.code
    assert f"started: {rule} edited" in capsys.readouterr().out
    assert [entry["changed"] for entry in read_manifest(folder)["resumed"]] == [[f"{rule} edited"]]


def test_python_warns_of_edited_code(rule: Path, tmp_path: Path) -> None:
    config = small(stop={"steps": 4}, **table(rule))
    folder = run(config, tmp_path).folder
    edit(rule)
    with pytest.warns(Changed, match=f"runs started: {rule} edited") as told:
        simulate(config, out=tmp_path, workers=0, resume=True)
    assert told[0].filename == __file__
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"status": "interrupted"}))
    with pytest.warns(Changed, match=f"since it started: {rule} edited") as told:
        resume(folder, workers=0)
    assert told[0].filename == __file__


def test_verifying_a_run_that_does_not_repeat_reports_what_changed(
    rule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(small(stop={"steps": 4}, **table(rule)), tmp_path / "runs").folder
    file = folder / "manifest.json"
    before = json.loads(file.read_text())
    file.write_text(json.dumps(before | {"versions": before["versions"] | {"torch": "0.1"}, "workers": 1}))
    edit(rule)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(folder), "--workers", "0"])
    assert ended.value.code
    said = " ".join(capsys.readouterr().err.split())
    assert "does not repeat" in said
    assert "changed since it started: torch 0.1, now" in said
    assert f"{rule} edited" in said


def test_the_version_of_fedsim_is_that_of_its_distribution() -> None:
    assert versions()["fedsim"] == fedsim.__version__

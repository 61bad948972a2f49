"""Each example runs: as it stands if it is small, cut to a few steps if it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

import inputs
import programs
from fedsim import analysis
from fedsim.config.load import load_config
from fedsim.runs.simulate import simulate
from few_images import write_few_images

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "examples").glob("*.toml"))
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def few_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_few_images(folder)
    return folder


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_configuration_runs(path: Path, tmp_path: Path, few_images: Path) -> None:
    inputs.data_of(load_config(path)[0].task.name)
    sets = ("stop.steps=3", f"task.data_dir='{few_images}'")
    results = simulate(load_config(path, sets), out=tmp_path, workers=0)
    runs = [analysis.open_run(result.folder) for result in results]
    assert all(run.manifest["status"] == "done" for run in runs)
    assert all(run.manifest["steps"] == 3 for run in runs)
    assert analysis.write_report(runs, tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_a_script_runs(path: Path, tmp_path: Path) -> None:
    done = programs.python(f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')", tmp_path)
    assert done.code == 0, done.err[-2000:]
    assert done.out.strip()

"""The ready studies run, and the smallest one gives the table that its page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import inputs
import programs
from fedsim.analysis import open_study
from few_images import write_few_images
from golden_digests import difference

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "examples" / "studies").glob("*.toml"))
REPORTED = {"audit", "fedlf_lengths", "replay", "smallest"}
"""Studies of one axis and of two, audited, and compared at equal times: their reports differ most."""


@pytest.fixture(scope="module")
def few_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_few_images(folder)
    return folder


def said(*command: str, place: Path, **environment: str) -> str:
    """Run a command as a reader would, in a terminal of 100 columns; returns what it printed, without blank ends."""
    done = programs.fedsim(*command, place=place, COLUMNS="100", **environment)
    assert done.code == 0, done.err[-2000:] + done.out[-2000:]
    lines = [line.rstrip() for line in done.out.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


@pytest.mark.slow
@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_a_study_runs(path: Path, tmp_path: Path, few_images: Path) -> None:
    inputs.data_of(task for task in inputs.FILES if f'name = "{task}"' in path.read_text())
    sets = ["--seeds", "1", "--jobs", "1", "--quiet"]
    if path.stem == "fedlf_lengths":  # each of its worlds ends at a time of its own
        for world in ("quickstart", "always_on", "diurnal", "dropout"):
            sets += ["--set", f"axes.world.{world}.stop={{steps=1}}"]
    else:
        sets += ["--set", "run.stop={steps=1}"]
    if path.stem == "audit":
        for key, value in (("stop.steps", 2), ("audit.every", 1), ("audit.clients", 20)):
            sets += ["--set", f"run.{key}={value}"]
    if path.stem == "replay":  # its traces are made by hand; any others will do
        for name, scenario in (("spot", "churn"), ("spot_fitted", "diurnal")):
            trace = tmp_path / "traces" / f"{name}.parquet"
            said("trace", "make", scenario, "--set", "world.clients=60", "-o", str(trace), place=tmp_path)
    out = ("--out", str(tmp_path / "runs"))
    said("study", str(path), *sets, *out, place=tmp_path, FEDSIM_DATA=str(few_images))
    study = open_study(tmp_path / "runs" / path.stem)
    assert len(study.cells) == len(study.finished) > 1
    reader = "report" if path.stem in REPORTED else "compare"
    assert len(said(reader, str(study.folder), place=tmp_path)) > 10
    if path.stem == "components":
        text = said("compare", str(study.folder), "--components", place=tmp_path)
        assert text.count("data_seed × world_seed") == 6, "for two metrics: two rules and their difference"
    if path.stem == "audit":
        assert "fedfv_1, 1 run" in said("audit", str(study.folder), place=tmp_path)


def test_the_page_of_the_smallest_study_is_what_it_gives(tmp_path: Path) -> None:
    if another := difference():
        pytest.skip(another)
    page = (ROOT / "docs" / "results" / "smallest.md").read_text(encoding="utf-8")
    said(
        "study",
        str(ROOT / "examples" / "studies" / "smallest.toml"),
        "--seeds",
        "6",
        "--quiet",
        place=tmp_path,
    )
    shown = page.split("printed\n\n```\n")[1].split("```")[0]
    assert said("compare", "runs/smallest", place=tmp_path) == shown.strip()

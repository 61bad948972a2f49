"""The ready studies run, and the smallest one gives the table that its page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import inputs
import programs
from fedsim.analysis import open_study
from fedsim.studies.load_study import load_study
from few_images import write_few_images
from golden_digests import difference

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "examples" / "studies").glob("*.toml"))
REPORTED = {"fedlf_lengths", "memory", "replay", "smallest"}
"""Studies of one axis and of several, and audited: their reports differ most."""
TRACES = {
    "replay": ("lives_1.parquet", "fit_1.toml"),
    "selection_recorded": (
        "evening.toml",
        "fedscale.parquet",
        "flash_devices.parquet",
        "flash_network.parquet",
    ),
}
"""The worlds that a study reads, by study, with one seed."""


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
    if path.stem == "memory":
        sets += ["--set", "run.stop={steps=2}", "--set", "axes.memory.fedfv_50.audit={every=1, clients=20}"]
    compare, tune = load_study(path).compare, load_study(path).tune
    if compare and compare.last > 1:
        sets += ["--set", "compare.last=1"]
    if tune and path.stem != "dropout":  # one study that tries values is enough
        chosen = ", ".join(f"{level} = {tune.values[0]}" for level in load_study(path).axes[tune.axis])
        sets += ["--set", f"tune.chosen={{{chosen}}}"]
    for name in TRACES.get(path.stem, ()):  # these are imported by hand; any others will do
        made = tmp_path / "traces" / name
        if made.suffix == ".toml":
            made.parent.mkdir(exist_ok=True)
            made.write_text('[world]\nscenario = "churn"\nhorizon = "5h"\n')
        else:
            said("trace", "make", "churn", "--set", "world.clients=60", "-o", str(made), place=tmp_path)
    out = ("--out", str(tmp_path / "runs"))
    said("study", str(path), *sets, *out, place=tmp_path, FEDSIM_DATA=str(few_images))
    study = open_study(tmp_path / "runs" / path.stem)
    assert len(study.cells) == len(study.finished) > 1
    reader = "report" if path.stem in REPORTED else "compare"
    assert len(said(reader, str(study.folder), place=tmp_path)) > 10
    if path.stem == "components":
        text = said("compare", str(study.folder), "--components", place=tmp_path)
        assert text.count("data_seed × world_seed") == 6, "for two metrics: two rules and their difference"
    if path.stem == "memory":
        audited = [study.run(cell) for cell in study.finished if cell.levels["memory"] == "fedfv_50"]
        assert len(audited) == 4
        assert all(len(run.frame("audit")) for run in audited)


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

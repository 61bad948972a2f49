"""Running again and comparing row by row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_resume import BUFFERED

from fedsim.errors import FolderError
from fedsim.files import write_json
from fedsim.forking import At, fork
from fedsim.manifest import read_manifest
from fedsim.verifying import verify
from small import run, small


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps its checkpoints; tests must not change it."""
    config = small(pacing=BUFFERED, checkpoint={"every_steps": 3, "keep": "all"})
    return run(config, tmp_path_factory.mktemp("verified")).folder


def differences(folder: Path, **options: object) -> dict[str, str]:
    found = verify(folder, **({"workers": 0} | options))  # type: ignore[arg-type]
    return {verdict.table: verdict.difference for verdict in found}


def test_a_run_repeats(whole: Path) -> None:
    before = sorted(p.name for p in whole.iterdir())
    assert differences(whole) == {"jobs": "", "steps": "", "evals": "", "model": ""}
    assert sorted(p.name for p in whole.iterdir()) == before


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_it_repeats_with_workers(whole: Path) -> None:
    assert set(differences(whole, workers=2).values()) == {""}


def copied(whole: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(whole, tmp_path / "copy"))


def edited(folder: Path, table: str, column: str, row: int, value: object) -> None:
    """Change one entry of a table."""
    found = pq.read_table(folder / f"{table}.parquet")
    values = found[column].to_pylist()
    values[row] = value
    at = found.column_names.index(column)
    changed = found.set_column(
        at, found.schema.field(column), pa.array(values, found.schema.field(column).type)
    )
    pq.write_table(changed, folder / f"{table}.parquet")


def test_the_first_row_that_differs_is_named(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path)
    edited(folder, "jobs", "end_us", 17, 5)
    edited(folder, "jobs", "client", 9, 3)
    found = differences(folder)
    assert found["steps"] == ""
    assert found["jobs"].startswith("row 9 (job ")
    assert "client: expected 3, found" in found["jobs"]


def test_some_steps_are_compared_from_a_checkpoint(whole: Path, tmp_path: Path) -> None:
    assert set(differences(whole, steps=(4, 6)).values()) == {""}
    folder = copied(whole, tmp_path)
    edited(folder, "steps", "direction_norm", 5, 1.0)
    edited(folder, "steps", "direction_norm", 7, 1.0)
    assert "row 5 (step 5, " in differences(folder, steps=(4, 6))["steps"]
    assert differences(folder, steps=(4, 5))["steps"] == ""


def test_a_fork_is_forked_again(whole: Path, tmp_path: Path) -> None:
    child = fork(whole, At(step=4), ["algorithm.name=fedfv"], keep_online=[2], out=tmp_path, workers=0)
    assert set(differences(child.folder).values()) == {""}


def test_what_cannot_repeat_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path)
    write_json(folder / "manifest.json", read_manifest(whole) | {"ended_by": "wall"})
    with pytest.raises(FolderError, match="ended by wall time, which does not repeat"):
        verify(folder)
    write_json(folder / "manifest.json", read_manifest(whole) | {"status": "failed"})
    with pytest.raises(FolderError, match="expected a run that is done, found one that is failed"):
        verify(folder)

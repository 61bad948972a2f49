"""Only run folders and empty folders are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.common.errors import RunError
from fedsim.records.run_folder import make_folder


def test_folders_are_only_replaced_if_they_are_runs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    make_folder(run, force=True, manifest={})  # an empty folder holds nothing to lose
    with pytest.raises(RunError, match="--force"):
        make_folder(run, force=False, manifest={})
    make_folder(run, force=True, manifest={})
    assert [p.name for p in run.iterdir()] == ["manifest.json"]
    (run / "manifest.json").unlink()
    (run / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="not a run folder"):
        make_folder(run, force=True, manifest={})

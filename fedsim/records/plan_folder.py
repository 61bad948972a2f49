"""The folder that `fedsim plan --out` writes: a run folder without results, which `analysis.open_run` reads too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsim.common.arrays import Ints
from fedsim.common.errors import FolderError
from fedsim.common.files import write_json
from fedsim.config.run import RunConfig
from fedsim.engine.job_table import JobTable
from fedsim.engine.state import RunState
from fedsim.records.file_names import MANIFEST
from fedsim.records.manifest import FORMAT, read_manifest
from fedsim.records.recorder import Recorder
from fedsim.records.run_folder import describe, make_folder
from fedsim.worlds.trace import Trace

_PLANNED = "planned"


def begin(
    folder: Path,
    config: RunConfig,
    trace: Trace,
    label_counts: Ints,
    names: Sequence[str] | None,
    job_table: JobTable,
    *,
    force: bool,
) -> Recorder:
    """Make the folder of a plan with what `run_folder.describe` writes, and return its Recorder.

    `force` replaces another plan, and never a run. Raises RunError.
    """
    if force and (folder / MANIFEST).is_file() and _status(folder) != _PLANNED:
        raise FolderError(f"{folder} is a run, and no plan replaces it: choose another folder with --out")
    make_folder(folder, "plan", force=force, manifest=_manifest(config))
    describe(folder, config, trace, label_counts, names)
    return Recorder(folder, label_counts.sum(axis=1), job_table)


def finish(recorder: Recorder, config: RunConfig, run_state: RunState, ended_by: str) -> None:
    """Merge the tables, and complete the manifest."""
    recorder.settle()
    recorder.close(None)
    results = {
        "ended_by": ended_by,
        "virtual_us": run_state.now_us,
        "steps": run_state.step,
        "jobs": dict(sorted(recorder.counts.items())),
        "waits": recorder.waits,
    }
    write_json(recorder.folder / MANIFEST, _manifest(config) | results)


def _manifest(config: RunConfig) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": config.name,
        "label": config.label,
        "status": _PLANNED,
        "seed": config.seed,
        "rule": config.algorithm.name,
    }


def _status(folder: Path) -> object:
    try:
        return read_manifest(folder).get("status")
    except FolderError:
        return None

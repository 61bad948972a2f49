"""The folder that `fedsim plan --out` writes: a run folder without results, which `analysis.open_run` reads too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from fedsim.common.errors import FolderError
from fedsim.common.files import write_json, write_text
from fedsim.config.run import RunConfig
from fedsim.engine.job_table import JobTable
from fedsim.engine.state import RunState
from fedsim.records.file_names import CONFIG, MANIFEST
from fedsim.records.manifest import FORMAT, read_manifest
from fedsim.records.recorder import Recorder
from fedsim.records.run_folder import make_folder

_PLANNED = "planned"


def begin(
    folder: Path, config: RunConfig, n_samples: NDArray[np.int64], job_table: JobTable, *, force: bool
) -> Recorder:
    """Make the folder of a plan, and return its Recorder.

    `force` replaces another plan, and never a run. Raises RunError.
    """
    if force and (folder / MANIFEST).is_file() and _status(folder) != _PLANNED:
        raise FolderError(f"{folder} is a run, and no plan replaces it: choose another folder with --out")
    make_folder(folder, "plan", force=force, manifest=_manifest(config))
    write_text(folder / CONFIG, tomli_w.dumps(config.resolved()))
    return Recorder(folder, n_samples, job_table)


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

"""Lists the runs and studies below a folder from manifests and names of checkpoints; nothing is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fedsim.common.errors import FolderError
from fedsim.common.files import from_json
from fedsim.records.file_names import CONFIG, MANIFEST, STUDY, STUDY_CONFIG, WORLD
from fedsim.records.manifest import read_manifest
from fedsim.records.run_folder import is_running, status_of


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run folder and its manifest."""

    folder: Path
    status: str
    """`done`, `running`, `interrupted`, `killed`, `failed`, `planned`, or `damaged` without a readable manifest."""
    started_s: float
    """When the run started, in seconds since the epoch."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    """Why a run failed, or what is wrong with its manifest."""

    @property
    def steps(self) -> int | None:
        """The server steps in the manifest; before a run has ended, those of its last checkpoint, or None."""
        steps: int | None = self.manifest.get("steps")
        if steps is not None:
            return steps
        saved = (path.name.partition("-")[0] for path in (self.folder / "checkpoints").glob("*-*"))
        return max((int(step) for step in saved if step.isdecimal()), default=None)  # others are half-written

    @property
    def resumable(self) -> bool:
        """Whether `fedsim resume` can continue the run."""
        stopped = self.status in ("interrupted", "killed", "failed")
        return stopped and (self.folder / CONFIG).is_file() and (self.folder / WORLD).is_file()


@dataclass(frozen=True, slots=True)
class ListedStudy:
    """The folder of a study and the numbers of its cells by status."""

    folder: Path
    name: str
    counts: Mapping[str, int]
    started_s: float
    """When its states were last written, in seconds since the epoch."""
    running: bool
    """Whether a process runs it."""

    @property
    def cells(self) -> int:
        """The number of cells."""
        return sum(self.counts.values())

    @property
    def config(self) -> Path:
        """The file that continues the study."""
        return self.folder / STUDY_CONFIG


def runs_below(folder: Path) -> Iterator[ListedRun | ListedStudy]:
    """Yield the runs and the studies below a folder, or the folder itself if it is one, in the order of their paths.

    Folders of runs and studies are not searched further, nor are hidden folders and links. Raises FolderError if the
    folder does not exist.
    """
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}: expected one with runs in it")
    for path, inside, files in os.walk(folder):
        if STUDY not in files and MANIFEST not in files:
            inside[:] = sorted(name for name in inside if not name.startswith("."))
            continue
        inside.clear()
        try:
            listed = _study(Path(path)) if STUDY in files else _run(Path(path))
        except FileNotFoundError:  # replaced by another process meanwhile
            continue
        yield listed


def _run(folder: Path) -> ListedRun:
    written_s = (folder / MANIFEST).stat().st_mtime
    try:
        manifest = read_manifest(folder)
    except FolderError as error:
        return ListedRun(folder, "damaged", written_s, error=str(error))
    status = status_of(folder, {"status": "damaged"} | manifest)
    try:
        started_s = datetime.fromisoformat(str(manifest.get("started"))).timestamp()
    except ValueError:  # a run that was killed before it began
        started_s = written_s
    return ListedRun(folder, status, started_s, manifest, manifest.get("error"))


def _study(folder: Path) -> ListedStudy:
    file = folder / STUDY
    try:
        content = from_json(file.read_text(encoding="utf-8"))
        counts = Counter(str(cell["status"]) for cell in content["cells"])
        name = str(content["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ListedStudy(folder, folder.name, {}, file.stat().st_mtime, False)
    running = is_running(folder)
    if not running and (killed := counts.pop("running", 0)):
        counts["interrupted"] += killed
    return ListedStudy(folder, name, counts, file.stat().st_mtime, running)

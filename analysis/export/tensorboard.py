"""Export runs for TensorBoard: accuracy, fairness, participation and losses by step and by virtual time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.analysis.export.curves import Curves, at_least_one
from fedsim.analysis.export.event_file import NAME, EventFile
from fedsim.analysis.opening.run import Run
from fedsim.common import arguments
from fedsim.common.paths import as_path


@arguments.checked
class TensorBoardWriter(Curves):
    """Writes the event file of one run. It skips steps and evaluations already written, as after a restored checkpoint.

    The time of an event is virtual time in seconds, so TensorBoard's horizontal axis `Relative` shows virtual time.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(EventFile(folder))


@dataclass(frozen=True, slots=True)
class Exported:
    """An event file, and the numbers of steps and evaluations in it."""

    file: Path
    steps: int
    evaluations: int


@arguments.checked
def export_tensorboard(runs: Sequence[Run], out: Path | str | None = None) -> list[Exported]:
    """Write an event file for each run: into its folder, or into a folder per run below `out`.

    Raises ConfigError if TensorBoard is not installed, RunError if a file cannot be written.
    """
    at_least_one(runs)
    exported, place = [], None if out is None else as_path(out, "out")
    for run, folder in zip(runs, _folders([run.folder for run in runs], place), strict=True):
        with TensorBoardWriter(folder) as board:
            board.catch_up(run)
        exported.append(Exported(folder / NAME, board.steps, board.evaluations))
    return exported


def _folders(runs: Sequence[Path], out: Path | None) -> Iterable[Path]:
    """Return the folder of each run's events; below `out`, runs keep their relative paths."""
    if out is None:
        return [run / "tensorboard" for run in runs]
    whole = [run.resolve() for run in runs]
    shared = os.path.commonpath([run.parent for run in whole])
    return [out / run.relative_to(shared) for run in whole]

"""The folder of a study: its configuration in `study.toml`, and the states of its cells in `study.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import tomli_w

from fedsim.common.errors import FolderError
from fedsim.common.files import make_directory, write_json, write_text
from fedsim.config.study import StudyConfig
from fedsim.records.existing_run import State, Status, refuse_others, run_in
from fedsim.studies.grid import Cell, by_levels

_STATES, _CONFIG, _FORMAT = "study.json", "study.toml", 1


class StudyFolder:
    """The folder of a study, and the states of its cells.

    Args:
        path: `<out>/<name of the study>`, which need not exist.
        force: repeat cells that were run with another configuration.

    Raises ConfigError for such cells without `force`, and FolderError for a folder of something else.
    """

    def __init__(self, path: Path, study: StudyConfig, cells: Sequence[Cell], *, force: bool = False) -> None:
        self.path, self.study, self.cells = path, study, cells
        if path.exists() and not (path / _STATES).is_file() and (not path.is_dir() or any(path.iterdir())):
            raise FolderError(
                f"{path} exists and is not the folder of a study: choose another one with --out"
            )
        runs = [(path / c.folder, c.title, run_in(path / c.folder, c.config)) for c in cells]
        if not force:
            refuse_others(runs, "cells")
        self.states = [State() if run.differences else run.state for *_, run in runs]

    @property
    def left(self) -> list[Cell]:
        """The cells that are not done."""
        return [cell for cell in self.cells if self.states[cell.number].status != "done"]

    def count(self, status: Status) -> int:
        """Return the number of cells with a status."""
        return sum(state.status == status for state in self.states)

    def begin(self) -> None:
        """Write the study's configuration, the states, and the order of the runs of each combination of levels."""
        for cells in by_levels(self.cells):
            folder = (self.path / cells[0].folder).parent
            make_directory(folder)
            write_json(folder / "arms.json", {"arms": [Path(cell.folder).name for cell in cells]})
        write_text(self.path / _CONFIG, tomli_w.dumps(self.study.resolved()))
        self.write()

    def set(self, cell: Cell, state: State) -> None:
        """Set and write the state of a cell."""
        self.states[cell.number] = state
        self.write()

    def release(self) -> None:
        """Write that running cells were interrupted, as no process runs them any more."""
        self.states = [replace(s, status="interrupted") if s.status == "running" else s for s in self.states]
        self.write()

    def write(self) -> None:
        """Write `study.json`."""
        compare, published = self.study.compare, self.study.published
        content = {
            "format": _FORMAT,
            "name": self.study.name,
            "description": self.study.description,
            "axes": {axis: list(levels) for axis, levels in self.study.axes.items()},
            "seeds": list(self.study.seeds),
            "compare": {} if compare is None else compare.model_dump(mode="json", exclude_none=True),
            "published": None if published is None else published.model_dump(mode="json", exclude_none=True),
            "cells": [
                {"levels": cell.levels, "seed": cell.seed, "folder": cell.folder} | asdict(state)
                for cell, state in zip(self.cells, self.states, strict=True)
            ],
        }
        write_json(self.path / _STATES, content)

"""The folder of a study: what it was asked, which of its cells are done, and `study.json`, which says both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import tomli_w

from fedsim.common.errors import FolderError
from fedsim.common.files import make_directory, write_json, write_text
from fedsim.config.study import StudyConfig
from fedsim.records.existing_run import State, Status, refuse_others, run_in
from fedsim.studies.grid import Cell

STUDY, GIVEN, FORMAT = "study.json", "study.toml", 1


class StudyFolder:
    """The folder of a study, and how far each of its cells is.

    Args:
        path: `<out>/<name of the study>`; it need not be there.
        force: cells that were run with another configuration are run anew.

    Raises ConfigError for such cells without `force`, and RunError or FolderError for a folder of something else.
    """

    def __init__(self, path: Path, study: StudyConfig, cells: Sequence[Cell], *, force: bool = False) -> None:
        self.path, self.study, self.cells = path, study, cells
        if path.exists() and not (path / STUDY).is_file() and (not path.is_dir() or any(path.iterdir())):
            raise FolderError(
                f"{path} exists and is not the folder of a study: choose another one with --out"
            )
        existing = [run_in(path / cell.folder, cell.config) for cell in cells]
        if not force:
            places = [(path / cell.folder, cell.title) for cell in cells]
            refuse_others([(*place, run) for place, run in zip(places, existing, strict=True)], "cells")
        self.states = [State() if run.differences else run.state for run in existing]

    @property
    def left(self) -> list[Cell]:
        """The cells that are not done."""
        return [c for c, state in zip(self.cells, self.states, strict=True) if state.status != "done"]

    def count(self, status: Status) -> int:
        """Return how many cells are that far."""
        return sum(state.status == status for state in self.states)

    def begin(self) -> None:
        """Make the folder and say in it what is asked: the study, and the order of the runs that differ in seed."""
        arms: dict[str, list[str]] = {}
        for cell in self.cells:
            combination, _, run = cell.config.name.partition("/")
            arms.setdefault(combination, []).append(run)
        runs = (self.path / self.cells[0].folder).parent.parent
        for combination, names in arms.items():
            make_directory(runs / combination)
            write_json(runs / combination / "arms.json", {"arms": names})
        write_text(self.path / GIVEN, tomli_w.dumps(self.study.resolved()))
        self.write()

    def set(self, cell: Cell, status: Status, *, digest: str | None = None, error: str | None = None) -> None:
        """Note how far a cell is, and write it down."""
        self.states[cell.number] = State(status, digest, error)
        self.write()

    def release(self) -> None:
        """Note that nothing is running any more."""
        self.states = [replace(s, status="interrupted") if s.status == "running" else s for s in self.states]
        self.write()

    def write(self) -> None:
        """Write `study.json`."""
        compare = self.study.compare
        content = {
            "format": FORMAT,
            "name": self.study.name,
            "description": self.study.description,
            "axes": {axis: list(levels) for axis, levels in self.study.axes.items()},
            "seeds": list(self.study.seeds),
            "compare": {} if compare is None else compare.model_dump(mode="json", exclude_none=True),
            "cells": [
                {"levels": cell.levels, "seed": cell.seed, "folder": cell.folder} | asdict(state)
                for cell, state in zip(self.cells, self.states, strict=True)
            ],
        }
        write_json(self.path / STUDY, content)

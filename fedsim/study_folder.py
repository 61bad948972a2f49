"""The folder of a study: what it was asked, which of its cells are done, and `study.json`, which says both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedsim.config import RunConfig, load
from fedsim.config_study import StudyConfig
from fedsim.errors import ConfigError, Error, FolderError, RunError
from fedsim.files import from_toml, make_directory, refuse_links, write_json, write_text
from fedsim.manifest import read_manifest
from fedsim.run import CONFIG, WORLD
from fedsim.study_grid import Cell

STUDY, GIVEN, FORMAT = "study.json", "study.toml", 1
Status = Literal["pending", "running", "interrupted", "failed", "done"]
_SHOWN = 3
"""Most differing keys that an error names."""


@dataclass(frozen=True, slots=True)
class State:
    """How far a cell is."""

    status: Status = "pending"
    """`interrupted` also after a kill, `pending` also before anything of it that can be used was written."""
    digest: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What is in the folder of a cell."""

    state: State
    differences: tuple[str, ...] = ()
    """Keys of the configuration that are not what the study asks for, with what was expected and found."""

    @property
    def unfinished(self) -> bool:
        """Whether the run of the folder is the cell's and can go on."""
        return self.state.status in ("interrupted", "failed") and not self.differences


def found_in(folder: Path, wanted: RunConfig) -> Found:
    """Look at a run folder that may not be there. Raises FolderError if it is something else, or leads elsewhere."""
    if not folder.exists():
        return Found(State())
    refuse_links(folder, FolderError)
    manifest = read_manifest(folder)
    if not ((folder / CONFIG).is_file() and (folder / WORLD).is_file()):
        return Found(State())
    status = manifest.get("status")
    known: Status = "done" if status == "done" else "failed" if status == "failed" else "interrupted"
    state = State(known, manifest.get("digest"), manifest.get("error"))
    return Found(state, tuple(_differences(folder, wanted)))


def _differences(folder: Path, wanted: RunConfig) -> Iterator[str]:
    """Compare what a run was made from with what is asked for; what is left to the machine may be anything."""
    try:
        there = load(folder / CONFIG)[0]
    except Error as error:
        yield str(error)
        return
    update: dict[str, Any] = {}
    if wanted.train.mode == "auto":
        update["train"] = wanted.train.model_copy(update={"mode": there.train.mode})
    if wanted.memory.history in ("auto", there.memory.history):
        update["memory"] = there.memory
    ours, theirs = wanted.model_copy(update=update).resolved(), there.resolved()
    if ours == theirs:  # as it mostly is; to write both as TOML takes as long as all of this
        return
    expected, found = dict(_flat(ours)), dict(_flat(theirs))
    for key in expected | found:
        if expected.get(key) != found.get(key):
            yield f"{key}: expected {_written(expected, key)}, found {_written(found, key)}"


def _flat(tables: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and their values, as they come back from TOML."""
    for key, value in (tables if path else from_toml(tomli_w.dumps(tables))).items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _written(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "nothing"


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
            raise RunError(f"{path} exists and is not the folder of a study: choose another one with --out")
        found = [found_in(path / cell.folder, cell.config) for cell in cells]
        if not force:
            self._refuse_others(found)
        self.states = [State() if f.differences else f.state for f in found]

    def _refuse_others(self, found: Sequence[Found]) -> None:
        """Raise ConfigError if work would be lost that another configuration cost; a run that failed is no loss."""
        other = [
            (cell, f.state.status, f.differences)
            for cell, f in zip(self.cells, found, strict=True)
            if f.differences and f.state.status != "failed"
        ]
        if not other:
            return
        cell, status, differences = other[0]
        more = f"; and {len(differences) - _SHOWN} more keys" if len(differences) > _SHOWN else ""
        others = f" So are others, {len(other)} cells in all." if len(other) > 1 else ""
        raise ConfigError(
            f"{self.path / cell.folder} is {status} with another configuration than {cell.title}: "
            f"{'; '.join(differences[:_SHOWN])}{more}.{others} Run such cells anew with --force, or choose another "
            "folder with --out"
        )

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

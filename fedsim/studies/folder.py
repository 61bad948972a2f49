"""The folder of a study: its configuration, the states of its cells, and their last evaluations.

These are `study.toml`, `study.json` and `results.csv`. A cell in `results.csv` is done even if its run folder was
removed, so the three files alone let a study be compared, and be continued on another machine.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from pydantic import BaseModel

from fedsim import analysis, plugins
from fedsim.analysis.opening.study_file import study_of
from fedsim.common.errors import ConfigError, Error, FolderError
from fedsim.common.files import from_json, make_directory, write_json, write_text
from fedsim.config.run import RunConfig
from fedsim.config.section import PluginSection
from fedsim.config.study.compare import kept_points
from fedsim.config.study.study import StudyConfig
from fedsim.config.world import WorldConfig
from fedsim.records.existing_run import (
    ExistingRun,
    State,
    Status,
    differences,
    refuse_others,
    run_in,
    warnings_of_changes,
)
from fedsim.records.file_names import ARMS, STUDY, STUDY_CONFIG
from fedsim.records.manifest import read_manifest
from fedsim.records.study_results import RESULTS, read_results, write_results
from fedsim.runs.inputs import same_data
from fedsim.studies.grid import Cell, by_levels, cells_of
from fedsim.studies.load_study import load_study

if TYPE_CHECKING:
    from fedsim.runs.spec import RunSpec

_FORMAT = 1


class StudyFolder:
    """The folder of a study, and the states of its cells.

    Args:
        path: `<out>/<name of the study>`, which need not exist.
        force: repeat cells that were run with another configuration.
        keep_others: keep the results of cells that are not part of the study, as a tuning study has of levels that have
            a value.

    Raises ConfigError for such cells without `force`, and FolderError for a folder of something else.
    """

    def __init__(
        self,
        path: Path,
        study: StudyConfig,
        cells: Sequence[Cell],
        *,
        force: bool = False,
        keep_others: bool = False,
    ) -> None:
        self.path, self.study, self.cells = path, study, cells
        if path.exists() and not (path / STUDY).is_file() and (not path.is_dir() or any(path.iterdir())):
            raise FolderError(
                f"{path} exists and is not the folder of a study: choose another one with --out"
            )
        self._results = read_results(path)
        self._digests = {cell.folder: _config_digest(cell.config) for cell in cells}
        self._former_digests = _config_digests(path / STUDY)
        others = sorted(self._results.keys() - {cell.folder for cell in cells})
        self._others = [self._results.pop(other) for other in others] if keep_others else []
        refused = [] if keep_others else others
        self._check_results(refused)
        runs = [(path / c.folder, c.title, self._existing(c)) for c in cells]
        if not force:
            refuse_others(runs, "cells")
        self.notes = [*warnings_of_changes(((title, run) for _, title, run in runs), "cells")]
        """Lines about existing cells, for the one who runs the study."""
        if refused:
            self.notes.append(
                f"{path}: other cells there are not part of this study ({len(refused)}): their runs stay, and their "
                f"lines leave {RESULTS}; another folder, with --out, keeps both studies"
            )
        self.states = [State() if run.differences else run.state for *_, run in runs]

    def _check_results(self, others: Sequence[str]) -> None:
        """Raise ConfigError if some runs of other cells with results are gone."""
        lost = [folder for folder in others if not (self.path / folder).exists()]
        if lost:
            raise ConfigError(
                f"{self.path / RESULTS}: it has results of {len(lost)} other cells, such as {lost[0]}, whose run "
                "folders are gone: name their levels and seeds as well, or choose another folder with --out"
            )

    def _existing(self, cell: Cell) -> ExistingRun:
        """Return the run in a cell's folder, or without a folder the one in `results.csv`."""
        folder, results = self.path / cell.folder, self._results.get(cell.folder)
        if results and not folder.exists() and (stored := self._stored.get(cell.folder)):
            changed = tuple(differences(stored, cell.config, stored.memory))
            digest = self._digests[cell.folder]
            if not changed and self._former_digests.get(cell.folder, digest) != digest:
                changed = (f"{STUDY_CONFIG} was edited after its results",)
            return ExistingRun(State("done", results[0].digest), changed)
        return run_in(folder, cell.config)

    @cached_property
    def _stored(self) -> dict[str, RunConfig]:
        """The configurations of the cells in `study.toml`, by folder. Raises FolderError if it cannot be read."""
        file = self.path / STUDY_CONFIG
        try:
            return {cell.folder: cell.config for cell in cells_of(load_study(file), file.name)}
        except Error as error:
            raise FolderError(
                f"{error}\n{file}: the configuration of the cells in {RESULTS} cannot be read: remove "
                f"{self.path / RESULTS} to run them again"
            ) from error

    @property
    def left(self) -> list[Cell]:
        """The cells that are not done."""
        return [cell for cell in self.cells if self.states[cell.number].status != "done"]

    def check_data(self, spec: RunSpec) -> None:
        """Raise FolderError if a run would see other data than a cell that is done, as their files were edited.

        The data of cells whose run folders were removed are not known.
        """
        if done := self._with_same_data(spec.config):
            spec.check_data(read_manifest(done), done)

    def first_of(self, cells: Sequence[Cell]) -> Cell:
        """Return the first cell with the data of a cell that is done, by which `check_data` judges; else the first."""
        return next((cell for cell in cells if self._with_same_data(cell.config)), cells[0])

    def _with_same_data(self, config: RunConfig) -> Path | None:
        """Return the folder of a cell that is done and has the same data."""
        alike = (c for c in self._done_before.get(config.seed_of("data"), ()) if same_data(c.config, config))
        folders = (self.path / cell.folder for cell in alike)
        return next((folder for folder in folders if folder.exists()), None)

    @cached_property
    def _done_before(self) -> Mapping[int, Sequence[Cell]]:
        """The cells that were done before the study goes on, by the seed of their data."""
        by_seed = defaultdict[int, list[Cell]](list)
        for cell, state in zip(self.cells, self.states, strict=True):
            if state.status == "done":
                by_seed[cell.config.seed_of("data")].append(cell)
        return by_seed

    def count(self, status: Status) -> int:
        """Return the number of cells with a status."""
        return sum(state.status == status for state in self.states)

    def begin(self) -> None:
        """Write the states, the study's configuration, and the order of the runs of each combination of levels."""
        self._results = {c.folder: self._results[c.folder] for c in self.cells if c.folder in self._results}
        for cell, state in zip(self.cells, self.states, strict=True):
            self._enter(cell, state)
        self.write()  # first: results of other settings must not stand beside these settings, should the process end
        write_text(self.path / STUDY_CONFIG, tomli_w.dumps(self.study.resolved()))
        with_runs = [
            c for c in self.cells if self.states[c.number].status != "done" or (self.path / c.folder).exists()
        ]
        for cells in by_levels(with_runs):
            folder = (self.path / cells[0].folder).parent
            make_directory(folder)
            write_json(folder / ARMS, {"arms": [Path(cell.folder).name for cell in cells]})

    def set(self, cell: Cell, state: State) -> None:
        """Set and write the state of a cell."""
        self.states[cell.number] = state
        self._enter(cell, state)
        self.write()

    def _enter(self, cell: Cell, state: State) -> None:
        """Enter the results of a cell that is done, and remove those of another one."""
        folder = self.path / cell.folder
        if state.status != "done":
            self._results.pop(cell.folder, None)
        elif folder.exists() and not self._has_entered(cell, state):
            run = analysis.open_run(folder)
            self._results[cell.folder] = analysis.last_evaluations(run, cell.folder, self._last, self._points)

    def _has_entered(self, cell: Cell, state: State) -> bool:
        """Return whether the results have as many evaluations of a cell as `[compare]` averages, at each point."""
        results = self._results.get(cell.folder)
        if not results or results[0].digest != state.digest:
            return False
        found = Counter(result.at for result in results if result.split == results[0].split)
        return all(found[at] >= self._last for at in self._points)

    @property
    def _points(self) -> list[str]:
        compare, published = self.study.compare, self.study.published
        rows = () if published is None else published.rows
        return kept_points([*(() if compare is None else compare.at), *(row.at for row in rows)])

    @property
    def _last(self) -> int:
        return 1 if self.study.compare is None else self.study.compare.last

    def release(self) -> None:
        """Write that running cells were interrupted, as no process runs them any more."""
        self.states = [replace(s, status="interrupted") if s.status == "running" else s for s in self.states]
        self.write()

    def opened(self) -> analysis.Study:
        """Return the study that `open_study` opens after the next `write`."""
        return study_of(self.path, self._content())

    def write(self) -> None:
        """Write `study.json` and `results.csv`."""
        write_json(self.path / STUDY, self._content())
        lines = (self._results.get(cell.folder, ()) for cell in self.cells)
        write_results(self.path, chain(*lines, *self._others))

    def _content(self) -> dict[str, Any]:
        """Return the content of `study.json`."""
        compare, published, tune = self.study.compare, self.study.published, self.study.tune
        return {
            "format": _FORMAT,
            "name": self.study.name,
            "description": self.study.description,
            "axes": {axis: list(levels) for axis, levels in self.study.axes.items()},
            "seeds": list(self.study.seeds),
            "compare": {} if compare is None else compare.model_dump(mode="json", exclude_none=True),
            "tune": None if tune is None else tune.model_dump(mode="json", exclude_none=True),
            "published": None if published is None else published.model_dump(mode="json", exclude_none=True),
            "cells": [
                {"levels": cell.levels, "seed": cell.seed, "folder": cell.folder}
                | {"config": self._digests[cell.folder]}
                | asdict(state)
                for cell, state in zip(self.cells, self.states, strict=True)
            ],
        }


def _config_digest(config: RunConfig) -> str:
    """Return 16 hexadecimal digits that depend on the keys of a configuration that differ from their defaults."""
    text = json.dumps(_own_keys(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _own_keys(value: Any) -> Any:
    """Return a table, and those in it, without the keys that have their defaults; whole numbers are integers."""
    if isinstance(value, Mapping):
        return {key: _own_keys(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_own_keys(inner) for inner in value]
    if not isinstance(value, BaseModel):
        return int(value) if isinstance(value, float) and value.is_integer() else value
    defaults = {name: field.get_default() for name, field in type(value).model_fields.items()}
    if isinstance(value, PluginSection):
        defaults |= plugins.resolved(value.kind, value.name, {}, value.supplied)
    keys = dict(value)
    if isinstance(value, WorldConfig) and value.scenario is not None:
        options = plugins.resolved("scenario", value.scenario, {}, ())
        keys |= {"options": {k: v for k, v in value.options.items() if k not in options or v != options[k]}}
    return {
        key: _own_keys(inner) for key, inner in keys.items() if key not in defaults or inner != defaults[key]
    }


def _config_digests(file: Path) -> dict[str, str]:
    """Return the digests of the configurations with which the cells in `study.json` were run, by folder."""
    try:
        cells = from_json(file.read_text(encoding="utf-8"))["cells"]
        return {cell["folder"]: cell["config"] for cell in cells if "config" in cell}
    except (OSError, ValueError, KeyError, TypeError):  # opening the study says what is wrong with the file
        return {}

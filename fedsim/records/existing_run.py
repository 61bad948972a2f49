"""What is in the folder of a run that is asked for: nothing, a run of the same configuration, or something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedsim.common.errors import ConfigError, Error, FolderError
from fedsim.common.files import from_toml, refuse_links
from fedsim.config.load import load
from fedsim.config.run import RunConfig
from fedsim.records.manifest import read_manifest
from fedsim.records.run_folder import CONFIG, WORLD

Status = Literal["pending", "running", "interrupted", "failed", "done"]
_SHOWN = 3
"""Most differing keys that an error names."""


@dataclass(frozen=True, slots=True)
class State:
    """How far a run is."""

    status: Status = "pending"
    """`interrupted` also after a kill, `pending` also before anything of it that can be used was written."""
    digest: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ExistingRun:
    """What is in the folder of a run."""

    state: State
    differences: tuple[str, ...] = ()
    """Keys of the configuration that are not what is asked for, with what was expected and found."""

    @property
    def unfinished(self) -> bool:
        """Whether the run of the folder is the one that is asked for and can go on."""
        return self.state.status in ("interrupted", "failed") and not self.differences


def found_in(folder: Path, wanted: RunConfig) -> ExistingRun:
    """Look at a run folder that may not be there. Raises FolderError if it is something else, or leads elsewhere."""
    if not folder.exists():
        return ExistingRun(State())
    refuse_links(folder, FolderError)
    manifest = read_manifest(folder)
    if not ((folder / CONFIG).is_file() and (folder / WORLD).is_file()):
        return ExistingRun(State())
    status = manifest.get("status")
    known: Status = "done" if status == "done" else "failed" if status == "failed" else "interrupted"
    state = State(known, manifest.get("digest"), manifest.get("error"))
    return ExistingRun(state, tuple(_differences(folder, wanted)))


def refuse_others(runs: Sequence[tuple[Path, str, ExistingRun]], kind: str) -> None:
    """Raise ConfigError if work would be lost that another configuration cost; a run that failed is no loss.

    Args:
        runs: the folder of each run, its title, and what was found.
        kind: what these runs are called, in the plural.
    """
    other = [run for run in runs if run[2].differences and run[2].state.status != "failed"]
    if not other:
        return
    folder, title, found = other[0]
    more = f"; and {len(found.differences) - _SHOWN} more keys" if len(found.differences) > _SHOWN else ""
    others = f" So are others, {len(other)} {kind} in all." if len(other) > 1 else ""
    raise ConfigError(
        f"{folder} is {found.state.status} with another configuration than {title}: "
        f"{'; '.join(found.differences[:_SHOWN])}{more}.{others} Run such {kind} anew with --force, or choose another "
        "folder with --out"
    )


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

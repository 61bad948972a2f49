"""The state of an existing run folder, and how its configuration differs from a wanted one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedsim.common.errors import ConfigError, Error
from fedsim.common.files import flat, from_toml, refuse_links
from fedsim.config.errors import validated
from fedsim.config.load import read_existing
from fedsim.config.memory import MemorySection
from fedsim.config.run import RunConfig
from fedsim.records.file_names import CONFIG, MANIFEST, WORLD
from fedsim.records.manifest import read_manifest

Status = Literal["pending", "running", "interrupted", "failed", "done"]
_SHOWN = 3
"""Most differing keys that an error names, and most runs that a warning names."""


@dataclass(frozen=True, slots=True)
class State:
    """The progress of a run."""

    status: Status = "pending"
    """`pending` until the run's configuration and world are written; `interrupted` also after a kill."""
    digest: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ExistingRun:
    """The run in a folder."""

    state: State
    differences: tuple[str, ...] = ()
    """The keys of the configuration that differ from the wanted one, with the values expected and found."""
    changed: tuple[str, ...] = ()
    """How versions, processor, and files of plug-ins and of the world, differ from those that started a run with the
    wanted configuration."""

    @property
    def unfinished(self) -> bool:
        """Whether the run has the wanted configuration and can be resumed."""
        return self.state.status in ("interrupted", "failed") and not self.differences


def run_in(folder: Path, wanted: RunConfig) -> ExistingRun:
    """Return the run in a folder, which may not exist. Raises FolderError for other folders and for links."""
    if not folder.exists():
        return ExistingRun(State())
    refuse_links(folder)
    manifest = read_manifest(folder)
    if not ((folder / CONFIG).is_file() and (folder / WORLD).is_file()):
        return ExistingRun(State())
    ended = manifest.get("status")
    status: Status = ended if ended in ("done", "failed") else "interrupted"
    state = State(status, manifest.get("digest"), manifest.get("error"))
    if differ := tuple(_differences(folder, manifest, wanted)):
        return ExistingRun(state, differ)
    # Not at the top: it imports torch, and a study without existing runs begins its processes before that.
    from fedsim.records.environment import changed, edited_worlds

    return ExistingRun(state, changed=(*changed(manifest, wanted.resolved()), *edited_worlds(manifest)))


def warnings_of_changes(runs: Iterable[tuple[str, ExistingRun]], kind: str) -> Iterator[str]:
    """Yield a line for each change since existing runs started, which are kept; one for runs with equal changes.

    Args:
        runs: for each run its title, and the run in its folder.
        kind: the plural noun for these runs in the line.
    """
    titles: dict[tuple[str, ...], list[str]] = {}
    for title, run in runs:
        if run.changed and run.state.status != "failed":  # a failed one begins again
            titles.setdefault(run.changed, []).append(title)
    for changes, those in titles.items():
        more = f"; and {len(those) - _SHOWN} more" if len(those) > _SHOWN else ""
        yield (
            f"changed since {kind} started: {'; '.join(changes)}; their results may differ from those of new {kind}: "
            f"{'; '.join(those[:_SHOWN])}{more}"
        )


def refuse_others(runs: Sequence[tuple[Path, str, ExistingRun]], kind: str) -> None:
    """Raise ConfigError if a run of another configuration would be overwritten, unless it failed.

    Args:
        runs: for each run its folder, its title, and the run in the folder.
        kind: the plural noun for these runs in the message.
    """
    others = [run for run in runs if run[2].differences and run[2].state.status != "failed"]
    if not others:
        return
    folder, title, existing = others[0]
    differences = existing.differences
    more = f"; and {len(differences) - _SHOWN} more keys" if len(differences) > _SHOWN else ""
    total = f" The same holds for {len(others)} {kind} in all." if len(others) > 1 else ""
    raise ConfigError(
        f"{folder} ({existing.state.status}) was run with a different configuration from {title}: "
        f"{'; '.join(differences[:_SHOWN])}{more}.{total} Overwrite such {kind} with --force, or choose another "
        "folder with --out"
    )


def _differences(folder: Path, manifest: Mapping[str, Any], wanted: RunConfig) -> Iterator[str]:
    asked = (manifest.get("memory") or {}).get("asked")
    try:
        existing = read_existing(folder / CONFIG)
        memory = None if asked is None else validated(MemorySection, asked, folder / MANIFEST)
    except Error as error:
        yield str(error)
        return
    yield from differences(existing, wanted, memory)


def with_asked_memory(
    raw: dict[str, Any], before: Mapping[str, Any], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """Return changed tables of a run with the `[memory]` that it asked for, if another rule or selector needs another.

    Its file has the storage that was chosen for the former rule and selector, without the budget.

    Args:
        raw: the tables of the run's file with changes.
        before: the tables of the file.
        manifest: the run's.
    """
    asked = (manifest.get("memory") or {}).get("asked")
    same = all(raw.get(table) == before.get(table) for table in ("algorithm", "selection"))
    if same or asked is None or raw.get("memory") != before.get("memory"):
        return raw
    return raw | {"memory": dict(asked)}


def differences(existing: RunConfig, wanted: RunConfig, asked: MemorySection | None) -> Iterator[str]:
    """Yield the keys that differ, except for those that the wanted configuration leaves to the machine.

    `asked` is the `[memory]` from which the existing run's was chosen; None: its manifest does not have it.
    """
    update: dict[str, Any] = {}
    if wanted.train.mode == "auto":
        update["train"] = wanted.train.model_copy(update={"mode": existing.train.mode})
    clients, memory = wanted.task.training_clients, wanted.memory
    if memory == asked or (asked is None and memory.limited):
        update["memory"] = existing.memory
    elif (plain := memory.plain(clients)) == existing.memory:
        update["memory"] = plain
    else:
        found = (asked or existing.memory).plain(clients)
        update["memory"], existing = plain, existing.model_copy(update={"memory": found})
    ours, theirs = wanted.model_copy(update=update).resolved(), existing.resolved()
    if ours == theirs:  # the usual case, much faster than the comparison by key
        return
    expected, actual = (dict(flat(from_toml(tomli_w.dumps(tables)))) for tables in (ours, theirs))
    for key in expected | actual:
        if expected.get(key) != actual.get(key):
            yield f"{key}: expected {_written(expected, key)}, found {_written(actual, key)}"


def _written(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "nothing"

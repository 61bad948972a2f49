"""Open a run folder: its manifest, its configuration, its tables and the world that the run saw."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa

from fedsim import analysis, plugins
from fedsim.analysis.opening.evaluation import Evaluation, evaluations_in
from fedsim.analysis.opening.tables import (
    check_rows,
    read_clients,
    read_label_counts,
    read_table,
    read_world,
    word_counts,
)
from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints
from fedsim.common.arrow_columns import array
from fedsim.common.errors import FolderError, RunError, TraceError, closest
from fedsim.common.files import from_json, from_toml
from fedsim.common.paths import as_path
from fedsim.common.terminal import visible
from fedsim.data.federated_data import UNSEEN
from fedsim.engine.record_words import PERSONAL
from fedsim.records.file_names import ARMS, CONFIG, MANIFEST, WORLD
from fedsim.records.manifest import existing, read_manifest
from fedsim.records.run_folder import recorded_names, status_of
from fedsim.records.schemas import OPTIONAL, TABLES
from fedsim.worlds.availability import UNKNOWNS, Unknown
from fedsim.worlds.trace import read_trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_SAMPLES = ("train", "valid", "test", UNSEEN)
SPLITS = (*_SAMPLES, *(samples + PERSONAL for samples in _SAMPLES))
UNSEEN_SPLITS = {UNSEEN: "unseen", UNSEEN + PERSONAL: "adapted"}
"""The splits of clients that never train, with the global model and after they adapted it, and their names in tables.
"""


@dataclass(frozen=True)
class Run:
    """One run folder. Tables are read when first used; those of a running run hold the rows written so far."""

    folder: Path
    manifest: dict[str, Any] = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    label: str
    """The name used in tables and legends."""

    @arguments.checked
    def unchecked(self, table: str) -> pa.Table:
        """Return `jobs`, `steps`, `evals`, `conflicts` or `audit` in its declared schema, without a check of its rows.

        `jobs`, `steps` and `evals` of a finished run must exist; any other table is empty where none was written.
        Raises FolderError that names the file.
        """
        if table not in TABLES:
            raise FolderError(f"{self.folder}: there is no table {table!r}{closest(table, TABLES)}")
        return read_table(self.folder, table, complete=self.done and table not in OPTIONAL)

    def _checked(self, name: str) -> pa.Table:
        task = self.config.get("task")
        clients = task.get("clients") if isinstance(task, dict) else None
        table = self.unchecked(name)
        return check_rows(self.folder, name, table, clients if isinstance(clients, int) else None)

    @cached_property
    def jobs(self) -> pa.Table:
        """One row per job (`fedsim.records.schemas.JOBS`)."""
        return self._checked("jobs")

    @cached_property
    def steps(self) -> pa.Table:
        """One row per server step (`fedsim.records.schemas.STEPS`)."""
        return self._checked("steps")

    @cached_property
    def evals(self) -> pa.Table:
        """One row per evaluation, split and client (`fedsim.records.schemas.EVALS`)."""
        return self._checked("evals")

    @cached_property
    def conflicts(self) -> pa.Table:
        """One row per step, block and row of the stack (`fedsim.records.schemas.CONFLICTS`); empty if not recorded."""
        return self._checked("conflicts")

    @cached_property
    def audit(self) -> pa.Table:
        """One row per audited step and client (`fedsim.records.schemas.AUDIT`); empty if not recorded."""
        return self._checked("audit")

    @cached_property
    def clients(self) -> pa.Table:
        """One row per client that may train: its number, its training samples and, if the task has one, its name.

        Raises FolderError if it is missing.
        """
        return read_clients(self.folder)

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """[K] the names of the clients that may train, in the order of their numbers; None if the folder has none."""
        return recorded_names(self.folder)

    @cached_property
    def label_counts(self) -> Ints | None:
        """[K, classes] training samples of each label of the clients that may train.

        None if the folder does not have them, as one of an earlier commit. Raises FolderError if they are damaged.
        """
        return read_label_counts(self.folder)

    @cached_property
    def world(self) -> pa.Table:
        """The trace that the run saw: client, start_us, end_us, kind, value. Raises FolderError if it is missing."""
        return read_world(self.folder)

    @property
    def data_digest(self) -> str | None:
        """Digest of the samples and of their division among clients; None if they are not known."""
        digest: str | None = self.manifest.get("data")
        return digest

    @cached_property
    def world_digest(self) -> str | None:
        """Digest of what the run could meet: the trace with its end, and `world.unknown` if a stretch of it is unknown.

        None if the trace of the folder is missing or cannot be read.
        """
        try:
            trace = read_trace(self.folder / WORLD)
        except (RunError, TraceError):
            return None
        return trace.digest() + (f" {self.unknown}" if len(trace.spans("unknown").client) else "")

    @property
    def unknown(self) -> Unknown:
        """The policy for unknown stretches of the trace; `offline` if the configuration names none."""
        section = self.config.get("world")
        unknown = section.get("unknown") if isinstance(section, dict) else None
        policy: Unknown = unknown if unknown in UNKNOWNS else "offline"
        return policy

    @property
    def done(self) -> bool:
        """Whether the run came to its regular end."""
        return self.status == "done"

    @property
    def status(self) -> str:
        """`done`, `running`, `interrupted` or `failed`; `killed` if its process was, `unknown` without a manifest's."""
        return status_of(self.folder, self.manifest)

    @property
    def virtual_us(self) -> int:
        """Virtual time reached, in microseconds: the manifest's, else the latest time in the tables."""
        if isinstance(recorded := self.manifest.get("virtual_us"), int):
            return recorded
        times = ((self.jobs, "end_us"), (self.steps, "time_us"), (self.evals, "time_us"))
        return max((int(array(table[name]).max()) for table, name in times if len(table)), default=0)

    @property
    def wall_s(self) -> float:
        """Seconds on the wall clock that the run took; NaN if the manifest does not have them."""
        recorded: Any = self.manifest.get("wall_s")
        total = recorded.get("total") if isinstance(recorded, dict) else recorded
        return float(total) if isinstance(total, (int, float)) else math.nan

    @property
    def training_clients(self) -> int | None:
        """Number of clients that may train, those of the world; None if the configuration has no number of clients."""
        task = self.config.get("task")
        clients = task.get("clients") if isinstance(task, dict) else None
        if not isinstance(clients, int) or clients < 1:
            return None
        return clients - len(self.manifest.get("unseen") or ())

    @property
    def adversaries(self) -> Ints:
        """The clients of all the run's adversaries, in ascending order; see `docs/adversaries.md`."""
        listed = self.manifest.get("adversaries") or []
        return np.unique(
            np.array([client for attack in listed for client in attack["clients"]], dtype=np.int64)
        )

    @arguments.checked
    def frame(self, table: str) -> pd.DataFrame:
        """Return `jobs`, `steps`, `evals`, `clients`, `conflicts`, `audit` or `world` as a pandas frame."""
        known = ("jobs", "steps", "evals", "clients", "conflicts", "audit", "world")
        if table not in known:
            raise FolderError(f"{self.folder}: there is no table {table!r}{closest(table, known)}")
        return cast("pd.DataFrame", getattr(self, table).to_pandas(ignore_metadata=True))

    def seed_of(self, part: Literal["data", "world", "train"]) -> int | None:
        """Return the seed of a part of the run's random draws (docs/config.md); None if the manifest has none."""
        seeds = self.config.get("seeds")
        seed: int | None = self.manifest.get("seed")
        return seeds.get(part, seed) if isinstance(seeds, dict) else seed

    @property
    def split(self) -> str:
        """The split that the configuration evaluates on; `test` if it names none."""
        section = self.config.get("evaluate")
        split = section.get("split") if isinstance(section, dict) else None
        return split if split in SPLITS else "test"

    @property
    def recorded_splits(self) -> tuple[str, ...]:
        """The splits with evaluations, `split` first."""
        recorded = word_counts(self.evals["split"])
        return tuple(sorted(recorded, key=lambda name: (name != self.split, name)))

    @arguments.checked
    def evaluations(self, split: str | None = None) -> list[Evaluation]:
        """Return the evaluations on a split (default: `split`) by virtual time; empty if there was none."""
        split = self.split if split is None else split
        if split not in SPLITS:
            raise FolderError(f"{self.folder}: there is no split {split!r}{closest(split, SPLITS)}")
        return list(evaluations_in(self.evals, split))

    @arguments.checked
    def final(self, split: str | None = None) -> Evaluation:
        """Return the last evaluation on a split (default: `split`). Raises FolderError if there was none."""
        evaluations = self.evaluations(split)
        if not evaluations:
            recorded = ", ".join(sorted(self.recorded_splits)) or "none at all"
            wanted = self.split if split is None else split
            raise FolderError(
                f"{self.folder}: no evaluation on split {wanted!r} was recorded; found {recorded}"
            )
        return evaluations[-1]

    @arguments.checked
    def history(
        self, split: str | None = None, metrics: Sequence[str] | None = None, *, honest: bool = False
    ) -> pd.DataFrame:
        """Return one row per evaluation: step, time_us, clients, loss (mean over clients), each metric.

        With `honest`, adversaries are left out.
        """
        import pandas as pd  # imported here: opening a run does not need it

        names = list(plugins.names("metric") if metrics is None else metrics)
        rows = [
            {
                "step": e.step,
                "time_us": e.time_us,
                "clients": len(e.client),
                "loss": _mean(e.loss),
                **e.summary(names),
            }
            for e in (each.without(self.adversaries) if honest else each for each in self.evaluations(split))
        ]
        return pd.DataFrame(rows, columns=["step", "time_us", "clients", "loss", *names])

    @arguments.checked
    def plot(self, name: str) -> Figure:
        """Draw the picture `name` of the run's report, such as "participation" or "accuracy-over-time".

        Raises ConfigError with the closest name for a picture that the report does not have, and RunError or TraceError
        if the run's files do not suffice for it.
        """
        return analysis.plot([self], name)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how the run ended, and its accuracy over time or its participation."""
        return analysis.run_html(self)


def shared_us(first: Run, second: Run, split: str | None = None) -> int:
    """Return the virtual time of the last evaluation that two runs share as one past, -1 if they share none.

    A fork shares it with its parent, with other forks of that, and with their forks.
    """
    parents = [run.config.get("parent") or {} for run in (first, second)]
    forked_us = [parent["forked_us"] for parent in parents if parent.get("forked_us") is not None]
    shared = -1
    if forked_us:
        for one, other in zip(first.evaluations(split), second.evaluations(split), strict=False):
            if one.time_us > max(forked_us) or not one.equals(other):
                break
            shared = one.time_us
    return shared


def open_run(path: str | Path) -> Run:
    """Open the folder of one run. Raises FolderError that names the folder or file and what is wrong with it."""
    folder = existing(as_path(path, "path"))
    manifest = read_manifest(folder)
    label = manifest.get("label") or manifest.get("name") or folder.resolve().name
    return Run(folder, manifest, _config(folder / CONFIG), visible(label))


def open_all(paths: str | Path | Iterable[str | Path]) -> list[Run]:
    """Open several runs; a folder of several runs stands for all of them.

    The runs of a folder come in the order of its `arms.json`, or by name if it has none. Runs with equal labels get
    the part of the path in which they differ, or a number, behind their label.
    """
    listed = paths if isinstance(paths, Iterable) and not isinstance(paths, (str, bytes)) else [paths]
    folders = [folder for path in listed for folder in _expand(existing(as_path(path, "path")))]
    return with_distinct_labels([open_run(folder) for folder in folders])


def _expand(folder: Path) -> list[Path]:
    return [folder] if (folder / MANIFEST).is_file() else _arms(folder) or [folder]


def _arms(folder: Path) -> list[Path]:
    """Return the run folders within a folder."""
    listed = folder / ARMS
    if not listed.is_file():
        return sorted(manifest.parent for manifest in folder.glob(f"*/{MANIFEST}"))
    content = _json(listed)
    names = content.get("arms") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(_is_name(name) for name in names):
        raise FolderError(f'{listed}: expected {{"arms": [names of folders]}}, found {names!r}')
    present = [folder / name for name in names if (folder / name).is_dir()]
    missing = [name for name in names if folder / name not in present]
    if missing:
        others = ", ".join(map(str, present)) or "none"
        raise FolderError(
            f"{listed} lists {missing[0]!r}, but its folder is missing; those present: {others}"
        )
    return present


def _is_name(name: Any) -> bool:
    """Return whether a value is the name of a folder, not a path that leads elsewhere."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def with_distinct_labels(runs: Sequence[Run]) -> list[Run]:
    """Append to repeated labels the part of the path that differs, then a number to those still repeated."""
    places = [Path(os.path.abspath(run.folder)) for run in runs]
    alike: dict[str, list[Path]] = {}
    for run, place in zip(runs, places, strict=True):
        alike.setdefault(run.label, []).append(place.parent)
    shared = {label: os.path.commonpath(folders) for label, folders in alike.items() if len(folders) > 1}
    named = [
        f"{run.label} ({place.relative_to(shared[run.label])})" if run.label in shared else run.label
        for run, place in zip(runs, places, strict=True)
    ]
    unique = [f"{n} #{named[:i].count(n) + 1}" if named.count(n) > 1 else n for i, n in enumerate(named)]
    return [replace(run, label=label) for run, label in zip(runs, unique, strict=True)]


def _json(path: Path) -> Any:
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{path}: cannot be read: {error}") from error


def _config(path: Path) -> dict[str, Any]:
    try:
        return from_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{path.parent} is not a complete run folder: {path.name} is missing") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path}: cannot be read: {error}") from error


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")

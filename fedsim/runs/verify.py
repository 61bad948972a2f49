"""Verifies a run: runs it again with other workers and finds the first row that differs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedsim.common import arguments
from fedsim.common.errors import CheckpointError, FolderError
from fedsim.common.files import read_parquet, write_json
from fedsim.common.paths import as_path
from fedsim.common.stopwatch import Stopwatch
from fedsim.config.given import Given, GivenTask, ModelFactory
from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.records import checkpoint
from fedsim.records.file_names import CONFIG, MANIFEST, MODEL, PERSONAL, WORLD
from fedsim.records.manifest import read_manifest
from fedsim.records.schemas import TABLES
from fedsim.records.truncation import cut_tables
from fedsim.runs.fork import At
from fedsim.runs.fork.branch import Branch
from fedsim.runs.inputs import InputCache
from fedsim.runs.resources import Device, Workers, resources
from fedsim.runs.result import Result
from fedsim.runs.session import Session
from fedsim.runs.spec import RunSpec
from fedsim.worlds.trace import Trace, read_trace

_ALWAYS = ("jobs.parquet", "steps.parquet", "evals.parquet")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one table, of the world, of the model or of the clients' personal models."""

    table: str
    rows: int
    """Number of rows compared."""
    difference: str
    """The first row that differs, with both values; empty if none does."""


@arguments.checked
def verify(
    folder: Path | str,
    *,
    steps: tuple[int, int] | None = None,
    task: GivenTask = None,
    model: ModelFactory | None = None,
    workers: Workers | None = None,
    device: Device = "auto",
) -> list[Verdict]:
    """Run a finished run again in its recorded world, in a temporary folder, and compare its tables and its models.

    If a scenario wrote the world of a run that is no replay, it writes it again, and the two are compared.

    Args:
        steps: (A, B) repeats only server steps A to B - 1, from the last checkpoint before them.
        task, model: the same that the run was given, if `simulate` was given any; others are refused.
        workers: by default different from the run's: 0 for a run with workers, 2 for a run without.

    Raises FolderError for a run that cannot be repeated, CheckpointError for steps of a fork without one before them.
    """
    folder, given = as_path(folder, "folder"), Given.of(task, model)
    manifest = read_manifest(folder)
    _check_repeatable(folder, manifest, steps)
    if workers is None:
        workers = 0 if manifest.get("workers") else 2
    with given.of_run(folder, folder / CONFIG):
        return _verified(folder, steps, workers, device)


def _verified(folder: Path, steps: tuple[int, int] | None, workers: Workers, device: Device) -> list[Verdict]:
    config = load_config(folder / CONFIG)[0]
    forked = config.is_fork
    if forked and steps is not None and not _before(folder, steps[0]):
        raise CheckpointError(
            f"{folder}: a fork needs a checkpoint to continue from, and none is left from before step {steps[0]}: "
            'verify all of it, or keep checkpoints with --set checkpoint.keep="all"'
        )
    with tempfile.TemporaryDirectory(prefix="fedsim-verify-") as place:
        again = Path(place) / "run"
        if forked and steps is None:
            again = _forked(config, Path(place), workers, device)
            return list(_compared(folder, again, None))
        recorded = read_trace(folder / WORLD)
        cache = InputCache.of(config, recorded)
        _run(folder, again, config, steps, workers, device, cache)
        verdicts = list(_compared(folder, again, None if steps is None else steps[1]))
        if config.world.scenario is not None and config.parent is None and steps is None:
            verdicts.append(_world(recorded, cache.world_again(config)))
        return verdicts


def _check_repeatable(folder: Path, manifest: Mapping[str, Any], steps: tuple[int, int] | None) -> None:
    """Raise FolderError for a run that is not done, cannot be repeated, or lacks files or steps."""
    if manifest.get("status") != "done":
        raise FolderError(
            f"{folder}: expected a run that is done, found one that is {manifest.get('status')}"
        )
    if steps is not None:
        _check_steps(steps, manifest.get("steps"), folder)
    elif manifest.get("ended_by") == "wall":
        raise FolderError(
            f"{folder}: it ended by wall time, which does not repeat: verify some of its --steps"
        )
    wanted = _ALWAYS if steps is not None else (*_ALWAYS, MODEL)
    if missing := [name for name in wanted if not (folder / name).is_file()]:
        raise FolderError(
            f"{folder}: cannot be verified without {', '.join(missing)}, which every finished run has"
        )


def _check_steps(steps: tuple[int, int], most: int | None, folder: Path) -> None:
    """Raise FolderError for steps that the run never made, without running it again."""
    first, last = steps
    if not 0 <= first < last or (most is not None and last > most):
        valid = f"within 0:{most}" if most is not None else "A:B with 0 <= A < B"
        raise FolderError(f"{folder}: steps: expected some of the run's, {valid}, found {first}:{last}")


def _forked(config: RunConfig, place: Path, workers: Workers, device: Device) -> Path:
    parent = config.parent
    assert parent is not None
    at = At(time_us=parent.forked_us) if parent.forked_at == "time" else At(step=parent.forked_step)
    branch = Branch.of(Path(parent.run), at, tuple(parent.changes), tuple(parent.kept_online or ()), "run")
    cache = InputCache.of(branch.config, branch.trace)
    with resources(branch.config, cache, workers=workers, device=device) as rooms:
        session = branch.forked(place / "run", rooms, force=False)
        session.spec = _without_wall(session.spec)
        _require_done(session.run(lambda progress: None))
    return place / "run"


def _without_wall(spec: RunSpec) -> RunSpec:
    """Return the run without a limit of wall time, which did not end it."""
    stop = replace(spec.plan.stop, wall_s=None)
    return replace(spec, plan=replace(spec.plan, stop=stop))


def _require_done(result: Result) -> None:
    """Raise KeyboardInterrupt if a signal stopped a run, which says nothing on whether it repeats."""
    if result.status != "done":
        raise KeyboardInterrupt


def _run(
    folder: Path,
    again: Path,
    config: RunConfig,
    steps: tuple[int, int] | None,
    workers: Workers,
    device: Device,
    cache: InputCache,
) -> None:
    with resources(config, cache, workers=workers, device=device) as place:
        spec = _without_wall(place.prepare(config))
        spec.check_data(read_manifest(folder), folder)
        if steps is None:
            _require_done(Session.create(spec, again, place.pool, Stopwatch()).run(lambda progress: None))
            return
        earlier = _before(folder, steps[0])
        saved = checkpoint.read(earlier[-1].path) if earlier else None
        again.mkdir()
        (again / CONFIG).write_bytes((folder / CONFIG).read_bytes())
        write_json(again / MANIFEST, {"status": "running"})
        if saved is not None:
            cut_tables(again, saved["records"]["rows"], source=folder)
        session = Session.open(spec, again, place.pool, Stopwatch(), saved)
        session.until(At(step=steps[1]).reached)
        session.recorder.close(None)


def _before(folder: Path, step: int) -> list[checkpoint.Checkpoint]:
    """Return the checkpoints at or before a step, the oldest first."""
    return [saved for saved in checkpoint.checkpoints(folder) if saved.step <= step]


def _compared(folder: Path, again: Path, until: int | None) -> Iterator[Verdict]:
    for name in TABLES:
        if (again / f"{name}.parquet").exists():
            a = read_parquet(folder / f"{name}.parquet", FolderError)
            b = read_parquet(again / f"{name}.parquet", FolderError)
            yield Verdict(name, min(len(a), len(b)), _difference(a, b, part=until is not None))
    for name in () if until is not None else (MODEL, PERSONAL):
        sides = [path for path in (folder / name, again / name) if path.is_file()]
        if sides:
            same = len(sides) == 2 and sides[0].read_bytes() == sides[1].read_bytes()
            yield Verdict(Path(name).stem, 1, "" if same else "its parameters differ")


def _world(recorded: Trace, written: Trace) -> Verdict:
    """Return the comparison of a recorded world with that which its scenario writes now."""
    difference = _difference(recorded.table, written.table, part=False)
    if not difference and recorded.digest() != written.digest():
        difference = f"expected the digest {recorded.digest()[:16]}, found {written.digest()[:16]}"
    return Verdict("world", min(len(recorded.table), len(written.table)), difference)


def _difference(a: pa.Table, b: pa.Table, *, part: bool) -> str:
    """Return the first difference of two tables as text; `part`: whether the second may end earlier."""
    rows = min(len(a), len(b))
    first, column = rows, ""
    for name in a.column_names:
        differs = np.flatnonzero(_differ(a[name].slice(0, rows), b[name].slice(0, rows)))
        if len(differs) and differs[0] < first:
            first, column = int(differs[0]), name
    if column:
        key = ", ".join(f"{name} {a[name][first].as_py()}" for name in a.column_names[:2])
        expected, found = a[column][first].as_py(), b[column][first].as_py()
        return f"row {first} ({key}): {column}: expected {expected!r}, found {found!r}"
    if len(a) != len(b) and not (part and len(b) < len(a)):
        return f"expected {len(a)} rows, found {len(b)}"
    return ""


def _differ(a: pa.ChunkedArray, b: pa.ChunkedArray) -> np.ndarray:
    """Return [n] which entries differ; two NaN are equal."""
    x, y = (column.to_numpy(zero_copy_only=False) for column in (a, b))
    if x.dtype.kind == "f":
        return np.asarray((x != y) & ~(np.isnan(x) & np.isnan(y)))
    return np.asarray(x != y)

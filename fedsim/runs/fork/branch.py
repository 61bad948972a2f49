"""Repeats a parent up to an instant, and continues it as a fork with another rule, selector, pacing or world."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.common import arguments
from fedsim.common.errors import CheckpointError, ConfigError
from fedsim.common.paths import as_path
from fedsim.common.stopwatch import Stopwatch
from fedsim.common.units import show_us
from fedsim.config.adversary import AdversarySection, listed
from fedsim.config.errors import assignments, read_toml
from fedsim.config.given import Given, GivenTask, ModelFactory
from fedsim.config.load import Sets, changed, load_config, parse, refuse_own
from fedsim.config.records import ParentSection
from fedsim.config.run import RunConfig
from fedsim.records import checkpoint
from fedsim.records.checkpoint import State
from fedsim.records.existing_run import with_asked_memory
from fedsim.records.file_names import CONFIG, WORLD
from fedsim.records.manifest import read_manifest
from fedsim.records.run_folder import describe, make_folder, refuse_parent
from fedsim.records.truncation import cut_tables
from fedsim.runs.fork.at import At
from fedsim.runs.fork.changed_state import changed_state
from fedsim.runs.inputs import InputCache
from fedsim.runs.progress import Watch, watched
from fedsim.runs.resources import Device, Resources, Workers, resources
from fedsim.runs.result import Result
from fedsim.runs.session import Session
from fedsim.runs.simulate import tell_of_world
from fedsim.runs.spec import RunSpec
from fedsim.worlds.trace import Trace, read_trace
from fedsim.worlds.transforms import ending, kept_online

_FIXED = ("seed", "seeds", "task", "partition", "model", "cost")
"""Tables of the configuration that no fork can change: they determined the parent's past or its model."""

_TIMES_LONGER = 10
"""Limit of a fork's virtual time, in multiples of its parent's, if it keeps clients online in a repeating world."""


@arguments.checked
def fork(
    parent: Path | str,
    at: At | int | str,
    sets: Sets = (),
    *,
    keep_online: Sequence[int] = (),
    name: str | None = None,
    task: GivenTask = None,
    model: ModelFactory | None = None,
    out: Path | str = "runs",
    workers: Workers = "auto",
    device: Device = "auto",
    force: bool = False,
    watch: Watch = lambda progress: None,
    progress: bool | None = None,
) -> Result:
    """Repeat the run in `parent` until `at`, and continue with the changes `sets`; writes `<out>/<name>/`.

    The past comes from the parent's tables and its last checkpoint before `at`; without one, it is run again. Without
    changes the digest is the parent's. A new rule starts with the model, and with the history if both rules have one.

    Args:
        at: the server step, a virtual time such as "6h", or an At.
        sets: changes of the configuration, as for `load_config`; seed, data, model and costs cannot change.
        keep_online: clients that stay online after `at`, without faults.
        name: of the new run; by default the parent's with `-fork`.

    The rest is as for `simulate`; `task` and `model` must be the parent's. Raises ConfigError, FolderError or
    CheckpointError for bad input.
    """
    parent, out, at = as_path(parent, "parent"), as_path(out, "out"), At.of(at)
    given = Given.of(task, model)
    read_manifest(parent)  # raises for other folders
    with given.of_run(parent, parent / CONFIG), watched(watch, progress) as watcher:
        branch = Branch.of(parent, at, tuple(assignments(sets)), tuple(keep_online), name)
        refuse_parent(folder := out / branch.child.name, parent)
        cache = InputCache.of(branch.config, branch.trace)
        with resources(branch.config, cache, workers=workers, device=device) as place:
            return branch.forked(folder, place, force).run(watcher)


@dataclass(frozen=True, slots=True)
class Branch:
    """A parent and the changes of its fork."""

    parent: Path
    at: At
    sets: tuple[str, ...]
    keep_online: tuple[int, ...]
    manifest: Mapping[str, Any]
    config: RunConfig
    """The parent's."""
    trace: Trace
    """The parent's."""
    before: dict[str, Any]
    """The parent's configuration as its file has it."""
    raw: dict[str, Any]
    """The same with the changes."""
    child: RunConfig

    @staticmethod
    def of(
        parent: Path, at: At, sets: tuple[str, ...], keep_online: tuple[int, ...], name: str | None
    ) -> Branch:
        """Read the parent and check the changes. Raises ConfigError."""
        manifest = read_manifest(parent)
        config = load_config(parent / CONFIG)[0]
        before = read_toml(parent / CONFIG)
        raw = with_asked_memory(changed(deepcopy(before), sets), before, manifest)
        refuse_own(before, raw)
        raw["name"] = name or f"{config.label}-fork"
        child = parse(raw, "fork", config.label, before)[0]
        _check_tables(config, child)
        _check_rule(config, child)
        _check_at(at, manifest, parent)
        _check_stop(child, at.step or 0, at.time_us or 0)
        trace = read_trace(parent / WORLD)
        return Branch(parent, at, sets, keep_online, manifest, config, trace, before, raw, child)

    def forked(self, folder: Path, place: Resources, force: bool) -> Session:
        """Repeat the parent in `folder` until the fork, and return the session of the child."""
        spec = place.prepare(self.config)
        spec.check_data(self.manifest, self.parent)
        self.check(place)
        saved = _saved(self.parent, self.at, self.config.parent)
        _begin_folder(folder, self, saved, force)
        state = Session.open(spec, folder, place.pool, Stopwatch(), saved).until(self.at.reached)
        return self.leave(state, spec, folder, place)

    def check(self, place: Resources) -> None:
        """Raise ConfigError for changes that are wrong at any time, before anything is run."""
        if self.keep_online:
            place = place.in_world(self.child, kept_online(self.trace, self.keep_online, 0))
        place.prepare(self.child)
        if self.at.time_us is not None:
            parse(self.raw | self._attacks(self.at.time_us), "fork", self.config.label, self.before)

    def leave(self, state: State, spec: RunSpec, folder: Path, place: Resources) -> Session:
        """Write the fork that leaves its parent, built from `spec`, in `state`; returns the fork's session."""
        changed_spec = self.spec(state, place)
        begin = changed_state(state, spec, changed_spec, self.keep_online, self.instant_us(state))
        _write(folder, changed_spec, begin)
        session = Session.open(changed_spec, folder, place.pool, Stopwatch(), begin)
        session.resumed = []
        return session

    def instant_us(self, state: State) -> int:
        """Return the virtual time from which the changes hold, which may lie between two events."""
        return int(state["run_state"]["now_us"]) if self.at.time_us is None else self.at.time_us

    def spec(self, state: State, place: Resources) -> RunSpec:
        """Return the parts of the fork that leaves its parent in `state`."""
        run_state, forked_us = state["run_state"], self.instant_us(state)
        _check_stop(self.child, run_state["step"], forked_us)
        origin = {
            "run": str(self.parent),
            "digest": self.manifest.get("digest"),
            "changes": list(self.sets),
            "forked_step": run_state["step"],
            "forked_us": forked_us,
            "forked_at": "step" if self.at.time_us is None else "time",
            "kept_online": sorted(self.keep_online) or None,
        }
        raw = self.raw | {"parent": origin} | self._attacks(forked_us)
        child = parse(raw, "fork", self.config.label, self.before)[0]
        if self.keep_online:
            kept = _kept(self.trace, self.keep_online, forked_us, child.stop.time, self.manifest)
            place = place.in_world(child, kept)
        spec = place.prepare(child)
        tell_of_world(spec)
        return spec

    def _attacks(self, forked_us: int) -> dict[str, Any]:
        """Return `[adversary]` if it changed: attacks that the parent lacks begin with the jobs after the fork."""
        if self.child.adversary == self.config.adversary:
            return {}
        known = [_attack(table) for table in self.config.adversary]
        tables = zip(listed(self.raw["adversary"]), self.child.adversary, strict=True)
        return {
            "adversary": [
                table
                if _attack(attack) in known
                else table | {"after": f"{max(attack.after, forked_us + 1)}us"}
                for table, attack in tables
            ]
        }


def _attack(table: AdversarySection) -> tuple[object, ...]:
    """Return what an attack does and whose it is, without when."""
    return table.name, table.options, table.clients, table.share


def _begin_folder(folder: Path, branch: Branch, saved: State | None, force: bool) -> None:
    """Make the fork's folder, with the parent's configuration and its tables up to a checkpoint."""
    make_folder(folder, "child", force=force, manifest={"name": branch.child.name, "status": "running"})
    shutil.copy(branch.parent / CONFIG, folder / CONFIG)
    if saved is not None:
        cut_tables(folder, saved["records"]["rows"], source=branch.parent)


def _write(folder: Path, spec: RunSpec, begin: State) -> None:
    """Write the fork's configuration, world and first checkpoint in place of its parent's."""
    run_state = begin["run_state"]
    describe(folder, spec.config, spec.trace, spec.plan.facts.label_counts, spec.data.names)
    shutil.rmtree(folder / checkpoint.FOLDER, ignore_errors=True)
    checkpoint.write(folder, begin, step=run_state["step"], jobs=run_state["next_job"], keep="all")


def _check_tables(before: RunConfig, after: RunConfig) -> None:
    """Refuse changes of tables that no fork can change."""
    for table in (*_FIXED, "world"):
        if getattr(before, table) != getattr(after, table):
            raise ConfigError(
                f"fork: {table}: it cannot change in the middle of a run"
                + ("; use --keep-online to keep clients online" if table == "world" else "")
            )


def _check_rule(before: RunConfig, after: RunConfig) -> None:
    """Refuse a new rule that starts clients from the models that they received last: the parent did not keep these."""
    if after.algorithm != before.algorithm and after.algorithm.rule(lr=0.1).start == "last":
        raise ConfigError(
            f"fork: algorithm: rule {after.algorithm.name!r} starts clients from the models that they received last, "
            "which this run did not keep: expected the parent's rule and options; start a new run instead"
        )


def _check_at(at: At, manifest: Mapping[str, Any], parent: Path) -> None:
    """Refuse a point that a finished parent never reached, without running it again."""
    steps, virtual_us = manifest.get("steps"), manifest.get("virtual_us")
    if manifest.get("status") != "done" or steps is None or virtual_us is None:
        return
    if at.time_us is not None and at.time_us >= virtual_us:
        raise ConfigError(f"at: {parent} ended at {show_us(virtual_us)}, found {show_us(at.time_us)}")
    if at.time_us is None and (at.step or 0) >= steps:
        raise ConfigError(f"at: {parent} ended after {steps} steps, found step {at.step}")


def _check_stop(child: RunConfig, step: int, now_us: int) -> None:
    """Refuse a fork that begins at a step or a time after its own end."""
    steps, time_us = child.stop.steps, child.stop.time
    if steps is not None and steps < step:
        raise ConfigError(f"fork: stop.steps: expected at least {step}, where it begins, found {steps}")
    if time_us is not None and time_us < now_us:
        raise ConfigError(
            f"fork: stop.time: expected at least {show_us(now_us)}, when it begins, found {show_us(time_us)}"
        )


def _kept(
    trace: Trace, clients: Sequence[int], now_us: int, stop_us: int | None, manifest: Mapping[str, Any]
) -> Trace:
    """Return the world in which `clients` stay online from `now_us` on.

    A repeating world is written out up to `stop_us`. Without `stop_us`, it is written out to a multiple of the parent's
    virtual time, and a run beyond that ends with an error.
    """
    late_us = _TIMES_LONGER * max(now_us, manifest.get("virtual_us") or 0)
    kept = kept_online(trace, clients, now_us, late_us if stop_us is None else stop_us + 1)
    return ending(kept, "error") if trace.after_end == "repeat" and stop_us is None else kept


def _saved(parent: Path, at: At, origin: ParentSection | None) -> State | None:
    """Return the last checkpoint that is not after the fork; None if the parent has to be run from the start.

    A parent that is a fork itself cannot be run from the start: it begins with its first checkpoint. `origin` records
    when it left its own parent. Raises ConfigError if such a parent has no checkpoint from before the fork.
    """
    for candidate in reversed(checkpoint.checkpoints(parent)):
        if at.step is not None and candidate.step > at.step:
            continue
        try:
            state = checkpoint.read(candidate.path)
        except CheckpointError:  # an earlier one, or the start, gives the same fork
            continue
        if at.after(state) or (origin is not None and at.begins(state, origin)):
            return state
    if origin is not None and origin.forked_step is not None:
        raise ConfigError(
            f"{parent}: it is a fork itself, and no checkpoint is left from before that: fork {origin.run} instead, or "
            'keep checkpoints with --set checkpoint.keep="all"'
        )
    return None

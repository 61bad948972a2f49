"""Invariants of any run, checked from the files of its folder alone; `docs/reliability.md` lists them.

`check` reads configuration, world and tables, and checks each invariant without training. It reports an invariant that
the folder cannot answer, because the run did not end or a file is missing, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from fedsim.common import arguments
from fedsim.common.errors import FolderError
from fedsim.common.paths import as_path
from fedsim.invariants import bounds, clients, evals, files, jobs, promises, rows, steps
from fedsim.invariants.evidence import Evidence, Unchecked
from fedsim.invariants.finding import Invariant, Violation
from fedsim.records.manifest import existing
from fedsim.records.run_folder import is_running

__all__ = ["Invariant", "Verdict", "Violation", "check", "invariants"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `check`."""

    violations: tuple[Violation, ...]
    checked: tuple[str, ...]
    """Names of the checked invariants."""
    unchecked: Mapping[str, str]
    """Reasons by name of the invariants that could not be checked."""


def invariants() -> tuple[Invariant, ...]:
    """Return all invariants in the order in which they are checked: first those that others depend on."""
    modules = (files, jobs, clients, bounds, steps, rows, promises, evals)
    listed = chain.from_iterable(module.INVARIANTS for module in modules)
    return tuple(sorted(listed, key=lambda each: not each.basic))


@arguments.checked
def check(folder: Path | str) -> Verdict:
    """Check the invariants of the run in `folder`; none of its files changes.

    If a basic invariant does not hold (values out of range, rows missing), the others are not checked. Raises
    FolderError or ConfigError if the folder is no run's, cannot be read, or belongs to a run that has not ended.
    """
    folder = existing(as_path(folder, "folder"))
    if is_running(folder):
        raise FolderError(f"{folder}: expected a run that has ended, found one that is still running")
    evidence = Evidence(folder)
    violations: list[Violation] = []
    checked: list[str] = []
    unchecked: dict[str, str] = {}
    for invariant in invariants():
        if not invariant.basic and any(v.invariant in _BASIC for v in violations):
            unchecked[invariant.name] = "values are out of range or rows are missing: see above"
            continue
        try:
            flaws = [replace(flaw, invariant=invariant.name) for flaw in invariant.look(evidence)]
        except Unchecked as reason:
            unchecked[invariant.name] = str(reason)
            continue
        if any(evidence.inherited(flaw.table, flaw.row) for flaw in flaws):
            unchecked[invariant.name] = "the run is a fork, and its parent may have had another configuration"
            continue
        checked.append(invariant.name)
        violations.extend(flaws)
    return Verdict(tuple(violations), tuple(checked), unchecked)


_BASIC = frozenset(invariant.name for invariant in invariants() if invariant.basic)

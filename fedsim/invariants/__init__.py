"""Invariants of any run, checked from the files of its folder alone; `docs/invariants.md` lists them.

`check` reads configuration, world and tables, and checks each invariant without training. It reports an invariant that
the folder cannot answer, because the run did not end or a file is missing, with the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedsim.common import arguments
from fedsim.common.errors import FolderError
from fedsim.common.paths import as_path
from fedsim.invariants import audits, bounds, clients, evals, files, jobs, promises, rows, steps
from fedsim.invariants.evidence import Evidence, Unchecked
from fedsim.invariants.finding import Invariant, Violation
from fedsim.records.manifest import existing
from fedsim.records.run_folder import is_running

__all__ = ["Invariant", "Verdict", "Violation", "check", "invariants"]

_BASIC = (
    jobs.values_of_jobs_are_valid,
    jobs.each_job_has_exactly_one_row,
    steps.values_of_steps_are_valid,
    rows.values_of_conflict_rows_are_valid,
    evals.values_of_evaluations_are_valid,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `check`."""

    violations: tuple[Violation, ...]
    checked: tuple[str, ...]
    """Names of the checked invariants."""
    unchecked: Mapping[str, str]
    """Reasons by name of the invariants that could not be checked."""


def invariants() -> tuple[Invariant, ...]:
    """Return all invariants in the order in which they are checked: first those that others depend on.

    Each public generator function of the modules here is one, and the first line of its docstring describes it.
    """
    listed = [
        Invariant(name.replace("_", " "), str(look.__doc__).splitlines()[0].rstrip("."), look, look in _BASIC)
        for module in (files, jobs, clients, bounds, steps, rows, promises, evals, audits)
        for name, look in vars(module).items()
        if inspect.isgeneratorfunction(look) and look.__module__ == module.__name__ and name[0] != "_"
    ]
    return tuple(sorted(listed, key=lambda invariant: not invariant.basic))


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
    unchecked, broken = dict[str, str](), False
    for invariant in invariants():
        try:
            if broken and not invariant.basic:
                raise Unchecked("values are out of range or rows are missing: see above")
            flaws = _flaws(invariant, evidence)
        except Unchecked as reason:
            unchecked[invariant.name] = str(reason)
        else:
            checked.append(invariant.name)
            violations += flaws
            broken |= invariant.basic and bool(flaws)
    return Verdict(tuple(violations), tuple(checked), unchecked)


def _flaws(invariant: Invariant, evidence: Evidence) -> list[Violation]:
    """Return the violations of one invariant. Raises Unchecked if they may be those of a fork's parent."""
    flaws = [replace(flaw, invariant=invariant.name) for flaw in invariant.look(evidence)]
    if any(evidence.inherited(flaw.table, flaw.row) for flaw in flaws):
        raise Unchecked("the run is a fork, and its parent may have had another configuration")
    return flaws

"""`fedsim check`: check the files of a finished run, without repeating it."""

from __future__ import annotations

from fedsim.cli.options import RunFolder
from fedsim.common.errors import RunError
from fedsim.common.terminal import say


def check(run: RunFolder) -> None:
    """Check the invariants of a run's files, without training. Exit code 1 if any is violated."""
    from fedsim.invariants import check as check_invariants

    result = check_invariants(run)
    for violation in result.violations:
        say(str(violation))
    for invariant, reason in result.unchecked.items():
        say(f"not checked: {invariant}: {reason}")
    if result.violations:
        raise RunError(f"{run}: {len(result.violations)} of its rows or files break an invariant")
    say(f"{run}: all {len(result.checked)} invariants that could be checked hold")

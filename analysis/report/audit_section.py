"""The section of a report about an oracle audit: remembered updates by age, and changes of clients' losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from fedsim.analysis.opening.run import Run
from fedsim.analysis.plots.audit_by_age import audit_by_age
from fedsim.analysis.plots.audit_losses import audit_losses
from fedsim.analysis.report.document import Block, Column, Figure, Gallery, Heading, Text, frame_table
from fedsim.analysis.statistics.audit import audit_frame, audited, by_age, by_run, realised
from fedsim.analysis.tables.audit_tables import advice, interval_note

_SHARES = ("cosine", "norm_ratio", "reported", "real", "precision", "recall", "agreement")
_UNITS = {"change": 4, "change_low": 4, "change_high": 4, "worse": 2, "against": 2}


def audit_blocks(runs: Sequence[Run], prefix: str, title: str) -> Iterator[Block]:
    """Yield the audits of runs that differ at most in their seed; nothing if none of them was audited.

    `prefix` goes before the names of figures and tables; `title` is the heading.
    """
    audited_runs = audited(runs)
    if not audited_runs:
        return
    audit = audit_frame(audited_runs)
    ages, changes = by_age(audit), realised(audit)
    yield Heading(title, 3)
    yield Text(advice(ages))
    yield Text(interval_note(len(audited_runs)), "note")
    by_name = (("audit-by-age", partial(audit_by_age, ages)), ("audit-losses", partial(audit_losses, audit)))
    yield Gallery(tuple(Figure(f"{prefix}{name}", draw) for name, draw in by_name))
    digits = {f"{name}{end}": 3 for name in _SHARES for end in ("", "_low", "_high")}
    caption = (
        "Remembered updates against what clients would send now, by age in server steps, with 95 % intervals"
    )
    yield frame_table(f"{prefix}audit-ages", caption, ages, _columns(digits))
    if len(audited_runs) > 1 and len(each := by_run(audit)):
        caption = "Remembered updates of absent clients, run by run, with 95 % intervals over the clients of each run"
        yield frame_table(f"{prefix}audit-runs", caption, each, _columns(digits))
    caption = "What steps did to the training loss of groups of clients: change in nat, and shares of clients"
    yield frame_table(f"{prefix}audit-changes", caption, changes, _columns(_UNITS))


def _columns(digits: dict[str, int]) -> dict[str, Column]:
    return {name: Column(name.replace("_", " "), each) for name, each in digits.items()}

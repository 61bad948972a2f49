"""Audits of remembered updates as tables for the terminal, one group of runs after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.table import Table

from fedsim.analysis.opening.run import Run, open_all
from fedsim.analysis.opening.study_file import is_study, open_study
from fedsim.analysis.statistics.audit import audit_frame, audited, by_age, by_run, realised, useful_age
from fedsim.analysis.statistics.bootstrap import FEWEST
from fedsim.analysis.tables.closing import fixed
from fedsim.common import arguments
from fedsim.common.errors import FolderError
from fedsim.common.terminal import ruled_table, shown

AGE_HEADINGS = ("age", "n", "cosine", "norm", "real\n%", "prec.\n%", "recall\n%", "balanced\nacc. %")
LABEL_HEADINGS = ("same\nlabels %", "gain\npoints")
CHANGE_HEADINGS = ("clients", "n", "change of loss\nnat", "worse\n%", "against\n%")


@arguments.checked
def audit_groups(paths: Sequence[str | Path]) -> dict[str, list[Run]]:
    """Open the runs in folders of runs and studies, and group them by label.

    Runs of a study that differ in their seed alone form one group; those without an audit are left out if others of the
    study have one. Raises FolderError if no run is done.
    """
    folders = dict.fromkeys(paths)
    groups = {run.label: [run] for run in open_all(path for path in folders if not is_study(path))}
    for study in (open_study(path) for path in folders if is_study(path)):
        where = f"{study.folder}: " if len(folders) > 1 else ""
        cells = [cell for cell in study.finished if audited([study.run(cell)])]
        for cell in cells or study.finished:
            levels = ", ".join(cell.levels.values()) or study.name
            groups.setdefault(f"{where}{levels}", []).append(study.run(cell))
    if not groups:
        raise FolderError(f"{', '.join(map(str, folders))}: no run is done, so there is no audit")
    return groups


@arguments.checked
def audit_tables(groups: dict[str, list[Run]], *, labels: bool = False) -> Iterator[RenderableType]:
    """Yield for each group of runs two tables, one by run if there are several, and a sentence.

    With `labels` the tables compare remembered updates with those of other clients that hold the same labels. Raises
    FolderError if a run of the group has no audit.
    """
    headings = (*AGE_HEADINGS, *(LABEL_HEADINGS if labels else ()))
    for label, runs in groups.items():
        audit = audit_frame(runs, labels=labels)
        ages = by_age(audit)
        yield _table(
            f"remembered updates of {label}, {len(runs)} run{'s' * (len(runs) > 1)}",
            headings,
            age_rows(ages),
            interval_note(len(runs)) + (_LABELS_NOTE if labels else ""),
        )
        if len(runs) > 1 and len(each := by_run(audit)):
            yield _table(f"absent clients of {label}, run by run", ("run", *headings[1:]), run_rows(each))
        title = f"what steps of {label} did to clients"
        yield _table(title, CHANGE_HEADINGS, change_rows(realised(audit)), _CHANGE_NOTE)
        yield advice(ages)


_CHANGE_NOTE = (
    "Worse: clients whose loss rose in the step; against: those whose true update is at more than 90° to it."
)
_LABELS_NOTE = (
    " Same labels: balanced accuracy if the updates that other clients with the same labels would send now answer"
    " instead of remembered ones; gain: that of the remembered ones minus it, where there are such clients."
)


def age_rows(ages: pd.DataFrame) -> list[list[str]]:
    """Return the rows under `AGE_HEADINGS` from a frame of `by_age`; 95 % intervals stand in brackets.

    Rows of an audit with labels have values under `LABEL_HEADINGS` too.
    """
    return [[age_text(row), *_measures(row)] for row in ages.to_dict("records")]


def age_text(row: Mapping[Any, Any]) -> str:
    """Return the ages of a row of `by_age`, such as `3–4`."""
    first, last = row["from_age"], row["to_age"]
    return f"{first}" if first == last else f"{first}–{last}"


def run_rows(each: pd.DataFrame) -> list[list[str]]:
    """Return rows as in `age_rows`, with a run's name in place of an age, from a frame of `by_run`."""
    return [[str(row["run"]), *_measures(row)] for row in each.to_dict("records")]


def interval_note(runs: int) -> str:
    """Return over what the intervals of audits of `runs` runs are taken."""
    if runs == 1:
        return "Brackets are 95 % intervals over the clients of this run."
    few = "" if runs >= FEWEST else f" No interval is given for fewer than {FEWEST} runs."
    return f"Brackets are 95 % intervals over runs and the clients of each run.{few}"


def _measures(row: Mapping[Any, Any]) -> list[str]:
    shares = (fixed(100 * row[name], 0) for name in ("real", "precision", "recall"))
    angle, right = _interval(row, "cosine", 1, 2), _interval(row, "agreement", 100, 0)
    measures = [f"{row['n']:,}", angle, fixed(row["norm_ratio"], 2), *shares, right]
    if "alike" not in row:
        return measures
    return [*measures, fixed(100 * row["alike"], 0), _interval(row, "gain", 100, 0, "+")]


def change_rows(changes: pd.DataFrame) -> list[list[str]]:
    """Return the rows under `CHANGE_HEADINGS` from a frame of `realised`."""
    return [
        [
            row["group"],
            f"{row['n']:,}",
            _interval(row, "change", 1, 4, "+"),
            f"{100 * row['worse']:.0f}",
            f"{100 * row['against']:.0f}",
        ]
        for row in changes.to_dict("records")
    ]


def advice(ages: pd.DataFrame) -> str:
    """Return a sentence on the age up to which remembered updates are useful."""
    if not (ages["from_age"] > 0).any():
        return "No absent client was remembered: there is nothing to say of a memory."
    age = useful_age(ages)
    measure, than = (
        ("gain", "other clients with the same labels") if "gain" in ages else ("agreement", "chance")
    )
    if age is None and ages.loc[ages["from_age"] > 0, f"{measure}_low"].isna().iloc[0]:
        return (
            "Too few clients or runs for an interval: whether remembered updates tell conflicts is not known."
        )
    if age is None:
        return f"It is not certain at any age that remembered updates tell conflicts better than {than}."
    steps = f"{age} step{'s' * (age != 1)}"
    older = ages[ages["from_age"] > age]
    beyond = "none was older" if older.empty else "of older ones it is not certain"
    if len(older) and older[f"{measure}_low"].isna().iloc[0]:
        beyond = f"too few clients had updates of age {age_text(older.to_dict('records')[0])} to tell"
    return f"Remembered updates tell conflicts better than {than} up to an age of {steps}; {beyond}."


def _interval(row: Mapping[Any, Any], name: str, scale: float, digits: int, sign: str = "") -> str:
    value, low, high = (
        fixed(scale * row[key], digits, sign) for key in (name, f"{name}_low", f"{name}_high")
    )
    return value if math.isnan(row[f"{name}_low"]) else f"{value} [{low}, {high}]"


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Table:
    table = ruled_table(title, note, padding=1)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(shown, row))
    return table

"""`fedsim runs`: the runs and studies below a folder, and how to continue those that were interrupted.

`fedsim clients`: the clients of one run.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fedsim import analysis
from fedsim.cli.options import RunFolder
from fedsim.common.errors import short
from fedsim.common.terminal import Terminal, say, visible

if TYPE_CHECKING:
    from fedsim.records.listing import ListedRun, ListedStudy

_MOST = 10
"""Most commands and errors that are shown below the table."""
_RIGHT = ("seed", "steps", "acc %", "age")
_OPTIONAL = ("selector", "pacing")
"""Columns that are shown only if the runs differ in them."""
_COLUMNS: dict[str, Callable[[ListedRun], str]] = {
    "run": lambda run: str(run.folder),
    "status": lambda run: run.status,
    "rule": lambda run: _text(run, "rule"),
    "selector": lambda run: _text(run, "selector"),
    "pacing": lambda run: _text(run, "pacing"),
    "seed": lambda run: _text(run, "seed"),
    "steps": lambda run: "-" if run.steps is None else str(run.steps),
    "acc %": lambda run: _accuracy(run),
    "digest": lambda run: _text(run, "digest")[:8],
    "age": lambda run: show_age(time() - run.started_s),
}


def runs(
    folder: Annotated[Path, Argument(metavar="DIR", help="Where to look for runs.")] = Path("runs"),
) -> None:
    """Show all runs below a folder with their results. It also says how to continue interrupted ones."""
    from fedsim.records.listing import ListedRun, runs_below

    listed = list(runs_below(folder))
    single = [each for each in listed if isinstance(each, ListedRun)]
    studies = [each for each in listed if not isinstance(each, ListedRun)]
    if not listed:
        say(f"there are no runs in {folder}")
    if single:
        say(_table(single))
    for study in studies:
        say(_line(study))
    _show("damaged:", [short(run.error) for run in single if run.error and run.status == "damaged"])
    _show("failed:", [f"{run.folder}: {short(run.error)}" for run in single if run.error and run.manifest])
    _show("to continue what stopped:", list(_commands(single, studies)))


def clients(
    run: RunFolder,
    most: Annotated[int, Option("--most", "-n", min=1, help="How many clients to show.")] = 10,
    split: Annotated[
        str | None,
        Option(help="train, valid, test or unseen; by default that of the run.", show_default=False),
    ] = None,
) -> None:
    """Show the clients that are worst off. Samples, jobs and time online stand beside their accuracy."""
    Terminal().print(analysis.run_clients_table(analysis.open_run(run), split, most))


def show_age(seconds: float) -> str:
    """Return an age as a text in one unit, such as `45 s`, `12 min`, `3 h` or `8 d`."""
    for unit, length, most in (("s", 1, 60), ("min", 60, 60), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{max(seconds, 0) / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _table(listed: Sequence[ListedRun]) -> str:
    """Return the table as text, with whole paths: for thousands of rows rich takes several seconds."""
    rows = [{heading: visible(cell(run)) for heading, cell in _COLUMNS.items()} for run in listed]
    wanted = [h for h in _COLUMNS if h not in _OPTIONAL or len({row[h] for row in rows}) > 1]
    lines = [[heading, *(row[heading] for row in rows)] for heading in wanted]
    columns = [_padded(texts, right=texts[0] in _RIGHT) for texts in lines]
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


def _padded(texts: Sequence[str], *, right: bool) -> list[str]:
    width = max(map(len, texts))
    return [text.rjust(width) if right else text.ljust(width) for text in texts]


def _text(run: ListedRun, key: str) -> str:
    value = run.manifest.get(key)
    return "-" if value is None else str(value)


def _accuracy(run: ListedRun) -> str:
    accuracy = run.manifest.get("accuracy")
    return "-" if accuracy is None else f"{100 * accuracy:.2f}"


def _line(study: ListedStudy) -> str:
    if not study.cells:
        return f"study {study.name}: damaged  {study.folder}"
    others = [f"{n} {status}" for status, n in study.counts.items() if status not in ("done", "pending")]
    more = f" ({', '.join(others)})" if others else ""
    done = study.counts.get("done", 0)
    age = show_age(time() - study.started_s)
    return f"study {study.name}: {done} of {study.cells} cells done{more}  {study.folder}  {age}"


def _commands(listed: Sequence[ListedRun], studies: Sequence[ListedStudy]) -> Iterator[str]:
    """Yield the commands that continue runs and studies that no process runs."""
    for run in listed:
        if run.resumable:
            yield shlex.join(("fedsim", "resume", str(run.folder)))
    for study in studies:
        if not study.running and study.counts.get("done", 0) < study.cells and study.config.is_file():
            command = shlex.join(("fedsim", "study", str(study.config), "--out", str(study.folder.parent)))
            tuned = study.name.removesuffix("_tuning")
            yield command if tuned == study.name else f"{command}  # then repeat the command of study {tuned}"


def _show(title: str, lines: Sequence[str]) -> None:
    if lines:
        say(f"\n{title}")
    for line in lines[:_MOST]:
        say(f"  {line}")
    if len(lines) > _MOST:
        say(f"  and {len(lines) - _MOST} more")

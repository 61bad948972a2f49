"""The report: one HTML page about runs that opens from disk, in light and dark, on phones and paper."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from analysis import page
from analysis.closing import HEADINGS, closing
from analysis.compare import compare
from analysis.facts import facts, troubles
from analysis.plots._picture import Picture
from analysis.plots.accuracy_histogram import accuracy_histogram
from analysis.plots.accuracy_over_time import METRICS, accuracy_over_time
from analysis.plots.client_accuracy import client_accuracy
from analysis.plots.lost_jobs import lost_by_phase, lost_jobs
from analysis.plots.participation import participation
from analysis.plots.staleness import staleness, used_staleness
from analysis.run import CONFIG, Run
from analysis.waste import HEADINGS as SPENT
from analysis.waste import waste_rows
from fedsim.errors import RunError, TraceError
from fedsim.files import write_text


def write_report(runs: Sequence[Run], out: str | Path) -> Path:
    """Write one self-contained page about the runs and return its path.

    `out` is the file to write, or a folder that gets a `report.html`. Runs that are interrupted, hold no jobs
    or no evaluations are reported as such. Labels must be distinct, as `open_all` makes them. Raises RunError
    if a run's files cannot be read.
    """
    if not runs:
        raise RunError("a report needs at least one run")
    target = Path(out) / "report.html" if Path(out).is_dir() else Path(out)
    text = page.page(_title(runs), _body(runs))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{target}: cannot be written: {error}") from error
    write_text(target, text)
    return target


def _title(runs: Sequence[Run]) -> str:
    names = [run.label for run in runs]
    listed = ", ".join(names) if len(names) <= 5 else f"{', '.join(names[:4])} and {len(names) - 4} more"
    return f"fedsim: {listed}"


def _body(runs: Sequence[Run]) -> Iterator[str]:
    yield from (page.paragraph(text, "warning") for run in runs for text in troubles(run))
    yield page.heading("Summary")
    yield page.table(HEADINGS, [closing(run).cells() for run in runs])
    splits = ", ".join(dict.fromkeys(run.split for run in runs))
    yield page.paragraph(
        f"Accuracies are per client at the last evaluation on the {splits} split; std and angle are over"
        " clients, worst and best are means over the given share of clients."
        " Lost and late count jobs, empty counts server steps.",
        "note",
    )
    yield from _comparison(runs)
    yield from _accuracy(runs)
    yield from _jobs(runs)
    for index, run in enumerate(runs):
        yield from _single(run, f"r{index}")


def _comparison(runs: Sequence[Run]) -> Iterator[str]:
    rows, refused = [], []
    base = next((run for run in runs if run.evaluations()), runs[0])
    for run in (other for other in runs if other is not base):
        try:
            found = compare(base, run)
        except RunError as error:
            refused.append(page.paragraph(f"Not compared: {error}.", "note"))
            continue
        mean = f"{found.mean_percent:+.2f} ± {found.standard_error_percent:.2f}"
        world = {True: "same", False: "different", None: "not kept"}[found.same_world]
        rows.append((run.label, mean, str(found.gained), str(found.lost), str(found.equal), world))
    if rows or refused:
        yield page.heading(f"Client by client against {base.label}")
    if rows:
        headings = ("run", "mean difference % ± s.e.", "clients better", "clients worse", "equal", "world")
        yield page.table(headings, rows)
    yield from refused


def _accuracy(runs: Sequence[Run]) -> Iterator[str]:
    finals = {run.label: found[-1] if (found := run.evaluations()) else None for run in runs}
    yield page.heading("Accuracy and fairness")
    if not any(finals.values()):
        yield page.paragraph("No evaluation was recorded.")
        return
    histories = {run.label: run.history(metrics=list(METRICS)) for run in runs}
    pictures = (
        accuracy_over_time(histories, by="time"),
        accuracy_over_time(histories, by="step"),
        client_accuracy(finals),
        accuracy_histogram(finals),
    )
    yield page.figures(page.figure(picture, f"a{i}") for i, picture in enumerate(pictures))


def _jobs(runs: Sequence[Run]) -> Iterator[str]:
    yield page.heading("Jobs")
    by_label = {run.label: run for run in runs}
    pictures: list[Picture] = []
    if any(lost_by_phase(run) for run in runs):
        pictures.append(lost_jobs(by_label))
    else:
        yield page.paragraph(
            "No job was lost." if any(len(run.jobs) for run in runs) else "No job was recorded."
        )
    if any(used_staleness(run).any() for run in runs):
        pictures.append(staleness(by_label))
    if pictures:
        yield page.figures(page.figure(picture, f"j{i}") for i, picture in enumerate(pictures))


def _single(run: Run, prefix: str) -> Iterator[str]:
    yield page.heading(f"Run: {run.label}")
    yield page.facts(facts(run))
    if len(run.jobs):
        yield page.heading("What clients spent", 3)
        yield page.table(SPENT, waste_rows(run))
        yield page.paragraph(
            "Used: the update went into a step or refreshed the history. Wasted: lost, late, stale, void or nonfinite."
            " The share is that of used and wasted together.",
            "note",
        )
    yield page.heading("Participation", 3)
    yield _or_reason(lambda: page.figure(participation(run), prefix, wide=True))
    config = run.folder / CONFIG
    yield page.heading("Reproduce", 3)
    yield page.code(f"fedsim run {shlex.quote(str(config))} --out reproduced")
    yield page.details("Configuration", page.code(config.read_text(encoding="utf-8")))


def _or_reason(draw: Callable[[], str]) -> str:
    try:
        return draw()
    except (RunError, TraceError) as error:
        return page.paragraph(f"Not drawn: {error}.")

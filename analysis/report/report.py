"""The report: one HTML page about runs that opens from disk, in light and dark, on phones and paper."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from fedsim.analysis.drawing.picture import Picture
from fedsim.analysis.opening.facts import troubles
from fedsim.analysis.opening.run import UNSEEN_SPLITS, Run, with_distinct_labels
from fedsim.analysis.plots.accuracy_histogram import accuracy_histogram
from fedsim.analysis.plots.accuracy_over_time import METRICS, accuracy_over_time
from fedsim.analysis.plots.client_accuracy import client_accuracy
from fedsim.analysis.plots.client_labels import client_labels
from fedsim.analysis.plots.lost_jobs import lost_by_phase, lost_jobs
from fedsim.analysis.plots.overview import overview
from fedsim.analysis.plots.staleness import staleness, used_staleness
from fedsim.analysis.report import page
from fedsim.analysis.report.document import (
    Block,
    Column,
    Document,
    Figure,
    Findings,
    Gallery,
    Heading,
    Table,
    Text,
    slugs,
)
from fedsim.analysis.report.findings import findings
from fedsim.analysis.report.participation_sections import runs_participation, selection_blocks
from fedsim.analysis.report.run_sections import run_section
from fedsim.analysis.tables.closing import ACCURACIES, closing, digits_of, noise_note, unseen_splits
from fedsim.analysis.tables.compare import compare
from fedsim.common import arguments
from fedsim.common.arrays import Ints
from fedsim.common.errors import ConfigError, FolderError, RunError, closest
from fedsim.common.files import make_directory, write_text
from fedsim.common.paths import as_path
from fedsim.common.units import HOUR_US
from fedsim.data.federated_data import UNSEEN
from fedsim.records.file_names import WORLD


@arguments.checked
def write_report(runs: Sequence[Run], out: str | Path, command: str = "") -> Path:
    """Write one self-contained HTML page about runs and return its path.

    `out` is the file to write, or a folder that gets a `report.html`. `command` is the command line shown under the
    figures, by default `fedsim report` and the runs' folders. The page says which runs are interrupted or have no jobs
    or evaluations. The labels of runs that share one get a part of their paths. Raises RunError if a run's files cannot
    be read.
    """
    return write_page(run_document(runs, command), out)


@arguments.checked
def write_page(content: Document, out: str | Path) -> Path:
    """Write a report as one page and return its path; `out` is as for `write_report`."""
    place = as_path(out, "out")
    target = place / "report.html" if place.is_dir() else place
    text = page.document(content)
    make_directory(target.parent)
    write_text(target, text)
    return target


@arguments.checked
def run_document(
    runs: Sequence[Run], command: str = "", titles: Mapping[str, str] = MappingProxyType({})
) -> Document:
    """Return the report about runs; its figures are drawn on demand.

    `titles` are other names of runs, by their labels. Raises FolderError if there is no run, ConfigError for a title of
    no run.
    """
    if not runs:
        raise FolderError("a report needs at least one run")
    command = command or report_command([run.folder for run in runs], titles)
    runs = with_distinct_labels(runs)
    labels = [run.label for run in runs]
    for label in titles.keys() - set(labels):
        raise ConfigError(f"there is no run {label!r}{closest(label, labels)}")
    runs = with_distinct_labels([replace(run, label=titles.get(run.label, run.label)) for run in runs])
    return Document(_title(runs), command, tuple(_blocks(runs)))


def report_command(
    paths: Sequence[Path], titles: Mapping[str, str] = MappingProxyType({}), metrics: Sequence[str] = ()
) -> str:
    """Return the command line that makes a report about folders, with `titles` for levels or runs."""
    options = [word for name, title in titles.items() for word in ("--title", f"{name}={title}")]
    options += [word for metric in metrics for word in ("--metric", metric)]
    return f"fedsim report {shlex.join([*map(str, paths), *options])}"


def _title(runs: Sequence[Run]) -> str:
    names = [run.label for run in runs]
    listed = ", ".join(names) if len(names) <= 5 else f"{', '.join(names[:4])} and {len(names) - 4} more"
    return f"fedsim: {listed}"


def _blocks(runs: Sequence[Run]) -> Iterator[Block]:
    yield Heading("Findings")
    yield Findings(findings(runs))
    yield from (Text(text, "warning") for run in runs for text in troubles(run))
    yield from overview_blocks(runs)
    yield Heading("Summary")
    yield summary_table(runs)
    splits = ", ".join(dict.fromkeys(run.split for run in runs))
    yield Text(
        f"Accuracies are per client at the last evaluation on the {splits} split; std and angle are over"
        " clients, worst and best are means over the given share of clients, all of them with equal weight."
        " Lost and late count jobs, empty counts server steps.",
        "note",
    )
    if note := noise_note(list(map(closing, runs))):
        yield Text(f"{note[0].upper()}{note[1:]}. std_true_percent is the std without that noise.", "note")
    yield from _unseen(runs)
    yield from _comparison(runs)
    yield from _accuracy(runs)
    yield from _data(runs)
    yield from runs_participation(runs)
    yield from _jobs(runs)
    yield from selection_blocks(runs)
    names = slugs(run.label for run in runs)
    for run, name in zip(runs, names, strict=True):
        yield from run_section(run, f"{name}-" if len(runs) > 1 else "")


def overview_blocks(runs: Sequence[Run]) -> Iterator[Block]:
    """Yield the picture of who took part beside accuracy, the runs in their order, from the first with a world on."""
    drawable = [run for run in runs if (run.folder / WORLD).is_file() and run.virtual_us > 0]
    if drawable and any(run.evaluations() for run in runs):
        yield Figure("participation", partial(overview, runs, drawable[0]), wide=True)


_COUNTS = ("steps", "jobs", "jobs lost", "late", "empty steps")


def summary_table(runs: Sequence[Run]) -> Table:
    """Return the table of how runs ended."""
    ends = (*map(Column, _COUNTS), Column("virtual h", 2), Column("wall s", 1))
    columns = (Column("run"), *_accuracy_columns(), *ends)
    rows = []
    for numbers in map(closing, runs):
        label = numbers.label if numbers.status == "done" else f"{numbers.label} [{numbers.status}]"
        counts = (numbers.steps, numbers.jobs, numbers.lost, numbers.late, numbers.empty_steps)
        metrics = (numbers.metrics[name] for name in ACCURACIES.values())
        rows.append((label, *metrics, *counts, numbers.virtual_us / HOUR_US, numbers.wall_s))
    caption = "How the runs ended" if len(runs) > 1 else "How the run ended"
    return Table("summary", caption, columns, tuple(rows))


def _unseen(runs: Sequence[Run]) -> Iterator[Block]:
    """Yield how the model fits clients that never trained, if a run has some."""
    recorded = [(run, split) for run in runs for split in unseen_splits(run)]
    if not recorded:
        return
    yield Heading("Unseen clients")
    rows = []
    for run, split in recorded:
        last = run.final(split)
        metrics = last.summary(list(ACCURACIES.values())).values()
        rows.append((run.label, UNSEEN_SPLITS[split], int((last.n > 0).sum()), *metrics))
    columns = (Column("run"), Column("model"), Column("clients"), *_accuracy_columns())
    yield Table("unseen", "The model on clients that never trained, at the end", columns, tuple(rows))
    yield Text(
        "Unseen clients are evaluated on their test samples: with the global model (unseen), and where the client"
        " method makes personal models also after they adapted it to their training samples (adapted).",
        "note",
    )
    drawn = dict.fromkeys(split for _, split in recorded)
    yield Gallery(
        tuple(Figure(f"{UNSEEN_SPLITS[s]}-over-steps", partial(_over_steps, runs, s)) for s in drawn)
    )


def _over_steps(runs: Sequence[Run], split: str) -> Picture:
    histories = {run.label: run.history(split, list(METRICS)) for run in runs}
    picture = accuracy_over_time(histories, by="step")
    model = "with the global model" if split == UNSEEN else "after they adapted the model"
    evaluated = {label for label, history in histories.items() if len(history)}
    keys = tuple(key for key in picture.keys if key.label in evaluated)
    return replace(picture, keys=keys, caption=f"Unseen clients, {model}. {picture.caption}")


def _accuracy_columns() -> list[Column]:
    return [Column(name, digits_of(metric)) for name, metric in ACCURACIES.items()]


_COMPARED = (
    Column("run"),
    Column("mean difference, %", 2, signed=True),
    Column("± s.e., %", 2),
    Column("clients better"),
    Column("clients worse"),
    Column("equal"),
    Column("world"),
)


def _comparison(runs: Sequence[Run]) -> Iterator[Block]:
    rows, refused = [], []
    base = next((run for run in runs if run.evaluations()), runs[0])
    for run in (other for other in runs if other is not base):
        try:
            comparison = compare(base, run)
        except RunError as error:
            refused.append(Text(f"Not compared: {error}.", "note"))
            continue
        counts = (comparison.gained, comparison.lost, comparison.equal)
        world = {True: "same", False: "different", None: "not kept"}[comparison.same_world]
        rows.append((run.label, comparison.mean_percent, comparison.standard_error_percent, *counts, world))
    if rows or refused:
        yield Heading(f"Client by client against {base.label}")
    if rows:
        caption = f"Differences of the clients' accuracies to those in {base.label}; the standard error is over clients"
        yield Table("pairs", caption, _COMPARED, tuple(rows))
    yield from refused


def _accuracy(runs: Sequence[Run]) -> Iterator[Block]:
    finals = {run.label: evaluations[-1] if (evaluations := run.evaluations()) else None for run in runs}
    yield Heading("Accuracy and fairness")
    if not any(finals.values()):
        yield Text("No evaluation was recorded.")
        return
    histories = {run.label: run.history(metrics=list(METRICS)) for run in runs}
    by_client = (
        Figure("accuracy-by-client", partial(client_accuracy, finals)),
        Figure("accuracy-histogram", partial(accuracy_histogram, finals)),
    )
    curves = (
        Figure("accuracy-over-time", partial(accuracy_over_time, histories, by="time")),
        Figure("accuracy-over-steps", partial(accuracy_over_time, histories, by="step")),
    )
    moves = any((history[list(METRICS)].nunique() > 1).any() for history in histories.values())
    if not moves:
        yield Text("Curves are left out: accuracy was the same at all evaluations, or there was only one.")
    yield Gallery((*curves, *by_client) if moves else by_client)


def _data(runs: Sequence[Run]) -> Iterator[Block]:
    """Yield how samples are divided among clients, once for runs with the same division."""
    divisions: dict[bytes, tuple[Ints, list[str]]] = {}
    refused = []
    for run in runs:
        try:
            counts = run.label_counts
        except FolderError as error:
            refused.append(Text(f"{run.label}: not shown: {error}.", "note"))
            continue
        if counts is not None:
            divisions.setdefault(counts.tobytes(), (counts, []))[1].append(run.label)
    if divisions or refused:
        yield Heading("Data of the clients")
    yield from refused
    names = slugs(labels[0] for _, labels in divisions.values())
    for (counts, labels), name in zip(divisions.values(), names, strict=True):
        if len(divisions) > 1:
            yield Text(f"{', '.join(labels)}:")
        figure = "labels" if len(divisions) == 1 else f"{name}-labels"
        yield Figure(figure, partial(client_labels, counts), wide=True)


def _jobs(runs: Sequence[Run]) -> Iterator[Block]:
    yield Heading("Jobs")
    by_label = {run.label: run for run in runs}
    drawn: list[Figure] = []
    if any(lost_by_phase(run) for run in runs):
        drawn.append(Figure("lost-jobs", partial(lost_jobs, by_label)))
    else:
        yield Text("No job was lost." if any(len(run.jobs) for run in runs) else "No job was recorded.")
    if any(used_staleness(run).any() for run in runs):
        drawn.append(Figure("staleness", partial(staleness, by_label)))
    elif any(len(used_staleness(run)) for run in runs):
        yield Text("Every used update had a staleness of 0: it started from the model of the step before.")
    if drawn:
        yield Gallery(tuple(drawn))

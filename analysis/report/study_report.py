"""The report about a study: its question, paired differences, curves over seeds, fairness against participation."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote

from fedsim.analysis.drawing.picture import Picture
from fedsim.analysis.opening.points import Point, place_of
from fedsim.analysis.opening.run import Run
from fedsim.analysis.opening.study import Cell, Study
from fedsim.analysis.plots.paired_differences import paired_differences
from fedsim.analysis.plots.study_curves import study_curves
from fedsim.analysis.plots.variance_shares import variance_shares
from fedsim.analysis.report.audit_section import audit_blocks
from fedsim.analysis.report.comparison_blocks import difference_block, published_blocks, target_blocks
from fedsim.analysis.report.document import (
    Block,
    Code,
    Column,
    Document,
    Facts,
    Figure,
    Findings,
    Gallery,
    Heading,
    Links,
    Table,
    Text,
    frame_table,
    slugs,
)
from fedsim.analysis.report.findings import findings
from fedsim.analysis.report.participation_sections import study_participation_blocks
from fedsim.analysis.report.report import overview_blocks, report_command, write_report
from fedsim.analysis.statistics.audit import audited
from fedsim.analysis.statistics.paired.differences import PairedDifference, differences
from fedsim.analysis.statistics.paired.interaction import interactions
from fedsim.analysis.statistics.variance.study_components import factors_of, variance_components
from fedsim.analysis.tables.difference_tables import by_axis, conditions, interaction_of, notes
from fedsim.analysis.tables.headings import heading_of, name_of
from fedsim.analysis.tables.study_tables import level_frame, metrics_of, points_of
from fedsim.common import arguments
from fedsim.common.errors import ConfigError, FolderError, RunError
from fedsim.records.file_names import STUDY_CONFIG

_PANELS = 6
"""Most panels in a figure of differences, so that it fits a page."""
_CELL_PAGE = "report.html"
_AXES: dict[str, Literal["time", "step"]] = {"time": "time", "steps": "step"}


@arguments.checked
def study_document(
    study: Study,
    out: str | Path,
    command: str = "",
    titles: Mapping[str, str] = MappingProxyType({}),
    *,
    each: bool = False,
) -> Document:
    """Return the report about a study; its figures are drawn on demand.

    `out` is where the page will be written, to which its links are relative; `titles` are other names of levels, as of
    `Study.titled`. With `each` it links to the pages of all finished runs, which `write_run_reports` writes, else to
    those that exist. The page lists cells that failed or are missing. Raises RunError if a finished run's files cannot
    be read, ConfigError for titles of no level.
    """
    command = command or report_command([study.folder], titles)
    titled = study.titled(titles) if titles else study
    blocks = _blocks(titled, published_blocks(study, titles), Path(out), each)
    return Document(f"fedsim study: {study.name}", command, tuple(blocks))


@arguments.checked
def write_run_reports(study: Study, titles: Mapping[str, str] = MappingProxyType({})) -> int:
    """Write a page about each finished run of a study into the run's folder; return the number of pages.

    `titles` are other names of levels. Raises ConfigError for titles of no level.
    """
    titled = study.titled(titles) if titles else study
    for cell in titled.finished:
        name = ", ".join((*cell.levels.values(), f"seed {cell.seed}"))
        write_report([replace(titled.run(cell), label=name)], cell.folder / _CELL_PAGE)
    return len(titled.finished)


def _blocks(study: Study, published: Iterator[Block], out: Path, each: bool) -> Iterator[Block]:
    yield Heading("Findings")
    yield Findings(findings(study))
    yield from _troubles(study)
    yield from _overview(study)
    yield Heading("What was asked")
    if study.description:
        yield Text(study.description)
    yield Facts(_facts(study))
    if not study.finished:
        yield Text("No run of the study is done, so there is nothing to compare.")
    else:
        metrics = metrics_of(study)
        yield from published
        yield from _ends(study, metrics)
        yield from _differences(study, metrics)
        yield from target_blocks(study)
        yield from _components(study, metrics)
        yield from _curves(study, metrics)
        yield from study_participation_blocks(study)
        yield from _audits(study)
    yield from _cells(study, out, each)
    yield Heading("Reproduce")
    config = study.folder / STUDY_CONFIG
    yield Code(f"fedsim study {shlex.quote(str(config))} --out reproduced")
    if config.is_file():
        yield Code(_text(config), summary="The study as it was run")


def _overview(study: Study) -> Iterator[Block]:
    """Yield who took part beside accuracy, for the first seed's runs of each level with the first of other levels."""
    if not study.finished:
        return
    first = study.finished[0]
    axis = study.axis() if study.axes else ""
    same = [
        cell
        for cell in study.finished
        if cell.seed == first.seed
        and all(cell.levels[a] == level for a, level in first.levels.items() if a != axis)
    ]
    runs = [replace(study.afresh(cell), label=cell.levels.get(axis, study.name)) for cell in same]
    blocks = list(overview_blocks(runs))
    yield from blocks
    where = ", ".join(f"{a}={level}" for a, level in first.levels.items() if a != axis)
    if blocks:
        yield Text(
            f"The picture shows seed {first.seed}, one of {len(study.seeds)}{f', with {where}' if where else ''}.",
            "note",
        )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FolderError(f"{file}: cannot be read: {error}") from error


def _troubles(study: Study) -> Iterator[Block]:
    for cell in study.cells:
        if cell.status == "failed":
            yield Text(f"{cell.name}: failed: {cell.error or 'no reason was recorded'}", "warning")
    left = Counter(cell.status for cell in study.cells if cell.status not in ("done", "failed"))
    if left:
        counts = ", ".join(f"{n} {status}" for status, n in left.items())
        yield Text(
            f"The study is not complete: {counts} of {len(study.cells)} runs. The page shows the finished runs.",
            "warning",
        )


def _facts(study: Study) -> list[tuple[str, str]]:
    statuses = Counter(cell.status for cell in study.cells)
    rows = [(f"axis {axis}", ", ".join(levels)) for axis, levels in study.axes.items()]
    rows += [("seeds", ", ".join(map(str, study.seeds)))]
    rows += [("runs", ", ".join(f"{n} {status}" for status, n in statuses.items()) or "none")]
    if study.axes:
        axis = study.axis()
        rows.append(("compared", f"levels of {axis} with {study.baseline(axis)}{conditions(study)}"))
    if tune := study.tune:
        chosen = ", ".join(f"{' at '.join(levels)} {value}" for levels, value in tune.choices().items())
        best = f"best {tune.criterion}, among {list(tune.values)}"
        rows.append((f"{tune.key}, tuned", f"{chosen}; {best}"))
    return rows


def _ends(study: Study, metrics: Sequence[str]) -> Iterator[Block]:
    """Yield means over seeds with their spread, a row per combination of levels."""
    columns = {
        "n": Column("seeds"),
        "mean": Column("mean", 3),
        "std": Column("s.d. over seeds", 3),
        "low": Column("95 % low", 3),
        "high": Column("95 % high", 3),
    }
    yield Heading("How the runs ended")
    frame = level_frame(study, "end", metrics).drop(columns="at")
    frame["metric"] = frame["metric"].map(heading_of)
    intervals = "95 % bootstrap intervals (of a level by itself: differences are surer, see below)"
    caption = f"Means over seeds{conditions(study)}, with {intervals}"
    yield frame_table("ends", caption, frame, columns)


def _differences(study: Study, metrics: Sequence[str]) -> Iterator[Block]:
    yield Heading("Differences, paired by seed")
    try:
        axis = study.axis()
        base = study.baseline(axis)
    except (ConfigError, RunError) as error:
        yield Text(f"Not compared: {error}.")
        return
    yield Text(
        f"Runs with equal seeds see the same data, world, start parameters and minibatches; shown is how much more a"
        f" level of {axis} has than {base}, seed by seed.",
        "note",
    )
    for at in points_of(study):
        words = place_of(at)
        place = f"{words[:1].upper()}{words[1:]}"
        try:
            where = conditions(study, at)
        except FolderError as error:
            yield Heading(place, 3)
            yield Text(f"Not compared: {error}.")
            continue
        yield Heading(f"{place}{where}", 3)
        yield from _differences_at(at, study, axis, metrics)


def _differences_at(at: Point, study: Study, axis: str, metrics: Sequence[str]) -> Iterator[Block]:
    by_metric: dict[str, list[PairedDifference]] = {}
    for metric in metrics:
        try:
            by_metric[metric] = differences(study, metric, at)
        except (ConfigError, RunError) as error:
            yield Text(f"{heading_of(metric)} not compared: {error}.")
    families = by_metric.items()
    texts = [f"{at}-{name_of(metric)}" for metric in by_metric]
    names = dict(zip(by_metric, slugs(texts), strict=True))
    drawn = (_drawn(names[metric], each, study.axes[axis]) for metric, each in families)
    yield Gallery(tuple(chain.from_iterable(drawn)))
    if by_metric:
        yield Text(notes(list(chain.from_iterable(by_metric.values()))), "note")
    for metric, each in families:
        yield difference_block(f"differences-{names[metric]}", each, study)
        yield from _interactions_at(at, study, metric, names[metric])


def _interactions_at(at: Point, study: Study, metric: str, name: str) -> Iterator[Block]:
    try:
        tables = by_axis(interactions(study, metric, at))
    except RunError as error:
        yield Text(f"Interactions in {heading_of(metric)} not compared: {error}.", "note")
        return
    for found in tables:
        file_name = _file_name("interactions", found[0].axis, name)
        yield difference_block(file_name, found, study, interaction_of(study, found))


def _file_name(*parts: str) -> str:
    """Return the name of a table or a figure made of these parts."""
    return re.sub("[=_]", "-", "-".join(parts))


def _drawn(name: str, differences: Sequence[PairedDifference], levels: Sequence[str]) -> Iterator[Figure]:
    """Yield figures with at most `_PANELS` panels each."""
    places = list(dict.fromkeys(each.where for each in differences))
    for part, start in enumerate(range(0, len(places), _PANELS)):
        chosen = [each for each in differences if each.where in places[start : start + _PANELS]]
        number = f"-{part + 1}" if len(places) > _PANELS else ""
        figure = f"difference-{name}{number}"
        yield Figure(figure, partial(paired_differences, chosen, levels))


def _components(study: Study, metrics: Sequence[str]) -> Iterator[Block]:
    """Yield the shares of data, world and training in the variance, if the study crosses their seeds."""
    try:
        factors_of(study)
    except FolderError:
        return
    yield Heading("Data, world or training?")
    figures = []
    for at, metric in product(points_of(study), metrics):
        try:
            found = variance_components(study, metric, at)
        except (ConfigError, RunError) as error:
            yield Text(f"{heading_of(metric)} not divided: {error}.")
        else:
            name = _file_name("variance", at, metric)
            figures.append(Figure(name, partial(variance_shares, found)))
    yield Gallery(tuple(figures))


def _curves(study: Study, metrics: Sequence[str]) -> Iterator[Block]:
    yield Heading("Accuracy and fairness as training goes on")
    axis = study.axis() if study.axes else ""
    groups: dict[tuple[str, ...], dict[str, list[Cell]]] = {}
    for cell in study.finished:
        others = tuple(f"{a}={level}" for a, level in cell.levels.items() if a != axis)
        levels = groups.setdefault(others, {level: [] for level in study.axes.get(axis, (study.name,))})
        levels[cell.levels.get(axis, study.name)].append(cell)
    names = slugs("-".join(part.partition("=")[2] for part in others) for others in groups)
    figures = []
    for slug, (others, levels) in zip(names, groups.items(), strict=True):
        for over, by in _AXES.items():
            draw = partial(_curve, study, levels, metrics, by, ", ".join(others))
            figures.append(Figure(f"curves-over-{over}{f'-{slug}' if others else ''}", draw))
    yield Gallery(tuple(figures))


def _curve(
    study: Study,
    levels: Mapping[str, Sequence[Cell]],
    metrics: Sequence[str],
    by: Literal["time", "step"],
    where: str,
) -> Picture:
    histories = {
        level: [study.afresh(cell).history(study.split, metrics) for cell in cells]
        for level, cells in levels.items()
    }
    return study_curves(histories, metrics, by, where)


def _audits(study: Study) -> Iterator[Block]:
    """Yield audits, runs with equal levels together."""
    groups: dict[str, list[Run]] = {}
    for cell in study.finished:
        groups.setdefault(", ".join(cell.levels.values()) or study.name, []).append(study.run(cell))
    if any(audited(runs) for runs in groups.values()):
        yield Heading("Audits of remembered updates")
    for slug, (name, runs) in zip(slugs(groups), groups.items(), strict=True):
        yield from audit_blocks(runs, f"{slug}-", name)


def _cells(study: Study, out: Path, each: bool) -> Iterator[Block]:
    """Yield the table of runs, and links to their pages if there are any."""
    yield Heading("The runs")
    columns = (*map(Column, study.axes), Column("seed"), Column("status"), Column("folder"))
    rows = tuple(
        (*c.levels.values(), c.seed, c.status, str(c.folder.relative_to(study.folder))) for c in study.cells
    )
    yield Table("runs", "The runs of the study, a folder each", columns, rows)
    here = out if out.is_dir() else out.parent
    written = {cell.folder for cell in study.finished} if each else set()
    pages = [(cell.name, cell.folder / _CELL_PAGE) for cell in study.cells]
    links = [
        (name, quote(os.path.relpath(path, here)))
        for name, path in pages
        if path.parent in written or path.is_file()
    ]
    if links:
        yield Text("Pages of single runs:")
        yield Links(links)
    else:
        yield Text("Pages of single runs are written with --each.", "note")

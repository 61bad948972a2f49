"""`fedsim report`: one page about one or several runs, or about a study; figures and tables as files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.common.errors import ConfigError
from fedsim.common.terminal import Terminal

if TYPE_CHECKING:
    from fedsim.analysis.report.document import Document


class FigureFormat(StrEnum):
    """What figures are written as."""

    pdf = "pdf"
    png = "png"
    svg = "svg"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, of which one may hold several arms; or the folder of a study."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page to write; by default report.html in the folder, or here if there are several."
        ),
    ] = None,
    each: Annotated[
        bool,
        typer.Option("--each", help="Of a study: write a page in the folder of each of its runs as well."),
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Write the figures into this folder, and no page without --out.")
    ] = None,
    figure_format: Annotated[
        FigureFormat, typer.Option("--format", help="What the figures are written as.")
    ] = FigureFormat.pdf,
    tables: Annotated[
        Path | None,
        typer.Option(help="Write the tables into this folder as CSV and LaTeX, and no page without --out."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only the figure or table of this name, with --figures or --tables; may be repeated.",
        ),
    ] = None,
) -> None:
    """Write an HTML page about runs, side by side, or about a study. It may write figures and tables instead."""
    from fedsim.analysis.report.report import write_page  # imported late: `fedsim --help` needs no matplotlib

    if only and figures is None and tables is None:
        raise ConfigError("--only: expected --figures or --tables beside it, found neither")
    console = Terminal()
    content = _opened(runs, out, each, console)
    _write_files(content, figures, figure_format, tables, only or [], console)
    if out is not None or (figures is None and tables is None):
        written = write_page(content, out if out is not None else _beside(runs))
        console.print(f"report: {written}", soft_wrap=True, highlight=False)


def _opened(paths: list[Path], out: Path | None, each: bool, console: Terminal) -> Document:
    """Open what the paths are, show its closing table, and return the report about it."""
    from fedsim.analysis.opening.run import open_all
    from fedsim.analysis.opening.study import is_study, open_study
    from fedsim.analysis.report.report import report_command, run_document
    from fedsim.analysis.report.study_report import study_document, write_each
    from fedsim.analysis.tables.closing import closing_table

    studies = [path for path in paths if is_study(path)]
    if studies and len(paths) > 1:
        raise ConfigError(
            f"a report is about runs or about one study; found {len(paths)} folders, and {studies[0]} is a study"
        )
    if not studies:
        if each:
            raise ConfigError(f"--each: expected the folder of a study, found that of a run: {paths[0]}")
        opened = open_all(paths)
        console.print(closing_table(opened))
        return run_document(opened, report_command(paths))
    study = open_study(paths[0])
    if each:
        console.print(f"{write_each(study)} pages of runs written", highlight=False)
    return study_document(study, out if out is not None else paths[0], report_command(paths))


def _write_files(
    content: Document,
    figures: Path | None,
    kind: FigureFormat,
    tables: Path | None,
    only: list[str],
    console: Terminal,
) -> None:
    from fedsim.analysis.report.report_files import check_names, write_figures, write_tables

    check_names(content, only)
    if figures is not None:
        written, refused = write_figures(content, figures, kind.value, only)
        console.print(f"figures: {len(written)} in {figures}", soft_wrap=True, highlight=False)
        for reason in refused:
            console.print(f"not drawn: {reason}", soft_wrap=True, highlight=False, markup=False)
    if tables is not None:
        files = write_tables(content, tables, only)
        console.print(f"tables: {len(files)} files in {tables}", soft_wrap=True, highlight=False)


def _beside(runs: list[Path]) -> Path:
    return runs[0] if len(runs) == 1 else Path()

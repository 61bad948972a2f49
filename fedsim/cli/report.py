"""`fedsim report`: an HTML page about runs or about a study; its figures and tables as files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedsim import analysis
from fedsim.common.errors import ConfigError
from fedsim.common.terminal import Terminal


class FigureFormat(StrEnum):
    """The file formats of figures."""

    pdf = "pdf"
    png = "png"
    svg = "svg"


_Runs = Annotated[
    list[Path],
    typer.Argument(help="Run folders, or folders of several runs; or the folder of one study."),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        help="The page to write; by default report.html in the folder, or here for several folders."
    ),
]
_Each = Annotated[
    bool, typer.Option("--each", help="A study: also write a page into the folder of each of its runs.")
]
_Figures = Annotated[
    Path | None, typer.Option(help="Write the figures into this folder, and no page without --out.")
]
_Format = Annotated[FigureFormat, typer.Option("--format", help="File format of the figures.")]
_Tables = Annotated[
    Path | None,
    typer.Option(help="Write the tables into this folder as CSV and LaTeX, and no page without --out."),
]
_Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="With --figures or --tables: only the figure or table of this name; may be repeated.",
    ),
]


def report(
    runs: _Runs,
    out: _Out = None,
    each: _Each = False,
    figures: _Figures = None,
    figure_format: _Format = FigureFormat.pdf,
    tables: _Tables = None,
    only: _Only = None,
) -> None:
    """Write an HTML page about runs, side by side, or about a study. It can write figures and tables as files."""
    if only and figures is None and tables is None:
        raise ConfigError("--only: expected --figures or --tables beside it, found neither")
    console = Terminal()
    document = _document(runs, out, each, console)
    document.require(only or ())
    if figures is not None:
        _write_figures(document, figures, figure_format, only or (), console)
    if tables is not None:
        files = analysis.write_tables(document, tables, only or ())
        console.print(f"tables: {len(files)} files in {tables}", soft_wrap=True, highlight=False)
    if out is not None or (figures is None and tables is None):
        page = analysis.write_page(document, out or (runs[0] if len(runs) == 1 else Path()))
        console.print(f"report: {page}", soft_wrap=True, highlight=False)


def _document(folders: list[Path], out: Path | None, each: bool, console: Terminal) -> analysis.Document:
    """Open the folders, show the closing table of runs, and return the report."""
    command = f"fedsim report {shlex.join(map(str, folders))}"
    studies = [folder for folder in folders if analysis.is_study(folder)]
    if studies and len(folders) > 1:
        raise ConfigError(
            f"a report is about runs or about one study; found {len(folders)} folders, and {studies[0]} is a study"
        )
    if studies:
        study = analysis.open_study(studies[0])
        if each:
            console.print(f"{analysis.write_run_reports(study)} pages of runs written", highlight=False)
        return analysis.study_document(study, out if out is not None else studies[0], command)
    if each:
        raise ConfigError(f"--each: expected the folder of a study, found that of a run: {folders[0]}")
    runs = analysis.open_all(folders)
    console.print(analysis.closing_table(runs))
    return analysis.run_document(runs, command)


def _write_figures(
    document: analysis.Document, folder: Path, kind: FigureFormat, only: Sequence[str], console: Terminal
) -> None:
    files, refused = analysis.write_figures(document, folder, kind.value, only)
    console.print(f"figures: {len(files)} in {folder}", soft_wrap=True, highlight=False)
    for reason in refused:
        console.print(f"not drawn: {reason}", soft_wrap=True, highlight=False, markup=False)

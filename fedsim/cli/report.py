"""`fedsim report`: an HTML page about runs or about a study; its figures and tables as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from fedsim import analysis
from fedsim.cli.options import PAGES, check_ending, grouped
from fedsim.common.errors import ConfigError
from fedsim.common.terminal import Terminal, say

_Runs = Annotated[
    list[Path], Argument(help="Run folders, folders of several runs, or the folder of one study.")
]
_Out = Annotated[
    Path | None,
    Option(
        "--out",
        "-o",
        help="The page to write; by default report.html in the folder, or here for several folders.",
    ),
]
_Each = Annotated[bool, Option("--each", help="Studies: also write a page into each run's folder.")]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a report shows, and under which names."""

    title: Annotated[
        list[str] | None,
        Option(metavar="NAME=TITLE", help="Show a level or a run under another name; may be repeated."),
    ] = None
    metric: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="Studies: compare this metric, as fedsim list metrics names it, or FILE.py:NAME; may be repeated.",
        ),
    ] = None

    def titles(self) -> dict[str, str]:
        """Return titles by name. Raises ConfigError."""
        titles: dict[str, str] = {}
        for text in self.title or ():
            name, sign, title = (part.strip() for part in text.partition("="))
            if not (name and sign and title):
                raise ConfigError(f"--title {text}: expected NAME=TITLE, such as fedmgda_plus=FedMGDA+")
            if name in titles:
                raise ConfigError(f"--title: expected one title for {name}, found two")
            titles[name] = title
        return titles


@dataclass(frozen=True, kw_only=True)
class Files:
    """Figures and tables to write as files."""

    figures: Annotated[
        Path | None, Option(help="Write the figures into this folder; no page without --out.")
    ] = None
    figure_format: Annotated[
        Literal["pdf", "png", "svg"] | None,
        Option("--format", help="With --figures: their file format, by default pdf."),
    ] = None
    theme: Annotated[
        Literal["light", "dark"] | None,
        Option(help="With --figures: the background, which also ends the files' names; by default light."),
    ] = None
    tables: Annotated[
        Path | None, Option(help="Write the tables into this folder as CSV and LaTeX; no page without --out.")
    ] = None
    only: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="With --figures or --tables: only those of this name; may be repeated."),
    ] = None

    def __post_init__(self) -> None:
        if self.only and not self.wanted:
            raise ConfigError("--only: expected --figures or --tables beside it, found neither")
        for option, value in (("--format", self.figure_format), ("--theme", self.theme)):
            if value and self.figures is None:
                raise ConfigError(f"{option}: expected --figures beside it, found none")

    @property
    def wanted(self) -> bool:
        """Whether any files are to be written."""
        return self.figures is not None or self.tables is not None

    def write(self, document: analysis.Document) -> None:
        """Write the files of a report."""
        if self.figures is not None:
            files, refused = analysis.write_figures(
                document, self.figures, self.figure_format or "pdf", self.only or (), self.theme
            )
            say(f"figures: {len(files)} in {self.figures}")
            for reason in refused:
                say(f"not drawn: {reason}")
        if self.tables is not None:
            files = analysis.write_tables(document, self.tables, self.only or ())
            say(f"tables: {len(files)} files in {self.tables}")


@grouped
def report(runs: _Runs, out: _Out = None, each: _Each = False, *, shown: Shown, files: Files) -> None:
    """Write an HTML page about runs, side by side, or about a study. It can write figures and tables as files."""
    if out is not None and not out.is_dir():
        check_ending("--out", out, PAGES)
    document = _document(runs, out, each, shown, files.only or ())
    for finding in document.findings:
        say(f"- {finding}")
    files.write(document)
    if out is not None or not files.wanted:
        page = analysis.write_page(document, out or (runs[0] if len(runs) == 1 else Path()))
        say(f"report: {page}")


def _document(
    folders: list[Path], out: Path | None, each: bool, shown: Shown, only: Sequence[str]
) -> analysis.Document:
    """Open the folders, show the closing table of runs, and return the report, which must have the names in `only`."""
    from fedsim.analysis.report.report import report_command

    titles, metrics = shown.titles(), shown.metric or ()
    command = report_command(folders, titles, metrics)
    studies = [folder for folder in folders if analysis.is_study(folder)]
    if studies and len(folders) > 1:
        raise ConfigError(
            f"a report is about runs or about one study; found {len(folders)} folders, and {studies[0]} is a study"
        )
    if studies:
        study = analysis.open_study(studies[0])
        if metrics:
            study = study.asked({"metrics": metrics})
        place = out if out is not None else studies[0]
        document = analysis.study_document(study, place, command, titles, each=each)
        document.require(only)
        if each:
            say(f"{analysis.write_run_reports(study, titles)} pages of runs written")
        return document
    for option, value in (("--each", each), ("--metric", metrics)):
        if value:
            raise ConfigError(f"{option}: expected the folder of a study, found that of a run: {folders[0]}")
    runs = analysis.open_all(folders)
    document = analysis.run_document(runs, command, titles)
    document.require(only)
    Terminal().print(analysis.closing_table(runs))
    return document

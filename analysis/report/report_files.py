"""Figures and tables of a report as files for papers: PDF, PNG or SVG; CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
import textwrap
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis.drawing.picture import GREY, INK, Key, Picture, repaint
from fedsim.analysis.report.document import Document, Table
from fedsim.common import arguments
from fedsim.common.errors import RunError, TraceError
from fedsim.common.files import make_directory, write_atomically, write_text

Format = Literal["pdf", "png", "svg"]
Theme = Literal["light", "dark"]
_PAPER: dict[Theme, str] = {"light": "#ffffff", "dark": "#0d1117"}
_INKS: dict[Theme, str] = {"light": INK, "dark": "#e6edf3"}
DOTS_PER_INCH = 200
_COLUMNS_PER_INCH = 0.7
"""Most columns of a legend for an inch of width."""
_LETTERS_PER_INCH = 11
"""Letters of a legend's label that fit into an inch of width."""


def _greek(letter: str) -> str:
    """Return LaTeX's command for a Greek letter, which has nearly the name that Unicode gives the letter."""
    name = unicodedata.name(letter).split()[-1].lower().replace("lamda", "lambda")
    return f"$\\{name if letter.islower() else name.title()}$"


_TEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "±": r"$\pm$",
    "²": r"$^2$",
    "°": r"$^\circ$",
    "µ": r"$\mu$",
    "∞": r"$\infty$",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≠": r"$\neq$",
    "≈": r"$\approx$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "→": r"$\to$",
    **{letter: _greek(letter) for letter in "αβγδεζηθικλμνξπρςστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"},
}


@arguments.checked
def write_figures(
    content: Document,
    folder: str | Path,
    kind: Format,
    only: Collection[str] = (),
    theme: Theme | None = None,
) -> tuple[list[Path], list[str]]:
    """Write figures with legends, all or those named in `only`: on white, or with the theme `dark` on black.

    With a theme, it is part of the file's name, such as `participation-dark.svg`, so that both can lie side by side.
    Returns the files, and for each figure that could not be drawn its name and the reason.
    """
    content.require(only)
    chosen = [figure for name, figure in content.figures.items() if name in only or not only]
    folder = Path(folder)
    make_directory(folder)
    written, refused = [], []
    for figure in chosen:
        try:
            picture = figure.draw()
        except (RunError, TraceError) as error:
            refused.append(f"{figure.name}: {error}")
            continue
        written.append(folder / f"{figure.name}{f'-{theme}' if theme else ''}.{kind}")
        _save(picture, written[-1], kind, theme or "light")
    return written, refused


@arguments.checked
def write_tables(content: Document, folder: str | Path, only: Collection[str] = ()) -> list[Path]:
    """Write tables, all or those named in `only`, as CSV with all digits and as LaTeX with the digits of the page."""
    content.require(only)
    chosen = [table for name, table in content.tables.items() if name in only or not only]
    folder = Path(folder)
    make_directory(folder)
    written = []
    for table in chosen:
        for suffix, text in (("csv", as_csv(table)), ("tex", as_latex(table))):
            written.append(folder / f"{table.name}.{suffix}")
            write_text(written[-1], text)
    return written


def as_csv(table: Table) -> str:
    """Return a table as CSV: a line of headings, then the values with all digits; nothing for NaN."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.heading for column in table.columns)
    writer.writerows([None if value != value else value for value in row] for row in table.rows)
    return text.getvalue()


def as_latex(table: Table) -> str:
    """Return a table as LaTeX for `\\usepackage{booktabs}`, with the digits of the page, without its `wide` columns."""
    narrow = [not column.wide for column in table.columns]
    kinds = "".join("l" if words else "r" for words in compress(table.words(), narrow))
    lines = (" & ".join(map(_tex, compress(row, narrow))) + r" \\" for row in table.texts())
    head = " & ".join(_tex(column.heading) for column in compress(table.columns, narrow)) + r" \\"
    return "\n".join(_latex_lines(table, kinds, head, lines)) + "\n"


def _latex_lines(table: Table, kinds: str, head: str, lines: Iterator[str]) -> Iterator[str]:
    yield from (r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering")
    yield f"\\caption{{{_tex(table.caption)}}}"
    yield f"\\label{{tab:{table.name}}}"
    yield from (f"\\begin{{tabular}}{{{kinds}}}", r"\toprule", head, r"\midrule")
    yield from lines
    yield from (r"\bottomrule", r"\end{tabular}", r"\end{table}")


def _tex(text: str) -> str:
    """Return a text for LaTeX; a number below 0 has a minus, not a hyphen."""
    text = re.sub(r"(?<![\w-])-(?=[\d.∞])", "−", text)
    return re.sub("|".join(map(re.escape, _TEX)), lambda match: _TEX[match.group()], text)


def on_paper(picture: Picture, theme: Theme = "light") -> Canvas:
    """Return the figure of a picture under its legend, on the paper of a theme."""
    canvas = picture.figure
    canvas.patch.set_alpha(1)
    canvas.patch.set_facecolor(_PAPER[theme])
    if picture.keys:
        _add_legend(canvas, picture.keys)
    if theme != "light":
        repaint(canvas, _INKS[theme])
    return canvas


def _save(picture: Picture, path: Path, kind: Format, theme: Theme) -> None:
    """Save a picture under its legend. Equal pictures give equal bytes."""
    canvas = on_paper(picture, theme)
    no_dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    description_key = {"pdf": "Subject", "svg": "Description", "png": "Description"}[kind]

    def write(target: Path) -> None:
        with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": path.stem}):
            canvas.savefig(
                target, format=kind, dpi=DOTS_PER_INCH, metadata=no_dates | {description_key: picture.alt}
            )

    write_atomically(path, write)


def _add_legend(canvas: Canvas, keys: Sequence[Key]) -> None:
    """Add a legend above a figure, in as many columns as fit; long labels wrap."""
    width, height = canvas.get_size_inches()
    letters = int(width * _LETTERS_PER_INCH)
    keys = [replace(key, label=textwrap.fill(key.label, letters)) for key in keys]
    agg: Any = FigureCanvasAgg(canvas)
    renderer = agg.get_renderer()
    for columns in range(min(len(keys), int(width * _COLUMNS_PER_INCH)), 0, -1):
        legend = canvas.legend(
            handles=[_handle(key) for key in keys],
            loc="outside upper left",
            ncols=columns,
            frameon=False,
            fontsize=9,
            labelcolor=INK,
        )
        if columns == 1 or legend.get_window_extent(renderer).width <= canvas.bbox.width:
            break
        legend.remove()
    further = max(key.label.count("\n") for key in keys)
    canvas.set_size_inches(width, height + (0.22 + 0.15 * further) * -(-len(keys) // columns))


def _handle(key: Key) -> Artist:
    if key.area:
        bare = key.colour == "transparent"
        return Patch(facecolor="none" if bare else key.colour, edgecolor=GREY, linewidth=0.5, label=key.label)
    line = Line2D([], [], color=key.colour, marker=key.marker or None, label=key.label)
    line.set_linestyle((0, key.dashes) if key.dashes else "solid")
    return line

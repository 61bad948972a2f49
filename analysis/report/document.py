"""The parts of a report before it becomes a page or files: words, tables of values, figures drawn on demand."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedsim.analysis.drawing.picture import Picture
from fedsim.analysis.tables.headings import heading_of
from fedsim.common.errors import ConfigError, closest

if TYPE_CHECKING:
    import pandas as pd

_LARGE = 1e4


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; the top of the page lists those of level 2."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; `kind` is "", "note" or "warning"."""

    text: str
    kind: str = ""


Topic = Literal["accuracy", "worst-off clients", "interaction", "participation", "lost work", "doubts"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that runs or a study say, as a sentence."""

    topic: Topic
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Findings:
    """What runs or a study say, the most important first."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted text; with a `summary`, folded away under it."""

    text: str
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Links:
    """Links to other pages: names, and addresses relative to this page."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, with the unit, and how its numbers are written."""

    heading: str
    digits: int | None = 0
    """Decimals of a number that is not whole; None writes four significant digits."""
    signed: bool = False
    least: float = 0.0
    """Positive numbers below this, such as small p values, are written as below it."""
    wide: bool = False
    """Left out of LaTeX, as a page of a paper has no room for it; the report and the CSV file have it."""

    def show(self, value: Any) -> str:
        """Return a value as text; a dash stands for None and NaN, ∞ for infinity."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        if isinstance(value, float) and math.isinf(value):
            return "∞" if value > 0 else "−∞"
        if isinstance(value, float) and 0 < value < self.least:
            return f"<{self.least:g}"
        if isinstance(value, float) and self.digits is None:
            return f"{value:.4g}" if abs(value) < _LARGE else f"{value:,.0f}"
        if isinstance(value, float):
            return f"{value:{'+' if self.signed else ''}.{self.digits}f}"
        return str(value)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of values; the first value of a row is its name."""

    name: str
    """Unique among the tables and figures of a report: the value of `--only`, and the name of its file."""
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    def words(self) -> list[bool]:
        """Return for each column whether it holds words (texts that begin with a letter) rather than numbers."""
        values = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        return [any(isinstance(v, str) and v[:1].isalpha() for v in column) for column in values]

    def texts(self) -> Iterator[tuple[str, ...]]:
        """Yield the rows as texts."""
        for row in self.rows:
            yield tuple(column.show(value) for column, value in zip(self.columns, row, strict=True))


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture that is drawn on demand."""

    name: str
    """Unique among the tables and figures of a report: the value of `--only`, and the name of its file."""
    draw: Callable[[], Picture]
    """Draws the picture. Raises RunError or TraceError with the reason if it cannot be drawn."""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Gallery:
    """Figures side by side where they fit."""

    figures: tuple[Figure, ...]


Block = Heading | Text | Findings | Code | Facts | Links | Table | Figure | Gallery


@dataclass(frozen=True, slots=True)
class Document:
    """A report: its title, the command that makes it, and its parts."""

    title: str
    command: str
    """The command line that makes the report, without options."""
    blocks: tuple[Block, ...]

    @property
    def figures(self) -> dict[str, Figure]:
        """All figures by name, those in galleries included."""
        nested = (block.figures if isinstance(block, Gallery) else (block,) for block in self.blocks)
        return {block.name: block for blocks in nested for block in blocks if isinstance(block, Figure)}

    @property
    def tables(self) -> dict[str, Table]:
        """All tables by name."""
        return {block.name: block for block in self.blocks if isinstance(block, Table)}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the runs or the study say."""
        return tuple(f for block in self.blocks if isinstance(block, Findings) for f in block.findings)

    def require(self, names: Iterable[str]) -> None:
        """Raise ConfigError, with the closest name, for a name of no figure and no table of the report."""
        known = list(dict.fromkeys((*self.figures, *self.tables)))
        for name in names:
            if name not in known:
                raise ConfigError(f"only: the report has no figure or table {name!r}{closest(name, known)}")


def frame_table(
    name: str, caption: str, frame: pd.DataFrame, columns: Mapping[str, Column] | None = None
) -> Table:
    """Return a frame as a table; columns that `columns` does not name get `heading_of` and three decimals."""
    columns = columns or {}
    shown = tuple(columns.get(str(c), Column(heading_of(str(c)), 3)) for c in frame.columns)
    values = [frame[c].astype(object).tolist() for c in frame.columns]
    return Table(name, caption, shown, tuple(zip(*values, strict=True)))


def slugs(texts: Iterable[str]) -> list[str]:
    """Return distinct names for texts, safe in file names, addresses and HTML ids."""
    taken: dict[str, None] = {}
    for text in texts:
        plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "x"
        name, number = plain, 1
        while name in taken:
            number += 1
            name = f"{plain}-{number}"
        taken[name] = None
    return list(taken)

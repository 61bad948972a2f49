"""Terminal output in which names and texts from files cannot act as control sequences or markup."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_LEAST_COLUMNS, _MOST_COLUMNS, _ANY_WIDTH = 80, 120, 100_000
PLAIN = "fedsim.plain"
"""The error handler of streams for characters that their encoding lacks: similar letters, or a question mark."""
_SIMILAR = {"±": "+-", "–": "-", "−": "-", "…": "...", "×": "x", "µ": "u", "²": "2", "≤": "<=", "≥": ">="}


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_SIMILAR.get(c) or _spelled(c) for c in characters), error.end


def _spelled(character: str) -> str:
    """Return the name of a Greek letter, such as `eta`, and a question mark for other characters."""
    name = unicodedata.name(character, "")
    return name.rpartition(" ")[2].lower() if name.startswith("GREEK ") else "?"


codecs.register_error(PLAIN, _replaced)


class _Output(io.FileIO):
    """An output stream that discards all data once its reader has exited."""

    def write(self, data: Any, /) -> int:
        """Write the data; if the reader has exited, discard this and all later data."""
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(null := os.open(os.devnull, os.O_WRONLY), self.fileno())
            os.close(null)
            return len(data)


def _is_file(stream: Any, number: int) -> bool:
    try:
        return bool(stream.fileno() == number)
    except (OSError, ValueError, AttributeError):  # Python code has replaced the stream
        return False


def keep_streams_open() -> None:
    """Let a command finish even if standard output or error is closed, or its reader exits (`| head -1`)."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            null = os.open(os.devnull, os.O_WRONLY)
            if null != number:  # the number must not be free: a file of the run would get it, and the output
                os.dup2(null, number)
                os.close(null)
        stream = getattr(sys, name)
        if stream is not None and not _is_file(stream, number):
            continue
        text: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "line_buffering": True}
        if stream is not None:
            with suppress(OSError):
                stream.flush()
            text = {key: getattr(stream, key) for key in text}
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(_Output(number, "w", closefd=False)), **text))


def visible(text: str) -> str:
    """Return a text with nonprinting characters as escapes such as `\\x1b`, except for newlines and tabs.

    An escape sequence could move the cursor or hide text, and a direction mark could reverse a name.
    """
    if text.isprintable():
        return text
    return "".join(c if _prints(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(text: str) -> Text:
    """Return a text for a table, without markup."""
    return Text(visible(text))


def facts_table(facts: Iterable[tuple[str, str]], title: str = "") -> Table:
    """Return a table of names and texts, without markup."""
    table = Table(
        title=shown(title) if title else None,
        title_justify="left",
        show_header=False,
        box=None,
        pad_edge=False,
    )
    rows = [(shown(name), shown(text)) for name, text in facts]
    table.add_column(style="bold", min_width=max((name.cell_len for name, _ in rows), default=None))
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def from_to(fewest: int, most: int) -> str:
    """Return a range of counts, as one number if there is no other: "8–12", "8"."""
    return "–".join(f"{count:,}" for count in dict.fromkeys((fewest, most)))


def ruled_table(title: str | Text = "", caption: str | Text = "", *, padding: int = 0) -> Table:
    """Return a table without columns yet: a line beneath its headings, its title and its caption at the left.

    `padding` widens the gap between columns, from one space, by two for each.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, padding), pad_edge=False, show_edge=False)
    table.title, table.caption = (
        (shown(text) if isinstance(text, str) else text) if text else None for text in (title, caption)
    )
    table.title_justify = table.caption_justify = "left"
    return table


def say(text: str, *, err: bool = False) -> None:
    """Print a line on standard output or, with `err`, on standard error."""
    typer.echo(visible(text), err=err)


class Terminal(Console):
    """A console without markup and control sequences."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print. Columns of a table that is too wide wrap between words, and inside words only if they must.

        Lines are broken, uncut, in a terminal below 80 columns if a table has columns that cannot wrap. A file gets
        lines of up to 120 characters where shorter ones would break words.
        """
        tables = [printed for printed in objects if isinstance(printed, Table)]
        width = self.width
        if not self.is_terminal:
            least = max((_size(self, table).minimum for table in tables), default=0)
            width = max(width, least) if least <= _MOST_COLUMNS else width
        if width < _LEAST_COLUMNS and any(column.no_wrap for table in tables for column in table.columns):
            width = _LEAST_COLUMNS
        if width > self.width:
            Terminal(file=self.file, width=width).print(*objects, **options, crop=False)
        else:
            fitted = (self._fitted(each) if isinstance(each, Table) else each for each in objects)
            super().print(*fitted, **options)

    def _fitted(self, table: Table) -> Table:
        """Return a table as wide as this console, its columns at least as wide as their longest word, if it fits.

        Columns that cannot wrap do so between words where it fits in no other way.
        """
        columns = [replace(column) for column in table.columns]
        least, most = _size(self, table)
        if least > self.width:
            columns = [replace(column, no_wrap=False) for column in columns]
        sizes = [_column_size(self, column) for column in columns]
        if not most - sum(size.span for size in sizes) <= self.width < most:
            return table
        widths, rigid = [size.maximum for size in sizes], [column.no_wrap for column in table.columns]
        for _ in range(most - self.width):
            left = [i for i, width in enumerate(widths) if width > sizes[i].minimum]
            widths[max(left, key=lambda i: (not rigid[i], widths[i]))] -= 1
        for column, width in zip(columns, widths, strict=True):
            column.max_width = width
        narrower = copy(table)
        narrower.columns = columns
        return narrower

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text without markup, with nonprinting characters as escapes."""
        return super().render_str(visible(text), **options)


def _size(console: Console, table: Table) -> Measurement:
    """Return the widths of a table whose columns are as wide as their longest words, and as wide as their lines."""
    most = Measurement.get(console, console.options.update_width(_ANY_WIDTH), table).maximum
    return Measurement(most - sum(_column_size(console, column).span for column in table.columns), most)


def _column_size(console: Console, column: Column) -> Measurement:
    """Return the least width of a column, and the width in which none of its lines wraps.

    The least is that of its longest word and its `min_width`, or of the whole column if it cannot wrap.
    """
    wide = console.options.update_width(_ANY_WIDTH)
    sizes = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
    most = max(size.maximum for size in sizes)
    least = max(column.min_width or 0, *(size.minimum for size in sizes))
    return Measurement(most if column.no_wrap else least, most)


def _prints(c: str) -> bool:
    return c.isprintable() or c in "\n\t" or unicodedata.category(c).startswith("Z")

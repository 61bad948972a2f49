"""What people see in a terminal. Names and texts from files are shown there and never obeyed."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import unicodedata
from contextlib import suppress
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_LEAST_COLUMNS = 80
PLAIN = "fedsim.plain"
"""How streams are to write signs that their encoding lacks: with letters like them, else as a question mark."""
_LETTERS = {"±": "+-", "–": "-", "−": "-", "…": "...", "×": "x", "µ": "u", "²": "2", "≤": "<=", "≥": ">="}


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_LETTERS.get(sign) or _spelled(sign) for sign in lacking), error.end


def _spelled(sign: str) -> str:
    """Return a Greek letter as a word, such as `eta`, and a question mark for all else."""
    name = unicodedata.name(sign, "")
    return name.rpartition(" ")[2].lower() if name.startswith("GREEK ") else "?"


codecs.register_error(PLAIN, _plainly)


class _Unread(io.FileIO):
    """An output that drops what is written once its reader has exited."""

    def write(self, data: Any, /) -> int:
        """Write, or let all that follows go nowhere."""
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(nowhere := os.open(os.devnull, os.O_WRONLY), self.fileno())
            os.close(nowhere)
            return len(data)


def _is_file(stream: Any, number: int) -> bool:
    try:
        return bool(stream.fileno() == number)
    except (OSError, ValueError, AttributeError):  # a program of Python has put something else there
        return False


def keep_streams_open() -> None:
    """Let a command do its work though standard output or error is closed, or its reader goes away (`| head -1`)."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:  # else a file of the run would be given the number, and what is printed
                os.dup2(nowhere, number)
                os.close(nowhere)
        stream = getattr(sys, name)
        if stream is not None and not _is_file(stream, number):
            continue
        text: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "line_buffering": True}
        if stream is not None:
            with suppress(OSError):
                stream.flush()
            text = {key: getattr(stream, key) for key in text}
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(_Unread(number, "w", closefd=False)), **text))


def visible(text: str) -> str:
    """Return a text with what does not print written out, such as an escape as `\\x1b`; lines and tabs stay.

    An escape sequence could move the cursor or hide text, and a mark of direction turn a name around.
    """
    if text.isprintable():
        return text
    return "".join(c if _prints(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(text: str) -> Text:
    """Return a text for a table: brackets in it are no markup."""
    return Text(visible(text))


def say(text: str, *, err: bool = False) -> None:
    """Print a line on standard output or, with `err`, on standard error."""
    typer.echo(visible(text), err=err)


class Terminal(Console):
    """A console to which brackets are brackets, and in which nothing that a file says is carried out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a table of which columns cannot wrap is not cut: a terminal below 80 columns breaks its lines."""
        if self.width < _LEAST_COLUMNS and any(map(_stays_whole, objects)):
            Terminal(file=self.file, width=_LEAST_COLUMNS).print(*objects, **options, crop=False)
        else:
            super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text as it is; what does not print is written out."""
        return super().render_str(visible(text), **options)


def _stays_whole(printed: Any) -> bool:
    return isinstance(printed, Table) and any(column.no_wrap for column in printed.columns)


def _prints(c: str) -> bool:
    return c.isprintable() or c in "\n\t" or unicodedata.category(c).startswith("Z")

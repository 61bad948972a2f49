"""Errors of plug-ins: where in a plug-in's file they were raised, and none may end the process."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from traceback import format_exception, format_exception_only, walk_tb

from fedsim.common.errors import RunError
from fedsim.plugins.loading import is_plugin

_LINE = "_line_of_plugin"
"""The attribute of an error that `keep_line` writes."""


@contextmanager
def contained(plugin: str = "") -> Iterator[None]:
    """Raise RunError if a plug-in raises a BaseException such as SystemExit, which would end the process.

    Args:
        plugin: the plug-in in the message. If it is given, the body runs only the plug-in, which then raised any
            SystemExit.
    """
    try:
        yield
    except BaseException as error:
        exits = plugin != "" and isinstance(error, SystemExit)
        if isinstance(error, Exception) or not (exits or ends_the_process(error)):
            raise
        prefix = f"{plugin}: " if plugin else ""
        raise RunError(
            f"{prefix}{with_type(error)}{line_of(error)}: a plug-in may end a run by an Exception alone"
        ) from error


def with_type(error: BaseException) -> str:
    """Return the message of an error after the name of its type."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def ends_the_process(error: BaseException) -> bool:
    """Return whether a plug-in raised this BaseException, which is not the case for a real Ctrl-C within one."""
    root = _root(error)
    if not line_of(error) or type(root).__module__.partition(".")[0] == "fedsim":
        return False
    if not isinstance(root, KeyboardInterrupt):
        return True
    last = root.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:  # a cause that was never raised
        return True
    ours = str(last.tb_frame.f_globals.get("__name__")).startswith("fedsim.")
    return not ours and last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _root(error: BaseException) -> BaseException:
    """Return the first cause of an error: SimPy raises copies of the errors of processes."""
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    return error


def keep_line(error: BaseException) -> None:
    """Write what `line_of` returns into an error that loses its traceback on its way to another process."""
    error.__dict__[_LINE] = line_of(error)


def line_of(error: BaseException) -> str:
    """Return the last line of a plug-in's file in the traceback of an error, as ` (file, line n)`, or "".

    Without such a line, return that of `keep_line`. It is empty for a syntax error, whose message has the line.
    """
    if isinstance(error, SyntaxError):
        return ""
    lines = [
        (Path(frame.f_code.co_filename).name, line)
        for through in (error, _root(error))
        for frame, line in walk_tb(through.__traceback__)
        if is_plugin(str(frame.f_globals.get("__name__")))
    ]
    return f" ({lines[-1][0]}, line {lines[-1][1]})" if lines else str(error.__dict__.get(_LINE, ""))


def traceback_of(error: BaseException) -> str:
    """Return an error and its traceback from the first line of a plug-in's file on; empty if it has no such line.

    The frames above that are cut out of the error.
    """
    in_plugin = False
    for each in _chain(error):
        frame = each.__traceback__
        while frame is not None and not is_plugin(str(frame.tb_frame.f_globals.get("__name__"))):
            frame = frame.tb_next
        if frame is not None:
            each.__traceback__, in_plugin = frame, True
    return "".join(format_exception(error)).rstrip() if in_plugin else _traceback_of_actor(error)


def _traceback_of_actor(error: BaseException) -> str:
    """Return the same for an error of an actor, whose traceback is the text of its cause."""
    files = {module.__file__ for name, module in [*sys.modules.items()] if is_plugin(name)}
    lines = str(error.__cause__).splitlines()
    first = next((i for i, line in enumerate(lines) if _file_in(line) in files), None)
    if first is None:
        return ""
    frames = takewhile(lambda line: line.startswith(" "), lines[first:])
    text = "".join(format_exception_only(error)).rstrip()
    return "\n".join(["Traceback (most recent call last):", *frames, text])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and the errors before it that Python shows above it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _file_in(line: str) -> str:
    """Return the whole path in a line of a traceback, or ""."""
    return str(Path(line.split('"')[1]).absolute()) if line.lstrip().startswith('File "') else ""

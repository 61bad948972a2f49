"""The command line. `docs/reliability.md` lists its exit codes."""

from __future__ import annotations

import errno
import functools
import io
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import fedsim
from fedsim import plugins
from fedsim.cli.audit import audit
from fedsim.cli.check import check
from fedsim.cli.compare import compare
from fedsim.cli.export import export_app
from fedsim.cli.init import init
from fedsim.cli.list import list_plugins
from fedsim.cli.report import report
from fedsim.cli.resume import fork, resume, verify
from fedsim.cli.run import plan, replay, run
from fedsim.cli.runs import clients, runs
from fedsim.cli.schema import schema
from fedsim.cli.study import study
from fedsim.cli.trace.app import trace_app
from fedsim.common.errors import INPUT_ERRORS, ConfigError, Error, SomeFailed
from fedsim.common.paths import check_text, check_working_directory
from fedsim.common.terminal import PLAIN, keep_streams_open, say

_PANELS: dict[str, dict[str, Any]] = {
    "Run": {"init": init, "run": run, "plan": plan, "study": study},
    "Continue and repeat": {"resume": resume, "fork": fork, "replay": replay, "verify": verify},
    "Look": {
        "runs": runs,
        "report": report,
        "compare": compare,
        "clients": clients,
        "audit": audit,
        "export": export_app,
        "list": list_plugins,
    },
    "Worlds": {"trace": trace_app},
    "Check": {"check": check, "schema": schema},
}
"""The commands by name, under the headings of `fedsim --help`."""


class _Grouped(TyperGroup):
    """Shows the commands below the headings of their panels, as plain text."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return [name for commands in _PANELS.values() for name in commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel; all have one width of names."""
        width = max(map(len, self.commands))
        for panel, names in _PANELS.items():
            summaries = {
                name: self.commands[name].get_short_help_str(formatter.width - width - 6) for name in names
            }
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), text) for name, text in summaries.items()])


class _Once(TyperCommand):
    """Refuses an option with one value that is given twice, of which the last alone would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command. Raises ConfigError."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        single = Counter(
            p for p in given if not (getattr(p, "multiple", True) or getattr(p, "is_flag", True))
        )
        for option, times in single.items():
            if times > 1:
                raise ConfigError(f"{option.opts[-1]}: expected one value, found the option {times} times")
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Grouped,
    help="Simulate federated learning whose clients go offline, straggle or fail, and measure its fairness. To start: "
    "fedsim init NAME",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for panel, commands in _PANELS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name=name, rich_help_panel=panel)(command)


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command, so that Ctrl-C is told, which Typer would end in silence, and plug-ins cannot end it."""

    @functools.wraps(command)
    def call(**values: Any) -> None:
        try:
            with plugins.contained():
                command(**values)
        except KeyboardInterrupt:
            say("interrupted", err=True)
            raise typer.Exit(130) from None

    return call


for registered in (a for each in (app, trace_app, export_app) for a in each.registered_commands):
    assert registered.callback is not None
    registered.callback, registered.cls = _guarded(registered.callback), _Once

_BAD_PATH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of the system that a path in the arguments causes: exit code 2."""
_NO_TRACEBACK = (errno.ENOSPC, errno.EROFS, *_BAD_PATH)
"""Errors of the system whose own message names the file: shown without a traceback."""


def _show_version(value: bool) -> None:
    if value:
        say(f"fedsim {fedsim.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    if arguments is None:
        keep_streams_open()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=PLAIN)  # spells characters that the terminal cannot show
    code = _code(arguments)
    sys.exit(_flushed(code) if arguments is None else code)


def _flushed(code: int) -> int:
    """Write out all output; return 1 in place of a code 0 if that fails, such as on a full disk."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        with suppress(OSError):
            os.write(2, b"" if code else f"error: the output cannot be written: {error}\n".encode())
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes again at its end, and would complain
        return code or 1
    return code


def _of_input(error: Exception) -> bool:
    """Return whether the input caused an error. Errors of a run that had started carry notes on where it failed."""
    return isinstance(error, INPUT_ERRORS) and not hasattr(error, "__notes__")


def _code(arguments: list[str] | None) -> int:
    command: Any = typer.main.get_command(app)
    try:
        for text in sys.argv[1:] if arguments is None else arguments:
            check_text(text, "argument")
        check_working_directory()
        command.main(args=arguments, prog_name="fedsim")
    except SystemExit as ended:
        return int(ended.code or 0)
    except KeyboardInterrupt:
        say("interrupted", err=True)
        return 130
    except Error as error:
        say("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]), err=True)
        errors = error.errors.values() if isinstance(error, SomeFailed) else (error,)
        return 2 if all(map(_of_input, errors)) else 1
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_TRACEBACK:
            say(f"error: {error}", err=True)
            return 2 if error.errno in _BAD_PATH else 1
        if not (text := plugins.traceback_of(error)):
            raise
        say(text, err=True)
        return 1
    return 0

"""The command line. Exit codes: 0 done, 1 the run failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import typer
from rich.console import Console
from rich.table import Table

import fedsim
from fedsim import plugins
from fedsim.cli_report import report
from fedsim.cli_trace import trace_app
from fedsim.errors import INPUT_ERRORS, ConfigError, Error

app = typer.Typer(
    help="Simulate fair federated learning among clients that come and go.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(trace_app, name="trace")
app.command()(report)

_KINDS = {
    "rules": "rule",
    "wrappers": "wrapper",
    "clients": "client",
    "selectors": "selector",
    "scenarios": "scenario",
    "tasks": "task",
    "models": "model",
    "partitioners": "partitioner",
    "metrics": "metric",
}


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"fedsim {fedsim.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file; see docs/config.md.")],
    sets: Annotated[list[str] | None, typer.Option("--set", help="Change a key: algorithm.alpha=0.2")] = None,
    out: Annotated[Path, typer.Option(help="Where run folders go: OUT/NAME.")] = Path("runs"),
    workers: Annotated[
        str, typer.Option(help="Client actors in Ray: auto or a number; 0 runs inline.")
    ] = "auto",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a run of the same name.")] = False,
    write_report: Annotated[bool, typer.Option("--report", help="Write the HTML report as well.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Run a configuration, or each of its arms, and show the result."""
    from fedsim.config import load  # imported late: `fedsim --help` needs neither torch nor pydantic models
    from fedsim.progress import shown
    from fedsim.simulate import simulate

    configs = load(config, tuple(sets or ()))
    console = Console()
    with shown(console, quiet) as watch:
        results = simulate(
            configs, out=out, workers=_workers(workers), device=device, force=force, watch=watch
        )
    folders = [result.folder for result in results]
    interrupted = any(result.status == "interrupted" for result in results)
    _close(console, folders, write_report)
    if interrupted:
        console.print(f"interrupted: what was recorded so far is in {folders[-1]}", soft_wrap=True)
        raise typer.Exit(130)


def _close(console: Console, folders: list[Path], write_report: bool) -> None:
    import analysis
    from analysis.closing import closing_table

    runs = [analysis.open(folder) for folder in folders]
    console.print(closing_table(runs))
    for run in runs:
        console.print(f"{run.label}: {run.folder}  digest {str(run.manifest['digest'])[:16]}", soft_wrap=True)
    if write_report:
        from analysis.report import write_report as write

        parent = folders[0].parent if len(folders) > 1 else folders[0]
        console.print(f"report: {write(runs, parent / 'report.html')}", soft_wrap=True)


def _workers(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise ConfigError(f"--workers: expected 'auto' or a number of at least 0, found {text!r}")
    return int(text)


@app.command(name="list")
def list_plugins(
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(_KINDS)}.")],
) -> None:
    """List the plug-ins of a kind with their options and defaults."""
    if kind not in _KINDS:
        from fedsim.errors import closest

        raise ConfigError(f"there is no kind of plug-in {kind!r}{closest(kind, _KINDS)}")
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "what it does", "options"):
        table.add_column(heading)
    for name in plugins.names(_KINDS[kind]):
        table.add_row(name, plugins.summary(_KINDS[kind], name), _options(_KINDS[kind], name))
    Console().print(table)


def _options(kind: str, name: str) -> str:
    given = {
        "task": ("clients", "seed", "data_dir"),
        "model": ("in_shape", "n_classes"),
        "wrapper": ("rule",),
    }.get(kind, ())
    known = plugins.options_of(plugins.factory(kind, name), given) if kind != "metric" else {}
    return ", ".join(f"{n}={_shown(p.default)}" if p.default is not p.empty else n for n, p in known.items())


def _shown(default: object) -> str:
    """Write a default value; groups of options, which have their own, as a table."""
    return "{...}" if isinstance(default, pydantic.BaseModel) else repr(default)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(_code(arguments))


def _code(arguments: list[str] | None) -> int:
    command: Any = typer.main.get_command(app)
    try:
        command.main(args=arguments, prog_name="fedsim")
    except SystemExit as ended:
        return int(ended.code or 0)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        return 130
    except Error as error:
        typer.echo(f"error: {error}", err=True)
        return 2 if isinstance(error, INPUT_ERRORS) else 1
    return 0

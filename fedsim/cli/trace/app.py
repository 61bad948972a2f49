"""`fedsim trace make` and `check`, and the application `fedsim trace` with the commands of the other files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from fedsim.cli.trace.diff import diff
from fedsim.cli.trace.edit import edit
from fedsim.cli.trace.export import export
from fedsim.cli.trace.fit import fit
from fedsim.cli.trace.importing import import_files
from fedsim.cli.trace.join import join_files
from fedsim.cli.trace.output import Force, Out, TraceFile, check_free, summary_line, warnings, write
from fedsim.cli.trace.show import show
from fedsim.common.errors import ConfigError, closest
from fedsim.common.terminal import say

trace_app = typer.Typer(
    help="Make, import, export, fit, join, edit, show and compare worlds.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Sets = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Change a key: world.clients=100; may be repeated."),
]


@trace_app.command()
def make(
    scenario: Annotated[
        Path, Argument(help="A TOML file with only a [world] table, or the name of a shipped file.")
    ],
    out: Out,
    sets: _Sets = None,
    force: Force = False,
) -> None:
    """Write the world of a scenario or a join to a trace file."""
    from fedsim.config.errors import read_toml, validated
    from fedsim.config.load import changed
    from fedsim.config.world import WorldFile, world_files, world_trace

    file = _shipped(scenario)
    raw = read_toml(file)
    if "task" in raw:
        raise ConfigError(
            f"{file.name}: expected only a [world] table, found the configuration of a run; once it is run, its world "
            "is RUN/world.parquet"
        )
    changed(raw, sets or ())
    world = validated(WorldFile, raw, file.name).world
    if world.trace is not None:
        raise ConfigError(f"{file.name}: world.scenario: missing; the world is a trace file already")
    if world.scenario is not None and world.clients is None:
        raise ConfigError(f"{file.name}: world.clients: missing; give the number of clients in the world")
    if world.confound is not None:
        raise ConfigError(f"{file.name}: world.confound: needs a run's data; set it in the run's [world]")
    check_free(out, force, [file])
    trace = world_trace(world, clients=world.clients, seed=0)
    check_free(
        out, force, world_files(world, seed=0)
    )  # only now: a file may name itself, which building refuses
    write(trace, out)


@trace_app.command()
def check(file: TraceFile) -> None:
    """Check a trace file. Each problem is shown with its client and row."""
    from fedsim.worlds.trace import read_trace

    trace = read_trace(file)
    say(f"ok: {file}: {summary_line(trace)}")
    for warning in warnings(trace):
        say(f"warning: {warning}")


def _shipped(scenario: Path) -> Path:
    """Return an existing file, or the shipped scenario file of that name. Raises ConfigError for other arguments."""
    where, _, factory = str(scenario).partition(":")
    if where.endswith(".py"):
        name = f"{where}:{factory or Path(where).stem}"
        raise ConfigError(
            f'{scenario}: a scenario goes into a TOML file: `[world]`, `scenario = "{name}"`, `clients = 10`'
        )
    if scenario.exists() or scenario.suffix or len(scenario.parts) != 1:
        return scenario
    from fedsim import scenarios

    shipped = {p.stem: p for p in Path(scenarios.__path__[0]).glob("*.toml")}
    if scenario.name not in shipped:
        raise ConfigError(
            f"{scenario}: neither a file nor the name of a scenario with one{closest(scenario.name, sorted(shipped))}"
        )
    return shipped[scenario.name]


trace_app.command("import")(import_files)
trace_app.command("join")(join_files)
for command in (export, fit, edit, show, diff):
    trace_app.command()(command)

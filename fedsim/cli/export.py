"""`fedsim export`: runs in the formats of Perfetto and TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim import analysis
from fedsim.common.terminal import say

export_app = typer.Typer(
    help="Write runs in the formats of other tools.", no_args_is_help=True, rich_markup_mode=None
)


@export_app.command()
def perfetto(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write; by default perfetto.json in the folder.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Only so many clients, those with the most jobs.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", help="Only what happened from this virtual time on: 2h, 1d12h.")
    ] = "0s",
    stop: Annotated[
        str | None, typer.Option("--to", help="Only what happened until this virtual time.")
    ] = None,
) -> None:
    """Write the virtual timeline of a run for Perfetto. Open the file at https://ui.perfetto.dev."""
    from_us, to_us = _instant("--from", start), None if stop is None else _instant("--to", stop)
    target = run / "perfetto.json" if out is None else out
    counts = analysis.export_perfetto(
        analysis.open(run), target, clients=clients, from_us=from_us, to_us=to_us
    )
    say(
        f"{target}: {counts.jobs:,} jobs of {counts.clients:,} clients, {counts.steps:,} steps, "
        f"{counts.evaluations:,} evaluations; open it at https://ui.perfetto.dev"
    )


@export_app.command()
def tensorboard(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders; a folder of several runs stands for all of them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the events go, a folder for each run; by default tensorboard/ in each run's folder."
        ),
    ] = None,
) -> None:
    """Write the curves of runs as events for TensorBoard."""
    for exported in analysis.export_tensorboard(analysis.open_all(runs), out):
        say(f"{exported.file}: {exported.steps:,} steps, {exported.evaluations:,} evaluations")
    say(f"look at them with: tensorboard --logdir {out if out is not None else runs[0]}")


def _instant(option: str, text: str) -> int:
    """Return a virtual time in microseconds since the start of the world. Raises ConfigError that names the option."""
    from fedsim.common.errors import ConfigError
    from fedsim.common.units import duration_us

    try:
        return duration_us(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error

"""`fedsim export`: runs in the formats of Perfetto, TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from fedsim import analysis
from fedsim.cli.options import RunFolder, check_ending
from fedsim.common.errors import ConfigError
from fedsim.common.terminal import say
from fedsim.common.units import duration_us

export_app = typer.Typer(
    help="Write runs in the formats of other tools.", no_args_is_help=True, rich_markup_mode=None
)


@export_app.command()
def perfetto(
    run: RunFolder,
    out: Annotated[
        Path | None, Option("--out", "-o", help="The file to write; by default RUN/perfetto.json.")
    ] = None,
    clients: Annotated[int | None, Option(min=1, help="Only this many clients, with the most jobs.")] = None,
    start: Annotated[
        str, Option("--from", help="Only what happens from this virtual time: 2h, 1d12h.")
    ] = "0s",
    stop: Annotated[str | None, Option("--to", help="Only what happens until this virtual time.")] = None,
) -> None:
    """Write the virtual timeline of a run for Perfetto. Open the file at https://ui.perfetto.dev."""
    check_ending("--out", out, (".json",))
    from_us, to_us = _instant("--from", start), None if stop is None else _instant("--to", stop)
    target = run / "perfetto.json" if out is None else out
    counts = analysis.export_perfetto(
        analysis.open_run(run), target, clients=clients, from_us=from_us, to_us=to_us
    )
    say(
        f"{target}: {counts.jobs:,} jobs of {counts.clients:,} clients, {counts.steps:,} steps, "
        f"{counts.evaluations:,} evaluations; open it at https://ui.perfetto.dev"
    )


_Runs = Annotated[
    list[Path], Argument(help="Run folders, folders of several runs, or of studies, for their finished runs.")
]


def _opened(folders: list[Path]) -> list[analysis.Run]:
    """Open the runs of folders; the folder of a study stands for its finished runs."""
    paths: list[Path] = []
    for folder in folders:
        study = analysis.open_study(folder) if analysis.is_study(folder) else None
        paths += [folder] if study is None else [cell.folder for cell in study.finished]
    return analysis.open_all(paths)


@export_app.command()
def tensorboard(
    runs: _Runs,
    out: Annotated[
        Path | None,
        Option(
            "--out",
            "-o",
            help="Where the events go: a folder for each run; by default RUN/tensorboard for each.",
        ),
    ] = None,
) -> None:
    """Write the curves of runs as events for TensorBoard."""
    for exported in analysis.export_tensorboard(_opened(runs), out):
        say(f"{exported.file}: {exported.steps:,} steps, {exported.evaluations:,} evaluations")
    say(f"look at them with: tensorboard --logdir {shlex.quote(str(runs[0] if out is None else out))}")


@export_app.command()
def wandb(
    runs: _Runs,
    project: Annotated[str, Option(help="The project that gets a run for each.")] = "fedsim",
) -> None:
    """Send the curves of runs to Weights & Biases."""
    for sent in analysis.export_wandb(_opened(runs), project):
        say(f"{sent.place}: {sent.steps:,} steps, {sent.evaluations:,} evaluations")


@export_app.command()
def mlflow(
    runs: _Runs,
    store: Annotated[
        str, Option(metavar="STORE", help="A tracking URI, or a folder for a database of MLflow.")
    ] = "mlflow",
) -> None:
    """Send the curves of runs to MLflow."""
    for sent in analysis.export_mlflow(_opened(runs), store):
        say(f"{sent.place}: {sent.steps:,} steps, {sent.evaluations:,} evaluations")
    say(f"look at them with: mlflow ui --backend-store-uri {shlex.quote(analysis.tracking_uri(store))}")


def _instant(option: str, text: str) -> int:
    """Return a virtual time in microseconds since the start of the world. Raises ConfigError that names the option."""
    try:
        return duration_us(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error

"""`fedsim run`, `replay` and `plan`: running configurations, and saying beforehand what a run will do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from fedsim.errors import ConfigError, RunError

if TYPE_CHECKING:
    from fedsim.config import RunConfig

Sets = Annotated[list[str] | None, typer.Option("--set", help="Change a key: algorithm.alpha=0.2")]
Out = Annotated[Path, typer.Option(help="Where run folders go: OUT/NAME.")]
Workers = Annotated[str, typer.Option(help="Client actors in Ray: auto or a number; 0 runs inline.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a run of the same name.")]
WriteReport = Annotated[bool, typer.Option("--report", help="Write the HTML report as well.")]
WithProfile = Annotated[
    bool, typer.Option("--profile", help="Show where the time went, and write profile.json for Perfetto.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Config = Annotated[Path, typer.Argument(help="A TOML file; see docs/config.md.")]


def run(
    config: Config,
    sets: Sets = None,
    out: Out = Path("runs"),
    workers: Workers = "auto",
    device: Device = "auto",
    force: Force = False,
    write_report: WriteReport = False,
    profile: WithProfile = False,
    quiet: Quiet = False,
) -> None:
    """Run a configuration, or each of its arms, and show the result."""
    from fedsim.config import load  # imported late: `fedsim --help` needs neither torch nor pydantic models

    _simulate(load(config, tuple(sets or ())), out, workers, device, force, write_report, quiet, profile)


def replay(
    parent: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    sets: Sets = None,
    same_participation: Annotated[
        bool,
        typer.Option("--same-participation", help="Give jobs to the same clients at the same instants."),
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the new run; PARENT-replay by default.")] = None,
    out: Out = Path("runs"),
    workers: Workers = "auto",
    device: Device = "auto",
    force: Force = False,
    write_report: WriteReport = False,
    quiet: Quiet = False,
) -> None:
    """Run another rule, or another selector, in exactly the world of a finished run."""
    import analysis
    from analysis.compare import compare
    from fedsim.replay import compare_participation, replay_config

    config = replay_config(parent, tuple(sets or ()), same_participation=same_participation, name=name)
    folder = _simulate([config], out, workers, device, force, write_report, quiet)[0]
    console = Console()
    console.print(compare(analysis.open(parent), analysis.open(folder)))
    if same_participation:
        found = compare_participation(parent, folder)
        if found.difference:
            raise RunError(f"{folder}: participation differs from that of {parent}: {found.difference}")
        console.print(
            f"same participation: {found.jobs:,} jobs, the same clients, instants, losses and arrivals"
        )


def plan(
    config: Config,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the tables jobs and steps of the plan as well: OUT/NAME.")
    ] = None,
    force: Force = False,
    workers: Workers = "auto",
) -> None:
    """Say what a run will do, without training: its steps, who is chosen and lost, bytes, wall time and memory."""
    from fedsim.config import load
    from fedsim.forecast import forecast, table

    console = Console()
    for one in load(config, tuple(sets or ())):
        found = forecast(one, workers=_workers(workers), out=out, force=force)
        console.print(table(found))


def _simulate(
    configs: Sequence[RunConfig],
    out: Path,
    workers: str,
    device: Literal["auto", "cpu", "cuda"],
    force: bool,
    write_report: bool,
    quiet: bool,
    profile: bool = False,
) -> list[Path]:
    """Run, show the result, and return the folders."""
    from time import perf_counter

    from fedsim.progress import shown
    from fedsim.simulation import simulate

    console, started = Console(), perf_counter()
    with shown(console, quiet) as watch:
        results = simulate(
            configs,
            out=out,
            workers=_workers(workers),
            device=device,
            force=force,
            watch=watch,
            profile=profile,
        )
    took_s = perf_counter() - started
    folders = [result.folder for result in results]
    _close(console, folders, write_report)
    if profile:
        _show_profiles(console, folders, took_s)
    if any(result.status == "interrupted" for result in results):
        console.print(f"interrupted: what was recorded so far is in {folders[-1]}", soft_wrap=True)
        raise typer.Exit(130)
    return folders


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


def _show_profiles(console: Console, folders: list[Path], took_s: float) -> None:
    """Show where the time of each run went, and how much of the time that all of them took is accounted for."""
    import analysis
    from analysis.closing import profile_table, wall_s

    runs = [analysis.open(folder) for folder in folders]
    for run in runs:
        console.print()
        console.print(profile_table(run))
        console.print(
            f"trace: {run.folder / 'profile.json'}, to be opened at https://ui.perfetto.dev", soft_wrap=True
        )
    known_s = sum(map(wall_s, runs))
    console.print(
        f"the parts add up to {known_s:.2f} s, {100 * known_s / took_s:.1f} % of {took_s:.2f} s on the wall clock"
    )


def _workers(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise ConfigError(f"--workers: expected 'auto' or a number of at least 0, found {text!r}")
    return int(text)

"""`fedsim run`, `replay` and `plan`: run configurations, repeat a world with changes, and estimate a run beforehand."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedsim import analysis
from fedsim.common.errors import ConfigError, RunError, SomeFailed
from fedsim.common.terminal import Terminal

if TYPE_CHECKING:
    from fedsim.config.run import RunConfig
    from fedsim.runs.result import Result

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key: algorithm.alpha=0.2; may be repeated."),
]
Out = Annotated[Path, typer.Option(help="Where run folders go: OUT/NAME.")]
Workers = Annotated[
    str, typer.Option(help="Worker processes that train: a number, or auto; 0 trains in this process.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="The Ray cluster to join: auto or HOST:PORT (docs/cluster.md); by default a local one."
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Device to compute on; auto takes a GPU if there is one."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a run of the same name.")]
GoOn = Annotated[
    bool,
    typer.Option("--resume", help="Keep existing runs: skip finished ones and continue interrupted ones."),
]
WriteReport = Annotated[bool, typer.Option("--report", help="Write the HTML report as well.")]
WithProfile = Annotated[
    bool,
    typer.Option("--profile", help="Show where the wall time went, and write profile.json for Perfetto."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Live = Annotated[bool, typer.Option("--live", help="Show a dashboard in the terminal during the run.")]
TensorBoard = Annotated[
    Path | None,
    typer.Option("--tensorboard", help="Write TensorBoard events during the run: DIR/NAME."),
]
Config = Annotated[Path, typer.Argument(help="A TOML file; see docs/config.md.")]


_WARNED = {
    "no finite update": "no update that arrived was finite, so the model is still the initial one; its jobs have the "
    "status nonfinite; a smaller train.lr may help",
    "accuracy is no number": "the model's outputs are not finite, so there is no accuracy; a smaller train.lr may help",
}
"""The text shown for each warning in a manifest."""


def run(
    config: Config,
    sets: Sets = None,
    out: Out = Path("runs"),
    workers: Workers = "auto",
    ray_address: RayAddress = None,
    device: Device = "auto",
    force: Force = False,
    go_on: GoOn = False,
    write_report: WriteReport = False,
    profile: WithProfile = False,
    quiet: Quiet = False,
    live: Live = False,
    tensorboard: TensorBoard = None,
) -> None:
    """Run a configuration, or each of its arms, and show the result."""
    from fedsim.config.load import load  # imported here: `fedsim --help` needs neither torch nor pydantic

    check_tensorboard(tensorboard)
    configs = load(config, tuple(sets or ()))
    _simulate(
        configs,
        out,
        workers,
        device,
        force,
        write_report,
        quiet,
        profile,
        ray_address,
        live,
        tensorboard,
        go_on,
    )


def replay(
    parent: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    sets: Sets = None,
    same_participation: Annotated[
        bool,
        typer.Option("--same-participation", help="Dispatch jobs to the same clients at the same times."),
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the new run; by default PARENT-replay.")] = None,
    out: Out = Path("runs"),
    workers: Workers = "auto",
    device: Device = "auto",
    force: Force = False,
    write_report: WriteReport = False,
    quiet: Quiet = False,
) -> None:
    """Run a changed configuration in the world of a finished run. Change the rule, selector, pacing or cost."""
    from fedsim.runs.replay import compare_participation, replay_config

    config = replay_config(parent, tuple(sets or ()), same_participation=same_participation, name=name)
    folder = _simulate([config], out, workers, device, force, write_report, quiet)[0]
    console = Terminal()
    console.print(analysis.compare(analysis.open(parent), analysis.open(folder)))
    if same_participation:
        participation = compare_participation(parent, folder)
        if participation.difference:
            raise RunError(
                f"{folder}: participation differs from that of {parent}: {participation.difference}"
            )
        console.print(
            f"same participation: {participation.jobs:,} jobs, the same clients, instants, losses and arrivals"
        )


def plan(
    config: Config,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the tables of planned jobs and steps to OUT/NAME as well.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a plan of the same name, never a run.")
    ] = False,
    workers: Annotated[
        str,
        typer.Option(help="Workers to estimate wall time and memory for: a number, or auto."),
    ] = "auto",
) -> None:
    """Simulate a run's timeline without training. It shows steps, jobs and bytes, and estimates time and memory."""
    from fedsim.config.load import load

    configs = load(config, tuple(sets or ()))
    from fedsim.runs.inputs import InputCache
    from fedsim.runs.plan import plan, table

    console, cache = Terminal(), InputCache()
    for one in configs:
        found = plan(one, workers=workers_of_text(workers), out=out, force=force, cache=cache)
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
    ray_address: str | None = None,
    live: bool = False,
    tensorboard: Path | None = None,
    go_on: bool = False,
) -> list[Path]:
    """Run, show the result, and return the folders."""
    from time import perf_counter

    from fedsim.cli.observers import watching
    from fedsim.runs.simulate import simulate

    console, started = Terminal(), perf_counter()
    names = [config.name for config in configs]
    with watching(console, names, quiet=quiet, live=live, tensorboard=tensorboard) as watch:
        failed, over = None, 0
        try:
            results = simulate(
                configs,
                out=out,
                workers=workers_of_text(workers),
                device=device,
                force=force,
                go_on=go_on,
                watch=watch,
                profile=profile,
                ray_address=ray_address,
            )
        except SomeFailed as error:
            failed, results, over = error, list(error.results), len(error.errors)
    took_s = perf_counter() - started
    if left := names[len(results) + over :]:
        console.print(
            f"not begun: {', '.join(left)}; all go on with the same command and --resume", soft_wrap=True
        )
    close(console, results, write_report=write_report, took_s=took_s if profile else None, failed=failed)
    return [result.folder for result in results]


def check_tensorboard(folder: Path | None) -> None:
    """Raise ConfigError before anything starts if events are wanted in a folder and TensorBoard is not installed."""
    if folder is not None:
        analysis.require_tensorboard()


def close(
    console: Terminal,
    results: Sequence[Result],
    *,
    write_report: bool,
    took_s: float | None = None,
    failed: SomeFailed | None = None,
) -> None:
    """Show the results of runs, with `took_s` also where those seconds went.

    Raises typer.Exit with code 130 if a run was interrupted, else `failed` if there is one.
    """
    if results:
        _show(console, results, write_report, took_s)
    if any(result.status == "interrupted" for result in results):
        if failed is not None:
            console.print(f"error: {failed}", soft_wrap=True)
        again = shlex.quote(str(results[-1].folder))
        console.print(f"interrupted, and saved; continue it with: fedsim resume {again}", soft_wrap=True)
        raise typer.Exit(130)
    if failed is not None:
        raise failed


def _show(console: Terminal, results: Sequence[Result], write_report: bool, took_s: float | None) -> None:
    """Show the closing table of runs, then each run's folder, digest and warnings."""
    folders = [result.folder for result in results]
    runs = [analysis.open(folder) for folder in folders]
    console.print(analysis.closing_table(runs))
    for run in runs:
        console.print(f"{run.label}: {run.folder}  digest {str(run.manifest['digest'])[:16]}", soft_wrap=True)
        if warning := run.manifest.get("warning"):
            console.print(f"{run.label}: {_WARNED.get(warning, warning)}", soft_wrap=True)
        if run.manifest.get("ended_by") == "world":
            console.print(
                f"{run.label}: ended at step {run.manifest['steps']:,}, before [stop] says so: no client is online or "
                "chosen any more",
                soft_wrap=True,
            )
        if run.manifest.get("ended_by") == "target" and not run.manifest["steps"]:
            console.print(
                f"{run.label}: ended before its first step: the initial model meets stop.target",
                soft_wrap=True,
            )
    if write_report:
        parent = folders[0].parent if len(folders) > 1 else folders[0]
        console.print(f"report: {analysis.write_report(runs, parent)}", soft_wrap=True)
    if took_s is not None:
        _show_profiles(console, folders, took_s)


def _show_profiles(console: Terminal, folders: list[Path], took_s: float) -> None:
    """Show where the time of each run went, and which share of `took_s` these parts add up to."""
    runs = [analysis.open(folder) for folder in folders]
    for run in runs:
        console.print()
        console.print(analysis.profile_table(run))
        console.print(
            f"trace: {run.folder / 'profile.json'}; open it at https://ui.perfetto.dev", soft_wrap=True
        )
    known_s = sum(run.wall_s for run in runs)
    console.print(
        f"the parts add up to {known_s:.2f} s, {100 * known_s / took_s:.1f} % of {took_s:.2f} s on the wall clock"
    )


def workers_of_text(text: str, option: str = "--workers", least: int = 0) -> int | Literal["auto"]:
    """Parse an option such as `--workers`. Raises ConfigError."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{option}: expected 'auto' or a number of at least {least}, found {text!r}")
    return int(text)

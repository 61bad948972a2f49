"""`fedsim run`, `replay` and `plan`: run configurations, repeat a world with changes, and estimate a run beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fedsim.cli.options import (
    Config,
    NewRun,
    Sets,
    Training,
    WatchedTraining,
    command_line,
    count_of,
    grouped,
)
from fedsim.cli.study import Running, run_cells
from fedsim.common.errors import ConfigError, RunError
from fedsim.common.terminal import Terminal, say


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Options of a run with several seeds, or with several values of a key."""

    seeds: Annotated[
        str | None,
        Option(help="Run with several seeds: how many, or a list such as 1,3,9 or 6-10. Makes a study."),
    ] = None
    jobs: Annotated[
        str | None, Option(help="Studies: processes, each of which runs one cell at a time; by default auto.")
    ] = None


@grouped
def run(
    config: Config,
    new: NewRun,
    cells: Cells,
    options: WatchedTraining,
    resume: Annotated[
        bool, Option("--resume", help="Keep existing runs: skip finished ones and continue interrupted ones.")
    ] = False,
) -> None:
    """Run a configuration, or each of its arms, and show the result.

    Several seeds (--seeds 5) or values of a key (--set algorithm.alpha=0.1,0.2) make a study of it.
    """
    if cells.seeds is not None or _several_values(new.sets or ()):
        _refuse_for_study(options, resume)
        _sweep(config, new, cells, options)
        return
    if cells.jobs is not None:
        raise ConfigError("--jobs: it is for several seeds or values; --workers trains one run in parallel")
    from fedsim.config.load import (
        load_config,  # imported here: `fedsim --help` needs neither torch nor pydantic
    )

    configs = load_config(config, tuple(new.sets or ()))
    from fedsim.cli.observers import training
    from fedsim.runs.simulate import simulate

    again = command_line("run", config, "--resume", groups=(new, options))
    with training(options, again, [each.name for each in configs]) as trained:
        trained.results = simulate(
            configs, resume=resume, watch=trained, **new.arguments(), **options.arguments()
        )


def _sweep(config: Path, new: NewRun, cells: Cells, options: WatchedTraining) -> None:
    """Run the study of a configuration with several seeds or values."""
    from fedsim.studies.sweep import sweep

    running = Running(
        out=new.out,
        jobs=cells.jobs or "auto",
        device=options.device,
        force=new.force,
        quiet=options.quiet,
    )
    again = command_line("run", config, groups=(new, cells, options))
    run_cells(sweep(config, new.sets or (), cells.seeds), config.name, running, again)


@grouped
def replay(
    parent: Annotated[Path, Argument(help="The folder of a finished run.")],
    new: NewRun,
    options: Training,
    same_participation: Annotated[
        bool, Option("--same-participation", help="Dispatch jobs to the same clients at the same times.")
    ] = False,
    name: Annotated[str | None, Option(help="Name of the new run; by default PARENT-replay.")] = None,
) -> None:
    """Run a changed configuration in the world of a finished run. Change the rule, selector, pacing or cost."""
    from fedsim.cli.observers import show_differences, training
    from fedsim.runs.replay import replay_config
    from fedsim.runs.simulate import simulate

    config = replay_config(parent, tuple(new.sets or ()), same_participation=same_participation, name=name)
    same = "--same-participation" if same_participation else None
    named = () if name is None else ("--name", name)
    again = command_line("replay", parent, same, *named, groups=(new, options))
    with training(WatchedTraining(**vars(options)), again, [config.name]) as trained:
        trained.results = simulate(config, watch=trained, **new.arguments(), **options.arguments())
    folder = trained.results[0].folder
    if same_participation:
        _confirm_participation(parent, folder)
    show_differences(parent, folder)


def _confirm_participation(parent: Path, folder: Path) -> None:
    """Say that a replay had the jobs of its parent. Raises RunError that names the first difference."""
    from fedsim.runs.replay import compare_participation

    participation = compare_participation(parent, folder)
    if difference := participation.difference:
        raise RunError(f"{folder}: participation differs from that of {parent}: {difference}")
    say(f"same participation: {participation.jobs:,} jobs, the same clients, instants, losses and arrivals")


def plan(
    config: Config,
    sets: Sets = None,
    out: Annotated[
        Path | None,
        Option("--out", "-o", help="Write the tables of planned jobs and steps to OUT/NAME as well."),
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite a plan of the same name, never a run.")] = False,
    workers: Annotated[
        str, Option(help="Workers to estimate wall time and memory for: a number, or auto.")
    ] = "auto",
) -> None:
    """Simulate a run's timeline without training. It shows steps, jobs and bytes, and estimates time and memory."""
    if force and out is None:
        raise ConfigError("--force: expected --out beside it, found none")
    from fedsim.config.load import load_config

    configs = load_config(config, tuple(sets or ()))
    from fedsim.runs.inputs import InputCache
    from fedsim.runs.plan.plan import plan_run, table

    console, cache = Terminal(), InputCache()
    for one in configs:
        planned = plan_run(one, workers=count_of(workers), out=out, force=force, cache=cache)
        console.print(table(planned))


def _several_values(sets: Sequence[str]) -> bool:
    """Return whether an assignment has several values, without importing what a single run does not need."""
    if not any("," in text for text in sets):
        return False
    from fedsim.studies.key_axis import several

    return any(map(several, sets))


def _refuse_for_study(options: WatchedTraining, resume: bool) -> None:
    """Raise ConfigError for an option that a study of several seeds or values does not have."""
    reasons = {
        "--live": (options.live, "cells run side by side, and a table shows them all"),
        "--tensorboard": (
            options.tensorboard,
            "write events afterwards: fedsim export tensorboard OUT/NAME/runs/*",
        ),
        "--wandb": (options.wandb, "export the runs afterwards: fedsim export wandb OUT/NAME/runs/*"),
        "--mlflow": (options.mlflow, "export the runs afterwards: fedsim export mlflow OUT/NAME/runs/*"),
        "--profile": (options.profile, "cells run side by side; profile one run"),
        "--ray-address": (options.ray_address, "the cells of a study run on this machine"),
        "--workers": (
            options.workers != "auto",
            "each cell trains in one process; give their number by --jobs",
        ),
        "--report": (options.write_report, "write it afterwards: fedsim report OUT/NAME"),
        "--resume": (resume, "the same command continues a study; leave it out"),
    }
    for option, (value, reason) in reasons.items():
        if value:
            raise ConfigError(f"{option}: not with several seeds or values: {reason}")

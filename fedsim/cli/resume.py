"""`fedsim resume`, `fork` and `verify`: continue, branch or repeat an existing run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fedsim import analysis
from fedsim.cli.options import (
    Device,
    NewRun,
    RunFolder,
    Training,
    WatchedTraining,
    command_line,
    count_of,
    grouped,
)
from fedsim.common.errors import ConfigError, RunError
from fedsim.common.terminal import Terminal, say
from fedsim.common.units import duration_us

if TYPE_CHECKING:
    from fedsim.runs.result import Result, Watch


@grouped
def resume(
    run: Annotated[Path, Argument(help="The folder of a run that was interrupted, killed or failed.")],
    options: WatchedTraining,
    step: Annotated[
        int | None, Option(min=0, help="Continue from the checkpoint of this step; by default the last one.")
    ] = None,
) -> None:
    """Continue an interrupted run from its last checkpoint. Results are identical to an uninterrupted run's."""
    from fedsim.cli.observers import train_and_show
    from fedsim.runs.resume import check_unfinished
    from fedsim.runs.resume import resume as continue_run

    check_unfinished(run)
    if changes := _changed(run):
        warning = "its results may differ from an uninterrupted run's"
        say(f"{run}: changed since it started: {changes}; {warning}")
    again = command_line("resume", run, groups=(options,))
    train_and_show(
        lambda watch: [continue_run(run, step=step, watch=watch, **options.arguments())], options, again
    )


def _changed(run: Path) -> str:
    """Return how versions and files differ from those that started the run; empty if nothing differs."""
    from fedsim.config.load import load_config
    from fedsim.records.environment import changed
    from fedsim.records.manifest import read_manifest
    from fedsim.records.run_folder import CONFIG

    return "; ".join(changed(read_manifest(run), load_config(run / CONFIG)[0].resolved()))


@grouped
def fork(
    parent: RunFolder,
    at: Annotated[str, Option(help="When to branch off: a server step (120) or a virtual time (6h).")],
    new: NewRun,
    options: Training,
    keep_online: Annotated[
        str | None, Option(help="Clients that stay online from then on, by number: 7 or 3,7,9.")
    ] = None,
    name: Annotated[str | None, Option(help="Name of the new run; by default PARENT-fork.")] = None,
) -> None:
    """Branch off a run at a step or time. The branch may use another rule, selector or pacing."""
    when, clients = _step_or_time_us(at), _numbers("--keep-online", keep_online)
    from fedsim.cli.observers import train_and_show
    from fedsim.runs.fork import At
    from fedsim.runs.fork import fork as branch

    def train(watch: Watch) -> list[Result]:
        others = {"watch": watch, **new.arguments(), **options.arguments()}
        return [branch(parent, At(*when), tuple(new.sets or ()), keep_online=clients, name=name, **others)]

    kept = () if keep_online is None else ("--keep-online", keep_online)
    named = () if name is None else ("--name", name)
    again = command_line("fork", parent, "--at", at, *kept, *named, groups=(new, options))
    (folder,) = train_and_show(train, WatchedTraining(**vars(options)), again)
    Terminal().print(analysis.compare(analysis.open_run(parent), analysis.open_run(folder)))


def _step_or_time_us(text: str) -> tuple[int | None, int | None]:
    """Return the server step or the virtual time in microseconds that `--at` names. Raises ConfigError."""
    if text.isdecimal():
        return int(text), None
    try:
        return None, duration_us(text)
    except ValueError as error:
        raise ConfigError(
            f"--at: expected a server step such as 120 or a time such as '6h': {error}"
        ) from error


def _numbers(option: str, text: str | None) -> list[int]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"{option}: expected numbers of clients such as 3,7,9, found {text!r}")
    return [int(part) for part in parts]


def verify(
    run: RunFolder,
    steps: Annotated[
        str | None, Option(help="Repeat only server steps A:B, from the last checkpoint before A.")
    ] = None,
    workers: Annotated[
        str | None, Option(help="Workers to repeat with; by default 0, or 2 if the run had none.")
    ] = None,
    device: Device = "auto",
    invariants: Annotated[
        bool, Option("--invariants", hidden=True, help="Replaced by the command fedsim check RUN.")
    ] = False,
) -> None:
    """Repeat a run and compare every row. It is repeated with another number of workers."""
    if invariants:
        raise ConfigError(
            f"fedsim verify has no option --invariants: use fedsim check {shlex.quote(str(run))}"
        )
    from fedsim.runs.verify import verify as repeat

    count = None if workers is None else count_of(workers)
    verdicts = repeat(run, steps=_steps(steps), workers=count, device=device)
    for verdict in verdicts:
        say(f"{verdict.table:10} {verdict.rows:>9,} rows  {verdict.difference or 'the same'}")
    differing = [verdict.table for verdict in verdicts if verdict.difference]
    if differing:
        changes = _changed(run)
        since = f"; changed since it started: {changes}" if changes else ""
        raise RunError(f"{run}: it does not repeat: {', '.join(differing)}{since}")
    say(f"{run}: repeated, bit for bit")


def _steps(text: str | None) -> tuple[int, int] | None:
    """Return the first and last step of `--steps`. Raises ConfigError."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise ConfigError(f"--steps: expected two server steps such as 100:120, found {text!r}")
    return int(first), int(last)

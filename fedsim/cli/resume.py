"""`fedsim resume`, `fork` and `verify`: continue, branch or repeat an existing run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fedsim import analysis
from fedsim.cli.options import Device, NewRun, RunFolder, Training, WatchedTraining, count_of, grouped
from fedsim.common.errors import ConfigError, RunError
from fedsim.common.terminal import Terminal, say

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
    train_and_show(lambda watch: [continue_run(run, step=step, watch=watch, **options.arguments())], options)


def _changed(run: Path) -> str:
    """Return how versions and files differ from those that started the run; empty if nothing differs."""
    from fedsim.config.load import read_existing
    from fedsim.records.environment import changed
    from fedsim.records.manifest import read_manifest
    from fedsim.records.run_folder import CONFIG

    return "; ".join(changed(read_manifest(run), read_existing(run / CONFIG).resolved()))


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
    clients = _numbers("--keep-online", keep_online)
    from fedsim.cli.observers import train_and_show
    from fedsim.runs.fork import fork as branch

    def train(watch: Watch) -> list[Result]:
        others = {"watch": watch, **new.arguments(), **options.arguments()}
        return [branch(parent, at, tuple(new.sets or ()), keep_online=clients, name=name, **others)]

    (folder,) = train_and_show(train, WatchedTraining(**vars(options)))
    Terminal().print(analysis.compare(analysis.open_run(parent), analysis.open_run(folder)))


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
        bool, Option("--invariants", help="Check the tables alone, without repeating the run.")
    ] = False,
) -> None:
    """Repeat a run and compare every row, or check its tables. It is repeated with another number of workers."""
    if invariants:
        _check_invariants(run)
        return
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


def _check_invariants(run: Path) -> None:
    """Show which invariants a run's tables violate. Raises RunError if there is a violation."""
    from fedsim.invariants import check

    result = check(run)
    for violation in result.violations:
        say(str(violation))
    for invariant, reason in result.unchecked.items():
        say(f"not checked: {invariant}: {reason}")
    if result.violations:
        raise RunError(f"{run}: {len(result.violations)} of its rows or files break an invariant")
    say(f"{run}: all {len(result.checked)} invariants that could be checked hold")


def _steps(text: str | None) -> tuple[int, int] | None:
    """Return the first and last step of `--steps`. Raises ConfigError."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise ConfigError(f"--steps: expected two server steps such as 100:120, found {text!r}")
    return int(first), int(last)

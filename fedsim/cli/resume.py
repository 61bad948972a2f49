"""`fedsim resume`, `fork` and `verify`: continue, branch or repeat an existing run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim import analysis
from fedsim.cli.run import (
    Device,
    Force,
    Live,
    Out,
    Quiet,
    RayAddress,
    Sets,
    TensorBoard,
    WithProfile,
    Workers,
    WriteReport,
    check_tensorboard,
    close,
    workers_of_text,
)
from fedsim.common.errors import ConfigError, RunError
from fedsim.common.terminal import Terminal
from fedsim.common.units import duration_us


def resume(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted, killed or failed.")],
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Continue from the checkpoint of this step; by default the last one."),
    ] = None,
    workers: Workers = "auto",
    ray_address: RayAddress = None,
    device: Device = "auto",
    write_report: WriteReport = False,
    profile: WithProfile = False,
    quiet: Quiet = False,
    live: Live = False,
    tensorboard: TensorBoard = None,
) -> None:
    """Continue an interrupted run from its last checkpoint. Results are identical to an uninterrupted run's."""
    from time import perf_counter

    from fedsim.cli.observers import watching
    from fedsim.runs.resume import check_unfinished
    from fedsim.runs.resume import resume as continue_run

    check_tensorboard(tensorboard)
    check_unfinished(run)
    if changes := _changed(run):
        warning = "its results may differ from an uninterrupted run's"
        Terminal().print(f"{run}: changed since it started: {changes}; {warning}", soft_wrap=True)
    console, started = Terminal(), perf_counter()
    with watching(console, quiet=quiet, live=live, tensorboard=tensorboard) as watch:
        result = continue_run(
            run,
            step=step,
            workers=workers_of_text(workers),
            device=device,
            watch=watch,
            profile=profile,
            ray_address=ray_address,
        )
    took_s = perf_counter() - started
    close(console, [result], write_report=write_report, took_s=took_s if profile else None)


def _changed(run: Path) -> str:
    """Return how versions and files differ from those that started the run; empty if nothing differs."""
    from fedsim.config.load import load
    from fedsim.records.environment import changed
    from fedsim.records.manifest import read_manifest
    from fedsim.records.run_folder import CONFIG

    return "; ".join(changed(read_manifest(run), load(run / CONFIG)[0].resolved()))


_RunFolder = Annotated[Path, typer.Argument(help="The folder of a run.")]
_At = Annotated[str, typer.Option(help="When to branch off: a server step (120) or a virtual time (6h).")]
_KeepOnline = Annotated[
    str | None, typer.Option(help="Clients that stay online from then on, by number: 7 or 3,7,9.")
]
_ForkName = Annotated[str | None, typer.Option(help="Name of the new run; by default PARENT-fork.")]


def fork(
    parent: _RunFolder,
    at: _At,
    sets: Sets = None,
    keep_online: _KeepOnline = None,
    name: _ForkName = None,
    out: Out = Path("runs"),
    workers: Workers = "auto",
    device: Device = "auto",
    force: Force = False,
    write_report: WriteReport = False,
    quiet: Quiet = False,
) -> None:
    """Branch off a run at a step or time. The branch may use another rule, selector or pacing."""
    when, clients = _step_or_time_us(at), _numbers("--keep-online", keep_online)
    from fedsim.cli.progress import shown
    from fedsim.runs.fork import At
    from fedsim.runs.fork import fork as branch

    console = Terminal()
    with shown(console, quiet) as watch:
        result = branch(
            parent,
            At(*when),
            tuple(sets or ()),
            keep_online=clients,
            name=name,
            out=out,
            workers=workers_of_text(workers),
            device=device,
            force=force,
            watch=watch,
        )
    close(console, [result], write_report=write_report)
    console.print(analysis.compare(analysis.open(parent), analysis.open(result.folder)))


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


_Steps = Annotated[
    str | None, typer.Option(help="Repeat only server steps A:B, from the last checkpoint before A.")
]
_OtherWorkers = Annotated[
    str | None,
    typer.Option("--workers", help="Workers to repeat with; by default 0, or 2 if the run had none."),
]
_Invariants = Annotated[
    bool, typer.Option("--invariants", help="Check the tables alone, without repeating the run.")
]


def verify(
    run: _RunFolder,
    steps: _Steps = None,
    workers: _OtherWorkers = None,
    device: Device = "auto",
    invariants: _Invariants = False,
) -> None:
    """Repeat a run and compare every row, or check its tables. It is repeated with another number of workers."""
    console = Terminal()
    if invariants:
        _check_invariants(run, console)
        return
    from fedsim.runs.verify import verify as repeat

    count = None if workers is None else workers_of_text(workers)
    verdicts = repeat(run, steps=_steps(steps), workers=count, device=device)
    for verdict in verdicts:
        console.print(
            f"{verdict.table:10} {verdict.rows:>9,} rows  {verdict.difference or 'the same'}", soft_wrap=True
        )
    differing = [verdict.table for verdict in verdicts if verdict.difference]
    if differing:
        changes = _changed(run)
        since = f"; changed since it started: {changes}" if changes else ""
        raise RunError(f"{run}: it does not repeat: {', '.join(differing)}{since}")
    console.print(f"{run}: repeated, bit for bit")


def _check_invariants(run: Path, console: Terminal) -> None:
    """Show which invariants a run's tables violate. Raises RunError if there is a violation."""
    from fedsim.invariants import check

    result = check(run)
    for violation in result.violations:
        console.print(str(violation), soft_wrap=True)
    for invariant, reason in result.unchecked.items():
        console.print(f"not checked: {invariant}: {reason}", soft_wrap=True)
    if result.violations:
        raise RunError(f"{run}: {len(result.violations)} of its rows or files break an invariant")
    console.print(f"{run}: all {len(result.checked)} invariants that could be checked hold")


def _steps(text: str | None) -> tuple[int, int] | None:
    """Return the first and last step of `--steps`. Raises ConfigError."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise ConfigError(f"--steps: expected two server steps such as 100:120, found {text!r}")
    return int(first), int(last)

"""`fedsim resume`, `fork` and `verify`: what can be done with a run that is there."""

from __future__ import annotations

from contextlib import nullcontext
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
        typer.Option(min=0, help="Go on from the checkpoint of this step; the last one by default."),
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
    """Let a run that was stopped go on from its last checkpoint. It ends as if nothing had happened."""
    from time import perf_counter

    from fedsim.execution.actor_pool import begun
    from fedsim.runs.simulate import check_unfinished

    check_tensorboard(tensorboard)
    check_unfinished(run)
    if others := _changed(run):
        warned = "what follows may not be what the run would have been"
        Terminal().print(f"{run}: since it was begun: {others}; {warned}", soft_wrap=True)
    with begun(workers_of_text(workers), device, ray_address) or nullcontext() as pool:
        from fedsim.cli.observers import watching
        from fedsim.runs.simulate import resume as go_on

        console, started = Terminal(), perf_counter()
        with watching(console, quiet=quiet, live=live, tensorboard=tensorboard) as watch:
            result = go_on(run, step=step, workers=0, device=device, watch=watch, profile=profile, pool=pool)
        took_s = perf_counter() - started
    close(console, [result], write_report=write_report, took_s=took_s if profile else None)


def _changed(run: Path) -> str:
    """Say what is other now than when the run was made; empty if nothing is."""
    from fedsim.config.load import load
    from fedsim.records.environment import changed
    from fedsim.records.manifest import read_manifest
    from fedsim.records.run_folder import CONFIG

    return "; ".join(changed(read_manifest(run), load(run / CONFIG)[0].resolved()))


def fork(
    parent: Annotated[Path, typer.Argument(help="The folder of a run.")],
    at: Annotated[str, typer.Option(help="When to branch off: a server step (120), or a virtual time (6h).")],
    sets: Sets = None,
    keep_online: Annotated[
        str | None, typer.Option(help="Clients that stay online from then on: 7 or 3,7,9.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new run; PARENT-fork by default.")] = None,
    out: Out = Path("runs"),
    workers: Workers = "auto",
    device: Device = "auto",
    force: Force = False,
    write_report: WriteReport = False,
    quiet: Quiet = False,
) -> None:
    """Branch off a run at an instant. From then on another rule, selector or pacing may hold."""
    when, clients = _at(at), _numbers("--keep-online", keep_online)
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


def _at(text: str) -> tuple[int | None, int | None]:
    """Return the step or the virtual time that `--at` says."""
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
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    steps: Annotated[
        str | None, typer.Option(help="Only these server steps, A:B, from the last checkpoint before A.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="By default other than the run had: 0, or 2 for a run without.")
    ] = None,
    device: Device = "auto",
    invariants: Annotated[
        bool, typer.Option("--invariants", help="Check the tables alone, without running anything again.")
    ] = False,
) -> None:
    """Repeat a run and compare every row, or check its tables. It is repeated with another number of workers."""
    console = Terminal()
    if invariants:
        from fedsim.invariants import check

        found = check(run)
        for violation in found.violations:
            console.print(str(violation), soft_wrap=True)
        for invariant, reason in found.unchecked.items():
            console.print(f"not checked: {invariant}: {reason}", soft_wrap=True)
        if found.violations:
            raise RunError(f"{run}: {len(found.violations)} of its rows or files break what must hold")
        console.print(f"{run}: all {len(found.checked)} invariants that could be checked hold")
        return
    from fedsim.runs.verify import verify as again

    verdicts = again(
        run,
        steps=_steps(steps),
        workers=None if workers is None else workers_of_text(workers),
        device=device,
    )
    for verdict in verdicts:
        said = verdict.difference or "the same"
        console.print(f"{verdict.table:10} {verdict.rows:>9,} rows  {said}", soft_wrap=True)
    differing = [verdict.table for verdict in verdicts if verdict.difference]
    if differing:
        others = _changed(run)
        since = f"; since it was made: {others}" if others else ""
        raise RunError(f"{run}: it does not repeat: {', '.join(differing)}{since}")
    console.print(f"{run}: repeated, bit for bit")


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise ConfigError(f"--steps: expected two server steps such as 100:120, found {text!r}")
    return int(first), int(last)

"""`fedsim resume`, `fork` and `verify`: continue, branch or repeat an existing run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

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
from fedsim.common.errors import ConfigError, FolderError, RunError
from fedsim.common.terminal import say

if TYPE_CHECKING:
    from fedsim.runs.resume import Arms


@grouped
def resume(
    folder: Annotated[
        Path,
        Argument(
            help="A run that was interrupted, killed or failed, or a folder with one run or several arms."
        ),
    ],
    options: WatchedTraining,
    step: Annotated[
        int | None, Option(min=0, help="Continue from the checkpoint of this step; by default the last one.")
    ] = None,
) -> None:
    """Continue an interrupted run from its last checkpoint. Results are identical to an uninterrupted run's."""
    from fedsim.cli.observers import training
    from fedsim.records.manifest import read_manifest
    from fedsim.runs.resume import arms_in, check_unfinished, only_run
    from fedsim.runs.resume import resume as continue_run
    from fedsim.runs.simulate import in_turn

    if (arms := arms_in(folder)) is None:
        runs = [only_run(folder)]
        check_unfinished(runs[0])
    else:
        if step is not None:
            raise ConfigError(
                f"--step: it is for one run, and {folder} holds several: name the folder of one"
            )
        runs = [folder / name for name in _unfinished(folder, arms)]

    again = command_line("resume", folder, groups=(options,))
    names = [str(read_manifest(run).get("name", run)) for run in runs] if len(runs) > 1 else []
    with training(options, again, names) as trained:
        others = {"step": step, "watch": trained, **options.arguments()}
        trained.results = in_turn({str(run): partial(continue_run, run, **others) for run in runs})


def _unfinished(folder: Path, arms: Arms) -> tuple[str, ...]:
    """Return the arms to resume, and say which of the others are done. Raises FolderError if there is none."""
    lines = {"done already": arms.done, "not started": arms.not_started, "resumed in turn": arms.unfinished}
    text = "; ".join(f"{what}: {', '.join(names)}" for what, names in lines.items() if names)
    hint = "; `fedsim run FILE --resume` starts the rest" if arms.not_started else ""
    if not arms.unfinished:
        raise FolderError(f"{folder}: expected an arm that was interrupted, killed or failed; {text}{hint}")
    say(f"{folder}: {text}{hint}")
    return arms.unfinished


def _changed(run: Path) -> str:
    """Return how versions and files differ from those that started the run; empty if nothing differs."""
    from fedsim.config.load import read_existing
    from fedsim.records.environment import changed
    from fedsim.records.file_names import CONFIG
    from fedsim.records.manifest import read_manifest

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
    """Branch off a run at a step or time. The branch may use another rule, selector, pacing or dropout."""
    clients = () if keep_online is None else _numbers("--keep-online", keep_online)
    from fedsim.cli.observers import show_differences, training
    from fedsim.runs.fork import fork as branch

    kept = () if keep_online is None else ("--keep-online", keep_online)
    named = () if name is None else ("--name", name)
    again = command_line(
        "fork", parent, "--at", at, *kept, *named, groups=(_over(new, parent, name), options)
    )
    with training(WatchedTraining(**vars(options)), again) as trained:
        others = {"keep_online": clients, "name": name, **new.arguments(), **options.arguments()}
        branched = branch(parent, at, tuple(new.sets or ()), watch=trained, **others)
        trained.results = [branched]
    show_differences(parent, branched.folder)


def _over(new: NewRun, parent: Path, name: str | None) -> NewRun:
    """Return the options with `force` if the fork does not exist yet: what lies there later is the command's own."""
    from fedsim.records.manifest import read_manifest

    folder = new.out / (name or f"{read_manifest(parent).get('label')}-fork")
    return replace(new, force=new.force or not folder.exists())


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
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
) -> None:
    """Repeat a run and compare every row. It is repeated with another number of workers."""
    from fedsim.runs.verify import verify as repeat

    count = None if workers is None else count_of(workers)
    verdicts = repeat(run, steps=_steps(steps), workers=count, device=device)
    for verdict in verdicts:
        say(f"{verdict.table:10} {verdict.rows:>9,} rows  {verdict.difference or 'the same'}")
    if differing := [verdict.table for verdict in verdicts if verdict.difference]:
        raise _not_repeated(run, differing)
    say(f"{run}: repeated, bit for bit")


def _not_repeated(run: Path, tables: Sequence[str]) -> RunError:
    changes = _changed(run)
    since = f"; changed since it started: {changes}" if changes else ""
    return RunError(f"{run}: it does not repeat: {', '.join(tables)}{since}")


def _steps(text: str | None) -> tuple[int, int] | None:
    """Return the first and last step of `--steps`. Raises ConfigError."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise ConfigError(f"--steps: expected two server steps such as 100:120, found {text!r}")
    return int(first), int(last)

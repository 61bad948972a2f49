"""`fedsim bench`: how fast this machine trains in each batching mode and with several numbers of workers."""

from __future__ import annotations

import json
from typing import Annotated

from typer import Option

from fedsim.cli.options import Device
from fedsim.common.errors import ConfigError
from fedsim.common.terminal import Terminal, say


def bench(
    workers: Annotated[
        str | None, Option(help="Numbers of workers to try: 0,1,2; by default up to one per core.")
    ] = None,
    device: Device = "auto",
    seconds: Annotated[float, Option(min=0.1, help="Seconds that each measurement takes.")] = 0.5,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure this machine, and advise on mode and workers. Figures are client updates per second."""
    import fedsim.runs.machine_benchmark  # imported here: `fedsim --help` needs no torch

    counts, console = None if workers is None else _counts(workers), Terminal()
    with console.status("") as status:
        result = fedsim.runs.machine_benchmark.bench(
            workers=counts,
            device=device,
            seconds=seconds,
            tell=lambda text: status.update(f"measuring: {text}"),
        )
    if as_json:
        say(json.dumps(result.plain(), indent=2))
        return
    console.print(result.table())
    console.print(result.advice(), highlight=False)


def _counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--workers: expected numbers of at least 0 such as 0,1,2, found {text!r}")
    return [int(part) for part in dict.fromkeys(parts)]

"""`fedsim trace join`: make one world from several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Option

from fedsim.cli.trace.output import Force, Out, check_free, write
from fedsim.common.errors import ConfigError
from fedsim.common.terminal import say

_Compute = Annotated[Path | None, Option(help="Source of computing speeds.")]
_Network = Annotated[Path | None, Option(help="Source of downlink and uplink speeds.")]
_Faults = Annotated[Path | None, Option(help="Source of faults.")]
_Clients = Annotated[
    int | None,
    Option(min=1, help="Number of clients of the new world; by default that of AVAILABILITY."),
]
_Assign = Annotated[
    list[str] | None,
    Option(
        metavar="HOW",
        help="independent, rank or a rank correlation; for one source: compute=0.7; may be repeated.",
    ),
]
_Replace = Annotated[
    bool | None,
    Option("--replace/--no-replace", help="Draw with replacement; by default if clients are too few."),
]


def join_files(
    availability: Annotated[
        Path, Option(help="Source of who is online, and of everything that no other source gives.")
    ],
    out: Out,
    compute: _Compute = None,
    network: _Network = None,
    faults: _Faults = None,
    clients: _Clients = None,
    assign: _Assign = None,
    replace: _Replace = None,
    seed: Annotated[int, Option(min=0, help="Seed of draws and assignments.")] = 0,
    force: Force = False,
) -> None:
    """Make one world from several. Each source is a trace, or a TOML file with a [world] table."""
    from fedsim.config.errors import validated
    from fedsim.config.world import WorldFile, world_trace

    files = {"availability": availability, "compute": compute, "network": network, "faults": faults}
    sources = {name: path for name, path in files.items() if path is not None}
    check_free(out, force, sources.values())
    table = {**sources, "assign": assignment(assign or ()), "replace": replace}
    world = validated(WorldFile, {"world": {"join": table}}, "fedsim trace join").world
    trace = world_trace(world, clients=clients, seed=seed)
    write(trace, out)
    for name, report in json.loads(trace.source)["assignment"].items():
        spearman = report["spearman"]
        measured = "not defined" if spearman is None else f"{spearman:+.3f}"
        say(f"{name}: assigned {report['how']}, rank correlation with time online {measured}")


def assignment(texts: Sequence[str]) -> str | float | dict[str, str | float]:
    """Parse `--assign` options: one for all sources, or SOURCE=HOW for some. Raises ConfigError."""
    single = [text for text in texts if "=" not in text]
    if not texts or (len(texts) == 1 and single):
        return _number_or_word(texts[0]) if texts else "independent"
    if single:
        raise ConfigError(f"--assign {single[0]}: expected SOURCE=HOW beside others, such as compute=0.7")
    pairs = [text.partition("=") for text in texts]
    return {name.strip(): _number_or_word(value.strip()) for name, _, value in pairs}


def _number_or_word(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text

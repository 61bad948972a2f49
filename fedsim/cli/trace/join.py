"""`fedsim trace join`: make one world from several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from fedsim.cli.options import grouped
from fedsim.cli.trace.output import Force, Out, check_free, write
from fedsim.common.errors import ConfigError
from fedsim.common.terminal import say


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The worlds to join."""

    availability: Annotated[
        Path, Option(help="Source of who is online, and of everything that no other source gives.")
    ]
    compute: Annotated[Path | None, Option(help="Source of computing speeds.")] = None
    network: Annotated[Path | None, Option(help="Source of downlink and uplink speeds.")] = None
    faults: Annotated[Path | None, Option(help="Source of faults.")] = None

    def files(self) -> dict[str, Path]:
        """Return the sources that are given, by name."""
        return {name: path for name, path in vars(self).items() if path is not None}


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """How clients of the sources become clients of the new world."""

    clients: Annotated[
        int | None,
        Option(min=1, help="Number of clients of the new world; by default that of AVAILABILITY."),
    ] = None
    assign: Annotated[
        list[str] | None,
        Option(
            metavar="HOW",
            help="independent, rank, id or a rank correlation; for one source: compute=0.7; may be repeated.",
        ),
    ] = None
    replace: Annotated[
        bool | None,
        Option("--replace/--no-replace", help="Draw with replacement; by default if clients are too few."),
    ] = None
    seed: Annotated[int, Option(min=0, help="Seed of draws and assignments.")] = 0


@grouped
def join_files(out: Out, force: Force = False, *, sources: Sources, pairing: Pairing) -> None:
    """Make one world from several. Each source is a trace, or a TOML file with a [world] table."""
    from fedsim.config.errors import validated
    from fedsim.config.world import WorldFile, world_files, world_trace

    files = sources.files()
    check_free(out, force, files.values())
    table = {**files, "assign": assignment(pairing.assign or ()), "replace": pairing.replace}
    world = validated(WorldFile, {"world": {"join": table}}, "fedsim trace join").world
    trace = world_trace(world, clients=pairing.clients, seed=pairing.seed)
    check_free(out, force, world_files(world, seed=pairing.seed))
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

"""`fedsim trace import`: read published traces as worlds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from fedsim.cli.trace.output import Force, Out, check_free, warnings
from fedsim.common.errors import ConfigError, closest, short
from fedsim.common.terminal import say
from fedsim.common.units import show_us

if TYPE_CHECKING:
    from fedsim.worlds.trace import Trace

_SHOWN_ABOVE = ("importer", "options", "files", "licence", "units")


def import_files(
    format_and_files: Annotated[
        list[str],
        Argument(
            metavar="[FORMAT] FILE...",
            help="A format (see docs/trace_formats.md; by default recognised by content), then files or folders.",
        ),
    ],
    out: Out,
    options: Annotated[
        list[str] | None,
        Option("--option", metavar="KEY=VALUE", help="Set an option: training_factor=2.5; may be repeated."),
    ] = None,
    force: Force = False,
) -> None:
    """Read files of a published trace as one world. Damaged files are refused with the reason."""
    from fedsim.worlds.importer import import_trace

    name, paths = format_and_paths(format_and_files)
    check_free(out, force, paths)
    trace = import_trace(paths, name, _options(options or ()))
    trace.write(out)
    for line in import_report(trace):
        say(line)
    say(f"{out}: digest {trace.digest()[:16]}")


def format_and_paths(arguments: Sequence[str]) -> tuple[str | None, list[Path]]:
    """Split arguments into a leading format, if any, and files; an existing file is no format. Raises ConfigError."""
    from fedsim import plugins

    first, known = arguments[0], plugins.names("importer")
    named = not Path(first).exists() and (first in known or ":" in first)
    if not named and not Path(first).exists():
        near = closest(first, known)
        raise ConfigError(f"{first}: neither a format nor a file{near}")
    paths = [Path(text) for text in arguments[named:]]
    if not paths:
        raise ConfigError(f"expected files to read after the format {first!r}")
    return (first if named else None), paths


def import_report(trace: Trace) -> Iterator[str]:
    """Yield lines about an imported world: format, units, clients, intervals, span, and the importer's notes."""
    from fedsim.common.files import from_json

    source = from_json(trace.source)
    files = source["files"]
    yield f"format     {source['importer']}: {len(files)} file{'s' * (len(files) != 1)}, licence: {source['licence']}"
    yield f"units      {source['units']}"
    yield f"clients    {trace.clients:,}"
    yield f"intervals  {', '.join(f'{n:,} {kind}' for kind, n in intervals(trace).items()) or 'none'}"
    origin = f" from {trace.origin}" if trace.origin else ""
    yield f"span       {show_us(trace.horizon_us)}{origin}, then {trace.after_end}{_loops(trace)}"
    for warning in warnings(trace):
        yield f"warning    {warning}"
    if trace.about.num_columns:
        yield f"about      {', '.join(trace.about.column_names)}"
    notes = {key: value for key, value in source.items() if key not in _SHOWN_ABOVE}
    for key, value in notes.items():
        text = short(value if isinstance(value, str) else json.dumps(value))
        yield f"{'notes' if key == next(iter(notes)) else '':<11}{key}: {text}"


def intervals(trace: Trace) -> dict[str, int]:
    """Return the number of intervals of each kind, without kinds that have none."""
    from fedsim.worlds.trace import KINDS

    counts = {kind: len(trace.spans(kind).client) for kind in KINDS}
    return {kind: n for kind, n in counts.items() if n}


def _loops(trace: Trace) -> str:
    counts = [
        f"{int((p > 0).sum()):,} of {kind}" for kind in trace.periods if len(p := trace.period_us(kind))
    ]
    return f"; own loop periods: {', '.join(counts)}" if counts else ""


def _options(texts: Sequence[str]) -> Mapping[str, Any]:
    from fedsim.config.errors import assign

    options: dict[str, Any] = {}
    for text in texts:
        if not text.partition("=")[0].strip() or "=" not in text:
            raise ConfigError(f"--option {text}: expected KEY=VALUE, such as training_factor=2.5")
        assign(options, text, "--option")
    return options

"""What a folder of published traces holds, and which formats there are, as Markdown tables; each file alone as CSV.

python benchmarks/traces.py path/to/traces    # by folder and format; refused files with the reason
python benchmarks/traces.py path/to/traces --each > docs/published_traces.csv    # each file alone
python benchmarks/traces.py --formats
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import textwrap
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

from fedsim import plugins
from fedsim.cli.trace.importing import intervals
from fedsim.common.errors import TraceError
from fedsim.common.units import show_us
from fedsim.plugins.options import documentation, options_of
from fedsim.worlds.importer import Importer, Source, build_importer, import_trace
from fedsim.worlds.trace import Trace

HEAD = "| folder | format | files | clients | intervals | span |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Contents:
    """What a file holds when it is imported alone with the defaults, or why it is refused."""

    file: str
    """Path below the folder of traces, with `/`."""
    format: str = ""
    clients: str = ""
    intervals: str = ""
    span: str = ""
    refused: str = ""
    """The importer's reason, empty for an imported file; the other columns but `file` are then empty."""


@cache
def importers() -> dict[str, Importer]:
    """Return every importer with its defaults."""
    return {name: build_importer(name, {}) for name in plugins.names("importer")}


def format_of(file: Path) -> str | None:
    """Return the format of a file; None if no importer, or more than one, recognises it."""
    source = Source(file, file.read_bytes())
    found = [name for name, importer in importers().items() if importer.recognises(source)]
    return found[0] if len(found) == 1 else None


def files_below(root: Path) -> list[Path]:
    """Return the files of a folder of traces, without descriptions."""
    return sorted(p for p in root.rglob("*") if p.is_file() and p.name != "README.md")


def contents(file: Path, root: Path) -> Contents:
    """Import a file alone and return what it holds."""
    place = file.relative_to(root).as_posix()
    try:
        trace = import_trace([file])
    except TraceError as error:
        return Contents(place, refused=str(error).partition(": ")[2])  # after the end of the path
    name = str(json.loads(trace.source)["importer"])
    return Contents(place, name, f"{trace.clients:,}", _counts(trace), _span(trace))


def print_each(root: Path) -> None:
    """Print a row of CSV for each file."""
    writer = csv.DictWriter(sys.stdout, [f.name for f in fields(Contents)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(contents(file, root)) for file in files_below(root))


def walk(root: Path) -> None:
    """Import the files of each folder and format together, and print a row for each import."""
    files = files_below(root)
    groups: dict[tuple[str, str | None], list[Path]] = defaultdict(list)
    for file in files:
        inside = file.relative_to(root)
        groups[inside.parts[0], format_of(file)].append(file)
    print(HEAD)
    refused: list[str] = []
    for (folder, name), members in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or "~")):
        if name is None:
            print(f"| {folder} | - | {len(members)} | no importer recognises these | | |")
            refused += [f"{file.relative_to(root)}: no importer recognises it" for file in members]
        else:
            refused += row(folder, name, members)
    print("\n".join(["", f"refused: {len(refused)} of {len(files)} files", *refused]))


def row(folder: str, name: str, files: list[Path]) -> list[str]:
    """Import files as one and print what they hold; where that is refused, one by one. Returns refusals."""
    try:
        trace = import_trace(files, name)
    except TraceError as error:
        if len(files) == 1:
            return [str(error)]
        return [line for file in files for line in row(folder, name, [file])]
    cells = [
        folder,
        f"`{name}`",
        len(files),
        f"{trace.clients:,}",
        _counts(trace),
        _span(trace),
    ]
    print("|", " | ".join(map(str, cells)), "|")
    return []


def formats() -> list[str]:
    """Return a Markdown table of the formats, and for each its options with what they mean."""
    lines = ["| format | what it becomes | units | licence |", "|---|---|---|---|"]
    for name, importer in importers().items():
        lines.append(
            f"| `{name}` | {plugins.summary('importer', name)} | {importer.units} | {importer.licence} |"
        )
    for name in importers():
        make = plugins.factory("importer", name)
        text, meanings = documentation(make)
        told = " ".join(text.split("\n")[1:]).strip()
        if known := options_of(make):
            lines += ["", *textwrap.wrap(f"**{name}**: {told}" if told else f"**{name}**", 118), ""]
            for option, parameter in known.items():
                entry = f"- `{option} = {_shown(parameter.default)}`: {meanings[option]}"
                lines += textwrap.wrap(entry, 118, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def _shown(default: object) -> str:
    """Write a default as TOML does, as far as there is one."""
    if isinstance(default, tuple | list):
        return f"[{', '.join(map(_shown, default))}]"
    if isinstance(default, bool) or default is None:
        return "none" if default is None else str(default).lower()
    return f'"{default}"' if isinstance(default, str) else f"{default}"


def _counts(trace: Trace) -> str:
    return ", ".join(f"{n:,} {kind}" for kind, n in intervals(trace).items())


def _span(trace: Trace) -> str:
    looped = any((trace.period_us(kind) > 0).any() for kind in trace.periods)
    return show_us(trace.horizon_us) + (", loops by client" if looped else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--formats", action="store_true")
    parser.add_argument("--each", action="store_true", help="a row of CSV for each file")
    given = parser.parse_args()
    if given.formats:
        print("\n".join(formats()))
    if given.folder and given.each:
        print_each(given.folder)
    elif given.folder:
        walk(given.folder)

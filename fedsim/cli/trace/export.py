"""`fedsim trace export`: write a world in the format of another simulator."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from fedsim.cli.trace.output import Force, TraceFile, check_free
from fedsim.common.terminal import say

_IMPORTERS = {"csv": "csv", "flgo": "flgo_pings", "fedscale": "fedscale_availability"}


def export(
    file: TraceFile,
    form: Annotated[
        Literal["csv", "flgo", "fedscale"],
        Option(
            "--format", help="csv: all intervals; flgo: pings of 15 s; fedscale: a pickle of times online."
        ),
    ],
    out: Annotated[Path, Option("--out", "-o", help="The file to write.")],
    force: Force = False,
) -> None:
    """Write a world for another simulator."""
    from fedsim.common.files import make_directory, write_atomically
    from fedsim.worlds.trace import read_trace

    check_free(out, force, [file])
    exporter = getattr(importlib.import_module(f"fedsim.scenarios.exporters.{form}"), form)
    exported = exporter(read_trace(file))
    make_directory(out.parent)
    write_atomically(out, lambda beside: beside.write_bytes(exported.data))
    _tell(form, out, exported)


def _tell(form: str, out: Path, exported: Any) -> None:
    """Say what the format could not hold of an `Exported` world, and how the file is read back."""
    for line in exported.left_out:
        say(f"left out: {line}", err=True)
    options = "".join(f" --option {option}" for option in exported.options)
    say(f"{out}: {len(exported.data):,} bytes")
    say(
        f"read it back with: fedsim trace import {_IMPORTERS[form]} {shlex.quote(str(out))} -o back.parquet{options}"
    )

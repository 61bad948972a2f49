"""What somebody may have sent: names, metadata and settings changed by hand, and a command line to open it with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedsim.cli.main import main

MARK = "pwned"
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;{{7*7}}$body${title}"
"""A name that breaks out wherever it is not escaped."""
MARKED_UP = (
    "[bold red]x[/bold red] [link=http://x.org]y[/link] [/nothing] \x1b[31m\x1b]0;title\x07 \u202egnp.exe \\["
)
"""Text that a terminal would take for commands."""
DEEP = 100_000
"""Levels of nesting that no reader gets to the end of."""


def said(folder: Path, **changes: Any) -> Path:
    """Change the manifest of a run folder."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def configured(folder: Path, old: str, new: str) -> Path:
    """Change the configuration in a run folder."""
    path = folder / "config.resolved.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return folder


def command(*words: object) -> int:
    """Run a command line in this process and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, words)))
    return int(ended.value.code or 0)


def touching() -> str:
    """Return code that leaves a file where it runs."""
    return f"import pathlib; pathlib.Path({MARK!r}).touch()"


def with_metadata(path: Path, **facts: str) -> Path:
    """Replace metadata of a trace file."""
    table = pq.read_table(path)
    kept = {**table.schema.metadata, **{f"fedsim.{k}".encode(): v.encode() for k, v in facts.items()}}
    pq.write_table(table.replace_schema_metadata(kept), path)
    return path

"""Writing small trace files for tests, importing them, and reading what came out."""

import json
from pathlib import Path
from typing import Any

from fedsim.common.units import US
from fedsim.worlds.importer import import_trace
from fedsim.worlds.trace import Trace

DAY_S = 86_400.0


def imported(folder: Path, files: dict[str, str], name: str | None, **options: Any) -> Trace:
    """Write files below a folder and import them; without `name` their content decides the format."""
    paths = [folder / file for file in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return import_trace(paths, name, options)


def speeds(trace: Trace, kind: str) -> list[tuple[int, float, float, float]]:
    """Return (client, start in s, end in s, value) of a kind."""
    s = trace.spans(kind)
    rows = zip(s.client.tolist(), s.start_us.tolist(), s.end_us.tolist(), s.value.tolist(), strict=True)
    return [(c, a / US, b / US, v) for c, a, b, v in rows]


def seconds(trace: Trace, kind: str) -> list[tuple[int, float, float]]:
    """Return (client, start in s, end in s) of a kind."""
    return [row[:3] for row in speeds(trace, kind)]


def notes(trace: Trace) -> dict[str, Any]:
    """Return what the import noted."""
    return dict(json.loads(trace.source))

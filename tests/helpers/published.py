"""Small published files for tests of importers: written as text or bytes, read as one import."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.common.errors import TraceError
from fedsim.worlds.importer import Imported, Source, build_importer, guess


def sources(files: dict[str, str | bytes]) -> list[Source]:
    return [
        Source(Path(name), text.encode() if isinstance(text, str) else text) for name, text in files.items()
    ]


def imported(importer: str, files: dict[str, str | bytes], **options) -> Imported:
    """Read files with an importer, which has to be the one that recognises them."""
    given = sources(files)
    assert guess(given) == importer
    return build_importer(importer, options).read(given)


def refused(importer: str, files: dict[str, str | bytes], **options) -> str:
    """Return the message with which files are refused."""
    with pytest.raises(TraceError) as caught:
        build_importer(importer, options).read(sources(files))
    return str(caught.value)


def windows(trace, kind: str) -> list[tuple[int, int, int]]:
    """Return (client, start, end) of a kind in microseconds."""
    spans = trace.spans(kind)
    return list(zip(spans.client.tolist(), spans.start_us.tolist(), spans.end_us.tolist(), strict=True))


def values(trace, kind: str) -> list[float]:
    """Return the values of a kind in order of client and start."""
    return trace.spans(kind).value.tolist()

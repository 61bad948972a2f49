"""Import published traces, one file format per module of `scenarios/importers/`.

An importer's factory (`scenarios/importers/<format>.py: <format>(*, ...options) -> Importer`) returns an `Importer`,
which turns the files' bytes into a Trace in microseconds, seconds per sample and bytes per second. What a file does not
say is `unknown`, not offline.
"""

from __future__ import annotations

import hashlib
import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim import plugins
from fedsim.common import arguments
from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.paths import as_path
from fedsim.worlds.trace import Trace

LARGEST_FILE_BYTES = 2**31
"""Larger files are refused before they are read."""
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
"""First bytes of compressed files."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file and its bytes."""

    path: Path
    data: bytes

    @property
    def name(self) -> str:
        """The file's name with its folder, for messages."""
        return f"{self.path.parent.name}/{self.path.name}" if self.path.parent.name else self.path.name

    def text(self) -> str:
        """Return the content as UTF-8 text without a byte-order mark. Raises TraceError that names a wrong byte."""
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TraceError(
                f"{self.name}: not UTF-8 text: byte {error.start} is {self.data[error.start]:#04x}"
            ) from None


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import."""

    trace: Trace
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What was converted, merged or left out, as counts and words; becomes part of the trace's `source`."""


@dataclass(frozen=True, slots=True)
class Importer:
    """A reader of one file format, returned by an importer's factory.

    Attributes:
        recognises: whether a file looks like this format, by its first bytes and name; is fast, and never raises.
        read: turns all files of one import, in the given order, into a Trace. Raises TraceError for any content that it
            does not accept, naming the file and the line or key, what was expected and what was found.
        licence: the licence of the published data, as far as it is known.
        units: how units are converted, in words.
    """

    recognises: Callable[[Source], bool]
    read: Callable[[Sequence[Source]], Imported]
    licence: str
    units: str


@arguments.checked
@plugins.contained()
def import_trace(
    paths: Sequence[Path | str], name: str | None = None, options: Mapping[str, Any] | None = None
) -> Trace:
    """Return the Trace that files of one format, or all files in folders but hidden ones, describe.

    `name` is the importer's; None chooses it by the files' content. Raises TraceError for files that are not accepted,
    ConfigError for an unknown importer or option.
    """
    files = [file for path in paths for file in _files(as_path(path, "paths"))]
    if not files:
        raise TraceError(f"{', '.join(map(str, paths)) or 'nothing'}: expected at least one file")
    for file, times in Counter(file.resolve() for file in files).items():
        if times > 1:
            raise TraceError(f"{file}: expected each file once, found it {times} times")
    sources = [_read(file) for file in files]
    chosen = guess(sources) if name is None else name
    importer = build_importer(chosen, options or {})
    imported = importer.read(sources)
    facts = {
        "importer": chosen,
        "options": dict(options or {}),
        "files": [{"name": s.name, "sha256": hashlib.sha256(s.data).hexdigest()} for s in sources],
        "licence": importer.licence,
        "units": importer.units,
        **imported.notes,
    }
    return replace(imported.trace, source=json.dumps(facts, sort_keys=True, default=str))


def build_importer(name: str, options: Mapping[str, Any]) -> Importer:
    """Return an importer by name. Raises ConfigError for an unknown name or option."""
    importer = plugins.build("importer", name, options)
    if not isinstance(importer, Importer):
        raise ConfigError(
            f"importer {name!r}: expected its factory to return an Importer, found {importer!r}"
        )
    return importer


def guess(sources: Sequence[Source]) -> str:
    """Return the name of the one importer that recognises all files. Raises TraceError if none or several do."""
    names = plugins.names("importer")
    importers = {name: build_importer(name, {}) for name in names}
    fitting, formats = set(names), dict[str, list[str]]()
    for source in sources:
        without_mark = replace(source, data=source.data.removeprefix(BOM_UTF8))
        recognising = {name for name in names if importers[name].recognises(without_mark)}
        if not recognising:
            raise TraceError(
                f"{source.name}: no importer recognises it; {_complaint(source, importers['csv'])}name one of "
                f"{', '.join(names)} to see what is wrong"
            )
        fitting &= recognising
        formats.setdefault(" or ".join(sorted(recognising)), []).append(source.name)
    if len(fitting) == 1:
        return fitting.pop()
    if fitting:
        problem = f"{', '.join(sorted(fitting))} recognise all {len(sources)} files; name the format"
    else:
        counts = (
            f"{len(files)} of {name} ({files[0]}{', ...' * (len(files) > 1)})"
            for name, files in formats.items()
        )
        problem = f"expected one format, found {', '.join(counts)}; import the files of each apart"
    raise TraceError(f"{sources[0].name} and others: {problem}")


def _complaint(source: Source, csv: Importer) -> str:
    """Return what the importer csv says of a file whose name ends in `.csv`."""
    if source.path.suffix.lower() == ".csv":
        try:
            csv.read([source])
        except TraceError as error:
            return f"csv: {str(error).removeprefix(f'{source.name}: ')}; or "
    return ""


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
    if not path.is_file():
        raise TraceError(f"{path}: there is no such file")
    return [path]


def _hidden(path: Path) -> bool:
    """Return whether a file or a folder above it is hidden, such as `.git` or `.ipynb_checkpoints`."""
    return any(part.startswith(".") for part in path.parts)


def _read(path: Path) -> Source:
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE_BYTES:
            raise TraceError(f"{path}: expected at most {LARGEST_FILE_BYTES:,} bytes, found {size:,}")
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    for start, kind in _COMPRESSED.items():
        if data.startswith(start):
            raise TraceError(f"{path}: it is compressed ({kind}): unpack it first")
    return Source(path, data)

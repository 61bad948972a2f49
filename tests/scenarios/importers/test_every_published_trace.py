"""Every published trace that is there is either imported, or refused with the file's name and the reason."""

import csv
import json
from collections import Counter
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path

import pytest

import inputs
from benchmarks import traces
from fedsim.common.errors import TraceError
from fedsim.worlds import importer as importing
from fedsim.worlds.importer import import_trace
from fedsim.worlds.trace import Trace

BUILD = importing.build_importer
BUILT = cache(lambda name: BUILD(name, {}))
FILES = sorted(p for p in inputs.TRACES.rglob("*") if p.is_file() and p.name != "README.md")
FOLDERS = sorted({p.relative_to(inputs.TRACES).parts[0] for p in FILES})


@pytest.fixture(autouse=True)
def _importers_are_built_once(monkeypatch):
    monkeypatch.setattr(importing, "build_importer", lambda name, options: BUILT(name))


@lru_cache(maxsize=1)
def tried(path: Path) -> Trace | TraceError:
    """Return the trace of a file, or why it is refused; both tables are made of one import."""
    try:
        return import_trace([path])
    except TraceError as error:
        return error


def alone(paths: list[Path]) -> Trace:
    """Import one file."""
    (path,) = paths
    found = tried(path)
    if isinstance(found, TraceError):
        raise found
    return found


def outcome(path: Path) -> str:
    """Return what became of a file: its format, or `refused`."""
    try:
        trace = alone([path])
    except TraceError as error:
        message = str(error)
        assert path.name in message
        assert message.partition(path.name)[2].strip(" :,\n"), f"no reason: {message}"
        return "refused"
    told = json.loads(trace.source)
    assert [path.name] == [Path(file["name"]).name for file in told["files"]]
    assert len(trace.table) > 0
    assert trace.about.num_rows == trace.clients >= 1
    ids = trace.about.column("id").to_pylist()
    assert all(known is not None and str(known).strip() for known in ids)
    return str(told["importer"])


@pytest.mark.parametrize("folder", FOLDERS or ["published traces"])
def test_every_file_is_imported_or_refused_with_a_reason_as_the_committed_table_says(
    folder, root, monkeypatch
):
    inputs.trace(folder)
    monkeypatch.setattr(traces, "import_trace", alone)
    with (root / "docs" / "published_traces.csv").open(encoding="utf-8", newline="") as file:
        told = {row["file"]: row for row in csv.DictReader(file)}
    files = [p for p in FILES if p.relative_to(inputs.TRACES).parts[0] == folder]
    outcomes, found = Counter[str](), []
    for path in files:
        outcomes[outcome(path)] += 1
        found.append(asdict(traces.contents(path, inputs.TRACES)))
    assert set(outcomes) - {"refused"}, f"{folder}: none of {outcomes.total()} files is accepted"
    assert found == [told[row["file"]] for row in found], "python benchmarks/traces.py PATH --each"


@pytest.mark.parametrize(
    "name", ["fedscale-published/client_behave_trace.excerpt.txt", "flash-network/speed_distri.json"]
)
def test_another_name_and_place_change_nothing_for_files_that_say_what_they_are(name, tmp_path):
    original, copy = inputs.trace(name), tmp_path / "elsewhere.bin"
    copy.write_bytes(original.read_bytes())
    assert import_trace([copy]).digest() == import_trace([original]).digest()

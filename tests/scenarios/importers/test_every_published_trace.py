"""Every published trace that is there is either imported, or refused with the file's name and the reason."""

import csv
import json
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

import inputs
from benchmarks.traces import contents
from fedsim.common.errors import TraceError
from fedsim.worlds import importer as importing
from fedsim.worlds.importer import import_trace

BUILD = importing.build_importer
BUILT = cache(lambda name: BUILD(name, {}))
FILES = sorted(p for p in inputs.TRACES.rglob("*") if p.is_file() and p.name != "README.md")
FOLDERS = sorted({p.relative_to(inputs.TRACES).parts[0] for p in FILES})


@pytest.fixture(autouse=True)
def _importers_are_built_once(monkeypatch):
    monkeypatch.setattr(importing, "build_importer", lambda name, options: BUILT(name))


def outcome(path: Path) -> str:
    """Return what became of a file: its format, or `refused`."""
    try:
        trace = import_trace([path])
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
def test_every_file_is_imported_or_refused_with_a_reason(folder):
    inputs.trace(folder)
    found = Counter(outcome(p) for p in FILES if p.relative_to(inputs.TRACES).parts[0] == folder)
    assert found.total() > 0
    formats = set(found) - {"refused"}
    assert len(formats) >= 1, f"{folder}: none of {found.total()} files is accepted"


@pytest.mark.parametrize("folder", FOLDERS or ["published traces"])
def test_the_committed_table_says_what_each_file_holds(folder, root):
    inputs.trace(folder)
    with (root / "docs" / "published_traces.csv").open(encoding="utf-8", newline="") as file:
        told = {row["file"]: row for row in csv.DictReader(file)}
    files = [p for p in FILES if p.relative_to(inputs.TRACES).parts[0] == folder]
    found = [asdict(contents(p, inputs.TRACES)) for p in files]
    assert found == [told[row["file"]] for row in found], "python benchmarks/traces.py PATH --each"


@pytest.mark.parametrize(
    "name", ["fedscale-published/client_behave_trace.excerpt.txt", "flash-network/speed_distri.json"]
)
def test_another_name_and_place_change_nothing_for_files_that_say_what_they_are(name, tmp_path):
    original, copy = inputs.trace(name), tmp_path / "elsewhere.bin"
    copy.write_bytes(original.read_bytes())
    assert import_trace([copy]).digest() == import_trace([original]).digest()

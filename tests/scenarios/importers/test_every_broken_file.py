"""Broken files: whatever the bytes are, an importer reads them or refuses them with a TraceError."""

import json
import pickle
import re
import tempfile
from codecs import BOM_UTF8
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inputs
from fedsim.common.errors import TraceError
from fedsim.plugins import names
from fedsim.worlds.importer import Importer, Source, build_importer, guess
from fedsim.worlds.trace import Trace

LARGEST_SAMPLE_BYTES = 6000
MUTANTS = 60


def in_parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def as_written(trace: Trace) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        trace.write(Path(folder) / "world.parquet")
        return (Path(folder) / "world.parquet").read_bytes()


def in_json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()


PHONE = {"device": "A", "cpu_f": 1.0, "ram": 2.0, "fp16_mem": 9.0, "android_os": 5.0, "speed": 50.0}
WINDOWS = {"active": [5, 20], "inactive": [5, 30], "finish_time": 86400, "duration": 10, "model": "m"}
STATES = "\n".join(
    f"2020-01-28 21:0{i}:00\t{event}"
    for i, event in enumerate(["screen_lock", "wifi", "battery_charged_on", "85.0%", "screen_unlock"])
)
WORLD = Trace.of(
    [0, 1],
    [0, 5],
    [9, 10],
    ["online", "unknown"],
    clients=2,
    horizon_us=10,
    about=pa.table({"id": ["a", "b"]}),
)
SAMPLES: dict[str, list[bytes]] = {
    "fedscale_availability": [
        pickle.dumps({1: WINDOWS, 2: WINDOWS}),
        f"(1, {WINDOWS}),\n(2, {WINDOWS}), \n".encode(),
        b"[64, 357]\n[93, 360]\n107749\n",
    ],
    "fedscale_capacity": [
        pickle.dumps({i: {"computation": np.float64(i + 1), "communication": 2e3} for i in range(3)})
    ],
    "device_spec": [pickle.dumps({3: PHONE, 1: PHONE}), pickle.dumps({3: PHONE}, protocol=2)],
    "flash_states": [in_json({"a": {"guid": "g", "model": "m", "messages": STATES}})],
    "flash_network": [in_json({"a": {"down_u": 4.0, "down_sigma": 1.0, "up_u": 2.0, "up_sigma": 0.5}})],
    "flash_devices": [
        in_json({"Google Nexus S": 383, "Xiaomi Redmi Note 7 Pro": 6702, "Google Pixel 4": 33289}),
        in_json([{"Model": m, "CPU": "c", "RAM": "8GB", "AI_Score": " 6702 3"} for m in "AB"]),
        in_json(["A", "B", "C"]),
        in_json({"SM-1": "unknown"}),
    ],
    "flash_lstm": [in_json({"X": [[0.5, 0.5, 0.2, 1.0], [1.0, 1.0, 0.2, 0.2]], "Y": [[1.5], [3.0]]})],
    "flash_durations": [
        in_json(
            [
                {
                    "guid": "1",
                    "model": "m",
                    "screen_on_duration": 1.0,
                    "battery_charged_on_duration": 2.0,
                    "screen_unlock_duration": 3.0,
                }
            ]
        )
    ],
    "csv": [b"client,start_s,end_s,kind,value\na,0,10,online,\na,2.5,4,compute,0.5\n"],
    "parquet": [
        in_parquet(pa.table({"client": [1, 2], "start": [0.0, 1.0], "end": [5.0, 6.0]})),
        as_written(WORLD),
    ],
}
WRONG = [
    b"",
    b"1e999",
    b"9" * 5000,
    b"nan",
    b"-1",
    b"null",
    b"[]",
    b"{}",
    b'"x"',
    b"\x00",
    b"\xff",
    b"1_0",
    b"-",
    b"\xd9\xa3",
]
STRANGE = [
    b"",
    b"\n",
    b"\x00" * 100,
    b"\xff\xfe\x00",
    b"{" * 50_000,
    b"[" * 50_000,
    b"(" * 50_000,
    b'"' * 999,
    b"null",
    b"[1, 2, 3]",
    b'{"a": {"a": {}}}',
    b'{"\\ud800": 1}',
    b"0 0\n" * 50,
    b"a,b,c\n1,2\n",
    b"\x80\x04.",
    b"PAR1" * 9,
]


@pytest.fixture(scope="module")
def importers() -> dict[str, Importer]:
    return {name: build_importer(name, {}) for name in names("importer")}


@pytest.fixture(scope="module")
def published_samples(importers) -> dict[str, list[Source]]:
    """The smallest accepted file of each format that has no sample above, cut at a line."""
    found: dict[str, list[Source]] = {}
    wanted = {name: i for name, i in importers.items() if name not in SAMPLES}
    files = [p for p in inputs.TRACES.rglob("*") if p.is_file()]
    for path in sorted(files, key=lambda p: (p.stat().st_size, p)):
        source = Source(path, path.read_bytes())
        short = Source(path, shortened(source.data))
        for name in [n for n, i in wanted.items() if i.recognises(source) and survives(i, short)]:
            found[name] = [short]
            del wanted[name]
    return found


def shortened(data: bytes) -> bytes:
    """Return the first lines of a text or the first objects of a JSON list; other data stay whole."""
    if len(data) <= LARGEST_SAMPLE_BYTES or b"\n" not in data[:LARGEST_SAMPLE_BYTES]:
        return data
    if data.startswith(b"["):
        return data[: data.rindex(b"}", 0, LARGEST_SAMPLE_BYTES) + 1] + b"]"
    return data[: data.rindex(b"\n", 0, LARGEST_SAMPLE_BYTES) + 1]


def mutants(data: bytes, rng: np.random.Generator) -> list[bytes]:
    """Return broken copies: cut, bits flipped, values replaced, lines twice or gone, bytes put in."""
    found = [data[: int(at)] for at in rng.integers(0, max(len(data), 1), MUTANTS // 3)]
    for _ in range(MUTANTS // 2):
        copy = bytearray(data)
        for at in rng.integers(0, len(data), int(rng.integers(1, 4))).tolist():
            copy[at] ^= 1 << int(rng.integers(8))
        found.append(bytes(copy))
    values = [m.span() for m in re.finditer(rb"[\w.]+", data[:100_000])]
    for wrong in WRONG:
        for _ in range(2):
            first, last = values[int(rng.integers(len(values)))]
            found.append(data[:first] + wrong + data[last:])
    lines = data.splitlines(keepends=True)
    at = int(rng.integers(len(lines)))
    return [
        *found,
        b"".join([*lines[: at + 1], *lines[at:]]),
        b"".join([*lines[:at], *lines[at + 1 :]]),
        data[::-1],
    ]


def survives(importer: Importer, source: Source) -> bool:
    """Read a file that may be broken; tell whether it was accepted. Only TraceError may come out of it."""
    assert importer.recognises(source) in (True, False)
    try:
        trace = importer.read([source]).trace
    except TraceError:
        return False
    assert isinstance(trace, Trace)
    return True


@pytest.mark.parametrize("name", names("importer"))
def test_broken_files_are_refused_in_words(name, importers, published_samples):
    samples = [Source(Path("folder/sample"), data) for data in SAMPLES.get(name, [])]
    samples += published_samples.get(name, [])
    if not samples:
        inputs.no_trace(f"file of the format {name}")
    assert any(survives(importers[name], sample) for sample in samples)
    rng = np.random.default_rng(7)
    for sample in samples:
        for data in mutants(sample.data, rng):
            survives(importers[name], Source(sample.path, data))


@pytest.mark.parametrize("name", names("importer"))
def test_strange_files_are_refused_in_words(name, importers):
    for data in STRANGE:
        assert not survives(importers[name], Source(Path("folder/strange.json"), data)), data[:40]


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_samples_are_recognised_by_their_importer_alone(name, importers):
    for data in SAMPLES[name]:
        source = Source(Path("folder/sample"), data)
        assert [n for n, i in importers.items() if i.recognises(source)] == [name]


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_byte_order_mark_hides_no_text(name):
    for data in SAMPLES[name]:
        if data.isascii() and b"\0" not in data:
            assert guess([Source(Path("folder/sample"), BOM_UTF8 + data)]) == name


def test_files_of_one_format_are_not_read_as_another(importers):
    for name, samples in SAMPLES.items():
        for other in SAMPLES:
            if other != name:
                for data in samples:
                    assert not survives(importers[other], Source(Path("folder/sample"), data)), (name, other)

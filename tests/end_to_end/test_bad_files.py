"""Every reader meets every kind of damage: the user gets one of our errors with the file's name, and loses nothing."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cifar10_images import write_cifar10
from fedsim import analysis, plugins
from fedsim.analysis.export.perfetto import export_perfetto
from fedsim.analysis.opening.facts import facts
from fedsim.analysis.opening.run import open_all
from fedsim.analysis.statistics.waste import total_waste
from fedsim.analysis.tables.closing import closing_table
from fedsim.cli.main import main
from fedsim.common.errors import Error, FolderError, RunError
from fedsim.common.files import write_atomically, write_json
from fedsim.config.load import load_config
from fedsim.records import checkpoint
from fedsim.runs.replay import compare_participation, replay_config
from fedsim.worlds.importer import import_trace
from fedsim.worlds.trace import Trace, read_trace
from small import run, small

CONFIG = """
task = {name = "digits", clients = 12}
partition = {name = "iid"}
pacing = {preset = "sync", clients = 4}
stop = {steps = 2}
"""


@dataclass(frozen=True)
class Reader:
    """A file that fedsim reads: how to write a sound one, and what reads it."""

    make: Callable[[Path], Path]
    """Writes sound files into a folder, and returns the one to damage."""
    read: Callable[[Path], object]
    allowed: tuple[str, ...] = ()
    """Damages after which there is still something sound, such as an empty TOML file."""


def config(folder: Path) -> Path:
    (folder / "run.toml").write_text(CONFIG)
    return folder / "run.toml"


def world(folder: Path) -> Path:
    about = pa.table({"id": ["a", "b"], "region": ["x", "y"]})
    Trace.of([0, 1], [0, 5], [9, 10], "online", clients=2, horizon_us=10, about=about).write(
        folder / "w.parquet"
    )
    return folder / "w.parquet"


def table(folder: Path) -> Path:
    (folder / "visits.csv").write_text("client,start_h,end_h\na,0,10\nb,2.5,4\n")
    return folder / "visits.csv"


def devices(folder: Path) -> Path:
    phone = {"device": "A", "cpu_f": 1.0, "ram": 2.0, "fp16_mem": 9.0, "android_os": 5.0, "speed": 50.0}
    (folder / "devices.pkl").write_bytes(pickle.dumps({3: phone, 1: phone}))
    return folder / "devices.pkl"


def images(folder: Path, name: str) -> Path:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, n in (("train", 5), ("t10k", 3)):
        labels, pixels = np.arange(n, dtype=np.uint8), np.ones((n, 28, 28), np.uint8)
        heads = np.array([0x801, n], ">u4").tobytes(), np.array([0x803, n, 28, 28], ">u4").tobytes()
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(heads[0] + labels.tobytes())
        (raw / f"{part}-images-idx3-ubyte").write_bytes(heads[1] + pixels.tobytes())
    return raw / name


def pictures(folder: Path) -> Path:
    write_cifar10(folder)
    return folder / "cifar10_jpeg.parquet"


def schedule(folder: Path, name: str) -> Path:
    columns = {"step": [0, 0, 1], "client": [0, 1, 2]}
    if name.endswith(".csv"):
        (folder / name).write_text("step,client\n0,0\n0,1\n1,2\n")
    else:
        pq.write_table(pa.table(columns), folder / name)
    return folder / name


FINISHED: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One run, whose folder is copied for each test."""
    FINISHED.append(run(small(stop={"steps": 3}), tmp_path_factory.mktemp("finished")).folder)
    yield
    FINISHED.clear()


def run_folder(folder: Path, name: str) -> Path:
    """Copy a finished run and return one of its files."""
    return Path(shutil.copytree(FINISHED[0], folder / "made")) / name


def arm_list(folder: Path) -> Path:
    run_folder(folder, "")
    write_json(folder / "arms.json", {"arms": ["made"]})
    return folder / "arms.json"


def build(kind: str, name: str, **options: Any) -> object:
    given: dict[str, Any] = {"clients": 2, "seed": 0} if kind == "task" else {}
    return plugins.build(
        kind, name, options if kind != "task" else {}, **given, **(options if kind == "task" else {})
    )


def look(folder: Path) -> None:
    """Read all of a run that goes into tables on the screen, and its events."""
    for opened in open_all([folder]):
        closing_table([opened])
        facts(opened)
        total_waste(opened)
        assert len(opened.world.schema) == 5
        export_perfetto(opened, folder.parent / "perfetto.json")


def again(folder: Path) -> None:
    """Read all of a run that a replay in its world asks for."""
    replay_config(folder, (), same_participation=True)
    compare_participation(folder, folder)
    read_trace(folder / "world.parquet")


def saved(folder: Path, name: str) -> Path:
    """Write a checkpoint and return one of its files."""
    (folder / "config.resolved.toml").touch()
    state = {"step": 3, "losses": np.arange(3.0), "params": torch.ones(5), "names": ["a", "b"]}
    return checkpoint.write(folder, state, step=3, jobs=7, keep=1) / name


READERS = {
    "config": Reader(config, load_config),
    "trace": Reader(world, read_trace),
    "import-csv": Reader(table, lambda p: import_trace([p], "csv")),
    "import-parquet": Reader(world, lambda p: import_trace([p], "parquet")),
    "import-pickle": Reader(devices, lambda p: import_trace([p], "device_spec")),
    "import-guess": Reader(table, lambda p: import_trace([p])),
    **{
        f"idx-{name}": Reader(
            lambda f, n=name: images(f, n),  # type: ignore[misc]
            lambda p: build("task", "mnist", data_dir=p.parents[2]),
        )
        for name in ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    },
    "jpeg-parquet": Reader(pictures, lambda p: build("task", "cifar10", data_dir=p.parent)),
    **{
        f"fixed-{name}": Reader(
            lambda f, n=name: schedule(f, n),  # type: ignore[misc]
            lambda p: build("selector", "fixed", table=p),
        )
        for name in ("s.csv", "s.parquet")
    },
    **{
        f"checkpoint-{name}": Reader(
            lambda f, n=name: saved(f, n),  # type: ignore[misc]
            lambda p: checkpoint.read(p.parent),
        )
        for name in ("state.json", "tensors-00000.safetensors")
    },
    "replayed": Reader(
        lambda f: run_folder(f, "jobs.parquet"), lambda p: build("selector", "replayed", jobs=p)
    ),
    "clients": Reader(
        lambda f: run_folder(f, "clients.parquet"),
        lambda p: analysis.selection_regret(analysis.open_run(p.parent)),
    ),
    "arms": Reader(arm_list, lambda p: look(p.parent), ("folder_instead", "missing", "endless_link")),
    **{
        f"run-{name}": Reader(
            lambda f, n=name: run_folder(f, n),  # type: ignore[misc]
            lambda p: look(p.parent),
            ("empty",) if name.endswith(".toml") else (),
        )
        for name in (
            "manifest.json",
            "config.resolved.toml",
            "jobs.parquet",
            "steps.parquet",
            "evals.parquet",
            "world.parquet",
        )
    },
}


def empty(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def clipped(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(1).bytes(999))


def picture(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def missing(path: Path) -> None:
    path.unlink()


def endless_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def forbidden(path: Path) -> None:
    path.chmod(0)


CERTAIN = (empty, noise, picture, folder_instead, missing, endless_link, forbidden)
"""Damages that no reader can take for a sound file."""
DAMAGES = (*CERTAIN, halved, clipped)


@pytest.fixture
def no_downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSIM_DATA", str(tmp_path / "elsewhere"))


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of all files, of those that may not be read, too."""
    return {str(p): _content(p) for p in folder.rglob("*") if p.is_file() and p.name != "perfetto.json"}


def _content(path: Path) -> tuple[int, bytes]:
    mode = path.stat().st_mode
    if os.access(path, os.R_OK):
        return mode, path.read_bytes()
    path.chmod(0o600)
    content = path.read_bytes()
    path.chmod(mode)
    return mode, content


@pytest.mark.parametrize("name", READERS)
@pytest.mark.usefixtures("no_downloads")
def test_a_sound_file_is_read(name: str, tmp_path: Path) -> None:
    assert refusal(READERS[name], READERS[name].make(tmp_path)) is None


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.usefixtures("no_downloads")
def test_damage_is_told_with_the_file_and_a_reason(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    reader = READERS[name]
    path = reader.make(tmp_path)
    damage(path)
    if damage is forbidden and os.access(path, os.R_OK):
        pytest.skip("who runs the tests may read everything, as root may")
    before = contents(tmp_path)
    told = refusal(reader, path)
    if told is None:
        assert damage not in CERTAIN or damage.__name__ in reader.allowed, "it was taken for sound"
    else:
        assert path.name in told
        assert len(path.name) + 10 < len(told) < 5000, "a reason is given"
    assert contents(tmp_path) == before


def refusal(reader: Reader, path: Path) -> str | None:
    """Return with which words a file is refused, None if it is read; any other error comes out."""
    try:
        reader.read(path)
    except Error as error:
        return str(error)
    return None


EDITS = st.lists(
    st.tuples(st.sampled_from("xitc"), st.floats(0, 1, exclude_max=True), st.binary(max_size=3)), max_size=3
)


def edited(data: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    """Flip, insert, truncate or copy bytes at places given as fractions of the length."""
    for what, place, new in edits:
        at = int(place * len(data))
        if what == "x":
            data = (
                data[:at] + bytes(b ^ n for b, n in zip(data[at:], new, strict=False)) + data[at + len(new) :]
            )
        elif what == "i":
            data = data[:at] + new + data[at:]
        elif what == "t":
            data = data[:at]
        else:
            data = data[:at] + data[at // 2 :]
    return data


@pytest.mark.parametrize("name", READERS)
@pytest.mark.usefixtures("no_downloads")
def test_edited_bytes_are_read_or_refused(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    path = reader.make(tmp_path)
    sound = path.read_bytes()

    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(EDITS)
    def attempt(edits: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(edited(sound, edits))
        told = refusal(reader, path)
        assert told is None or path.name in told or path.parent.name in told

    attempt()


def test_a_flipped_byte_in_a_world_or_a_table_of_a_run_is_found(tmp_path: Path) -> None:
    """Pages carry checksums: values that were written are the values that are read."""
    path = world(tmp_path)
    sound, before = path.read_bytes(), read_trace(path).digest()
    noticed = 0
    for at in range(4, len(sound) - 8, 7):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        try:
            assert read_trace(path).table.equals(read_trace_of(sound, tmp_path)), f"byte {at} changed a value"
        except Error:
            noticed += 1
    assert noticed > 10
    path.write_bytes(sound)
    assert read_trace(path).digest() == before


def read_trace_of(data: bytes, folder: Path) -> pa.Table:
    (folder / "sound.parquet").write_bytes(data)
    return read_trace(folder / "sound.parquet").table


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, r"manifest.json: format: written by another version of fedsim: expected 1, found 2"),
        ({"wall_s": {"total": "long"}}, r"manifest.json: wall_s\..*total"),
        ({"virtual_us": -1}, r"manifest.json: virtual_us: .* found -1"),
        ({"jobs": [1]}, r"manifest.json: jobs: .* found \[1\]"),
        ({"status": 3}, r"manifest.json: status: .* found 3"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = run_folder(tmp_path, "manifest.json")
    write_json(path, json.loads(path.read_text()) | changes)
    with pytest.raises(FolderError, match=message):
        open_all([path.parent])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("client", -5, "column 'client': expected numbers of at least 0, found -5"),
        ("client", None, r"column 'client': expected values in all \d+ rows, found 1 nulls"),
        ("client", "a", "another type than declared"),
        ("status", "stolen", "column 'status': expected one of .*, found 'stolen'"),
    ],
)
def test_values_that_no_run_writes_are_refused(tmp_path: Path, column: str, value: Any, message: str) -> None:
    path = run_folder(tmp_path, "jobs.parquet")
    jobs = pq.read_table(path)
    values = [str(v) if value == "a" else v for v in jobs[column].to_pylist()[:-1]] + [value]
    pq.write_table(jobs.set_column(jobs.column_names.index(column), column, [values]), path)
    with pytest.raises(FolderError, match=message):
        look(path.parent)


COMMANDS: dict[str, tuple[str, list[str]]] = {
    "run": ("config", ["run", "PATH", "--out", "OUT", "--workers", "0"]),
    "plan": ("config", ["plan", "PATH"]),
    "trace check": ("trace", ["trace", "check", "PATH"]),
    "trace show": ("trace", ["trace", "show", "PATH"]),
    "trace edit": ("trace", ["trace", "edit", "PATH", "--crop", "0us:5us", "-o", "OUT"]),
    "trace import": ("import-csv", ["trace", "import", "csv", "PATH", "-o", "OUT"]),
    "trace make": ("config", ["trace", "make", "PATH", "-o", "OUT"]),
    "report": ("run-manifest.json", ["report", "FOLDER"]),
    "report of tables": ("run-jobs.parquet", ["report", "FOLDER"]),
    "export": ("run-evals.parquet", ["export", "perfetto", "FOLDER"]),
    "replay": ("run-manifest.json", ["replay", "FOLDER", "--workers", "0"]),
    "replay in a world": ("run-world.parquet", ["replay", "FOLDER", "--workers", "0", "--out", "OUT"]),
}


@pytest.mark.parametrize("damage", [noise, folder_instead, missing], ids=lambda d: d.__name__)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_say_what_is_wrong_and_end_with_2(
    command: str, damage: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, arguments = COMMANDS[command]
    path = READERS[name].make(tmp_path)
    damage(path)
    before = contents(tmp_path)
    words = {"PATH": str(path), "FOLDER": str(path.parent), "OUT": str(tmp_path / "out")}
    with pytest.raises(SystemExit) as ended:
        main([words.get(word, word) for word in arguments])
    told = capsys.readouterr().err
    assert ended.value.code == 2, told
    assert told.startswith("error: ")
    assert path.name in told
    assert contents(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_a_write_that_fails_says_how_much_room_is_left(tmp_path: Path) -> None:
    def fail(beside: Path) -> None:
        beside.write_bytes(bytes(100))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(
        RunError, match=rf"x: cannot be written: No space left on device; .* free in {tmp_path}"
    ):
        write_atomically(tmp_path / "x", fail)
    assert not any(tmp_path.iterdir())


def full_from(part: str, at: int) -> Callable[..., pq.ParquetWriter]:
    """Return a stand-in for `ParquetWriter` to which the disk is full from a part's file on."""
    real, full = pq.ParquetWriter, []

    def write(where: Path, *options: Any, **more: Any) -> pq.ParquetWriter:
        if full or (f".{part}-" in str(where) and int(str(where).split("-")[-1][:5]) >= at):
            full.append(where)
            Path(where).write_bytes(b"PAR1")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(where, *options, **more)

    return write


def test_a_full_disk_stops_the_run_and_leaves_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsim.records.recorder._PART_S", 0.0)
    monkeypatch.setattr(pq, "ParquetWriter", full_from("steps", 4))
    with pytest.raises(
        RunError, match=r"steps-00004.parquet: cannot be written: No space left .* free in .*parts"
    ):
        run(small(), tmp_path)
    folder = tmp_path / "small"
    monkeypatch.undo()
    found = open_all([folder])[0]
    assert found.manifest["status"] == "failed"
    assert "No space left on device" in found.manifest["error"]
    assert found.steps["step"].to_pylist() == [0, 1, 2, 3]
    assert len(found.jobs) >= 4
    assert not list(folder.rglob("*.tmp"))


def mounted(folder: Path, size: str) -> bool:
    """Try to mount a small file system; only root can."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True
    )
    return done.returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mounted(folder, "400k"):
        pytest.skip("a small file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.records.recorder._PART_S", 0.0)
    with pytest.raises(RunError, match=rf"cannot be written: .*No space left.* free in {small_disk}"):
        run(small(stop={"steps": 400}, evaluate={"every_steps": 1}), small_disk)
    found = open_all([small_disk / "small"])[0]
    assert found.manifest["status"] in ("running", "failed")
    assert len(found.steps) > 3
    assert len(found.evaluations()) > 3
    assert not list(small_disk.rglob("*.tmp"))

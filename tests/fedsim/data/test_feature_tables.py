"""Landmine and vehicle: tables of features whose rows belong to clients."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inputs
from fedsim import plugins
from fedsim.common.errors import DataError
from fedsim.data.federated_data import Task
from fedsim.data.split import federate

FILES = {"landmine": "landmine/landmine.npz", "vehicle": "vehicle/vehicle_train_subset.npz"}
WIDTHS = {"landmine": 9, "vehicle": 100}
LABELS = {"landmine": [0, 1], "vehicle": [-1, 1]}


def build(name: str, data_dir: Path) -> Task:
    task: Task = plugins.build("task", name, {}, clients=3, seed=0, data_dir=data_dir)
    return task


def write(folder: Path, name: str, **changes: Any) -> Path:
    """Write six rows of three clients, some arrays replaced; feature 0 is the row's number."""
    x = np.zeros((6, WIDTHS[name]))
    x[:, 0] = np.arange(6)
    arrays = {
        "X": x,
        "y": np.array(LABELS[name] * 3, np.int8),
        "client": np.array([2, 0, 1, 0, 2, 2], np.int16),
    }
    path = folder / FILES[name]
    path.parent.mkdir()
    np.savez(path, **{key: value for key, value in (arrays | changes).items() if value is not None})
    return path


@pytest.mark.parametrize("name", FILES)
def test_rows_belong_to_clients(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    task = build(name, tmp_path)
    assert (task.x.shape, task.x.dtype, task.y.dtype) == ((6, WIDTHS[name]), np.float32, np.int64)
    assert task.x[:, 0].tolist() == list(range(6))
    assert task.y.tolist() == [0, 1] * 3
    assert task.natural is not None
    assert [rows.tolist() for rows in task.natural] == [[1, 3], [2], [0, 4, 5]]
    assert not task.official_test.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client": None}, "expected arrays X, y, client, found no client"),
        ({"X": np.zeros((6, 8))}, r"expected X \[N, 9\], y \[N\] and client \[N\], found \(6, 8\)"),
        ({"client": np.zeros(5, np.int16)}, r"found \(6, 9\), \(6,\) and \(5,\)"),
        ({"y": np.array([0, 1, 2, 0, 1, 2])}, "expected labels 0 and 1, found 2"),
        ({"X": np.full((6, 9), np.nan)}, "expected finite features, found others in row 0"),
        ({"client": np.array([0, 0, 2, 2, 3, 3])}, "rows of clients 0 to 3, found none of client 1"),
        ({"client": np.array([0, 0, -1, 1, 1, 1])}, "clients numbered from 0, found -1"),
        ({"client": np.array([0, 0, 1, 1, 10**13, 1])}, f"numbered from 0, found {10**13} in row 4 of 6"),
        ({"client": np.array([0, 0.5, 1, 1, 2, 2])}, "numbered from 0, found 0.5 in row 1"),
        ({"client": np.array([0, 0, np.nan, 1, 2, 2])}, "numbered from 0, found nan in row 2"),
        ({"client": np.array(list("001122"))}, "numbered from 0, found 0 in row 0"),
        ({"X": np.full((6, 9), "a")}, "expected numbers for X, found <U1"),
        ({"X": np.full((6, 9), 1e300)}, "expected finite features, found others in row 0"),
        ({"y": np.array(1)}, r"found \(6, 9\), \(\) and \(6,\)"),
        ({"y": np.array([None] * 6)}, "expected an .npz file of arrays: Object arrays cannot be loaded"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, "landmine", **changes)
    with pytest.raises(DataError, match=message) as caught:
        build("landmine", tmp_path)
    assert str(path) in str(caught.value)


def test_whole_numbers_of_clients_may_be_floats(tmp_path: Path) -> None:
    write(tmp_path, "landmine", client=np.array([2.0, 0, 1, 0, 2, 2]))
    natural = build("landmine", tmp_path).natural
    assert natural is not None
    assert [rows.tolist() for rows in natural] == [[1, 3], [2], [0, 4, 5]]


def test_a_damaged_compressed_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "landmine")
    np.savez_compressed(path, X=np.zeros((500, 9)), y=np.zeros(500, int), client=np.zeros(500, int))
    sound = path.read_bytes()
    messages = []
    for at in range(30, len(sound) - 20):
        path.write_bytes(sound[:at] + b"\xff" * 20 + sound[at + 20 :])
        try:
            build("landmine", tmp_path)
        except DataError as error:
            messages.append(str(error))
    assert all(f"{path}: expected" in text for text in messages)
    assert any("decompressing" in text for text in messages)


def single_array() -> bytes:
    saved = io.BytesIO()
    np.save(saved, np.zeros(3))
    return saved.getvalue()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"no archive", single_array()], ids=range(4))
def test_a_foreign_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, "vehicle")
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"expected an \.npz file of arrays") as caught:
        build("vehicle", tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_with_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"task '{name}': no {FILES[name]} in {tmp_path}"):
        build(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "clients", "rows", "least", "most", "positive"),
    [("landmine", 29, 14_820, 445, 690, 904), ("vehicle", 23, 1_860, 7, 534, 1_023)],
)
def test_the_real_tables(name: str, clients: int, rows: int, least: int, most: int, positive: int) -> None:
    task = build(name, inputs.data_of(name))
    assert task.natural is not None
    sizes = [len(r) for r in task.natural]
    assert (len(sizes), len(task.y), min(sizes), max(sizes)) == (clients, rows, least, most)
    assert int(task.y.sum()) == positive
    assert federate(task, n_clients=clients, seed=0).test.sizes.min() >= 1

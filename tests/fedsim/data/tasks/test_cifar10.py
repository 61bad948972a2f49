from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import inputs
from cifar10_images import COLOURS, jpeg, write_cifar10
from fedsim import plugins
from fedsim.common.errors import DataError
from fedsim.data.federated_data import Task
from fedsim.data.tasks.cifar10 import BATCHES, JPEGS


def build(data_dir: Path, **options: Any) -> Task:
    task: Task = plugins.build("task", "cifar10", options, clients=2, seed=0, data_dir=data_dir)
    return task


def test_packed_images_are_decoded_channel_first(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    task = build(tmp_path)
    assert task.x.shape == (4, 3, 32, 32)
    assert task.x.flags.c_contiguous
    assert (task.x.dtype, task.y.dtype) == (np.float32, np.int64)
    expected = np.broadcast_to(COLOURS[:, :, None, None] / 255, task.x.shape)
    np.testing.assert_allclose(task.x, expected, atol=0.02)
    assert task.y.tolist() == [3, 1, 4, 9]
    assert task.official_test.tolist() == [False, False, False, True]
    assert task.model == "cnn"


def test_normalising_is_by_channel(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    plain, scaled = build(tmp_path), build(tmp_path, normalise=True)
    for channel, (mean, std) in enumerate(
        zip((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), strict=True)
    ):
        np.testing.assert_allclose(scaled.x[:, channel], (plain.x[:, channel] - mean) / std, atol=1e-5)
    by_image = build(tmp_path, normalise="image")
    np.testing.assert_allclose(by_image.x[:, 2] * 0.2010, scaled.x[:, 2] * 0.2616, atol=1e-5)


def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path)
    first = build(tmp_path)
    x, y, official = first.x.copy(), first.y.copy(), first.official_test.copy()
    for array in (first.x, first.y, first.official_test):
        array[:] = 0
    monkeypatch.setattr("PIL.Image.open", None)
    again = build(tmp_path)
    np.testing.assert_array_equal(again.x, x)
    np.testing.assert_array_equal(again.y, y)
    np.testing.assert_array_equal(again.official_test, official)


def test_a_changed_file_is_decoded_again(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    build(tmp_path)
    write_cifar10(tmp_path, label=[5, 6, 7, 8])
    assert build(tmp_path).y.tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [jpeg(COLOURS[0])] * 3 + [b"no image"]}, "expected a 32x32 colour image in row 3"),
        ({"image": [jpeg(COLOURS[0], side=16)] * 4}, "expected a 32x32 colour image in row 0"),
        ({"label": [0, 1, 2, 10]}, "expected labels 0 to 9, found 0 to 10"),
        ({"split": ["train"] * 3 + ["tset"]}, "expected split 'train' or 'test', found 'tset'"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, columns: dict[str, list[Any]], message: str) -> None:
    write_cifar10(tmp_path, **columns)
    with pytest.raises(DataError, match=rf"{JPEGS}: {message}"):
        build(tmp_path)


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / JPEGS).write_bytes(b"PAR1 but no more")
    with pytest.raises(DataError, match=rf"{JPEGS}: not a readable Parquet file"):
        build(tmp_path)


def torchvision(monkeypatch: pytest.MonkeyPatch, cifar10: Any) -> None:
    """Put a torchvision in place that has nothing but this data set."""
    fake = ModuleType("torchvision")
    fake.datasets = SimpleNamespace(CIFAR10=cifar10)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", fake)


def test_original_files_take_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path)
    (tmp_path / BATCHES).mkdir()

    def made(root: Path, train: bool, download: bool) -> SimpleNamespace:
        images = COLOURS[:2] if train else COLOURS[2:3]
        pixels = np.broadcast_to(images[:, None, None], (len(images), 32, 32, 3))
        return SimpleNamespace(data=pixels, targets=[7] * len(images))

    torchvision(monkeypatch, made)
    task = build(tmp_path)
    assert task.x.flags.c_contiguous
    np.testing.assert_array_equal(task.x[:, :, 5, 6], COLOURS[:3] / np.float32(255))
    assert task.y.tolist() == [7, 7, 7]
    assert task.official_test.tolist() == [False, False, True]


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**arguments: Any) -> None:
        raise OSError("no network")

    torchvision(monkeypatch, refused)
    with pytest.raises(DataError, match=rf"no complete {BATCHES} and no {JPEGS} in (?s:.*)no network"):
        build(tmp_path)


def test_only_the_users_own_folder_is_downloaded_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def refused(root: Path, train: bool, download: bool) -> None:
        asked.append(download)
        raise RuntimeError("not found")

    torchvision(monkeypatch, refused)
    monkeypatch.setenv("FEDSIM_DATA", str(tmp_path / "mine"))
    for folder, message in (
        (tmp_path / "other", "folder of FEDSIM_DATA alone"),
        (tmp_path / "mine", "downloading failed"),
    ):
        with pytest.raises(DataError, match=message):
            build(folder)
    assert asked == [False, True]


@pytest.mark.slow
def test_the_whole_set_has_its_published_statistics() -> None:
    task = build(inputs.data_of("cifar10"), normalise=True)
    assert task.x.shape == (60_000, 3, 32, 32)
    assert int(task.official_test.sum()) == 10_000
    assert np.bincount(task.y[~task.official_test]).tolist() == [5000] * 10
    training = task.x[~task.official_test]
    np.testing.assert_allclose(training.mean(axis=(0, 2, 3), dtype=np.float64), 0, atol=0.02)
    np.testing.assert_allclose(training[::7].std(axis=(0, 2, 3), dtype=np.float64), 1, atol=0.03)

"""CIFAR-10 (Krizhevsky, 2009)."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import DataError
from fedsim.common.files import read_parquet
from fedsim.data.dataset_files import folder, may_download
from fedsim.data.federated_data import Task

BATCHES = "cifar-10-batches-py"
"""torchvision's folder of the original files."""
JPEGS = "cifar10_jpeg.parquet"
"""A file with an encoded image per row, of a ninth of the size; JPEG changes pixels a little."""
CLASSES = 10
_SHAPE = (3, 32, 32)
_MEAN = np.array([0.4914, 0.4822, 0.4465], dtype=np.float32)
_STD = np.array([0.2470, 0.2435, 0.2616], dtype=np.float32)
_STD_OF_AN_IMAGE = np.array([0.2023, 0.1994, 0.2010], dtype=np.float32)

Pixels = NDArray[np.uint8]
"""[N, 3, 32, 32]"""
Labels = NDArray[np.int64]


def cifar10(
    *, clients: int, seed: int, data_dir: Path | None, normalise: bool | Literal["image"] = False
) -> Task:
    """60,000 colour 32x32 images of vehicles and animals in 10 classes, of which 10,000 are the official test set.

    `data_dir` is the folder that holds `cifar-10-batches-py`, or `cifar10_jpeg.parquet` with the columns image, label
    and split (default: FEDSIM_DATA, else `./data`); the former is downloaded if both are missing. Raises DataError that
    names a damaged file, or a missing one that cannot be downloaded.

    Args:
        normalise: false leaves values from 0 to 1. true gives each channel mean 0 and standard deviation 1 over the
            training images. "image" gives mean 0, too, but divides by the average deviation within one image, as many
            public codes do.
    """
    root = folder(data_dir)
    packed = not (root / BATCHES).is_dir() and (root / JPEGS).is_file()
    if packed:
        state = (root / JPEGS).stat()
        pixels, y, test = _unpacked(root / JPEGS, state.st_mtime_ns, state.st_size)
    else:
        pixels, y, test = _original(root)
    x = pixels.astype(np.float32)
    x /= 255
    if normalise:
        x -= _MEAN[:, None, None]
        x /= (_STD_OF_AN_IMAGE if normalise == "image" else _STD)[:, None, None]
    return Task(name="cifar10", x=x, y=y.copy(), n_classes=CLASSES, official_test=test.copy(), model="cnn")


def _original(root: Path) -> tuple[Pixels, Labels, NDArray[np.bool_]]:
    """Read the original files, and download missing ones."""
    from torchvision import datasets  # seconds to import; it checks sums before it opens the pickles

    fetch = may_download(root)
    try:
        parts = [datasets.CIFAR10(root=root, train=train, download=fetch) for train in (True, False)]
    except (RuntimeError, OSError, AssertionError, ValueError) as error:
        tried = "and downloading failed" if fetch else "and downloads go to the folder of FEDSIM_DATA alone"
        raise DataError(
            f"task 'cifar10': no complete {BATCHES} and no {JPEGS} in {root}, {tried}. Put one of them "
            f"there, or set task.data_dir or FEDSIM_DATA to a folder that holds one.\n{error}"
        ) from error
    pixels: Pixels = np.ascontiguousarray(np.concatenate([part.data for part in parts]).transpose(0, 3, 1, 2))
    y = np.concatenate([np.asarray(part.targets, dtype=np.int64) for part in parts])
    return pixels, y, np.arange(len(y)) >= len(parts[0].targets)


@functools.lru_cache(maxsize=1)
def _unpacked(path: Path, mtime_ns: int, size: int) -> tuple[Pixels, Labels, NDArray[np.bool_]]:
    """Decode the images of a Parquet file, in the order of its rows.

    A study divides the same images in many ways, and decoding takes longer: the result is kept for a file whose time of
    modification and size [bytes] stay the same.
    """
    import pyarrow as pa

    table = read_parquet(path, DataError, ("image", "label", "split"))
    try:
        table = table.cast(pa.schema([("image", pa.binary()), ("label", pa.int64()), ("split", pa.string())]))
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{path}: expected images as bytes, whole numbers and words: {error}") from error
    if not table.num_rows or any(column.null_count for column in table.columns):
        raise DataError(f"{path}: expected rows with an image, a label and a split each, found none or nulls")
    pixels = np.empty((table.num_rows, *_SHAPE), dtype=np.uint8)
    for row, encoded in enumerate(table["image"].to_pylist()):
        try:
            pixels[row] = _decoded(encoded)
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{path}: expected a 32x32 colour image in row {row}: {error}") from error
    y = table["label"].to_numpy()
    if not 0 <= y.min() <= y.max() < CLASSES:
        raise DataError(f"{path}: expected labels 0 to {CLASSES - 1}, found {y.min()} to {y.max()}")
    splits = np.asarray(table["split"].to_pylist())
    if unknown := set(splits.tolist()) - {"train", "test"}:
        raise DataError(f"{path}: expected split 'train' or 'test', found {sorted(unknown)[0]!r}")
    return pixels, y, splits == "test"


def _decoded(encoded: bytes) -> Pixels:
    """Return the pixels [3, 32, 32] of a JPEG or PNG file; the size is checked before pixels are decoded."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(encoded), formats=("JPEG", "PNG"))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(str(error)) from error
    if (image.mode, *image.size) != ("RGB", *_SHAPE[1:]):
        raise ValueError(f"found one of {image.size[0]}x{image.size[1]} in mode {image.mode}")
    return np.frombuffer(image.tobytes(), dtype=np.uint8).reshape(32, 32, 3).transpose(2, 0, 1)

"""Read MNIST-like data sets from torchvision's layout `<folder>/<Name>/raw`, and download them into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import ConfigError, DataError
from fedsim.data.dataset_files import folder, may_download, reading
from fedsim.data.federated_data import Task

Normalise = bool | Literal["pixel"]
Classes = Annotated[Sequence[Annotated[int, Field(ge=0, le=9)]], Field(min_length=2)]

_FILES = [(f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte") for part in ("train", "t10k")]
"""The image and the label file of the training set and of the official test set."""


@dataclass(frozen=True, slots=True)
class ImageSet:
    """A data set that torchvision knows under `dataset`, with the pixel statistics of its training images."""

    name: str
    dataset: str
    mean: float
    std: float


def load(
    images: ImageSet, data_dir: Path | None, normalise: Normalise, classes: Sequence[int] | None = None
) -> Task:
    """Return the training images, then the official test images, downloading missing files.

    x is float32 [N, 1, 28, 28] from 0 to 1. If `normalise`, it has mean 0 and standard deviation 1 over all training
    pixels; with "pixel" each pixel has them over all training images, with 0.001 grey levels added to its deviation.
    classes: those to keep, which become 0, 1, ...; None keeps all ten. Raises DataError that names a damaged file or a
    missing one that cannot be downloaded, and ConfigError for classes that repeat.
    """
    if classes is not None and len(set(classes)) < len(classes):
        raise ConfigError(f"task {images.name!r}: classes: expected different ones, found {list(classes)}")
    raw = folder(data_dir) / images.dataset / "raw"
    _ensure(images, raw)
    pairs = [_read_pair(raw / pixels, raw / labels) for pixels, labels in _FILES]
    kept = pairs if classes is None else [_only(pixels, labels, classes) for pixels, labels in pairs]
    x = np.concatenate([pixels for pixels, _ in kept])[:, None].astype(np.float32)
    if normalise == "pixel":
        x -= pairs[0][0].mean(axis=0).astype(np.float32)
        x /= (pairs[0][0].std(axis=0) + 0.001).astype(np.float32)
    else:
        x /= 255
    if normalise is True:
        x -= images.mean
        x /= images.std
    y = np.concatenate([labels for _, labels in kept]).astype(np.int64)
    return Task(
        name=images.name,
        x=x,
        y=y,
        n_classes=10 if classes is None else len(classes),
        official_test=np.arange(len(y)) >= len(kept[0][1]),
        model="mlp",
    )


def _only(
    pixels: NDArray[np.uint8], labels: NDArray[np.uint8], classes: Sequence[int]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Keep the images of `classes`, which become 0, 1, ... in this order."""
    new_label = np.zeros(10, dtype=np.uint8)
    new_label[list(classes)] = np.arange(len(classes))
    rows = np.flatnonzero(np.isin(labels, classes))
    return pixels[rows], new_label[labels[rows]]


def _ensure(images: ImageSet, raw: Path) -> None:
    """Download missing files. Raises DataError if that is not allowed, or fails."""
    missing = [name for pair in _FILES for name in pair if not (raw / name).is_file()]
    if not missing:
        return
    if not may_download(raw.parents[1]):
        raise DataError(
            f"task {images.name!r}: no {', '.join(missing)} in {raw}. Put the uncompressed idx files there, or "
            "leave out task.data_dir: downloads go to the folder of FEDSIM_DATA alone"
        )
    from torchvision import datasets  # seconds to import, and only needed to download

    try:
        getattr(datasets, images.dataset)(root=raw.parents[1], download=True)
    except (RuntimeError, OSError, AssertionError, ValueError) as error:
        raise DataError(
            f"task {images.name!r}: no {', '.join(missing)} in {raw}, and downloading failed. Put the "
            "uncompressed idx files there, or set task.data_dir or FEDSIM_DATA to a folder that holds "
            f"{images.dataset}/raw.\n{error}"
        ) from error


def _read_pair(image_file: Path, label_file: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    pixels, labels = _read_idx(image_file, 3), _read_idx(label_file, 1)
    if pixels.shape != (len(labels), 28, 28):
        raise DataError(
            f"{image_file}: expected images [{len(labels)}, 28, 28] for the labels, found {list(pixels.shape)}"
        )
    if labels.max(initial=0) > 9:
        raise DataError(f"{label_file}: expected labels 0 to 9, found {labels.max()}")
    return pixels, labels


def _read_idx(path: Path, ndim: int) -> NDArray[np.uint8]:
    """Read an idx file of bytes: a big-endian magic number, `ndim` lengths, then the values."""
    with reading(path):
        content = np.fromfile(path, dtype=np.uint8)
    start = 4 * (1 + ndim)
    head = content[:start].tobytes()
    magic, *shape = np.frombuffer(head[: len(head) // 4 * 4], dtype=">u4").tolist() or [None]
    if magic != 0x800 + ndim or len(shape) != ndim:
        raise DataError(f"{path}: expected an idx file of bytes in {ndim} dimensions, found another header")
    expected = start + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataError(
            f"{path}: expected {expected} bytes for {shape}, found {len(content)}: the file is damaged"
        )
    return content[start:].reshape(shape)

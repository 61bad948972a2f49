"""Data sets of a few samples, in the files of the real ones."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

PERSON = (
    "39, State-gov, 77516, {education}, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, {income}"
)
"""A line of the files of Adult."""


def write_small_data(folder: Path) -> None:
    """Write Adult, MNIST, Fashion-MNIST, CIFAR-10, Shakespeare and, with its package, Hugging Face datasets."""
    draws = np.random.default_rng(0)
    write_adult(folder / "adult")
    for name in ("MNIST", "FashionMNIST"):
        raw = folder / name / "raw"
        raw.mkdir(parents=True)
        for part in ("train", "t10k"):
            labels = np.arange(40) % 10
            _write_idx(raw / f"{part}-labels-idx1-ubyte", labels)
            _write_idx(raw / f"{part}-images-idx3-ubyte", draws.integers(0, 256, (40, 28, 28)))
    images = [_jpeg(draws.integers(0, 256, (32, 32, 3))) for _ in range(20)]
    columns = {"image": images, "label": [i % 10 for i in range(20)], "split": ["train"] * 15 + ["test"] * 5}
    pq.write_table(pa.table(columns), folder / "cifar10_jpeg.parquet")
    (folder / "shakespeare").mkdir()
    blocks = [
        f"ROLE {chr(65 + i)}:\n{'Now is the winter of our discontent. ' * (30 + 10 * i)}" for i in range(10)
    ]
    (folder / "shakespeare" / "input.txt").write_text("\n\n".join(blocks))
    if find_spec("datasets"):
        for name in ("small", "other"):
            _write_hugging_face(folder / "hugging" / name, draws)


def write_adult(folder: Path) -> None:
    """Write three people for training, the second with a doctorate, and two for testing, the first with one."""
    folder.mkdir()
    train = [
        PERSON.format(education="Bachelors", income="<=50K"),
        PERSON.format(education="Doctorate", income=">50K"),
        PERSON.format(education="HS-grad", income=">50K").replace("State-gov", "?"),
    ]
    test = [
        PERSON.format(education="Doctorate", income="<=50K."),
        PERSON.format(education="10th", income=">50K."),
    ]
    (folder / "adult.data").write_text("\n".join([*train, "", ""]))
    (folder / "adult.test").write_text("\n".join(["|1x3 Cross validator", *test, "", ""]))


def _write_hugging_face(folder: Path, draws: np.random.Generator) -> None:
    from datasets import Dataset, DatasetDict

    splits = {}
    for split in ("train", "rest"):
        columns = {name: draws.normal(size=(12, 3)).astype(np.float32) for name in ("image", "more")}
        columns |= {name: draws.integers(0, 3, 12) for name in ("label", "kind", "owner")}
        splits[split] = Dataset.from_dict(columns)
    DatasetDict(splits).save_to_disk(str(folder))


def _write_idx(path: Path, values: NDArray[np.int64]) -> None:
    head = np.array([0x800 + values.ndim, *values.shape], dtype=">u4").tobytes()
    path.write_bytes(head + values.astype(np.uint8).tobytes())


def _jpeg(pixels: NDArray[np.int64]) -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(encoded, "JPEG", quality=95)
    return encoded.getvalue()

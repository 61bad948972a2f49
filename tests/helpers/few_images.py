"""The folder of data sets with a part of the images: all of them would take minutes."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import inputs


def write_few_images(folder: Path) -> None:
    """Write a tenth of each MNIST that is there and a twentieth of CIFAR-10; link to all other data sets."""
    whole = inputs.DATA
    cut = {name: whole / name for name in ("FashionMNIST", "MNIST", inputs.FILES["cifar10"][0])}
    for other in whole.iterdir() if whole.is_dir() else ():
        if other.name not in cut:
            (folder / other.name).symlink_to(other.absolute())
    *mnists, cifar10 = cut.values()
    if cifar10.is_file():  # the rows run through the classes in turn
        table = pq.read_table(cifar10)
        pq.write_table(
            pa.concat_tables([table.slice(0, 2500), table.slice(50_000, 500)]), folder / cifar10.name
        )
    for path in [p for mnist in mnists for p in (mnist / "raw").glob("*-ubyte")]:
        kept = folder / path.relative_to(whole)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(_tenth(path))


def _tenth(path: Path) -> bytes:
    """Cut an idx file: magic number with the number of dimensions in its last byte, lengths, then the values."""
    content = path.read_bytes()
    start = 4 * (1 + content[3])
    length, rest = struct.unpack(">i", content[4:8])[0], content[8:start]
    return (
        content[:4]
        + struct.pack(">i", length // 10)
        + rest
        + content[start : start + (len(content) - start) // 10]
    )

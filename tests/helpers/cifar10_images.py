"""Four plain images in the file of CIFAR-10 that holds them packed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedsim.data.tasks.cifar10 import JPEGS

COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [200, 100, 50]], dtype=np.uint8)


def jpeg(colour: Any, side: int = 32) -> bytes:
    image = Image.fromarray(np.broadcast_to(colour, (side, side, 3)).astype(np.uint8))
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=95)
    return encoded.getvalue()


def write_cifar10(folder: Path, **columns: list[Any]) -> None:
    """Write four plain images, the last of them for testing, with some columns replaced."""
    whole = {
        "image": [jpeg(colour) for colour in COLOURS],
        "label": [3, 1, 4, 9],
        "split": ["train", "train", "train", "test"],
    }
    pq.write_table(pa.table(whole | columns), folder / JPEGS)

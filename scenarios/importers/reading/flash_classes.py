"""FLASH's three classes of phones, and how long each takes to train on one batch.

Source: PKU-Chengxu/FLASH, `models/device.py`: a batch takes a draw of normal(mean, deviation) milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from fedsim.common.rng import rng

Task = Literal["femnist", "celeba", "reddit", "shakespeare"]

CLASSES = ("slow", "middle", "fast")
PHONES = ("Google Nexus S", "Xiaomi Redmi Note 7 Pro", "Google Pixel 4")
"""The phones that represent the classes."""
DRAWN = (18820, 16428, 159)
"""Weights with which FLASH draws the class of an unknown model."""
BATCH_MS: Mapping[Task, tuple[tuple[float, float], ...]] = {
    "reddit": ((2596.0, 335.5), (916.0, 20.6), (527.7, 49.0)),
    "celeba": ((5392.0, 982.5), (1355.0, 54.6), (561.0, 20.3)),
    "femnist": ((1642.0, 99.5), (588.0, 23.9), (179.0, 2.3)),
    "shakespeare": ((28621.0, 1720.7), (13579.0, 104.6), (10681.0, 125.6)),
}
"""Mean and deviation of the time to train on one batch, by task and class."""
BATCH_SIZES: Mapping[Task, int] = {"reddit": 10, "celeba": 10, "femnist": 10, "shakespeare": 100}
"""Samples in a batch: 100 for Shakespeare, else the default of FLASH's configuration."""


def nearest(score: float, classes: Sequence[float]) -> int:
    """Return the class with the nearest score, of two equally near ones the slower."""
    return min(range(len(classes)), key=lambda i: (abs(classes[i] - score), i))


def drawn(model: str, seed: int) -> int:
    """Return a random class for an unknown model; it depends on the model and the seed alone."""
    at = rng(seed, f"FLASH class of {model!r}").random() * sum(DRAWN)
    return 0 if at < DRAWN[0] else 1 if at < DRAWN[0] + DRAWN[1] else 2

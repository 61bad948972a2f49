"""Randomness is derived, never carried: each draw is a function of (seed, purpose, ids).

So nothing random has to be saved in a checkpoint, and no draw depends on what was drawn before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key(seed: int, purpose: str, *ids: int) -> int:
    """Return 128 bits that depend on every argument; equal arguments give equal bits on any machine."""
    text = ":".join((str(int(seed)), purpose, *(str(int(i)) for i in ids)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def rng(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """Return the generator of `purpose` (such as `"batches"`) for `ids` (such as client and job)."""
    return np.random.Generator(np.random.PCG64(key(seed, purpose, *ids)))


class Draws:
    """Generators of one purpose, one after the other: as `rng`, five times as fast, with draws of its own.

    There is one generator, which is put into the state that belongs to the ids: a new call ends the use of the last.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._prefix = f"{int(seed)}:{purpose}:"
        self._bits = np.random.PCG64(0)
        self._generator = np.random.Generator(self._bits)

    def at(self, *ids: int) -> np.random.Generator:
        """Return the generator of `ids`."""
        text = self._prefix + ":".join(map(str, ids))
        bits = hashlib.blake2b(text.encode(), digest_size=32).digest()
        state, inc = int.from_bytes(bits[:16], "little"), int.from_bytes(bits[16:], "little") | 1
        self._bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": inc},
            "has_uint32": 0,
            "uinteger": 0,
        }
        return self._generator


class Numbers:
    """What is made of some dozens of uniform numbers for each id of one purpose: for ids that follow each other a tenth
    of the price of a generator.

    Args:
        made: given independent numbers in (0, 1), an array [n, EACH], it returns an array of the same shape.
    """

    EACH = 48
    _BLOCK = 64

    def __init__(
        self, seed: int, purpose: str, made: Callable[[NDArray[np.float64]], NDArray[Any]] = lambda x: x
    ) -> None:
        self._seed, self._purpose, self._made = seed, purpose, made
        self._first = -1
        self._rows: list[memoryview] = []

    def of(self, number: int) -> memoryview:
        """Return EACH entries, which depend on the seed, the purpose and `number` alone."""
        at = number % self._BLOCK
        if number - at != self._first:
            self._first = number - at
            ids, places = self._first + np.arange(self._BLOCK)[:, None], np.arange(self.EACH)
            made = np.ascontiguousarray(self._made(uniforms(self._seed, self._purpose, ids, places)))
            self._rows = [row.data for row in made]
        return self._rows[at]


def torch_seed(seed: int, purpose: str, *ids: int) -> int:
    """Return a seed in [0, 2^63) for `torch.Generator.manual_seed`."""
    return key(seed, purpose, *ids) >> 65


def uniforms(seed: int, purpose: str, *ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return one uniform number in (0, 1) for each position of the arrays `ids` (such as clients and jobs), which are
    broadcast.

    As `rng` it depends on the values alone, but a whole array is drawn at once: it hashes with the finaliser of
    SplitMix64 (Steele, Lea and Flood, 2014).
    """
    state = hashes(seed, purpose, *ids)
    return np.asarray(((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


def hashes(seed: int, purpose: str, *ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 hashed bits for each position of the arrays `ids`, which are broadcast."""
    state = np.full(1, key(seed, purpose) & _MASK, dtype=np.uint64)
    for column in ids:
        state = mixed((state ^ mixed(column.astype(np.uint64) + _GOLDEN)) + _GOLDEN)
    return state


def mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finaliser of SplitMix64 of each number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))

"""Random numbers are derived, never carried: each draw is a function of (seed, purpose, ids).

A checkpoint therefore saves no generator, and no draw depends on earlier draws. `rng` makes one generator, `Streams`
many with the same draws, and `Draws` many with other draws; `uniforms` and `hashes` draw whole arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

Words = NDArray[np.uint32]

BLOCK = 256
"""Ids whose seeds `Streams` expands together."""
_MASK = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

_POOL = 4
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_SHIFT = np.uint32(16)
"""Constants of NumPy's SeedSequence."""


def key(seed: int, purpose: str, *ids: int) -> int:
    """Return a hash of 128 bits of all arguments, equal on all machines."""
    text = ":".join((str(int(seed)), purpose, *(str(int(i)) for i in ids)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def rng(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """Return the generator of `purpose` (such as `"batches"`) for `ids` (such as client and job)."""
    return np.random.Generator(np.random.PCG64(key(seed, purpose, *ids)))


class Draws:
    """Generators of one purpose, faster than `rng` and with other draws.

    There is a single generator, which each call of `at` sets to the state of its ids: a call ends the use of the
    previous generator.
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
    """A row of random numbers for each id of one purpose, much faster than a generator each if ids are consecutive.

    Args:
        seed: the seed.
        purpose: the purpose.
        transform: maps independent uniform numbers in (0, 1), an array [n, EACH], to an array of the same shape.
    """

    EACH = 48
    _BLOCK = 64

    def __init__(
        self, seed: int, purpose: str, transform: Callable[[NDArray[np.float64]], NDArray[Any]]
    ) -> None:
        self._seed, self._purpose, self._transform = seed, purpose, transform
        self._first = -1
        self._rows: list[memoryview] = []

    def of(self, number: int) -> memoryview:
        """Return EACH entries, which depend on the seed, the purpose and `number` alone."""
        at = number % self._BLOCK
        if number - at != self._first:
            self._first = number - at
            ids, places = self._first + np.arange(self._BLOCK)[:, None], np.arange(self.EACH)
            rows = self._transform(uniforms(self._seed, self._purpose, ids, places))
            self._rows = [row.data for row in np.ascontiguousarray(rows)]
        return self._rows[at]


def torch_seed(seed: int, purpose: str, *ids: int) -> int:
    """Return a seed in [0, 2^63) for `torch.Generator.manual_seed`."""
    return key(seed, purpose, *ids) >> 65


def uniforms(seed: int, purpose: str, *ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a uniform number in (0, 1) for each position of the broadcast arrays `ids`, such as clients and jobs.

    A number depends on the seed, the purpose and its ids alone. The hash is the finaliser of SplitMix64 (Steele, Lea
    and Flood, 2014).
    """
    state = hashes(seed, purpose, *ids)
    return np.asarray(((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


def hashes(seed: int, purpose: str, *ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 hashed bits for each position of the broadcast arrays `ids`."""
    state = np.full(1, key(seed, purpose) & _MASK, dtype=np.uint64)
    for column in ids:
        state = mixed((state ^ mixed(column.astype(np.uint64) + _GOLDEN)) + _GOLDEN)
    return state


def mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64 to each number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


class Streams:
    """The generators of `rng` for one id each, with the same draws and several times as fast.

    Most of the time of making a generator is NumPy's expansion of its seed into a state, one seed at a time. Here
    blocks of seeds are expanded at once: M. E. O'Neill, "Developing a seed_seq Alternative" (2015), with NumPy's
    constants, which NumPy's policy of stream compatibility fixes for all versions.
    """

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)
        self._states: dict[tuple[str, int], NDArray[np.uint64]] = {}

    def at(self, purpose: str, number: int) -> np.random.Generator:
        """Return a generator as `rng(seed, purpose, number)` does, except that it cannot spawn or be pickled."""
        block, at = divmod(number, BLOCK)
        states = self._states.get((purpose, block))
        if states is None:
            states = self._states[purpose, block] = expanded(_keys(self.seed, purpose, block * BLOCK))
        seeds: Any = _Expanded(states[at])  # NumPy documents such an object, but its annotation lacks it
        return np.random.Generator(np.random.PCG64(seeds))


def _keys(seed: int, purpose: str, first: int) -> Words:
    """Return `key(seed, purpose, id)` as words [BLOCK, 4] for BLOCK ids from `first` on."""
    start = hashlib.blake2b(f"{seed}:{purpose}:".encode(), digest_size=16)
    digests = bytearray()
    for number in range(first, first + BLOCK):
        hashed = start.copy()
        hashed.update(b"%d" % number)
        digests += hashed.digest()
    return np.frombuffer(digests, "<u4").reshape(BLOCK, _POOL).astype(np.uint32)


def expanded(keys: Words) -> NDArray[np.uint64]:
    """Return `SeedSequence(key).generate_state(4, np.uint64)` [n, 4] for keys of 128 bits, as words [n, 4].

    The lowest word of a key comes first.
    """
    hasher = _Hasher(_INIT_A, _MULT_A)
    pool = [hasher.hashed(word) for word in keys.T]
    for source, target in permutations(range(_POOL), 2):
        mix = _MIX_L * pool[target] - _MIX_R * hasher.hashed(pool[source])
        pool[target] = np.asarray(mix ^ (mix >> _SHIFT))
    hasher = _Hasher(_INIT_B, _MULT_B)
    words = np.stack([hasher.hashed(pool[i % _POOL]) for i in range(2 * _POOL)], axis=1).astype(np.uint64)
    return np.asarray(words[:, ::2] | words[:, 1::2] << np.uint64(32))


class _Hasher:
    """Hashes words with a constant that changes with each use."""

    def __init__(self, start: int, factor: int) -> None:
        self._constant, self._factor = start, factor

    def hashed(self, words: Words) -> Words:
        before = np.uint32(self._constant)
        self._constant = self._constant * self._factor & 0xFFFFFFFF
        words = (words ^ before) * np.uint32(self._constant)
        return np.asarray(words ^ (words >> _SHIFT))


class _Expanded(ISeedSequence):
    """A seed sequence whose state is expanded already."""

    def __init__(self, state: NDArray[np.uint64]) -> None:
        self._state = state

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:
        """Return the four words of the state."""
        return self._state

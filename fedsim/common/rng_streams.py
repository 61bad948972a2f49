"""The generators of `fedsim.common.rng.rng` for many ids of one purpose: the same draws, made in a fifth of the time.

What takes time in making a generator is spreading its key over the state, which NumPy's SeedSequence does for one
key at a time. Here blocks of keys are spread at once. Algorithm: M. E. O'Neill, "Developing a seed_seq Alternative"
(2015), with NumPy's constants, which are fixed for all versions (NumPy's policy of stream compatibility).
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

BLOCK = 256
"""Ids whose keys are spread together."""

_POOL = 4
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_SHIFT = np.uint32(16)

Words = NDArray[np.uint32]


class Streams:
    """Generators of a seed by purpose and one id from 0 on."""

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)
        self._states: dict[tuple[str, int], NDArray[np.uint64]] = {}

    def at(self, purpose: str, number: int) -> np.random.Generator:
        """Return what `rng(seed, purpose, number)` returns; but it can spawn no generators and not be pickled."""
        block, at = divmod(number, BLOCK)
        states = self._states.get((purpose, block))
        if states is None:
            states = self._states[purpose, block] = spread(_keys(self.seed, purpose, block * BLOCK))
        seeds: Any = _Spread(states[at])  # NumPy's annotation leaves out what its documentation allows
        return np.random.Generator(np.random.PCG64(seeds))


def _keys(seed: int, purpose: str, first: int) -> Words:
    """Return [BLOCK, 4] words of `fedsim.common.rng.key(seed, purpose, id)` for the ids from `first` on."""
    start = hashlib.blake2b(f"{seed}:{purpose}:".encode(), digest_size=16)
    digests = bytearray()
    for number in range(first, first + BLOCK):
        hashed = start.copy()
        hashed.update(b"%d" % number)
        digests += hashed.digest()
    return np.frombuffer(digests, "<u4").reshape(BLOCK, _POOL).astype(np.uint32)


def spread(keys: Words) -> NDArray[np.uint64]:
    """Return [n, 4] `SeedSequence(key).generate_state(4, np.uint64)` for keys of 128 bits, given as [n, 4] words.

    The lowest word of a key comes first.
    """
    pool, mixer = list(keys.T), _Mixer(_INIT_A, _MULT_A)
    pool = [mixer.hashed(word) for word in pool]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = _mixed(pool[target], mixer.hashed(pool[source]))
    mixer = _Mixer(_INIT_B, _MULT_B)
    words = np.stack([mixer.hashed(pool[i % _POOL]) for i in range(2 * _POOL)], axis=1).astype(np.uint64)
    return np.asarray(words[:, ::2] | words[:, 1::2] << np.uint64(32))


class _Mixer:
    """Hashes words with a constant that is another for each use."""

    def __init__(self, start: int, factor: int) -> None:
        self._constant, self._factor = start, factor

    def hashed(self, words: Words) -> Words:
        before = np.uint32(self._constant)
        self._constant = self._constant * self._factor & 0xFFFFFFFF
        words = (words ^ before) * np.uint32(self._constant)
        return np.asarray(words ^ (words >> _SHIFT))


def _mixed(x: Words, y: Words) -> Words:
    words = _MIX_L * x - _MIX_R * y
    return np.asarray(words ^ (words >> _SHIFT))


class _Spread(ISeedSequence):
    """Hands one key's state, spread already, to a bit generator."""

    def __init__(self, state: NDArray[np.uint64]) -> None:
        self._state = state

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:
        """Return the four words that PCG64 asks for."""
        return self._state

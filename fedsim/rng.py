"""Randomness is derived, never carried: each draw is a function of (seed, purpose, ids).

So nothing random has to be saved in a checkpoint, and no draw depends on what was drawn before it.
"""

from __future__ import annotations

import hashlib

import numpy as np


def key(seed: int, purpose: str, *ids: int) -> int:
    """Return 128 bits that depend on every argument; equal arguments give equal bits on any machine."""
    text = ":".join((str(int(seed)), purpose, *(str(int(i)) for i in ids)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def rng(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """Return the generator of `purpose` (such as `"batches"`) for `ids` (such as client and job)."""
    return np.random.Generator(np.random.PCG64(key(seed, purpose, *ids)))


def torch_seed(seed: int, purpose: str, *ids: int) -> int:
    """Return a seed in [0, 2^63) for `torch.Generator.manual_seed`."""
    return key(seed, purpose, *ids) >> 65

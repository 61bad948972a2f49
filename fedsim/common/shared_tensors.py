"""Tensors on the memory of NumPy arrays."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray


def shared_tensor(array: NDArray[np.generic]) -> torch.Tensor:
    """Return a tensor on an array's memory, without torch's warning about read-only arrays. Do not write to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)

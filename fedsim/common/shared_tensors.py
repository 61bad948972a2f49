"""Tensors on memory that others share."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray


def shared_tensor(array: NDArray[np.generic]) -> torch.Tensor:
    """Return a tensor on an array's memory, which may be shared and read-only: it must not be written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)

"""A saved server on its way between two processes: on the CPU, and in no more bytes than it has.

What is pickled takes along all of the memory that a tensor looks into: each remembered row the whole history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common.shared_tensors import shared_tensor

_BITS = torch.int16
"""Stands for bfloat16, which NumPy does not have."""


def packed(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `Server.save` does with the rows of each tier as one array [k, P]; `unpacked` undoes it."""
    history = server["history"]
    rows = [_stacked(tier) for tier in history["rows"]]
    return dict(_whole({**server, "history": {**history, "rows": rows}}))


def unpacked(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was `packed`; the rows [P] are views, which may be read-only."""
    history = sent["history"]
    return {**sent, "history": {**history, "rows": [_cut(tier) for tier in history["rows"]]}}


def _stacked(rows: Sequence[torch.Tensor]) -> NDArray[np.generic]:
    """Return rows [P] from anywhere as one array [k, P]."""
    if not rows:
        return np.zeros((0, 0), dtype=np.float32)
    out = torch.empty(len(rows), len(rows[0]), dtype=rows[0].dtype)
    for place, row in zip(out, rows, strict=True):
        place.copy_(row)
    found: NDArray[np.generic] = (out.view(_BITS) if out.dtype == torch.bfloat16 else out).numpy()
    return found


def _cut(rows: NDArray[np.generic]) -> list[torch.Tensor]:
    every = shared_tensor(rows)
    return list(every.view(torch.bfloat16) if every.dtype == _BITS else every)


def _whole(value: Any) -> Any:
    """Return a value in which each tensor is on the CPU, in memory of its own."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _whole(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    return value

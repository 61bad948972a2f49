"""Serialization of a saved server between two processes: on the CPU, without bytes that it does not use.

Pickling a tensor includes all memory behind its view: each update of the history would carry the whole history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.training.loaded_model import shared_tensor

_BITS = torch.int16
"""The type that carries bfloat16, which NumPy does not have."""


def packed(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `Server.save` with each tier's updates as one array [k, P]; `unpacked` is the inverse."""
    return dict(_whole(_with_tiers(server, _stacked)))


def unpacked(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state before `packed`; the updates [P] are views, which may be read-only."""
    return _with_tiers(sent, _cut)


def _with_tiers(server: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the state with `change` applied to each tier of the rule's history and of what the selector needs."""

    def changed(history: Mapping[str, Any]) -> dict[str, Any]:
        return {**history, "rows": [change(tier) for tier in history["rows"]]}

    updates = server["updates"]
    if updates is not None and updates["history"] is not None:
        updates = {**updates, "history": changed(updates["history"])}
    return {**server, "history": changed(server["history"]), "updates": updates}


def _stacked(rows: Sequence[torch.Tensor]) -> NDArray[np.generic]:
    """Return updates [P] on any device as one array [k, P]."""
    if not rows:
        return np.zeros((0, 0), dtype=np.float32)
    out = torch.empty(len(rows), len(rows[0]), dtype=rows[0].dtype)
    for place, row in zip(out, rows, strict=True):
        place.copy_(row)
    array: NDArray[np.generic] = (out.view(_BITS) if out.dtype == torch.bfloat16 else out).numpy()
    return array


def _cut(rows: NDArray[np.generic]) -> list[torch.Tensor]:
    tensor = shared_tensor(rows)
    return list(tensor.view(torch.bfloat16) if tensor.dtype == _BITS else tensor)


def _whole(value: Any) -> Any:
    """Return the value with each tensor copied to the CPU, so that none is a view."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _whole(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    return value

"""Groups of clients: by most frequent label, or by a column that the world's trace has about them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import ConfigError, closest
from fedsim.engine.selector import Ints, View


def groups(view: View, by: str) -> Ints:
    """Return [K] the group of each client, numbered from 0 without gaps.

    `client`: each client is a group. `label`: the most frequent label. Any other name is a column of `about`.
    """
    if by == "client":
        return np.arange(view.n_clients)
    if by == "label":
        values: NDArray[Any] = view.facts.label_counts.argmax(axis=1)
    else:
        values = column(view, by).astype(str)
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def column(view: View, name: str) -> NDArray[Any]:
    """Return [K] a column of `about`. Raises ConfigError that suggests the closest name."""
    about = view.facts.about
    if name not in about:
        known = closest(name, about) or "; it knows nothing about them"
        raise ConfigError(f"[selection]: the world knows no {name!r} of its clients{known}")
    return about[name]

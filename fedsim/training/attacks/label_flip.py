"""Training on wrong labels (Biggio et al. 2012; Tolpegin et al. 2020)."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from pydantic import Field

from fedsim.common.errors import ConfigError
from fedsim.training.attack import Attack

Changes = Annotated[tuple[tuple[int, int], ...], Field(min_length=1)]


def label_flip(*, change: Changes | None = None) -> Attack:
    """Train on C - 1 - y in place of y. With `change`, such as [[5, 3]], change only the first label of each pair.

    The losses that the client reports are of the wrong labels too; evaluations use the true ones. Raises ConfigError
    for two changes of one label.

    Args:
        change: pairs of a label and the one that takes its place; other labels stay. Without it each label y of the C
            classes becomes C - 1 - y.
    """
    changed = [old for old, _ in change or ()]
    twice = [old for old in changed if changed.count(old) > 1]
    if twice:
        raise ConfigError(
            f"adversary 'label_flip': change: expected one change of each label, found more of {twice[0]}"
        )
    if change is None:
        return Attack(labels=lambda y, n_classes: n_classes - 1 - y)
    return Attack(labels=partial(_changed, change=change))


def _changed(y: torch.Tensor, n_classes: int, change: Changes) -> torch.Tensor:
    outside = [label for pair in change for label in pair if not 0 <= label < n_classes]
    if outside:
        raise ConfigError(
            f"adversary 'label_flip': change: expected labels from 0 to {n_classes - 1}, found {outside[0]}"
        )
    table = torch.arange(n_classes)
    for old, new in change:
        table[old] = new
    return table.to(y.device)[y]

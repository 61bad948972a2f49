"""Losses and correctness from logits with a class per row."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from fedsim.training.losses import correct_of, losses_of


def test_losses_are_the_cross_entropy() -> None:
    logits, labels = (
        torch.randn(3, 50, 7, generator=torch.Generator().manual_seed(1)),
        torch.randint(0, 7, (3, 50), generator=torch.Generator().manual_seed(2)),
    )
    found = losses_of(logits.transpose(1, 2), labels)
    expected = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    torch.testing.assert_close(found, expected)


def test_correct_is_argmax_with_equal_logits_too() -> None:
    draws = np.random.default_rng(0)
    logits = torch.from_numpy(draws.integers(0, 3, (4, 1000)).astype(np.float32))
    labels = torch.from_numpy(draws.integers(0, 4, 1000))
    first = torch.from_numpy(logits.numpy().argmax(axis=0))
    assert torch.equal(correct_of(logits, labels), first == labels)
    assert correct_of(torch.zeros(4, 1000), labels).sum() == (labels == 0).sum(), "not all are right"
    unequal = torch.randn(4, 1000, generator=torch.Generator().manual_seed(3))
    assert torch.equal(correct_of(unequal, labels), unequal.argmax(dim=0) == labels)


def test_what_is_not_a_number_is_not_correct() -> None:
    logits = torch.full((4, 2), float("nan"))
    assert correct_of(logits, torch.zeros(2, dtype=torch.int64)).tolist() == [False, False]
    assert losses_of(logits, torch.zeros(2, dtype=torch.int64)).isnan().all()

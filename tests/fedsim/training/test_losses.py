"""Losses and correctness from logits with a class per row."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedsim.training.losses import Loss, correct_of, losses_of, training_losses


def test_losses_are_the_cross_entropy() -> None:
    logits, labels = (
        torch.randn(3, 50, 7, generator=torch.Generator().manual_seed(1)),
        torch.randint(0, 7, (3, 50), generator=torch.Generator().manual_seed(2)),
    )
    found = losses_of("cross_entropy", logits.transpose(1, 2), labels)
    expected = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    torch.testing.assert_close(found, expected)


def test_the_hinge_loss_of_two_classes_is_that_of_a_linear_svm() -> None:
    """max(0, 1 - y f) with f the difference of the logits and y = 1 or -1."""
    logits = torch.tensor([[0.0, 0.0], [0.2, 1.7], [0.2, 0.9], [3.0, -1.0], [-0.5, 0.0]])
    labels = torch.tensor([0, 1, 1, 1, 0])
    f, y = logits[:, 1] - logits[:, 0], 2.0 * labels - 1
    expected = torch.clamp(1 - y * f, min=0)
    assert expected.tolist() == pytest.approx([1.0, 0.0, 0.3, 5.0, 1.5])
    torch.testing.assert_close(losses_of("hinge", logits.T, labels), expected)


def test_the_hinge_loss_of_three_classes_is_short_of_the_largest_other_logit() -> None:
    logits = torch.tensor([[2.0, 0.5, 1.5], [0.0, 3.0, 1.0]], requires_grad=True)
    losses = training_losses("hinge", logits, torch.tensor([0, 0]))
    assert losses.tolist() == [0.5, 4.0]
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert gradient.tolist() == [[-1.0, 0.0, 1.0], [-1.0, 1.0, 0.0]]


def test_of_equal_rivals_the_first_alone_is_pushed() -> None:
    logits = torch.zeros(1, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(training_losses("hinge", logits, torch.tensor([1])).sum(), logits)
    assert gradient.tolist() == [[1.0, -1.0, 0.0, 0.0]]


def test_equal_logits_beside_one_that_is_no_number_are_told_apart() -> None:
    logits = torch.tensor([[1.0, float("nan")], [1.0, 0.0]])
    assert correct_of(logits, torch.tensor([1, 0])).tolist() == [False, False]
    assert correct_of(logits, torch.tensor([0, 0])).tolist() == [True, False]


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
    for loss in get_args(Loss):
        assert losses_of(loss, logits, torch.zeros(2, dtype=torch.int64)).isnan().all()

"""Models that Python code passes as functions."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ray import cloudpickle
from torch import nn

from fedsim.common.errors import ConfigError
from fedsim.training.given_model import GivenModel


class Scaled(nn.Module):
    """A linear layer behind a fixed random scale."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("scale", torch.rand(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * self.scale)  # type: ignore[no-any-return]


def test_a_module_without_its_shapes_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"model: 1\.weight has no shape before the first sample: use Linear in place"
    ):
        GivenModel(lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(2))).digest((3,), 2)


def test_the_digest_names_structure_and_state() -> None:
    digest = GivenModel(Scaled).digest((3,), 2)
    assert GivenModel(lambda: Scaled()).digest((3,), 2) == digest
    assert len(digest) == 32
    other = Scaled()
    others = [
        lambda: nn.Linear(3, 2),
        lambda: copy.deepcopy(other),
        lambda: nn.Sequential(Scaled(), nn.ReLU()),
    ]
    digests = {GivenModel(make).digest((3,), 2) for make in others}
    assert len(digests | {digest}) == 4


def test_the_digest_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    GivenModel(Scaled).digest((3,), 2)
    assert torch.equal(before, torch.get_rng_state())


def test_shapes_are_passed_to_a_function_that_takes_them() -> None:
    model = GivenModel(lambda in_shape, n_classes: nn.Linear(in_shape[0], n_classes))
    assert model.takes_shapes
    assert model(in_shape=(5,), n_classes=4).weight.shape == (4, 5)
    assert not GivenModel(lambda width=3: nn.Linear(width, 2)).takes_shapes


def test_a_pickled_copy_makes_the_module_that_was_made_here() -> None:
    """A worker's module must have the buffers of this process, whatever state its own generator is in."""
    value = 0.0
    model = GivenModel(lambda: Scaled().requires_grad_(value == 0.0))
    model.digest((3,), 2)
    received = cloudpickle.loads(cloudpickle.dumps(model))
    torch.manual_seed(5)
    made = received(in_shape=(3,), n_classes=2).state_dict()
    torch.default_generator.manual_seed(0)
    expected = Scaled().state_dict()
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name], expected[name]) for name in made)


def test_a_pickled_copy_makes_modules_of_each_shape() -> None:
    """As in one call of `simulate` with configurations of several tasks."""
    model = GivenModel(lambda in_shape, n_classes: nn.Linear(in_shape[0], n_classes))
    shapes = [((3,), 2), ((5,), 4)]
    for in_shape, n_classes in shapes:
        model.digest(in_shape, n_classes)
    received = cloudpickle.loads(cloudpickle.dumps(model))
    for in_shape, n_classes in shapes:
        torch.default_generator.manual_seed(0)
        expected = nn.Linear(in_shape[0], n_classes).weight
        assert torch.equal(received(in_shape=in_shape, n_classes=n_classes).weight, expected)


ONE = nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ONE, "return modules with the same parameters, which every run would train on"),
        (lambda: nn.Sequential(ONE, nn.Linear(2, 2)), "return modules with the same parameters"),
        (Scaled(), "found a module: pass the class Scaled, or lambda: copy.deepcopy"),
        ("mlp", "expected a function that returns a torch.nn.Module, found 'mlp'"),
        (lambda width: nn.Linear(width, 2), "found one that needs width"),
        (lambda: 5, "found one that returns 5"),
        (lambda: _noisy(), "two calls of the function return different modules"),
    ],
)
def test_wrong_functions_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GivenModel(make).digest((3,), 2)


def _noisy() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.bias.data += float(np.random.default_rng().normal())
    return layer

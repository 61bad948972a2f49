"""A model that Python code passes to a run as a function, which may be a lambda or defined in a notebook."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.common.errors import ConfigError, described

_SHAPES = ("in_shape", "n_classes")
SHARED = (
    "two calls of the function return modules with the same parameters, which every run would train on: build them in "
    "the function, or return copy.deepcopy(...)"
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class GivenModel:
    """The factory of such a model, called like those of `fedsim.models`.

    A copy that was pickled for another process gives each module that it makes the state of the one that `digest`
    made here.

    Args:
        make: returns the module, from the keyword arguments `in_shape` and `n_classes` or from no argument.

    Raises ConfigError if `make` is no such function.
    """

    def __init__(self, make: Callable[..., nn.Module]) -> None:
        self._make, self._takes = make, _parameters(make)
        self._states: dict[tuple[tuple[int, ...], int], dict[str, Tensor]] = {}
        """By what `_shapes` returns."""
        self._is_copy = self._starts_runs = False

    @property
    def takes_shapes(self) -> bool:
        """Whether the function asks for the shape of a sample and the number of classes."""
        return bool(self._takes)

    def __call__(self, *, in_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        """Make the module."""
        shapes = {"in_shape": tuple(in_shape), "n_classes": n_classes}
        module = self._make(**{name: shapes[name] for name in self._takes})
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"model: expected a function that returns a torch.nn.Module, found one that returns {described(module)}"
            )
        if self._is_copy and not any(parameter.is_meta for parameter in module.parameters()):
            module.load_state_dict(self._states[self._shapes(in_shape, n_classes)])
        return module

    def __getstate__(self) -> Mapping[str, Any]:
        """Return what another process receives."""
        return vars(self) | {"_is_copy": not self._starts_runs}

    def starting_runs(self) -> GivenModel:
        """Return one for a process that starts runs: it draws initial values there, as this one does here."""
        model = GivenModel(self._make)
        model._starts_runs = True
        return model

    def digest(self, in_shape: tuple[int, ...], n_classes: int) -> str:
        """Return 32 hexadecimal digits that depend on the module's structure and on its state before training.

        Raises ConfigError if two modules that torch's generator starts equally differ, or share parameters.
        """
        first, second = (self._built(in_shape, n_classes) for _ in range(2))
        if share_parameters(first, second):
            raise ConfigError(f"model: {SHARED}")
        if _digest(first) != _digest(second):
            raise ConfigError(
                "model: two calls of the function return different modules with the same seed: draw initial values "
                "from torch's default generator, and let nothing else vary"
            )
        self._states[self._shapes(in_shape, n_classes)] = first.state_dict()
        return _digest(first)

    def _shapes(self, in_shape: tuple[int, ...], n_classes: int) -> tuple[tuple[int, ...], int]:
        """Return the sample shape and the number of classes, as far as the function asks for them."""
        shape = tuple(in_shape) if "in_shape" in self._takes else ()
        return shape, n_classes if "n_classes" in self._takes else 0

    def _built(self, in_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            module = self(in_shape=in_shape, n_classes=n_classes)
        check_shapes(module, "model")
        return module


def check_shapes(module: nn.Module, called: str) -> None:
    """Raise ConfigError for a module with a parameter that the first sample would give its shape."""
    for path, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(
                f"{called}: {path} has no shape before the first sample: use Linear in place of LazyLinear, and so on, "
                "with the widths that follow from in_shape"
            )


def share_parameters(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules have a parameter in common, which training one of them changes in the other."""
    first, second = (
        {p.data_ptr() for p in each.parameters() if p.numel() and not p.is_meta} for each in (one, other)
    )
    return bool(first & second)


def _parameters(make: Callable[..., nn.Module]) -> tuple[str, ...]:
    """Return which shapes the function takes."""
    if isinstance(make, nn.Module):
        name = type(make).__name__
        raise ConfigError(
            f"model: expected a function that returns a module, found a module: pass the class {name}, or "
            "lambda: copy.deepcopy(module) to start from its parameters"
        )
    if not callable(make):
        raise ConfigError(
            f"model: expected a function that returns a torch.nn.Module, found {described(make)}"
        )
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return ()
    required = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if others := [name for name in required if name not in _SHAPES]:
        raise ConfigError(
            "model: expected a function without arguments, or with in_shape and n_classes, found one that needs "
            f"{', '.join(others)}"
        )
    return tuple(p.name for p in parameters if p.name in _SHAPES and p.kind is not p.POSITIONAL_ONLY)


def _digest(module: nn.Module) -> str:
    content = hashlib.sha256(_ADDRESS.sub("", repr(module)).encode())
    for name, value in module.state_dict().items():
        content.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        content.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()[:32]

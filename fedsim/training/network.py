"""A model seen as one flat vector of parameters, cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import psutil
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsim.common import plugins
from fedsim.common.errors import ConfigError, short
from fedsim.common.rng import torch_seed
from fedsim.common.units import show_bytes

_LEAST_COPIES = 1
"""Vectors of parameters that must fit before the rest of a run is predicted."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one parameter lies in the flat vector: columns `[start, stop)`, seen as `shape`."""

    name: str
    start: int
    stop: int
    shape: torch.Size


@dataclass(frozen=True)
class Network:
    """A torch module and the layout of its parameters in a flat float32 vector of P columns.

    Columns follow `module.named_parameters()`. A block holds the parameters of one submodule, weight and bias
    together. Build it with `build_network`.
    """

    name: str
    options: Mapping[str, Any]
    in_shape: tuple[int, ...]
    n_classes: int
    module: nn.Module
    slots: tuple[Slot, ...]
    blocks: list[tuple[int, int]]
    """Half-open column ranges, one per submodule with parameters, contiguous and covering all P columns."""
    block_names: list[str]
    flops: int
    """Operations (a multiplication and an addition count as two) of the forward pass of one sample."""
    widest: int
    """Numbers that one layer takes in and puts out together for one sample, the most of all layers."""

    @property
    def P(self) -> int:
        """Number of parameters."""
        return self.slots[-1].stop

    def initial(self, seed: int) -> torch.Tensor:
        """Return fresh initial parameters [P] on the CPU, a function of the model and `seed` alone."""
        module = _make(self.name, self.options, self.in_shape, self.n_classes, torch_seed(seed, "init"))
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()])

    def load(self, flat: torch.Tensor) -> nn.Module:
        """Make the module's parameters views into `flat` [P] and return the module; nothing is copied.

        A later change of `flat` in place changes the module, and the other way round. The module moves to the
        device of `flat`. Raises ValueError for another shape or type.
        """
        if flat.shape != (self.P,) or flat.dtype != torch.float32:
            found = f"{list(flat.shape)} {flat.dtype}"
            raise ValueError(f"expected flat parameters [{self.P}] torch.float32, found {found}")
        self.module.to(flat.device)  # its buffers, if it has any
        for slot, parameter in zip(self.slots, self.module.parameters(), strict=True):
            parameter.data = flat[slot.start : slot.stop].view(slot.shape)
        return self.module

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views into `flat` [..., P] by parameter name, each [..., *shape]; for `functional_call`."""
        lead = flat.shape[:-1]
        return {s.name: flat[..., s.start : s.stop].view((*lead, *s.shape)) for s in self.slots}


def build_network(
    name: str, options: Mapping[str, Any], in_shape: tuple[int, ...], n_classes: int
) -> Network:
    """Build the model `name` for samples of shape `in_shape`, without touching torch's global random state.

    Raises ConfigError for unknown names or options, for a model that keeps running statistics or changes what else it
    holds while it trains, has frozen or non-float32 parameters, or does not map [1, *in_shape] to [1, n_classes].
    """
    _check_room(name, options, in_shape, n_classes)
    module = _make(name, options, in_shape, n_classes, seed=0)
    _check_parameters(name, module)
    slots = _slots(module)
    blocks, block_names = _blocks(slots)
    flops, widest = _forward_costs(name, module, in_shape, n_classes)
    _check_buffers(name, module, in_shape)
    return Network(
        name, dict(options), in_shape, n_classes, module, slots, blocks, block_names, flops, widest
    )


def _check_room(name: str, options: Mapping[str, Any], in_shape: tuple[int, ...], n_classes: int) -> None:
    """Refuse a model that cannot fit into memory, from its shapes alone. Raises ConfigError."""
    try:
        with torch.device("meta"):
            module = _make(name, options, in_shape, n_classes, seed=0)
    except (RuntimeError, OverflowError, MemoryError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError) or "verflow" in str(error):
            raise ConfigError(f"model {name!r}: its sizes are too large: {short(str(error))}") from error
        return  # a user's module may need real tensors: it is then built without this check
    except (TypeError, NotImplementedError):
        return
    known = (p for p in module.parameters() if not isinstance(p, nn.parameter.UninitializedParameter))
    count, free = sum(p.numel() for p in known), psutil.virtual_memory().available
    if _LEAST_COPIES * 4 * count > free:
        raise ConfigError(
            f"model {name!r}: expected at most {free // (4 * _LEAST_COPIES):,} parameters, of which a run holds "
            f"{_LEAST_COPIES} copies in the {show_bytes(free)} that are free, found {count:,}"
        )


def _make(
    name: str, options: Mapping[str, Any], in_shape: tuple[int, ...], n_classes: int, seed: int
) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it reseeds the accelerators too, whose state this fork does not restore.
        torch.default_generator.manual_seed(seed)
        module = plugins.build("model", name, options, in_shape=in_shape, n_classes=n_classes)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {name!r}: expected a torch.nn.Module, found {type(module).__name__}")
    return module


def _check_parameters(name: str, module: nn.Module) -> None:
    for path, part in module.named_modules():
        if isinstance(part, _BatchNorm) or getattr(part, "running_mean", None) is not None:
            raise ConfigError(
                f"model {name!r}: {path or 'the model'} is a {type(part).__name__}. Its running statistics "
                "are state outside the parameters, and averaging them over clients is undefined; use "
                "GroupNorm (for cnn: norm = 'group') or no normalisation"
            )
    for path, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ConfigError(
                f"model {name!r}: {path} has no shape before the first sample: take Linear in place of LazyLinear, and "
                "so on, with the widths that follow from in_shape"
            )
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            found = f"{parameter.dtype}, requires_grad={parameter.requires_grad}"
            raise ConfigError(
                f"model {name!r}: expected float32 parameters that are all trained, found {path} with {found}"
            )
    if next(module.parameters(), None) is None:
        raise ConfigError(f"model {name!r} has no parameters")


def _check_buffers(name: str, module: nn.Module, in_shape: tuple[int, ...]) -> None:
    """Refuse a model that changes its buffers while it trains: clients would depend on who trained before them.

    It is looked at with other parameters, since buffers may fit the first ones.
    """
    if next(module.buffers(), None) is None:
        return
    before = {path: buffer.clone() for path, buffer in module.named_buffers()}
    first = [parameter.detach().clone() for parameter in module.parameters()]
    was_training = module.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for parameter in module.parameters():
                parameter.add_(torch.rand_like(parameter))
            module.train()(torch.zeros(2, *in_shape))
            for parameter, was in zip(module.parameters(), first, strict=True):
                parameter.copy_(was)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"model {name!r} does not train on samples [2, {', '.join(map(str, in_shape))}]: {error}"
        ) from error
    finally:
        module.train(was_training)
    for path, buffer in module.named_buffers():
        if path not in before or not _alike(buffer, before[path]):
            raise ConfigError(
                f"model {name!r}: {path} changes while the model trains. It is state outside the parameters, and would "
                "go from client to client; make it a parameter, or leave it as it is in training"
            )


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two buffers hold the same, where NaN is NaN."""
    return torch.equal(a, b) or (a.is_floating_point() and torch.equal(a.nan_to_num(), b.nan_to_num()))


def _slots(module: nn.Module) -> tuple[Slot, ...]:
    slots, start = [], 0
    for name, parameter in module.named_parameters():
        slots.append(Slot(name, start, start + parameter.numel(), parameter.shape))
        start = slots[-1].stop
    return tuple(slots)


def _blocks(slots: tuple[Slot, ...]) -> tuple[list[tuple[int, int]], list[str]]:
    blocks, names = [], []
    for owner, members in groupby(slots, key=lambda s: s.name.rpartition(".")[0]):
        of_owner = list(members)
        blocks.append((of_owner[0].start, of_owner[-1].stop))
        names.append(owner or "root")
    return blocks, names


def _forward_costs(
    name: str, module: nn.Module, in_shape: tuple[int, ...], n_classes: int
) -> tuple[int, int]:
    """Return operations and the most numbers at once of one sample.

    Counted by hooks: torch's own counter imports torch._dynamo, which takes seconds.
    """
    operations, numbers = [0], [0]

    def count(part: nn.Module, given: object, output: object) -> None:
        operations.append(_flops(part, output))
        numbers.append(_numbers(given) + _numbers(output) * (2 if isinstance(part, nn.RNNBase) else 1))

    hooks = [
        m.register_forward_hook(count)
        for m in module.modules()
        if next(m.children(), None) is None or next(m.parameters(False), None) is not None
    ]
    was_training, samples = module.training, torch.zeros(1, *in_shape)
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            out = module.eval()(samples)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(f"model {name!r} does not take samples of shape {in_shape}: {error}") from error
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    if samples._version:  # samples stay gathered from one evaluation to the next
        raise ConfigError(
            f"model {name!r} changes the samples that it is given in place: write x = x - mean, not x -= mean, and "
            "leave inplace = true to layers further in"
        )
    if not isinstance(out, torch.Tensor):
        raise ConfigError(
            f"model {name!r}: expected logits [1, {n_classes}] for one sample, found {type(out).__name__}"
        )
    if tuple(out.shape) != (1, n_classes):
        raise ConfigError(
            f"model {name!r}: expected logits [1, {n_classes}] for one sample, found {list(out.shape)}"
        )
    if not out.requires_grad:
        raise ConfigError(
            f"model {name!r}: expected logits that can be differentiated by its parameters, found some without a "
            "gradient: leave out detach() and torch.no_grad()"
        )
    return sum(operations), max(numbers)


def _numbers(found: object) -> int:
    """Return how many numbers a tensor, or the first of several, holds: recurrent layers also put out their state."""
    first = found[0] if isinstance(found, tuple) and found else found
    return first.numel() if isinstance(first, torch.Tensor) else 0


def _flops(part: nn.Module, output: object) -> int:
    """Two per weight and output position of linear layers and convolutions, two per weight and step of recurrent ones.

    Two per parameter of others, and none of embeddings, which are looked up.
    """
    if isinstance(part, nn.Embedding):
        return 0
    own = list(part.parameters(recurse=False))
    if isinstance(part, nn.RNNBase) and isinstance(output, tuple):
        steps: int = output[0].numel() // output[0].shape[-1]
        return 2 * steps * sum(p.numel() for p in own if p.ndim > 1)
    weight = getattr(part, "weight", None)
    linear = isinstance(part, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
    if linear and isinstance(weight, torch.Tensor) and isinstance(output, torch.Tensor):
        return 2 * output.numel() * math.prod(weight.shape[1:])
    return 2 * sum(p.numel() for p in own)

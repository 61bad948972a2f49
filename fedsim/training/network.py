"""A model as one flat vector of parameters, divided into blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsim import plugins
from fedsim.common.errors import ConfigError, short
from fedsim.common.rng import torch_seed
from fedsim.common.units import show_bytes
from fedsim.training.given_model import SHARED, check_shapes, share_parameters
from fedsim.training.modes import may_draw

Shape = tuple[int, ...]
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True, slots=True)
class Slot:
    """The position of one parameter in the flat vector: columns `[start, stop)`, viewed as `shape`."""

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
    in_shape: Shape
    n_classes: int
    module: nn.Module
    slots: tuple[Slot, ...]
    blocks: list[tuple[int, int]]
    """Half-open column ranges, one per submodule with parameters, contiguous and covering all P columns."""
    block_names: list[str]
    flops: int
    """Floating-point operations of the forward pass of one sample; a multiply-add counts as two."""
    widest: int
    """Numbers in the input and the output of one layer together for one sample, the maximum over all layers."""

    @property
    def P(self) -> int:
        """Number of parameters."""
        return self.slots[-1].stop

    def saved_bytes(self) -> int:
        """Return the bytes that a forward pass saves for the backward pass, for each sample beyond the first."""
        first, second = (_saved_bytes(self.name, self.module, self.in_shape, samples) for samples in (1, 2))
        return max(second - first, 0)

    def initial(self, seed: int) -> Tensor:
        """Return initial parameters [P] on the CPU, a function of the model and `seed` alone.

        Raises ConfigError for a model that returns the same parameters each time.
        """
        module = _make(self.name, self.options, self.in_shape, self.n_classes, torch_seed(seed, "init"))
        if share_parameters(module, self.module):
            raise ConfigError(f"{_called(self.name)}: {SHARED}")
        return torch.cat([p.detach().reshape(-1) for p in module.parameters()])

    def load(self, flat: Tensor) -> nn.Module:
        """Make the module's parameters views into `flat` [P], without a copy, and return the module.

        Changes of `flat` in place change the module, and vice versa. The module moves to the device of `flat`. Raises
        ValueError for another shape or type.
        """
        if flat.shape != (self.P,) or flat.dtype != torch.float32:
            actual = f"{list(flat.shape)} {flat.dtype}"
            raise ValueError(f"expected flat parameters [{self.P}] torch.float32, found {actual}")
        self.module.to(flat.device)  # for its buffers
        for slot, parameter in zip(self.slots, self.module.parameters(), strict=True):
            parameter.data = flat[slot.start : slot.stop].view(slot.shape)
        return self.module

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views into `flat` [..., P] by parameter name, each [..., *shape]; for `functional_call`."""
        lead = flat.shape[:-1]
        return {s.name: flat[..., s.start : s.stop].view((*lead, *s.shape)) for s in self.slots}


def build_network(name: str, options: Mapping[str, Any], in_shape: Shape, n_classes: int) -> Network:
    """Build the model `name` for samples of shape `in_shape`, leaving torch's global random state unchanged.

    Raises ConfigError for unknown names or options, and for a model that does not fit into memory, has running
    statistics or other buffers that training changes, has frozen or non-float32 parameters, or does not map
    [1, *in_shape] to [1, n_classes].
    """
    _check_memory(name, options, in_shape, n_classes)
    module = _make(name, options, in_shape, n_classes, seed=0)
    _check_parameters(name, module)
    slots = _slots(module)
    blocks, block_names = _blocks(slots)
    flops, widest = _forward_costs(name, module, in_shape, n_classes)
    _check_buffers(name, module, in_shape)
    _check_evaluation(name, module, in_shape)
    return Network(
        name, dict(options), in_shape, n_classes, module, slots, blocks, block_names, flops, widest
    )


def _check_memory(name: str, options: Mapping[str, Any], in_shape: Shape, n_classes: int) -> None:
    """Raise ConfigError for a model that does not fit into memory, from its shapes alone."""
    try:
        with torch.device("meta"):
            module = _make(name, options, in_shape, n_classes, seed=0)
    except (RuntimeError, OverflowError, MemoryError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError) or "verflow" in str(error):
            raise ConfigError(f"{_called(name)}: its sizes are too large: {short(str(error))}") from error
        return  # a user's module may need real tensors, and goes without this check
    except (TypeError, NotImplementedError):
        return
    sized = (p for p in module.parameters() if not isinstance(p, nn.parameter.UninitializedParameter))
    count, free = sum(p.numel() for p in sized), psutil.virtual_memory().available
    if 4 * count > free:
        raise ConfigError(
            f"{_called(name)}: expected at most {free // 4:,} parameters, which fill the {show_bytes(free)} of free "
            f"memory, found {count:,}"
        )


def _make(name: str, options: Mapping[str, Any], in_shape: Shape, n_classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it reseeds the accelerators too, whose state this fork does not restore.
        torch.default_generator.manual_seed(seed)
        module = plugins.build("model", name, options, in_shape=in_shape, n_classes=n_classes)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{_called(name)}: expected a torch.nn.Module, found {type(module).__name__}")
    return module


def _check_parameters(name: str, module: nn.Module) -> None:
    for path, part in module.named_modules():
        if isinstance(part, _BATCH_NORMS) or getattr(part, "running_mean", None) is not None:
            reason = (
                "Without running statistics the accuracy of a sample depends on the others of its batch"
                if getattr(part, "running_mean", None) is None
                else "Its running statistics are state outside the parameters, and averaging them over clients is "
                "undefined"
            )
            raise ConfigError(
                f"{_called(name)}: {path or 'the model'} is a {type(part).__name__}. {reason}; use GroupNorm (for cnn: "
                "norm = 'group') or no normalisation"
            )
    check_shapes(module, _called(name))
    for path, parameter in module.named_parameters():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            actual = f"{parameter.dtype}, requires_grad={parameter.requires_grad}"
            raise ConfigError(
                f"{_called(name)}: expected float32 parameters that are all trained, found {path} with {actual}"
            )
    if next(module.parameters(), None) is None:
        raise ConfigError(f"{_called(name)} has no parameters")


def _check_buffers(name: str, module: nn.Module, in_shape: Shape) -> None:
    """Raise ConfigError for a model that changes its buffers in training: clients would depend on earlier clients."""
    if next(module.buffers(), None) is None:
        return
    before = {path: buffer.clone() for path, buffer in module.named_buffers()}
    with _in_mode(module, training=True), torch.no_grad():
        # Buffers of a new model may fit to its parameters, and change with others.
        changed = {path: p + torch.rand_like(p) for path, p in module.named_parameters()}
        try:
            functional_call(module, changed, (torch.zeros(2, *in_shape),))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ConfigError(
                f"{_called(name)} does not train on samples [2, {', '.join(map(str, in_shape))}]: {error}"
            ) from error
        with suppress(RuntimeError, ValueError, TypeError, IndexError):  # it may take whole numbers alone
            functional_call(module, changed, (torch.rand(2, *in_shape),))
    for path, buffer in module.named_buffers():
        if path not in before or not _equal(buffer, before[path]):
            raise ConfigError(
                f"{_called(name)}: {path} changes while the model trains. It is state outside the parameters, and "
                "would go from client to client; make it a parameter, or leave it as it is in training"
            )


def _check_evaluation(name: str, module: nn.Module, in_shape: Shape) -> None:
    """Raise ConfigError for a model that draws at random while it is evaluated: its losses would not be repeatable."""
    if not may_draw(module):
        return
    outputs = []
    with _in_mode(module, training=False), torch.no_grad():
        samples = torch.rand(4, *in_shape)
        for seed in (1, 2):
            torch.default_generator.manual_seed(seed)
            try:
                outputs.append(module(samples))
            except (
                RuntimeError,
                ValueError,
                TypeError,
                IndexError,
            ):  # it takes other samples than numbers in [0, 1)
                return
    if not _equal(*outputs):
        raise ConfigError(
            f"{_called(name)}: it draws at random in evaluation mode too, so that losses could not be repeated; pass "
            "training=self.training to functions such as torch.nn.functional.dropout"
        )


def _equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two buffers are equal, NaN to NaN."""
    return torch.equal(a, b) or (a.is_floating_point() and torch.equal(a.nan_to_num(), b.nan_to_num()))


@contextmanager
def _in_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a module into training or evaluation mode, and restore its mode and torch's random state afterwards."""
    before = module.training
    try:
        with torch.random.fork_rng(devices=[]):
            module.train(training)
            yield
    finally:
        module.train(before)


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


def _called(name: str) -> str:
    """Return what messages call a model: one that Python code passed has a digest for a name."""
    return "model=" if plugins.is_given(name) else f"model {name!r}"


def _forward_costs(name: str, module: nn.Module, in_shape: Shape, n_classes: int) -> tuple[int, int]:
    """Return `flops` and `widest` of a Network; check that the model maps one sample to logits.

    Counted by hooks, because torch's own counter imports torch._dynamo, which is slow.
    """
    operations, numbers = [0], [0]

    def count(part: nn.Module, inputs: object, output: object) -> None:
        operations.append(_flops(part, output))
        numbers.append(_numbers(inputs) + _numbers(output) * (2 if isinstance(part, nn.RNNBase) else 1))

    with ExitStack() as hooks:
        for part in module.modules():
            if next(part.children(), None) is None or next(part.parameters(False), None) is not None:
                hooks.enter_context(part.register_forward_hook(count))
        out = _eval_forward(name, module, in_shape)
    _check_logits(name, out, n_classes)
    return sum(operations), max(numbers)


def _saved_bytes(name: str, module: nn.Module, in_shape: Shape, samples: int) -> int:
    """Return the bytes that a forward pass saves for the backward pass, beside the parameters."""
    sizes = dict[int, int]()

    def note(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        _ = _eval_forward(name, module, in_shape, samples)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    return sum(size for place, size in sizes.items() if place not in parameters)


def _eval_forward(name: str, module: nn.Module, in_shape: Shape, samples: int = 1) -> object:
    try:
        with _in_mode(module, training=False), torch.enable_grad():
            # With a gradient, because torch then refuses to change samples, which clients use again.
            out: object = module(torch.zeros(samples, *in_shape, requires_grad=True))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if "leaf Variable that requires grad is being used in an in-place operation" in str(error):
            raise ConfigError(
                f"{_called(name)} changes its input samples in place: write x = x - mean, not x -= mean, and set "
                "inplace = true only in layers after the first"
            ) from error
        last = "; images are [channels, height, width]: permute(0, 3, 1, 2) moves the channels of a tensor [N, H, W, C]"
        hint = last if len(in_shape) == 3 and in_shape[-1] in (1, 3, 4) and in_shape[0] > 4 else ""
        raise ConfigError(
            f"{_called(name)} does not take samples of shape {in_shape}: {error}{hint}"
        ) from error
    return out


def _check_logits(name: str, out: object, n_classes: int) -> None:
    shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if shape != [1, n_classes]:
        raise ConfigError(
            f"{_called(name)}: expected logits [1, {n_classes}] for one sample, one for each class from 0 to the "
            f"largest label, found {shape}"
        )
    if isinstance(out, Tensor) and not out.requires_grad:
        raise ConfigError(
            f"{_called(name)}: expected logits that are differentiable in its parameters, found some without a "
            "gradient: leave out detach() and torch.no_grad()"
        )


def _numbers(values: object) -> int:
    """Return the size of a tensor, or of the first of several: recurrent layers return their state too."""
    first = values[0] if isinstance(values, tuple) and values else values
    return first.numel() if isinstance(first, Tensor) else 0


def _flops(part: nn.Module, output: object) -> int:
    """Return the operations of one layer in a forward pass.

    Two per weight and output position of linear layers and convolutions, two per weight and time step of recurrent
    layers, two per parameter of other layers, and none of embeddings, which are looked up.
    """
    if isinstance(part, nn.Embedding):
        return 0
    own = list(part.parameters(recurse=False))
    if isinstance(part, nn.RNNBase) and isinstance(output, tuple):
        steps: int = output[0].numel() // output[0].shape[-1]
        return 2 * steps * sum(p.numel() for p in own if p.ndim > 1)
    if isinstance(part, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) and isinstance(output, Tensor):
        return 2 * output.numel() * math.prod(part.weight.shape[1:])
    return 2 * sum(p.numel() for p in own)

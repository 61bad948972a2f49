"""A GPU that is none: tensors which say that they are on one, compute on the processor, and refuse what a GPU's refuse.

What fails on a GPU alone is mostly a tensor in the wrong place: NumPy asked for one of the GPU's, two of different
places in one operation. Here that fails on any machine, and what is right gives the numbers that the processor gives.
Rounding, speed, memory and streams of a GPU are not pretended; tests marked `gpu` look at those where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

CUDA = torch.device("cuda", 0)
_aten = torch.ops.aten
_INDEXED = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
}
"""Operations that take positions from the processor, too."""
_COPIES = {_aten.copy_.default, _aten._to_copy.default}
_READS = {_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default}
"""Operations whose result a processor must wait for."""


Event = Literal["sent", "waited"]
"""A copy from the processor to the GPU, or that the processor asked for numbers of the GPU, which it must wait for."""


class There(torch.Tensor):
    """A tensor that is on the pretended GPU; for torch's own code it is on "meta", which needs no device."""

    here: torch.Tensor
    """Its numbers."""
    log: list[Event]
    """What is to be known of the GPU's work."""

    @staticmethod
    def __new__(cls, here: torch.Tensor, log: list[Event]) -> There:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device="meta",
        )
        made.here, made.log = here, log
        return made  # type: ignore[no-any-return]

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = is_meta = property(lambda self: False)  # type: ignore[assignment]
    data = property(lambda self: self.detach(), lambda self, value: setattr(self, "here", value.here))

    def numpy(self, *args: Any, **options: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy  # type: ignore[assignment]

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        log = next(t.log for t in tree_leaves((args, kwargs)) if isinstance(t, There))
        return _computed(log, func, args, kwargs or {})


def _computed(log: list[Event], func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Do an operation with the tensors' numbers, and say of what comes out where it is."""
    tensors = [t for t in tree_leaves((args, options)) if isinstance(t, torch.Tensor)]
    there = [t for t in tensors if isinstance(t, There)]
    device = options.get("device")
    if device is not None:
        stays = torch.device(device).type in ("cuda", "meta")
        options = {**options, "device": torch.device("cpu")}
    else:
        first = isinstance(args[0], There) if args else False
        stays = first if func in _COPIES or func in _INDEXED else bool(there)
    if there and func not in _COPIES:
        _check_places(func, args, tensors)
    if there and (func in _READS or (func in _COPIES and not stays)):
        log.append("waited")
    elif stays and func in _COPIES and len(there) < len(tensors):
        log.append("sent")
    known = {id(t.here): t for t in there}
    out = func(
        *tree_map_only(There, lambda t: t.here, args), **tree_map_only(There, lambda t: t.here, options)
    )
    if not stays:
        return out
    return tree_map_only(torch.Tensor, lambda t: known[id(t)] if id(t) in known else There(t, log), out)


def _check_places(func: Any, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> None:
    """Raise RuntimeError, as torch does, unless all tensors are on the GPU; single numbers may be anywhere."""
    if func in _INDEXED and isinstance(args[0], There):
        tensors = [t for t in tensors if t.dtype not in (torch.int64, torch.bool)]
    if any(t.dim() and not isinstance(t, There) for t in tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({func})"
        )


class _Made(TorchDispatchMode):
    """Makes tensors there if they are asked for there."""

    def __init__(self, log: list[Event]) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _computed(self.log, func, args, kwargs or {})


class _Called(TorchFunctionMode):
    """Takes what torch would ask a driver for before the operation: which of the GPUs "cuda" is, and what to index."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args = tuple(map(_full, args))
        options = {name: _full(value) for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            func, args = torch.Tensor.to, (args[0], CUDA)
        if func is torch.tensor and options.get("device") == CUDA:
            return func(*args, **{**options, "device": None}).to(CUDA)
        if func is torch.Tensor.to and isinstance(args[0], There):
            args = (args[0], *(a for a in args[1:] if a != CUDA))
            options = {name: value for name, value in options.items() if value != CUDA}
            if len(args) == 1 and not options.keys() - {"non_blocking"}:
                return args[0]
        if getattr(func, "__name__", "") == "__setitem__" and isinstance(args[1], torch.Tensor):
            rows, index, values = args
            return rows.index_put_((index,), torch.as_tensor(values, device=rows.device))
        return func(*args, **options)


def _full(value: Any) -> Any:
    return CUDA if isinstance(value, (str, torch.device)) and str(value) == "cuda" else value


@contextmanager
def pretended(patch: pytest.MonkeyPatch) -> Iterator[list[Event]]:
    """Have torch think that there is a GPU; yields what happens between it and the processor."""
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "_lazy_init", lambda: None)
    patch.setattr(torch.cuda, "mem_get_info", lambda: (2**34, 2**34))
    patch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    patch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    patch.setattr(torch.cuda, "get_device_name", lambda: "none, pretended")
    patch.setattr(torch.cuda, "manual_seed", torch.default_generator.manual_seed)
    fork_rng = torch.random.fork_rng
    patch.setattr(torch.random, "fork_rng", lambda devices: fork_rng(devices=[]))
    patch.setattr(torch, "inference_mode", _without_gradients)  # torch makes no views of There in it
    log: list[Event] = []
    with _Made(log), _Called():
        yield log


def _without_gradients(on: bool = True) -> Any:
    return torch.set_grad_enabled(not on and torch.is_grad_enabled())

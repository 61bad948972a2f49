"""The numeric precision of training, and determinism on a GPU.

Parameters, updates and the server's computations are float32 in every case, and so is evaluation.

`bfloat16` is mixed-precision training: matrix products and convolutions of the forward and backward pass take and
return numbers with a significand of 8 bits. These need half the memory and are much faster on processors with units
for them. The loss and the step are float32. With `tf32` a GPU rounds the factors of products to 11 bits and adds in
float32.

By default a GPU uses kernels whose sums depend on the order of its threads. fedsim selects deterministic kernels, and
torch warns of operations that have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any, Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]
_CPU = torch.device("cpu")


def device_named(name: str) -> torch.device:
    """Return a device. For a GPU, set cuBLAS's workspace for deterministic results, unless the user has set it.

    cuBLAS reads the setting once, at the process's first product on the GPU.
    """
    device = torch.device(name)
    if device.type == "cuda":
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # of fixed size: the same kernels each time
    return device


@contextmanager
def untouched() -> Iterator[None]:
    """Compute with torch's defaults, whichever modes and defaults the caller has set."""
    dtype = torch.get_default_dtype()
    try:
        products = torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller has set `fp32_precision`, after which torch refuses to read this
        products = "highest"
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        if products != "highest":
            stack.callback(torch.set_float32_matmul_precision, products)
            torch.set_float32_matmul_precision("highest")
        for place in _with_precision("cuda.matmul", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"):
            if place.fp32_precision not in ("none", "ieee"):
                _set(stack, place, "fp32_precision", "ieee")
        if torch.get_default_device() != _CPU:  # only if needed: a device context slows every call of torch
            stack.enter_context(_CPU)
        for kind in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        yield


def _with_precision(*names: str) -> list[Any]:
    """Return the parts of `torch.backends` of these names that have an `fp32_precision`, new in torch 2.9."""
    parts = []
    for path in names:
        part: Any = torch.backends
        for name in path.split("."):
            part = getattr(part, name, None)
        parts += [part] * hasattr(part, "fp32_precision")
    return parts


def _set(stack: ExitStack, place: Any, name: str, value: object) -> None:
    """Set an attribute until the end of the stack. Raises RuntimeError if torch refuses to read it."""
    stack.callback(setattr, place, name, getattr(place, name))
    setattr(place, name, value)


def lowered(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Run a forward pass in autocast to bfloat16 if that is the precision; the output may then be bfloat16 too.

    Enter it anew for each pass: autocast caches the cast parameters until the end, while training changes them.
    """
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


@contextmanager
def rounding(precision: Precision, device: torch.device) -> Iterator[None]:
    """Allow or forbid TF32 on a GPU, and use deterministic kernels.

    By default torch uses TF32 in convolutions alone, and the fastest kernels.
    """
    if device.type != "cuda":
        yield
        return
    cudnn, tf32 = torch.backends.cudnn, precision == "tf32"
    with ExitStack() as stack:
        with suppress(RuntimeError):  # the caller has set `fp32_precision`, which then decides
            _set(stack, torch.backends.cuda.matmul, "allow_tf32", tf32)
            _set(stack, cudnn, "allow_tf32", tf32)
        for place in _with_precision("cuda.matmul", "cudnn.conv", "cudnn.rnn"):
            if (place.fp32_precision == "tf32") != tf32:
                _set(stack, place, "fp32_precision", "tf32" if tf32 else "ieee")
        _set(stack, cudnn, "deterministic", True)
        _set(stack, cudnn, "benchmark", False)
        _set(stack, torch.utils.deterministic, "fill_uninitialized_memory", False)
        stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
        torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import a compiler
        yield

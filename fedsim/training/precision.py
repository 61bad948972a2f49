"""How precisely clients compute, and that a GPU repeats it.

Parameters, updates and whatever the server makes of them are float32 in any case.

In `bfloat16`, as in mixed-precision training, products and convolutions of the forward and backward pass take numbers
with a significand of 8 bits and give such numbers, which take half the memory and, on processors with units for them,
a fraction of the time; the loss and the step are float32. In `tf32` a GPU rounds what it multiplies to 11 bits and adds
up in float32. Evaluation is as precise as float32 is, whatever clients do.

Left to itself a GPU takes kernels whose sums depend on which thread is first. It is told to take others, and torch
warns of operations that have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]
_CPU = torch.device("cpu")
_CUBLAS, _WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""With memory of a fixed size cuBLAS chooses the same kernels each time."""


def device_named(name: str) -> torch.device:
    """Return a device; if it is a GPU, cuBLAS is told to repeat its bits, unless the user has told it something.

    It reads that once, when the process first multiplies there.
    """
    device = torch.device(name)
    if device.type == "cuda":
        os.environ.setdefault(_CUBLAS, _WORKSPACE)
    return device


@contextmanager
def untouched() -> Iterator[None]:
    """Compute as torch does by itself, whichever modes and defaults the caller has set."""
    dtype, products = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    with ExitStack() as held:
        held.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        if products != "highest":
            held.callback(torch.set_float32_matmul_precision, products)
            torch.set_float32_matmul_precision("highest")
        if torch.get_default_device() != _CPU:  # each call of torch then takes longer
            held.enter_context(_CPU)
        for kind in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            held.enter_context(torch.autocast(kind, enabled=False))
        held.enter_context(torch.inference_mode(False))
        held.enter_context(torch.enable_grad())
        yield


def lowered(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Let torch choose bfloat16 for operations of a forward pass where the precision says so; so may be what comes out.

    To be entered anew for each pass: parameters that are cast are kept until the end, and they change.
    """
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


@contextmanager
def rounding(precision: Precision, device: torch.device) -> Iterator[None]:
    """Say whether a GPU may round what it multiplies to TF32, and that it must repeat its bits.

    torch by default rounds in convolutions alone, and takes whichever kernels are fastest.
    """
    if device.type != "cuda":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = precision == "tf32"
    try:
        with _repeating():
            yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


@contextmanager
def _repeating() -> Iterator[None]:
    """Let torch take kernels whose bits are the same each time, and warn where there is none."""
    convolutions = torch.backends.cudnn
    memory: Any = torch.utils.deterministic  # its module has properties, of which its types know nothing
    before = convolutions.deterministic, convolutions.benchmark, memory.fill_uninitialized_memory
    mode = torch.get_deterministic_debug_mode()
    convolutions.deterministic, convolutions.benchmark, memory.fill_uninitialized_memory = True, False, False
    torch.set_deterministic_debug_mode("warn")  # the other function for it imports a compiler, for seconds
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        convolutions.deterministic, convolutions.benchmark, memory.fill_uninitialized_memory = before

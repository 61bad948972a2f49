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
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Literal

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
    dtype, products = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        if products != "highest":
            stack.callback(torch.set_float32_matmul_precision, products)
            torch.set_float32_matmul_precision("highest")
        if torch.get_default_device() != _CPU:  # only if needed: a device context slows every call of torch
            stack.enter_context(_CPU)
        for kind in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        yield


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
    products, convolutions, tf32 = torch.backends.cuda.matmul, torch.backends.cudnn, precision == "tf32"
    with ExitStack() as stack:
        for place, name, value in (
            (products, "allow_tf32", tf32),
            (convolutions, "allow_tf32", tf32),
            (convolutions, "deterministic", True),
            (convolutions, "benchmark", False),
            (torch.utils.deterministic, "fill_uninitialized_memory", False),
        ):
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
        torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import a compiler
        yield

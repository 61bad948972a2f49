"""What a run was made with and on: versions and hardware, for its manifest."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import metadata
from typing import Any

import psutil
import torch

_PACKAGES = ("fedsim", "torch", "torchvision", "numpy", "scipy", "ray", "pyarrow", "simpy", "pydantic")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages whose code a run's results depend on."""
    return {package: _version(package) for package in _PACKAGES} | {"python": platform.python_version()}


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def hardware(device: str) -> dict[str, Any]:
    """Return what the machine is; where a cluster computes on its own GPUs, this one may have none."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else None,
    }

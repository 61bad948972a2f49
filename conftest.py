"""Shared set-up: where the input folders lie, and one torch thread as in every fedsim process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent
for name in ("data", "traces", "golden"):
    os.environ.setdefault(f"FEDSIM_{name.upper()}", str(ROOT.parent / "shared" / name))


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT

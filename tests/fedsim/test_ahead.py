"""What is made in a second process is what would have been made here."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from fedsim.ahead import Ahead

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="needs memory shared between forked processes"
)


@dataclass(frozen=True)
class _Made:
    arrays: dict[str, np.ndarray]
    text: str


def _made() -> _Made:
    generator = np.random.default_rng(1)
    shapes = {"matrix": (300, 7), "nothing": (0, 4), "odd": (13,), "number": ()}
    return _Made({name: generator.normal(size=shape) for name, shape in shapes.items()}, "said")


def test_arrays_come_back_whole_aligned_and_writable() -> None:
    found, expected = Ahead(_made).result(), _made()
    assert found is not None
    assert found.text == expected.text
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name].dtype == array.dtype
    matrix = found.arrays["matrix"]
    assert matrix.ctypes.data % 64 == 0
    matrix += 1
    np.testing.assert_array_equal(matrix, expected.arrays["matrix"] + 1)


def test_what_has_no_arrays_comes_back_too() -> None:
    assert Ahead(lambda: {"a": 1}).result() == {"a": 1}


def test_what_fails_there_is_left_to_be_made_here() -> None:
    def failing() -> int:
        raise ValueError("not there")

    def killed() -> int:
        os._exit(9)

    assert Ahead(failing).result() is None
    assert Ahead(killed).result() is None


def test_its_memory_is_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = [Ahead(_made).result() for _ in range(5)]
    assert len(made) == 5
    assert len(os.listdir("/proc/self/fd")) <= before + 5  # each mapping holds one until its arrays are gone
    del made
    assert len(os.listdir("/proc/self/fd")) == before

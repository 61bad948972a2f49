"""What is made in a second process is what would have been made here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedsim.common import background as ahead
from fedsim.common.background import Ahead, in_parts

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


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with four cores, in a process that has imported nothing with threads."""
    monkeypatch.setattr(ahead, "cores", lambda: 4)
    monkeypatch.setattr(ahead, "_THREADED", set())


def _squares_and_where(items: Sequence[int]) -> tuple[list[int], int]:
    return [i * i for i in items], os.getpid()


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(("count", "least", "parts"), [(0, 1, 1), (3, 2, 1), (9, 3, 3), (103, 5, 4)])
def test_parts_are_made_in_processes_of_their_own(count: int, least: int, parts: int) -> None:
    found = in_parts(_squares_and_where, range(count), least)
    assert [square for squares, _ in found for square in squares] == [i * i for i in range(count)]
    assert len(found) == len({process for _, process in found}) == parts
    assert found[0][1] == os.getpid()
    assert min(len(squares) for squares, _ in found) >= min(least, count)


def test_a_process_with_threads_does_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "cores", lambda: 4)
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert len(in_parts(_squares_and_where, range(100), 1)) == 1


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("wrong", [1, 99])
def test_what_fails_in_a_part_is_said_here_and_leaves_nobody_behind(wrong: int) -> None:
    def make(items: Sequence[int]) -> int:
        if wrong in items:
            raise ValueError(f"no {wrong}")
        if wrong == 1:
            time.sleep(60)
        return len(items)

    before, children = set(os.listdir("/proc/self/fd")), psutil.Process().children()
    with pytest.raises(ValueError, match=f"no {wrong}"):
        in_parts(make, range(100), 1)
    assert set(os.listdir("/proc/self/fd")) == before
    assert psutil.Process().children() == children


_PARENT = """
import os, sys, time
from fedsim.common.background import Ahead

def make():
    print(os.getpid(), flush=True)
    time.sleep(60)

Ahead(make)
time.sleep(60)
"""


def test_it_ends_when_the_first_process_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        child = int(first.stdout.readline())
        first.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and _state(child) != "Z" and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists() or _state(child) == "Z"


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"

"""Several processes make the same parts as one process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import psutil
import pytest

from fedsim.common import parallel
from fedsim.common.parallel import in_parts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with four cores, in a process that may fork."""
    monkeypatch.setattr(parallel, "cores", lambda: 4)
    monkeypatch.setattr(parallel, "_may_fork", lambda: True)


def _squares_and_where(items: Sequence[int]) -> tuple[list[int], int]:
    return [i * i for i in items], os.getpid()


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(("count", "least", "parts"), [(0, 1, 1), (3, 2, 1), (9, 3, 3), (103, 5, 4)])
def test_each_part_is_made_in_its_own_process(count: int, least: int, parts: int) -> None:
    found = in_parts(_squares_and_where, range(count), least)
    assert [square for squares, _ in found for square in squares] == [i * i for i in range(count)]
    assert len(found) == len({process for _, process in found}) == parts
    assert found[0][1] == os.getpid()
    assert min(len(squares) for squares, _ in found) >= min(least, count)


FORKS = """
import os, sys, threading
from fedsim.common import parallel
parallel.cores = lambda: 4
import {imported}
done = threading.Event()
if {threaded}:
    threading.Thread(target=done.wait).start()
print(len(set(parallel.in_parts(lambda items: os.getpid(), range(100), 1))))
done.set()
"""


@pytest.mark.parametrize(
    ("imported", "threaded", "processes"), [("numpy", False, 4), ("numpy", True, 1), ("ray", False, 1)]
)
def test_a_process_with_another_thread_or_with_ray_does_not_fork(
    imported: str, threaded: bool, processes: int
) -> None:
    script = FORKS.format(imported=imported, threaded=threaded)
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert int(printed) == processes


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("wrong", [1, 99])
def test_an_error_in_a_part_is_raised_here_and_leaves_no_process(wrong: int) -> None:
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


@pytest.mark.usefixtures("four_cores")
def test_this_process_makes_the_part_of_a_process_that_died() -> None:
    here = os.getpid()

    def make(items: Sequence[int]) -> int:
        if os.getpid() != here:
            os._exit(9)
        return len(items)

    assert in_parts(make, range(100), 1) == [25] * 4


@pytest.mark.usefixtures("four_cores")
def test_parts_larger_than_a_pipe_arrive_complete() -> None:
    """More than a pipe holds at once."""
    parts = in_parts(lambda items: np.arange(len(items) * 10**5), range(8), 1)
    assert [len(part) for part in parts] == [2 * 10**5] * 4
    assert all((part == np.arange(2 * 10**5)).all() for part in parts)

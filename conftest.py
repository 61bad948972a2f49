"""Shared set-up: where the input folders lie, and one thread as in every fedsim process."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.testing

import inputs
from fedsim.execution.cluster import set_environment

if TYPE_CHECKING:
    from fedsim.execution.actor_pool import RayPool

# Commands that tests run in folders of their own look for data sets where the tests do.
os.environ["FEDSIM_DATA"] = str(inputs.DATA)
set_environment(own=True)  # some test files import Ray before a test asks for a cluster


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    # Imported late: the process that hands out tests to others does without.
    import scipy.linalg  # noqa: F401  its own BLAS is limited with the others once it is loaded
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield


@pytest.fixture(autouse=True, scope="session")
def _commands_once() -> Iterator[None]:
    """The command line is taken apart and built from the functions behind it once, not for each command."""
    built = cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", built)
        patch.setattr(typer.testing, "_get_command", built)
        yield


@pytest.fixture(autouse=True, scope="session")
def _not_flushed() -> Iterator[None]:
    """Files are not flushed to the disk, which takes milliseconds for each: only a power cut would show it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


class _SharedRay:
    """One local Ray and its pools for all tests: starting them takes longer than most of the tests."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._started = False
        self._pools: dict[int, RayPool] = {}

    def start(self) -> None:
        """Start Ray, unless it runs."""
        from fedsim.execution.cluster import connect

        if not self._started:
            self._open.callback(connect(None, cpus=3).close)
            self._started = True

    def pool(self, workers: int) -> RayPool:
        """Return the pool of so many client actors; each of its processes imports torch."""
        from fedsim.execution.actor_pool import RayPool

        self.start()
        if workers not in self._pools:
            self._pools[workers] = self._open.enter_context(RayPool(workers))
        return self._pools[workers]

    def close(self) -> None:
        """Stop the processes, which take processor time as long as they live."""
        self._pools.clear()
        self._started = False
        self._open.close()


_ray = _SharedRay()


@pytest.fixture
def ray_cluster() -> None:
    """Ray runs here, with a cluster that tests share."""
    _ray.start()


@pytest.fixture
def one_worker() -> RayPool:
    """A pool of one client actor, which tests share."""
    return _ray.pool(1)


@pytest.fixture
def two_workers() -> RayPool:
    """A pool of two client actors, which tests share."""
    return _ray.pool(2)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop Ray after the last test that may ask for it: with xdist, one process runs them all in a row."""
    in_a_row = "PYTEST_XDIST_WORKER" in os.environ
    if nextitem is None or (in_a_row and not nextitem.get_closest_marker("ray")):
        _ray.close()


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_interrupts() -> Iterator[None]:
    """Tests send SIGINT, which a shell ignores in processes that it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return inputs.ROOT


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: tests that start a process or Ray wait for it, and leave a core idle meanwhile."""
    from fedsim.common.machine import cores

    return cores() + 1


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let one process run the tests that share a cluster of Ray, and another one those that kill processes of Ray.

    Tests that take long come first: one that comes last lets the other processes wait for it.
    """
    import torch

    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("chaos" if "chaos" in item.path.parts else "ray"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))
        if item.get_closest_marker("tables") and "tables" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="takes minutes: make tables"))
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Do not look again and again for garbage among the tests and the modules, which stay."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let the interpreter take everything down as it is used to."""
    gc.unfreeze()

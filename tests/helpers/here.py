"""A pool of processes that are none: what Ray actors would do is done at once, here, with pickled copies."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from fedsim.execution import ray_trainer as actors
from fedsim.execution.actor_pool import RayPool
from fedsim.execution.ray_actors import Build
from fedsim.execution.workers import ClientActor, ServerActor


class _Kept:
    """What the object store would hold."""

    def __init__(self, value: Any) -> None:
        self._pickled = pickle.dumps(value)

    @property
    def value(self) -> Any:
        return pickle.loads(self._pickled)


def _fetched(refs: Any, server: Any = None) -> Any:
    return [ref.value for ref in refs] if isinstance(refs, list) else refs.value


class _Process:
    """An actor, with Ray's way of calling it."""

    def __init__(self, held: ClientActor | ServerActor) -> None:
        self._held, self._built = held, None
        self.call = SimpleNamespace(remote=self._one, options=self._options)

    def _options(self, num_returns: int) -> Any:
        return SimpleNamespace(remote=self._one if num_returns == 1 else self._several)

    def _several(self, *call: Any) -> list[_Kept]:
        return [_Kept(part) for part in self._done(*call)]

    def _one(self, *call: Any) -> _Kept:
        return _Kept(self._done(*call))

    def _done(self, build: list[_Kept], method: str, *args: Any) -> Any:
        if build and build[0] is not self._built:
            source: Build = build[0].value
            self._held.build(*source.arguments)
            self._built = build[0]
        return getattr(self._held, method)(*(a.value if isinstance(a, _Kept) else a for a in args))


class PoolHere(RayPool):
    """As a RayPool with GPUs, for `simulate`, whose processes are objects of this one."""

    forked, has_gpus, workers = False, True, 0

    def __init__(self, workers: int, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(actors, "ray", SimpleNamespace(put=_Kept))
        patch.setattr(actors, "fetch", _fetched)
        self.workers = workers

    def trainer(self, *args: Any, **options: Any) -> actors.RayTrainer:
        """Return what drives the processes."""
        clients = [_Process(ClientActor()) for _ in range(self.workers)]
        there: Any = SimpleNamespace(
            clients=clients, server=_Process(ServerActor()), there=SimpleNamespace(forks=None)
        )
        return actors.set_up(there, *args, **options)

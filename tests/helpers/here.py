"""A pool of processes that are none: what Ray actors would do is done at once, here, with pickled copies."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from fedsim.execution import ray_trainer
from fedsim.execution.actor_pool import RayPool
from fedsim.execution.ray_actors import Build
from fedsim.execution.workers import ClientActor, ServerActor, TrainerSpec


class _Kept:
    """What the object store would hold."""

    def __init__(self, value: Any) -> None:
        self._pickled = pickle.dumps(value)

    @property
    def value(self) -> Any:
        return pickle.loads(self._pickled)


def _fetched(refs: Any, server: str) -> Any:
    return [ref.value for ref in refs] if isinstance(refs, list) else refs.value


class _Method:
    """A method of an actor, with Ray's way of calling it."""

    def __init__(self, process: _Process, name: str, returns: int) -> None:
        self._process, self._name, self._returns = process, name, returns

    def options(self, num_returns: int) -> _Method:
        return _Method(self._process, self._name, num_returns)

    def remote(self, build: list[_Kept], *args: Any) -> Any:
        done = self._process.done(build, self._name, *args)
        return _Kept(done) if self._returns == 1 else [_Kept(part) for part in done]


class _Process:
    """An actor."""

    def __init__(self, held: ClientActor | ServerActor) -> None:
        self._held, self._built = held, None

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name, 3 if name in ("propose", "accept", "step") else 1)

    def done(self, build: list[_Kept], method: str, *args: Any) -> Any:
        if build and build[0] is not self._built:
            source: Build = build[0].value
            self._held.build(*source.arguments)
            self._built = build[0]
        return getattr(self._held, method)(*(a.value if isinstance(a, _Kept) else a for a in args))


class PoolHere(RayPool):
    """As a RayPool with GPUs, for `simulate`, whose processes are objects of this one."""

    has_gpus, workers = True, 0

    def __init__(self, workers: int, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(ray_trainer, "ray", SimpleNamespace(put=_Kept))
        patch.setattr(ray_trainer, "fetch", _fetched)
        patch.setattr(ray_trainer, "identity", lambda server: "server")
        self.workers = workers

    def check_open(self) -> None:
        """Nothing closes it."""

    def processes(self) -> Any:
        """Return new processes."""
        clients = [_Process(ClientActor()) for _ in range(self.workers)]
        return SimpleNamespace(clients=clients, server=_Process(ServerActor()))

    def trainer(self, spec: TrainerSpec) -> ray_trainer.RayTrainer:
        """Return what drives the processes."""
        return ray_trainer.RayTrainer(self.processes(), spec)

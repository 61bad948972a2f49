"""Builds the task of a configuration, and divides its data among clients."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from fedsim.common import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.units import show_bytes
from fedsim.config.run import RunConfig
from fedsim.data.federated_data import FederatedData, Task
from fedsim.data.split import federate
from fedsim.data.validation import checked

_CLIENT_BYTES = 500
"""Least memory of a client with one sample and one interval of its world."""


def federation(config: RunConfig) -> tuple[Task, FederatedData]:
    """Return the run's task, and its data divided among the clients. Raises ConfigError or DataError."""
    task, partition = _task(config), config.partition
    return task, federate(
        task,
        n_clients=config.task.clients,
        partitioner=None if partition is None else partition.name,
        options={} if partition is None else partition.options,
        fractions=config.task.fractions,
        pool=config.task.pool,
        shuffle=config.task.shuffle,
        seed=config.seed,
    )


def _task(config: RunConfig) -> Task:
    section = config.task
    free = psutil.virtual_memory().available
    if section.clients * _CLIENT_BYTES > free:
        raise ConfigError(
            f"task.clients: expected at most {free // _CLIENT_BYTES:,}, which fit into the {show_bytes(free)} of free "
            f"memory, found {section.clients:,}"
        )
    data_dir = section.data_dir or Path(os.environ.get("FEDSIM_DATA") or "data")
    task = plugins.build(
        "task", section.name, section.options, clients=section.clients, seed=config.seed, data_dir=data_dir
    )
    return checked(task, section.name)

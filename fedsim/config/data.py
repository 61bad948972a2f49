"""Builds the task of a configuration, and divides its data among clients."""

from __future__ import annotations

import psutil

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.units import show_bytes
from fedsim.config.run import RunConfig
from fedsim.data.dataset_files import folder
from fedsim.data.federated_data import FederatedData, Task
from fedsim.data.split import Division, federate
from fedsim.data.unseen_clients import with_unseen
from fedsim.data.validation import checked

_CLIENT_BYTES = 500
"""Least memory of a client with one sample and one interval of its world."""


def federation(config: RunConfig) -> tuple[Task, FederatedData]:
    """Return the run's task, and its data divided among the clients, some of which may be unseen.

    Raises ConfigError or DataError.
    """
    section, partition, seed = config.task, config.partition, config.seed_of("data")
    free = psutil.virtual_memory().available
    if section.clients * _CLIENT_BYTES > free:
        raise ConfigError(
            f"task.clients: expected at most {free // _CLIENT_BYTES:,}, which fit into the {show_bytes(free)} of free "
            f"memory, found {section.clients:,}"
        )
    supplied = {"clients": section.clients, "seed": seed, "data_dir": folder(section.data_dir)}
    task = checked(plugins.build("task", section.name, section.options, **supplied), section.name)
    divided = federate(
        task,
        n_clients=section.clients,
        partitioner=partition.name if partition else None,
        options=partition.options if partition else None,
        division=Division(section.fractions, section.pool, section.shuffle),
        seed=seed,
    )
    return task, with_unseen(divided, section.unseen_clients, seed)

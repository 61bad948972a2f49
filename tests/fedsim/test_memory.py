from __future__ import annotations

import pytest

from algorithms.clients.ditto import ditto
from algorithms.clients.fedcka import fedcka
from fedsim import memory
from fedsim.client import ClientMethod
from fedsim.errors import ConfigError
from fedsim.pacing import fedbuff, sync
from fedsim.server import ServerSpec

SPEC = ServerSpec(
    "fedlf", {}, n_clients=1000, total_samples=10**5, most_updates=10, blocks=[(0, 900), (900, 1000)]
)


def test_the_parts_add_up() -> None:
    found = memory.predict(SPEC, sync(10), data_bytes=10**6, trace_bytes=10**5, workers=0)
    assert found["total"] == sum(n for part, n in found.items() if part != "total")
    assert found["history"] == 1010 * 4000
    assert found["gram"] == 2 * 1010**2 * 8
    assert found["data"] == 10**6


def test_workers_and_old_versions_cost_memory() -> None:
    inline = memory.predict(SPEC, sync(10), data_bytes=0, trace_bytes=0, workers=0)
    two = memory.predict(SPEC, sync(10), data_bytes=0, trace_bytes=0, workers=2)
    buffered = memory.predict(SPEC, fedbuff(100, 10), data_bytes=0, trace_bytes=0, workers=0)
    assert two["processes"] == 4 * inline["processes"]
    assert buffered["parameters"] > inline["parameters"]


def test_what_clients_keep_costs_memory() -> None:
    def kept(method: ClientMethod) -> int:
        found = memory.predict(SPEC, sync(10), data_bytes=0, trace_bytes=0, workers=0, method=method)
        return found["kept"]

    assert kept(ClientMethod()) == 0
    assert kept(fedcka()) == 1010 * 4000
    assert kept(ditto()) == 3010 * 4000


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    found = memory.predict(SPEC, sync(10), data_bytes=2**31, trace_bytes=0, workers=0)
    memory.check_fits(found, "fedlf", limit=found["total"])
    with pytest.raises(ConfigError, match=r"would need .* GiB .*data 2.0 GiB.*but 1.0 GiB are free.*'fedlf'"):
        memory.check_fits(found, "fedlf", limit=2**30)


def test_the_peak_is_measured() -> None:
    assert memory.peak_bytes() > 50 * 2**20

"""A run of many steps takes no more of Ray's object store at its end than at its beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.execution.actor_pool import RayPool
from fedsim.runs.build import prepare
from soak import config, growth, soak

pytestmark = [pytest.mark.ray, pytest.mark.slow]
STEPS = 240


def test_the_object_store_does_not_grow(tmp_path: Path, one_worker: RayPool) -> None:
    row_bytes = 4 * prepare(config(STEPS)).server.blocks[-1][1]
    found = soak(STEPS, tmp_path, one_worker, samples=24)
    assert [sample.step for sample in found] == list(range(10, STEPS + 1, 10))
    first, last = found[:8], found[-8:]
    assert min(sample.store for sample in found) > row_bytes, "rows go through the object store"
    # A row of each job, or the parameters of each step, that stay would be 160 rows or more.
    assert max(s.store for s in last) < max(s.store for s in first) + 10 * row_bytes, found
    assert max(s.objects for s in last) < max(s.objects for s in first) + 20, found
    assert growth(found, "store") < 1000 * row_bytes / 5

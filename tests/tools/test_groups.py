"""Tests of one group run in one process: they share a Ray, or what takes long to make."""

from __future__ import annotations

import os

import pytest

handed_out = pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" not in os.environ, reason="all tests run in one process"
)


@handed_out
@pytest.mark.xdist_group("together")
def test_tests_are_handed_out_with_their_group(request: pytest.FixtureRequest) -> None:
    """Some versions of pytest and pytest-xdist leave it out without a word; the suite then takes much longer."""
    assert request.node.nodeid.endswith("@together")


@handed_out
@pytest.mark.ray
def test_tests_with_ray_are_a_group_that_shares_one(request: pytest.FixtureRequest) -> None:
    """Else each of them would start a Ray and its workers anew, as the one before had to stop them."""
    assert request.node.nodeid.endswith("@ray")

"""Headings of metrics with their units."""

from __future__ import annotations

from fedsim.analysis.tables.headings import heading_of


def test_headings_have_their_units() -> None:
    assert heading_of("mean_percent") == "mean accuracy, %"
    assert heading_of("worst10_percent") == "worst 10 % of clients, %"
    assert heading_of("variance_percent2") == "variance, %²"
    assert heading_of("angle_rad") == "angle, rad"
    assert heading_of("jain") == "jain"

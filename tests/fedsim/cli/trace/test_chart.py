"""Shares over time as lines of text."""

import pytest

from fedsim.cli.trace.chart import chart


def test_a_chart_has_a_round_top_and_a_labelled_time_axis():
    assert chart([0.0, 0.1, 0.35, 0.4], 4 * 3600 * 10**6, signs=" #") == [
        "clients online",
        "   40 % |   #",
        "        |  ##",
        "        |  ##",
        "        |  ##",
        "    0 % | ###",
        "        +++++",
        "        0h1h2h3h4h",
    ]


@pytest.mark.parametrize(
    ("horizon_us", "labels"),
    [
        (7 * 86400 * 10**6, "0d 1d 2d 3d 4d 5d 6d 7d"),
        (86400 * 10**6, "0h 3h 6h 9h 12h 15h 18h 21h 24h"),
        (3600 * 10**6, "0min 15min 30min 45min 60min"),
        (20 * 10**6, "0s 5s 10s 15s 20s"),
        (365 * 86400 * 10**6, "0d 49d 98d 147d 196d 245d 294d 343d"),
    ],
)
def test_the_time_axis_of_a_chart_fits_its_span(horizon_us, labels):
    line, text = chart([0.5] * 64, horizon_us)[-2:]
    assert text.split() == labels.split()
    assert len(line) == 8 + 65
    assert line.count("+") == len(labels.split())

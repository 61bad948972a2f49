from __future__ import annotations

import pytest

from fedsim.common.units import duration_us, show_bytes, show_estimate, show_us, show_wall, size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1.5h", 5400),
        ("7d", 604800),
        ("1d12h", 129600),
        ("250ms", 0.25),
        ("2 m 30 s", 150),
        (3, 3),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert duration_us(text) == round(seconds * 1_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "5 parsecs",
        "1h of",
        "-3s",
        -3,
        float("nan"),
        10**400,
        "1e400d",
        "1e20",
        "1h30",
        "1 000 s",
        "1.5.2h",
    ],
)
def test_bad_durations_are_refused_with_the_text(text: str | float) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        duration_us(text)


@pytest.mark.parametrize(("text", "n"), [("20 MB", 20_000_000), ("4GiB", 4 * 2**30), (17, 17), ("17", 17)])
def test_sizes(text: str | float, n: int) -> None:
    assert size_bytes(text) == n


@pytest.mark.parametrize(
    "text", ["20 bananas", -1, "MB", "1 000 MB", "1e400 GB", 1e25, float("inf"), float("nan")]
)
def test_bad_sizes_are_refused_with_the_text(text: str | float) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        size_bytes(text)


def test_values_are_shown_with_units() -> None:
    assert show_us(1_250_000) == "1.250 s"
    assert show_us(3 * 86400 * 10**6 + 4 * 3600 * 10**6 + 5 * 60 * 10**6 + 6 * 10**6) == "3d 04:05:06"
    assert show_us(3600 * 10**6) == "01:00:00"
    assert show_bytes(512) == "512 B"
    assert show_bytes(3 * 2**30) == "3.0 GiB"
    assert show_bytes(5 * 2**41) == "10.0 TiB"


@pytest.mark.parametrize(
    ("seconds", "wall", "estimate"),
    [
        (0, "0 s", "0 s"),
        (0.6, "under 1 s", "under 1 s"),
        (12.4, "12 s", "about 12 s"),
        (300, "5 min", "about 5 min"),
        (9000, "2.5 h", "about 2.5 h"),
    ],
)
def test_no_time_that_passes_is_shown_as_none(seconds: float, wall: str, estimate: str) -> None:
    assert (show_wall(seconds), show_estimate(seconds)) == (wall, estimate)

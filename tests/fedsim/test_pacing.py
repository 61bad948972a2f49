from __future__ import annotations

import pytest

from fedsim.pacing import Pacing, deadline, fedbuff, overselect, sync


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"concurrency": 0, "buffer": 1}, "at least 1"),
        ({"concurrency": 3, "buffer": 0}, "at least 1"),
        ({"concurrency": 3, "buffer": 4}, "would never fill"),
        ({"concurrency": 3, "buffer": 3, "deadline_us": 0}, "must be positive"),
        ({"concurrency": 3, "buffer": 3, "refill": "arrival"}, 'late must be "keep"'),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pacing(**arguments)  # type: ignore[arg-type]


def test_presets_are_values() -> None:
    assert sync(5) == overselect(5, 0)
    assert deadline(5, 10).deadline_us == 10
    assert sync(5).cancels
    assert not fedbuff(5, 2).cancels

"""The bytes that a digest covers; tests/fedsim/records/test_recorder.py has the digests of written tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fedsim.records.digest import _value_bytes


@pytest.mark.parametrize(
    "words", [[], ["a"], ["a"] * 20, ["a", "bc"] * 10, ["bc"] * 15 + ["a"] * 9 + ["bc"]], ids=len
)
def test_a_digest_covers_each_word_also_of_runs_of_equal_words(words: list[str]) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    column = pa.chunked_array([pa.array(words[:7], pa.string()), pa.array(words[7:], pa.string())])
    assert _value_bytes(column.cast(kind), kind) == "".join(word + "\0" for word in words).encode()

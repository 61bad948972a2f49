from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedsim.common.arrow_columns import array, coded, column, flags, numbers, texts


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_numbers_equal_those_of_arrow_and_survive_a_round_trip(dtype: Any, n: int) -> None:
    values = np.arange(2 * n, dtype=dtype)[::2]
    column = numbers(values)
    column.validate(full=True)
    assert column.equals(pa.array(values))
    found = array(column)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


def test_a_slice_of_a_column_and_a_chunked_column_are_read() -> None:
    column = pa.chunked_array(
        [numbers(np.arange(4)), numbers(np.zeros(0, np.int64)), numbers(np.arange(9, 12))]
    )
    assert array(column).tolist() == [0, 1, 2, 3, 9, 10, 11]
    assert array(column.slice(2, 3)).tolist() == [2, 3, 9]
    assert array(column.slice(1, 2)).tolist() == [1, 2]
    assert array(numbers(np.arange(5)).slice(3)).tolist() == [3, 4]
    assert array(pa.chunked_array([], pa.int32())).dtype == np.int32


def test_numbers_in_one_chunk_are_not_copied() -> None:
    values = np.arange(5)
    assert np.shares_memory(array(numbers(values)), values)


def test_texts_equal_those_of_arrow() -> None:
    for words in (["online", "", "Zürich 🏔"], []):
        column = texts(words)
        column.validate(full=True)
        assert column.equals(pa.array(words, pa.string()))


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 70])
def test_flags_equal_those_of_arrow(n: int) -> None:
    values = np.arange(n) % 3 == 0
    column = flags(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.bool_()))


def test_a_dictionary_holds_only_words_that_occur() -> None:
    column = coded(np.array([2, 0, 2, 2]), ("lost", "late", "stale"))
    column.validate(full=True)
    assert column.to_pylist() == ["stale", "lost", "stale", "stale"]
    assert column.dictionary.to_pylist() == ["lost", "stale"]
    assert coded(np.zeros(0, dtype=np.int64), ("lost",)).to_pylist() == []


WORD = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["full", "drained", "full"], WORD),
        ([], WORD),
        (coded(np.array([1, 0]), ("a", "b")), WORD),
        ([3, -1], pa.int32()),
        (np.array([2.0, 7.0]), pa.int64()),
        ([1, float("nan")], pa.float64()),
        (np.arange(6, dtype=np.float32)[::2], pa.float64()),
        ([True, False, True], pa.bool_()),
    ],
)
def test_a_column_of_a_table_equals_that_of_arrow(values: Any, kind: pa.DataType) -> None:
    made = column(values, kind)
    made.validate(full=True)
    expected = values if isinstance(values, pa.Array) else pa.array(values, from_pandas=False).cast(kind)
    assert made.type == kind
    assert str(made.to_pylist()) == str(expected.to_pylist())


def test_a_column_does_not_change_with_its_values() -> None:
    values = np.arange(3)
    made = column(values, pa.int64())
    values[:] = 9
    assert made.to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("values", [["a", "b"], [True, False], [1.5, None], [1, None]])
def test_other_columns_are_read_as_arrow_reads_them(values: list[Any]) -> None:
    column = pa.chunked_array([pa.array(values)])
    np.testing.assert_array_equal(array(column), column.to_numpy())


def test_a_world_is_made_and_opened_without_pandas() -> None:
    code = (
        "import sys; from fedsim.worlds.scenario import make_trace; from fedsim.worlds.world import World;"
        "World(make_trace('diurnal', {}, clients=3, horizon_us=10**10, seed=1));"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

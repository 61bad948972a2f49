from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedsim.columns import array, numbers, texts


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_numbers_are_those_of_arrow_and_come_back(dtype: Any, n: int) -> None:
    values = np.arange(2 * n, dtype=dtype)[::2]
    column = numbers(values)
    column.validate(full=True)
    assert column.equals(pa.array(values))
    found = array(column)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


def test_a_part_of_a_column_and_one_in_pieces_are_read() -> None:
    column = pa.chunked_array(
        [numbers(np.arange(4)), numbers(np.zeros(0, np.int64)), numbers(np.arange(9, 12))]
    )
    assert array(column).tolist() == [0, 1, 2, 3, 9, 10, 11]
    assert array(column.slice(2, 3)).tolist() == [2, 3, 9]
    assert array(column.slice(1, 2)).tolist() == [1, 2]
    assert array(numbers(np.arange(5)).slice(3)).tolist() == [3, 4]
    assert array(pa.chunked_array([], pa.int32())).dtype == np.int32


def test_numbers_in_one_piece_are_not_copied() -> None:
    values = np.arange(5)
    assert np.shares_memory(array(numbers(values)), values)


def test_texts_are_those_of_arrow() -> None:
    for words in (["online", "", "Zürich 🏔"], []):
        column = texts(words)
        column.validate(full=True)
        assert column.equals(pa.array(words, pa.string()))


@pytest.mark.parametrize("values", [["a", "b"], [True, False], [1.5, None], [1, None]])
def test_other_columns_are_read_as_arrow_reads_them(values: list[Any]) -> None:
    column = pa.chunked_array([pa.array(values)])
    np.testing.assert_array_equal(array(column), column.to_numpy())


def test_a_world_is_made_and_opened_without_pandas() -> None:
    code = (
        "import sys; from fedsim.scenario import make_trace; from fedsim.world import World;"
        "World(make_trace('diurnal', {}, clients=3, horizon_us=10**10, seed=1));"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

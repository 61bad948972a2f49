"""Conversions between Arrow columns and NumPy arrays, without copies where Arrow needs none.

Arrow's own conversions import pandas if it is installed, which is slow; these do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(values: NDArray[Any]) -> pa.Array:
    """Return a column of numbers on the memory of `values`."""
    plain = np.ascontiguousarray(values)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(plain.dtype), len(plain), [None, pa.py_buffer(plain.data)]
    )


def texts(words: Sequence[str]) -> pa.StringArray:
    """Return a column of texts."""
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(ends.data), pa.py_buffer(b"".join(encoded)))


def flags(values: NDArray[np.bool_]) -> pa.BooleanArray:
    """Return a column of booleans."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits.data)])


def coded(codes: NDArray[Any], words: Sequence[str]) -> pa.DictionaryArray:
    """Return a dictionary column of the words with these codes; its dictionary has only words that occur."""
    occurs = np.bincount(codes, minlength=len(words)) > 0
    place = np.cumsum(occurs, dtype=np.int8) - np.int8(1)
    occurring = [word for word, flag in zip(words, occurs.tolist(), strict=True) if flag]
    return pa.DictionaryArray.from_arrays(numbers(place[codes]), texts(occurring))


def column(values: Any, kind: pa.DataType) -> pa.Array:
    """Return a column of type `kind`: numbers, booleans or a dictionary of words. Arrow columns are returned as is."""
    if isinstance(values, pa.Array):
        return values
    if pa.types.is_dictionary(kind):
        code_of: dict[str, int] = {}
        codes = [code_of.setdefault(word, len(code_of)) for word in values]
        return coded(np.array(codes, dtype=np.int64), list(code_of))
    plain = np.asarray(values).astype(kind.to_pandas_dtype())
    return flags(plain) if pa.types.is_boolean(kind) else numbers(plain)


def array(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """Return the values of a column. Numbers in a single chunk are not copied, and are read-only."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if column.null_count or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    dtype = column.type.to_pandas_dtype()
    parts = [
        np.frombuffer(chunk.buffers()[1], dtype)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in chunks
        if len(chunk)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])

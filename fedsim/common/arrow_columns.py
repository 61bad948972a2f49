"""Arrow columns of NumPy arrays, and back.

Arrow's own conversions import pandas where it is installed, which takes longer than to convert the largest world; these
do not, and copy nothing that Arrow would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(values: NDArray[Any]) -> pa.Array:
    """Return a column of numbers."""
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
    """Return a column of truth values."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits.data)])


def coded(codes: NDArray[Any], words: Sequence[str]) -> pa.DictionaryArray:
    """Return the words that codes mean, in a dictionary of those that occur."""
    there = np.bincount(codes, minlength=len(words)) > 0
    place = np.cumsum(there, dtype=np.int8) - np.int8(1)
    found = [word for word, occurs in zip(words, there.tolist(), strict=True) if occurs]
    return pa.DictionaryArray.from_arrays(numbers(place[codes]), texts(found))


def column(values: Any, kind: pa.DataType) -> pa.Array:
    """Return a column of numbers, truth values or words in a dictionary; one that is a column already as it is."""
    if isinstance(values, pa.Array):
        return values
    if pa.types.is_dictionary(kind):
        place: dict[str, int] = {}
        codes = [place.setdefault(word, len(place)) for word in values]
        return coded(np.array(codes, dtype=np.int64), list(place))
    plain = np.asarray(values).astype(kind.to_pandas_dtype())
    return flags(plain) if pa.types.is_boolean(kind) else numbers(plain)


def array(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """Return what a column holds; numbers that lie in one piece are not copied, and cannot be written to."""
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

"""The digest of a run: equal digests mean equal tables and an equal model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fedsim.common.arrow_columns import array
from fedsim.common.errors import RunError
from fedsim.common.files import read_parquet
from fedsim.records.schemas import TABLES

if TYPE_CHECKING:
    import torch


def digest(folder: Path, params: Mapping[str, torch.Tensor]) -> str:
    """Return the sha256 of the written tables in the order of `TABLES`, and of the final model.

    Of each table it covers the name, the number of rows and, in the order of the schema, the name and the values of
    each column: words as UTF-8 with a zero byte after each, numbers as little-endian bytes. Of the model it covers the
    name and the values of each tensor. It does not depend on the layout of the files.
    """
    total = hashlib.sha256()
    for name, schema in TABLES.items():
        if not (folder / f"{name}.parquet").exists():
            continue
        table = read_parquet(folder / f"{name}.parquet", RunError)
        total.update(f"{name}:{len(table)}:".encode())
        for field in schema:
            total.update(f"{field.name}:".encode())
            total.update(_value_bytes(table[field.name], field.type))
    for name in sorted(params):
        total.update(f"{name}:".encode())
        total.update(params[name].contiguous().numpy().tobytes())
    return total.hexdigest()


def _value_bytes(values: pa.ChunkedArray, kind: pa.DataType) -> bytes:
    if pa.types.is_dictionary(kind):
        whole = values.cast(kind).unify_dictionaries().combine_chunks()
        words = np.array([word.encode() + b"\0" for word in whole.dictionary.to_pylist()], dtype=object)
        codes = array(whole.indices)
        ends = np.append(np.flatnonzero(codes[1:] != codes[:-1]) + 1, len(codes))
        if len(ends) * 4 > len(codes):
            return b"".join(words[codes])
        return b"".join(words[codes[ends - 1]] * np.diff(ends, prepend=0))
    plain = array(values)
    return np.ascontiguousarray(plain, dtype=plain.dtype.newbyteorder("<")).tobytes()

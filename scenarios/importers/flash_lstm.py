"""FLASH's `regression/<device>/lstm.json`: seconds to train one LSTM layer on one batch, measured on three phones.

An object with `X`, a list of `[input size / 1000, output size / 1000, batch size / 50, sequence length / 10]`, and
`Y`, a list of `[seconds]` in the same order: a full grid of 20 x 20 x 10 x 5 points. Each file is one client, named
by its folder. The options choose a point of the grid. Source: PKU-Chengxu/FLASH,
`models/utils/device_util/regression`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fedsim.common.errors import TraceError
from fedsim.scenarios.importers.reading.files import Problems, json_of, member, of_type, shown, speed_table
from fedsim.worlds.importer import Imported, Importer, Source

_SCALES = np.array([1000.0, 1000.0, 50.0, 10.0])
_NAMES = ("in_size", "out_size", "batch_size", "seq_len")


def flash_lstm(
    *, in_size: int = 500, out_size: int = 500, batch_size: int = 10, seq_len: int = 10
) -> Importer:
    """Compute speeds of FLASH's three phones for one LSTM layer, at one point of the grid.

    Args:
        in_size: input size of the layer, from 50 to 1000 in steps of 50.
        out_size: output size of the layer, from 50 to 1000 in steps of 50.
        batch_size: samples in a batch, from 5 to 50 in steps of 5; the time for a batch is divided by it.
        seq_len: length of a sequence: 2, 4, 6, 8 or 10.
    """
    point = np.array([in_size, out_size, batch_size, seq_len], np.float64)
    return Importer(
        recognises=_recognises,
        read=partial(_read, point=point, batch_size=batch_size),
        licence="BSD-2-Clause (PKU-Chengxu/FLASH)",
        units=f"compute: seconds of one LSTM layer for a batch / {batch_size} samples",
    )


def _read(sources: Sequence[Source], point: Any, batch_size: int) -> Imported:
    problems, seconds, medians, points = Problems(), [], [], 0
    for source in sources:
        with problems.caught():
            grid, measured = _measurements(source)
            seconds.append(_at(point, grid, measured, source))
            medians.append(float(np.median(measured)))
            points += len(measured)
    problems.check()
    ids = [source.path.parent.name or source.path.stem for source in sources]
    speeds = {"compute": [s / batch_size for s in seconds]}
    facts: dict[str, Sequence[Any]] = {"model": ids, "batch_s": seconds, "median_batch_s": medians}
    return Imported(speed_table(ids, speeds, facts), {"points": points})


def _recognises(source: Source) -> bool:
    head = source.data[:256].translate(None, b" \r\n\t")
    return head.startswith((b'{"X":[[', b'{"Y":[['))


def _measurements(source: Source) -> tuple[Any, Any]:
    """Return [n, 4] points in sizes and [n] seconds. Raises TraceError."""
    content = json_of(source)
    grid, seconds = (_numbers(member(content, key, source.name), f"{source.name}, {key!r}") for key in "XY")
    if grid.ndim != 2 or grid.shape[1:] != (4,) or seconds.shape != (len(grid), 1) or not len(grid):
        raise TraceError(
            f"{source.name}: expected 'X' of shape [n, 4] and 'Y' of shape [n, 1], found {list(grid.shape)} and"
            f" {list(seconds.shape)}"
        )
    wrong = np.flatnonzero(~((seconds[:, 0] > 1e-9) & (seconds[:, 0] < 1e9)))
    if len(wrong):
        raise TraceError(
            f"{source.name}, 'Y'[{wrong[0]}]: expected seconds above 0, found {seconds[wrong[0], 0]:g}"
            f" ({len(wrong)} such values)"
        )
    return grid * _SCALES, seconds[:, 0]


def _numbers(value: Any, place: str) -> Any:
    of_type(value, list, place)
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        array = np.array(None)
    if array.dtype.kind not in "if" or not np.isfinite(array).all():
        raise TraceError(
            f"{place}: expected rows of finite numbers, all of equal length, found {shown(value)}"
        )
    return array.astype(np.float64)


def _at(point: Any, grid: Any, seconds: Any, source: Source) -> float:
    at = np.flatnonzero((np.abs(grid - point) < 1e-6).all(axis=1))
    if len(at) != 1:
        wanted = ", ".join(f"{name}={value:g}" for name, value in zip(_NAMES, point, strict=True))
        near = grid[np.abs(grid / _SCALES - point / _SCALES).sum(axis=1).argmin()]
        raise TraceError(
            f"{source.name}: expected one measurement at {wanted}, found {len(at)}; the nearest point is"
            f" {', '.join(f'{v:g}' for v in near)}"
        )
    return float(seconds[at[0]])

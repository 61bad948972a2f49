"""The notebooks run from nothing to the figure, and say what is written in them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip(
    "nbformat", reason="notebooks need nbclient and ipykernel: pip install -e '.[dev]'"
)

from golden_digests import difference  # noqa: E402
from notebooks import NOTEBOOKS, executed, texts  # noqa: E402

pytestmark = pytest.mark.xdist_group("notebooks")  # one process runs each notebook once
MOST_BYTES = 300_000

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


@cache
def again(path: Path) -> Any:
    return executed(path)


def written(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_is_one() -> None:
    assert "absence" in [path.stem for path in NOTEBOOKS]


@pytest.mark.slow
@each
def test_every_cell_runs_and_the_figures_are_drawn(path: Path) -> None:
    cells = [cell for cell in again(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"], "a cell warned"
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3


@pytest.mark.slow
def test_the_finding_is_what_the_numbers_say() -> None:
    """The sign of each sentence is that of its interval, which holds the difference."""
    found = texts(again(next(path for path in NOTEBOOKS if path.stem == "absence")))[-1]
    said = re.findall(
        r"(clearly|not clearly) (up|down) by ([\d.]+) (?:points|rad) \(([+-][\d.]+) to ([+-][\d.]+)\)", found
    )
    assert len(said) == 8
    for clear, way, size, low, high in said:
        mean = float(size) if way == "up" else -float(size)
        assert float(low) <= mean <= float(high)
        assert (clear == "clearly") == (float(low) * float(high) > 0)


@pytest.mark.slow
@each
def test_a_notebook_holds_what_it_prints(path: Path) -> None:
    if another := difference():
        pytest.skip(another)
    expected = texts(written(path))
    assert texts(again(path)) == expected, "if this is meant: python tests/helpers/notebooks.py --update"


@each
def test_a_notebook_is_small_and_was_run_from_the_top(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    notebook = written(path)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert not re.search(r"/(tmp|home|work|root)/", path.read_text(encoding="utf-8"))

"""A study's last evaluations in one file: as in the run folders, without them, and damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedsim import analysis
from fedsim.analysis.opening.results import evaluation_of
from fedsim.common.errors import FolderError
from fedsim.records.study_results import LastEvaluation, read_results, write_results

LINE = LastEvaluation("runs/a/seed-1", "ab12", "test", 3, 4_000_000, 900, "10 0 4 5", "7 0 nan 5")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_results(tmp_path, [LINE])
    assert read_results(tmp_path) == {"runs/a/seed-1": [LINE]}
    assert read_results(tmp_path / "elsewhere") == {}


def test_an_evaluation_has_its_clients() -> None:
    found = evaluation_of(LINE)
    assert (found.step, found.time_us, found.split) == (3, 4_000_000, "test")
    assert found.client.tolist() == [0, 1, 2, 3]
    assert found.n.tolist() == [10, 0, 4, 5]
    np.testing.assert_array_equal(found.accuracy, [0.7, np.nan, np.nan, 1.0])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace("digest", "sha"), r"expected the columns cell,digest,.*, found cell,sha,"),
        (lambda text: "", r"expected the columns cell,digest,.*, found none"),
        (
            lambda text: text.replace("10 0 4 5", "10 0 4"),
            r"line 2: expected as many numbers in correct as in n",
        ),
        (lambda text: text.replace(",7 0", ",11 0"), r"line 2: expected correct from 0 to n for each client"),
        (lambda text: text.replace("10 0 4 5", "10 -1 4 5"), r"line 2: expected correct from 0 to n"),
        (
            lambda text: text.replace(",900,", ",many,"),
            r"line 2: bytes: expected a whole number, found 'many'",
        ),
        (lambda text: text.replace(",7 0", ",7 -1"), r"line 2: expected correct from 0 to n for each client"),
        (lambda text: text.replace(",7 0", ",7 a"), r"line 2: correct: expected numbers .*, found '7 a"),
        (lambda text: text + text.splitlines()[1], r"line 3: the same cell, split and evaluation as line 2"),
        (lambda text: text[:40], r"expected the columns"),
        (lambda text: text[:90], r"line 2: expected 8 values, found 7"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[str], str], message: str) -> None:
    write_results(tmp_path, [LINE])
    file = tmp_path / "results.csv"
    file.write_text(damage(file.read_text()))
    with pytest.raises(FolderError, match=rf"results\.csv: {message}"):
        read_results(tmp_path)


def test_a_study_cannot_be_opened_with_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"format": 1, "name": "x", "axes": {}, "seeds": [1], "cells": []}')
    assert not analysis.open_study(tmp_path).cells
    (tmp_path / "results.csv").write_text("cell\n")
    with pytest.raises(FolderError, match=r"results\.csv: expected the columns"):
        analysis.open_study(tmp_path)

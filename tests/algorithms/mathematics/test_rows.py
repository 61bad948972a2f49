"""Weights by row and memory by client, by small cases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedsim.algorithms.mathematics.rows import grown, latest, over_present, room, shares


def some(**columns: Any) -> Any:
    return SimpleNamespace(**columns)


def test_shares_are_amounts_over_their_sum() -> None:
    assert shares(np.array([0.0, 2.0, 6.0])) == pytest.approx([0, 0.25, 0.75], abs=1e-15)
    assert shares(np.array([0.25])).tolist() == [1.0]


def test_shares_of_amounts_whose_sum_is_no_number_are_right_too() -> None:
    assert shares(np.array([1e308, 1e308, 0.0])).tolist() == [0.5, 0.5, 0.0]
    assert shares(np.array([1e-320, 3e-320])) == pytest.approx([0.25, 0.75], rel=1e-3)


def test_without_any_amount_everybody_has_the_same_share() -> None:
    assert shares(np.zeros(4)).tolist() == [0.25] * 4


def test_weights_of_present_rows_leave_remembered_ones_out() -> None:
    assert over_present(some(n=4, m=2), np.array([0.3, 0.7])).tolist() == [0.3, 0.7, 0.0, 0.0]


def test_an_array_grows_at_its_end_and_never_shrinks() -> None:
    assert grown(np.array([1, 2]), 4, -1).tolist() == [1, 2, -1, -1]
    assert grown(np.array([1, 2]), 4, -1).dtype == np.int64
    assert grown(np.array([1.5, 2.5]), 1, 0.0).tolist() == [1.5, 2.5]
    assert grown(np.ones((1, 2)), 2, 0.0).tolist() == [[1, 1], [0, 0]]


def test_there_is_room_for_every_client() -> None:
    assert room(some(n_clients=3, clients=np.array([5, 0]))) == 6
    assert room(some(n_clients=9, clients=np.array([5, 0]))) == 9


def test_the_latest_row_of_each_client_in_order_of_client() -> None:
    assert latest(np.array([4, 2, 4, 7, 2])).tolist() == [4, 2, 3]

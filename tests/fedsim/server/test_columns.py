"""Rows combined column by column: against NumPy, and the same bits whatever the tiles, the threads and the order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedsim.common.threads import at_most
from fedsim.server import columns as module
from fedsim.server.columns import Chosen, combine_columns
from fedsim.server.rule import Columns
from fedsim.server.rule_factory import build_rule
from pretend_gpu import pretended

P = 1000


def of(rule: str, **options: Any) -> Columns:
    columns = build_rule(rule, options).columns
    assert columns is not None
    return columns


MEDIAN, TRIMMED = of("coordinate_median"), of("trimmed_mean", beta=0.2)


def noise(n: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Draw rows with many equal numbers, some of them zeros of either sign."""
    rows = torch.randn(n, P, generator=torch.Generator().manual_seed(seed))
    rows[rows.abs() < 0.3] = 0.0
    return (rows * torch.randn(n, P, generator=torch.Generator().manual_seed(seed + 1)).sign()).to(dtype)


def combined(columns: Columns, *chosen: tuple[torch.Tensor, Any], dtype: torch.dtype = torch.float32) -> Any:
    """Combine rows with factors [n]; what was in the result before counts for nothing."""
    out = torch.full((P,), torch.nan, dtype=dtype, device=chosen[0][0].device)
    parts = [Chosen.of(rows, np.asarray(factors)) for rows, factors in chosen]
    return combine_columns(parts, columns, out).cpu()


@pytest.mark.parametrize("n", [1, 2, 5, 8, 33])
def test_the_median_of_all_rows_is_that_of_numpy(n: int) -> None:
    rows = noise(n)
    expected = np.median(rows.double().numpy(), axis=0).astype(np.float32)
    np.testing.assert_array_equal(combined(MEDIAN, (rows, np.ones(n))).numpy(), expected)


@pytest.mark.parametrize("n", [1, 4, 5, 10, 33])
def test_the_trimmed_mean_of_all_rows_is_that_of_sorted_rows(n: int) -> None:
    rows = noise(n, torch.float64)
    b = n // 5
    expected = np.sort(rows.numpy(), axis=0)[b : n - b].mean(axis=0)
    found = combined(TRIMMED, (rows, np.ones(n)), dtype=torch.float64)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-15)


def test_rows_of_factor_0_are_left_out_and_others_are_multiplied() -> None:
    rows, factors = noise(6, torch.float64), np.array([0.5, 0.0, 1.0, -2.0, 0.0, 3.0])
    chosen = rows.numpy()[factors != 0] * factors[factors != 0, None]
    found = combined(MEDIAN, (rows, factors), dtype=torch.float64)
    np.testing.assert_allclose(found.numpy(), np.median(chosen, axis=0), rtol=1e-12, atol=1e-15)
    together = combined(MEDIAN, (rows, [0, 1, 1, 1, 0, 0]), dtype=torch.float64)
    np.testing.assert_allclose(together.numpy(), np.median(rows.numpy()[1:4], axis=0), atol=1e-15)


def test_rows_of_several_precisions_are_combined_as_they_are() -> None:
    fresh, kept = noise(3), noise(9, torch.bfloat16, seed=5)
    factors = np.array([1.0, 0, 1, 1, 0, 1, 1, 1, 1])
    everything = torch.cat([fresh, kept[torch.from_numpy(factors) != 0].float()])
    expected = combined(MEDIAN, (everything, np.ones(len(everything))))
    assert torch.equal(combined(MEDIAN, (fresh, np.ones(3)), (kept, factors)), expected)


def test_without_rows_nothing_moves() -> None:
    assert not combined(MEDIAN, (noise(3), np.zeros(3))).any()
    one = noise(1)
    assert torch.equal(combined(MEDIAN, (noise(3), np.zeros(3)), (one, [1.0])), one[0])


@pytest.mark.parametrize("columns", [MEDIAN, TRIMMED], ids=["median", "trimmed"])
@pytest.mark.parametrize("n", [10, 33])
def test_the_width_of_a_tile_changes_no_bit(
    columns: Columns, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, factors = noise(n), np.linspace(0.1, 1.0, n)
    expected = combined(columns, (rows, factors))
    monkeypatch.setattr(module, "_LEAST", 1)
    for width in (1, 2, 7, 999, 10_000):
        monkeypatch.setattr(module, "_NUMBERS", width * n)
        found = combined(columns, (rows, factors))
        assert found.numpy().tobytes() == expected.numpy().tobytes(), width


@pytest.mark.parametrize("columns", [MEDIAN, TRIMMED], ids=["median", "trimmed"])
@pytest.mark.parametrize("n", [10, 33])
def test_the_order_of_the_rows_changes_no_bit(columns: Columns, n: int) -> None:
    rows, factors = noise(n), np.linspace(0.1, 1.0, n)
    expected = combined(columns, (rows, factors)).numpy().tobytes()
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(n)
        found = combined(columns, (rows[order], factors[order]))
        assert found.numpy().tobytes() == expected


def test_both_zeros_are_the_same_number() -> None:
    zeros = torch.tensor([[0.0], [-0.0], [-0.0]]).expand(3, P)
    assert not combined(MEDIAN, (zeros, np.ones(3))).signbit().any()


@pytest.mark.parametrize("columns", [MEDIAN, TRIMMED], ids=["median", "trimmed"])
def test_threads_change_no_bit(columns: Columns, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = noise(10)
    with at_most(1):
        expected = combined(columns, (rows, np.ones(10)))
    monkeypatch.setattr(module, "_WORTH", 1)
    monkeypatch.setattr(module, "_NUMBERS", 170)
    with at_most(3):
        assert torch.equal(combined(columns, (rows, np.ones(10))), expected)


@pytest.mark.parametrize("columns", [MEDIAN, TRIMMED], ids=["median", "trimmed"])
@pytest.mark.parametrize("kept_on_gpu", [True, False])
def test_rows_on_a_gpu_give_the_bits_of_the_processor(
    columns: Columns, kept_on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, kept = noise(4), noise(6, torch.bfloat16, seed=3)
    chosen = [(fresh, np.ones(4)), (kept, np.array([1.0, 0, 1, 0.5, 0, 1]))]
    expected = combined(columns, *chosen)
    monkeypatch.setattr(module, "_NUMBERS_ON_GPU", 9 * 300)
    with pretended(monkeypatch):
        there = [(rows.cuda() if rows is fresh or kept_on_gpu else rows, f) for rows, f in chosen]
        assert torch.equal(combined(columns, *there), expected)


class Largest(TorchDispatchMode):
    """Notes the numbers of the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if isinstance(out, torch.Tensor) and not any(
            isinstance(a, torch.Tensor) and out.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()
            for a in args
        ):
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.parametrize("factors", [np.ones(50), np.arange(50) % 3], ids=["all rows", "some rows"])
def test_no_more_than_a_tile_is_copied(factors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, out = noise(50), torch.empty(P)
    monkeypatch.setattr(module, "_NUMBERS", 2000)
    with at_most(1), Largest() as largest:
        combine_columns([Chosen.of(rows, factors)], TRIMMED, out)
    assert 1000 < largest.numbers <= 2000

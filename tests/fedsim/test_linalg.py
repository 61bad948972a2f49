"""The two operations on rows against NumPy in float64, across tile boundaries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsim import linalg
from fedsim.linalg import TILE, add_weighted, block_products, equal_slices, mixed_products, weighted_sum
from fedsim.threads import at_most

P = 2 * TILE + 37
BLOCKS = [(0, TILE + 5), (TILE + 5, TILE + 6), (TILE + 6, P)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_block_products_are_inner_products(dtype: torch.dtype, tolerance: float) -> None:
    rows = torch.randn(7, P, generator=torch.Generator().manual_seed(0), dtype=dtype)
    found = block_products(rows[:2], rows, BLOCKS)
    exact = rows.double().numpy()
    for block, (a, b) in enumerate(BLOCKS):
        scale = np.linalg.norm(exact[:, a:b], axis=1).max() ** 2
        np.testing.assert_allclose(
            found[block], exact[:2, a:b] @ exact[:, a:b].T, atol=tolerance * scale, rtol=0
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 5), (3, 3), (10, 10), (24, 60), (25, 25), (25, 40)])
def test_few_rows_and_many_give_the_same_products(k: int, n: int, dtype: torch.dtype) -> None:
    """Each way to multiply, with both sides the same rows, copies, and neighbours in one tensor."""
    exact = torch.randn(n, P, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
    rows = exact.to(dtype)
    exact = rows.double()
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-13, torch.bfloat16: 1e-6}[dtype] * P
    expected = np.stack([(exact[:k, a:b] @ exact[:, a:b].T).numpy() for a, b in BLOCKS])
    for left in (rows[:k], rows[:k].clone()):
        np.testing.assert_allclose(block_products(left, rows, BLOCKS), expected, atol=tolerance, rtol=0)
        again = block_products(left, rows, BLOCKS)
        np.testing.assert_array_equal(block_products(left, rows, BLOCKS), again)


@pytest.mark.parametrize("k", [1, 23, 24])
def test_products_of_up_to_24_rows_are_added_up_in_float64_every_512_columns(k: int) -> None:
    """Sums of so many of these whole numbers fit into float32, those of a tile's do not."""
    draws = np.random.default_rng(k)
    whole = 2 * draws.integers(70, 90, (40, P)) + 1
    rows = torch.from_numpy(whole).float()
    found = block_products(rows[:k].clone(), rows, [(0, P)])[0]
    np.testing.assert_array_equal(found, whole[:k] @ whole.T)


@pytest.mark.parametrize("sizes", [(3,), (2, 0, 9), (20, 10)])
def test_rows_of_several_precisions_are_multiplied_as_they_are(sizes: tuple[int, ...]) -> None:
    """In float32 and better, whatever the precision of the rows: across the edges of tiles, and of groups of rows."""
    noise = torch.Generator().manual_seed(0)
    left = [torch.randn(k, P, generator=noise) for k in sizes]
    left[-1] = left[-1].bfloat16()
    right = torch.randn(300, P, generator=noise).bfloat16()
    exact = torch.cat([rows.double() for rows in left])
    found = mixed_products(left, right, BLOCKS)
    for (a, b), products in zip(BLOCKS, found, strict=True):
        expected = (exact[:, a:b] @ right[:, a:b].double().T).numpy()
        size = 1e-6 if b - a > TILE else 1e-13  # narrow blocks in float64
        np.testing.assert_allclose(products, expected, atol=size * (b - a), rtol=0)


def test_float32_products_keep_the_sign_of_a_near_cancellation() -> None:
    """Two long rows whose true inner product is small beside its terms."""
    rows = torch.randn(2, P, generator=torch.Generator().manual_seed(1))
    rows[1] -= (
        rows[0] * float(rows[0].double() @ rows[1].double()) / float(rows[0].double() @ rows[0].double())
    )
    rows[1] -= 1e-5 * rows[0]
    exact = float(rows[0].double() @ rows[1].double())
    found = float(block_products(rows[:1], rows[1:], [(0, P)])[0, 0, 0])
    assert np.sign(found) == np.sign(exact)
    assert found == pytest.approx(exact, rel=0.05)


def test_weighted_sum_by_block() -> None:
    rows = torch.randn(5, P, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights = np.arange(15, dtype=float).reshape(3, 5) - 7
    found = weighted_sum(rows, weights, BLOCKS)
    for w, (a, b) in zip(weights, BLOCKS, strict=True):
        torch.testing.assert_close(found[a:b], torch.from_numpy(w) @ rows[:, a:b])
    torch.testing.assert_close(weighted_sum(rows, weights[0], BLOCKS), torch.from_numpy(weights[0]) @ rows)


def test_a_weighted_sum_of_rounded_rows_is_added_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.Generator().manual_seed(3)
    rows = torch.randn(9, P, generator=noise).bfloat16()
    weights = np.arange(27, dtype=float).reshape(3, 9) % 4
    start = torch.randn(P, generator=noise, dtype=torch.float64)
    for most in (1, 3 * P, 100 * P):
        monkeypatch.setattr(linalg, "_WIDENED", most)
        monkeypatch.setattr(linalg, "_LONG", TILE)
        out = start.clone()
        add_weighted(out, rows, weights, BLOCKS)
        for w, (a, b) in zip(weights, BLOCKS, strict=True):
            torch.testing.assert_close(out[a:b], start[a:b] + torch.from_numpy(w) @ rows[:, a:b].double())


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_rows_on_a_gpu_give_the_same_as_on_the_processor(place: str) -> None:
    noise = torch.Generator().manual_seed(4)
    fresh = torch.randn(5, P, generator=noise)
    kept = torch.randn(40, P, generator=noise).bfloat16()
    weights = np.linspace(-1, 1, 120).reshape(3, 40)
    found = mixed_products([fresh.cuda(), kept[:2].cuda()], kept.to(place), BLOCKS)
    expected = mixed_products([fresh, kept[:2]], kept, BLOCKS)
    np.testing.assert_allclose(found, expected, atol=1e-6 * P, rtol=0)
    out, summed = torch.zeros(P), torch.zeros(P).cuda()
    add_weighted(out, kept, weights, BLOCKS)
    add_weighted(summed, kept.to(place), weights, BLOCKS)
    torch.testing.assert_close(summed.cpu(), out, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("k", "n"), [(10, 110), (30, 300), (30, 30), (60, 70)])
def test_the_number_of_threads_changes_no_bit(k: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(n, P, generator=torch.Generator().manual_seed(k))
    left = rows if k == n else rows[:k].clone()
    with at_most(1):
        expected = block_products(left, rows, BLOCKS)
    monkeypatch.setattr(linalg, "WORTH", 0)
    for threads in (1, 2, 5):
        with at_most(threads), torch.inference_mode():
            np.testing.assert_array_equal(block_products(left, rows, BLOCKS), expected)


@pytest.mark.parametrize(
    ("columns", "count", "expected"),
    [
        (6, 2, [(0, 3), (3, 6)]),
        (7, 3, [(0, 2), (2, 4), (4, 7)]),
        (3, 3, [(0, 1), (1, 2), (2, 3)]),
        (5, 1, [(0, 5)]),
    ],
)
def test_slices_are_equal_but_for_one_column(
    columns: int, count: int, expected: list[tuple[int, int]]
) -> None:
    assert equal_slices(columns, count) == expected


def test_rows_are_gathered_some_columns_at_a_time() -> None:
    columns, draws = 40_000, np.random.default_rng(4)
    for n, used in [(80, 30), (90, 40), (80, 28)]:
        rows = torch.randn(n, columns, generator=torch.Generator().manual_seed(n))
        weights = np.zeros(n)
        weights[draws.permutation(n)[:used]] = draws.uniform(0.1, 1, used)
        with torch.inference_mode(n == 80):
            found = weighted_sum(rows, weights, [(0, columns)])
        expected = torch.from_numpy(weights) @ rows.double()
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)

"""The two operations on rows against NumPy in float64, across tile boundaries."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedsim.common.threads import at_most
from fedsim.server import gram as linalg
from fedsim.server.gram import TILE, add_weighted, block_products, equal_slices, mixed_products, weighted_sum
from pretend_gpu import pretended

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


@pytest.mark.parametrize(("k", "width"), [(1, 512), (24, 512), (25, TILE)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strips_of_columns_are_added_up_in_float64(k: int, width: int, dtype: torch.dtype) -> None:
    """The terms of two columns on both sides of an edge have a sum that float32 does not hold."""
    rows = torch.zeros(k, 2 * TILE)
    rows[:, width - 1 : width + 1] = torch.tensor([2.0**12, 1.0])
    found = block_products(rows.to(dtype), rows.to(dtype).clone(), [(0, 2 * TILE)])
    assert (found == 2.0**24 + 1).all()


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


class Watched(np.ndarray):  # type: ignore[type-arg]
    """Rows, all alike, whose products are not made: their shapes are written down."""

    shapes: ClassVar[list[tuple[tuple[int, ...], tuple[int, ...]]]] = []

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc is np.matmul:
            left, right = inputs
            Watched.shapes.append((left.shape, right.shape))
            return np.zeros((*left.shape[:-1], right.shape[-1]))
        return NotImplemented


def pieces(k: int, n: int, same: bool, columns: int) -> list[tuple[int, int, int, int]]:
    """Return of each product that adds up strips how many strips, rows, columns and rows on the right it has."""
    Watched.shapes.clear()
    right = np.broadcast_to(np.ones(columns), (n, columns)).view(Watched)
    left = right if same else np.broadcast_to(np.ones(columns), (n, columns)).view(Watched)
    linalg._products(left[:k], right)
    return [(*a, b[2]) for a, b in Watched.shapes if len(a) == 3]


@pytest.mark.parametrize(("k", "n"), [(1, 10), (1, 48), (1, 49), (3, 200), (20, 60), (24, 400)])
@pytest.mark.parametrize("same", [False, True])
def test_products_of_few_rows_are_cut_into_pieces_that_stay_in_the_cache(k: int, n: int, same: bool) -> None:
    """As large as the limits allow; where both are the same rows, at most half of those on the right at a time."""
    found = pieces(k, n, same, 400 * linalg._NARROW)
    strips, _, width, wide = (max(sizes) for sizes in zip(*found, strict=True))
    assert {piece[2] for piece in found} == {width}
    if n <= 48:
        assert width == linalg._NARROW
    else:
        assert k * width <= linalg._LEFT
        assert width == TILE or k * (width + linalg._NARROW) > linalg._LEFT
    most = max(linalg._SMALL // (k * width), 1)
    assert wide == min(most, (n + 1) // 2 if same else n)
    assert strips == 1 or strips * k * wide <= linalg._SCRATCH
    if wide < n and strips < 400 * linalg._NARROW // width:
        assert (strips + 1) * k * wide > linalg._SCRATCH


@pytest.mark.parametrize(
    ("k", "n", "same", "wide"), [(25, 300, False, 256), (300, 300, True, 300), (25, 25, True, 25)]
)
def test_many_rows_are_multiplied_with_256_on_the_right_and_with_themselves_at_once(
    k: int, n: int, same: bool, wide: int
) -> None:
    found = pieces(k, n, same, P)
    assert max(piece[3] for piece in found) == wide
    assert {piece[2] for piece in found} == {TILE}


def test_threads_are_used_from_so_many_multiplications_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def watch(name: str) -> None:
        plain = getattr(linalg, name)

        def spied(*given: Any, worth: bool) -> Any:
            seen.append(worth)
            return plain(*given, worth=worth)

        monkeypatch.setattr(linalg, name, spied)

    watch("in_order")
    watch("each")
    rows = torch.ones(2, P)
    for right in (rows, rows.clone()):
        seen.clear()
        for least in (4 * P - 1, 4 * P, 4 * P + 1):
            monkeypatch.setattr(linalg, "WORTH", least)
            block_products(rows, right, [(0, P)])
        assert seen == [True, True, False]


def test_rows_of_one_precision_on_the_host_are_multiplied_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linalg, "mixed_products", lambda *given: pytest.fail("it copies rows"))
    rows = torch.randn(3, P, generator=torch.Generator().manual_seed(5))
    for one in (rows, rows.double()):
        assert block_products(one, one, [(0, P)])[0].diagonal() == pytest.approx(
            rows.double().norm(dim=1) ** 2
        )


@pytest.mark.parametrize(("k", "tiles"), [(1, 4), (23, 4), (24, 4), (25, 1)])
@pytest.mark.parametrize("tiles_at_once", [4, 8])
def test_rows_of_several_precisions_are_turned_to_float32_some_at_a_time(
    k: int, tiles: int, tiles_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 24 rows on the left in tiles four times as long; on the right as many as stay in the cache."""
    seen, plain = [], linalg._partial

    def partial(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        seen.append((right.shape[1], len(right)))
        return plain(left, right)

    monkeypatch.setattr(linalg, "_partial", partial)
    monkeypatch.setattr(linalg, "_WIDENED", tiles_at_once * TILE)
    columns = 8 * TILE
    mixed_products([torch.ones(k, columns)], torch.ones(7, columns).bfloat16(), [(0, columns)])
    rows = tiles_at_once // tiles
    assert seen == [(tiles * TILE, n) for n in [rows] * (7 // rows) + [7 % rows] * (7 % rows > 0)] * (
        8 // tiles
    )


def test_a_block_of_at_most_a_tile_is_multiplied_in_float64_wherever_it_lies() -> None:
    """Two columns on both sides of column 4096."""
    rows = torch.tensor([[1.0, 2.0**-20]]).repeat(1, TILE).bfloat16()
    blocks = [(0, TILE - 1), (TILE - 1, TILE + 1), (TILE + 1, 2 * TILE)]
    for found in (mixed_products([rows], rows, blocks), block_products(rows.float(), rows.float(), blocks)):
        assert found[1, 0, 0] == 1 + 2.0**-40


def test_without_rows_on_the_right_there_are_no_products() -> None:
    for left in ([torch.ones(2, 5)], [torch.ones(1, 5).bfloat16(), torch.ones(1, 5)]):
        assert mixed_products(left, torch.ones(0, 5), [(0, 2), (2, 5)]).shape == (2, 2, 0)


def test_rows_without_weight_are_read_only_where_half_of_the_rows_have_one() -> None:
    """And never where rows are gathered from elsewhere."""
    for used, read in [(1, False), (2, False), (3, True), (5, True)]:
        rows, weights = torch.ones(6, 7), np.zeros(6)
        rows[5], weights[:used] = math.nan, 1.0
        found = weighted_sum(rows, weights, [(0, 3), (3, 7)])
        assert found.isnan().all() == found.isnan().any() == read
        added = torch.ones(7)
        add_weighted(added, rows.bfloat16(), weights, [(0, 3), (3, 7)])
        assert added.tolist() == [1.0 + used] * 7


def gathered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list of the rows and columns of what is gathered from now on."""
    seen: list[tuple[int, int]] = []
    plain = torch.index_select

    def select(rows: torch.Tensor, dim: int, places: torch.Tensor) -> torch.Tensor:
        seen.append((len(places), rows.shape[1]))
        return plain(rows, dim, places)

    monkeypatch.setattr(torch, "index_select", select)
    return seen


def test_few_rows_are_gathered_in_parts_that_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = gathered(monkeypatch)
    columns, rows = 2 * linalg._COLUMNS + 1, torch.ones(9, 2 * linalg._COLUMNS + 1)
    wide = [linalg._COLUMNS, linalg._COLUMNS, 1]
    monkeypatch.setattr(linalg, "_MOVED", 2 * columns)
    assert weighted_sum(rows, np.array([1.0, 1, 1] + [0] * 6), [(0, columns)]).tolist() == [3.0] * columns
    assert seen == [(k, width) for k in (2, 1) for width in wide]
    seen.clear()
    monkeypatch.setattr(linalg, "_WIDENED", 4 * columns)
    add_weighted(torch.zeros(columns), rows.bfloat16(), np.ones(9), [(0, columns)])
    assert seen == [(k, width) for k in (4, 4, 1) for width in wide]
    seen.clear()
    monkeypatch.setattr(linalg, "_WIDENED", 1)
    add_weighted(torch.zeros(columns), rows.bfloat16(), np.ones(9), [(0, columns)])
    assert seen == [(1, width) for _ in range(9) for width in wide], "a row at least"


def test_a_gpu_is_brought_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.Generator().manual_seed(6)
    kept, fresh = torch.randn(9, P, generator=noise).bfloat16(), torch.randn(2, P, generator=noise)
    expected = mixed_products([fresh], kept, BLOCKS)
    weights = np.arange(1.0, 10)
    summed = torch.zeros(P)
    add_weighted(summed, kept, weights, BLOCKS)
    seen = gathered(monkeypatch)
    with pretended(monkeypatch) as log:
        there = fresh.cuda()
        for most, times in [(9 * P, 1), (4 * P, 3), (P, 9), (1, 9)]:
            monkeypatch.setattr(linalg, "_MOVED", most)
            log.clear()
            np.testing.assert_allclose(mixed_products([there], kept, BLOCKS), expected, atol=1e-6 * P, rtol=0)
            assert log == ["sent"] * times + ["waited"], "all products leave it at once"
        log.clear()
        mixed_products([there], kept.cuda(), BLOCKS)
        assert log == ["sent", "waited"], "what is there stays"
        monkeypatch.setattr(linalg, "_MOVED", 4 * P)
        seen.clear()
        out = torch.zeros(P).cuda()
        add_weighted(out, kept, np.stack([weights, weights]), [(0, 0), (0, P)])  # an empty block, too
        assert seen == [(4, P), (4, P), (1, P)]
        torch.testing.assert_close(out.cpu(), summed)

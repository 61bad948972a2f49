"""The two operations on rows against NumPy in float64, across tile boundaries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsim.linalg import TILE, block_products, weighted_sum

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

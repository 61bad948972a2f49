"""The gradient history against the plain definition: keep the last row of everybody, recompute every product."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fedsim.common.errors import RunError
from fedsim.server import history as history_module
from fedsim.server.gram import Blocks
from fedsim.server.history import GradientHistory, put, slots_needed
from fedsim.server.history_storage import HistoryPlan, Rung
from fedsim.server.rule import Floats, Needs, Stack
from fedsim.server.rule_factory import build_rule
from fedsim.training.loaded_model import shared_tensor
from pretend_gpu import CUDA, pretended

BLOCKS = [(0, 3), (3, 4), (4, 11)]
U = 2.0**-8
"""How far, relatively, bfloat16 is from a number that it stands for: its significand has 8 bits."""


def history(
    n_clients: int,
    cohort: int,
    memory: float,
    gram: str = "blocks",
    rung: Rung = "float32",
    cap: int | None = None,
    replaced: bool = False,
) -> GradientHistory:
    remembered = slots_needed(n_clients, cohort, memory) - cohort
    plan = HistoryPlan(cohort, remembered if cap is None else cap, rung, cap is not None)
    needs = Needs(gram=gram, memory=memory, replaced=replaced)  # type: ignore[arg-type]
    return GradientHistory(plan, BLOCKS, needs, torch.device("cpu"), torch.float64)


def receive(kept: GradientHistory, step: int, clients: list[int], rows: torch.Tensor) -> np.ndarray:
    kept.forget(step)
    return kept.add(list(rows), np.array(clients), step, {"loss": np.full(len(clients), float(step))})


cohorts = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    cohorts=cohorts,
    memory=st.sampled_from([0, 1, 3, math.inf]),
    seed=st.integers(0, 99),
    rung=st.sampled_from(["float32", "bfloat16", "host_float32", "host_bfloat16"]),
    wants_replaced=st.booleans(),
)
def test_it_remembers_what_the_definition_says(
    cohorts: list[list[int]], memory: float, seed: int, rung: Rung, wants_replaced: bool
) -> None:
    """Whatever the rung, products and sums are those of the rows that it keeps: the present ones, unchanged, and the
    remembered and replaced ones, rounded where it rounds."""
    wants_replaced = wants_replaced and memory > 0
    kept = history(8, 4, memory, rung=rung, replaced=wants_replaced)
    noise = torch.Generator().manual_seed(seed)
    last: dict[int, tuple[int, torch.Tensor]] = {}
    for step, clients in enumerate(cohorts):
        rows = torch.randn(len(clients), 11, generator=noise, dtype=torch.float64)
        present = receive(kept, step, clients, rows)
        slots = kept.order(present)
        recent = sorted(c for c, (when, _) in last.items() if step - when <= memory)
        absent = [c for c in recent if c not in clients]
        replaced = [c for c in recent if c in clients] if wants_replaced else []
        assert kept.client[slots].tolist() == clients + absent + replaced
        assert kept.replaced == len(replaced)
        assert kept.received[slots].tolist() == [step] * len(clients) + [
            last[c][0] for c in absent + replaced
        ]
        assert kept.notes["loss"][slots].tolist() == kept.received[slots].tolist()
        everything = torch.cat([rows, *(last[c][1][None] for c in absent + replaced)])
        for (a, b), gram in zip(BLOCKS, kept.grams_of(slots), strict=True):
            part = everything[:, a:b].numpy()
            np.testing.assert_allclose(gram, part @ part.T, rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(gram, gram.T)
        weights = np.linspace(-1, 1, 3 * len(slots)).reshape(3, len(slots))
        expected = torch.cat(
            [torch.from_numpy(w) @ everything[:, a:b] for w, (a, b) in zip(weights, BLOCKS, strict=True)]
        )
        torch.testing.assert_close(kept.combine(slots, weights), expected)
        median = kept.combine_columns(slots, np.arange(len(slots)) % 3, lambda tile: tile[len(tile) // 2])
        used = everything[np.arange(len(slots)) % 3 != 0] * 1.0
        used[1::2] *= 2.0
        wanted = used.sort(dim=0).values[len(used) // 2] if len(used) else torch.zeros_like(median)
        torch.testing.assert_close(median, wanted, rtol=0, atol=0)
        inner, squares = kept.inner(slots, expected)
        for (a, b), products, square in zip(BLOCKS, inner, squares, strict=True):
            along = expected[a:b]
            np.testing.assert_allclose(products, everything[:, a:b] @ along, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(square, along @ along, rtol=1e-9)
        kept.settle(present)
        if memory:
            stored = rows.bfloat16().double() if rung.endswith("bfloat16") else rows
            last.update({c: (step, row) for c, row in zip(clients, stored, strict=True)})
    assert kept.evicted == 0


@pytest.mark.parametrize("places", [[4, 5, 6], [6, 0, 3], [2, 3, 5], [1], []])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_rows_are_put_where_they_belong(
    places: list[int], dtype: torch.dtype, on_gpu: bool, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.randn(len(places), 5, generator=torch.Generator().manual_seed(1))
    into, expected = torch.zeros(8, 5, dtype=dtype), torch.zeros(8, 5, dtype=dtype)
    for place, row in zip(places, rows, strict=True):
        expected[place] = row.to(dtype)
    with pretended(monkeypatch) if on_gpu else nullcontext():
        if on_gpu:
            into, rows = into.cuda(), rows.cuda()
        put(into, np.array(places, dtype=np.int64), list(rows) if listed else rows)
        assert torch.equal(into.cpu(), expected)
        with pytest.raises(ValueError, match=f"expected {len(places)} rows for as many places, found 9"):
            put(into, np.array(places, dtype=np.int64), torch.zeros(9, 5))


class Copies(TorchDispatchMode):
    """Counts how often rows are copied into others."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func) in ("aten.copy_.default", "aten.index_copy_.default")
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("places", [[4, 5, 6], [6, 0, 3]])
@pytest.mark.parametrize("listed", [False, True])
def test_rows_are_put_in_one_go_on_a_gpu_and_where_both_are_neighbours(
    places: list[int], listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copies(into: torch.Tensor, rows: torch.Tensor) -> int:
        with Copies() as copied:
            put(into, np.array(places), list(rows) if listed else rows)
        assert torch.equal(into.cpu()[places], torch.eye(3))
        return copied.count

    one_by_one = 1 if not listed and places == [4, 5, 6] else 3
    assert copies(torch.zeros(8, 3), torch.eye(3)) == one_by_one
    with pretended(monkeypatch):
        assert copies(torch.zeros(8, 3).cuda(), torch.eye(3).cuda()) == 1


def test_rows_of_several_devices_are_put_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended(monkeypatch):
        into = torch.zeros(8, 3).cuda()
        put(into, np.array([2, 3]), [torch.ones(3), torch.full((3,), 2.0).cuda()])
        assert into.cpu().sum(dim=1).tolist() == [0, 0, 3, 6, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("rung", "device", "dtype"),
    [
        ("bfloat16", "cuda", torch.bfloat16),
        ("host_float32", "cpu", torch.float32),
        ("host_bfloat16", "cpu", torch.bfloat16),
    ],
)
def test_remembered_rows_lie_where_the_plan_says(
    rung: Rung, device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The present ones are float32 on the GPU in every plan, in one tensor with the others if these are as well."""
    needs = Needs("blocks", memory=math.inf)
    with pretended(monkeypatch):
        for plan, expected in (
            (HistoryPlan(2, 3, rung), [("cuda", torch.float32, 2), (device, dtype, 3)]),
            (HistoryPlan(2, 3), [("cuda", torch.float32, 5)]),
        ):
            made = GradientHistory(plan, BLOCKS, needs, CUDA)
            found = [(tier.rows.device.type, tier.rows.dtype, len(tier.rows)) for tier in made.tiers]
            assert found == expected
            assert sum(tier.rows.nbytes for tier in made.tiers) == plan.row_bytes(11)


@pytest.mark.parametrize("rung", ["float32", "host_float32"])
def test_new_rows_cost_one_product_with_those_that_are_kept(
    rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made where they lie if they are neighbours; between two steps no row of a step is left to be read."""
    seen: list[tuple[int, int, bool]] = []
    plain = history_module.block_products

    def products(left: torch.Tensor, right: torch.Tensor, blocks: Blocks) -> Floats:
        own = left.untyped_storage().data_ptr() == kept.tiers[0].rows.untyped_storage().data_ptr()
        seen.append((len(left), len(right), own))
        return plain(left, right, blocks)

    monkeypatch.setattr(history_module, "block_products", products)
    kept = history(8, 3, math.inf, rung=rung)
    for step, clients in enumerate([[0, 1, 2], [3, 4], [5]]):
        slots = receive(kept, step, clients, torch.ones(len(clients), 11, dtype=torch.float64))
        kept.grams_of(kept.order(slots))
        kept.settle(slots)
    if rung == "float32":
        assert seen == [(3, 3, True), (2, 5, True), (1, 6, True)]
        assert kept.state()["high"] == [6]
    else:
        assert seen == [(3, 3, True), (2, 2, True), (2, 3, True), (1, 1, True), (1, 5, True)]
        assert kept.state()["high"] == [0, 6]


def test_of_nothing_nothing_is_inherited() -> None:
    after = history(8, 2, math.inf)
    after.inherit(history(8, 2, math.inf).state(), lambda notes: True)
    assert (after.client < 0).all()


@pytest.mark.parametrize("rung", ["float32", "bfloat16", "host_float32"])
def test_a_client_that_sent_twice_is_remembered_by_its_last_row(rung: Rung) -> None:
    kept = history(4, 3, math.inf, rung=rung)
    present = receive(kept, 0, [2, 1, 2], torch.eye(11, dtype=torch.float64)[:3])
    assert kept.client[kept.order(present)].tolist() == [2, 1, 2]
    kept.settle(present)
    present = receive(kept, 1, [0], torch.eye(11, dtype=torch.float64)[3:4])
    slots = kept.order(present)
    assert kept.client[slots].tolist() == [0, 1, 2]
    found = [int(kept.combine(slots, weights).argmax()) for weights in np.eye(3)]
    assert found == [3, 1, 2]


@pytest.mark.parametrize("rung", ["float32", "bfloat16", "host_float32"])
def test_a_capped_history_gives_up_the_rows_received_longest_ago(rung: Rung) -> None:
    kept = history(8, 2, math.inf, rung=rung, cap=3)
    rows = torch.ones(2, 11, dtype=torch.float64)
    for step, clients in enumerate([[5, 4], [3, 7], [5, 0]]):
        kept.settle(receive(kept, step, clients, rows))
    assert sorted(kept.client[kept.client >= 0].tolist()) == [0, 5, 7]  # 4 is the oldest, then 3 before 7
    assert kept.evicted == 2
    present = receive(kept, 3, [6], rows[:1])
    assert kept.client[kept.order(present)].tolist() == [6, 0, 5, 7]
    np.testing.assert_array_equal(kept.grams_of(kept.order(present)).sum(axis=0), np.full((4, 4), 11.0))


def test_a_window_that_ends_needs_no_room_and_is_no_eviction() -> None:
    kept = history(8, 2, 1, cap=2)
    for step in range(4):
        kept.settle(receive(kept, step, [2 * step, 2 * step + 1], torch.ones(2, 11, dtype=torch.float64)))
    assert kept.evicted == 0
    assert sorted(kept.client[kept.client >= 0].tolist()) == [6, 7]


def test_rows_are_taken_from_memory_that_others_share() -> None:
    shared = np.arange(22, dtype=np.float32).reshape(2, 11)
    shared.flags.writeable = False
    kept = history(4, 2, math.inf, rung="bfloat16")
    slots = kept.add([shared_tensor(row) for row in shared], np.array([1, 3]), 0, {})
    np.testing.assert_array_equal(kept.combine(slots, np.array([0.0, 1.0])).numpy(), shared[1])


def test_it_takes_the_memory_that_the_plan_says() -> None:
    needs = Needs("blocks", memory=math.inf)
    for rung in ("float32", "bfloat16", "host_float32", "host_bfloat16"):
        plan = HistoryPlan(4, 9, rung)
        made = GradientHistory(plan, BLOCKS, needs, torch.device("cpu"))
        assert sum(tier.rows.nbytes for tier in made.tiers) == plan.row_bytes(11)
        assert made.grams.nbytes == plan.gram_bytes(3)


def test_too_many_rows_are_refused() -> None:
    kept = history(4, 2, 0)
    with pytest.raises(ValueError, match="2 slots, too few for 3"):
        receive(kept, 0, [0, 1, 2], torch.zeros(3, 11, dtype=torch.float64))


@pytest.mark.parametrize("rung", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("cohort", "memory", "cap"), [(1, math.inf, None), (2, 3, None), (1, 1, None), (2, 3, 3)]
)
def test_the_rows_received_last_are_inherited_as_far_as_there_is_room(
    rung: Rung, cohort: int, memory: float, cap: int | None
) -> None:
    before = history(8, 6, math.inf)
    rows = torch.arange(99, dtype=torch.float64).reshape(9, 11)
    before.settle(receive(before, 0, [6, 7, 0], rows[:3]))
    before.settle(receive(before, 1, [5, 4, 3, 2, 1, 0], rows[3:]))
    after = history(8, cohort, memory, rung=rung, cap=cap)
    after.inherit(before.state(), lambda notes: notes["loss"] >= 0)
    slots = after.order(np.zeros(0, dtype=np.int64))
    room = min(8, cohort * (8 if math.isinf(memory) else int(memory)), cap or 8)
    expected = sorted(([6, 7, 0, 1, 2, 3, 4, 5] if memory != 1 else [0, 1, 2, 3, 4, 5])[-room:])
    assert after.client[slots].tolist() == expected
    held = torch.stack([after.row(slot).double() for slot in slots])
    of = {client: rows[i] for i, client in enumerate([6, 7, 0, 5, 4, 3, 2, 1, 0])}
    torch.testing.assert_close(held, torch.stack([of[c] for c in expected]), rtol=U, atol=0)
    np.testing.assert_allclose(after.grams_of(slots).sum(0), (held @ held.T).numpy(), rtol=1e-12)
    assert after.received[slots].tolist() == [0 if c in (6, 7) else 1 for c in expected]
    now = receive(after, 2, list(range(cohort)), rows[:cohort])  # there is room for the next step
    after.settle(now)


def test_without_a_gram_matrix_none_is_kept() -> None:
    kept = history(4, 2, 0, gram="none")
    slots = receive(kept, 0, [0, 1], torch.ones(2, 11, dtype=torch.float64))
    assert kept.grams_of(slots).shape == (0, 2, 2)


def test_only_rows_with_weight_reach_the_sum() -> None:
    kept = history(8, 4, 0, gram="none")
    rows = torch.randn(4, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slots = receive(kept, 0, [0, 1, 2, 3], rows)
    for weights in ([2.0, 0, 0, 0], [1.0, 2, 0, 3], [0.0, 0, 0, 0]):
        expected = torch.tensor(weights, dtype=torch.float64) @ rows
        torch.testing.assert_close(kept.combine(slots, np.array(weights)), expected)


def test_a_rule_may_ask_for_slices_instead_of_layers() -> None:
    needs = Needs("blocks", slices=True)
    kept = GradientHistory(2, BLOCKS, needs, torch.device("cpu"), torch.float64)
    assert kept.blocks == [(0, 3), (3, 7), (7, 11)]


def test_weights_for_another_number_of_blocks_are_refused() -> None:
    kept = history(4, 2, 0)
    slots = receive(kept, 0, [0, 1], torch.ones(2, 11, dtype=torch.float64))
    with pytest.raises(RunError, match="for 1 block or all 3, found some for 2 blocks"):
        kept.combine(slots, np.ones((2, 2)))


def test_rows_are_forgotten_after_a_time() -> None:
    kept = history(4, 2, math.inf)
    for step, client in enumerate([0, 1, 2]):
        slots = kept.add([torch.ones(11)], np.array([client]), step, {}, now_us=10 * step)
        kept.settle(slots)
    kept.forget(3, before_us=10)
    assert sorted(kept.client[kept.client >= 0].tolist()) == [1, 2]


M, ABSENT, COLUMNS = 4, 6, [(0, 30), (30, 60)]


def stack_of(kept: GradientHistory, slots: np.ndarray, losses: Floats) -> Stack:
    n = len(slots)
    return Stack(
        grams=kept.grams_of(slots),
        m=M,
        clients=kept.client[slots],
        losses=losses,
        n_samples=np.ones(n, dtype=np.int64),
        ages=1 - kept.received[slots],
        staleness=np.zeros(n, dtype=np.int64),
        participations=np.ones(n, dtype=np.int64),
        online=np.ones(n, dtype=bool),
        step=1,
        n_clients=n,
        total_samples=n,
        n_seen=ABSENT,
    )


def directions(
    rule: str, options: dict[str, object], rows: torch.Tensor, losses: Floats
) -> list[tuple[torch.Tensor, Floats]]:
    """Return the direction and its weights by block, with rows of absent clients kept exactly and in bfloat16."""
    algorithm, found = build_rule(rule, options), []
    for rung in ("float32", "bfloat16"):
        plan = HistoryPlan(ABSENT, ABSENT, rung)
        kept = GradientHistory(plan, COLUMNS, algorithm.needs, torch.device("cpu"), torch.float64)
        kept.settle(kept.add(rows[M:], np.arange(M, M + ABSENT), 0, {}))
        slots = kept.order(kept.add(rows[:M], np.arange(M), 1, {}))
        weights = algorithm.weigh(stack_of(kept, slots, losses), {})[0].weights
        found.append((kept.combine(slots, weights), np.atleast_2d(weights)))
    return found


def rows_of(seed: int) -> torch.Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(M + ABSENT, 60, generator=noise, dtype=torch.float64) + 0.2


def test_rounding_turns_fedfv_by_no_more_than_the_rows_it_projects_off() -> None:
    """The mean is projected off the sum c of the rows that conflict with it. Rounding moves c by at most U Σ‖r_i‖, two
    projections differ by at most the sine between their vectors, and making the result as long as before doubles it.
    """
    tried = 0
    for seed in range(40):
        rows, losses = rows_of(seed), np.arange(M + ABSENT, dtype=np.float64)
        mean = directions("fedfv", {"tau": 0}, rows, losses)[0][0]
        mean /= mean.norm()
        absent = rows[M:]
        inner, sizes = absent @ mean, absent.norm(dim=1)
        conflict = inner < 0
        if (
            not conflict.any() or (inner.abs() <= U * sizes).any()
        ):  # a conflict that rounding may end or begin
            continue
        tried += 1
        c = absent[conflict].sum(dim=0)
        left = (mean - (c @ mean) / (c @ c) * c).norm()
        bound = 2 * U * float(sizes[conflict].sum() / c.norm() / left)
        (exact, _), (rounded, _) = directions("fedfv", {"tau": 1}, rows, losses)
        assert 0 < float((rounded - exact).norm() / exact.norm()) <= bound
        assert torch.isclose(rounded.norm(), exact.norm())
    assert tried >= 15


@pytest.mark.parametrize("seed", range(10))
def test_rounding_moves_fedlf_by_no_more_than_the_hull(seed: int) -> None:
    """Let d = Σ λ_i r_i be the least-norm point of the exact hull, d' that of the rounded one. As both are optimal,
    ‖d' - d‖² <= U (‖d‖ Σ λ'_i ‖r_i‖ + ‖d'‖ Σ λ_i ‖r_i‖) in each block, the sums going over the remembered rows."""
    rows, alike = (
        rows_of(seed),
        np.ones(M + ABSENT),
    )  # equal losses, no fair row: weights of blocks have one sum
    (exact, w), (rounded, v) = directions("fedlf", {"merging": False, "lengths": "raw"}, rows, alike)
    squared, size = 0.0, 0.0
    for block, (a, b) in enumerate(COLUMNS):
        lengths = rows[M:, a:b].norm(dim=1).numpy()
        mine, theirs = w[block] / w[block].sum(), v[block] / v[block].sum()
        before = float(exact[a:b].norm()) / w[block].sum()
        after = float(rounded[a:b].norm()) / v[block].sum()
        squared += U * (before * (theirs[M:] @ lengths) + after * (mine[M:] @ lengths))
        size += before**2
    bound = 2 * math.sqrt(squared / size)
    assert 0 < float((rounded - exact).norm() / exact.norm()) <= bound
    assert torch.isclose(rounded.norm(), exact.norm())


@pytest.mark.parametrize("seed", range(10))
def test_with_rounded_rows_fedlf_still_conflicts_with_nobody(seed: int) -> None:
    """Not with the rows as they are kept, beyond the solver's tolerance, and with the rows as they came by at most the
    rounding."""
    rows = rows_of(seed)
    rounded = directions("fedlf", {}, rows, np.arange(1.0, M + ABSENT + 1))[1][0]
    kept = torch.cat([rows[:M], rows[M:].bfloat16().double()])
    for a, b in COLUMNS:
        step = rounded[a:b]
        scale = step.norm() * rows[:, a:b].norm(dim=1)
        assert (kept[:, a:b] @ step >= -1e-8 * scale).all()
        assert (rows[:, a:b] @ step >= -U * scale).all()


def test_products_of_rounded_rows_make_a_gram_matrix() -> None:
    """More rows than columns: the matrix is singular, and would be indefinite if it were not that of the rows kept."""
    kept = history(40, 20, math.inf, rung="bfloat16")
    noise = torch.Generator().manual_seed(0)
    for step, clients in enumerate([range(20), range(20, 40), range(5)]):
        slots = receive(
            kept, step, list(clients), torch.randn(len(clients), 11, generator=noise, dtype=torch.float64)
        )
        grams = kept.grams_of(kept.order(slots))
        kept.settle(slots)
    for gram in grams:
        assert np.linalg.eigvalsh(gram)[0] >= -1e-12 * np.trace(gram)


@pytest.mark.parametrize("rung", ["float32", "bfloat16", "host_float32", "host_bfloat16"])
def test_a_history_that_is_restored_goes_on_as_the_one_that_was_saved(rung: Rung) -> None:
    """Also where rows were given up, in places that hold anything before."""
    noise = torch.Generator().manual_seed(4)
    kept, again = (history(8, 3, math.inf, rung=rung, cap=4) for _ in range(2))
    for tier in again.tiers:
        tier.rows.fill_(math.nan)
    rows = torch.randn(4, 3, 11, generator=noise, dtype=torch.float64)
    for step, clients in enumerate([[0, 1, 2], [3, 4, 5], [6, 0, 6]]):
        kept.settle(receive(kept, step, clients, rows[step]))
    assert kept.evicted == 4
    again.restore(copy.deepcopy(kept.state()))
    before, after = (
        {name: part for name, part in one.state().items() if name != "rows"} for one in (kept, again)
    )
    np.testing.assert_equal(after, before)
    found = []
    for one in (kept, again):
        present = receive(one, 3, [4, 2], rows[3][:2])
        slots = one.order(present)
        weights = np.linspace(1, 2, len(slots))
        assert one.combine(slots, weights).isfinite().all()
        found.append(
            (one.client[slots], one.received[slots], one.grams_of(slots), one.combine(slots, weights).numpy())
        )
        one.settle(present)
    np.testing.assert_equal(found[1], found[0])
    assert again.evicted == kept.evicted == 5


def test_a_rule_is_shown_what_it_asked_for_whatever_is_recorded() -> None:
    rows = torch.randn(3, 11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    by_block = np.stack([(rows[:, a:b] @ rows[:, a:b].T).numpy() for a, b in BLOCKS])
    whole = (rows @ rows.T).numpy()[None]
    for level, recorded, made, shown in (
        ("model", "blocks", np.concatenate([by_block, whole]), whole),
        ("blocks", "none", by_block, by_block),
        ("blocks", "model", by_block, by_block),
        ("model", "none", whole, whole),
        ("none", "blocks", by_block, by_block[:0]),
        ("none", "none", by_block[:0], by_block[:0]),
    ):
        kept = GradientHistory(3, BLOCKS, Needs(gram=level), torch.device("cpu"), torch.float64, recorded)  # type: ignore[arg-type]
        grams = kept.grams_of(kept.add(rows, np.arange(3), 0, {}))
        np.testing.assert_allclose(grams, made, rtol=1e-12)
        np.testing.assert_array_equal(kept.of_rule(grams), grams[len(grams) - len(shown) :])


def test_slots_are_those_of_a_step_and_of_all_who_may_be_remembered() -> None:
    assert [slots_needed(20, 3, memory) for memory in (0, 1, 2, 6, 7, math.inf)] == [3, 6, 9, 21, 23, 23]


def test_rows_of_an_earlier_step_are_kept_for_as_long_as_the_memory_lasts() -> None:
    kept = history(4, 1, 2)
    kept.settle(receive(kept, 0, [3], torch.ones(1, 11, dtype=torch.float64)))
    for step, there in ((1, True), (2, True), (3, False)):
        kept.forget(step)
        assert (3 in kept.client) == there

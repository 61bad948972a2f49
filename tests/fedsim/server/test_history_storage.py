"""The rung that a budget leads to, and the table that asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError
from fedsim.config.memory import MemorySection
from fedsim.server.history_storage import HistoryPlan, HistorySize, choose

SIZE = HistorySize(present=10, remembered=1000, columns=500, layers=2)
GRAM = 2 * 8 * 1010**2
FULL = 4 * 500 * 1010
HALF = 4 * 500 * 10 + 2 * 500 * 1000


def alone(size: HistorySize, **limits: Any) -> HistoryPlan:
    (plan,) = choose([size], **limits)
    return plan


@pytest.mark.parametrize(
    ("budget", "rung", "capped"),
    [
        (None, "float32", False),
        (FULL + GRAM, "float32", False),
        (FULL + GRAM - 1, "bfloat16", False),
        (HALF + GRAM, "bfloat16", False),
        (HALF + GRAM - 1, "bfloat16", True),
    ],
)
def test_on_the_processor_rows_and_products_share_the_budget(
    budget: int | None, rung: str, capped: bool
) -> None:
    plan = alone(SIZE, budget=budget)
    assert (plan.rung, plan.capped) == (rung, capped)
    assert plan.remembered == 1000 - capped


@pytest.mark.parametrize(
    ("budget", "host_budget", "rung", "remembered"),
    [
        (FULL, GRAM, "float32", 1000),
        (FULL - 1, None, "bfloat16", 1000),
        (HALF - 1, None, "host_float32", 1000),
        (HALF - 1, GRAM + 4 * 500 * 1000 - 1, "host_bfloat16", 1000),
        (HALF - 1, GRAM + 2 * 500 * 1000 - 1, "host_bfloat16", 999),
    ],
)
def test_a_gpu_gives_the_rows_away_only_when_it_must(
    budget: int, host_budget: int | None, rung: str, remembered: int
) -> None:
    plan = alone(SIZE, budget=budget, host_budget=host_budget, device="cuda")
    assert (plan.rung, plan.remembered, plan.capped) == (rung, remembered, remembered < 1000)


@given(budget=st.integers(10**5, 3 * 10**7), slots=st.none() | st.integers(1, 2000))
def test_the_choice_fits_and_one_row_more_would_not(budget: int, slots: int | None) -> None:
    plan = alone(SIZE, budget=budget, slots=slots)
    assert _bytes(plan) <= budget
    assert plan.capped == (plan.remembered < SIZE.remembered)
    wanted = min(SIZE.remembered, slots or SIZE.remembered)
    if plan.remembered < wanted:
        more = HistoryPlan(plan.present, plan.remembered + 1, plan.rung, True)
        assert plan.rung == "bfloat16"
        assert _bytes(more) > budget


def _bytes(plan: HistoryPlan) -> int:
    return plan.row_bytes(SIZE.columns) + plan.gram_bytes(SIZE.layers)


@given(
    budget=st.none() | st.integers(10**5, 3 * 10**7),
    slots=st.none() | st.integers(1, 2000),
    wish=st.sampled_from(["auto", "float32", "bfloat16"]),
)
def test_the_resolved_table_asks_for_the_same_plan(budget: int | None, slots: int | None, wish: str) -> None:
    section = MemorySection(history=wish, budget=budget, slots=slots)  # type: ignore[arg-type]
    (plan,) = section.plans([SIZE], "cpu")
    resolved = section.chosen(plan)
    assert resolved.plans([SIZE], "cpu") == [plan]
    assert resolved.budget is None
    assert MemorySection.model_validate(resolved.model_dump(mode="json", exclude_none=True)) == resolved
    if wish != "auto":
        assert plan.rung == wish


def test_what_cannot_be_met_is_refused() -> None:
    least = r"memory\.budget: expected at least 22\.\d KiB, for 10 rows of one step and 1 remembered, found 20\.0 KiB"
    with pytest.raises(ConfigError, match=least):
        alone(SIZE, budget=20 * 1024)
    with pytest.raises(ConfigError, match=r"memory\.host_budget: expected at least .* found 1\.0 KiB"):
        alone(SIZE, host_budget=1024, device="cuda")
    with pytest.raises(ConfigError, match=r"memory\.history: 'host_bfloat16' .*closest 'bfloat16'"):
        alone(SIZE, wish="host_bfloat16")
    with pytest.raises(
        ConfigError, match=r"memory\.host_budget: found 1\.0 KiB, but the server is on the processor"
    ):
        alone(SIZE, host_budget=1024)


def test_a_rule_without_memory_needs_no_ladder() -> None:
    size = HistorySize(present=10, remembered=0, columns=500, layers=0)
    assert alone(size, budget=10**6, slots=5) == HistoryPlan(10, 0)


def test_a_plan_says_what_it_is() -> None:
    assert alone(SIZE).words() == "1,000 remembered rows in float32 on the server's device"
    capped = alone(SIZE, slots=7, wish="host_bfloat16", device="cuda")
    assert capped.words() == "7 remembered rows in bfloat16 on the host, the oldest given up for new ones"


# Two histories of one server

OTHER = HistorySize(present=10, remembered=200, columns=500, layers=1)


@given(budget=st.integers(2 * 10**5, 3 * 10**7), slots=st.none() | st.integers(1, 2000))
def test_two_share_a_rung_and_fit_together(budget: int, slots: int | None) -> None:
    first, second = choose([SIZE, OTHER], budget=budget, slots=slots)
    assert first.rung == second.rung
    rows = first.row_bytes(500) + second.row_bytes(500)
    assert rows + first.gram_bytes(2) + second.gram_bytes(1) <= budget
    most = max(first.remembered, second.remembered)
    assert second.remembered == min(OTHER.remembered, most)
    for plan, size in ((first, SIZE), (second, OTHER)):
        assert plan.present == size.present
        assert plan.capped == (plan.remembered < size.remembered)
    again = choose([SIZE, OTHER], wish=first.rung, slots=first.remembered if first.capped else None)
    assert again == [first, second], "the rung and the slots alone give the same plans"


def test_a_rule_without_memory_leaves_all_room_to_the_selector() -> None:
    forgetful = HistorySize(present=10, remembered=0, columns=500, layers=0)
    both, one = choose([forgetful, SIZE], budget=HALF + GRAM), alone(SIZE, budget=HALF + GRAM)
    assert both[0].remembered == 0
    assert one.remembered * 0.95 <= both[1].remembered <= one.remembered
    tiny = HistorySize(present=1, remembered=9, columns=500, layers=0)
    with pytest.raises(ConfigError, match="memory: expected room for a remembered row of the rule and one"):
        choose([tiny, tiny], budget=4 * 500 * 2 + 2 * 500)

"""The seeds of a study."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from fedsim.config.section import Seed

MOST_SEEDS = 100_000
"""Most seeds of a study."""


def _seeds(seeds: Any) -> Any:
    if not isinstance(seeds, int) or isinstance(seeds, bool):
        return seeds
    if not 1 <= seeds <= MOST_SEEDS:
        raise ValueError(
            f"expected a number of seeds from 1 to {MOST_SEEDS:,}, or a list of seeds, found {seeds:,}"
        )
    return tuple(range(1, seeds + 1))


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if not seeds:
        raise ValueError("expected at least one seed, found none")
    if twice := sorted(seed for seed, times in Counter(seeds).items() if times > 1):
        raise ValueError(f"expected different seeds, found {', '.join(map(str, twice))} more than once")
    return seeds


Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_seeds), AfterValidator(_different), Field(strict=False)]
"""A list of seeds; a number n stands for 1 to n."""


def seeds_in(seeds: int | list[int]) -> list[int]:
    """Return the seeds that a number or a list of them stands for. Raises ValueError."""
    return list(_different(tuple(_seeds(seeds))))

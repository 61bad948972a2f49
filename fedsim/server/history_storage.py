"""How the server keeps the rows of absent clients: the first rung of a ladder of ever smaller histories that fits.

The rungs are float32 on the server's device, bfloat16 there, and, where that device is a GPU, float32 and bfloat16 on
the host; the last one remembers fewer clients. The choice is made from sizes alone before a run starts.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Literal

from fedsim.common.errors import ConfigError
from fedsim.common.units import show_bytes

Rung = Literal["float32", "bfloat16", "host_float32", "host_bfloat16"]
Wish = Literal["auto"] | Rung

LADDER: tuple[Rung, ...] = ("float32", "bfloat16", "host_float32", "host_bfloat16")
_NUMBER, _ROUNDED, _PRODUCT = 4, 2, 8
"""Bytes of a number of a present row and of a rounded one, and of an inner product."""


def _is_cpu(device: str) -> bool:
    return device.partition(":")[0] == "cpu"


@dataclass(frozen=True, slots=True)
class HistorySize:
    """What a history is to hold if nothing is in its way."""

    present: int
    """Most rows of one step."""
    remembered: int
    """Most rows of absent clients that the rule may ask for."""
    columns: int
    """P."""
    layers: int
    """L, the Gram matrices; 0 if the rule needs none."""


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """How many rows a history holds, and how those of absent clients are kept; plain values.

    Present rows are float32 on the server's device in every plan.
    """

    present: int
    remembered: int
    rung: Rung = "float32"
    capped: bool = False
    """Whether fewer rows are remembered than the rule may ask for; then those received longest ago are given up."""

    @property
    def slots(self) -> int:
        """Return the number of rows that may be alive at once."""
        return self.present + self.remembered

    @property
    def rounds(self) -> bool:
        """Whether a row changes when it becomes a remembered one."""
        return self.rung.endswith("bfloat16")

    @property
    def on_host(self) -> bool:
        """Whether remembered rows are kept on the host though the server is on a GPU."""
        return self.rung.startswith("host")

    def remembered_bytes(self, columns: int) -> int:
        """Return the size of the remembered rows [remembered, P]."""
        return self.remembered * columns * (_ROUNDED if self.rounds else _NUMBER)

    def row_bytes(self, columns: int) -> int:
        """Return the size of all rows, present and remembered, wherever they are."""
        return self.present * columns * _NUMBER + self.remembered_bytes(columns)

    def gram_bytes(self, layers: int) -> int:
        """Return the size of the Gram matrices [L, slots, slots], which are on the host."""
        return layers * _PRODUCT * self.slots**2

    def host_bytes(self, columns: int, device: str) -> int:
        """Return the size of the rows that lie on the host, if the server is on `device`."""
        if _is_cpu(device):
            return self.row_bytes(columns)
        return self.remembered_bytes(columns) if self.on_host else 0

    def rounded(self) -> HistoryPlan:
        """Return the plan with remembered rows in bfloat16."""
        return replace(self, rung="host_bfloat16" if self.on_host else "bfloat16")

    def words(self) -> str:
        """Say it in a few words."""
        where = "host" if self.on_host else "server's device"
        kept = f"{self.remembered:,} remembered rows in {self.rung.removeprefix('host_')} on the {where}"
        return f"{kept}, the oldest given up for new ones" if self.capped else kept


def choose(
    size: HistorySize,
    *,
    wish: Wish = "auto",
    budget: int | None = None,
    host_budget: int | None = None,
    slots: int | None = None,
    device: str = "cpu",
) -> HistoryPlan:
    """Return the first rung that fits, or the last one with as many remembered rows as fit.

    Args:
        size: what the rule would have.
        wish: the rung, or "auto" for the ladder.
        budget: bytes for the rows on the server's device; if that is the processor, for the Gram matrices too.
        host_budget: bytes on the host for the Gram matrices and the rows kept there, if the server is on a GPU.
        slots: most remembered rows.
        device: the server's.

    Raises ConfigError where the present rows and one remembered row do not fit, or a wish cannot be met.
    """
    on_gpu = not _is_cpu(device)
    limits = _Limits(size, device, budget, host_budget)
    _check_wish(wish, host_budget, on_gpu)
    wanted = size.remembered if slots is None else min(size.remembered, slots)
    rungs = [r for r in LADDER if wish in ("auto", r) and (on_gpu or not r.startswith("host"))]
    plans = [HistoryPlan(size.present, wanted, rung, wanted < size.remembered) for rung in rungs]
    for plan in plans:
        if limits.allow(plan):
            return plan
    return limits.capped(plans[-1])


def _check_wish(wish: Wish, host_budget: int | None, on_gpu: bool) -> None:
    if on_gpu:
        return
    if wish.startswith("host"):
        raise ConfigError(
            f"memory.history: {wish!r} moves rows from a GPU to the host, and the server is on the processor: "
            f"expected 'auto', 'float32' or 'bfloat16', closest {wish.removeprefix('host_')!r}"
        )
    if host_budget is not None:
        raise ConfigError(
            f"memory.host_budget: found {show_bytes(host_budget)}, but the server is on the processor, where "
            "memory.budget is the only limit"
        )


@dataclass(frozen=True, slots=True)
class _Limits:
    size: HistorySize
    device: str
    budget: int | None
    host_budget: int | None

    def allow(self, plan: HistoryPlan) -> bool:
        """Whether a plan is within both budgets."""
        return all(found <= limit for _, found, limit in self._asked(plan))

    def _asked(self, plan: HistoryPlan) -> list[tuple[str, int, int]]:
        """Return each budget that is given: its name, what the plan takes of it, and how much there is."""
        rows, gram = plan.row_bytes(self.size.columns), plan.gram_bytes(self.size.layers)
        on_host = plan.host_bytes(self.size.columns, self.device)
        on_gpu = not _is_cpu(self.device)
        device, host = (rows - on_host, on_host + gram) if on_gpu else (rows + gram, 0)
        asked = [("budget", device, self.budget), ("host_budget", host, self.host_budget)]
        return [(name, found, limit) for name, found, limit in asked if limit is not None]

    def capped(self, plan: HistoryPlan) -> HistoryPlan:
        """Return the plan with as many remembered rows as fit."""

        def with_rows(remembered: int) -> HistoryPlan:
            return replace(plan, remembered=remembered, capped=True)

        most = bisect_right(range(plan.remembered), False, key=lambda n: not self.allow(with_rows(n + 1)))
        if not most:
            raise self._refusal(with_rows(min(plan.remembered, 1)))
        return with_rows(most)

    def _refusal(self, least: HistoryPlan) -> ConfigError:
        lines = [
            f"memory.{name}: expected at least {show_bytes(needed)}, for {least.present:,} rows of one step and "
            f"{least.remembered} remembered, found {show_bytes(limit)}"
            for name, needed, limit in self._asked(least)
            if needed > limit
        ]
        return ConfigError("\n".join(lines))

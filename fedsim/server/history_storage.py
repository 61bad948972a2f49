"""Storage of absent clients' rows: the first rung of a ladder of ever smaller histories that fits the memory budgets.

The rungs are float32 on the server's device, bfloat16 there, and, if that device is a GPU, float32 and bfloat16 on the
host. The last rung may remember fewer clients. The choice depends on sizes alone, and is made before a run starts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedsim.common.errors import ConfigError
from fedsim.common.units import show_bytes

Rung = Literal["float32", "bfloat16", "host_float32", "host_bfloat16"]
Wish = Literal["auto"] | Rung

LADDER: tuple[Rung, ...] = ("float32", "bfloat16", "host_float32", "host_bfloat16")
_NUMBER, _ROUNDED, _PRODUCT = 4, 2, 8
"""Bytes of an entry of a float32 row, of a bfloat16 row, and of an inner product."""


def _is_cpu(device: str) -> bool:
    return device.partition(":")[0] == "cpu"


@dataclass(frozen=True, slots=True)
class HistorySize:
    """The size of a history without memory limits."""

    present: int
    """Most rows of one step."""
    remembered: int
    """Most rows of absent clients that the rule may ask for."""
    columns: int
    """P, entries of a row."""
    layers: int
    """L, number of Gram matrices; 0 if the rule needs none."""


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """How many rows a history holds, and how it stores those of absent clients; plain values.

    Present rows are float32 on the server's device in every plan.
    """

    present: int
    remembered: int
    rung: Rung = "float32"
    capped: bool = False
    """Whether the history holds fewer rows than the rule may ask for; it then evicts those received longest ago."""

    @property
    def slots(self) -> int:
        """Return the number of rows that may be alive at once."""
        return self.present + self.remembered

    @property
    def rounds(self) -> bool:
        """Whether a row is rounded when it becomes a remembered one."""
        return self.rung.endswith("bfloat16")

    @property
    def on_host(self) -> bool:
        """Whether the host stores remembered rows although the server is on a GPU."""
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
        """Describe the storage of remembered rows in a few words."""
        device = "host" if self.on_host else "server's device"
        rows = f"{self.remembered:,} remembered rows in {self.rung.removeprefix('host_')} on the {device}"
        return f"{rows}, the oldest given up for new ones" if self.capped else rows


def choose(
    sizes: Sequence[HistorySize],
    *,
    wish: Wish = "auto",
    budget: int | None = None,
    host_budget: int | None = None,
    slots: int | None = None,
    device: str = "cpu",
) -> list[HistoryPlan]:
    """Return a plan for each history of a server: all have the first rung on which they fit together.

    If they do not fit on the last one, all remember at most equally many rows.

    Args:
        sizes: the histories that the rule and the selector may ask for.
        wish: a rung, or "auto" for the whole ladder.
        budget: bytes for the rows on the server's device; on the processor, for the Gram matrices too.
        host_budget: bytes on the host for the Gram matrices and the rows stored there, if the server is on a GPU.
        slots: most remembered rows of each history.
        device: the server's device.

    Raises ConfigError if the present rows and one remembered row do not fit, or if the device has no such rung.
    """
    wanted = [size.remembered if slots is None else min(size.remembered, slots) for size in sizes]
    present, layers = sum(size.present for size in sizes), max(size.layers for size in sizes)
    total = HistorySize(present, sum(wanted), sizes[0].columns, layers)
    plan = _Limits(total, device, budget, host_budget).first_of(_rungs(wish, host_budget, device))
    most = plan.remembered // max(sum(w > 0 for w in wanted), 1) if plan.capped else total.remembered
    if plan.capped and not most:
        raise ConfigError(
            "memory: expected room for a remembered row of the rule and one of the selector, found room for one"
        )
    kept = [min(w, most) for w in wanted]
    return [
        HistoryPlan(size.present, k, plan.rung, k < size.remembered)
        for size, k in zip(sizes, kept, strict=True)
    ]


def _rungs(wish: Wish, host_budget: int | None, device: str) -> list[Rung]:
    """Return the rungs to try. Raises ConfigError for a wish or a budget that the device does not have."""
    on_gpu = not _is_cpu(device)
    if not on_gpu and wish.startswith("host"):
        raise ConfigError(
            f"memory.history: {wish!r} moves rows from a GPU to the host, and the server is on the processor: "
            f"expected 'auto', 'float32' or 'bfloat16', closest {wish.removeprefix('host_')!r}"
        )
    if not on_gpu and host_budget is not None:
        raise ConfigError(
            f"memory.host_budget: found {show_bytes(host_budget)}, but the server is on the processor, where "
            "memory.budget is the only limit"
        )
    return [rung for rung in LADDER if wish in ("auto", rung) and (on_gpu or not rung.startswith("host"))]


@dataclass(frozen=True, slots=True)
class _Limits:
    size: HistorySize
    device: str
    budget: int | None
    host_budget: int | None

    def first_of(self, rungs: Sequence[Rung]) -> HistoryPlan:
        """Return the plan with the first rung that fits, or the last one with as many remembered rows as fit."""
        plans = [HistoryPlan(self.size.present, self.size.remembered, rung) for rung in rungs]
        return next(filter(self.allow, plans), None) or self.capped(plans[-1])

    def allow(self, plan: HistoryPlan) -> bool:
        """Whether a plan is within both budgets."""
        return all(needed <= limit for _, needed, limit in self._demands(plan))

    def _demands(self, plan: HistoryPlan) -> list[tuple[str, int, int]]:
        """Return for each configured budget its name, the bytes that the plan needs of it, and its limit."""
        rows, gram = plan.row_bytes(self.size.columns), plan.gram_bytes(self.size.layers)
        on_host = plan.host_bytes(self.size.columns, self.device)
        on_gpu = not _is_cpu(self.device)
        device, host = (rows - on_host, on_host + gram) if on_gpu else (rows + gram, 0)
        budgets = [("budget", device, self.budget), ("host_budget", host, self.host_budget)]
        return [(name, needed, limit) for name, needed, limit in budgets if limit is not None]

    def capped(self, plan: HistoryPlan) -> HistoryPlan:
        """Return the plan with as many remembered rows as fit. Raises ConfigError if not even one does."""

        def with_rows(remembered: int) -> HistoryPlan:
            return replace(plan, remembered=remembered, capped=True)

        most = bisect_right(range(plan.remembered), False, key=lambda n: not self.allow(with_rows(n + 1)))
        if most:
            return with_rows(most)
        least = with_rows(min(plan.remembered, 1))
        lines = [
            f"memory.{name}: expected at least {show_bytes(needed)}, for {least.present:,} rows of one step and "
            f"{least.remembered} remembered, found {show_bytes(limit)}"
            for name, needed, limit in self._demands(least)
            if needed > limit
        ]
        raise ConfigError("\n".join(lines))

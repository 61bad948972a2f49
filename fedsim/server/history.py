"""The gradient history: rows in preallocated tensors, and their Gram matrix, updated as rows come and go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common.errors import RunError
from fedsim.server.columns import Chosen, combine_columns
from fedsim.server.gram import (
    Blocks,
    Rows,
    add_weighted,
    block_products,
    equal_slices,
    mixed_products,
    weighted_sum,
)
from fedsim.server.history_storage import HistoryPlan
from fedsim.server.rule import Columns, Floats, GramLevel, Ints, Needs

_FREE = -1
_LEVELS = ("none", "model", "blocks")
_TAKEN = 16
"""Rows of a Gram matrix that are read together, so few that they stay in the cache while their columns are picked."""


@dataclass(slots=True, eq=False)
class _Tier:
    """Rows of one precision on one device, and the first of their slots."""

    rows: torch.Tensor
    first: int
    high: int = 0
    """Rows at and above this were never written; products and sums must not read them."""

    @property
    def used(self) -> torch.Tensor:
        return self.rows[: self.high]

    @property
    def span(self) -> slice:
        """The slots of the used rows."""
        return slice(self.first, self.first + self.high)

    def of(self, slots: Ints) -> Ints:
        """Return the places in this tier of those of `slots` that belong to it."""
        return slots[(slots >= self.first) & (slots < self.first + len(self.rows))] - self.first

    def write(self, slots: Ints, rows: Rows) -> None:
        """Copy k rows [P] from any device into their slots [k]."""
        self.high = max(self.high, int(slots.max(initial=-1)) + 1 - self.first)
        put(self.rows, slots - self.first, rows)

    def take(self, places: Ints) -> torch.Tensor:
        """Return rows `[k, P]`, a view where their places are neighbours."""
        if _neighbours(places):
            return self.rows[int(places[0]) : int(places[0]) + len(places)]
        return self.rows[torch.from_numpy(places).to(self.rows.device)]


def put(into: torch.Tensor, places: Ints, rows: Rows) -> None:
    """Copy k rows [P] from any device into `into` [n, P], in one call if their places are neighbours in both.

    On a GPU, where each copy costs a call, rows that are there are stacked and copied at once. On the processor that
    would take twice as long as copying one row after the other.
    """
    if len(places) != len(rows):
        raise ValueError(f"expected {len(places)} rows for as many places, found {len(rows)}")
    if not len(places):
        return
    if into.is_cuda and not isinstance(rows, torch.Tensor) and all(row.device == into.device for row in rows):
        rows = torch.stack(list(rows))
    if isinstance(rows, torch.Tensor) and _neighbours(places):
        into[int(places[0]) : int(places[0]) + len(places)].copy_(rows)
    elif isinstance(rows, torch.Tensor) and into.is_cuda:
        into.index_copy_(0, torch.from_numpy(places).to(into.device), rows.to(into.device, into.dtype))
    else:
        for place, row in zip(places.tolist(), rows, strict=True):
            into[place].copy_(row)


def _neighbours(places: Ints) -> bool:
    return np.array_equal(places, np.arange(places[0], places[0] + len(places)))


class GradientHistory:
    """Rows `[slots, P]`, at most one remembered row per client, plus the rows of the step being taken.

    A slot holds a row, its client, the step that received it and the client's report. `k` new rows cost one
    `[k, P] x [P, slots]` product instead of `slots^2` inner products. If the plan stores remembered rows in another
    precision or on another device, they move to other slots when a step ends. A rounded row replaces the original for
    all purposes: its inner products are computed again, together with those of the next step.

    Args:
        size: the storage of rows. A number means so many slots in one tensor, for the rows of one step and the
            remembered ones (see `slots_needed`).
        blocks: column ranges of the layers; used block by block if the rule needs "blocks", else as one.
        needs: the rule's needs; a rule without inner products needs no Gram matrix, and without memory no row outlives
            its step.
        dtype: of the present rows.
        gram: level of the Gram matrix, if finer than the rule needs.
    """

    def __init__(
        self,
        size: int | HistoryPlan,
        blocks: Blocks,
        needs: Needs,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        gram: GramLevel = "none",
    ) -> None:
        plan = HistoryPlan(size, 0) if isinstance(size, int) else size
        level = max(needs.gram, gram, key=_LEVELS.index)
        if needs.slices:
            blocks = equal_slices(blocks[-1][1], len(blocks))
        whole = [(blocks[0][0], blocks[-1][1])]
        self.blocks = list(blocks) if level == "blocks" else whole
        self.memory, self.plan, self.level = needs.memory, plan, needs.gram
        # A sum over blocks rounds differently: recording must not change what the rule sees.
        self._spans = self.blocks + (whole if level == "blocks" and self.level == "model" else [])
        self.tiers = _tiers(plan, blocks[-1][1], device, dtype)
        layers = 0 if level == "none" else len(self._spans)
        self.grams: Floats = np.zeros((layers, plan.slots, plan.slots))
        """[L, slots, slots]; the system allocates memory for written parts only."""
        self.client: Ints = np.full(plan.slots, _FREE, dtype=np.int64)
        self.received: Ints = np.zeros(plan.slots, dtype=np.int64)
        self.received_us: Ints = np.zeros(plan.slots, dtype=np.int64)
        self.notes: dict[str, NDArray[Any]] = {}
        self.evicted = 0
        """Remembered rows evicted so far because the plan has room for fewer than the rule may ask for."""
        self._keeps_replaced = needs.replaced
        self._replaced: NDArray[np.bool_] = np.zeros(plan.slots, dtype=bool)
        """[slots] remembered rows of clients that are present in the step being taken."""
        self._owed: NDArray[np.bool_] = np.zeros(plan.slots, dtype=bool)
        """[slots] rows whose inner products are not computed yet."""
        facts = {"client": self.client, "received": self.received, "received_us": self.received_us}
        self._columns: dict[str, NDArray[Any]] = {**facts, "owed": self._owed}
        """The arrays about slots, by their names in a checkpoint."""

    def add(
        self, rows: Rows, clients: Ints, step: int, notes: Mapping[str, NDArray[Any]], now_us: int = 0
    ) -> Ints:
        """Write the rows received by server step `step` over each client's remembered row; returns the slots.

        `rows` are k tensors [P] on any device, which are copied once; `notes` are arrays [k] to keep beside the rows by
        name. The slots are valid until `settle`, and so are the rows written over if the rule needs them.
        """
        replaced = np.isin(self.client, clients)
        if self._keeps_replaced:
            self._replaced |= replaced
        else:
            self.client[replaced] = _FREE
        slots = self._free(self.tiers[0], len(rows))
        self.tiers[0].write(slots, rows)
        self.client[slots], self.received[slots], self.received_us[slots] = clients, step, now_us
        for name, values in notes.items():
            column = self.notes.setdefault(name, np.zeros(len(self.client), dtype=values.dtype))
            column[slots] = values
        self._owed[slots] = True
        return slots

    def _free(self, tier: _Tier, k: int) -> Ints:
        owners = self.client[tier.first : tier.first + len(tier.rows)]
        slots = tier.first + np.flatnonzero(owners == _FREE)[:k]
        if len(slots) < k:
            raise ValueError(f"the history has {len(tier.rows)} slots, too few for {k} more rows")
        return slots

    def _extend_grams(self) -> None:
        """Compute the inner products that are missing."""
        owed = np.flatnonzero(self._owed & (self.client != _FREE))
        self._owed[:] = False
        if not len(owed):
            return
        device = self.tiers[0].rows.device
        left = [tier.take(places).to(device) for tier in self.tiers if len(places := tier.of(owed))]
        for tier in self.tiers:
            if tier.high:
                if len(left) == 1:
                    products = block_products(left[0], tier.used, self._spans)  # [L, k, high]
                else:
                    products = mixed_products(left, tier.used, self._spans)
                self.grams[:, tier.span, owed] = products.transpose(0, 2, 1)
                self.grams[:, owed, tier.span] = products
        # A product of two new rows was computed twice; keep one of the two so that the matrix is exactly symmetric.
        corner = self.grams[:, owed[:, None], owed]
        lower = np.tril(np.ones(corner.shape[1:], dtype=bool))
        self.grams[:, owed[:, None], owed] = np.where(lower, corner, corner.transpose(0, 2, 1))

    def row(self, slot: int) -> torch.Tensor:
        """Return the row [P] in a slot, a view."""
        tier = next(t for t in reversed(self.tiers) if slot >= t.first)
        return tier.rows[slot - tier.first]

    def order(self, present: Ints) -> Ints:
        """Return the slots of a step's Stack: present rows, then remembered and replaced ones, each by client."""
        others = self.client != _FREE
        others[present] = False
        groups = (np.flatnonzero(others & (self._replaced == last)) for last in (False, True))
        return np.concatenate([present, *(slots[np.argsort(self.client[slots])] for slots in groups)])

    @property
    def replaced(self) -> int:
        """Number of rows of this step's clients that were remembered before it; 0 unless the rule needs them."""
        return int(np.count_nonzero(self._replaced))

    def grams_of(self, slots: Ints) -> Floats:
        """Return the Gram matrices of `slots`: `[L, n, n]` of the blocks, then the rule's matrix if it differs."""
        if len(self.grams):
            self._extend_grams()
        out = np.empty((len(self.grams), len(slots), len(slots)))
        for gram, part in zip(self.grams, out, strict=True):
            # Rows first, then columns: indexing both at once takes many times as long.
            for a in range(0, len(slots), _TAKEN):
                some = slice(a, a + _TAKEN)
                np.take(np.take(gram, slots[some], axis=0), slots, axis=1, out=part[some], mode="clip")
        return out

    def of_rule(self, grams: Floats) -> Floats:
        """Return the matrices of `grams_of` that the rule declared."""
        return {"none": grams[:0], "model": grams[-1:], "blocks": grams}[self.level]

    def combine(self, slots: Ints, weights: Floats) -> torch.Tensor:
        """Return the `[P]` weighted sum of the rows in `slots`; `weights` is `[n]` or `[L, n]` (see `Direction`)."""
        table = np.atleast_2d(weights)
        if len(table) not in (1, len(self.blocks)):
            raise RunError(
                f"expected weights of a rule for 1 block or all {len(self.blocks)}, found some for {len(table)} blocks"
            )
        spread = np.zeros((len(table), len(self.client)))
        spread[:, slots] = table
        first, *others = self.tiers
        out = weighted_sum(first.used, spread[:, first.span], self.blocks)
        for tier in others:
            add_weighted(out, tier.used, spread[:, tier.span], self.blocks)
        return out

    def combine_columns(self, slots: Ints, factors: Floats, columns: Columns) -> torch.Tensor:
        """Return `[P]`: what `columns` makes of each column of the rows in `slots`, times their `factors` [n].

        Rows of factor 0 are left out. Those that are rounded or on the host are read a tile at a time.
        """
        spread = np.zeros(len(self.client))
        spread[slots] = factors
        chosen = [Chosen.of(tier.used, spread[tier.span]) for tier in self.tiers]
        present = self.tiers[0].rows
        return combine_columns(chosen, columns, present.new_empty(present.shape[1]))

    def inner(self, slots: Ints, vector: torch.Tensor) -> tuple[Floats, Floats]:
        """Return the inner products `[L, n]` of the rows in `slots` with `vector` [P], and its squared norms `[L]`."""
        products, one = np.zeros((len(self.blocks), len(self.client))), vector[None]
        for tier in self.tiers:
            if tier.high:
                products[:, tier.span] = mixed_products([one], tier.used, self.blocks)[:, 0]
        return products[:, slots], mixed_products([one], one, self.blocks)[:, 0, 0]

    def settle(self, present: Ints) -> None:
        """End a step: its rows become remembered ones, the last row of each client if it sent several."""
        self.client[self._replaced], self._replaced[:] = _FREE, False
        if self.memory == 0:
            self.client[present] = _FREE
            return
        _, last = np.unique(self.client[present][::-1], return_index=True)
        self.client[np.delete(present, len(present) - 1 - last)] = _FREE
        if len(present):  # rows that the next step would forget need no room
            self.forget(int(self.received[present].max()) + 1)
        if self.plan.remembered:  # an uncapped history overflows only in a fork whose parent had larger steps
            self._make_room(self.plan.remembered)
        if len(self.tiers) > 1:
            self._move(present[self.client[present] != _FREE])

    def _make_room(self, most: int) -> None:
        """Forget the rows received longest ago, those of equal time by client, until `most` are left."""
        alive = np.flatnonzero(self.client != _FREE)
        excess = len(alive) - most
        if excess <= 0:
            return
        by_age = np.lexsort((self.client[alive], self.received_us[alive], self.received[alive]))
        self.client[alive[by_age[:excess]]] = _FREE
        self.evicted += excess

    def _move(self, old: Ints) -> None:
        """Move settled rows to slots for remembered ones, and round them if the plan does."""
        fresh, kept = self.tiers
        new = self._free(kept, len(old))
        kept.write(new, fresh.rows[torch.from_numpy(old).to(fresh.rows.device)])
        for column in (*self._columns.values(), *self.notes.values()):
            column[new] = column[old]
        self.client[old], fresh.high = _FREE, 0
        self._owed[new] |= self.plan.rounds
        if len(self.grams) and not self.plan.rounds:  # the same rows have the same products
            self.grams[:, new] = self.grams[:, old]
            self.grams[:, :, new] = self.grams[:, :, old]

    def state(self) -> dict[str, Any]:
        """Return the remembered rows for a checkpoint, between two steps: views [P] by tier, and their facts.

        The views are valid until the next step.
        """
        alive = np.flatnonzero(self.client != _FREE)
        return {
            "slots": alive,
            "rows": [[tier.rows[place] for place in tier.of(alive).tolist()] for tier in self.tiers],
            "high": [tier.high for tier in self.tiers],
            "columns": {name: column[alive] for name, column in self._columns.items()},
            "notes": {name: column[alive] for name, column in self.notes.items()},
            "grams": self.grams[:, alive[:, None], alive],
            "evicted": self.evicted,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a history of the same plan."""
        slots = state["slots"]
        for tier, rows, high in zip(self.tiers, state["rows"], state["high"], strict=True):
            tier.high = high
            tier.used.zero_()  # memory that was never written may hold NaN
            tier.write(tier.of(slots) + tier.first, rows)
        for name, column in self._columns.items():
            column[slots] = state["columns"][name]
        for name, values in state["notes"].items():
            self.notes[name] = np.zeros(len(self.client), dtype=values.dtype)
            self.notes[name][slots] = values
        self.grams[:, slots[:, None], slots] = state["grams"]
        self.evicted = state["evicted"]

    def inherit(self, state: Mapping[str, Any], usable: Callable[[Mapping[str, Any]], Any]) -> None:
        """Take over the rows of a history of another plan or rule that are `usable(notes)` [n].

        If there is room for fewer rows, those received last stay.
        """
        columns, rows = state["columns"], [row.float() for tier in state["rows"] for row in tier]
        kept = np.broadcast_to(usable(state["notes"]), len(rows)) if rows else np.zeros(0, dtype=bool)
        when = np.stack([columns["received"], columns["received_us"]], axis=1)
        for step, now_us in np.unique(when[kept], axis=0).tolist():
            together = np.flatnonzero(kept & (when == (step, now_us)).all(axis=1))
            for a in range(0, len(together), self.plan.present):
                which = together[a : a + self.plan.present]
                notes = {name: values[which] for name, values in state["notes"].items()}
                slots = self.add([rows[i] for i in which], columns["client"][which], step, notes, now_us)
                self.settle(slots)

    def forget(self, step: int, before_us: int | None = None) -> None:
        """Forget rows too old for the rule at server step `step`, or received before `before_us`."""
        if math.isfinite(self.memory):
            self.client[step - self.received > self.memory] = _FREE
        if before_us is not None:
            self.client[self.received_us < before_us] = _FREE


def _tiers(plan: HistoryPlan, columns: int, device: torch.device, dtype: torch.dtype) -> list[_Tier]:
    """Allocate the tensors; the system allocates memory for written parts only."""
    apart = plan.rounds or plan.on_host
    fresh = torch.empty(plan.present if apart else plan.slots, columns, dtype=dtype, device=device)
    if not apart:
        return [_Tier(fresh, 0)]
    place = torch.device("cpu") if plan.on_host else device
    kept = torch.empty(plan.remembered, columns, dtype=torch.bfloat16 if plan.rounds else dtype, device=place)
    return [_Tier(fresh, 0), _Tier(kept, plan.present)]


def slots_needed(n_clients: int, most_updates: int, memory: float) -> int:
    """Return the slots for steps of at most `most_updates` rows, if `n_clients` are remembered for `memory` steps."""
    remembered = n_clients if math.isinf(memory) else min(n_clients, int(memory) * most_updates)
    return most_updates + remembered

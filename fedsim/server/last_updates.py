"""The last update of each client, for selectors that ask for its norm or for inner products."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedsim.server.gram import Rows
from fedsim.server.history import GradientHistory
from fedsim.server.history_storage import HistoryPlan
from fedsim.server.rule import Floats, Ints, Needs
from fedsim.server.step_input import StepInput


class LastUpdates:
    """The norm of each client's last update that a step received, and on request the update itself.

    It lies apart from the rule's history, so that the rule sees the same rows, bit for bit, under any selector that
    chooses the same clients, and a rule without memory can be combined with a selector that needs one. Updates are as
    they were received, `start - end`, after the policy for bad updates.

    Args:
        n_clients: K.
        plan: the storage of the updates; None keeps norms alone.
        columns: P, entries of an update.
        device: the server's device.
        dtype: of the updates of a step.
    """

    def __init__(
        self,
        n_clients: int,
        plan: HistoryPlan | None,
        columns: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device = device
        self.norms: Floats = np.full(n_clients, math.nan)
        """[K] NaN for clients without an update."""
        self.history: GradientHistory | None = None
        if plan is not None:
            needs = Needs(gram="model", memory=math.inf)
            self.history = GradientHistory(plan, [(0, columns)], needs, device, dtype)

    def add(self, arrivals: StepInput, rows: Rows) -> None:
        """Keep the updates of a step; of several updates of a client, a late one comes before those that count."""
        m, n = arrivals.m, len(arrivals.clients)
        late = m + np.argsort(-arrivals.staleness[m:], kind="stable")
        order = np.concatenate([late, np.arange(m)]).astype(np.int64)
        clients = arrivals.clients[order]
        ordered = [rows[i] for i in order.tolist()]
        self.norms[clients] = [self._norm(row) for row in ordered]
        if self.history is None:
            return
        most = self.history.plan.present
        for a in range(0, n, most):
            some = slice(a, a + most)
            slots = self.history.add(ordered[some], clients[some], arrivals.step, {}, arrivals.now_us)
            self.history.settle(slots)

    def _norm(self, row: torch.Tensor) -> float:
        return float(torch.linalg.vector_norm(row.to(self.device), dtype=torch.float64))

    def products(self, clients: Ints) -> Floats:
        """Return the inner products [c, c] of the updates of `clients`; NaN where the server has none."""
        assert self.history is not None
        slot_of = np.full(len(self.norms), -1, dtype=np.int64)
        alive = np.flatnonzero(self.history.client >= 0)
        slot_of[self.history.client[alive]] = alive
        slots = slot_of[clients]
        known = np.flatnonzero(slots >= 0)
        products = np.full((len(clients), len(clients)), math.nan)
        products[np.ix_(known, known)] = self.history.grams_of(slots[known])[0]
        return products

    def state(self) -> dict[str, Any]:
        """Return the norms and the updates for a checkpoint; views of the updates are valid until the next step."""
        return {"norms": self.norms, "history": None if self.history is None else self.history.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a server of the same spec."""
        self.norms = state["norms"].copy()
        if self.history is not None:
            self.history.restore(state["history"])

    def inherit(self, saved: Mapping[str, Any]) -> None:
        """Take over what a server of another spec kept: for its selector, or else in the history of its rule."""
        before = saved["updates"] or {"history": None}
        history = before["history"] or saved["history"]
        if "norms" in before:
            self.norms = before["norms"].copy()
        else:
            rows = [row for tier in history["rows"] for row in tier]
            self.norms[history["columns"]["client"]] = [self._norm(row) for row in rows]
        if self.history is not None:
            self.history.inherit({**history, "notes": {}}, lambda notes: True)

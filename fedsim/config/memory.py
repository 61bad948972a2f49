"""`[memory]`: how the server stores the history."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.config.section import Count, Section, Size
from fedsim.server.history_storage import LADDER, HistoryPlan, HistorySize, Wish, choose


class MemorySection(Section):
    """`[memory]`: how the server stores the history, the remembered updates of absent clients; see docs/memory.md."""

    history: Wish = "auto"
    """Storage of the history. `auto` takes the first storage that fits into the budget, and float32 without a budget.
    """
    budget: Size | None = None
    """Most memory of the history on the server's device, such as `"8 GB"`; on the CPU it includes the Gram matrices."""
    host_budget: Size | None = None
    """Most memory of the Gram matrices and of updates stored on the host, if the server is on a GPU."""
    slots: Count | None = None
    """Most clients whose updates are remembered."""

    @property
    def limited(self) -> bool:
        """Whether a budget decides which storage is chosen."""
        return self.budget is not None or self.host_budget is not None

    @property
    def on_host(self) -> bool:
        """Whether the table is for a server on a GPU, as it stores updates or Gram matrices on the host."""
        return self.history.startswith("host") or self.host_budget is not None

    def plain(self, clients: int) -> MemorySection:
        """Return the table without `auto` and `slots` where these do nothing: no budget, room for all clients."""
        auto = self.history == "auto" and not self.limited
        room = self.slots is not None and self.slots >= clients
        changes = ({"history": LADDER[0]} if auto else {}) | ({"slots": None} if room else {})
        return self.model_copy(update=changes)

    def plans(self, sizes: Sequence[HistorySize], device: str) -> list[HistoryPlan]:
        """Return a plan for each of the server's histories. Raises ConfigError if no storage fits them together."""
        return choose(
            sizes,
            wish=self.history,
            budget=self.budget,
            host_budget=self.host_budget,
            slots=self.slots,
            device=device,
        )

    def chosen(self, plan: HistoryPlan) -> MemorySection:
        """Return the table that gives exactly this plan, the largest of the run's, on any machine without a budget."""
        return MemorySection(history=plan.rung, slots=plan.remembered if plan.capped else None)

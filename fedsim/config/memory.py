"""The table `[memory]`."""

from __future__ import annotations

from fedsim.config.section import Count, Section, Size
from fedsim.server.history_storage import HistoryPlan, HistorySize, Wish, choose


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

    def plan(self, size: HistorySize, device: str) -> HistoryPlan:
        """Return the plan for a history of this size. Raises ConfigError if no storage fits."""
        return choose(
            size,
            wish=self.history,
            budget=self.budget,
            host_budget=self.host_budget,
            slots=self.slots,
            device=device,
        )

    def chosen(self, plan: HistoryPlan) -> MemorySection:
        """Return the table that gives exactly this plan on any machine, without a budget."""
        return MemorySection(history=plan.rung, slots=plan.remembered if plan.capped else None)

"""The table of a configuration that decides how the rows of absent clients are kept: `[memory]`."""

from __future__ import annotations

from fedsim.config.section import Count, Section, Size
from fedsim.server.history_storage import HistoryPlan, HistorySize, Wish, choose


class MemorySection(Section):
    """`[memory]`: how the server keeps the rows of absent clients; see docs/memory.md."""

    history: Wish = "auto"
    """The rung of the ladder; `auto` takes the first one that fits into the budget, float32 without one."""
    budget: Size | None = None
    """For the history on the server's device, such as `"8 GB"`; on the processor it includes the Gram matrices."""
    host_budget: Size | None = None
    """For the Gram matrices and the rows kept on the host, where the server is on a GPU."""
    slots: Count | None = None
    """Most clients remembered."""

    def plan(self, size: HistorySize, device: str) -> HistoryPlan:
        """Return the plan for a history of this size. Raises ConfigError if there is none."""
        return choose(
            size,
            wish=self.history,
            budget=self.budget,
            host_budget=self.host_budget,
            slots=self.slots,
            device=device,
        )

    def chosen(self, plan: HistoryPlan) -> MemorySection:
        """Return the table that asks for exactly this plan, whatever the budget and the machine."""
        return MemorySection(history=plan.rung, slots=plan.remembered if plan.capped else None)

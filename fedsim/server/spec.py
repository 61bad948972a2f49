"""What a server consists of, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.server.gram import Blocks
from fedsim.server.history import slots_needed
from fedsim.server.history_storage import HistoryPlan
from fedsim.server.rule import Algorithm, EvaluatedModel, GramLevel, RowsFrom
from fedsim.server.rule_factory import build_rule
from fedsim.server.update_screening import SKIP, UpdateScreening


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """The parts of a Server as plain values, so that another process can build it."""

    rule: str
    options: Mapping[str, Any]
    n_clients: int
    total_samples: int
    most_updates: int
    blocks: Blocks
    wrap: Sequence[Mapping[str, Any]] = ()
    """Wrappers around the rule, the innermost first: the name of each, and its options."""
    lr: float | None = None
    """The clients' learning rate, for rules that need it."""
    momentum: float | None = None
    """The clients' momentum, for rules that need it."""
    seed: int = 0
    """The run's seed, for rules that draw at random."""
    lr_decay: float = 1.0
    """Factor on the learning rate per server step."""
    conflicts: GramLevel = "none"
    """How finely each step is diagnosed row by row: not at all, for the whole model or block by block."""
    device: str = "cpu"
    rows: RowsFrom = "start"
    """The model that an update is measured from: the one that its job started from, or the current one (FedAsync)."""
    memory_us: int = 0
    """The history forgets rows older than this in virtual time, whatever the rule's window; 0 keeps them."""
    late_rows: int = 0
    """Most jobs that start from one version, if late updates refresh the history; 0 if they do not."""
    history: HistoryPlan | None = None
    """Storage of absent clients' rows; None keeps all that the rule may ask for, in float32."""
    norms: bool = False
    """Whether the selector asks for the norm of each client's last update."""
    updates: HistoryPlan | None = None
    """Storage of each client's last update, for a selector that asks for inner products; None keeps none."""
    evaluated: EvaluatedModel = "last"
    """The model to evaluate, from a rule that has no average of its own."""
    bad_updates: UpdateScreening = SKIP
    """Policy for updates that are not finite, or too long."""

    def algorithm(self) -> Algorithm:
        """Build the rule inside its wrappers."""
        return build_rule(
            self.rule, self.options, self.wrap, lr=self.lr, seed=self.seed, momentum=self.momentum
        )

    def reads_starts(self) -> bool:
        """Whether a step needs the models that its updates started from."""
        return self.rows == "current" or self.algorithm().start == "last"

    def slots(self) -> int:
        """Return the number of rows that the history holds."""
        memory = self.algorithm().needs.memory
        if not (self.late_rows and memory):
            return slots_needed(self.n_clients, self.most_updates, memory)
        # A step holds rows that came in time and rows that did not.
        each = max(self.late_rows, self.most_updates)
        return self.most_updates - each + slots_needed(self.n_clients, each, memory + 1)

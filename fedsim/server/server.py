"""The server: parameters, the gradient history and the rule. A plain object; `actors.py` puts it into a Ray actor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedsim.common.errors import RunError, SolverError
from fedsim.common.stopwatch import Stopwatch
from fedsim.server.audit_comparison import Held, compared, joined
from fedsim.server.conflicts import diagnose, each_row
from fedsim.server.gram import Blocks
from fedsim.server.history import GradientHistory, slots_needed
from fedsim.server.history_storage import HistoryPlan
from fedsim.server.rule import Algorithm, Direction, Floats, GramLevel, Ints, RowsFrom, Stack, State, Vectors
from fedsim.server.rule_check import begun, moved, not_finite, weighed
from fedsim.server.rule_factory import build_rule
from fedsim.server.step_input import StepInput
from fedsim.server.update_screening import SKIP, UpdateScreening, diverged, judge
from fedsim.training.job import Reports
from fedsim.training.precision import device_named

Rows = Sequence[torch.Tensor] | torch.Tensor
"""n vectors [P], or a tensor [n, P]."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What a Server is made of; plain values, so that it can be built in another process."""

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
    seed: int = 0
    """Of the run, for rules that draw at random."""
    lr_decay: float = 1.0
    """What it is multiplied by at each step."""
    conflicts: GramLevel = "none"
    """Whether, and how finely, each step is diagnosed row by row."""
    device: str = "cpu"
    rows: RowsFrom = "start"
    """What an update is the difference to: the model that its job started from, or the current one (FedAsync)."""
    memory_us: int = 0
    """Remembered rows older than this in virtual time are forgotten, whatever the rule's own window; 0: none are."""
    late_rows: int = 0
    """If updates that are too late for their step refresh the history: most jobs that start from one version."""
    history: HistoryPlan | None = None
    """How rows of absent clients are kept; None: all that the rule may ask for, in float32."""
    bad_updates: UpdateScreening = SKIP
    """What is done about updates that are not finite, or too long."""

    def algorithm(self) -> Algorithm:
        """Build the rule inside its wrappers."""
        return build_rule(self.rule, self.options, self.wrap, lr=self.lr, seed=self.seed)

    def slots(self) -> int:
        """Return the number of rows that the history is made for."""
        memory = self.algorithm().needs.memory
        if not (self.late_rows and memory):
            return slots_needed(self.n_clients, self.most_updates, memory)
        # Of a step, those that came in time and those that did not.
        each = max(self.late_rows, self.most_updates)
        return self.most_updates - each + slots_needed(self.n_clients, each, memory + 1)


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A step that is decided but for its length."""

    stack: Stack
    seen: Stack
    """The stack with the inner products that the rule asked for."""
    slots: Ints
    """[n] of the rows of the stack."""
    direction: Direction
    vector: torch.Tensor
    rows: Rows
    """[m] x [P] The updates that count."""
    now_us: int


class Server:
    """Holds the model and turns updates into the next one.

    Args:
        spec: the rule, the sizes and the device.
        initial: `[P]` start parameters.
        clock: where the parts of a step are charged to; the driver's if the server runs in its process.
    """

    def __init__(self, spec: ServerSpec, initial: torch.Tensor, clock: Stopwatch | None = None) -> None:
        self.spec = spec
        self.device = device_named(spec.device)
        self.params = initial.to(self.device).clone()
        self.average: torch.Tensor | None = None
        """An average of iterates, if the rule evaluates one."""
        self.algorithm = spec.algorithm()
        self.state: State = begun(self.algorithm, spec.rule)
        self.vectors: Vectors = {}
        self.clock = clock or Stopwatch()
        self._proposal: _Proposal | None = None
        self._counted: dict[str, Any] = {}
        self._audited: list[dict[str, Any]] = []
        self._evicted = 0
        self.reports = Reports.nothing(0)
        """What the jobs of the proposed step reported; those left out for their length count as not finite."""
        self.proposed: Ints = np.zeros(0, dtype=np.int64)
        """Clients whose updates the proposed step counts."""
        self.history = GradientHistory(
            spec.history or spec.slots(),
            spec.blocks,
            self.algorithm.needs,
            self.device,
            initial.dtype,
            spec.conflicts,
        )
        self.participations: Ints = np.zeros(spec.n_clients, dtype=np.int64)
        self._starts: dict[int, torch.Tensor] = {}
        """By version, the parameters that running jobs started from, where rows are taken from the current model."""

    def save(self) -> dict[str, Any]:
        """Return everything that outlives a step, for a checkpoint."""
        return {
            "params": self.params,
            "average": self.average,
            "state": dict(self.state),
            "vectors": dict(self.vectors),
            "history": self.history.state(),
            "participations": self.participations,
            "starts": [[version, start] for version, start in self._starts.items()],
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on where a server of the same spec was saved."""
        self.params = saved["params"].to(self.device)
        self._load_rule(saved)
        self.history.restore(saved["history"])
        # A copy: what came from another process is not to be written.
        self.participations = saved["participations"].copy()
        self._starts = {version: start.to(self.device) for version, start in saved["starts"]}

    def _load_rule(self, saved: Mapping[str, Any]) -> None:
        self.average = None if saved["average"] is None else saved["average"].to(self.device)
        self.state = saved["state"]
        self.vectors = {name: vector.to(self.device) for name, vector in saved["vectors"].items()}

    def inherit(
        self, saved: Mapping[str, Any], starts: Mapping[int, torch.Tensor], *, same_rule: bool
    ) -> None:
        """Go on where a server of another spec was saved: with its model, and what it remembers if this one does.

        `starts` are by version the models that running jobs started from. Another rule's own state begins anew.
        """
        if same_rule:
            self._load_rule(saved)
        self.params = saved["params"].to(self.device)
        # A copy: what came from another process is not to be written.
        self.participations = saved["participations"].copy()
        self._starts = {version: start.to(self.device) for version, start in starts.items()}
        if self.algorithm.needs.memory:
            known = not self.algorithm.needs.losses
            self.history.inherit(saved["history"], lambda notes: known | np.isfinite(notes["loss"]))

    def step(self, arrivals: StepInput, rows: Rows) -> dict[str, Any]:
        """Apply one step and return its columns of `steps.parquet`, and under "each" those of `conflicts.parquet`.

        No rows: the model stays as it is. For a rule that searches for the length of its step use `propose` and
        `accept`.
        """
        self.propose(arrivals, rows)
        return self.accept(None)

    def propose(self, arrivals: StepInput, rows: Rows) -> torch.Tensor:
        """Find the direction of a step; returns the parameters `[T, P]` to try it with, T = 0 without a search."""
        self._proposal, self._audited, self._evicted = None, [], self.history.evicted
        arrived = arrivals.m
        judged = judge(self.spec.bad_updates, arrivals, rows)
        rows, self.reports = judged.rows, replace(arrivals.reports, finite=judged.usable)
        if not judged.usable.all():
            rows = [row for row, usable in zip(rows, judged.usable.tolist(), strict=True) if usable]
            arrivals = arrivals.usable(judged.usable)
        self._counted = arrivals.columns(arrived) | {"clipped": judged.clipped}
        self.proposed = arrivals.clients[: arrivals.m]
        if self.spec.rows == "current":
            rows = self._from_current(arrivals, rows)
        counted, late = arrivals.split()
        with self.clock.part("gram"):
            self.history.forget(
                arrivals.step, arrivals.now_us - self.spec.memory_us if self.spec.memory_us else None
            )
            if len(late.clients):
                self._remember(late, rows[arrivals.m :])
        if not arrivals.m:
            return self.params[:0].reshape(0, len(self.params))
        arrivals, rows = counted, rows[: arrivals.m]
        n_seen = int(np.count_nonzero(self.participations))
        np.add.at(self.participations, arrivals.clients, 1)
        with self.clock.part("gram"), np.errstate(over="ignore", invalid="ignore"):  # looked at below
            present = self.history.add(
                rows, arrivals.clients, arrivals.step, arrivals.notes(), arrivals.now_us
            )
            slots = self.history.order(present)
            stack, seen = self._stacks(slots, arrivals, n_seen)
        if not all(np.isfinite(np.einsum("bii->bi", grams)).all() for grams in (stack.grams, seen.grams)):
            raise self._diverged("updates with squared norms that are not finite", stack, rows)
        with self.clock.part("solve"):
            direction, self.state = self._weigh(seen, rows)
        with self.clock.part("combine"):
            vector = self.history.combine(slots, direction.weights)
            vector, self.vectors = moved(self.algorithm, vector, self.vectors, arrivals.step, self.spec.rule)
        self._proposal = _Proposal(stack, seen, slots, direction, vector, rows, arrivals.now_us)
        steps = direction.search.steps if direction.search else ()
        return self.params - torch.tensor(steps, dtype=vector.dtype, device=vector.device)[:, None] * vector

    def _remember(self, late: StepInput, rows: Rows) -> None:
        """Let rows refresh the history, each as if it had come in time for the step of its version.

        Those that do count as received, as they would have then.
        """
        versions, memory = late.step - late.staleness, self.algorithm.needs.memory
        in_time = replace(late, staleness=np.zeros_like(late.staleness))  # its age is all of its lateness
        for i in np.argsort(versions, kind="stable").tolist():
            if memory and late.staleness[i] <= memory:
                one, row, version = in_time.part(slice(i, i + 1)), rows[i : i + 1], int(versions[i])
                self.history.settle(self.history.add(row, one.clients, version, one.notes(), one.now_us))
                self.participations[one.clients] += 1

    def _from_current(self, arrivals: StepInput, rows: Rows) -> list[torch.Tensor]:
        """Turn rows `start - end` into `current - end`."""
        self._starts[arrivals.step] = self.params
        versions = (arrivals.step - arrivals.staleness).tolist()
        turned = [
            row if version == arrivals.step else row.to(self.device) + (self.params - self._starts[version])
            for row, version in zip(rows, versions, strict=True)
        ]
        for version in [v for v in self._starts if v < arrivals.oldest_version]:
            del self._starts[version]
        return turned

    def audit(self, clients: Ints, rows: Rows) -> None:
        """Compare what `clients` [a] would send now, `rows` [a] x [P], with what is held of them at the proposed step.

        `accept` returns what comes out, under "audited"; a step without updates is not audited.
        """
        if self._proposal is not None and len(clients):
            p = self._proposal
            held = Held(self.history, p.slots, p.stack, p.direction, p.vector, p.now_us)
            self._audited.append(compared(held, clients, rows))

    def accept(self, losses: Floats | None) -> dict[str, Any]:
        """Take the proposed step, as long as `losses` [T, m] of the present clients after the trials say."""
        proposal, self._proposal = self._proposal, None
        if proposal is None:
            return {"status": "empty"} | self._counted | {"evicted": self.history.evicted - self._evicted}
        search, length = proposal.direction.search, 1.0
        if search is not None and losses is not None:
            length = search.steps[search.choose(losses)]
        norm = self._move(length * proposal.vector, proposal)
        self.history.settle(proposal.slots[: proposal.stack.m])
        self._counted["evicted"] = self.history.evicted - self._evicted
        if self._audited:
            self._counted["audited"] = joined(self._audited)
        with self.clock.part("diagnose"):
            columns = self._columns(proposal, norm)
        return columns | self._counted | {"step_length": length}

    def _move(self, vector: torch.Tensor, proposal: _Proposal) -> float:
        """Change the parameters and return the length of the step.

        A norm that float32 holds bounds each entry by 2e19, so the parameters stay finite as well.
        """
        direction, norm = proposal.direction, float(vector.norm())
        if not math.isfinite(norm):
            raise self._diverged(f"a direction with norm {norm}", proposal.stack, proposal.rows)
        before = self.params
        self.params = (before if direction.keep == 1.0 else direction.keep * before) - vector
        if direction.average is not None:
            so_far = before if self.average is None else self.average
            self.average = torch.lerp(so_far, self.params, direction.average)
        return norm

    def _columns(self, proposal: _Proposal, norm: float) -> dict[str, Any]:
        stack, direction = proposal.stack, proposal.direction
        weights = np.atleast_2d(direction.weights)
        still = norm == 0.0 and direction.keep == 1.0
        columns: dict[str, Any] = {
            "status": "still" if still else "applied",
            "direction_norm": norm,
            "remembered": int(np.any(weights[:, stack.m :], axis=0).sum()),
            "max_weight": float(weights.max()),
        }
        if len(stack.grams):
            whole = proposal.seen.grams[0] if len(proposal.seen.grams) == 1 else None
            diagnosis = diagnose(stack, direction, whole)
            columns |= diagnosis.numbers()
            present = (stack.gram() if whole is None else whole)[: stack.m, : stack.m]
            columns["mean_norm"] = math.sqrt(max(present.sum(), 0.0)) / stack.m
            if self.spec.conflicts != "none":
                columns["each"] = each_row(stack, diagnosis, self.spec.conflicts == "blocks")
        return columns | dict(direction.diagnostics)

    def _stacks(self, slots: Ints, arrivals: StepInput, n_seen: int) -> tuple[Stack, Stack]:
        """Return the stack with the inner products that are recorded, and with those that the rule asked for."""
        history = self.history
        clients, grams = history.client[slots], history.grams_of(slots)
        notes = {name: column[slots] for name, column in history.notes.items()}
        after = self.algorithm.needs.after
        stack = Stack(
            grams=grams[: len(history.blocks)],
            m=len(arrivals.clients),
            clients=clients,
            losses=notes["loss"],
            n_samples=notes["n_samples"],
            ages=arrivals.step - history.received[slots],
            staleness=notes["staleness"],
            participations=self.participations[clients],
            online=np.isin(clients, arrivals.online),
            step=arrivals.step,
            n_clients=self.spec.n_clients,
            total_samples=self.spec.total_samples,
            n_seen=n_seen,
            losses_after=notes["loss_after"] if after else None,
            accuracies_after=notes["accuracy_after"] if after else None,
            lr_decay=self.spec.lr_decay,
        )
        return stack, replace(stack, grams=history.of_rule(grams))

    def _diverged(self, what: str, stack: Stack, rows: Rows) -> RunError:
        return diverged(what, stack.step, self.spec.rule, stack.clients[: stack.m], rows)

    def _weigh(self, stack: Stack, rows: Rows) -> tuple[Direction, State]:
        if self.algorithm.needs.losses and not np.isfinite(stack.losses[: stack.m]).all():
            raise self._diverged("losses that are not finite", stack, rows)
        try:
            direction, state = weighed(self.algorithm, stack, self.state, self.spec.rule)
        except SolverError as error:
            clients = ", ".join(map(str, stack.clients[: stack.m].tolist()[:20]))
            message = f"step {stack.step}, rule {self.spec.rule!r}, clients {clients}: {error}"
            raise SolverError(message, error.matrix) from error
        if not np.isfinite(direction.weights).all():
            raise self._diverged(not_finite(self.algorithm), stack, rows)
        return direction, state

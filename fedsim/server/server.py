"""The server: parameters, gradient history and rule, in a plain object that a Ray actor can hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common.errors import RunError, SolverError
from fedsim.common.stopwatch import Stopwatch
from fedsim.server.audit_comparison import Audited, compared
from fedsim.server.decision import Decision, Proposal
from fedsim.server.evaluated_average import EvaluatedAverage
from fedsim.server.gram import Rows
from fedsim.server.history import GradientHistory
from fedsim.server.last_updates import LastUpdates
from fedsim.server.rule import (
    Direction,
    Floats,
    Ints,
    Stack,
    State,
    StepFacts,
    Vectors,
)
from fedsim.server.rule_check import (
    apply_vector_step,
    checked_columns,
    fault_in_weights,
    initial_state,
    weigh,
    weights_in_sum,
)
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.server.update_screening import diverged, screen
from fedsim.training.precision import device_named

Starts = Mapping[int, torch.Tensor]
"""By version, the models [P] that jobs started from, each with the vectors behind it that the rule sent."""
NO_STARTS: Starts = MappingProxyType({})


def sent_with(params: torch.Tensor, vectors: Vectors, sends: Sequence[str]) -> torch.Tensor:
    """Return the parameters [P], and behind them each of the `vectors` named in `sends`, zeros where it is missing."""
    if not sends:
        return params
    none = torch.zeros_like(params)
    return torch.cat([params, *(vectors.get(name, none) for name in sends)])


class Server:
    """Holds the model and turns updates into the next one.

    Args:
        spec: the rule, the sizes and the device.
        initial: `[P]` start parameters.
        clock: the stopwatch for the parts of a step; the driver's if the server runs in its process.
    """

    def __init__(self, spec: ServerSpec, initial: torch.Tensor, clock: Stopwatch | None = None) -> None:
        self.spec = spec
        self.device = device_named(spec.device)
        self.params = initial.to(self.device).clone()
        self._evaluated = EvaluatedAverage(spec.evaluated, spec.rule)
        self.algorithm = spec.algorithm()
        self.state: State = initial_state(self.algorithm, spec.rule)
        self.first_step = 0
        """Server step at which the rule took over."""
        self.vectors: Vectors = {}
        self.clock = clock or Stopwatch()
        size, needs = spec.history or spec.slots(), self.algorithm.needs
        self.history = GradientHistory(size, spec.blocks, needs, self.device, initial.dtype, spec.conflicts)
        self.updates: LastUpdates | None = None
        """What the server keeps for the selector."""
        if spec.norms or spec.updates:
            self.updates = LastUpdates(
                spec.n_clients, spec.updates, len(self.params), self.device, initial.dtype
            )
        self.participations: Ints = np.zeros(spec.n_clients, dtype=np.int64)

    @property
    def average(self) -> torch.Tensor | None:
        """The average of models [P] to evaluate in place of the parameters; None if there is none."""
        return self._evaluated.model

    @property
    def sent(self) -> torch.Tensor:
        """What a job starts from: the parameters, and behind them each vector that the rule sends, [(1 + D) P]."""
        return sent_with(self.params, self.vectors, self.algorithm.sends)

    def save(self) -> dict[str, Any]:
        """Return everything that outlives a step, for a checkpoint."""
        return {
            "params": self.params,
            **self._evaluated.state(),
            "state": dict(self.state),
            "first_step": self.first_step,
            "vectors": dict(self.vectors),
            "history": self.history.state(),
            "updates": None if self.updates is None else self.updates.state(),
            "participations": self.participations,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore the state of a server of the same spec."""
        self._load_model(saved)
        self._load_rule(saved)
        self._evaluated.inherit(saved, self.device, same_rule=True)
        self.history.restore(saved["history"])
        if self.updates is not None:
            self.updates.restore(saved["updates"])

    def _load_model(self, saved: Mapping[str, Any]) -> None:
        self.params = saved["params"].to(self.device)
        # A copy: arrays from another process may be read-only.
        self.participations = saved["participations"].copy()

    def _load_rule(self, saved: Mapping[str, Any]) -> None:
        self.state, self.first_step = saved["state"], saved.get("first_step", 0)
        self.vectors = {name: vector.to(self.device) for name, vector in saved["vectors"].items()}

    def inherit(self, saved: Mapping[str, Any], step: int, *, same_rule: bool) -> None:
        """Take over the model of a server of another spec, and its updates if this server's rule or selector keeps any.

        The rule's own state carries over for the `same_rule` alone; another rule begins at `step`.
        """
        self._load_model(saved)
        self._evaluated.inherit(saved, self.device, same_rule=same_rule)
        if same_rule:
            self._load_rule(saved)
        else:
            self.first_step = step
        if self.algorithm.needs.memory:
            self.history.inherit(saved["history"], self._usable)
        if self.updates is not None:
            self.updates.inherit(saved)

    def _usable(self, notes: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Return [k] which rows of another rule's history came with the reports that this rule reads of them."""
        needs = self.algorithm.needs
        if needs.reports_of_present:
            return np.ones(len(notes["loss"]), dtype=bool)
        read = ["loss"] * needs.losses + ["loss_after", "accuracy_after"] * needs.after
        usable = np.ones(len(notes["loss"]), dtype=bool)
        for name in read:
            usable &= np.isfinite(notes[name])
        return usable

    def step(self, arrivals: StepInput, rows: Rows, starts: Starts = NO_STARTS) -> dict[str, Any]:
        """Apply one step and return its columns of `steps.parquet`, and under "each" those of `conflicts.parquet`.

        Without rows the model stays as it is. For a rule that searches for the length of its step use `propose` and
        `accept`.
        """
        return self.accept(self.propose(arrivals, rows, starts))

    def propose(self, arrivals: StepInput, rows: Rows, starts: Starts = NO_STARTS) -> Proposal:
        """Find the direction of a step, and the models to try it with; `accept` takes the step.

        A row is an update, and behind it each vector that the rule receives, [(1 + U) P]. `starts` are the models that
        the rows' jobs started from, if the spec says that the server reads them; that of this step is not needed. The
        history and the counts of participations change here already.
        """
        evicted, arrived = self.history.evicted, arrivals.m
        rows, beside = self._parted(rows)
        screened = screen(self.spec.bad_updates, arrivals, rows)
        rows, beside = screened.usable_of(screened.rows), screened.usable_of(beside)
        reports = replace(arrivals.reports, finite=screened.usable)
        arrivals = arrivals.usable(screened.usable)
        if self.updates is not None:
            with self.clock.part("gram"):
                self.updates.add(arrivals, rows)
        if self.spec.rows == "current":
            rows = self._from_current(arrivals, rows, starts)
        counted, late = arrivals.split()
        before_us = arrivals.now_us - self.spec.memory_us if self.spec.memory_us else None
        with self.clock.part("gram"):
            self.history.forget(arrivals.step, before_us)
            if len(late.clients):
                self._remember(late, rows[arrivals.m :])
        facts = StepFacts(counted.m, self.spec.n_clients, self._received(beside[: counted.m]))
        decision = self._decide(counted, rows[: counted.m], facts, starts) if counted.m else None
        columns = arrivals.columns(arrived) | {"clipped": screened.clipped}
        return Proposal(counted.clients, reports, self._trials(decision), columns, evicted, decision)

    def _parted(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return the updates [n] x [P], and what came with them [n] x [U P]."""
        if not self.algorithm.receives:
            return rows, rows
        P = len(self.params)
        return [row[:P] for row in rows], [row[P:] for row in rows]

    def _received(self, beside: Rows) -> Vectors:
        """Return the sums over rows [m] x [U P] of each vector that the rule receives."""
        names = self.algorithm.receives
        if not names or not len(beside):
            return {}
        total = torch.zeros(len(names) * len(self.params), dtype=self.params.dtype, device=self.device)
        for row in beside:  # one after the other: the sum has the same bits wherever the rows lie
            total += row.to(self.device)
        return dict(zip(names, torch.split(total, len(self.params)), strict=True))

    def _decide(self, arrivals: StepInput, rows: Rows, facts: StepFacts, starts: Starts) -> Decision:
        """Let updates join the history, and the rule weigh them and the remembered ones."""
        n_seen = int(np.count_nonzero(self.participations))
        np.add.at(self.participations, arrivals.clients, 1)
        with self.clock.part("gram"), np.errstate(over="ignore", invalid="ignore"):  # checked below
            present = self.history.add(
                rows, arrivals.clients, arrivals.step, arrivals.notes(), arrivals.now_us
            )
            slots = self.history.order(present)
            stack, seen = self._stacks(slots, arrivals, n_seen)
        if not all(np.isfinite(np.einsum("bii->bi", grams)).all() for grams in (stack.grams, seen.grams)):
            raise self._diverged("updates with squared norms that are not finite", stack, rows)
        with self.clock.part("solve"):
            direction, state = self._weigh(seen, rows)
        with self.clock.part("combine"):
            where = f"step {arrivals.step}, rule {self.spec.rule!r}"
            combined = self._combine(slots, direction.weights, where)
            vector, vectors = apply_vector_step(self.algorithm, combined, self.vectors, facts, where)
            if direction.gaps is not None:
                vector = self._with_gaps(vector, direction.gaps, arrivals, starts)
        products = self._products(stack, slots, combined)
        weights, now_us = weights_in_sum(self.algorithm, direction), arrivals.now_us
        return Decision(
            stack, seen, slots, direction, weights, products, vector, rows, state, vectors, now_us
        )

    def _with_gaps(
        self, vector: torch.Tensor, weights: Floats, arrivals: StepInput, starts: Starts
    ) -> torch.Tensor:
        """Return a direction [P] plus the gaps of the step's jobs, times their `weights` [m]."""
        gaps = self._gaps(arrivals, starts)
        for weight, gap in zip(np.asarray(weights).tolist(), gaps, strict=True):
            vector = vector if gap is None else vector + weight * gap
        return vector

    def _combine(self, slots: Ints, weights: Floats, where: str) -> torch.Tensor:
        """Return the direction [P]: the weighted sum of the rows, or what the rule makes of their columns."""
        columns = checked_columns(self.algorithm, where)
        if columns is None:
            return self.history.combine(slots, weights)
        return self.history.combine_columns(slots, weights, columns)

    def _products(self, stack: Stack, slots: Ints, combined: torch.Tensor) -> tuple[Floats, Floats] | None:
        """Return `Decision.products`, while the rows are still in their slots."""
        if self.algorithm.columns is None or not len(stack.grams):
            return None
        with self.clock.part("diagnose"):
            return self.history.inner(slots, combined)

    def _trials(self, decision: Decision | None) -> torch.Tensor:
        """Return the parameters `[T, P]` to try a step with."""
        if decision is None or (search := decision.direction.search) is None:
            return self.params[:0].reshape(0, len(self.params))
        steps = torch.tensor(search.steps, dtype=decision.vector.dtype, device=decision.vector.device)
        return self.params - steps[:, None] * decision.vector

    def _remember(self, late: StepInput, rows: Rows) -> None:
        """Let late rows refresh the history and count as received, as if each had come in time for its version."""
        versions, memory = late.step - late.staleness, self.algorithm.needs.memory
        in_time = replace(late, staleness=np.zeros_like(late.staleness))  # the row's age holds its lateness
        for i in np.argsort(versions, kind="stable").tolist():
            if memory and late.staleness[i] <= memory:
                one, row, version = in_time.part(slice(i, i + 1)), rows[i : i + 1], int(versions[i])
                self.history.settle(self.history.add(row, one.clients, version, one.notes(), one.now_us))
                self.participations[one.clients] += 1

    def _gaps(self, arrivals: StepInput, starts: Starts) -> Iterator[torch.Tensor | None]:
        """Yield the current parameters [P] minus those that each update's job started from; None if they are equal."""
        P = len(self.params)  # behind a start lie the vectors that the rule sent with it
        for version in arrivals.start_versions.tolist():
            yield None if version == arrivals.step else self.params - starts[version][:P].to(self.device)

    def _from_current(self, arrivals: StepInput, rows: Rows, starts: Starts) -> Rows:
        """Return rows [n] x [P] measured from the current model."""
        gaps = self._gaps(arrivals, starts)
        return [
            row if gap is None else row.to(self.device) + gap for row, gap in zip(rows, gaps, strict=True)
        ]

    def audit(self, proposal: Proposal, clients: Ints, rows: Rows) -> Audited | None:
        """Compare what `clients` [a] would send now, `rows` as for a step, with what a proposal holds.

        Returns columns of `audit.parquet`, or None for no clients and for a step without updates.
        """
        if (decision := proposal.decision) is None or not len(clients):
            return None
        return compared(self.history, decision, self.params, clients, self._parted(rows)[0])

    def update_norms(self, clients: Ints) -> Floats:
        """Return the norms [c] of the last updates of `clients`, NaN without one, if the spec keeps them."""
        assert self.updates is not None
        return self.updates.norms[clients]

    def update_products(self, clients: Ints) -> Floats:
        """Return the inner products [c, c] of the same updates, NaN without one, if the spec keeps updates."""
        assert self.updates is not None
        with self.clock.part("gram"):
            return self.updates.products(clients)

    def accept(
        self, proposal: Proposal, losses: Floats | None = None, audited: Sequence[Audited | None] = ()
    ) -> dict[str, Any]:
        """Take a proposed step and return its columns of `steps.parquet`.

        `losses` [t, m] of the present clients after the first t trials choose its length, all T or as many as
        `Proposal.accepts` needed; None takes length 1. What the audits of this step returned comes back as "audited".
        """
        columns: dict[str, Any] = {"status": "empty"}
        if proposal.decision is not None:
            columns = self._take(proposal.decision, losses)
        columns |= proposal.columns | {"evicted": self.history.evicted - proposal.evicted}
        if parts := [part for part in audited if part is not None]:
            columns["audited"] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return columns

    def _take(self, decision: Decision, losses: Floats | None) -> dict[str, Any]:
        """Take the step of a decision and return the columns about it."""
        search, length = decision.direction.search, 1.0
        if search is not None and losses is not None:
            length = search.steps[search.choose(losses)]
        self.state, self.vectors = decision.state, decision.vectors
        norm = self._move(length * decision.vector, decision)
        self.history.settle(decision.slots[: decision.stack.m])
        with self.clock.part("diagnose"):
            return decision.columns(norm, self.spec.conflicts) | {"step_length": length}

    def _move(self, vector: torch.Tensor, decision: Decision) -> float:
        """Change the parameters and return the length of the step.

        A finite norm in float32 bounds each entry by 2e19, so the parameters stay finite too.
        """
        direction, norm = decision.direction, float(vector.norm())
        if not math.isfinite(norm):
            raise self._diverged(f"a direction with norm {norm}", decision.stack, decision.rows)
        before = self.params
        self.params = (before if direction.keep == 1.0 else direction.keep * before) - vector
        self._evaluated.add(before, self.params, direction.average)
        return norm

    def _stacks(self, slots: Ints, arrivals: StepInput, n_seen: int) -> tuple[Stack, Stack]:
        """Return the stack with the inner products for the records, and the one with what the rule declared."""
        history = self.history
        clients, grams = history.client[slots], history.grams_of(slots)
        grams.flags.writeable = False  # a rule that changed them would change the records
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
            first_step=self.first_step,
            n_clients=self.spec.n_clients,
            total_samples=self.spec.total_samples,
            n_seen=n_seen,
            losses_after=notes["loss_after"] if after else None,
            accuracies_after=notes["accuracy_after"] if after else None,
            lr_decay=self.spec.lr_decay,
            local_steps=notes.get("local_steps"),
            replaced=history.replaced,
            inclusion=notes["inclusion"],
        )
        return stack, replace(stack, grams=history.of_rule(grams))

    def _diverged(self, problem: str, stack: Stack, rows: Rows, hint: str = "") -> RunError:
        return diverged(problem, stack.step, self.spec.rule, stack.clients[: stack.m], rows, hint)

    def _weigh(self, stack: Stack, rows: Rows) -> tuple[Direction, State]:
        if self.algorithm.needs.losses and not np.isfinite(stack.losses[: stack.m]).all():
            raise self._diverged("losses that are not finite", stack, rows)
        try:
            direction, state = weigh(self.algorithm, stack, self.state, self.spec.rule)
        except SolverError as error:
            clients = ", ".join(map(str, stack.clients[: stack.m].tolist()[:20]))
            message = f"step {stack.step}, rule {self.spec.rule!r}, clients {clients}: {error}"
            raise SolverError(message, error.matrix) from error
        if fault := fault_in_weights(direction, stack):
            hint = "Does the rule divide by 0, overflow, or use a number that is not known (NaN)? "
            raise self._diverged(fault, stack, rows, hint)
        return direction, state

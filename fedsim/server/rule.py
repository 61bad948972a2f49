"""The protocol of aggregation rules: a rule sees Gram matrices, and returns weights over rows or combines columns.

A row is an update in descent orientation, `start - end` of one client's local training. It contains the local step
size, so a step of the server is `params -= sum_i weights_i * row_i`. The first `m` rows are the updates of this step
(present); the others are the last updates of clients that are absent from it (remembered), and, for rules that ask for
them, the last ones before this step of clients that are present (replaced). There are two kinds of rules, and neither
sees the `[n, P]` rows at once:

- Most rules see the rows' inner products in each block of parameters (a layer: weight and bias), and their weights are
  those of a sum.
- A rule with `columns`, such as a median, combines each column of the rows by itself, a tile of columns at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common import arguments
from fedsim.common.errors import ConfigError

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
State = dict[str, Any]
"""What a rule keeps between steps: a flat dict of numbers and NumPy arrays, replaced at each step, never changed."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The rows of one server step: their inner products and what the clients reported.

    L blocks, n rows, the first m of them present. All floats are float64. Most rules need the papers' G, F and m alone,
    which come first.
    """

    grams: Floats
    """G: [L, n, n] inner products of the rows, block by block; [1, n, n] if the rule declared `gram="model"`. A rule
    that declared `"none"` is stopped where it reads them. They are read-only: change a copy."""
    losses: Floats
    """F: [n] mean training loss of the client at the model that the row started from, before training; only for rules
    that declare `losses`. Remembered rows keep the loss that came with them."""
    m: int
    """Number of present rows, at least 1."""
    clients: Ints
    """[n] client of each row. A client may have several present rows (buffered pacing), never a remembered one too."""
    n_samples: Ints
    """[n] number of training samples of the client."""
    ages: Ints
    """[n] server steps since the row was received: 0 for present rows, at least 1 for remembered ones."""
    staleness: Ints
    """[n] server steps between the version at the dispatch of the row's job and the step that received it."""
    participations: Ints
    """[n] updates received from the client so far, including this step's and late ones that are remembered."""
    online: NDArray[np.bool_]
    """[n] whether the client is online now."""
    step: int
    """Index of this server step, from 0."""
    n_clients: int
    """K, number of registered clients."""
    total_samples: int
    """Training samples of all K clients together."""
    n_seen: int
    """Distinct clients from which the server received an update before this step, including late ones that are
    remembered."""
    losses_after: Floats | None = None
    """[n] mean training loss of the client's own trained model; only for rules that declare `after`."""
    accuracies_after: Floats | None = None
    """[n] training accuracy (a fraction) of the client's own trained model; only for rules that declare `after`."""
    lr_decay: float = 1.0
    """Factor on the clients' learning rate per server step."""
    local_steps: Ints | None = None
    """[n] minibatches that the row's job trained on; None if it is not known."""
    inclusion: Floats | None = None
    """[n] probability with which the selector included the client when it dispatched the row's job, above 0 and at most
    1, NaN if unknown; None if unknown for all rows. Remembered rows keep the value that came with them. It is
    conditional on the candidates of that choice; `fedsim.engine.selector.Choice` says what it means."""
    first_step: int = 0
    """Server step at which the rule took over: 0, or that of a fork to another rule or to other options."""
    replaced: int = 0
    """Number of replaced rows, the last ones, by client: each is what a client that is present now had sent last. 0
    unless the rule declared `replaced`."""

    @property
    def n(self) -> int:
        """Number of rows: present, remembered and replaced."""
        return len(self.clients)

    @property
    def remembered(self) -> slice:
        """The rows of absent clients."""
        return slice(self.m, self.n - self.replaced)

    def gram(self) -> Floats:
        """Return the [n, n] Gram matrix of the whole model, the sum over blocks."""
        return np.asarray(self.grams.sum(axis=0))

    def rates(self, lr: float) -> Floats:
        """Return the learning rate `[n]` that each row was trained with, if that of the first step is `lr`."""
        return np.asarray(lr * self.lr_decay ** (self.step - self.ages - self.staleness).astype(np.float64))


@dataclass(frozen=True, slots=True)
class LineSearch:
    """Lengths of a step to try on the clients that are present, and how to choose among them."""

    steps: tuple[float, ...]
    """[T] factors on the direction, at least one."""
    choose: Callable[[Floats], int]
    """From the clients' mean training losses `[t, m]` after the first t trials to the position of the trial to take.
    t is T, unless `accepts` accepted the last of fewer."""
    accepts: Callable[[int, Floats], bool] | None = None
    """From a trial's position and the losses `[m]` after it to whether `choose` takes it whatever the later trials
    give, which then need not be computed. None computes all."""


@dataclass(frozen=True, slots=True)
class Direction:
    """A step: `params = keep * params - sum_i weights[block, i] * row_i`, block by block."""

    weights: Floats
    """[n] for the whole model, or [L, n] with one row of weights per block. A rule with `columns` returns [n] factors:
    its function sees each row times its factor, and no row of factor 0."""
    keep: float = 1.0
    """Factor on the current parameters; differs from 1 only for averages whose weights need not sum to one."""
    average: float | None = None
    """If given, the evaluated model is an average of iterates: `avg += average * (params - avg)` after the step."""
    search: LineSearch | None = None
    """Search for the step's length, from rules that declared `search`; None takes the direction's own length."""
    gaps: Floats | None = None
    """[m] weights of the gaps `current - start` between the current parameters and those that each present row started
    from. Their weighted sum is part of the step, after the rule's VectorStep: weights of 1/m, together with the same
    weights of the rows, average the clients' end models. Only from rules with `start="last"`."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    """Numbers about the step, by name. A run records those that `steps.parquet` has a column for (`projection_removed`,
    `kkt_residual` and `blocks`); `fedsim.combine` returns all."""


RowsFrom = Literal["start", "current"]
"""The model that a row is measured from: the one that its job started from, or the server's current one."""

StartFrom = Literal["current", "last"]
"""The model that a job starts from: the server's current one, or the one that its client received last."""

EvaluatedModel = Literal["last", "mean"]
"""The model to evaluate: the last one, or the mean of the models after each step that used an update."""

GramLevel = Literal["none", "model", "blocks"]
"""No inner products, those of whole rows, or those block by block."""
Inclusion = Literal["none", "ratios", "rates"]
"""Nothing of inclusion probabilities, how those of clients compare with each other, or those of a whole step."""


@arguments.checked
@dataclass(frozen=True, slots=True)
class Needs:
    """What a rule reads of a Stack; the simulator computes nothing else."""

    gram: GramLevel = "none"
    """The inner products of the rows, `Stack.grams`."""
    losses: bool = False
    """The clients' losses before training, `Stack.losses`."""
    memory: float = 0
    """Largest age of a remembered row, in steps: 0 for none, `math.inf` for the last update of every client."""
    reports_of_present: bool = False
    """The rule reads losses and accuracies of present rows alone; without this, a fork leaves out remembered rows that
    came without them."""
    scale_free: bool = False
    """The rule gives all rows the same length first, which undoes what wrappers do to lengths: they refuse it."""
    after: bool = False
    """Loss and accuracy of the trained local model on the client's training set, `Stack.losses_after` and
    `Stack.accuracies_after`."""
    slices: bool = False
    """Blocks are equal slices of the parameters, as many as the model has layers, instead of the layers."""
    search: bool = False
    """The rule searches for the length of its step: present clients report their losses after trial steps."""
    gradients: bool = False
    """Each row must be one gradient step on all training samples of its client; anything else is refused."""
    replaced: bool = False
    """The remembered rows of clients that are present too, as they were before this step; needs a memory."""
    inclusion: Inclusion = "none"
    """The probabilities with which the selector chose clients, `Stack.inclusion`, as `ratios` of clients to each other
    or as `rates` of a step, for which the pacing must choose all clients of a step at once, and no more than a step can
    use."""

    def __post_init__(self) -> None:
        if not self.memory >= 0:
            raise ConfigError(f"Needs(memory=...): expected a number of steps from 0, found {self.memory!r}")
        if self.replaced and not self.memory:
            raise ConfigError("Needs(replaced=True): expected a memory above 0, such as math.inf, found none")


Weigh = Callable[[Stack, State], tuple[Direction, State]]
Columns = Callable[["torch.Tensor"], "torch.Tensor"]
"""From a tile of columns [k, c], each in ascending order, to one number per column [c]; float64, on the server's
device.

Ascending order hides which row a number comes from, so that the order of the rows changes no bit. Sums may round
differently from one width of a tile to another; those of `fedsim.algorithms.mathematics.columns` do not. Several
threads may call the function at once."""
Vectors = dict[str, "torch.Tensor"]
"""Vectors [P] that outlive a step, such as a momentum; on the server's device, replaced, never changed in place."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a VectorStep may know of a step besides the direction."""

    m: int
    """Number of present rows."""
    n_clients: int
    """K, number of registered clients."""
    received: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """By name, the sums [P] over the present rows of the vectors that came with them; see `Algorithm.receives`."""


@dataclass(frozen=True, slots=True)
class VectorStep:
    """What a rule does to the combined direction, if weights over rows cannot express it (a server optimiser).

    `apply(direction [P], vectors, facts) -> (direction [P], vectors)`; `vectors` is empty at the first step.
    """

    apply: Callable[[torch.Tensor, Vectors, StepFacts], tuple[torch.Tensor, Vectors]]


Promise = Literal["convex", "descent"]
"""A property that each of a rule's directions has, up to rounding; invariants check it in finished runs.

- `convex`: weights, in each block, are at least 0 and add up to 1, or are all 0.
- `descent`: no present row that is not `negligible`, and no remembered one that has weight, is at more than 90 degrees
  from it. Where fragments are left out block by block, the cosine is at least -`negligible` times the mean norm of the
  present rows over the row's norm.
"""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A server rule: a pure function from a Stack and its own state to a Direction and the next state.

    With `columns` the step is not the weighted sum of the rows: `columns` combines the weighted rows, column by column.
    """

    weigh: Weigh
    needs: Needs = Needs()
    init: Callable[[], State] = dict
    then: VectorStep | None = None
    promises: frozenset[Promise] = frozenset()
    """Promises about directions before `then`; a wrapper that breaks a promise removes it."""
    sends: tuple[str, ...] = ()
    """Names of the vectors of `then` that clients receive beside the model; zeros before the first step."""
    receives: tuple[str, ...] = ()
    """Names of the vectors [P] that clients send beside their updates."""
    client: str = ""
    """Name of the client method that the rule is one half of, without which it is refused; empty for any method."""
    as_sent: bool = False
    """The rule follows what clients keep by their updates, so that these must reach it, once each, as they were sent:
    wrappers, clipping and updates measured from the current model are refused."""
    negligible: float = 0.0
    """The rule leaves out present rows whose norm is at most this times their mean norm, as they hold little but
    rounding. With `gram="blocks"` a rule may leave out fragments of rows instead, by their norms in the block."""
    columns: Columns | None = None
    """Combines the k rows whose weight is not 0, each times its weight; None adds them up."""
    start: StartFrom = "current"
    """The model that jobs start from. With `last` a client receives the model after each step that used its update, and
    its next job starts from there, however many steps later; before its first such step it holds the initial model."""


@arguments.checked
def stateless(
    weigh: Callable[[Stack], Direction],
    needs: Needs = Needs(),
    promises: Iterable[Promise] = (),
    columns: Columns | None = None,
) -> Algorithm:
    """Make an Algorithm from a function of the Stack alone."""

    def weigh_and_pass(stack: Stack, state: State) -> tuple[Direction, State]:
        return weigh(stack), state

    return Algorithm(weigh_and_pass, needs, promises=frozenset(promises), columns=columns)

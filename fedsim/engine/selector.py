"""What a selector sees and returns. A selector is a plug-in under `algorithms/selection/`, one strategy per file.

A factory returns a `Selector`. What it remembers is explicit: its state is plain data that goes in and comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedsim.common import arguments
from fedsim.common.errors import ConfigError, RunError, closest, described
from fedsim.worlds.world import World

Clients = NDArray[np.int64]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
State = dict[str, Any]
"""A selector's own memory: a flat dict of numbers, texts and NumPy arrays, replaced, never changed in place."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of clients before the run starts; arrays are read-only and indexed by client."""

    n_samples: Ints
    """[K] training samples."""
    label_counts: Ints
    """[K, C] training samples by label. A real server does not know them: for the study of biased selection."""
    about: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Columns [K] that the world's trace knows of its clients, such as `region`."""


@dataclass(slots=True)
class View:
    """What a real server could know when it chooses; arrays are read-only and indexed by client unless said.

    A view is good for one choice: the next one finds other values in the same object.

    No field tells anything about the future of the world but `world`, which is None unless the selector is declared
    clairvoyant. What updates reported is known from the step on that uses them.
    """

    now_us: int
    step: int
    """Server steps taken so far."""
    candidates: Clients
    """[c] clients that are online and idle now, in ascending order, at least one."""
    facts: Facts
    busy: NDArray[np.bool_]
    """[K] whether the client has a job, as far as the server knows."""
    dispatched: Ints
    """[K] jobs given to each client so far."""
    received: Ints
    """[K] updates received from each client so far."""
    lost: Ints
    """[K] jobs of each client that were lost so far, as far as the server has noticed."""
    last_step: Ints
    """[K] last server step that used an update of the client, -1 if none did."""
    last_dispatch: Ints
    """[K] server steps taken when the client was given its last job, -1 if it had none."""
    last_duration_us: Ints
    """[K] time from dispatch to arrival of the client's last job that arrived, -1 if none did."""
    last_staleness: Ints
    """[K] staleness of the client's last update that was used, -1 if none was."""
    last_loss: Floats
    """[K] mean training loss that the client reported last (before training if the rule asks for it, else the mean over
    the samples it trained on); NaN if never."""
    last_loss_rms: Floats
    """[K] root mean square of the losses of the samples that job trained on, each before its step; NaN if never."""
    last_batch_rms: Floats
    """[K] the same of the samples of that job's last minibatch alone; NaN if never."""
    accuracy: Floats
    """[K] accuracy at the last evaluation; NaN before, and unless the selector declares that it needs it."""
    step_us: int
    """Virtual time of the last server step, 0 before the first."""
    buffer: int
    """Updates that make a step."""
    deadline_us: int | None
    """Longest time until the next step, if there is a deadline."""
    expected_us: Callable[[Clients], Ints]
    """`expected_us(clients)`: how long a job of each would take at the speeds that the clients have now."""
    ask_losses: Callable[[Clients], Floats]
    """`ask_losses(clients)`: mean training loss of the current model on their data. It takes no virtual time."""
    world: World | None = None
    """The world with its future, for clairvoyant selectors only."""

    @property
    def n_samples(self) -> Ints:
        """[K] training samples of each client."""
        return self.facts.n_samples

    @property
    def n_clients(self) -> int:
        """K, number of registered clients."""
        return len(self.facts.n_samples)


Need = Literal["losses", "accuracy", "labels", "deadline"]


@dataclass(frozen=True, slots=True)
class Selector:
    """How clients are chosen.

    Attributes:
        select: `select(view, k, rng, state)` returns at most `k` distinct members of `view.candidates`, and the new
            state; 1 <= k <= len(candidates). Choosing fewer is allowed; whoever is first in the array is first in
            the cohort.
        start: the state before the first call.
        needs: what of the view is used that costs something, or that a real server does not have: `losses` reported by
            clients or asked for, `accuracy` of the last evaluation, `labels`; and whether there must be a `deadline`.
        clairvoyant: whether it looks into the future of the world; the manifest says so.
        propose: how a single place is filled where that can be done without looking at everybody: `propose(numbers, K)`
            returns clients in the shape of `numbers`, which are independent and uniform in (0, 1). The first candidate
            along the last axis is chosen; if there is none, `select` chooses. Buffered and asynchronous pacings hand
            out work one job at a time.
    """

    select: Callable[[View, int, np.random.Generator, State], tuple[Clients, State]]
    start: Callable[[], State] = dict
    needs: frozenset[Need] = frozenset()
    clairvoyant: bool = False
    propose: Callable[[Floats, int], Clients] | None = None

    def __post_init__(self) -> None:
        for need in sorted(set(self.needs) - set(get_args(Need))):
            raise ConfigError(f"a selector cannot need {need!r}{closest(need, get_args(Need))}")
        arguments.check("a selector's select", self.select, Callable[..., Any])
        if not callable(self.start):
            raise ConfigError(
                f"a selector's start must be a function that returns its first state, found {self.start!r}"
            )


def state_of(found: object, who: str) -> State:
    """Return a state if it is one, else raise RunError."""
    if not isinstance(found, dict):
        raise RunError(f"{who} must return a state that is a dict, it returned {described(found)}")
    return found


def stateless(select: Callable[[View, int, np.random.Generator], Clients], **declared: Any) -> Selector:
    """Make a Selector of a function that remembers nothing."""

    def remembering(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Clients, State]:
        return select(view, k, rng), state

    return Selector(remembering, **declared)


def checked(chosen: Clients, view: View, k: int) -> Clients:
    """Return `chosen` if it keeps the contract of a Selector, else raise RunError."""
    found = np.asarray(chosen)
    if found.ndim != 1:
        what = type(chosen).__name__ if found.ndim == 0 else f"an array of shape {list(found.shape)}"
        raise RunError(f"step {view.step}: a selector must return an array of clients, it returned {what}")
    if len(found) and found.dtype.kind not in "iu":
        raise RunError(
            f"step {view.step}: a selector must return clients, whole numbers, it returned {found.dtype} {_some(found)}"
        )
    if len(found) == 1 and k >= 1:
        at_one = int(np.searchsorted(view.candidates, found[0]))
        if at_one < len(view.candidates) and view.candidates[at_one] == found[0]:
            return found.astype(np.int64, copy=False)
    at = np.searchsorted(view.candidates, found)
    if (
        len(found) > k
        or len(set(found.tolist())) != len(found)
        or not (view.candidates[np.minimum(at, len(view.candidates) - 1)] == found).all()
    ):
        raise RunError(
            f"step {view.step}: a selector must return at most {k} distinct candidates of "
            f"{_some(view.candidates)}, it returned {_some(found)}"
        )
    return found.astype(np.int64)


def _some(clients: NDArray[Any]) -> str:
    """Write clients down, not more than twenty."""
    return f"{clients.tolist()[:20]}" + (f" and {len(clients) - 20} more" if len(clients) > 20 else "")


def proposed(selector: Selector, numbers: Floats, n_clients: int) -> Clients:
    """Return whom a selector proposes if it keeps its contract, else raise RunError."""
    assert selector.propose is not None
    found = np.asarray(selector.propose(numbers, n_clients))
    if found.shape != numbers.shape or found.dtype.kind not in "iu":
        raise RunError(
            f"a selector must propose clients, whole numbers in an array of shape {list(numbers.shape)}, it returned "
            f"{found.dtype} in shape {list(found.shape)}"
        )
    if found.min() < 0 or found.max() >= n_clients:
        raise RunError(
            f"a selector must propose clients in 0 to {n_clients - 1}, it returned {found.min()} to {found.max()}"
        )
    return found

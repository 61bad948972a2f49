"""The interface of selectors. A selector is a plug-in under `algorithms/selection/`, one strategy per file.

The plug-in's factory returns a `Selector`. Its state is explicit: plain data passed in and returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedsim.common import arguments
from fedsim.common.errors import ConfigError, RunError, closest
from fedsim.worlds.world import World

Clients = NDArray[np.int64]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
State = dict[str, Any]
"""A selector's state: a dict of numbers, texts and NumPy arrays, and lists and dicts (with texts as keys) of these. It
is replaced, never changed in place."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Clients that a selector chose, with the probability with which it included each of them.

    The probability is that of the client at this choice, given all that the selector knew: the view, the number of
    places and the selector's state. It is conditional on who is online, not a client's share in the long run. A
    selector that estimates such shares, as `f3ast` does, may state them instead, if its docstring says so.
    """

    clients: Clients
    """[c] distinct candidates, in the order in which they get their jobs."""
    inclusion: Floats
    """[c] above 0 and at most 1; NaN where it is unknown."""

    @staticmethod
    def certain(clients: Clients) -> Choice:
        """Return a choice without draws: each of the clients had to be chosen."""
        return Choice(clients, np.ones(len(clients)))

    @staticmethod
    def unknown(clients: Clients) -> Choice:
        """Return a choice of which the probabilities are unknown."""
        return Choice(clients, np.full(len(clients), np.nan))

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of clients before the run starts; arrays are read-only and indexed by client."""

    n_samples: Ints
    """[K] training samples."""
    label_counts: Ints
    """[K, C] training samples by label. A real server does not know them; they serve the study of biased selection.
    Only for selectors that declare `labels`."""
    about: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Client columns [K] of the world's trace, such as `region`."""


@dataclass(slots=True)
class View:
    """What a server can know when it chooses clients; arrays are read-only and indexed by client unless noted.

    A view is valid for one choice: the next choice changes the values of the same object.

    Only `world` reveals the future, to a selector that is declared clairvoyant. The reports of updates are known from
    the step on that uses the updates.
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
    """[K] jobs dispatched to each client so far."""
    received: Ints
    """[K] updates received from each client so far."""
    lost: Ints
    """[K] jobs of each client that were lost so far, as far as the server has noticed."""
    last_step: Ints
    """[K] last server step that used an update of the client, -1 if none did."""
    last_dispatch: Ints
    """[K] server steps taken when the client's last job was dispatched, -1 if it had none."""
    last_duration_us: Ints
    """[K] time from dispatch to arrival of the client's last job that arrived, -1 if none did."""
    last_staleness: Ints
    """[K] staleness of the client's last update that was used, -1 if none was."""
    last_loss: Floats
    """[K] mean training loss that the client reported last (before training if the rule asks for it, else the mean over
    the samples it trained on); NaN if never. This and the next three are for selectors that declare `losses`."""
    last_train_loss: Floats
    """[K] mean over the samples that that job trained on, each before its step; NaN if never."""
    last_loss_rms: Floats
    """[K] root mean square over the same samples; NaN if never."""
    last_batch_rms: Floats
    """[K] root mean square over the samples of that job's last minibatch only; NaN if never."""
    accuracy: Floats
    """[K] accuracy at the last evaluation; NaN before. This and the next are for selectors that declare `accuracy`."""
    accuracy_step: Ints
    """[K] server steps taken at that evaluation, -1 before."""
    step_us: int
    """Virtual time of the last server step, 0 before the first."""
    buffer: int
    """Number of updates that triggers a step."""
    deadline_us: int | None
    """Longest time until the next step, if there is a deadline."""
    expected_us: Callable[[Clients], Ints]
    """`expected_us(clients)`: duration of a job of each client at its current speed, in microseconds."""
    ask_losses: Callable[[Clients], Floats]
    """`ask_losses(clients)`: mean training loss of the current model on each client's data. The call takes no
    virtual time. Only for selectors that declare `losses`."""
    update_norms: Callable[[Clients], Floats]
    """`update_norms(clients)`: [c] norm of each client's last update that a step received; NaN where none did. Only for
    selectors that declare `norms` or `updates`."""
    update_products: Callable[[Clients], Floats]
    """`update_products(clients)`: [c, c] inner products of these updates; NaN for clients without one, or whose update
    the server gave up for lack of memory. Only for selectors that declare `updates`."""
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


Need = Literal["losses", "asked", "accuracy", "labels", "deadline", "norms", "updates"]


@dataclass(frozen=True, slots=True)
class Selector:
    """How clients are chosen.

    Attributes:
        select: `select(view, k, rng, state)` returns at most `k` distinct members of `view.candidates`, and the new
            state; 1 <= k <= len(candidates). Fewer are allowed. The order of the array is the order in the cohort. A
            `Choice` in place of the array also states with which probability each client was included.
        start: the state before the first call.
        needs: parts of the view that cost time, or that a real server does not have: `losses` that clients report,
            those `asked` for with `ask_losses`, `accuracy` of the last evaluation, `labels`; `deadline`: the pacing
            must have one;
            `norms`: the server keeps the norm of each client's last update; `updates`: it keeps the update too, in
            memory of its own beside the rule's history, for `update_products`.
        clairvoyant: whether the selector uses the future of the world; the manifest records it.
        draws: whether chance decides beyond ties; rules that divide by inclusion probabilities refuse a selector
            without draws.
        propose: a fast way to fill a single place without a list of all candidates: `propose(numbers, K)` returns
            clients in the shape of `numbers`, which are independent and uniform in (0, 1). The first candidate along
            the last axis is chosen; if there is none, `select` chooses. Buffered and asynchronous pacings dispatch
            one job at a time. The inclusion probability of a proposed client is unknown (NaN).
    """

    select: Callable[[View, int, np.random.Generator, State], tuple[Clients | Choice, State]]
    start: Callable[[], State] = dict
    needs: frozenset[Need] = frozenset()
    clairvoyant: bool = False
    propose: Callable[[Floats, int], Clients] | None = None
    draws: bool = True

    def __post_init__(self) -> None:
        given: Any = self.needs
        if isinstance(given, str) or not isinstance(given, Collection):
            raise ConfigError(f"a selector's needs: expected a set such as {{'losses'}}, found {given!r}")
        object.__setattr__(self, "needs", frozenset(given))
        for need in sorted(set(self.needs) - set(get_args(Need))):
            raise ConfigError(f"a selector cannot need {need!r}{closest(need, get_args(Need))}")
        arguments.check("a selector's select", self.select, Callable[..., Any])
        arguments.check("a selector's propose", self.propose, Callable[..., Any] | None)
        for name in ("clairvoyant", "draws"):
            arguments.check(f"a selector's {name}", getattr(self, name), bool)
        if not callable(self.start):
            raise ConfigError(
                f"a selector's start must be a function that returns its first state, found {self.start!r}"
            )


def stateless(
    select: Callable[[View, int, np.random.Generator], Clients | Choice], **declared: Any
) -> Selector:
    """Return a Selector without a state from `select(view, k, rng)`; `declared` sets its other fields."""

    def with_state(
        view: View, k: int, rng: np.random.Generator, state: State
    ) -> tuple[Clients | Choice, State]:
        return select(view, k, rng), state

    return Selector(with_state, **declared)


def checked(chosen: Clients, view: View, k: int, selector: str = "a selector") -> Clients:
    """Return the clients that `select` chose. Raises RunError unless they are at most `k` distinct candidates."""
    clients, must = np.asarray(chosen), f"step {view.step}: {selector} must return"
    if clients.ndim != 1:
        shape = type(chosen).__name__ if clients.ndim == 0 else f"an array of shape {list(clients.shape)}"
        raise RunError(f"{must} an array of clients, it returned {shape}")
    if len(clients) and clients.dtype.kind not in "iu":
        raise RunError(f"{must} clients, whole numbers, it returned {clients.dtype} {_some(clients)}")
    if len(clients) == 1 and k >= 1:
        place = int(np.searchsorted(view.candidates, clients[0]))
        if place < len(view.candidates) and view.candidates[place] == clients[0]:
            return clients.astype(np.int64, copy=False)
    places = np.searchsorted(view.candidates, clients)
    if (
        len(clients) > k
        or len(set(clients.tolist())) != len(clients)
        or not (view.candidates[np.minimum(places, len(view.candidates) - 1)] == clients).all()
    ):
        among = _some(view.candidates)
        raise RunError(f"{must} at most {k} distinct candidates of {among}, it returned {_some(clients)}")
    return clients.astype(np.int64)


def checked_choice(chosen: Clients | Choice, view: View, k: int, selector: str = "a selector") -> Choice:
    """Return what `select` chose, with NaN for probabilities that it did not state. Raises RunError as `checked` does,
    and for probabilities that are not one number above 0 and at most 1, or NaN, per client.
    """
    if not isinstance(chosen, Choice):
        return Choice.unknown(checked(chosen, view, k, selector))
    clients, inclusion = checked(chosen.clients, view, k, selector), np.asarray(chosen.inclusion)
    must = f"step {view.step}: {selector} must state an inclusion probability for each of its {len(clients)} clients"
    if inclusion.shape != clients.shape or inclusion.dtype.kind not in "iuf":
        raise RunError(f"{must}, it stated {inclusion.dtype} of shape {list(inclusion.shape)}")
    wrong = ~np.isnan(inclusion) & ~((inclusion > 0) & (inclusion <= 1))
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise RunError(
            f"{must}, above 0 and at most 1 or NaN, it stated {inclusion[i]} for client {clients[i]}"
        )
    return Choice(clients, inclusion.astype(np.float64))


def _some(clients: NDArray[Any]) -> str:
    """Write the first twenty clients, and how many more there are."""
    return f"{clients.tolist()[:20]}" + (f" and {len(clients) - 20} more" if len(clients) > 20 else "")


def proposed(selector: Selector, numbers: Floats, n_clients: int, named: str = "a selector") -> Clients:
    """Return the clients that `propose` returned. Raises RunError unless they are clients in the shape of `numbers`."""
    assert selector.propose is not None
    clients = np.asarray(selector.propose(numbers, n_clients))
    if clients.shape != numbers.shape or clients.dtype.kind not in "iu":
        raise RunError(
            f"{named} must propose clients, whole numbers in an array of shape {list(numbers.shape)}, it returned "
            f"{clients.dtype} in shape {list(clients.shape)}"
        )
    if clients.min() < 0 or clients.max() >= n_clients:
        raise RunError(
            f"{named} must propose clients in 0 to {n_clients - 1}, it returned {clients.min()} to {clients.max()}"
        )
    return clients

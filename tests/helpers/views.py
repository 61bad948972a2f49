"""Views for tests of selectors: of a federation whose clients differ in everything, changed as a test needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from fedsim.common.units import US
from fedsim.engine.selector import Choice, Clients, Facts, Selector, State, View, checked_choice
from fedsim.plugins import build

NEEDED: dict[str, dict[str, Any]] = {"fixed": {"clients": [5, 2, 1, 0, 7]}}
"""Options of selectors that cannot do without."""


def facts(n: int, seed: int = 0) -> Facts:
    """What is known of `n` clients: 10 to 109 samples of 4 labels, a region by turns, a numeric age."""
    draw = np.random.default_rng([seed, n])
    counts = draw.multinomial(1, [0.4, 0.3, 0.2, 0.1], size=n) * 6 + draw.integers(1, 25, size=(n, 4))
    regions = np.array(["north", "south", "west"])[np.arange(n) % 3]
    return Facts(counts.sum(axis=1), counts, {"region": regions, "age": draw.uniform(1, 9, size=n)})


def lookup(values: Any, calls: list[list[int]] | None = None) -> Callable[[Clients], Any]:
    """Return a function of clients that reads `values` by client and notes who was asked."""

    def find(clients: Clients) -> Any:
        if calls is not None:
            calls.append(clients.tolist())
        return np.asarray(values)[clients]

    return find


def pairs(values: Any, calls: list[list[int]] | None = None) -> Callable[[Clients], Any]:
    """Return a function of clients [c] that reads `values` [K, K] by pair of them and notes who was asked."""

    def find(clients: Clients) -> Any:
        if calls is not None:
            calls.append(clients.tolist())
        return np.asarray(values)[np.ix_(clients, clients)]

    return find


def remembered(rows: Any) -> dict[str, Callable[[Clients], Any]]:
    """Return the fields of a view that ask for updates `rows` [K, P]; a row of NaN is one that the server lacks."""
    return {"update_norms": lookup(np.linalg.norm(rows, axis=1)), "update_products": pairs(rows @ rows.T)}


def view(n: int = 12, candidates: Iterable[int] | None = None, **changed: Any) -> View:
    """Return a view of `n` clients of which nothing was heard yet; `n_samples` and `about` may be named too.

    Client i is expected to take (i + 1) s and has a loss of 1 + i / n. Arrays are read-only, as in a run.
    """
    known = facts(n)
    for name in ("n_samples", "label_counts", "about"):
        if name in changed:
            known = replace(known, **{name: changed.pop(name)})
    none, zero, unknown = (np.full(n, value) for value in (-1, 0, np.nan))
    columns = dict.fromkeys(
        ("last_step", "last_dispatch", "last_duration_us", "last_staleness", "accuracy_step"), none
    )
    columns |= dict.fromkeys(("dispatched", "received", "lost"), zero)
    losses = ("last_loss", "last_train_loss", "last_loss_rms", "last_batch_rms")
    columns |= dict.fromkeys((*losses, "accuracy"), unknown)
    columns |= {name: np.asarray(changed.pop(name)) for name in list(changed) if name in columns}
    columns |= {"busy": np.asarray(changed.pop("busy", np.zeros(n, dtype=bool)))}
    given = {
        "now_us": 0,
        "step": 0,
        "candidates": np.arange(n) if candidates is None else np.array(sorted(candidates)),
        "facts": known,
        "step_us": 0,
        "buffer": 3,
        "deadline_us": 60 * US,
        "expected_us": lookup((np.arange(n) + 1) * US),
        "ask_losses": lookup(1 + np.arange(n) / n),
        "update_norms": lookup(unknown),
        "update_products": pairs(np.full((n, n), np.nan)),
    }
    for array in (*columns.values(), given["candidates"], known.n_samples, known.label_counts):
        array.setflags(write=False)
    return View(**given | columns | changed)


def used_view(n: int = 12, step: int = 7, seed: int = 0, **changed: Any) -> View:
    """Return a view of the middle of a run: about two thirds of `n` clients were used, some more had a job."""
    draw = np.random.default_rng([seed, n, step])
    used = draw.random(n) < 0.7
    received = np.where(used, draw.integers(1, 9, size=n), 0)
    lost = draw.integers(0, 3, size=n)
    columns: dict[str, Any] = {
        "last_step": np.where(used, draw.integers(0, max(step, 1), size=n), -1),
        "last_duration_us": np.where(used, draw.integers(1, 90, size=n) * US, -1),
        "last_staleness": np.where(used, draw.integers(0, 4, size=n), -1),
        "received": received,
        "lost": lost,
        "dispatched": received + lost,
        "last_loss": np.where(used, draw.uniform(0.1, 3, size=n), np.nan),
        "last_loss_rms": np.where(used, draw.uniform(0.2, 4, size=n), np.nan),
        "last_batch_rms": np.where(used, draw.uniform(0.2, 4, size=n), np.nan),
        "accuracy": draw.random(n),
        "now_us": 3_000 * US * step,
        "step_us": 2_900 * US * step,
        "step": step,
    }
    columns["last_dispatch"] = np.where(columns["dispatched"] > 0, columns["last_step"], -1)
    columns["last_train_loss"] = columns["last_loss_rms"] * draw.uniform(0.5, 1, size=n)
    rows = np.where(used[:, None], draw.normal(size=(n, 5)) * draw.uniform(0.1, 3, size=(n, 1)), np.nan)
    return view(n, **columns | remembered(rows) | changed)


def make(name: str, **options: Any) -> Selector:
    """Build a selector through the check of its options, with those that it needs."""
    selector: Selector = build("selector", name, NEEDED.get(name, {}) | options)
    return selector


def choose(
    selector: str | Selector, seen: View, k: int, seed: int = 0, state: State | None = None
) -> tuple[list[int], State]:
    """Return whom a selector chooses, checked, and its state afterwards."""
    choice, after = stated(selector, seen, k, seed, state)
    return choice.clients.tolist(), after


def stated(
    selector: str | Selector, seen: View, k: int, seed: int = 0, state: State | None = None
) -> tuple[Choice, State]:
    """Return whom a selector chooses with which probabilities, checked, and its state afterwards."""
    built = make(selector) if isinstance(selector, str) else selector
    before = built.start() if state is None else state
    chosen, after = built.select(seen, k, np.random.default_rng([seed, 1]), before)
    return checked_choice(chosen, seen, k), after


def shares(selector: Selector, seen: View, k: int, draws: int = 3000) -> Any:
    """Return [K] how often each client is chosen, of `draws` choices that do not know of each other."""
    count = np.zeros(seen.n_clients)
    rng = np.random.default_rng(17)
    for _ in range(draws):
        chosen, _ = selector.select(seen, k, rng, selector.start())
        count[checked_choice(chosen, seen, k).clients] += 1
    return count / draws


def after_jobs(seen: View, chosen: Iterable[int], length_us: int = 60 * US, **changed: Any) -> View:
    """Return the view one step later, if all jobs of `chosen` arrived after `length_us`."""
    who = np.array(list(chosen), dtype=np.int64)
    columns = {f.name: np.array(getattr(seen, f.name)) for f in fields(View) if f.name in _COUNTED}
    for name in ("dispatched", "received"):
        columns[name][who] += 1
    columns["last_step"][who] = columns["last_dispatch"][who] = seen.step
    columns["last_duration_us"][who] = seen.expected_us(who)
    for array in columns.values():
        array.setflags(write=False)
    later = seen.now_us + length_us
    return replace(seen, step=seen.step + 1, now_us=later, step_us=later, **columns | changed)


_COUNTED = {"dispatched", "received", "last_step", "last_dispatch", "last_duration_us"}

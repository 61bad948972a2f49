"""Spells online and offline of a trace's clients, with known and unknown ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.common.arrays import Floats, Ints, Mask
from fedsim.common.errors import TraceError
from fedsim.common.units import HOUR_US
from fedsim.worlds.trace import Spans, Trace

HOURS = 24

_DARK, _OFF, _ON = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Spells:
    """Stretches during which a client is online, or offline, throughout; in order of (client, start)."""

    client: Ints
    start_us: Ints
    end_us: Ints
    online: Mask
    began: Mask
    """Whether the start is known; else the spell began before the trace or in an unknown stretch."""
    ended: Mask
    """Whether the end is known; else the spell lasts at least this long."""
    clients: int

    @property
    def step_us(self) -> int:
        """Greatest common divisor of all known starts and ends, in microseconds; 0 if there are none.

        For a sampled trace this is the sampling step: shorter spells can be missing.
        """
        changes = np.concatenate([self.start_us[self.began], self.end_us[self.ended]])
        return int(np.gcd.reduce(changes)) if len(changes) else 0

    @property
    def length_us(self) -> Ints:
        """Observed length of each spell in microseconds."""
        return self.end_us - self.start_us

    def of(self, which: Mask) -> Spells:
        """Return the spells that a mask selects."""
        client, start, end = self.client[which], self.start_us[which], self.end_us[which]
        return Spells(
            client, start, end, self.online[which], self.began[which], self.ended[which], self.clients
        )

    def seen_us(self, online: bool | None = None) -> Floats:
        """Return [clients] the observed time of each client, or its observed time online or offline."""
        weight = self.length_us * (1 if online is None else self.online == online)
        return np.asarray(np.bincount(self.client, weight, minlength=self.clients), dtype=np.float64)

    def online_share(self) -> Floats:
        """Return [clients] the online share of each client's observed time; NaN for clients never observed."""
        seen = self.seen_us()
        share = np.divide(self.seen_us(True), seen, out=np.full(self.clients, np.nan), where=seen > 0)
        return np.asarray(share)


@dataclass(frozen=True, slots=True)
class Parts:
    """Spells cut at every full hour of the world."""

    spell: Ints
    """The row of the spell."""
    hour: Ints
    """0 to 23, since the world's start."""
    start_us: Ints
    end_us: Ints


def parts_of(spells: Spells) -> Parts:
    """Cut spells at full hours."""
    first, last = spells.start_us // HOUR_US, (spells.end_us - 1) // HOUR_US
    counts = last - first + 1
    spell = np.repeat(np.arange(len(counts)), counts)
    hour = np.arange(len(spell)) - np.repeat(np.cumsum(counts) - counts, counts) + first[spell]
    start = np.maximum(spells.start_us[spell], hour * HOUR_US)
    return Parts(spell, hour % HOURS, start, np.minimum(spells.end_us[spell], (hour + 1) * HOUR_US))


def spells_of(trace: Trace, seen_as: Trace | None = None) -> Spells:
    """Return the spells of a trace; with `seen_as`, as observed with the gaps and the sampling step of that trace.

    A client is observed from 0 to its loop period or to the horizon, except while it is `unknown`. Raises TraceError if
    the two traces differ in their number of clients.
    """
    eyes, online = (trace if seen_as is None else seen_as), trace.spans("online")
    if eyes.clients != trace.clients:
        raise TraceError(
            f"expected two traces of {eyes.clients} clients, found {trace.clients} in one of them"
        )
    period = eyes.period_us("online")
    window = np.minimum(np.where(period > 0, period, eyes.horizon_us), trace.horizon_us)
    everyone = np.arange(trace.clients)
    step_us = 1 if seen_as is None else spells_of(seen_as).step_us
    online, unknown = _sampled(online, step_us).joined(), eyes.spans("unknown")
    layers = [
        (everyone, np.zeros_like(window), window, 4),
        (unknown.client, unknown.start_us, unknown.end_us, 2),
        (online.client, online.start_us, online.end_us, 1),
    ]
    client, time, change = (np.concatenate(part) for part in zip(*map(_edges, layers), strict=True))
    order = np.lexsort((time, client))
    client, time, state = client[order], time[order], np.cumsum(change[order])
    kept = (client[1:] == client[:-1]) & (time[1:] > time[:-1])
    code = np.where(state == 5, _ON, np.where(state == 4, _OFF, _DARK))[:-1][kept]
    return _merged(client[:-1][kept], time[:-1][kept], time[1:][kept], code, trace.clients)


def _sampled(spans: Spans, step_us: int) -> Spans:
    """Return intervals as sampled every `step_us`, each sample holding until the next."""
    if step_us <= 1:
        return spans
    start, end = (-(-time // step_us) * step_us for time in (spans.start_us, spans.end_us))
    kept = end > start
    return Spans(spans.client[kept], start[kept], end[kept], spans.value[kept])


def _edges(layer: tuple[Ints, Ints, Ints, int]) -> tuple[Ints, Ints, Ints]:
    client, start, end, weight = layer
    change = np.repeat([weight, -weight], [len(client), len(client)])
    return np.tile(client, 2), np.concatenate([start, end]), change


def _merged(client: Ints, start: Ints, end: Ints, code: Ints, clients: int) -> Spells:
    """Join successive stretches of a client in the same state, and drop the unknown ones."""
    same = (client[1:] == client[:-1]) & (code[1:] == code[:-1])
    edge = np.ones(min(len(client), 1), dtype=bool)
    opens, closes = np.concatenate([edge, ~same]), np.concatenate([~same, edge])
    client, start, end, code = client[opens], start[opens], end[closes], code[opens]
    lit, follows = code != _DARK, client[1:] == client[:-1]
    began = np.concatenate([~edge, lit[:-1] & follows]) if len(client) else lit
    ended = np.concatenate([lit[1:] & follows, ~edge]) if len(client) else lit
    merged = Spells(client, start, end, code == _ON, began, ended, clients)
    return merged.of(lit)

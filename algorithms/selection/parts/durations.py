"""Durations of clients' jobs, measured or expected, and options that are durations."""

from __future__ import annotations

import numpy as np

from fedsim.common.errors import ConfigError
from fedsim.common.units import duration_us
from fedsim.engine.selector import Clients, Floats, Ints, View


def durations_us(view: View, clients: Clients) -> Ints:
    """Return the duration of each client's last arrived job; for other clients, the expected duration now."""
    durations = view.last_duration_us[clients]
    unknown = np.flatnonzero(durations < 0)
    if len(unknown):
        durations[unknown] = view.expected_us(clients[unknown])
    return durations


def known_us(view: View) -> Floats:
    """Return [K] the known durations: measured, or expected for a candidate; NaN for other clients."""
    durations = np.full(view.n_clients, np.nan)
    measured = view.last_duration_us >= 0
    durations[measured] = view.last_duration_us[measured]
    durations[view.candidates] = durations_us(view, view.candidates)
    return durations


def duration_option(selector: str, option: str, text: str | float) -> int:
    """Read an option that is a duration such as `"10m"`, or seconds. Returns microseconds; raises ConfigError."""
    try:
        length_us = duration_us(text)
    except ValueError as error:
        raise ConfigError(f"selector {selector!r}, option {option!r}: {error}") from error
    if length_us < 1:
        raise ConfigError(f"selector {selector!r}, option {option!r}: expected at least 1 us, found {text!r}")
    return length_us

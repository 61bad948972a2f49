"""How long a client's job takes, as far as a server can know, and options that are durations."""

from __future__ import annotations

import numpy as np

from fedsim.common.errors import ConfigError
from fedsim.common.units import duration_us
from fedsim.engine.selector import Clients, Floats, Ints, View


def durations_us(view: View, clients: Clients) -> Ints:
    """Return how long each client's last job took that arrived; for the others, how long one would take now."""
    found = view.last_duration_us[clients]
    unknown = np.flatnonzero(found < 0)
    if len(unknown):
        found[unknown] = view.expected_us(clients[unknown])
    return found


def known_us(view: View) -> Floats:
    """Return [K] what is known of durations now: measured, or expected of a candidate; NaN for other clients."""
    found = np.full(view.n_clients, np.nan)
    measured = view.last_duration_us >= 0
    found[measured] = view.last_duration_us[measured]
    found[view.candidates] = durations_us(view, view.candidates)
    return found


def duration_option(selector: str, option: str, text: str | float) -> int:
    """Read an option that is a duration such as `"10m"`, or seconds. Returns microseconds; raises ConfigError."""
    try:
        found = duration_us(text)
    except ValueError as error:
        raise ConfigError(f"selector {selector!r}, option {option!r}: {error}") from error
    if found < 1:
        raise ConfigError(f"selector {selector!r}, option {option!r}: expected at least 1 us, found {text!r}")
    return found

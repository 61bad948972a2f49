"""Clients first appear at random times: a federation that grows.

A share q of the clients takes part from the start. The others appear after a time of the law `joining` with
distribution function F, so a share q + (1 - q) F(t) has appeared by t: 1 - (1 - q) exp(-t / mean) for the exponential
law, linear up to twice the mean for the uniform one. By default the world stops after its horizon, and the run with it:
in a world that repeats, late clients are late again in each lap.
"""

from __future__ import annotations

from fedsim.scenarios.processes.devices import PHONES, Devices
from fedsim.scenarios.processes.laws import Law
from fedsim.scenarios.processes.presence import MeanOn, Presence, Sessions
from fedsim.worlds.scenario import Clock, Life, Me, Scenario, number_option

JOINING = Law(law="uniform", mean="2d")


def late_joiners(
    *,
    joining: Law = JOINING,
    present_share: float = 0.2,
    mean_on: MeanOn = "2h",
    mean_off: str | float = "1h",
    devices: Devices = PHONES,
) -> Scenario:
    """Clients that appear one after another, online first, and then come and go as in `churn`.

    `joining` is the law of the time from the start of the world to the first appearance of a late client. `Trace.about`
    holds whether a client is late.

    Args:
        present_share: q, the share of clients that take part from the start, 0 to 1.
        mean_on: mean time online.
        mean_off: mean time offline; 0: clients stay online once they have appeared.
    """
    number_option("present_share", present_share, 0, 1)
    sessions = Sessions.of(mean_on, mean_off)

    def client(env: Clock, me: Me) -> Life:
        devices.describe(env, me)
        fate = me.stream("joining")
        late = bool(fate.random() >= present_share)
        me.about("late", late)
        if late:
            yield env.timeout(joining.draw_us(fate))
        yield from sessions.run(env, Presence(me), me.rng, here=late)

    return Scenario(client, after_end="stop")

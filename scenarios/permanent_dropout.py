"""Clients leave for ever: a federation that shrinks.

A client's life has the law `life`, counted from the start of the world; with the exponential law it leaves at the
constant hazard 1 / mean, and S(t) = exp(-t / mean) of the clients are left at time t. For a Weibull law with shape k,
S(t) = exp(-(Gamma(1 + 1/k) t / mean)^k). A share `loyal_share` never leaves. By default the world stops after its
horizon, and the run with it: in a world that repeats, all clients return in each lap.
"""

from __future__ import annotations

from fedsim.scenarios.processes.devices import PHONES, Devices
from fedsim.scenarios.processes.laws import Law
from fedsim.scenarios.processes.presence import MeanOn, Presence, Sessions
from fedsim.worlds.scenario import Clock, Life, Me, Scenario, number_option

LIFE = Law(mean="3d")


def permanent_dropout(
    *,
    life: Law = LIFE,
    loyal_share: float = 0.1,
    mean_on: MeanOn = "2h",
    mean_off: str | float = "1h",
    devices: Devices = PHONES,
) -> Scenario:
    """Clients that come and go as in `churn` until they leave for ever.

    `life` is the law of the time from the start of the world until a client leaves for ever. `Trace.about` holds
    whether a client is loyal.

    Args:
        loyal_share: share of clients that never leave for ever, 0 to 1.
        mean_on: mean time online.
        mean_off: mean time offline; 0: clients are online until they leave for ever.
    """
    number_option("loyal_share", loyal_share, 0, 1)
    sessions = Sessions.of(mean_on, mean_off)

    def client(env: Clock, me: Me) -> Life:
        devices.describe(env, me)
        presence, fate = Presence(me), me.stream("life")
        loyal = bool(fate.random() < loyal_share)
        me.about("loyal", loyal)
        if not loyal:
            env.process(_leave(env, presence, life.draw_us(fate)))
        return sessions.run(env, presence, me.rng)

    return Scenario(client, after_end="stop")


def _leave(env: Clock, presence: Presence, after_us: int) -> Life:
    yield env.timeout(after_us)
    presence.block(env.now)

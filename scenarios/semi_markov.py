"""Clients come and go for times of any law: an alternating renewal process, in its stationary law.

Times online are independent with the law `on` and mean m, times offline with the law `off` and mean n. At every
instant, the first one too, a client is online with probability m / (m + n); the interval that covers the start of
the world has the stationary residual law, with density P(X > x) / m (Cox, Renewal Theory, 1962, chapters 5 and 7).
"""

from __future__ import annotations

from fedsim.scenarios.processes.devices import PHONES, Devices
from fedsim.scenarios.processes.laws import Law
from fedsim.worlds.scenario import Clock, Life, Me, Scenario

ON = Law(law="weibull", mean="2h", shape=0.6)
OFF = Law(law="lognormal", mean="4h", shape=1.0)


def semi_markov(*, on: Law = ON, off: Law = OFF, devices: Devices = PHONES) -> Scenario:
    """Clients that are online and offline in turn, for times of the laws `on` and `off`.

    A law is a table `{law, mean, shape}`.
    """

    def client(env: Clock, me: Me) -> Life:
        devices.describe(env, me)
        if me.rng.random() < on.mean_us / (on.mean_us + off.mean_us):
            length = on.draw_rest_us(me.rng)
            me.online(0, length)
            yield env.timeout(length + off.draw_us(me.rng))
        else:
            yield env.timeout(off.draw_rest_us(me.rng))
        while True:
            length = on.draw_us(me.rng)
            me.online(env.now, env.now + length)
            yield env.timeout(length + off.draw_us(me.rng))

    return Scenario(client)

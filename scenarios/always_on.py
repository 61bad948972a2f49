"""All clients are online all the time, as in a laboratory or a data centre."""

from __future__ import annotations

from fedsim.scenarios.processes.devices import PHONES, Devices
from fedsim.worlds.scenario import Clock, Life, Me, Scenario


def always_on(*, devices: Devices = PHONES) -> Scenario:
    """Clients that never leave; they differ in speed and have faults."""

    def client(env: Clock, me: Me) -> Life:
        devices.describe(env, me)
        me.online(0, me.horizon_us)
        yield env.timeout(me.horizon_us)

    return Scenario(client)

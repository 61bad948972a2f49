"""Speeds and faults of clients, the option `devices` of every scenario.

Each client draws its own constant speeds from log-normal laws: `median * exp(sigma * Z)`, Z standard normal.
Faults are a Poisson process that runs whether or not the client is online; each lasts an exponential time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import pydantic
from pydantic import ConfigDict, Field

from fedsim.common.option_requirements import Where
from fedsim.common.units import duration_us
from fedsim.scenarios.processes.laws import Options, exponential_us
from fedsim.worlds.scenario import Clock, Life, Me

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Speed = Literal["compute", "downlink", "uplink"]
Sigma = Annotated[float, Field(ge=0, le=5)]

Faulty = Where(lambda devices: devices.fault_every_us > 0, "without faults; give a time as 'fault_every'")


@dataclass(frozen=True, slots=True)
class Speeds:
    """The speeds of a client's device: seconds per sample, and bytes per second down and up."""

    compute: float
    downlink: float
    uplink: float

    def write(self, me: Me, kinds: tuple[Speed, ...] = ("compute", "downlink", "uplink")) -> None:
        """Write the speeds of some kinds for the whole time."""
        for kind in kinds:
            me.write(kind, 0, me.horizon_us, getattr(self, kind))


class Devices(Options):
    """A population of phones; the option `devices` of every scenario."""

    model_config = ConfigDict(validate_default=True)

    seconds_per_sample: Positive = 0.02
    """Median time to train on one sample, in seconds."""
    compute_sigma: Sigma = 0.6
    """Standard deviation of the logarithm of seconds per sample over the clients; 0: all are equal."""
    downlink_bytes_per_s: Positive = 4e6
    """Median download speed; 4e6 is 32 Mbit/s."""
    downlink_sigma: Sigma = 0.8
    """Standard deviation of the logarithm of download speeds over the clients; 0: all are equal."""
    uplink_bytes_per_s: Positive = 1e6
    """Median upload speed; 1e6 is 8 Mbit/s."""
    uplink_sigma: Sigma = 0.8
    """Standard deviation of the logarithm of upload speeds over the clients; 0: all are equal."""
    fault_every: str | float = "2d"
    """Mean time from the end of one fault to the start of the next; `"never"` or 0 for none."""
    fault_length: Annotated[str | float, Faulty] = "1min"
    """Mean length of a fault."""

    @pydantic.field_validator("fault_every", "fault_length")
    @classmethod
    def _is_duration(cls, text: str | float, info: pydantic.ValidationInfo) -> str | float:
        if not (info.field_name == "fault_every" and text == "never"):
            duration_us(text)
        return text

    @cached_property
    def fault_every_us(self) -> int:
        """Mean time between faults; 0 if there are none."""
        return 0 if self.fault_every == "never" else duration_us(self.fault_every)

    @cached_property
    def fault_length_us(self) -> int:
        """Mean length of a fault."""
        return duration_us(self.fault_length)

    def describe(self, env: Clock, me: Me) -> None:
        """Give a client its speeds, and start the process of its faults."""
        self.speeds(me).write(me)
        self.start_faults(env, me)

    def speeds(self, me: Me) -> Speeds:
        """Return a client's speeds without writing them, for scenarios in which some of them change."""
        # One draw for each quantity, used or not: a change to one leaves the others alone.
        compute, down, up = me.stream("device").standard_normal(3).tolist()
        return Speeds(
            compute=self.seconds_per_sample * math.exp(self.compute_sigma * compute),
            downlink=self.downlink_bytes_per_s * math.exp(self.downlink_sigma * down),
            uplink=self.uplink_bytes_per_s * math.exp(self.uplink_sigma * up),
        )

    def start_faults(self, env: Clock, me: Me) -> None:
        """Start the process of a client's faults, if there are any."""
        if self.fault_every_us:
            env.process(self._faults(env, me))

    def _faults(self, env: Clock, me: Me) -> Life:
        rng, every_us, length_us = me.stream("faults"), self.fault_every_us, self.fault_length_us
        wait_us = 0
        while True:
            yield env.timeout(wait_us + exponential_us(rng, every_us))
            wait_us = exponential_us(rng, length_us)
            me.fault(env.now, env.now + wait_us)


PHONES = Devices()

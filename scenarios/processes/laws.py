"""Laws of durations, given by options such as `on = {law = "weibull", mean = "2h", shape = 0.6}`.

With mean m and shape s, X is distributed as

    exponential   m E                              E exponential with mean 1
    weibull       m / Gamma(1 + 1/s) E^(1/s)       heavy-tailed for s < 1
    gamma         m / s G(s)                       G(s) gamma with shape s and scale 1
    lognormal     m exp(s Z - s^2 / 2)             Z standard normal
    uniform       2 m U                            U uniform on [0, 1)
    constant      m

An interval of a stationary alternating process that covers a given instant is longer than others: its length
has the density x f(x) / m, and its remainder is a uniform part of it (Cox, Renewal Theory, 1962, section 5.4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, Field

from fedsim.common.errors import closest
from fedsim.common.units import duration_us

_BATCH = 16
SHAPED = ("weibull", "gamma", "lognormal")
"""Laws with a shape."""


class Options(BaseModel):
    """A table of options; unknown keys are refused with the closest known ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @pydantic.model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, raw: Any) -> Any:
        unknown = [key for key in raw if key not in cls.model_fields] if isinstance(raw, dict) else []
        if unknown:
            hints = (f"unknown key {key!r}{closest(str(key), cls.model_fields)}" for key in unknown)
            raise ValueError("; ".join(hints))
        return raw

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a user's table with the keys that this default sets and the table lacks."""
        return {name: getattr(self, name) for name in self.model_fields_set} | dict(given)


class Law(Options):
    """A law of durations, given by its mean and, where it has one, its shape."""

    law: Literal["exponential", "weibull", "gamma", "lognormal", "uniform", "constant"] = "exponential"
    """Kind of the law; "uniform" goes from 0 to twice the mean, "constant" is always the mean."""
    mean: str | float
    """Mean of the law, a duration above 0."""
    shape: Annotated[float, Field(ge=0.1, le=10)] | None = None
    """Exponent of a Weibull law, shape of a gamma law, sigma of a log-normal law; other laws have none."""

    @pydantic.field_validator("mean")
    @classmethod
    def _is_duration(cls, text: str | float) -> str | float:
        if duration_us(text) < 1:
            raise ValueError("expected a duration of at least 1 us")
        return text

    @pydantic.model_validator(mode="after")
    def _has_its_shape(self) -> Law:
        if (self.law in SHAPED) != (self.shape is not None):
            expected = "a shape from 0.1 to 10" if self.law in SHAPED else "no shape"
            raise ValueError(f"expected {expected} with the law {self.law!r}, found shape = {self.shape}")
        return self

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a user's table with this default's keys, but for the shape of another law."""
        table = super().completed(given)
        if "shape" not in given and table.get("law") != self.law:
            table.pop("shape", None)
        return table

    @property
    def mean_us(self) -> int:
        """The mean in microseconds."""
        return duration_us(self.mean)

    def draw_us(self, rng: np.random.Generator) -> int:
        """Draw a duration in whole microseconds, at least 1."""
        return self._scaled(self._draw(rng, covering=False))

    def draw_rest_us(self, rng: np.random.Generator) -> int:
        """Draw the remainder of the interval that covers a random instant: the stationary residual."""
        return self._scaled(self._draw(rng, covering=True) * (1 - rng.random()))

    def _scaled(self, x: float) -> int:
        return max(1, round(self.mean_us * x))

    def _draw(self, rng: np.random.Generator, covering: bool) -> float:
        """Draw a length for mean 1, of any interval or of one that covers a given instant."""
        s = self.shape or 1.0
        match self.law:
            case "exponential" | "gamma":
                return float(rng.gamma(s + covering)) / s
            case "weibull":
                g = rng.gamma(1 + 1 / s) if covering else rng.exponential()
                return math.pow(g, 1 / s) / math.gamma(1 + 1 / s)
            case "lognormal":
                return math.exp(s * rng.standard_normal() + (s * s / 2 if covering else -s * s / 2))
            case "uniform":
                return 2 * (math.sqrt(rng.random()) if covering else float(rng.random()))
            case "constant":
                return 1.0


def exponential_us(rng: np.random.Generator, mean_us: float) -> int:
    """Draw an exponential duration in whole microseconds, at least 1."""
    return max(1, round(rng.exponential(mean_us)))


def exponentials(rng: np.random.Generator) -> Iterator[float]:
    """Yield the numbers of `rng.exponential()`, with mean 1, drawn in batches: `rng` is ahead by up to a batch."""
    while True:
        yield from rng.standard_exponential(_BATCH).tolist()

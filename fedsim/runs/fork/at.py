"""The instant at which a fork leaves its parent."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.common import arguments
from fedsim.common.errors import ConfigError
from fedsim.common.units import duration_us
from fedsim.config.records import ParentSection
from fedsim.engine.state import RunState
from fedsim.records.checkpoint import State


@arguments.checked
@dataclass(frozen=True, slots=True)
class At:
    """When a fork leaves its parent: after a server step, or when a virtual time is reached."""

    step: int | None = None
    time_us: int | None = None

    def __post_init__(self) -> None:
        given = {"step": self.step, "time_us": self.time_us}
        named = {name: value for name, value in given.items() if value is not None}
        if len(named) != 1:
            found = "both" if named else "neither"
            raise ConfigError(f"expected At(step=...) or At(time_us=...), found {found}")
        for name, value in named.items():
            if value < 0:
                raise ConfigError(f"{name}: expected at least 0, found {value}")

    @staticmethod
    def of(at: At | int | str) -> At:
        """Return a server step such as 120 or "120", or a virtual time such as "6h". Raises ConfigError."""
        if isinstance(at, At):
            return at
        if not isinstance(at, str):
            return At(step=int(at))  # also NumPy's whole numbers
        if at.isdecimal():
            return At(step=int(at))
        try:
            return At(time_us=duration_us(at))
        except ValueError as error:
            raise ConfigError(
                f"at: expected a server step such as 120 or a time such as '6h': {error}"
            ) from error

    def reached(self, run_state: RunState) -> bool:
        """Whether a run between two instants has reached this point.

        A time is reached once the first work was dispatched and every event up to it was processed.
        """
        if (time_us := self.time_us) is not None:
            return run_state.begun and all(e[0] > time_us or not run_state.holds(e) for e in run_state.heap)
        return run_state.step >= (self.step or 0)

    def after(self, state: State) -> bool:
        """Whether this point lies after the saved state (a time may equal it)."""
        run_state = state["run_state"]
        if self.time_us is not None:
            return bool(run_state["now_us"] <= self.time_us)
        return bool(run_state["step"] < (self.step or 0))

    def begins(self, state: State, origin: ParentSection) -> bool:
        """Whether the saved state is the first one of a fork that left its own parent at this very step."""
        run_state = state["run_state"]
        at_origin = (run_state["step"], run_state["now_us"]) == (origin.forked_step, origin.forked_us)
        return at_origin and origin.forked_at == "step" and self.step == origin.forked_step

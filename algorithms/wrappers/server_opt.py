"""A server optimiser behind any rule: Reddi et al. 2021, "Adaptive Federated Optimization" (ICLR), Algorithm 2.

The rule's direction d, as in w <- w - d, replaces the gradient:

- `momentum`: v <- β₁ v + d, w <- w - η v (FedAvgM, Hsu et al. 2019).
- `adagrad`, `adam`, `yogi`: m <- β₁ m + (1 - β₁) d and a second moment v, w <- w - η m / (√v + τ), where v
  becomes v + d², β₂ v + (1 - β₂) d², or v - (1 - β₂) d² sign(v - d²); it starts at τ² and there is no bias
  correction, as in the paper.

Guarantees of the rule's direction do not hold for the optimiser's. Rules with a momentum of their own are refused. A
direction that scales the parameters (`keep`) is refused at the first step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import Unless
from fedsim.server.rule import Algorithm, Direction, Stack, State, StepFacts, Vectors, VectorStep

if TYPE_CHECKING:
    import torch

Kind = Literal["momentum", "adagrad", "adam", "yogi"]
_Share = Annotated[float, Field(ge=0, lt=1)]
_BETAS = (0.9, 0.99)


def server_opt(
    rule: Algorithm,
    *,
    kind: Kind = "momentum",
    lr: Annotated[float, Field(gt=0)] = 1.0,
    betas: tuple[_Share, _Share] = _BETAS,
    tau: Annotated[float, Field(gt=0), Unless("kind", "momentum")] = 1e-3,
) -> Algorithm:
    """Feed the rule's direction to an optimiser of step size `lr`.

    Args:
        kind: the optimiser: "momentum", heavy-ball momentum (FedAvgM); "adagrad", "adam" and "yogi" divide the momentum
            m by √v + τ, where the second moment v becomes v + d², β₂ v + (1 - β₂) d², or v - (1 - β₂) d² sign(v - d²),
            in this order.
        lr: η, the step size of the server.
        betas: (β₁, β₂), the decay factors of the first and of the second moment; "momentum" and "adagrad" use β₁ alone,
            and refuse a β₂ other than the default.
        tau: τ, added to √v: the larger, the less small entries of the direction are amplified. The second moment v
            starts at τ².
    """
    if kind in ("momentum", "adagrad") and betas[1] != _BETAS[1]:
        raise ConfigError(
            f"betas: {kind!r} has no second moment that decays: expected {_BETAS[1]:g}, the default, as the second, "
            f"found {betas[1]:g}"
        )
    if rule.then is not None:
        raise ConfigError("the rule has a server momentum or optimiser already")

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        direction, after = rule.weigh(stack, state)
        if direction.keep != 1.0:
            raise ConfigError(
                f"the rule multiplies the parameters by {direction.keep:.4g} before it moves them; an optimiser needs "
                "a rule that only moves them"
            )
        return direction, after

    return replace(rule, weigh=weigh, then=VectorStep(_Optimiser(kind, lr, betas, tau)))


class _Optimiser:
    """The optimiser's step; its moments are the vectors `first` and `second`."""

    def __init__(self, kind: Kind, lr: float, betas: tuple[float, float], tau: float) -> None:
        self.kind, self.lr, self.betas, self.tau = kind, lr, betas, tau

    def __call__(
        self, direction: torch.Tensor, vectors: Vectors, facts: StepFacts
    ) -> tuple[torch.Tensor, Vectors]:
        beta = self.betas[0]
        fresh = direction if self.kind == "momentum" else (1 - beta) * direction
        first = fresh + beta * vectors["first"] if vectors else fresh
        if self.kind == "momentum":
            return self.lr * first, {"first": first}
        square = direction.square()
        second = self._second(
            vectors["second"] if vectors else square.new_full(square.shape, self.tau**2), square
        )
        return self.lr * first / (second.sqrt() + self.tau), {"first": first, "second": second}

    def _second(self, second: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        fresh = 1 - self.betas[1]
        if self.kind == "adagrad":
            return second + square
        if self.kind == "adam":
            return second + fresh * (square - second)
        return second - fresh * square * (second - square).sign()

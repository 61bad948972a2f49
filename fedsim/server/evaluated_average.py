"""The average of models that is evaluated in place of the last one, if the rule or the configuration asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedsim.common.errors import RunError
from fedsim.server.rule import EvaluatedModel


class EvaluatedAverage:
    """An average of the models after each step: the mean that `evaluate.model` asks for, or one of the rule's own.

    Args:
        wanted: "mean" for the mean; "last" leaves it to the rule whether there is an average.
        rule: name of the rule, for messages.
    """

    def __init__(self, wanted: EvaluatedModel, rule: str) -> None:
        self.wanted, self.rule = wanted, rule
        self.model: torch.Tensor | None = None
        """[P] The average; None before the first step, and if nothing asks for one."""
        self.count = 0
        """Number of models in the mean; 0 for an average of the rule's own."""

    def state(self) -> dict[str, Any]:
        """Return what outlives a step, for a checkpoint."""
        return {"average": self.model, "averaged": self.count}

    def inherit(self, saved: Mapping[str, Any], device: torch.device, *, same_rule: bool) -> None:
        """Take over a saved state: a mean if one is wanted, the average of a rule's own for the `same_rule` alone."""
        model, count = saved["average"], saved.get("averaged", 0)
        taken = model is not None and (self.wanted == "mean" if count else same_rule)
        self.model, self.count = (model.to(device), count) if taken else (None, 0)

    def add(self, before: torch.Tensor, after: torch.Tensor, own: float | None) -> None:
        """Add the model after a step, `after` [P]; `before` [P] is the one before it, `own` the rule's share of it.

        Raises RunError if the mean is wanted and the rule has another average.
        """
        share = own
        if self.wanted == "mean":
            self.count += 1
            share = 1 / self.count
            if own not in (None, share):
                raise RunError(
                    f"rule {self.rule!r} evaluates an average of its own, in which the model of step {self.count} has "
                    f'the share {own:.4g} in place of {share:.4g}: leave out evaluate.model = "mean"'
                )
        if share is not None:
            self.model = torch.lerp(before if self.model is None else self.model, after, share)

"""Clip long rows before the rule sees them (as in differentially private federated averaging, McMahan et al. 2018).

Rows longer than the limit are shortened to it; their directions stay. Rules that give all updates the same length are
refused, because they would undo the clipping.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.geometry import inverse_norms, row_norms
from fedsim.algorithms.mathematics.stack_views import on_scaled, refuse_scale_free, with_gram
from fedsim.common.errors import ConfigError
from fedsim.server.rule import Algorithm, Floats, Stack


def clipped(
    rule: Algorithm,
    *,
    norm: Annotated[float, Field(gt=0)] | None = None,
    median_multiple: Annotated[float, Field(gt=0)] | None = None,
) -> Algorithm:
    """Shorten rows to at most `norm`, or to `median_multiple` times the median norm of the present rows.

    Without either, rows are shortened to the median norm; both together are refused.

    Args:
        norm: the largest norm of a row, in the unit of the updates.
        median_multiple: the largest norm of a row, as a multiple of the median norm of the present rows.
    """
    refuse_scale_free(rule)
    if norm is not None and median_multiple is not None:
        raise ConfigError(
            f"expected one of the options 'norm' and 'median_multiple', found both: {norm} and {median_multiple}"
        )
    multiple = 1.0 if median_multiple is None else median_multiple

    def factors(stack: Stack) -> Floats:
        gram = stack.gram()
        norms = row_norms(gram)
        limit = multiple * float(np.median(norms[: stack.m])) if norm is None else norm
        return np.where(norms > limit, limit * inverse_norms(gram), 1.0)

    return on_scaled(rule, factors, with_gram(rule.needs))

"""Select with a known bias, from uniform sampling to the preferred clients alone, to study the effect of bias.

Of k places, B ~ Binomial(k, `strength`) go to the B candidates with the best scores, ties at random. The other places
go to clients drawn uniformly from the rest. The score, by `by`:

- `label`: the share of the client's samples that have one of `labels`.
- `speed`: minus the time that its last job took, or would take now.
- `n_samples`: its training samples.
- a column that the world knows of its clients: the number itself, or whether the text is one of `values`.

`sign = -1` prefers the lowest scores. Clients whose score is unknown come last either way.

Known to the server: the score; a real server does not know labels.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.algorithms.selection.parts.draws import highest, topped_up
from fedsim.algorithms.selection.parts.durations import durations_us
from fedsim.algorithms.selection.parts.groups import column
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import Unless, With
from fedsim.engine.selector import Clients, Floats, Selector, View, stateless


def biased(
    *,
    by: str = "n_samples",
    strength: Annotated[float, Field(ge=0, le=1)] = 0.5,
    sign: Literal[1, -1] = 1,
    labels: Annotated[list[Annotated[int, Field(ge=0)]] | None, With("by", "label")] = None,
    values: Annotated[list[str | int] | None, Unless("by", "label", "speed", "n_samples")] = None,
) -> Selector:
    """Prefer clients by a label, their speed, their number of samples, or a column that the world knows of them.

    Args:
        by: what gives a client its score. "label": the share of its samples that have one of `labels`. "speed": minus
            the time that its last job took, or would take now if none has arrived. "n_samples": the number of its
            training samples. Any other text: a column that the world knows of its clients, such as "region"; the score
            is the number there, or with `values` whether the entry is one of them.
        strength: chance of each place to go to the clients with the best scores; 0 is uniform sampling, 1 takes the
            preferred clients only.
        sign: 1 prefers the highest scores, -1 the lowest.
        labels: the preferred labels, needed with by = "label".
        values: the preferred entries of the column, needed if it holds words.
    """
    if by == "label" and not labels:
        raise ConfigError("selector 'biased' with by = \"label\" needs the option 'labels'")

    def score(view: View) -> Floats:
        if by == "label":
            return _label_shares(view, labels or [])
        if by == "speed":
            return -durations_us(view, view.candidates).astype(np.float64)
        if by == "n_samples":
            return view.n_samples[view.candidates].astype(np.float64)
        return _about(view, by, values)

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        places = int(rng.binomial(k, strength))
        preferred = highest(view.candidates, sign * score(view), places, rng)
        return topped_up(preferred, view.candidates, k, rng)

    return stateless(select, needs=frozenset({"labels"}) if by == "label" else frozenset())


def _label_shares(view: View, labels: list[int]) -> Floats:
    counts = view.facts.label_counts[view.candidates]
    unknown = [label for label in labels if label >= counts.shape[1]]
    if unknown:
        raise ConfigError(
            f"selector 'biased', option 'labels': expected labels below {counts.shape[1]}, found {unknown[0]}"
        )
    return np.asarray(counts[:, labels].sum(axis=1) / np.maximum(counts.sum(axis=1), 1))


def _about(view: View, by: str, values: list[str | int] | None) -> Floats:
    by_client = column(view, by)
    scores = by_client[view.candidates]
    if values:
        preferred = _among(by_client, values)
        if not preferred.any():
            some = ", ".join(np.unique(by_client.astype(str))[:10].tolist())
            raise ConfigError(
                f"selector 'biased', option 'values': no client has one of {values} as {by!r}; found {some}"
            )
        return preferred[view.candidates].astype(np.float64)
    if scores.dtype.kind not in "biuf":
        raise ConfigError(
            f"selector 'biased': {by!r} holds words: name those preferred with the option 'values'"
        )
    return scores.astype(np.float64)


def _among(by_client: NDArray[Any], values: list[str | int]) -> NDArray[np.bool_]:
    """Return [K] whether each client has one of the values; whole numbers are floats if some clients have none."""
    texts = [str(value) for value in values]
    if by_client.dtype.kind != "f":
        return np.isin(by_client.astype(str), texts)
    numbers = [float(text) for text in texts if text.lstrip("-").replace(".", "", 1).isdecimal()]
    return np.isin(by_client, numbers)

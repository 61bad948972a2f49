"""Synthetic(α, β) of q-FFL (Li et al., 2020, "Fair Resource Allocation in Federated Learning", section 4.1).

The distribution and the order of the draws are those of the authors' generator, so its published settings give the same
numbers: `sigma = 2` with variant "noniid"; `sigma = 1` with "iid" and "hybrid". The statistics printed in the paper,
127 samples a device with a standard deviation of 73, fit `sigma = 0.84`; the default is 1. Deviations: the authors set
no seed; labels are the argmax of the logits rather than of their softmax, which differs only where the exponential
overflows; and features need no singular value decomposition of the covariance, which is diagonal: its signs depend on
the linear-algebra library.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import With
from fedsim.data.federated_data import Indices, Task
from fedsim.data.label_shares import cut

FEATURES = 60
CLASSES = 10
_MOST_SAMPLES = 2**31

Floats = NDArray[np.floating[Any]]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Variant = Literal["noniid", "iid", "hybrid"]


@dataclass(frozen=True, slots=True)
class Devices:
    """The random draws for K clients."""

    model_means: Floats
    """[K] u_k, mean of the entries of the client's own model."""
    feature_means: Floats
    """[K] B_k, mean of the entries of v_k, the centre of the client's features."""
    features: Floats
    """[N, 60] features, client after client."""
    labels: Indices
    """[N] labels."""


Drawn = With("sizes", "lognormal")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticOptions:
    """Options of `synthetic`."""

    alpha: NonNegative | None = None
    """Standard deviation of the clients' model means u_k; by default 1, and 0 for the variant "iid"."""
    beta: NonNegative | None = None
    """Standard deviation of the clients' feature means B_k; by default 1, and 0 for the variant "iid"."""
    variant: Variant = "noniid"
    """ "iid" has one model, and a centre B_k, for all clients; "hybrid" makes the first half of the clients IID."""
    sizes: Literal["lognormal", "fixed"] = "lognormal"
    """ "lognormal" gives client k floor(LogNormal(log_mean, sigma)) + least samples, "fixed" gives each `samples`."""
    log_mean: Annotated[float, Field(allow_inf_nan=False), Drawn] = 4.0
    """Mean of the logarithm of the drawn part of a client's samples."""
    sigma: Annotated[NonNegative, Drawn] = 1.0
    """Standard deviation of that logarithm."""
    least: Annotated[int, Field(ge=0), Drawn] = 50
    """Samples that each client has beside the drawn ones."""
    samples: Annotated[int, Field(ge=1), With("sizes", "fixed")] = 100
    """Samples of each client."""


def synthetic(clients: int, seed: int, data_dir: Path | None, options: SyntheticOptions) -> Task:
    """60 Gaussian features in 10 classes, labelled by a linear model; each client has its model and centre.

    The argmax of the model gives the label. Raises ConfigError for a seed outside 0 to 2^32 - 1, the range of the
    authors' generator.
    """
    if not 0 <= seed < 2**32:
        raise ConfigError(f"task 'synthetic' needs a seed from 0 to {2**32 - 1}, found {seed}")
    o, state = options, np.random.RandomState(seed)
    counts = np.full(clients, o.samples, dtype=np.int64)
    if o.sizes == "lognormal":
        counts = lognormal_sizes(state, clients, o.log_mean, o.sigma, o.least)
    default = 0.0 if o.variant == "iid" else 1.0
    model_spread, feature_spread = (default if spread is None else spread for spread in (o.alpha, o.beta))
    devices = draw(state, counts, model_spread, feature_spread, o.variant, np.float32)
    n = len(devices.labels)
    return Task(
        name="synthetic",
        x=devices.features,
        y=devices.labels,
        n_classes=CLASSES,
        official_test=np.zeros(n, dtype=np.bool_),
        natural=tuple(cut(np.arange(n), counts)),
    )


def lognormal_sizes(
    state: np.random.RandomState, clients: int, log_mean: float, sigma: float, least: int
) -> Indices:
    """Draw [K] sample counts, the generator's first draw. Raises ConfigError for counts that no machine can hold."""
    drawn = state.lognormal(log_mean, sigma, clients)
    if not drawn.max(initial=0) < _MOST_SAMPLES:
        raise ConfigError(
            f"task 'synthetic': expected a smaller log_mean or sigma than {log_mean:g} and {sigma:g}, which draw a "
            f"client of {drawn.max():.3g} samples"
        )
    return drawn.astype(np.int64) + least


def draw(
    state: np.random.RandomState,
    counts: Indices,
    alpha: float,
    beta: float,
    variant: Variant,
    dtype: type[np.floating[Any]] = np.float64,
) -> Devices:
    """Draw models, centres, features and labels for the sample counts, in the authors' order.

    Features are labelled before they are rounded to `dtype`.
    """
    n_clients = len(counts)
    n_iid = {"noniid": 0, "iid": n_clients, "hybrid": n_clients // 2}[variant]
    model_means = state.normal(0, alpha, n_clients)
    feature_means = state.normal(0, beta, n_clients)
    centres = [_centre(state, feature_means[k], k < n_iid, variant) for k in range(n_clients)]
    shared = _model(state, 0.0) if n_iid else None
    deviation = np.sqrt(np.arange(1, FEATURES + 1) ** -1.2)
    n = int(counts.sum())
    features, labels = np.empty((n, FEATURES), dtype=dtype), np.empty(n, dtype=np.int64)
    end = 0
    for k, count in enumerate(counts.tolist()):
        own = _model(state, model_means[k])  # drawn for IID clients too, as the authors do
        weight, bias = shared if shared is not None and k < n_iid else own
        x = state.standard_normal((count, FEATURES))
        x *= deviation
        x += centres[k]
        start, end = end, end + count
        features[start:end] = x
        labels[start:end] = (x @ weight + bias).argmax(axis=1)
    return Devices(model_means, feature_means, features, labels)


def _centre(state: np.random.RandomState, feature_mean: float, is_iid: bool, variant: Variant) -> Floats:
    if not is_iid:
        return state.normal(feature_mean, 1, FEATURES)
    return np.full(FEATURES, feature_mean if variant == "iid" else 0.0)


def _model(state: np.random.RandomState, mean: float) -> tuple[Floats, Floats]:
    return state.normal(mean, 1, (FEATURES, CLASSES)), state.normal(mean, 1, CLASSES)

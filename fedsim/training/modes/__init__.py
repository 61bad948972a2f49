"""Ways to train a group of clients: one after the other, or side by side.

`loop` trains each client with autograd. `vmap` and `dense` train many at once, from the same minibatches in the same
order: `vmap` whatever torch.func can map over, `dense` models of linear layers and ReLU, whose gradients are written
out. They equal the loop but for rounding, and a client's bits depend on nothing but its own job.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from fedsim.common.errors import ConfigError
from fedsim.training.client_method import ClientMethod
from fedsim.training.modes.dense import does_as, linear_layers
from fedsim.training.settings import Mode

_SURE = (
    nn.Sequential,
    nn.Linear,
    nn.Flatten,
    nn.Identity,
    nn.Embedding,
    nn.modules.conv._ConvNd,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softplus,
)
"""Modules of which it is sure that they draw nothing at random; what others do in their own code nobody knows."""


def resolve_mode(
    wanted: Mode | Literal["auto"], module: nn.Module, method: ClientMethod, device: str
) -> Mode:
    """Return the way to train that `[train] mode` means for a model and a client-side method.

    `auto` is a rule of these alone, never of a timing: `dense` where the model allows it; else `vmap` on a GPU where it
    allows that; else `loop`. Raises ConfigError where a mode was asked for that cannot be.
    """
    reasons: dict[Mode, str] = {
        "dense": _not_dense(module, method),
        "vmap": _not_vmap(module, method),
        "loop": "",
    }
    if wanted == "auto":
        if not reasons["dense"]:
            return "dense"
        return "vmap" if device.startswith("cuda") and not reasons["vmap"] else "loop"
    if reasons[wanted]:
        works = " or ".join(repr(mode) for mode, reason in reasons.items() if not reason)
        raise ConfigError(f"train.mode: {wanted!r} cannot be: {reasons[wanted]}; take {works}, or 'auto'")
    return wanted


def _not_plain(method: ClientMethod) -> str:
    return "" if method.train is None else "the client-side method trains each client in its own way"


def may_draw(module: nn.Module) -> str:
    """Return the name of a part of the model that may draw at random while it trains, such as dropout, or nothing.

    Of a module of one's own, also one that is derived from torch's, nobody knows, unless it says `draws = False`.
    """
    unsure = (part for part in module.modules() if not does_as(part, _SURE) and not _draws_nothing(part))
    return next((type(part).__name__ for part in unsure), "")


def _draws_nothing(part: nn.Module) -> bool:
    if does_as(part, nn.RNNBase):
        return not part.dropout
    return does_as(part, nn.LocalResponseNorm) or getattr(part, "draws", True) is False


def _not_vmap(module: nn.Module, method: ClientMethod) -> str:
    recurrent = [type(part).__name__ for part in module.modules() if isinstance(part, nn.RNNBase)]
    if recurrent:
        return f"torch.func cannot map over a recurrent layer ({recurrent[0]})"
    if drawn := may_draw(module):
        return _not_plain(method) or f"the model may draw at random while it trains ({drawn})"
    other = [type(part).__name__ for part in module.modules() if not does_as(part, _SURE)]
    return _not_plain(method) or (f"nobody has tried to map over {other[0]} with torch.func" if other else "")


def _not_dense(module: nn.Module, method: ClientMethod) -> str:
    other = "" if linear_layers(module) else "the model is not a sequence of Linear layers with ReLU between"
    return _not_plain(method) or other

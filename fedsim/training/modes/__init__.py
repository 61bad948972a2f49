"""Batching modes: a group of clients trains one after the other, or side by side.

`loop` trains each client with autograd. `vmap` and `dense` train many clients at once on the same minibatches in the
same order: `vmap` any model that torch.func can map over, `dense` models of linear layers and ReLU with gradients
written out by hand. All modes agree up to rounding, and a client's bits depend on its own job alone.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from fedsim.common.errors import ConfigError
from fedsim.training.client_method import ClientMethod
from fedsim.training.modes.linear_layers import behaves_as, linear_layers
from fedsim.training.settings import Mode

_DRAW_NOTHING: tuple[type[nn.Module], ...] = (
    *(nn.Sequential, nn.Linear, nn.Flatten, nn.Identity, nn.Embedding),
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.GroupNorm, nn.LayerNorm),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus),
    *(nn.Softmax, nn.LogSoftmax),
)
"""Modules that are known to draw nothing at random."""


def resolve_mode(
    wanted: Mode | Literal["auto"], module: nn.Module, method: ClientMethod, device: str
) -> Mode:
    """Return the batching mode for a model and a client method.

    `auto` depends on the model, the method and the device alone, never on a timing: `dense` if the model allows it;
    else `vmap` on a GPU if the model allows it; else `loop`. Raises ConfigError if the wanted mode is impossible.
    """
    own = "" if method.train is None else "the client method trains each client in its own way"
    reasons: dict[Mode, str] = {
        "dense": own or _not_dense(module),
        "vmap": own or _not_vmap(module),
        "loop": "",
    }
    if wanted == "auto":
        if not reasons["dense"]:
            return "dense"
        return "vmap" if device.startswith("cuda") and not reasons["vmap"] else "loop"
    if reasons[wanted]:
        works = " or ".join(repr(mode) for mode, reason in reasons.items() if not reason)
        raise ConfigError(
            f"train.mode: {wanted!r} cannot be used: {reasons[wanted]}; take {works}, or 'auto'"
        )
    return wanted


def may_draw(module: nn.Module) -> str:
    """Return the class name of a layer that may draw at random while it trains, such as dropout; else "".

    A user's module, including a subclass of one of torch's, counts as drawing unless it has `draws = False`.
    """
    return next((type(part).__name__ for part in module.modules() if not _draws_nothing(part)), "")


def _draws_nothing(part: nn.Module) -> bool:
    if behaves_as(part, nn.RNNBase):
        return not part.dropout
    return behaves_as(part, (*_DRAW_NOTHING, nn.LocalResponseNorm)) or getattr(part, "draws", True) is False


def _not_vmap(module: nn.Module) -> str:
    recurrent = [type(part).__name__ for part in module.modules() if isinstance(part, nn.RNNBase)]
    if recurrent:
        return f"torch.func cannot map over a recurrent layer ({recurrent[0]})"
    if drawn := may_draw(module):
        return f"the model may draw at random while it trains ({drawn})"
    other = [type(part).__name__ for part in module.modules() if not behaves_as(part, _DRAW_NOTHING)]
    return f"{other[0]} is not known to work with torch.func.vmap" if other else ""


def _not_dense(module: nn.Module) -> str:
    return "" if linear_layers(module) else "the model is not a sequence of Linear layers with ReLU between"

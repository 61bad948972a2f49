"""The models that the batching mode `dense` can train: linear layers with ReLU between, in one flat vector."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

_KINDS = (nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU)


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer within the flat vector of parameters [P]."""

    rows: int
    columns: int
    weight: int
    """Start of its matrix [rows, columns]."""
    bias: int
    """Start of its bias [rows], -1 without a bias."""
    relu: bool
    """Whether ReLU follows."""

    def of(self, params: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return its matrix [rows, columns] and its bias [rows] as views into `params` [P]."""
        matrix = params[self.weight : self.weight + self.rows * self.columns].view(self.rows, self.columns)
        return matrix, params[self.bias : self.bias + self.rows] if self.bias >= 0 else None


def behaves_as(part: nn.Module, kinds: type[nn.Module] | tuple[type[nn.Module], ...]) -> bool:
    """Return whether a module computes exactly what one of torch's `kinds` does.

    A subclass with a `forward` of its own and a module with hooks may do anything, so the answer for them is False.
    """
    own = not str(part.forward.__module__).startswith("torch.nn.")
    return isinstance(part, kinds) and not own and not _has_hooks(part)


def _has_hooks(part: nn.Module) -> bool:
    """Return whether a module has hooks: a hook that is registered for a moment is then not alone."""
    forward = part.register_forward_pre_hook, part.register_forward_hook
    backward = part.register_full_backward_pre_hook, part.register_full_backward_hook
    try:
        for register in (*forward, *backward):
            with register(lambda *arguments: None) as handle:
                if len(handle.hooks_dict_ref() or ()) > 1:
                    return True
    except RuntimeError:  # it has a backward hook of torch's older kind
        return True
    return False


def linear_layers(module: nn.Module) -> list[Layer]:
    """Return the layers of a model that is Flatten, then Linear layers with or without ReLU; else an empty list.

    The list is also empty if layers share parameters, or have parameters beside a matrix and a bias.
    """
    if not isinstance(module, nn.Sequential) or not all(behaves_as(p, _KINDS) for p in (module, *module)):
        return []
    linear = [part for part in module if isinstance(part, nn.Linear)]
    parameters = [p for part in linear for p in (part.weight, part.bias) if p is not None]
    if [id(p) for p in parameters] != [id(p) for p in module.parameters()]:
        return []
    layers: list[Layer] = []
    at = 0
    for part in module:
        if isinstance(part, nn.Linear):
            bias = -1 if part.bias is None else at + part.weight.numel()
            layers.append(Layer(part.out_features, part.in_features, at, bias, relu=False))
            at += sum(parameter.numel() for parameter in part.parameters())
        elif isinstance(part, nn.ReLU) and layers:
            layers.append(replace(layers.pop(), relu=True))
        elif not (isinstance(part, nn.Flatten) and part.start_dim == 1 and not layers):
            return []
    return layers if layers and not layers[-1].relu else []

"""A recurrent network over characters: the Shakespeare model of LEAF and q-FFL."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from fedsim.common.errors import ConfigError

Width = Annotated[int, Field(ge=1)]


class CharacterLSTM(nn.Module):
    """Embedding, LSTM layers, and a linear layer on the output of the last one at the last character."""

    draws = False

    def __init__(self, alphabet: int, embedding: int, hidden: Sequence[int], n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, embedding)
        widths = [embedding, *hidden]
        self.recurrent = [f"lstm{number}" for number in range(1, len(widths))]
        for name, (before, after) in zip(self.recurrent, pairwise(widths), strict=True):
            self.add_module(name, nn.LSTM(before, after, batch_first=True))
        self.out = nn.Linear(widths[-1], n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map numbers of characters [B, T], kept as float32, to logits [B, n_classes]."""
        try:
            hidden: torch.Tensor = self.embedding(x.long())
        except IndexError as error:
            most = self.embedding.num_embeddings - 1
            raise ConfigError(
                f"model 'lstm': expected samples of numbers of characters, from 0 to {most}, found {x.min():g} to "
                f"{x.max():g}: set alphabet to the number of different characters, or take another model"
            ) from error
        for name in self.recurrent:
            hidden = self.get_submodule(name)(hidden)[0]
        logits: torch.Tensor = self.out(hidden[:, -1])
        return logits


def lstm(
    *,
    in_shape: tuple[int, ...],
    n_classes: int,
    embedding: Width = 8,
    hidden: Annotated[Sequence[Width], Field(min_length=1)] = (256, 256),
    alphabet: Width | None = None,
) -> nn.Module:
    """Predict the next character from those before it; by default the model of LEAF and q-FFL for Shakespeare.

    For layer-wise rules each layer is a block. Raises ConfigError when samples are not sequences [length].

    Args:
        embedding: width of the vector that stands for a character.
        hidden: width of each LSTM layer.
        alphabet: number of different characters; None: the number of classes.
    """
    if len(in_shape) != 1:
        raise ConfigError(
            f"model 'lstm' needs sequences of characters [length]; this task has samples of shape {in_shape}"
        )
    return CharacterLSTM(n_classes if alphabet is None else alphabet, embedding, hidden, n_classes)

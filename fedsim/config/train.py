"""Configuration of local training: the table `[train]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedsim.config.section import LARGEST, Count, Section, Whole

if TYPE_CHECKING:
    from fedsim.training.augmentation import Augment
    from fedsim.training.settings import LocalSGD


class AugmentSection(Section):
    """`[train.augment]`: images are shifted and mirrored at random while clients train."""

    crop: Whole = 0
    """Pixels of zeros on each side before a window of the image's own size is cut out."""
    flip: bool = False
    """Whether half of the images are mirrored, left to right."""

    def augment(self) -> Augment | None:
        """Return the settings as the trainer wants them, None where they change nothing."""
        from fedsim.training.augmentation import (
            Augment,  # it imports torch, and a configuration is read without it
        )

        how = Augment(self.crop, self.flip)
        return how if how.views > 1 else None


class TrainSection(Section):
    """`[train]`: local SGD, the same on every client."""

    epochs: Annotated[int, Field(gt=0, le=10**6)] = 1
    batch_size: Count | Literal["full"] = 32
    lr: float = Field(0.1, gt=0, le=1e30)
    lr_decay: float = Field(1.0, gt=0, le=1)
    """Factor on the learning rate for each server step."""
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, le=LARGEST)
    mode: Literal["auto", "loop", "vmap", "dense"] = "auto"
    """How groups of clients train: one after the other, or side by side; `auto` is a rule of model and device."""
    augment: AugmentSection | None = None
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """How precisely clients compute; parameters, updates and evaluations are float32 in any case."""
    loss_samples: Count | Literal["all"] = "all"
    """Most samples on which a client takes the loss of a received model, where a rule or a selector asks for it."""

    def local_sgd(self) -> LocalSGD:
        """Return the settings as the trainer wants them. It imports torch, which takes seconds."""
        from fedsim.training.settings import LocalSGD

        size = None if self.batch_size == "full" else self.batch_size
        augment = None if self.augment is None else self.augment.augment()
        return LocalSGD(
            self.epochs,
            size,
            self.lr,
            self.lr_decay,
            self.momentum,
            self.weight_decay,
            augment,
            None if self.loss_samples == "all" else self.loss_samples,
            self.precision,
        )

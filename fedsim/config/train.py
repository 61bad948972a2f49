"""The table `[train]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedsim.config.section import LARGEST, Count, Section, Whole

if TYPE_CHECKING:
    from fedsim.training.settings import LocalSGD


class AugmentSection(Section):
    """`[train.augment]`: random crops and flips of images in training."""

    crop: Whole = 0
    """Pixels of zero padding on each side, from which a random window of the image's size is cut."""
    flip: bool = False
    """Mirror half of the images, chosen at random, left to right."""


class TrainSection(Section):
    """`[train]`: local SGD, the same on every client."""

    epochs: Annotated[int, Field(gt=0, le=10**6)] = 1
    """Passes over the client's training samples per job."""
    batch_size: Count | Literal["full"] = 32
    """Samples of a minibatch; `full`: all of the client's training samples."""
    lr: float = Field(0.1, gt=0, le=1e30)
    """Learning rate."""
    lr_decay: float = Field(1.0, gt=0, le=1)
    """Factor on the learning rate for each server step."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Heavy-ball momentum."""
    weight_decay: float = Field(0.0, ge=0, le=LARGEST)
    """Factor of the weights in the gradient (L2 regularisation)."""
    loss: Literal["cross_entropy", "hinge"] = "cross_entropy"
    """The loss of a sample, which training minimizes, rules and selectors hear of and evaluations report. `hinge` is
    the one of a support vector machine."""
    mode: Literal["auto", "loop", "vmap", "dense"] = "auto"
    """Batching mode: clients train one after the other (`loop`) or side by side. `auto` depends on model, client
    method and device alone."""
    augment: AugmentSection | None = None
    """Random changes of images in training; by default none."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Numeric precision of training; parameters, updates and evaluations are always float32."""
    loss_samples: Count | Literal["all"] = "all"
    """Most samples on which a client measures the loss of a received model, if a rule or a selector asks for it."""

    def local_sgd(self) -> LocalSGD:
        """Return the settings of local SGD. Imports torch, which is slow."""
        from fedsim.training.augmentation import Augment
        from fedsim.training.settings import LocalSGD

        augment = Augment(self.augment.crop, self.augment.flip) if self.augment else None
        return LocalSGD(
            epochs=self.epochs,
            batch_size=None if self.batch_size == "full" else self.batch_size,
            lr=self.lr,
            lr_decay=self.lr_decay,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            augment=augment if augment and augment.views > 1 else None,
            loss_samples=None if self.loss_samples == "all" else self.loss_samples,
            loss=self.loss,
            precision=self.precision,
        )

"""SCAFFOLD's clients: Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
(ICML), Algorithm 1 with Option II.

    y <- y - η (g(y) - c_k + c) for τ minibatches from y = w,    c_k⁺ = c_k - c + (w - y)/(τ η)

with c the server's control variate, which comes with the model, and c_k the client's own, 0 at first, which it keeps.
The client sends c_k⁺ - c_k beside the update. It needs the rule `scaffold`.

Deviations and choices:
- η is the learning rate of the job, after its decay.
- Momentum and weight decay of `[train]` apply to the corrected gradient, and are part of c_k⁺.
- A job without a step changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedsim.training.client_method import ClientMethod, Offset


def scaffold() -> ClientMethod:
    """Correct each gradient by the difference of the server's and the client's control variates."""
    offset = Offset(_difference, _after)
    return ClientMethod(offset=offset, keeps=True, receives=("control",), sends=("control",), rule="scaffold")


def _difference(own: torch.Tensor, received: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return received["control"] - own


def _after(
    update: torch.Tensor, own: torch.Tensor, received: Mapping[str, torch.Tensor], rate: float
) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """Return the client's next control variate, and the change that it sends; `rate` is τ η."""
    change = update / rate - received["control"] if rate else torch.zeros_like(update)
    return own + change, {"control": change}

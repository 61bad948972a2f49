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

import torch

from fedsim.training.client_method import ClientMethod, Local, Tensors, Trained


def scaffold() -> ClientMethod:
    """Correct each gradient by the difference of the server's and the client's control variates."""
    return ClientMethod(
        _train, draws=False, keeps=True, receives=("control",), sends=("control",), rule="scaffold"
    )


def _train(local: Local, start: torch.Tensor, kept: torch.Tensor | None) -> Trained:
    own = torch.zeros_like(start) if kept is None else kept
    server = local.received["control"]
    offset, rates = local.views(server - own), list[float]()

    def correct(grads: Tensors, weights: Tensors, lr: float) -> Tensors:
        rates.append(lr)
        return tuple(grad + more for grad, more in zip(grads, offset, strict=True))

    end, loss = local.sgd(start, correct=correct)
    change = (start - end) / sum(rates) - server if rates else torch.zeros_like(start)
    return Trained(end, loss, kept=own + change, sent={"control": change})

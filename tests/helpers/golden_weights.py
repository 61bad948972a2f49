"""Checks of golden vectors for rules that weight clients, by losses, accuracies or a mixture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.algorithms.afl import project
from golden_tools import EXACT, INTERIOR_POINT, Case, assert_close
from rule_calls import combine


def check_fedavg(case: Case, name: str) -> None:
    w = case["w0"]
    for t, delta in enumerate(case["delta"]):
        result = combine("fedavg", -delta, losses=None, n_samples=case["n_samples"][t])
        assert_close(result.weights[0], case["weights"][t], EXACT, f"weights of round {t}")
        w = w - result.direction
        assert_close(w, case["w_after_data_weighted"][t], EXACT, f"model after round {t}")
    volumes = case["client_volumes"]
    population: dict[str, Any] = {"n_clients": int(case["K"]), "total_samples": int(volumes.sum())}
    names = {"uniform": "uniform", "scaled": "weighted_scale", "completed": "weighted_com"}
    for weighting, stored in names.items():
        first = combine(
            "fedavg",
            -case["delta"][0],
            losses=None,
            n_samples=volumes[case["selected"][0]],
            weighting=weighting,
            **population,
        )
        moved = first.keep * case["w0"] - first.direction
        assert_close(moved, case[f"first_round_{stored}"], EXACT, weighting)


def check_fedmgda_plus(case: Case, name: str) -> None:
    given: dict[str, Any] = {"losses": None, "n_samples": case["n_samples"]}
    for i, epsilon in enumerate(case["eps"]):
        by_data, uniform = (
            combine("fedmgda_plus", case["grads"], **given, lambda0=centre, epsilon=float(epsilon)).direction
            for centre in ("samples", "uniform")
        )
        assert_close(by_data, case["direction_hp_datasize"][i], EXACT, f"samples, epsilon {epsilon}")
        assert_close(uniform, case["direction_hp_uniform"][i], EXACT, f"uniform, epsilon {epsilon}")
        step = by_data * case["server_lr_easyfl"]
        assert_close(step, case["update_easyfl"][i], INTERIOR_POINT, f"easyfl, epsilon {epsilon}")
        gfedplat = case["direction_gfedplat"][i]
        assert_close(by_data, gfedplat, INTERIOR_POINT, f"gfedplat, epsilon {epsilon}")
        if np.isfinite(case["lambda_watml"][i]).all():  # their solver refuses singular matrices
            theirs = case["lambda_watml"][i] @ case["grads_normalised"]
            assert_close(uniform, theirs, INTERIOR_POINT, f"watml, epsilon {epsilon}")


def check_qfedavg(case: Case, name: str) -> None:
    rows, lr = case["w"] - case["w_local"], float(case["lr"])
    for i, q in enumerate(case["q"]):
        moved = [
            case["w"] - combine(rule, rows, losses=case["losses"], lr=lr, q=float(q)).direction
            for rule in ("qfedavg", "qfedsgd")
        ]
        for stored in ("fair_flearn", "easyfl", "gfedplat"):
            assert_close(moved[0], case[f"w_{stored}"][i], EXACT, f"{stored}, q {q}")
        assert_close(moved[0], case["w_numpy_paper"][i], 1e-9, f"paper, q {q}")
        assert_close(moved[1], case["w_qfedsgd_fair_flearn"][i], EXACT, f"q-FedSGD, q {q}")


def check_afl(case: Case, name: str) -> None:
    if name.startswith("projection"):
        for m, y, expected in zip(case["m"], case["y"], case["projected"], strict=True):
            assert_close(project(y[:m]), expected[:m], EXACT, "projection")
        for m, y, released in zip(case["m"], case["y"], case["projected_fair_flearn"], strict=True):
            assert_close(project(y[:m], "fair_flearn"), released[:m], EXACT, "fair_flearn's projection")
        return
    w, average, state = case["w0"], case["w0"], None
    for t, (rows, losses) in enumerate(zip(case["grads"], case["losses"], strict=True)):
        gamma = float(case["gamma_lambda"])
        result = combine("afl", rows * case["lr"], losses=losses, state=state, gamma_lambda=gamma)
        raised = case["lambda_after"][t - 1] if t else np.full(len(losses), 1 / len(losses))
        raised = raised + gamma * losses
        w, state = w - result.direction, result.state
        assert result.average is not None
        average = average + result.average * (w - average)
        assert_close(state["mixture"], case["lambda_after"][t], EXACT, f"weights after round {t}")
        assert_close(w, case["w_after"][t], EXACT, f"model after round {t}")
        assert_close(average, case["averaged_model"][t], EXACT, f"average after round {t}")
        for code in ("fair_flearn", "gfedplat"):
            projected = project(raised, code)
            assert_close(projected, case[f"lambda_after_{code}_from_same_input"][t], EXACT, code)


def check_ditto_server(case: Case, name: str) -> None:
    plain, sequential = (_rounds(case, "fedavg", weighting=w)[1] for w in ("uniform", "sequential"))
    assert_close(plain[0], case["first_round_plain_mean"], EXACT, "mean of the first round")
    assert_close(sequential, case["w_after_authors"], EXACT, "models of the sequential code")


def check_drfl(case: Case, name: str) -> None:
    weights, models = _rounds(case, "drfl")
    assert_close(weights, case["weights"], EXACT, "weights")
    assert_close(models, case["w_after"], EXACT, "models")


def check_fedgini(case: Case, name: str) -> None:
    options = {"epsilon": float(case["epsilon"]), "order": "descending"}
    for rank, model, stored in (
        ("released", "authors", "authors"),
        ("true", "true_rank", "true_rank_descending_loss"),
    ):
        weights, models = _rounds(case, "fedgini", **options, rank=rank)
        assert_close(models, case[f"w_after_{model}"], EXACT, model)
        assert_close(weights, case[f"weights_{stored}"], EXACT, f"weights, {stored}")


def check_fedfa(case: Case, name: str) -> None:
    beta = float(case["beta"])
    easyfl: dict[str, Any] = {
        "gamma": float(case["gamma_easyfl"]),
        "server_lr": float(case["server_lr_easyfl"]),
    }
    weights, models = _rounds(case, "fedfa", form="easyfl", beta=beta, **easyfl)
    assert_close(weights, case["weights_easyfl"], EXACT, "weights_easyfl")
    assert_close(models, case["w_after_easyfl_weighted"], EXACT, "w_after_easyfl_weighted")
    assert_close(_rounds(case, "fedfa", beta=beta)[0], case["weights_easyfl"], EXACT, "the paper's weights")
    gamma = float(case["gamma_gfedplat"])
    _, models = _rounds(case, "fedfa", form="gfedplat", beta=beta, gamma=gamma)
    assert_close(models, case["w_after_gfedplat"], EXACT, "w_after_gfedplat")


def check_term(case: Case, name: str) -> None:
    weights, models = _rounds(case, "term_released", t=float(case["t"]))
    assert_close(weights * weights.shape[1], case["weights"], EXACT, "weights")
    assert_close(models, case["w_after"], EXACT, "models")


def _rounds(case: Case, rule: str, **options: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the weights `[T, m]` and the models `[T, P]` after each round."""
    w, state, vectors = case["w0"], None, None
    counts: dict[int, int] = {}
    weights, models = [], []
    for t, delta in enumerate(case["delta"]):
        clients = case["selected"][t].tolist() if "selected" in case else list(range(len(delta)))
        counts.update({c: counts.get(c, 0) + 1 for c in clients})
        after: dict[str, Any] = {}
        if "train_acc_percent" in case:
            after = {
                "losses_after": case["losses"][t],
                "accuracies_after": case["train_acc_percent"][t] / 100,
            }
        result = combine(
            rule,
            -delta,
            losses=case["losses"][t],
            clients=clients,
            n_clients=int(case["K"]) if "K" in case else None,
            participations=[counts[c] for c in clients],
            step=t,
            state=state,
            vectors=vectors,
            **after,
            **options,
        )
        w, state, vectors = w - result.direction, result.state, result.vectors
        weights.append(result.weights[0])
        models.append(w)
    return np.stack(weights), np.stack(models)

"""The server's step: what reaches the rule, what comes out of it, and what it refuses."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim import plugins
from fedsim.common.errors import ConfigError, RunError, SolverError
from fedsim.server.history_storage import HistoryPlan
from fedsim.server.rule import Needs
from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.job import Report, Reports

P = 6
BLOCKS = [(0, 4), (4, 6)]


def server(rule: str = "fedavg", **options: object) -> Server:
    return Server(ServerSpec(rule, options, 10, 100, 4, BLOCKS), torch.zeros(P))


def arrivals(step: int, clients: list[int], staleness: int = 0, **changed: Any) -> StepInput:
    m = len(clients)
    return StepInput(
        **changed,
        step=step,
        clients=np.array(clients, dtype=np.int64),
        staleness=np.full(m, staleness),
        n_samples=np.arange(1, m + 1),
        reports=Reports.of([Report(loss_before=float(i + 1)) for i in range(m)]),
        online=np.array([0, 1, 2]),
    )


def rows(m: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, P, generator=torch.Generator().manual_seed(seed))


def test_a_step_moves_against_the_weighted_updates() -> None:
    made, updates = server(), rows(3)
    columns = made.step(arrivals(0, [4, 1, 7]), list(updates))
    expected = -(torch.tensor([1.0, 2, 3]) / 6) @ updates
    torch.testing.assert_close(made.params, expected)
    assert columns["status"] == "applied"
    assert columns["direction_norm"] == pytest.approx(float(expected.norm()))


def test_a_step_without_updates_changes_nothing() -> None:
    made = server()
    assert made.step(arrivals(0, []), [])["status"] == "empty"
    assert not made.params.any()


def test_published_parameters_are_never_changed_in_place() -> None:
    made = server()
    before = made.params
    copy = before.clone()
    made.step(arrivals(0, [1, 2]), list(rows(2)))
    assert torch.equal(before, copy)


def test_weights_that_do_not_sum_to_one_keep_a_share_of_the_model() -> None:
    made = Server(ServerSpec("fedavg", {"weighting": "scaled"}, 10, 100, 4, BLOCKS), torch.ones(P))
    updates = rows(2)
    made.step(arrivals(0, [0, 1]), list(updates))
    shares = 10 / 2 * torch.tensor([1.0, 2.0]) / 100
    torch.testing.assert_close(made.params, shares @ (torch.ones(2, P) - updates))


@pytest.mark.parametrize("rule", ["qfedavg", "qfedsgd"])
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("decay", [{}, {"lr_decay": 0.5}])
def test_rules_use_the_learning_rate_that_a_row_was_trained_with(
    rule: str, staleness: int, decay: dict[str, float]
) -> None:
    made = Server(ServerSpec(rule, {}, 10, 100, 4, BLOCKS, lr=0.4, **decay), torch.zeros(P))
    step, updates, losses = 2, rows(2).double(), torch.tensor([1.0, 2.0], dtype=torch.float64)
    made.step(arrivals(step, [4, 1], staleness), list(updates.float()))
    lr = 0.4 * decay.get("lr_decay", 1.0) ** (step - staleness)
    gradients = updates / lr
    h = (gradients**2).sum(dim=1) + losses / lr
    torch.testing.assert_close(made.params.double(), -losses @ gradients / h.sum(), rtol=1e-5, atol=1e-7)


def test_rules_see_clients_that_are_absent(tmp_path: Path) -> None:
    seen = tmp_path / "seen.py"
    seen.write_text(
        "import math, numpy as np\n"
        "from fedsim.server.rule import Direction, Needs, stateless\n"
        "LOG = []\n"
        "def seen():\n"
        "    def weigh(stack):\n"
        "        LOG.append(stack)\n"
        "        return Direction(np.eye(stack.n)[0])\n"
        "    return stateless(weigh, Needs('blocks', losses=True, memory=math.inf))\n"
    )
    made = server(f"{seen}:seen")
    first, second = rows(2, 1), rows(2, 2)
    made.step(arrivals(0, [4, 1], inclusion=np.array([0.25, 0.5])), list(first))
    made.step(arrivals(1, []), [])
    made.step(arrivals(2, [7, 1], staleness=2, inclusion=np.array([np.nan, 1.0])), list(second))
    import sys

    stack = next(m for n, m in sys.modules.items() if n.endswith("seen") and hasattr(m, "LOG")).LOG[-1]
    assert stack.clients.tolist() == [7, 1, 4]
    assert stack.m == 2
    assert stack.ages.tolist() == [0, 0, 2]
    assert stack.staleness.tolist() == [2, 2, 0]
    assert stack.losses.tolist() == [1, 2, 1]
    assert stack.n_samples.tolist() == [1, 2, 1]
    assert stack.participations.tolist() == [1, 2, 1]
    assert stack.online.tolist() == [False, True, False]
    np.testing.assert_array_equal(stack.inclusion, [np.nan, 1.0, 0.25])
    assert stack.inclusion.dtype == np.float64
    assert (stack.step, stack.n_seen, stack.n_clients, stack.total_samples) == (2, 2, 10, 100)
    everything = torch.stack([second[0], second[1], first[0]]).double().numpy()
    assert not stack.grams.flags.writeable  # the records come from the same matrices
    for (a, b), gram in zip(BLOCKS, stack.grams, strict=True):
        np.testing.assert_allclose(gram, everything[:, a:b] @ everything[:, a:b].T, rtol=1e-6)
    np.testing.assert_allclose(stack.gram(), everything @ everything.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("return Direction(np.full(stack.n, math.nan))", RunError, "weights that are not finite"),
        ("return Direction(np.full(stack.n, 1e300))", RunError, "norm"),
        ("raise SolverError('no luck', stack.gram())", SolverError, "step 0, rule .*, clients 4, 1: no luck"),
    ],
)
def test_a_rule_that_fails_is_named(tmp_path: Path, body: str, error: type[Exception], message: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "import math, numpy as np\nfrom fedsim.common.errors import SolverError\n"
        "from fedsim.server.rule import Direction, Needs, stateless\n"
        f"def bad():\n    def weigh(stack):\n        {body}\n    return stateless(weigh, Needs('model'))\n"
    )
    with pytest.raises(error, match=message) as caught:
        server(f"{path}:bad").step(arrivals(0, [4, 1]), list(rows(2)))
    if error is SolverError:
        assert caught.value.matrix.shape == (2, 2)  # type: ignore[attr-defined]


def test_slots_follow_from_what_the_rule_remembers() -> None:
    def slots(rule: str, **options: object) -> int:
        return ServerSpec(rule, options, 100, 1000, 10, BLOCKS).slots()

    assert slots("fedavg") == 10
    assert slots("fedfv", tau=1) == 20
    assert slots("fedfv", tau=50) == 110
    assert slots("fedlf") == 110


@pytest.mark.parametrize(("level", "matrices"), [("none", 0), ("model", 1), ("blocks", 2)])
def test_what_is_recorded_does_not_change_what_a_rule_sees(tmp_path: Path, level: str, matrices: int) -> None:
    file = tmp_path / f"see_{level}.py"
    file.write_text(
        "import math, numpy as np\n"
        "from fedsim.server.rule import Direction, Needs, stateless\n"
        "SEEN = []\n"
        "def see():\n"
        "    def direction(stack):\n"
        f"        SEEN.append({'stack.grams.copy()' if matrices else 'np.zeros(0)'})\n"
        "        return Direction(np.ones(stack.n))\n"
        f"    return stateless(direction, Needs('{level}', memory=math.inf))\n"
    )
    blocks = [(0, 5000), (5000, 9000)]
    draw = torch.Generator().manual_seed(3)
    updates = [torch.randn(2, 9000, generator=draw) for _ in range(3)]
    models, columns = [], []
    for recorded in ("none", "model", "blocks"):
        spec = ServerSpec(f"{file}:see", {}, 10, 100, 4, blocks, conflicts=recorded)  # type: ignore[arg-type]
        made = Server(spec, torch.zeros(9000))
        for step, two in enumerate(updates):
            columns.append(made.step(arrivals(step, [4, 1 + step]), list(two)))
        models.append(made.params)
    import sys

    seen = next(m for n, m in sys.modules.items() if n.endswith(f"see_{level}") and hasattr(m, "SEEN")).SEEN
    assert {len(grams) for grams in seen} == {matrices}
    for step in range(3):
        assert len({grams.tobytes() for grams in seen[step::3]}) == 1
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])
    if level == "model":
        names = ("conflicts", "model_conflicts", "smallest_cosine", "smallest_absent_cosine", "mean_norm")
        for step in range(3):
            assert len({tuple(str(found[name]) for name in names) for found in columns[step::3]}) == 1


def test_norms_are_recorded_from_the_gram_matrix() -> None:
    made, updates = server("fedfv", tau=0, alpha=1.0), rows(3)
    columns = made.step(arrivals(0, [4, 1, 7]), list(updates))
    assert columns["mean_norm"] == pytest.approx(float(updates.mean(dim=0).norm()), rel=1e-5)
    assert columns["conflicts"] == int((torch.triu(updates @ updates.T, 1) < 0).sum())
    assert math.isclose(float(columns["direction_norm"]), float(columns["mean_norm"]), rel_tol=1e-5)


def listening(tmp_path: Path, memory: str = "math.inf") -> str:
    """A rule that remembers, gives weight 1 to every row and writes down the clients and ages that it saw."""
    file = tmp_path / "ear.py"
    file.write_text(
        "import math, numpy as np\n"
        "from fedsim.server.rule import Direction, Needs, stateless\n"
        "heard = []\n"
        "def ear():\n"
        "    def direction(stack):\n"
        "        heard.append((stack.clients.tolist(), stack.ages.tolist(), stack.m))\n"
        "        return Direction(np.ones(stack.n))\n"
        f"    return stateless(direction, Needs(memory={memory}))\n"
    )
    return f"{file}:ear"


def heard_by(made: Server) -> list[tuple[list[int], list[int], int]]:
    found: list[tuple[list[int], list[int], int]] = plugins.factory("rule", made.spec.rule).__globals__[
        "heard"
    ]
    return found


def told(step: int, clients: list[int], versions: list[int], present: int, **more: int) -> StepInput:
    plain = arrivals(step, clients)
    return replace(plain, staleness=step - np.array(versions), present=present, **more)


def test_late_rows_refresh_the_history_as_if_they_had_come_in_time(tmp_path: Path) -> None:
    made = Server(ServerSpec(listening(tmp_path), {}, 10, 100, 4, BLOCKS, late_rows=4), torch.zeros(P))
    updates = list(rows(6))
    made.step(told(0, [1, 2], [0, 0], 2), updates[:2])
    made.step(told(3, [4, 2, 5], [3, 0, 1], 1), updates[2:5])
    assert heard_by(made)[-1] == ([4, 1, 2, 5], [0, 3, 3, 2], 1)
    torch.testing.assert_close(
        made.params, -(updates[0] + updates[1]) - (updates[2] + updates[0] + updates[3] + updates[4])
    )
    assert made.participations.tolist() == [0, 1, 2, 0, 1, 1, 0, 0, 0, 0]


def test_the_window_of_fedlf_reaches_clients_that_only_ever_come_late() -> None:
    """Client 4 is in time, 1 and 2 come late: three clients seen and one present make a window of three steps.

    Rows are at right angles, so that the shortest point of their hull is their mean.
    """
    made = Server(
        ServerSpec("fedlf", {"fair_row": "none"}, 10, 100, 4, [(0, P)], late_rows=4), torch.zeros(P)
    )
    updates = list(torch.eye(P))
    seen = [made.step(told(0, [4], [0], 1), updates[:1])["remembered"]]
    for step, client in ((1, 1), (2, 2)):
        both = [updates[0], updates[client]]
        seen.append(made.step(told(step, [4, client], [step, 0], 1), both)["remembered"])
    assert seen == [0, 1, 2]
    assert made.participations.tolist() == [0, 1, 1, 0, 3, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("memory", "counted"), [("2", [5]), ("0", [])])
def test_a_late_row_that_is_not_remembered_does_not_count(
    memory: str, counted: list[int], tmp_path: Path
) -> None:
    """It is too old for the rule, or not finite, or the rule remembers nothing."""
    spec = ServerSpec(listening(tmp_path, memory), {}, 10, 100, 4, BLOCKS, late_rows=4)
    made, updates = Server(spec, torch.zeros(P)), list(rows(4))
    updates[3] = updates[3] * math.nan
    late = told(3, [4, 2, 5, 6], [3, 0, 1, 2], 1)
    late.reports.finite[3] = False
    made.step(late, updates)
    assert np.flatnonzero(made.participations).tolist() == [4, *counted]


def test_the_lateness_of_a_row_counts_once_in_its_age() -> None:
    spec = ServerSpec(
        "fedavg",
        {"weighting": "uniform"},
        10,
        100,
        4,
        BLOCKS,
        wrap=[{"name": "with_absent", "window": "all"}],
    )
    halved = replace(spec, wrap=[{"name": "discounted", "staleness": "sqrt"}, *spec.wrap], late_rows=4)
    made, updates = Server(halved, torch.zeros(P)), list(rows(2))
    made.step(told(3, [4, 5], [3, 0], 1), updates)
    torch.testing.assert_close(made.params, -(updates[0] + updates[1] / 2) / 2)  # three steps old: 1 / √4
    made.step(told(8, [4], [8], 1), updates[:1])
    torch.testing.assert_close(made.params, -updates[0] - updates[1] * (1 / 4 + 1 / 6))


def test_a_step_of_late_rows_alone_changes_nothing_but_the_history(tmp_path: Path) -> None:
    made = Server(ServerSpec(listening(tmp_path), {}, 10, 100, 4, BLOCKS, late_rows=4), torch.zeros(P))
    assert made.step(told(2, [5], [0], 0), list(rows(1)))["status"] == "empty"
    assert not made.params.any()
    assert made.history.client[made.history.client >= 0].tolist() == [5]


def test_rows_that_make_room_for_late_ones_are_counted(tmp_path: Path) -> None:
    spec = ServerSpec(
        listening(tmp_path), {}, 10, 100, 4, BLOCKS, late_rows=4, history=HistoryPlan(4, 2, capped=True)
    )
    made = Server(spec, torch.zeros(P))
    assert made.step(told(1, [5, 6], [0, 0], 0), list(rows(2)))["evicted"] == 0
    assert made.step(told(2, [7], [0], 0), list(rows(1)))["evicted"] == 1
    assert made.step(told(3, [8, 9], [3, 1], 1), list(rows(2)))["evicted"] == 2
    assert made.step(told(4, [], [], 0), [])["evicted"] == 0


def test_late_rows_beyond_the_memory_of_the_rule_are_not_kept(tmp_path: Path) -> None:
    spec = ServerSpec(listening(tmp_path, "2"), {}, 10, 100, 4, BLOCKS, late_rows=4)
    made = Server(spec, torch.zeros(P))
    made.step(told(5, [7, 8], [2, 3], 0), list(rows(2)))
    assert made.history.client[made.history.client >= 0].tolist() == [8]


def test_absent_clients_are_forgotten_after_virtual_time(tmp_path: Path) -> None:
    spec = ServerSpec(listening(tmp_path), {}, 10, 100, 4, BLOCKS, memory_us=100)
    made = Server(spec, torch.zeros(P))
    for step, (client, now_us) in enumerate([(1, 0), (2, 60), (3, 101)]):
        made.step(told(step, [client], [step], 1, now_us=now_us), list(rows(1, step)))
    assert heard_by(made)[-3:] == [([1], [0], 1), ([2, 1], [0, 1], 1), ([3, 2], [0, 1], 1)]


@pytest.mark.parametrize(
    ("needs", "kept"),
    [
        ("memory=math.inf", [1, 2]),
        ("losses=True, memory=math.inf", [2]),
        ("losses=True, memory=math.inf, reports_of_present=True", [1, 2]),
        ("losses=True", []),
    ],
)
def test_of_another_rule_s_rows_those_are_inherited_whose_losses_are_known_if_it_needs_them(
    tmp_path: Path, needs: str, kept: list[int]
) -> None:
    before = server(listening(tmp_path))
    unknown = replace(arrivals(0, [1]), reports=Reports.of([Report(loss_before=math.nan)]))
    before.step(unknown, list(rows(1)))
    before.step(arrivals(1, [2]), list(rows(1, 1)))
    other = tmp_path / "heir.py"
    other.write_text(
        "import math, numpy as np\n"
        "from fedsim.server.rule import Direction, Needs, stateless\n"
        "def heir():\n"
        "    def mean(stack):\n"
        "        return Direction(np.ones(stack.n))\n"
        f"    return stateless(mean, Needs({needs}))\n"
    )
    after = server(f"{other}:heir")
    after.inherit(before.save(), 1, same_rule=False)
    assert sorted(after.history.client[after.history.client >= 0].tolist()) == kept
    assert torch.equal(after.params, before.params)
    assert after.participations.tolist() == before.participations.tolist()
    after.participations[5] = 7
    assert before.participations[5] == 0, "it is a copy"


def test_rows_from_the_current_model_pull_it_to_the_client() -> None:
    spec = ServerSpec("fedasync", {"alpha": 0.5, "staleness": "constant"}, 10, 100, 4, BLOCKS, rows="current")
    made, updates = Server(spec, torch.zeros(P)), rows(3)
    expected = torch.zeros(P)
    starts = [expected]
    for step, version in enumerate([0, 0, 1]):
        made.step(told(step, [step], [version], 1), [updates[step]], dict(enumerate(starts)))
        trained = starts[version] - updates[step]
        expected = 0.5 * expected + 0.5 * trained
        starts.append(expected)
        torch.testing.assert_close(made.params, expected)


def test_fedasync_with_alpha_one_and_no_staleness_is_the_clients_model() -> None:
    made, updates = Server(ServerSpec("fedasync", {"alpha": 1.0}, 10, 100, 4, BLOCKS), torch.ones(P)), rows(2)
    for step, update in enumerate(updates):
        trained = made.params - update
        made.step(told(step, [step], [step], 1), [update])
        assert torch.equal(made.params, trained)


def a_rule(tmp_path: Path, body: str, needs: str = "", name: str = "own") -> str:
    """Write a rule whose direction is what `body` returns of a stack."""
    file = tmp_path / f"{name}.py"
    file.write_text(
        "import math, numpy as np\n"
        "from fedsim.server.rule import Direction, LineSearch, Needs, stateless\n"
        f"def {name}():\n    def weigh(stack):\n        {body}\n    return stateless(weigh, Needs({needs}))\n"
    )
    return f"{file}:{name}"


SPECS = {
    "memory": ServerSpec("fedlf", {}, 10, 100, 4, BLOCKS),
    "average": ServerSpec("afl", {}, 10, 100, 4, BLOCKS),
    "mean": ServerSpec("fedavg", {}, 10, 100, 4, BLOCKS, evaluated="mean"),
    "optimiser": ServerSpec("fedavg", {}, 10, 100, 4, BLOCKS, wrap=[{"name": "server_opt", "kind": "adam"}]),
    "state": ServerSpec("fedmdfg", {}, 10, 100, 4, BLOCKS),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_server_goes_on_where_another_one_was_saved(name: str) -> None:
    def take(made: Server, step: int) -> None:
        started = [max(step - 1, 0), step]
        made.step(told(step, [step % 3, 4 + step], started, 2), list(rows(2, step)))

    first, second = (Server(SPECS[name], torch.zeros(P)) for _ in range(2))
    for step in range(3):
        take(first, step)
    second.load(copy.deepcopy(first.save()))
    for step in (3, 4):
        take(first, step)
        take(second, step)
    assert torch.equal(first.params, second.params)
    one, two = first.save(), second.save()
    assert one["participations"].tolist() == two["participations"].tolist() == [2, 2, 1, 0, 1, 1, 1, 1, 1, 0]
    for part in ("average", "averaged", "vectors"):
        assert repr(one[part]) == repr(two[part])
    np.testing.assert_equal(one["state"], two["state"])
    assert (one["average"] is not None) == (name in ("average", "mean"))
    assert bool(one["vectors"]) == (name == "optimiser")


@pytest.mark.parametrize("same_rule", [True, False])
def test_the_state_of_a_rule_is_inherited_by_the_same_rule_alone(same_rule: bool) -> None:
    before = Server(SPECS["optimiser"], torch.zeros(P))
    before.step(arrivals(0, [1, 2]), list(rows(2)))
    after = Server(SPECS["optimiser"], torch.ones(P))
    after.inherit(before.save(), 1, same_rule=same_rule)
    assert torch.equal(after.params, before.params)
    assert sorted(after.vectors) == (["first", "second"] if same_rule else [])


@pytest.mark.parametrize(
    ("weights", "keep", "status"),
    [("0.0", 1.0, "still"), ("0.0", 0.5, "applied"), ("1.0", 1.0, "applied")],
)
def test_a_step_that_leaves_the_model_where_it_is_is_still(
    tmp_path: Path, weights: str, keep: float, status: str
) -> None:
    rule = a_rule(tmp_path, f"return Direction(np.full(stack.n, {weights}), keep={keep})")
    made = Server(ServerSpec(rule, {}, 10, 100, 4, BLOCKS), torch.ones(P))
    columns = made.step(arrivals(0, [1, 2]), list(rows(2)))
    assert columns["status"] == status
    assert torch.equal(made.params, torch.ones(P)) == (status == "still")
    assert columns["step_length"] == 1


def test_remembered_rows_with_weight_and_the_largest_weight_are_recorded(tmp_path: Path) -> None:
    """Row 2 has weight in a block, row 3 has none, row 4 has a negative one."""
    body = "return Direction(np.array([[1, 2, 0, 0, -1], [0, 5, 3, 0, -7.0]])[:, 5 - stack.n:])"
    made = server(a_rule(tmp_path, body, "'blocks', memory=math.inf"))
    made.step(arrivals(0, [4, 5, 6]), list(rows(3)))
    columns = made.step(arrivals(1, [1, 2]), list(rows(2)))
    assert (columns["remembered"], columns["max_weight"]) == (2, 5)


def test_a_step_is_as_long_as_the_losses_after_its_trials_say(tmp_path: Path) -> None:
    choose = "lambda losses: int(losses.sum(1).argmin())"
    body = f"return Direction(np.ones(stack.n), search=LineSearch((2.0, 0.5), {choose}))"
    spec = ServerSpec(a_rule(tmp_path, body, "search=True"), {}, 10, 100, 4, BLOCKS)
    updates = rows(2)
    for losses, length in (
        (np.array([[1.0, 1.0], [2.0, 0.5]]), 2.0),
        (np.array([[1.0, 1.0], [1.0, 0.5]]), 0.5),
        (None, 1.0),
    ):
        made = Server(spec, torch.ones(P))
        proposal = made.propose(arrivals(0, [1, 2]), list(updates))
        torch.testing.assert_close(proposal.trials, 1 - torch.tensor([[2.0], [0.5]]) * updates.sum(0))
        assert torch.equal(made.params, torch.ones(P)), "nothing is accepted yet"
        columns = made.accept(proposal, losses)
        assert columns["step_length"] == length
        assert columns["direction_norm"] == pytest.approx(length * float(updates.sum(0).norm()))
        torch.testing.assert_close(made.params, 1 - length * updates.sum(0))
    assert made.propose(arrivals(1, []), []).trials.shape == (0, P)


def test_the_average_of_iterates_begins_at_the_initial_model(tmp_path: Path) -> None:
    rule = a_rule(tmp_path, "return Direction(np.ones(stack.n), average=1 / (stack.step + 2))")
    made, updates = server(rule), rows(3)
    models = [made.params]
    for step in range(3):
        made.step(arrivals(step, [step]), [updates[step]])
        models.append(made.params)
        torch.testing.assert_close(made.average, torch.stack(models).mean(0))


def test_the_mean_of_the_models_after_each_step_is_evaluated() -> None:
    made, updates, models = Server(SPECS["mean"], torch.ones(P)), rows(4), []
    assert made.average is None
    for step in range(4):
        used = [] if step == 2 else [step]
        made.step(arrivals(step, used), [updates[k] for k in used])
        if used:
            models.append(made.params)
        torch.testing.assert_close(made.average, torch.stack(models).mean(0))
    assert len(models) == 3


@pytest.mark.parametrize("same_rule", [True, False])
def test_the_mean_goes_on_under_another_rule_and_ends_with_its_option(same_rule: bool) -> None:
    before = Server(SPECS["mean"], torch.ones(P))
    before.step(arrivals(0, [1]), list(rows(1)))
    saved, last = before.save(), replace(SPECS["mean"], evaluated="last")
    goes_on, ends = Server(SPECS["mean"], torch.ones(P)), Server(last, torch.ones(P))
    goes_on.inherit(saved, 1, same_rule=same_rule)
    ends.inherit(saved, 1, same_rule=same_rule)
    assert ends.average is None
    goes_on.step(arrivals(1, [2]), list(rows(1)))
    torch.testing.assert_close(goes_on.average, (before.params + goes_on.params) / 2)
    begins = Server(SPECS["mean"], torch.ones(P))
    begins.inherit(Server(last, torch.ones(P)).save(), 1, same_rule=same_rule)
    begins.step(arrivals(1, [2]), list(rows(1)))
    assert torch.equal(begins.average, begins.params)


def test_another_average_than_the_mean_is_refused(tmp_path: Path) -> None:
    rule = a_rule(tmp_path, "return Direction(np.ones(stack.n), average=0.25)")
    made = Server(ServerSpec(rule, {}, 10, 100, 4, BLOCKS, evaluated="mean"), torch.ones(P))
    said = r"in which the model of step 1 has the share 0.25 in place of 1: leave out evaluate.model"
    with pytest.raises(RunError, match=said):
        made.step(arrivals(0, [1]), list(rows(1)))


def test_with_no_limit_in_virtual_time_nobody_is_forgotten(tmp_path: Path) -> None:
    made = server(listening(tmp_path))
    for step in range(3):
        made.step(told(step, [step], [step], 1, now_us=10**15 * step), list(rows(1, step)))
    assert heard_by(made)[-1] == ([2, 0, 1], [0, 2, 1], 1)


@pytest.mark.parametrize(
    ("late_rows", "memory", "slots"),
    [
        (0, "math.inf", 4 + 10),
        (9, "math.inf", 4 + 10),
        (0, "1", 4 + 4),
        (3, "1", 4 + 2 * 4),  # what comes late for the step before is remembered beside it
        (5, "1", 4 + 10),
        (9, "0", 4),
    ],
)
def test_late_rows_want_slots_where_the_rule_remembers(
    tmp_path: Path, late_rows: int, memory: str, slots: int
) -> None:
    rule = a_rule(tmp_path, "return Direction(np.ones(stack.n))", f"memory={memory}")
    assert ServerSpec(rule, {}, 10, 100, 4, BLOCKS, late_rows=late_rows).slots() == slots


def test_losses_that_a_rule_needs_must_be_finite(tmp_path: Path) -> None:
    body = "return Direction(np.ones(stack.n))"
    reports = Reports.of([Report(loss_before=1.0), Report()])
    given = replace(arrivals(3, [4, 6]), reports=reports)
    with pytest.raises(RunError, match=r"step 3, rule .*: losses that are not finite; .* is client 6's"):
        server(a_rule(tmp_path, body, "losses=True")).step(given, [torch.ones(P), 2 * torch.ones(P)])
    assert server(a_rule(tmp_path, body, name="deaf")).step(given, list(rows(2)))["status"] == "applied"


def test_updates_left_out_are_counted_and_neither_take_part_nor_are_remembered(tmp_path: Path) -> None:
    made = Server(ServerSpec(listening(tmp_path), {}, 10, 100, 4, BLOCKS, late_rows=4), torch.zeros(P))
    reports = Reports.of([Report(finite=finite) for finite in (True, False, False, True)])
    given = replace(told(3, [1, 2, 3, 4], [3, 2, 1, 1], 2), reports=reports)
    updates = rows(4)
    proposal = made.propose(given, list(updates))
    columns = made.accept(proposal)
    assert (columns["updates"], columns["nonfinite"], columns["mean_staleness"]) == (1, 1, 0)
    assert proposal.clients.tolist() == [1]
    assert proposal.reports.finite.tolist() == [True, False, False, True]
    assert heard_by(made)[-1] == ([1, 4], [0, 2], 1)
    torch.testing.assert_close(made.params, -updates[0] - updates[3])


COLUMNS = "import torch; return Algorithm(lambda s, t: (Direction({factors}), t), Needs({needs}), columns={columns})"


def of_columns(tmp_path: Path, columns: str, factors: str = "np.ones(s.n)", needs: str = "") -> str:
    """Write a rule of columns and return its name."""
    body = COLUMNS.format(factors=factors, needs=needs, columns=columns)
    head = "import math, numpy as np\nfrom fedsim.server.rule import Algorithm, Direction, Needs\n"
    (tmp_path / "by_column.py").write_text(f"{head}def by_column():\n    {body}\n")
    return f"{tmp_path}/by_column.py:by_column"


def test_a_rule_of_columns_moves_by_what_it_makes_of_the_ascending_numbers(tmp_path: Path) -> None:
    """The largest number of each column, of rows times their factors, without the row of factor 0."""
    made = server(of_columns(tmp_path, "lambda tile: tile[-1]", "np.array([1, 0, 0.5, 2.0])[: s.n]"))
    updates = rows(4)
    columns = made.step(arrivals(0, [4, 1, 7, 2]), list(updates))
    expected = (updates[[0, 2, 3]] * torch.tensor([[1.0], [0.5], [2.0]])).max(dim=0).values
    assert torch.equal(made.params, -expected)
    assert columns["direction_norm"] == pytest.approx(float(expected.norm()))
    assert math.isnan(columns["max_weight"])
    assert columns["status"] == "applied"
    assert server("coordinate_median").step(arrivals(0, []), [])["status"] == "empty"


@pytest.mark.parametrize(
    "plan",
    [
        None,
        HistoryPlan(4, 10, "bfloat16"),
        HistoryPlan(4, 10, "host_float32"),
        HistoryPlan(4, 1, capped=True),
    ],
)
def test_a_rule_of_columns_may_remember(tmp_path: Path, plan: HistoryPlan | None) -> None:
    rule = of_columns(tmp_path, "lambda tile: tile[0]", needs="memory=math.inf")
    spec = ServerSpec(rule, {}, 10, 100, 4, BLOCKS, history=plan)
    made, updates = Server(spec, torch.zeros(P)), rows(5)
    made.step(arrivals(0, [4, 1, 7]), list(updates[:3]))
    halfway = copy.deepcopy(made.save())
    before, columns = made.params, made.step(arrivals(1, [1, 2]), list(updates[3:]))
    kept = updates[[2]] if plan is not None and plan.capped else updates[[0, 2]]
    kept = kept.bfloat16().float() if plan is not None and plan.rounds else kept
    torch.testing.assert_close(before - made.params, torch.cat([kept, updates[3:]]).min(dim=0).values)
    assert columns["remembered"] == len(kept)
    again = Server(spec, torch.zeros(P))
    again.load(halfway)
    again.step(arrivals(1, [1, 2]), list(updates[3:]))
    assert torch.equal(again.params, made.params)


def test_updates_that_are_not_finite_do_not_reach_the_columns() -> None:
    made, updates = server("coordinate_median"), rows(4)
    reports = Reports.of([Report(finite=finite) for finite in (True, False, True, True)])
    updates[1] = math.nan
    columns = made.step(replace(arrivals(0, [1, 2, 3, 4]), reports=reports), list(updates))
    assert torch.equal(made.params, -updates[[0, 2, 3]].median(dim=0).values)
    assert (columns["updates"], columns["nonfinite"]) == (3, 1)


@pytest.mark.parametrize("level", ["model", "blocks"])
@pytest.mark.parametrize("plan", [None, HistoryPlan(4, 10, "bfloat16")])
@pytest.mark.parametrize("wrap", [[], [{"name": "server_opt", "lr": 0.5}]], ids=["plain", "momentum"])
def test_the_direction_of_columns_is_compared_with_each_row(
    level: str, plan: HistoryPlan | None, wrap: list[dict[str, object]]
) -> None:
    """Before an optimiser, as with weights; rows out of the window are recorded with weight 0."""
    wraps = [{"name": "with_absent", "window": 1}, *wrap]
    spec = ServerSpec(
        "coordinate_median",
        {},
        10,
        100,
        4,
        BLOCKS,
        wraps,
        conflicts=level,
        history=plan,  # type: ignore[arg-type]
    )
    made, updates = Server(spec, torch.zeros(P)), rows(7)
    made.step(arrivals(0, [4, 1]), list(updates[:2]))
    columns = made.step(arrivals(1, [7, 1, 2]), list(updates[2:5]))
    kept = updates[:1].bfloat16().float() if plan else updates[:1]
    everything = torch.cat([updates[2:5], kept]).double()
    median = everything.quantile(0.5, dim=0)
    each = columns["each"]
    for block, (a, b) in enumerate([(0, P), *(BLOCKS if level == "blocks" else [])], start=-1):
        here = each["block"] == block
        part, along = everything[:, a:b], median[a:b]
        cosines = (part @ along) / (part.norm(dim=1) * along.norm())
        np.testing.assert_allclose(each["cosine"][here], cosines, atol=1e-6)
        np.testing.assert_allclose(each["norm"][here], part.norm(dim=1), rtol=1e-6)
        assert np.isnan(each["weight"][here]).all()
    assert columns["smallest_cosine"] == pytest.approx(each["cosine"][:3].min())
    assert columns["model_conflicts"] == (each["cosine"][:3] < -1e-9).sum()
    assert columns["mean_norm"] == pytest.approx(float(updates[2:5].mean(dim=0).norm()), rel=1e-5)
    assert math.isnan(columns["max_weight"])
    assert (columns["remembered"], columns["conflicts"] >= 0) == (1, True)
    last = made.step(arrivals(3, [5, 6]), list(updates[5:]))["each"]
    weights = dict(zip(last["client"][last["block"] == -1].tolist(), last["weight"].tolist(), strict=False))
    assert np.isnan([weights.pop(5), weights.pop(6)]).all()
    assert not any(weights.values())


def test_an_audit_knows_no_weights_of_a_rule_of_columns() -> None:
    made = server("coordinate_median")
    proposal = made.propose(arrivals(0, [5, 6]), list(torch.eye(P)[:2]))
    audited = made.audit(proposal, np.array([6, 9]), [torch.eye(P)[1], torch.eye(P)[2]])
    found = made.accept(proposal, None, [audited])["audited"]
    assert np.isnan(found["weight"]).all()
    assert found["cosine"][0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("columns", "factors", "message"),
    [
        ("lambda tile: tile", "np.ones(s.n)", r"columns: expected real numbers \[6\], one per column of the tile "
         r"\[2, 6\], found torch.float64 of shape \[2, 6\]"),
        ("lambda tile: 0.0", "np.ones(s.n)", "found float"),
        ("lambda tile: tile[0] * 1j", "np.ones(s.n)", r"found torch.complex128 of shape \[6\]"),
        ("lambda tile: tile[0] / 0", "np.ones(s.n)", "a direction with norm (nan|inf)"),
        ("lambda tile: tile[0]", "np.ones((1, s.n))", r"expected factors \[2\] of a rule with columns.* \[1, 2\]"),
        ("lambda tile: tile[0]", "np.full(s.n, np.nan)", "weights that are not finite"),
    ],
)  # fmt: skip
def test_columns_that_are_none_are_named(tmp_path: Path, columns: str, factors: str, message: str) -> None:
    made = server(of_columns(tmp_path, columns, factors))
    with pytest.raises(RunError, match=f"step 3, rule '.*by_column'.*{message}"):
        made.step(arrivals(3, [4, 1]), list(rows(2)))


def test_an_audit_is_of_a_proposed_step_and_of_some_clients() -> None:
    """Client 5's row of the first step is held, and points the other way at the second."""
    made = server("fedlf", fair_row="none")
    updates = torch.eye(P)[:3]
    empty = made.propose(arrivals(0, []), [])
    assert made.audit(empty, np.array([5]), updates[:1]) is None
    first = made.propose(arrivals(0, [5]), [updates[0]])
    assert "audited" not in made.accept(first, None, [made.audit(first, np.zeros(0, dtype=np.int64), [])])
    second = made.propose(arrivals(3, [1]), [updates[1]])
    parts = [
        made.audit(second, np.array([5, 6]), [-2 * updates[0], updates[2]]),
        made.audit(second, np.array([1]), [updates[1]]),
    ]
    found = made.accept(second, None, parts)["audited"]
    assert found["client"].tolist() == [5, 6, 1]
    assert found["present"].tolist() == [False, False, True]
    assert found["age"].tolist() == [3, -1, 0]
    assert found["norm_ratio"] == pytest.approx([0.5, math.nan, 1], nan_ok=True)
    assert found["cosine"] == pytest.approx([-1, math.nan, 1], nan_ok=True)
    third = made.propose(arrivals(4, [1]), [updates[1]])
    assert "audited" not in made.accept(third), "an audit is of one step"


@pytest.mark.parametrize(
    "module",
    [
        "columns",
        "combine.call",
        "conflicts",
        "decision",
        "history_storage",
        "rule",
        "spec",
        "step_input",
        "update_screening",
    ],
)
def test_what_is_passed_around_is_frozen(module: str) -> None:
    named = f"fedsim.server.{module}"
    classes = [c for c in vars(import_module(named)).values() if is_dataclass(c) and c.__module__ == named]
    assert classes
    for made in classes:
        assert made.__dataclass_params__.frozen, made  # type: ignore[attr-defined]


def test_replaced_rows_need_a_memory() -> None:
    with pytest.raises(ConfigError, match=r"Needs\(replaced=True\): expected a memory above 0"):
        Needs(replaced=True)


def test_records_are_about_present_and_absent_clients() -> None:
    """A client that is present has one row in them, although the rule sees what it had sent before too."""
    spec = ServerSpec("fedvarp", {}, 10, 100, 4, BLOCKS, conflicts="model")
    made, updates = Server(spec, torch.zeros(P)), rows(3)
    made.step(arrivals(0, [4, 1]), list(updates[:2]))
    columns = made.step(arrivals(1, [1, 7]), list(updates[1:]))
    assert columns["each"]["client"].tolist() == [1, 7, 4]
    assert columns["remembered"] == 1
    proposal = made.propose(arrivals(2, [4]), list(updates[:1]))
    audited = made.audit(proposal, np.array([4, 7]), updates[:2])
    assert audited is not None
    assert audited["present"].tolist() == [True, False]


def test_a_rule_needs_nothing_that_it_does_not_declare() -> None:
    assert asdict(Needs()) == {
        "gram": "none",
        "losses": False,
        "memory": 0,
        "reports_of_present": False,
        "scale_free": False,
        "after": False,
        "slices": False,
        "search": False,
        "gradients": False,
        "replaced": False,
        "inclusion": "none",
    }


@pytest.mark.parametrize("wrap", [[], [{"name": "with_absent"}]])
@pytest.mark.parametrize(
    ("body", "field", "needs"),
    [
        ("return Direction(1.0 * np.argsort(-stack.losses))", "losses", "losses=True"),
        ("return Direction(np.ones(stack.n) * stack.losses)", "losses", "losses=True"),
        ("return Direction(stack.losses / stack.losses.sum())", "losses", "losses=True"),
        ("return Direction(np.where(stack.losses > 1, 1.0, 0.0))", "losses", "losses=True"),
        ("return Direction(np.nan_to_num(stack.losses[:]))", "losses", "losses=True"),
        ("return Direction(stack.losses_after)", "losses_after", "after=True"),
        ("return Direction(stack.accuracies_after**2)", "accuracies_after", "after=True"),
    ],
)
def test_a_rule_cannot_read_what_it_does_not_declare(
    tmp_path: Path, body: str, field: str, needs: str, wrap: list[dict[str, Any]]
) -> None:
    """Undeclared losses are NaN, which a rule that sorts or compares would take for numbers."""
    spec = ServerSpec(a_rule(tmp_path, body), {}, 10, 100, 4, BLOCKS, wrap=wrap)
    message = rf"step 0, rule '.*own': it reads {field} without declaring it: return Needs\({needs}\) with it"
    with pytest.raises(RunError, match=message):
        Server(spec, torch.zeros(P)).step(arrivals(0, [1, 2]), list(rows(2)))
    declared = replace(spec, rule=a_rule(tmp_path, body, needs, name="other"))
    told = Report(loss_before=1.0, loss_after=0.5, accuracy_after=0.5)
    heard = replace(arrivals(0, [1, 2]), reports=Reports.of([told, told]))
    Server(declared, torch.zeros(P)).step(heard, list(rows(2)))


def test_a_rule_without_inner_products_is_told_how_to_declare_them(tmp_path: Path) -> None:
    rule = a_rule(tmp_path, "return Direction(stack.gram().sum(axis=0))")
    with pytest.raises(
        RunError, match=r'step 0, rule .* inner products .*: return Needs\(gram="model"\) with it'
    ):
        Server(ServerSpec(rule, {}, 10, 100, 4, BLOCKS), torch.zeros(P)).step(arrivals(0, [1]), list(rows(1)))

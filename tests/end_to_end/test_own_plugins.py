"""What somebody's own plug-in does wrong is said in a line: whose, where, what was expected and what was found."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

import programs
from fedsim import plugins
from fedsim.cli.main import main
from fedsim.common.errors import ConfigError, DataError, RunError, SomeFailed
from fedsim.common.signals import Interrupts
from fedsim.config.data import federation
from fedsim.data.federated_data import Task
from fedsim.data.validation import checked
from fedsim.engine.selector import Selector
from fedsim.records.manifest import read_manifest
from fedsim.records.schemas import STEPS
from fedsim.runs.simulate import simulate
from fedsim.server import rule_check as weighing
from fedsim.server.combine import combine
from fedsim.server.rule import Needs
from fedsim.server.rule_factory import build_rule
from fedsim.studies.cell import CellRunner
from fedsim.studies.grid import Cell
from fedsim.training.job import Job
from fedsim.training.network import build_network
from fedsim.training.settings import LocalSGD, WorkbenchSpec
from fedsim.training.workbench import Workbench
from noise import noise
from small import small

HEAD = """
import numpy as np
import torch
from fedsim.training.attack import Attack
from fedsim.training.client_method import ClientMethod, Offset, OwnModel, Trained
from fedsim.engine.selector import Selector, stateless as choosing
from fedsim.worlds.scenario import Scenario
from fedsim.server.rule import Algorithm, Direction, Needs, VectorStep, stateless

"""


@pytest.fixture
def mine(tmp_path: Path) -> Callable[[str], str]:
    """Return what writes a function `mine` whose body is given, and returns its name for a configuration."""

    def write(body: str, parameters: str = "") -> str:
        (tmp_path / "mine.py").write_text(f"{HEAD}def mine({parameters}):\n    {body}\n")
        return f"{tmp_path}/mine.py:mine"

    return write


def assert_fails(tmp_path: Path, wrong: type[Exception], match: str, **changes: Any) -> None:
    with pytest.raises(wrong, match=match):
        simulate(small(**changes), out=tmp_path / "runs", workers=0)


ALWAYS = {"scenario": "always_on", "horizon": "2h"}


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("Direction(np.ones(1))", r"step 0, rule '.*mine': expected weights \[4\].*found shape \[1\]"),
        ("Direction(np.ones((2, 5)))", r"found shape \[2, 5\]"),
        ("[1.0] * s.n", "expected a Direction, found list"),
        ("None", "expected a Direction, found NoneType"),
        (
            "Direction(np.full(s.n, np.nan))",
            r"step 0, rule '.*mine': weights that are not finite \(nan for the update of client \d+\); the longest .*"
            r"\. Does the rule divide by 0, overflow, or use a number that is not known",
        ),
        (
            "Direction(s.grams[0].sum(axis=0))",
            r"step 0, rule '.*mine': it asks for inner products without declaring them: return Needs\(gram=.model",
        ),
        ("Direction(np.ones(s.n) * s.gram().mean())", "asks for inner products without declaring them"),
        (
            "Direction(np.ones((2, s.n)))",
            r"expected weights \[4\] for the whole model, and one row for each layer only of a rule with "
            r"Needs\(gram=.blocks.\); found shape \[2, 4\]",
        ),
        (
            "Direction(s.losses)",
            r"step 0, rule '.*mine': it reads losses without declaring it: return Needs\(losses=True\) with it",
        ),
    ],
)
def test_a_rule(mine: Any, tmp_path: Path, body: str, match: str) -> None:
    rule = {"name": mine(f"return stateless(lambda s: {body}, Needs())")}
    assert_fails(tmp_path, RunError, match, algorithm=rule, world=ALWAYS)


@pytest.mark.parametrize(
    ("made", "match"),
    [
        ("Direction(W(s))", "the next state, found the Direction alone; .* fedsim.server.rule.stateless"),
        ("(Direction(W(s)), None)", "the next state as a dict, found None"),
        ("(Direction(W(s) * 1j), t)", "weights that are real numbers, found complex128"),
        ("(Direction([None] * s.n), t)", "weights that are real numbers, found object"),
    ],
)
def test_a_rule_and_its_state(mine: Any, tmp_path: Path, made: str, match: str) -> None:
    rule = {"name": mine(f"W = lambda s: np.ones(s.n) / s.n; return Algorithm(lambda s, t: {made})")}
    assert_fails(
        tmp_path, RunError, f"step 0, rule '.*mine': expected .*{match}", algorithm=rule, world=ALWAYS
    )


def test_rules_may_say_no_column_that_the_server_writes() -> None:
    """Listed where rules are checked, which knows nothing of tables."""
    written = {*STEPS.names, "each", "audited", "clipped"} - {*weighing.OF_RULES}
    assert written == weighing.TAKEN


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("diagnostics='text'", "diagnostics: expected a dict of numbers by name, found 'text'"),
        ("diagnostics=None", "diagnostics: expected a dict of numbers by name, found None"),
        ("diagnostics={'a': 'high'}", "diagnostics: expected a number by each name, found 'high' by 'a'"),
        ("diagnostics={'a': np.ones(3)}", "expected a number by each name, found ndarray .* by 'a'"),
        ("diagnostics={'a': 10**400}", "expected a number by each name, found 1000.* by 'a'"),
        ("diagnostics={5: 1.0}", "expected a number by each name, found 1.0 by 5"),
        ("diagnostics={'time_us': 5.0}", "'time_us' is a column of `steps` that the server writes"),
        ("diagnostics={'each': 5.0}", "'each' is a column"),
        ("diagnostics={'blocks': 2.5}", "diagnostics: blocks: expected a whole number, found 2.5"),
        ("average='a'", "average: expected a number from 0 to 1, or None, found 'a'"),
        ("average=float('nan')", "average: expected a number from 0 to 1, or None, found nan"),
        ("average=1.5", "average: expected a number from 0 to 1, or None, found 1.5"),
        ("search=5", "search: expected a LineSearch or None, found 5"),
    ],
)
def test_what_stands_beside_the_weights(mine: Any, given: str, match: str) -> None:
    rule = mine(f"return stateless(lambda s: Direction(np.ones(s.n), {given}))")
    with pytest.raises(RunError, match=f"step 0, rule '.*mine': .*{match}"):
        combine(rule, np.ones((3, 5)), losses=None)


@pytest.mark.parametrize(
    ("columns", "wrong", "match"),
    [
        ("lambda tile: tile.sum(1)", RunError, r"columns: expected real numbers \[.*\], one per column"),
        ("lambda tile: 1 / 0", ZeroDivisionError, "division by zero"),
        (
            "lambda tile: sys.exit()",
            RunError,
            r"step 0, rule '.*mine', columns: SystemExit \(mine.py, line 11\): a plug-in may end",
        ),
    ],
)
def test_columns(mine: Any, tmp_path: Path, columns: str, wrong: type[Exception], match: str) -> None:
    body = f"import sys; return stateless(lambda s: Direction(np.ones(s.n)), columns={columns})"
    assert_fails(tmp_path, wrong, match, algorithm={"name": mine(body)}, world=ALWAYS)
    assert read_manifest(tmp_path / "runs/small")["status"] == "failed"


@pytest.mark.parametrize("init", ["lambda: None", "sys.exit"])
def test_a_first_state(mine: Any, tmp_path: Path, init: str) -> None:
    rule = mine(f"import sys; return Algorithm(lambda s, t: None, init={init})")
    match = (
        "expected the first state as a dict, found None" if init != "sys.exit" else "SystemExit: a plug-in"
    )
    with pytest.raises(RunError, match=f"rule '.*mine', init: {match}"):
        simulate(small(algorithm={"name": rule}, world=ALWAYS), out=tmp_path / "runs", workers=0)
    assert read_manifest(tmp_path / "runs/small")["status"] == "failed"


@pytest.mark.parametrize(
    ("state", "match"),
    [
        (
            "{'per': {2: 1}}",
            r"a dictionary with the key 2 in \['per'\]; keep a value for each client in an array",
        ),
        ("{3: 1.0}", "a dictionary with the key 3; keep"),
        ("{'seen': [1, {4}]}", r"set \{4\} in \['seen'\]\[1\]\n"),
        ("{'names': np.array(['a'])}", r"an array of <U1 in \['names'\]\n"),
    ],
)
def test_a_state_that_no_checkpoint_can_hold(mine: Any, tmp_path: Path, state: str, match: str) -> None:
    rule = mine(f"return Algorithm(lambda s, t: (Direction(np.ones(s.n) / s.n), {state}))")
    match = f"step 0, rule '.*mine': expected the next state as a dict of numbers, .*, found {match}"
    assert_fails(tmp_path, RunError, match, algorithm={"name": rule}, world=ALWAYS)


def test_a_state_that_a_checkpoint_can_hold() -> None:
    state = {
        "n": 1,
        "x": np.float32(2),
        "text": "a",
        "none": None,
        "rows": [np.ones(2), {"t": torch.ones(1)}],
    }
    assert weighing.checked_state(state, "") is state


@pytest.mark.parametrize("table", ["algorithm", "client", "selection", "adversary"])
def test_a_plug_in_that_is_the_end_of_the_process(table: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\nmine = sys.exit\n")
    section = {"name": f"{tmp_path}/mine.py:mine"} | ({"clients": [1]} if table == "adversary" else {})
    with pytest.raises((RunError, ConfigError), match=r"mine': SystemExit: a plug-in may end a run by"):
        simulate(small(**{table: section}), out=tmp_path / "runs", workers=0)
    assert not (tmp_path / "runs").exists()


def test_an_attack_that_is_the_end_of_the_process_fails_the_run(mine: Any, tmp_path: Path) -> None:
    attack = {"name": mine("import sys; return Attack(send=sys.exit)"), "clients": list(range(12))}
    match = r"adversary '.*mine', send: SystemExit.*: a plug-in may end"
    assert_fails(tmp_path, RunError, f"(?s){match}", adversary=attack, world=ALWAYS)
    assert read_manifest(tmp_path / "runs/small")["status"] == "failed"


@pytest.mark.parametrize(
    ("table", "made", "match"),
    [
        ("selection", "Selector(5)", "a selector's select: expected a function, found 5"),
        ("selection", "Selector(max, draws='no')", "a selector's draws: expected True or False, found 'no'"),
        (
            "selection",
            "Selector(max, clairvoyant=1)",
            "a selector's clairvoyant: expected True or False, found 1",
        ),
        (
            "selection",
            "Selector(max, propose=3)",
            "a selector's propose: expected a function or None, found 3",
        ),
        ("client", "ClientMethod(5)", "a client method's train: expected a function or None, found 5"),
        ("client", "ClientMethod(passes=None)", "a client method's passes: expected a function, found None"),
        ("client", "ClientMethod(proximal='a')", "a client method's proximal: expected a number, found 'a'"),
        (
            "client",
            "ClientMethod(proximal=-1)",
            "a client method's proximal: expected a number from 0, found -1",
        ),
        (
            "client",
            "ClientMethod(print, proximal=1)",
            "a client method's proximal: it has no effect beside train; use local.sgd there",
        ),
        ("client", "ClientMethod(offset=5)", "a client method's offset: expected an Offset or None, found 5"),
        ("client", "Offset(5, print)", "an offset's vector: expected a function, found 5"),
        (
            "client",
            "ClientMethod(offset=Offset(print, print))",
            "it keeps a vector from job to job; set keeps=True",
        ),
        (
            "client",
            "ClientMethod(print, plain_step_first=True)",
            "a client method's plain_step_first: it has no effect beside train; use local.sgd there",
        ),
        ("client", "ClientMethod(own=5)", "a client method's own: expected an OwnModel or None, found 5"),
        ("client", "ClientMethod(own=OwnModel())", "a client method's own: .*; set keeps=True"),
        (
            "client",
            "ClientMethod(keeps=True, own=OwnModel(), offset=Offset(print, print))",
            "a client method's own: it cannot be combined with offset",
        ),
        (
            "client",
            "ClientMethod(print, keeps=True, own=OwnModel())",
            "a client method's own: it has no effect beside train; use local.sgd there",
        ),
        ("client", "OwnModel(-1.0)", "an own model's proximal: expected a number from 0, found -1"),
        ("client", "OwnModel(epochs=0)", "an own model's epochs: expected at least 1, found 0"),
        ("client", "OwnModel(lr=0.0)", "an own model's lr: expected a number above 0, found 0"),
        ("client", "OwnModel(lr='fast')", "an own model's lr: expected a number or None, found 'fast'"),
        ("adversary", "Attack('x')", "an attack's send: expected a function or None, found 'x'"),
    ],
)
def test_what_is_no_function(mine: Any, tmp_path: Path, table: str, made: str, match: str) -> None:
    section = {"name": mine(f"return {made}")} | ({"clients": [1]} if table == "adversary" else {})
    assert_fails(tmp_path, ConfigError, match, **{table: section})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("'model'", r"expected Needs\(...\) for what it needs, found 'model'"),
        ("Needs(memory=-1)", "expected a number of steps from 0, found -1"),
        ("promises=['convx']", "cannot promise 'convx'; did you mean 'convex'"),
        ("init={'count': 0}", "expected a function for its first state 'init', found"),
        ("columns='median'", "expected a function of columns or None, found 'median'"),
        ("sends=('mine',)", r"a VectorStep, 'then', that makes the vectors it sends \(mine\), found None"),
    ],
)
def test_what_a_rule_declares(mine: Any, given: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build_rule(mine(f"return Algorithm(lambda s, t: None, {given})"), {})


def test_a_rule_needs_a_function(mine: Any) -> None:
    with pytest.raises(ConfigError, match="expected a function that weighs a stack, 'weigh', found None"):
        build_rule(mine("return Algorithm(None)"), {})


@pytest.mark.parametrize(
    ("result", "match"),
    [
        ("d[:3], v", r"then: expected a direction \[5\] on cpu, found \[3\] on cpu"),
        ("d, {'mine': d.numpy()}", r"then: expected vector 'mine' \[5\] on cpu, found ndarray"),
        ("d, {'mine': d[:3]}", r"then: expected vector 'mine' \[5\] on cpu, found \[3\] on cpu"),
        ("d, {}", "then: expected the vectors that the rule sends, 'mine' is missing"),
    ],
)
def test_vectors_of_a_rule(mine: Any, result: str, match: str) -> None:
    body = f"then = VectorStep(lambda d, v, facts: ({result})); weigh = lambda s, t: (Direction(np.ones(s.n)), t)"
    rule = mine(f"{body}; return Algorithm(weigh, then=then, sends=('mine',))")
    with pytest.raises(RunError, match=f"step 0, rule '.*mine', {match}"):
        combine(rule, np.ones((3, 5)), losses=None)


def test_weights_of_a_rule_are_checked_without_the_simulator_as_well(mine: Any) -> None:
    with pytest.raises(RunError, match=r"expected weights \[3\]"):
        combine(mine("return stateless(lambda s: Direction(np.ones(1)))"), np.ones((3, 5)), losses=None)


@pytest.mark.parametrize(
    ("made", "match"),
    [
        ("choosing(lambda v, k, rng: v.candidates)", "at most 4 distinct candidates of"),
        ("choosing(lambda v, k, rng: None)", "must return an array of clients, it returned NoneType"),
        ("Selector(lambda v, k, rng, s: v.candidates[:k])", "clients and its new state, it returned ndarray"),
        (
            "Selector(lambda v, k, rng, s: (v.candidates[:k], None))",
            "must return a state that is a dict, found None",
        ),
        (
            "Selector(lambda v, k, rng, s: None, start=lambda: 5)",
            "selector '.*mine', start: it must return a state that is a dict, found 5",
        ),
        (
            "Selector(lambda v, k, rng, s: (v.candidates[:k], {'seen': {2: 1}}))",
            r"step 0: selector '.*mine' must return .* dictionary with the key 2 in \['seen'\]; keep .* array \[K\]\n",
        ),
        (
            "choosing(lambda v, k, rng: v.candidates[:k] * 1.0)",
            r"whole numbers, it returned float64 \[0.0, 1.0",
        ),
        ("choosing(lambda v, k, rng: np.array([False, True]))", "whole numbers, it returned bool"),
        ("choosing(lambda v, k, rng: [None])", "whole numbers, it returned object"),
        ("choosing(lambda v, k, rng: np.repeat(v.candidates[:1], 2))", "at most 4 distinct candidates of"),
    ],
)
def test_a_selector(mine: Any, tmp_path: Path, made: str, match: str) -> None:
    assert_fails(tmp_path, RunError, match, selection={"name": mine(f"return {made}")}, world=ALWAYS)


@pytest.mark.parametrize(
    ("found", "match"),
    [
        ("n * K", r"whole numbers in an array of shape \[64, 48\], it returned float64 in shape \[64, 48\]"),
        ("np.arange(K)", r"it returned int64 in shape \[12\]"),
        ("(n * K).astype(int) + 1", "clients in 0 to 11, it returned 1 to 12"),
    ],
)
def test_a_selector_for_single_places(mine: Any, tmp_path: Path, found: str, match: str) -> None:
    name = mine(f"return choosing(lambda v, k, rng: v.candidates[:k], propose=lambda n, K: {found})")
    pacing = {"preset": "fedbuff", "concurrency": 4, "buffer": 2}
    assert_fails(tmp_path, RunError, match, selection={"name": name}, pacing=pacing, world=ALWAYS)


def test_needs_are_known() -> None:
    with pytest.raises(ConfigError, match="cannot need 'loss'; did you mean 'losses'"):
        Selector(lambda v, k, rng, state: (v.candidates[:k], state), needs=frozenset({"loss"}))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="start must be a function that returns its first state"):
        Selector(lambda v, k, rng, state: (v.candidates[:k], state), start={"c": 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"needs: expected a set such as .'losses'., found 'losses'"):
        Selector(lambda v, k, rng, state: (v.candidates[:k], state), needs="losses")  # type: ignore[arg-type]
    as_list: Any = ["losses"]
    assert Selector(lambda v, k, rng, state: (v.candidates[:k], state), needs=as_list).needs == {"losses"}
    with pytest.raises(ConfigError, match="expected one of 'none', 'model', 'blocks', found 'yes'"):
        Needs(gram="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trained", "match"),
    [
        ("local.sgd(start)", "must return a Trained, it returned tuple"),
        ("Trained(start[:3], 0.0)", r"'end' as a tensor \[\d+\], found shape \[3\]"),
        ("Trained(start + 0, 0.0, kept=1.0)", r"'kept' as a tensor \[\d+\], found float"),
        ("Trained(start.numpy(), 0.0)", r"'end' as a tensor \[\d+\], found ndarray"),
        ("Trained(start + 0, None)", "'loss' as a number, found NoneType"),
        ("Trained(start + 0, start)", "'loss' as a number, found Tensor"),
        ("Trained(start + 0, 0.0, sent=[])", "'sent' as a mapping, found list"),
        ("Trained(start + 0, 0.0, kept=start)", "returned 'kept', but the method lacks keeps=True"),
        ("Trained(*local.sgd(start, epoch=2))", "local.sgd: unknown argument 'epoch'; did you mean 'epochs'"),
        ("Trained(*local.sgd(start, epochs=-1))", "local.sgd: epochs: expected a number from 0, found -1"),
        (
            "Trained(*local.sgd(start, correct=lambda g, w, lr: None))",
            "correct must return a gradient for each of the 4 parameters, found NoneType",
        ),
        (
            "Trained(*local.sgd(start, correct=lambda g, w, lr: g[1:]))",
            "correct must return a gradient for each of the 4 parameters, found 3 of them",
        ),
    ],
)
def test_a_client_method(mine: Any, tmp_path: Path, trained: str, match: str) -> None:
    method = mine(f"return ClientMethod(lambda local, start, kept: {trained})")
    assert_fails(tmp_path, RunError, rf"client \d+: .*{match}", client={"name": method})


@pytest.mark.parametrize("mode", ["loop", "dense"])
@pytest.mark.parametrize(
    ("vector", "after", "match"),
    [
        ("0.0", "kept, {}", r"offset.vector must return a tensor \[\d+\], found float"),
        ("kept[:2]", "kept, {}", r"offset.vector must return a tensor \[\d+\], found shape \[2\]"),
        ("kept", "kept", "offset.after must return the vector to keep and .*, it returned Tensor"),
        ("kept", "kept, kept", "offset.after must return 'sent' as a mapping, found Tensor"),
        ("kept", "None, {}", r"offset.after must return first a tensor \[\d+\], found NoneType"),
        ("kept", "kept, {'more': kept}", r"must return 'sent' with \[\], found \['more'\]"),
    ],
)
def test_an_offset(mine: Any, tmp_path: Path, mode: str, vector: str, after: str, match: str) -> None:
    offset = f"Offset(lambda kept, received: {vector}, lambda update, kept, received, rate: ({after}))"
    method = mine(f"return ClientMethod(offset={offset}, keeps=True)")
    match = rf"client \d+: the client method's .*{match}"
    assert_fails(tmp_path, RunError, match, client={"name": method}, train={"mode": mode})


@pytest.mark.parametrize(
    ("own", "match"),
    [
        ("local.sgd(model)", r"a tensor \[\d+\], found tuple"),
        ("None", r"a tensor \[\d+\], found NoneType"),
        ("model[:1]", r"a tensor \[\d+\], found shape \[1\]"),
        ("model.numpy()", r"a tensor \[\d+\], found ndarray"),
    ],
)
def test_a_model_of_the_client_s_own(mine: Any, tmp_path: Path, own: str, match: str) -> None:
    method = mine(f"return ClientMethod(personal=lambda local, model, kept: {own})")
    assert_fails(
        tmp_path,
        RunError,
        rf"client \d+: the client method's personal must return {match}",
        client={"name": method},
    )


def test_what_a_client_method_returns_may_have_a_history(mine: Any, tmp_path: Path) -> None:
    body = """
    def train(local, start, kept):
        weights = [w.detach().requires_grad_() for w in local.views(start)]
        end = torch.cat([(0.9 * w).flatten() for w in weights])
        return Trained(end, 0.0, kept=2 * end)

    def own(local, model, kept):
        return model if kept is None else model * kept.clone().requires_grad_()

    return ClientMethod(train, keeps=True, personal=own)
"""
    config = small(client={"name": mine(body.strip())}, world=ALWAYS, stop={"steps": 2})
    assert simulate(config, out=tmp_path, workers=0)[0].status == "done"


IN_PLACE = """
    def train(local, start, kept):
        received = start{copy}
        received[-10:] = 0.0 if kept is None else kept[-10:]
        end, loss = local.sgd(received)
        if kept is not None:
            (kept{copy}).zero_()
        return Trained(end, loss, kept=end)

    def personal(local, model, kept):
        mixed = model{copy}
        if kept is not None:
            mixed[-10:] = kept[-10:]
        return mixed

    return ClientMethod(train, keeps=True, personal=personal)
"""


@pytest.mark.parametrize("mode", ["loop", "auto"])
def test_a_client_method_may_write_into_what_it_receives(mine: Any, tmp_path: Path, mode: str) -> None:
    """Others start from the same model, and evaluations must not change the run."""

    def digest(copy: str) -> str | None:
        method = {"name": mine(IN_PLACE.format(copy=copy).strip())}
        config = small(
            client=method,
            world=ALWAYS,
            stop={"steps": 4},
            train={"mode": mode, "batch_size": 10},
            evaluate={"every_steps": 1},
        )
        run = simulate(config, out=tmp_path, workers=0, force=True)[0]
        return run.digest

    assert digest("") == digest(".clone()")


def test_the_example_of_a_layer_of_the_client_s_own(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
    (code,) = (block for block in page.split("```python\n") if "def fedper" in block)
    (tmp_path / "mine.py").write_text(code.partition("```")[0])
    method = {"name": f"{tmp_path}/mine.py:fedper"}
    model = {"name": "mlp", "hidden": [8]}
    config = small(client=method, world=ALWAYS, model=model, algorithm={"name": "fedavg"}, stop={"steps": 12})
    run = simulate(config, out=tmp_path, workers=0)[0].run
    trained, own = load_file(run.folder / "model.safetensors"), load_file(run.folder / "personal.safetensors")
    layer = 8 * 10 + 10  # of the MLP, whose last layer has 10 classes
    network = build_network("mlp", {"hidden": [8]}, (1, 8, 8), 10)
    first = network.initial(config.seed_of("train"))
    assert torch.equal(trained["params"][-layer:], first[-layer:])
    assert not torch.equal(trained["params"][:-layer], first[:-layer])
    assert (own["personal"][:, -layer:] != first[-layer:]).any(dim=1).all()
    ends = {
        split: run.final(split).summary(["mean_percent"])["mean_percent"]
        for split in ("test", "test_personal")
    }
    assert ends["test_personal"] > ends["test"] + 10


@pytest.mark.parametrize(
    ("losses", "match"),
    [
        ("each.mean()", r"found shape \[\]|found Tensor"),
        ("each[:1]", r"found shape \[1\]"),
        ("each.tolist()", "found list"),
    ],
)
def test_an_objective_says_the_loss_of_each_sample(
    mine: Any, tmp_path: Path, losses: str, match: str
) -> None:
    body = f"""
    def train(local, start, kept):
        def objective(batch):
            logits = local.logits(local.weights, batch.x)
            each = torch.nn.functional.cross_entropy(logits, batch.y, reduction="none")
            return each.mean(), {losses}

        return Trained(*local.sgd(start, objective=objective))

    return ClientMethod(train)
"""
    must = r"client \d+: the objective must return the loss of each sample, a tensor \[10\], "
    assert_fails(tmp_path, RunError, must + f"({match})", client={"name": mine(body.strip())})


@pytest.mark.parametrize("changes", ["epochs=0", "most_steps=0", "rows=local.rows[:0]", "lr=0.0"])
def test_a_client_that_takes_no_step_stays_where_it_is(mine: Any, changes: str) -> None:
    data = noise(2, (5, 9), 8)
    method = mine(f"return ClientMethod(lambda local, start, kept: Trained(*local.sgd(start, {changes})))")
    spec = WorkbenchSpec(
        "softmax", {}, (1, 8, 8), 10, LocalSGD(batch_size=4), seed=0, losses=False, client=method
    )
    bench = Workbench(spec, data)
    start = bench.network.initial(0)
    report, _ = bench.work(Job(0, 1, 0, 0), start, row := torch.ones_like(start))
    assert not row.any()
    assert np.isnan(report.loss_train) == np.isnan(report.loss_rms) == (changes != "lr=0.0")


def test_a_parameter_that_no_loss_depends_on_stays_as_it_is(mine: Any) -> None:
    body = """
    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.other = torch.nn.Linear(64, n_classes), torch.nn.Linear(64, 3)
        def forward(self, x):
            return self.used(x.flatten(1))
    return Heads()
"""
    model = mine(body.strip(), "*, in_shape, n_classes")
    for client in ("plain", "qmaml"):
        spec = WorkbenchSpec(
            model, {}, (1, 8, 8), 10, LocalSGD(batch_size=4), seed=0, losses=False, client=client
        )
        bench = Workbench(spec, noise(2, (5, 9), 8))
        start = bench.network.initial(0)
        bench.work(Job(0, 1, 0, 0), start, row := torch.ones_like(start))
        assert row[:650].any()
        assert not row[650:].any()


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ("y + 1", "found 10"),
        ("y - 1", "found -1"),
        ("y[:3]", r"found shape \[3\]"),
        ("y * 1.0", "found torch.float32"),
        ("None", "found NoneType"),
    ],
)
def test_labels_of_an_attack(mine: Any, tmp_path: Path, labels: str, match: str) -> None:
    attack = {"name": mine(f"return Attack(labels=lambda y, n: {labels})"), "share": 1.0, "after": "1h"}
    assert_fails(
        tmp_path,
        RunError,
        rf"adversary '.*mine': expected labels .* from 0 to 9.*{match}",
        adversary=[attack],
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("send", "match"),
    [
        ("None", "expected send to return a Message, found NoneType"),
        ("m.with_row(m.row[:3])", r"a row that is a tensor \[\d+\], found \[3\]"),
        ("m.with_row(m.row.numpy())", r"a row that is a tensor \[\d+\], found ndarray"),
    ],
)
def test_an_attack(mine: Any, tmp_path: Path, send: str, match: str) -> None:
    attack = {"name": mine(f"return Attack(send=lambda m: {send})"), "share": 1.0}
    assert_fails(tmp_path, RunError, match, adversary=[attack])


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("model", 5, "task 'mine': model: expected the name of a model, found 5"),
        ("natural", 5, "task 'mine': natural: expected the rows of each client, .* found a int"),
    ],
)
def test_a_task_with_fields_of_wrong_types(keyword: str, value: object, message: str) -> None:
    x, none = np.zeros((4, 2), np.float32), np.zeros(4, bool)
    fields: Any = {keyword: value}
    with pytest.raises(DataError, match=message):
        checked(Task("mine", x, np.zeros(4, np.int64), 2, none, **fields), "mine")


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        (
            "np.ones((7, s.n))",
            r"expected weights \[\d\] for the whole model, a row for each of 2 blocks; found .*7",
        ),
        ("np.ones(s.n), keep='x'", "keep: expected a finite number, found 'x'"),
        ("np.ones(s.n), keep=np.nan", "keep: expected a finite number, found nan"),
    ],
)
def test_a_rule_with_weights_for_other_blocks_or_no_factor(
    direction: str, message: str, mine: Any, tmp_path: Path
) -> None:
    name = mine(f"return stateless(lambda s: Direction({direction}), Needs(gram='blocks'))")
    assert_fails(tmp_path, RunError, message, algorithm={"name": name})


def test_a_scenario_without_a_process(mine: Any, tmp_path: Path) -> None:
    name = mine("return Scenario(lambda env, me: me.online(0, 1))")
    assert_fails(
        tmp_path, ConfigError, "with at least one `yield`.* returns NoneType", world={"scenario": name}
    )


def test_a_model_whose_output_is_no_tensor(mine: Any, tmp_path: Path) -> None:
    body = "return torch.nn.Sequential(torch.nn.Flatten(1), torch.nn.LSTM(64, 10))"
    name = mine(body, "*, in_shape, n_classes")
    assert_fails(
        tmp_path,
        ConfigError,
        r"expected logits \[1, 10\] for one sample, .*, found tuple",
        model={"name": name},
    )


@pytest.mark.parametrize("kind", ["task", "client", "selector", "adversary", "partitioner"])
def test_what_a_factory_made_is_of_its_kind(mine: Any, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind} '.*' returned int, expected"):
        plugins.build(kind, mine("return 3"), {})


def test_a_factory_takes_what_it_is_given(mine: Any) -> None:
    with pytest.raises(ConfigError, match=r"must take the argument 'seed', found \(clients, data_dir\)"):
        plugins.check("task", mine("pass", "*, clients, data_dir"), {}, ("clients", "seed", "data_dir"))


def test_a_function_that_is_no_factory_or_has_no_name(mine: Any) -> None:
    name = mine("pass", "stack")
    with pytest.raises(ConfigError, match="needs the option 'stack': it is a parameter of its function"):
        plugins.build("rule", name, {})
    with pytest.raises(ConfigError, match="has no function 'mnie'; did you mean 'mine'"):
        plugins.factory("rule", name.replace(":mine", ":mnie"))
    with pytest.raises(ConfigError, match=r"the name of the function too, such as '.*/mine\.py:mine'"):
        plugins.factory("rule", name.removesuffix(":mine"))


@pytest.mark.parametrize(
    ("found", "match"), [("'x'", "a number, found str"), ("accuracy", r"found an array of shape \[12\]")]
)
def test_a_metric(mine: Any, tmp_path: Path, found: str, match: str) -> None:
    stop = {"steps": 1, "metric": mine(f"return {found}", "accuracy, n"), "patience": 1}
    assert_fails(tmp_path, RunError, f"metric '.*mine': expected .*{match}", stop=stop, world=ALWAYS)


def test_an_exception_in_the_middle_of_a_run_says_how_it_goes_on(mine: Any, tmp_path: Path) -> None:
    name = mine("return stateless(lambda s: Direction(np.full(s.n, 1 / (2 - s.step))))")
    with pytest.raises(ZeroDivisionError) as raised:
        simulate(small(algorithm={"name": name}, world=ALWAYS), out=tmp_path, workers=0)
    (note,) = raised.value.__notes__
    assert "failed at step 2" in note
    assert f"fedsim resume {tmp_path / 'small'}; if the cause is in the configuration" in note


def test_an_exception_of_a_client_method_names_the_client_and_the_job(mine: Any, tmp_path: Path) -> None:
    name = mine(
        "seen = []\n"
        "    def train(local, start, kept):\n"
        "        seen.append(1)\n"
        "        return 1 / (7 - len(seen)) and Trained(*local.sgd(start))\n"
        "    return ClientMethod(train)"
    )
    with pytest.raises(ZeroDivisionError) as raised:
        simulate(small(client={"name": name}, world=ALWAYS), out=tmp_path, workers=0)
    told, how_to_go_on = raised.value.__notes__
    assert re.fullmatch(r"The client method raised this for client \d+ in job \d+\.", told)
    assert "failed at step" in how_to_go_on


ENDS: dict[str, tuple[str, str, str]] = {
    "rule": ("algorithm", "", "return stateless(end)"),
    "rule's factory": ("algorithm", "", "end()"),
    "wrapper": ("wrapper", "rule", "return stateless(end)"),
    "client": ("client", "", "return ClientMethod(end)"),
    "personal": ("client", "", "return ClientMethod(personal=end)"),
    "selector": ("selection", "", "return choosing(end)"),
    "model": (
        "model",
        "*, in_shape, n_classes",
        "m = torch.nn.Linear(64, 10); m.forward = end; return m",
    ),
    "task": ("task", "*, clients, seed, data_dir", "end()"),
    "partitioner": ("partition", "", "return end"),
    "adversary": ("adversary", "", "return Attack(send=end)"),
    "metric": ("metric", "accuracy, n", "end()"),
    "scenario": ("scenario", "", "def live(env, me): yield env.timeout(5); end()\n    return Scenario(live)"),
}
"""Where code of one's own runs: the table that names it, its parameters, and how it calls `end`."""
BEFORE = {"rule's factory", "model", "task", "partitioner", "scenario"}
"""What is called before there is a folder."""


def changes_of(table: str, name: str) -> dict[str, Any]:
    """Return the changes of the small configuration that name a plug-in."""
    return {"world": ALWAYS, "stop": {"steps": 2}} | {
        "wrapper": {"algorithm": {"name": "fedavg", "wrap": [{"name": name}]}},
        "adversary": {"adversary": [{"name": name, "share": 1.0}]},
        "metric": {"stop": {"steps": 2, "metric": name, "patience": 1}},
        "scenario": {"world": {"scenario": name, "horizon": "2h"}},
        "task": {"task": {"name": name, "clients": 12}},
    }.get(table, {table: {"name": name}})


@pytest.mark.parametrize(
    "raised", ["SystemExit(0)", "KeyboardInterrupt", "GeneratorExit", "type('Odd', (BaseException,), {})"]
)
@pytest.mark.parametrize("where", ENDS)
def test_what_would_end_the_process_ends_the_run_alone(
    mine: Any, tmp_path: Path, where: str, raised: str
) -> None:
    table, parameters, body = ENDS[where]
    name = mine(f"def end(*args, **kwargs): raise {raised}\n    {body}", parameters)
    word = raised.replace("type('", "").partition("(")[0].partition("'")[0]
    if where == "scenario" and word == "SystemExit":  # said with the client, as its other mistakes are
        error, message = ConfigError, r"scenario .*client 0 \(mine.py, line 11\): SystemExit: 0"
    else:
        error, message = RunError, rf"{word}.* \(mine.py, line 11\)"
    assert_fails(tmp_path, error, message, **changes_of(table, name))
    folder = tmp_path / "runs" / "small"
    assert folder.exists() == (where not in BEFORE)
    if where not in BEFORE:
        found = read_manifest(folder)
        assert found["status"] == "failed"
        assert f"{word}" in found["error"]
        assert "(mine.py, line 11)" in found["error"]


def test_the_text_of_a_plug_in_may_not_end_the_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\n\nsys.exit(0)\n")
    with pytest.raises(ConfigError, match=r"cannot import the rule '.*': SystemExit: 0 \(mine.py, line 3\)"):
        plugins.factory("rule", f"{tmp_path}/mine.py:mine")


def test_an_ordinary_exception_is_recorded_with_its_line(mine: Any, tmp_path: Path) -> None:
    name = mine("return stateless(lambda s: 1 / 0)")
    assert_fails(tmp_path, ZeroDivisionError, "division", algorithm={"name": name}, world=ALWAYS)
    assert (
        read_manifest(tmp_path / "runs/small")["error"]
        == "ZeroDivisionError: division by zero (mine.py, line 11)"
    )


def test_several_runs_name_the_line_of_each_that_failed(mine: Any, tmp_path: Path) -> None:
    name = mine("return stateless(lambda s: 1 / 0)")
    arms = [small(name="x/a", stop={"steps": 1}), small(name="x/b", algorithm={"name": name}, world=ALWAYS)]
    with pytest.raises(SomeFailed, match=r"x/b: ZeroDivisionError: division by zero \(mine.py, line 11\)\n"):
        simulate(arms, out=tmp_path, workers=0)


def test_ctrl_c_in_the_middle_of_a_plug_in_interrupts(mine: Any, tmp_path: Path) -> None:
    """Twice, it is raised where the code of the plug-in stands."""
    hear = "import signal; signal.raise_signal(signal.SIGINT); signal.raise_signal(signal.SIGINT)"
    name = mine(f"def heard(s):\n        {hear}\n    return stateless(heard)")
    result = simulate(small(algorithm={"name": name}, world=ALWAYS), out=tmp_path, workers=0)[0]
    assert result.status == "interrupted"


def test_a_plug_in_that_ends_the_process_fails_its_cell_alone(mine: Any, tmp_path: Path) -> None:
    name = mine("def end(s): raise SystemExit(0)\n    return stateless(end)")
    cell = Cell(0, {}, small(algorithm={"name": name}, world=ALWAYS))
    ended = CellRunner("cpu", Interrupts()).run(cell, tmp_path / "cell", lambda progress: None)
    assert ended.state.status == "failed"
    assert "SystemExit: 0 (mine.py, line 11)" in str(ended.state.error)


@pytest.mark.ray
@pytest.mark.parametrize("where", ["rule", "client"])
@pytest.mark.parametrize("raised", ["SystemExit(0)", "KeyboardInterrupt"])
def test_what_would_end_a_worker_ends_the_run(
    mine: Any, tmp_path: Path, two_workers: Any, where: str, raised: str
) -> None:
    table, parameters, body = ENDS[where]
    name = mine(f"def end(*args): raise {raised}\n    {body}", parameters)
    with pytest.raises(RunError, match=rf"{raised.partition('(')[0]}.*mine.py, line 11"):
        simulate(small(**changes_of(table, name)), out=tmp_path, workers=two_workers)
    assert read_manifest(tmp_path / "small")["status"] == "failed"


def test_the_command_fails_where_a_plug_in_ends_the_process(mine: Any, tmp_path: Path, capsys: Any) -> None:
    """Before there is a run as well; `fedsim run` ended with 0 and said nothing."""
    file = tmp_path / "mine.toml"
    for body in ("raise SystemExit(0)", "def end(s): raise SystemExit(0)\n    return stateless(end)"):
        name = mine(body)
        config = small(algorithm={"name": "fedavg"}, world=ALWAYS).resolved() | {"algorithm": {"name": name}}
        file.write_text(tomli_w.dumps(config))
        with pytest.raises(SystemExit) as ended:
            main(["run", str(file), "--out", str(tmp_path / "out"), "--workers", "0", "--quiet"])
        assert ended.value.code == 1
        assert "SystemExit: 0 (mine.py, line 11)" in capsys.readouterr().err


SLIPS = {
    "rule": (
        "return stateless(lambda stack: stack.updates)",
        {},
        "AttributeError: 'Stack' object has no attribute 'updates'",
    ),
    "selector": (
        "return choosing(lambda *view: open('gone.csv'))",
        {"selection": {"name": "MINE"}, "algorithm": {"name": "fedavg"}},
        "FileNotFoundError: [Errno 2] No such file or directory: 'gone.csv'",
    ),
}


@pytest.mark.parametrize("where", SLIPS)
def test_the_command_shows_the_traceback_from_the_plug_in_on(
    mine: Any, tmp_path: Path, capsys: Any, where: str
) -> None:
    body, tables, message = SLIPS[where]
    lines = failing(mine(body), tmp_path, capsys, tables, "0")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith(f'  File "{tmp_path}/mine.py", line 11, in ')
    assert message in lines
    assert [line for line in lines if line.startswith("  File")] == [lines[1]]
    assert lines[-1].startswith(
        f"{tmp_path}/out/small: failed at step 0; its records up to there can be read."
    )


def test_the_error_behind_that_of_a_plug_in_is_shown_too(mine: Any, tmp_path: Path, capsys: Any) -> None:
    body = (
        "def broken(stack):\n        try:\n            return 1 / 0\n        except ZeroDivisionError as error:\n"
        "            raise RuntimeError('mine') from error\n    return stateless(broken)"
    )
    lines = failing(mine(body), tmp_path, capsys, {}, "0")
    assert [line.rpartition(", line ")[2] for line in lines if f'"{tmp_path}/mine.py"' in line] == [
        "13, in broken",
        "15, in broken",
    ]
    assert sum(line.startswith("  File") for line in lines) == 2
    assert "RuntimeError: mine" in lines


@pytest.mark.ray
@pytest.mark.parametrize(
    ("raised", "wrong", "recorded"),
    [
        ("KeyError('k')", KeyError, "KeyError: 'k'"),
        (
            "type('Two', (Exception,), {'__init__': lambda e, a, b: Exception.__init__(e, a + b)})('left ', 'right')",
            RunError,
            "RunError: Two: left right",
        ),
    ],
)
def test_an_exception_in_a_worker_is_recorded_with_its_line(
    mine: Any, tmp_path: Path, two_workers: Any, raised: str, wrong: type[Exception], recorded: str
) -> None:
    """Also one that can be pickled, but not unpickled."""
    name = mine(f"def train(*args): raise {raised}\n    return ClientMethod(train)")
    with pytest.raises(wrong):
        simulate(small(client={"name": name}, world=ALWAYS), out=tmp_path, workers=two_workers)
    assert read_manifest(tmp_path / "small")["error"] == f"{recorded} (mine.py, line 11)"


@pytest.mark.ray
def test_an_edit_takes_effect_in_the_next_run_with_any_number_of_workers(
    mine: Any, tmp_path: Path, two_workers: Any
) -> None:
    body = "return ClientMethod(lambda local, start, kept: Trained(start + {} * (local.sgd(start)[0] - start), 1.0))"

    def result(scale: float, workers: Any) -> tuple[str | None, Any]:
        config = small(client={"name": mine(body.format(scale))}, stop={"steps": 2}, world=ALWAYS)
        run = simulate(config, out=tmp_path / "runs", workers=workers, force=True)[0]
        return run.digest, read_manifest(run.folder)["code"]

    first = result(1.0, two_workers)
    edited = result(0.1, two_workers)
    assert result(0.1, 0) == edited
    assert edited[0] != first[0]
    assert edited[1] != first[1]


def test_runs_of_one_call_keep_the_code_of_the_first(mine: Any, tmp_path: Path) -> None:
    rule = {"name": mine("return stateless(lambda s: Direction(np.ones(s.n) / s.n))")}
    arms = [small(name=f"x/{arm}", algorithm=rule, stop={"steps": 1}, world=ALWAYS) for arm in "ab"]
    a, b = simulate(arms, out=tmp_path, workers=0, watch=lambda progress: mine("edited"))
    assert read_manifest(a.folder)["code"] == read_manifest(b.folder)["code"]


@pytest.mark.ray
def test_the_traceback_of_an_actor_begins_in_the_plug_in(mine: Any, tmp_path: Path, capsys: Any) -> None:
    body, tables, message = SLIPS["rule"]
    lines = failing(mine(body), tmp_path, capsys, tables, "2")
    assert lines[1] == f'  File "{tmp_path}/mine.py", line 11, in <lambda>'
    assert lines[-2] == message
    assert [line for line in lines if line.startswith("  File")] == [lines[1]]


def failing(name: str, tmp_path: Path, capsys: Any, tables: dict[str, Any], workers: str) -> list[str]:
    """Return the lines of the error of `fedsim run` with a plug-in in place of MINE, or as the rule without tables."""
    named = {kind: {"name": table["name"].replace("MINE", name)} for kind, table in tables.items()}
    config = small(world=ALWAYS).resolved() | (named or {"algorithm": {"name": name}})
    file = tmp_path / "mine.toml"
    file.write_text(tomli_w.dumps(config))
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file), "--out", str(tmp_path / "out"), "--workers", workers, "--quiet"])
    assert ended.value.code == 1
    return capsys.readouterr().err.splitlines()


TASK = Task("mine", np.ones((6, 2), np.float32), np.arange(6) % 3, 3, np.zeros(6, dtype=bool))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"x": np.ones((6, 2))}, r"x: expected float32 .* found float64 of shape \[6, 2\]"),
        ({"x": torch.ones(6, 2)}, "x: expected a NumPy array, found Tensor"),
        ({"x": np.array([[np.nan, 1]] * 6, np.float32)}, "NaN or infinity in sample 0, one of 6"),
        ({"y": np.arange(5)}, r"y: expected 6 labels, .*found int64 of shape \[5\]"),
        ({"y": np.ones(6)}, "y: expected 6 labels, whole numbers.*found float64"),
        ({"n_classes": 2}, "labels from 0 to n_classes - 1 = 1, found 2 at sample 2, one of 2"),
        ({"official_test": np.zeros(0, dtype=bool)}, "official_test: expected 6 truth values"),
        ({"natural": (np.arange(3), np.arange(2, 6))}, "client 1: .*found sample 2, which client 0 holds"),
        ({"natural": (np.array([0, 0]),)}, "client 0: .*found sample 0, which it holds twice"),
        ({"natural": (np.array([6]),)}, "client 0: expected rows from 0 to 5, found 6"),
        (
            {"natural": TASK.y},
            r"client 0: expected a list of rows, found one number; .*np.flatnonzero\(client == k\)",
        ),
        ({"natural": (TASK.y == 0, TASK.y > 0)}, r"client 0: .*whole numbers.*found bool; np\.flatnonzero"),
        ({"natural": ([0, 1], [1.5])}, "client 1: expected rows, whole numbers from 0 on, found float64"),
        ({"natural": {0: [0, 1], 1: [2]}}, "natural: expected the rows of each client, .*found a dict"),
        ({"names": ("a",)}, "names: expected one for each client of `natural`, found 1 for none"),
        ({"natural": ([0, 1], [2]), "names": ("a",)}, "names: .*, found 1 for 2"),
        (
            {"natural": ([0, 1], [2]), "names": ("a", "a")},
            r"names: expected different texts, found \('a', 'a'\)",
        ),
        ({"natural": ([0, 1], [2]), "names": (1, 2)}, r"names: expected different texts, found \(1, 2\)"),
        ({"n_classes": 3.0}, "n_classes: expected a whole number from 1 on, found 3.0"),
        ({"n_classes": "3"}, "n_classes: expected a whole number from 1 on, found '3'"),
    ],
)
def test_a_task(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(DataError, match=f"task 'p.py:mine': .*{match}"):
        checked(replace(TASK, **changes), "p.py:mine")


@pytest.mark.filterwarnings("error")
def test_a_task_may_lie_backwards_in_memory_and_hold_huge_numbers() -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)[::-1]
    found = checked(replace(TASK, x=x, n_classes=np.int64(3)), "mine")  # type: ignore[arg-type]
    assert torch.from_numpy(found.x).tolist() == x.tolist()
    assert type(found.n_classes) is int
    checked(replace(TASK, x=np.full((6, 2), 3e38, np.float32)), "mine")


@pytest.mark.parametrize("said", ["", None, "elsewhere"])
def test_a_task_is_told_where_data_lie(mine: Any, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSIM_DATA", raising=False)
    if said is not None:
        monkeypatch.setenv("FEDSIM_DATA", said)
    name = mine("raise ValueError(str(data_dir))", "*, clients, seed, data_dir")
    with pytest.raises(ConfigError, match=rf"^task '.*mine': {said or 'data'} \(mine.py, line \d+\)$"):
        federation(small(task={"name": name, "clients": 12}))


def test_a_task_may_have_lists_of_rows_and_short_labels() -> None:
    found = checked(replace(TASK, y=TASK.y.astype(np.int32), natural=([0, 1], [2])), "mine")  # type: ignore[arg-type]
    assert found.y.dtype == np.int64
    assert found.natural is not None
    assert [rows.tolist() for rows in found.natural] == [[0, 1], [2]]


@pytest.mark.ray
def test_with_workers_an_error_is_said_once_and_nothing_of_ray(mine: Any, tmp_path: Path) -> None:
    rule = mine(
        "def weigh(s):\n        if how == 'exit': raise SystemExit(0)\n        return Direction(np.ones(s.n + 1))\n"
        "    return stateless(weigh)",
        "how: str = ''",
    )
    program = f"""
from fedsim.common.errors import RunError
from fedsim.runs.simulate import simulate
from small import small
from fedsim.execution.actor_pool import RayPool
with RayPool(1) as pool:
    for how in ("", "exit", ""):
        try:
            simulate(small(name=f"a{{how}}", algorithm={{"name": {rule!r}, "how": how}}), force=True, workers=pool)
        except RunError as error:
            print(error)
"""
    done = programs.python(program, tmp_path)
    weights = f"step 0, rule {rule!r}: expected weights [4]"
    ended = "SystemExit: 0 (mine.py, line 12): a plug-in may end a run by an Exception alone"
    said = [line for line in done.out.splitlines() if "expected weights" in line or "SystemExit" in line]
    starts = [weights, ended, weights]
    assert len(said) == len(starts), done.out
    assert [line[: len(start)] for line, start in zip(said, starts, strict=True)] == starts
    assert "Traceback" not in done.out
    assert done.err == ""

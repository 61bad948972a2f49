"""Worlds tied to the data of a run."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim.common.errors import ConfigError, TraceError
from fedsim.config.errors import validated
from fedsim.config.world import ConfoundConfig, WorldConfig, WorldFile, source_trace
from fedsim.records.schemas import EVALS
from fedsim.runs.confound import confounded, final_losses
from fedsim.worlds.client_statistics import trait
from fedsim.worlds.matching import spearman
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import Trace

N = 200
FACTS = {
    "n_samples": np.random.default_rng(0).permutation(N) + 10,
    "label_counts": np.random.default_rng(1).multinomial(20, np.full(5, 0.2), size=N),
    "region": np.array(["north", "south"] * (N // 2)),
}


@pytest.fixture(scope="module")
def world():
    made = make_trace("churn", {}, clients=N + 30, horizon_us=3 * 86400 * 10**6, seed=1, after_end="repeat")
    facts = pa.table({"tier": np.arange(made.clients), "name": [f"c{i}" for i in range(made.clients)]})
    return Trace(made.table, made.clients, made.horizon_us, made.after_end, made.source, about=facts)


def tie(what, to, **more):
    return ConfoundConfig(what=what, to=to, **more)


@pytest.mark.parametrize("what", ["availability", "compute", "downlink", "uplink", "faults", "night", "tier"])
def test_full_strength_sorts_the_world_by_the_data(world, what):
    tied, report = confounded(world, FACTS, tie(what, "n_samples"), seed=0)
    lives = trait(tied, what)[np.argsort(FACTS["n_samples"])]
    assert (np.diff(lives) >= 0).all()
    assert report["spearman"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("strength", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_strength_and_sign_are_those_of_the_rank_correlation(world, strength, sign):
    ask = tie("availability", "n_samples", strength=strength, sign=sign)
    found = [confounded(world, FACTS, ask, seed)[1]["spearman"] for seed in range(5)]
    wanted = strength if sign == "positive" else -strength
    assert np.mean(found) == pytest.approx(wanted, abs=4 / np.sqrt(5 * N))


def test_unknown_time_counts_as_the_run_takes_it():
    rows = [(0, 0, 90, "unknown"), (1, 0, 50, "online"), (2, 0, 10, "online"), (2, 10, 30, "unknown")]
    trace = Trace.of(*zip(*rows, strict=True), clients=3, horizon_us=100, after_end="repeat")
    facts, ask = {"n_samples": np.array([7, 9, 3])}, tie("availability", "n_samples")
    for unknown, longest_first in (("online", [0, 1, 2]), ("offline", [1, 2, 0])):
        tied, report = confounded(trace, facts, ask, 0, unknown)
        expected = [longest_first[place] for place in (1, 0, 2)]
        lengths = [trace.spans("online").end_us[trace.spans("online").client == c].tolist() for c in expected]
        found = tied.spans("online")
        assert [found.end_us[found.client == c].tolist() for c in range(3)] == lengths
        assert report["spearman"] == 1


def test_the_same_lives_are_lived_by_others(world):
    tied, report = confounded(world, FACTS, tie("compute", "label", labels=[0, 1], strength=0.7), seed=3)
    lived = tied.about.column("tier").to_pylist()
    assert sorted(lived) == list(range(N))
    assert lived != list(range(N))
    assert tied.clients == report["clients"] == N
    assert np.array_equal(trait(tied, "compute"), trait(world, "compute")[lived])
    share = FACTS["label_counts"][:, :2].sum(axis=1) / 20
    assert report["spearman"] == pytest.approx(spearman(share, trait(tied, "compute")))


@pytest.mark.parametrize(("seed", "labels"), [(0, [3, 4]), (1, [4, 0]), (7, [0, 1])])
def test_rotated_labels_are_the_labels_plus_the_seed(world, seed, labels):
    rotated, report = confounded(world, FACTS, tie("compute", "label", labels=[3, 4], rotate=True), seed)
    plain, expected = confounded(world, FACTS, tie("compute", "label", labels=labels), seed)
    assert rotated.table == plain.table
    assert report == expected
    assert rotated.source == plain.source
    with pytest.raises(ConfigError, match=r"labels: expected labels from 0 to 4, found 5"):
        confounded(world, FACTS, tie("compute", "label", labels=[5], rotate=True), seed)


def test_the_report_stands_in_the_source(world):
    tied, report = confounded(world, FACTS, tie("availability", "n_samples", strength=0.5), seed=3)
    source = json.loads(tied.source)
    assert source["edits"][0]["confound"] == report | {"labels": [], "seed": 3}
    assert source["of"]["digest"] == world.digest()


def test_equal_seeds_tie_equally(world):
    ask = tie("availability", "n_samples", strength=0.5)
    digests = [confounded(world, FACTS, ask, seed)[0].digest() for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_a_fact_in_words_splits_the_clients(world):
    tied, _ = confounded(world, FACTS, tie("availability", "region", labels=["south"]), seed=0)
    online = trait(tied, "availability")
    south = FACTS["region"] == "south"
    assert online[south].min() >= online[~south].max()


def test_an_imported_world_is_tied_as_well(tmp_path):
    rows = [(c, 0, 10 * (c + 1), "online") for c in range(4)]
    Trace.of(*zip(*rows, strict=True), clients=4, horizon_us=50).write(tmp_path / "w.parquet")
    world = source_trace(tmp_path / "w.parquet", clients=None, seed=0)
    tied, _ = confounded(world, {"n_samples": np.array([7, 9, 3])}, tie("availability", "n_samples"), seed=0)
    assert tied.spans("online").end_us.tolist() == [20, 30, 10]


def run_folder(folder, losses):
    """Write a finished run with two evaluations, the last one with these losses."""
    folder.mkdir()
    (folder / "manifest.json").write_text('{"name": "a", "status": "done"}')
    (folder / "config.resolved.toml").write_text('name = "a"')
    n = len(losses)
    columns = {
        "step": np.repeat([0, 5], n),
        "time_us": np.repeat([0, 9], n),
        "client": np.tile(np.arange(n), 2),
        "split": ["test"] * 2 * n,
        "n": np.full(2 * n, 4),
        "correct": np.full(2 * n, 1),
        "accuracy": np.full(2 * n, 0.25),
        "loss": np.concatenate([np.ones(n), losses]),
    }
    pq.write_table(pa.table(columns).cast(EVALS), folder / "evals.parquet")
    return folder


def test_losses_come_from_the_last_evaluation_of_a_run(tmp_path):
    losses = np.random.default_rng(4).permutation(12) / 7
    folder = run_folder(tmp_path / "a", losses)
    assert final_losses(folder, 12).tolist() == losses.tolist()
    world = make_trace("churn", {}, clients=12, horizon_us=86400 * 10**6, seed=1)
    ask = tie("uplink", "loss", run=folder, sign="negative")
    tied, report = confounded(world, {"n_samples": np.arange(12)}, ask, seed=0)
    assert (np.diff(trait(tied, "uplink")[np.argsort(losses)]) <= 0).all()
    assert report["spearman"] == pytest.approx(-1)
    with pytest.raises(ConfigError, match="expected losses of clients 0 to 4, found 12 clients"):
        final_losses(folder, 5)
    with pytest.raises(ConfigError, match=r"world\.confound\.run: there is no run folder"):
        final_losses(tmp_path / "none", 12)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            tie("availabilty", "n_samples"),
            "confound.what: there is no property 'availabilty'.*'availability'",
        ),
        (tie("name", "n_samples"), "confound.what: column 'name' of its facts is not numeric"),
        (
            tie("compute", "n_sample"),
            "confound.to: the data's clients have no 'n_sample'; did you mean 'n_samples'",
        ),
        (tie("compute", "label", labels=[5]), "confound.labels: expected labels from 0 to 4, found 5"),
        (
            tie("compute", "region"),
            "'region' is text: expected some of its values, found none; known: north, south",
        ),
        (tie("compute", "region", labels=["sout"]), "found 'sout'; did you mean 'south'"),
        (tie("compute", "same"), "confound.to: 'same' is 4 for all 200 clients: nothing to tie"),
    ],
)
def test_what_cannot_be_tied_is_refused(world, ask, message):
    with pytest.raises(ConfigError, match=message):
        confounded(world, FACTS | {"same": np.full(N, 4)}, ask, seed=0)


def test_a_world_needs_as_many_clients_as_the_data(world):
    with pytest.raises(TraceError, match="has 230 clients, but the data has 300"):
        confounded(world, {"n_samples": np.arange(300)}, tie("compute", "n_samples"), seed=0)


def test_a_world_in_which_all_are_alike_cannot_be_tied():
    always = make_trace("always_on", {}, clients=5, horizon_us=10**9, seed=1)
    with pytest.raises(ConfigError, match=r"confound\.what: 'availability' is 1 for all 5 clients"):
        confounded(always, {"n_samples": np.arange(5)}, tie("availability", "n_samples"), seed=0)


def told(**confound):
    with pytest.raises(ConfigError) as caught:
        validated(WorldFile, {"world": {"scenario": "churn", "confound": confound}}, "w.toml")
    return str(caught.value)


def test_the_table_is_checked():
    assert "to = 'label' needs 'labels'" in told(what="night", to="label")
    assert "to = 'loss' needs 'run'" in told(what="night", to="loss")
    assert "nothing else does" in told(what="night", to="n_samples", run="runs/a")
    assert "a night must have a length" in told(what="night", to="n_samples", night_start=6)
    assert "w.toml: world.confound.strength: input should be less than or equal to 1" in told(
        what="night", to="n_samples", strength=1.5
    )
    assert "w.toml: world.confound.strenght: unknown key; did you mean 'strength'?" in told(
        what="night", to="n_samples", strenght=1
    )
    assert "w.toml: world.confound.sign: input should be 'positive' or 'negative'" in told(
        what="night", to="n_samples", sign="up"
    )


def test_a_resolved_table_says_the_same_again():
    world = WorldConfig(scenario="churn", confound=tie("night", "label", labels=[1, 2], strength=0.3))
    resolved = world.model_dump(mode="json", exclude_none=True)
    assert resolved["confound"]["labels"] == [1, 2]
    assert validated(WorldFile, {"world": resolved}, "w.toml").world.confound == world.confound

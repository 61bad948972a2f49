"""Sentences about runs and studies whose answer is known by construction."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from fedsim import analysis
from fedsim.analysis.opening.study import Study
from fedsim.analysis.report.lost_work import lost_work, work_of
from fedsim.analysis.report.run_findings import participation_sentence
from fedsim.analysis.statistics.contrasts import Contrast
from fedsim.common.errors import FolderError
from synthetic_runs import US, evals_table, jobs_table, steps_table, world_table, write_run
from synthetic_studies import write_study

HORIZON_US = 7200 * US
K = 40


def accuracy(shift: float = 0.0, seed: int = 0, spread: float = 0.01) -> np.ndarray:
    """Return accuracies [K] around 0.5; those of two calls differ by `shift` and independent noise of `spread`."""
    base = np.linspace(0.3, 0.7, K)
    return np.asarray(base + shift + np.random.default_rng(seed).normal(0, spread, K))


def run_of(
    folder: Path, values: Any = None, *, world: bool = True, tables: Any = None, **manifest: Any
) -> Path:
    evals = {} if values is None else {"evals": evals_table(np.atleast_2d(values))}
    write_run(folder, tables=evals | (tables or {}), **manifest)
    if world:
        online = [(client, 0, HORIZON_US * (client + 1) // K) for client in range(K)]
        pq.write_table(world_table(online, clients=K, horizon_us=HORIZON_US), folder / "world.parquet")
    return folder


def said(*folders: Path) -> dict[str, str]:
    found = analysis.findings(analysis.open_all(folders))
    texts = {each.topic: each.text for each in found}
    assert 3 <= len(found) == len(texts) <= 5
    assert all(text[:1].isupper() or (text[:1].islower() and " ends at " in text) for text in texts.values())
    assert all(text.endswith(".") and "nan" not in text for text in texts.values())
    return texts


@pytest.mark.parametrize(
    ("shift", "clause"),
    [
        (0.05, r"b \(\+\d\.\d points \[\+\d\.\d, \+\d\.\d\]\) is better than a \(49\.9 %\)\."),
        (-0.05, r"b \(−\d\.\d points \[−\d\.\d, −\d\.\d\]\) is worse than a \(49\.9 %\)\."),
        (
            0.0,
            r"no difference from a \(49\.9 %\) is seen for b \([+−]\d\.\d+ points \[−\d\.\d+, \+\d\.\d+\]\)\.",
        ),
    ],
)
def test_two_runs_of_one_world_are_compared_by_client(tmp_path: Path, shift: float, clause: str) -> None:
    first = run_of(tmp_path / "a", accuracy())
    texts = said(first, run_of(tmp_path / "b", accuracy(shift, seed=1)))
    assert re.fullmatch(f"In mean accuracy, {clause}", texts["accuracy"])
    assert texts["worst-off clients"].startswith("For the worst 10 % of clients (4 of 40), ")
    verdict = {0.05: "better than a", -0.05: "worse than a", 0.0: "no difference from a"}[shift]
    assert verdict in texts["worst-off clients"]
    assert "All of this is one seed (3): " in texts["doubts"]
    assert "corrected for 4 comparisons" in texts["doubts"], "two metrics, and two groups of clients"
    assert "worlds" not in texts["doubts"]


def test_equal_runs_are_not_told_apart(tmp_path: Path) -> None:
    texts = said(run_of(tmp_path / "a", accuracy()), run_of(tmp_path / "b", accuracy()))
    tie = "is seen for b (+0.0 points [+0.0, +0.0])."
    assert texts["accuracy"].endswith(tie)
    assert texts["worst-off clients"].endswith(tie)


def test_each_of_several_runs_gets_its_own_verdict(tmp_path: Path) -> None:
    shifts = {"a": 0.0, "up": 0.05, "same": 0.0, "down": -0.05}
    folders = [run_of(tmp_path / n, accuracy(s, seed=i)) for i, (n, s) in enumerate(shifts.items())]
    text = said(*folders)["accuracy"]
    better, worse, unseen = text.split("; ")
    assert better.startswith("In mean accuracy, up (")
    assert better.count("than a (") == 1
    assert worse.startswith("down (")
    assert worse.endswith("is worse than a")
    assert unseen.startswith("no difference from a is seen for same (")


def test_one_run_alone_is_described_by_its_numbers(tmp_path: Path) -> None:
    values = np.where(np.arange(K) < K // 4, 0.2, 0.6) + np.tile([0.0, 0.01], K // 2)
    jobs = jobs_table(
        client=np.arange(8),
        dispatch_us=np.zeros(8),
        end_us=np.full(8, 10 * US),
        status=["aggregated"] * 5 + ["lost", "late", "unfinished"],
    )
    steps = steps_table(time_us=np.arange(4), status=["applied", "applied", "applied", "empty"])
    texts = said(run_of(tmp_path / "a", values, tables={"jobs": jobs, "steps": steps}))
    assert re.fullmatch(r"a ends at a mean accuracy of 50\.5 % \[\d.*\] over 40 clients\.", texts["accuracy"])
    worst = "Its worst 10 % (4 of 40 clients) end at 20.0 %, 30.5 points below the mean."
    assert texts["worst-off clients"] == worst
    assert texts["participation"].startswith(
        "The 10 of 40 clients least online end below the others with a (−40.0 "
    )
    assert texts["lost work"] == (
        "Clients lost 1 of 8 jobs (12.5 %); 1 of 8 jobs (12.5 %) came too late for their step;"
        " 1 of 4 steps (25.0 %) had no update to use; 28.6 % of the clients' device time was wasted."
    )
    assert "corrected for 2 comparisons" in texts["doubts"]


def test_updates_of_rounds_with_too_few_are_not_called_late(tmp_path: Path) -> None:
    status = ["aggregated"] * 4 + ["void"] * 3 + ["late"]
    jobs = jobs_table(dispatch_us=np.zeros(8), end_us=np.full(8, 5), status=status)
    steps = steps_table(time_us=np.arange(4), status=["applied", "void", "void", "empty"])
    text = said(run_of(tmp_path / "a", accuracy(), tables={"jobs": jobs, "steps": steps}))["lost work"]
    assert "1 of 8 jobs (12.5 %) came too late for their step" in text
    assert "3 of 8 jobs (37.5 %) came in time for a step with too few updates" in text
    assert "1 of 4 steps (25.0 %) had no update to use" in text
    assert "2 of 4 steps (50.0 %) had fewer updates than the minimum" in text


def test_losses_of_runs_are_told_as_a_range(tmp_path: Path) -> None:
    def jobs(lost: int) -> dict[str, pa.Table]:
        status = ["lost"] * lost + ["aggregated"] * (10 - lost)
        return {"jobs": jobs_table(dispatch_us=np.zeros(10), end_us=np.full(10, 5), status=status)}

    folders = [run_of(tmp_path / f"r{n}", accuracy(), tables=jobs(n)) for n in (2, 0, 3)]
    expected = "0.0 % (r0) to 30.0 % (r3) of the"
    text = said(*folders)["lost work"]
    assert text == f"Clients lost {expected} jobs; {expected} clients' device time was wasted."
    assert said(run_of(tmp_path / "x", accuracy(), tables=jobs(0)))["lost work"] == "No job was lost."


def test_clients_that_were_always_online_are_grouped_by_the_use_of_their_updates(tmp_path: Path) -> None:
    jobs = jobs_table(client=np.arange(20, K), dispatch_us=np.zeros(20), end_us=np.ones(20))
    folder = run_of(tmp_path / "a", np.where(np.arange(K) < 20, 0.5, 0.8), tables={"jobs": jobs}, world=False)
    start = "The 20 of 40 clients whose updates were used least end below the others with a (−30.0 points"
    assert said(folder)["participation"].startswith(start)


@pytest.mark.parametrize(
    ("updates", "clients", "told"), [(120, 37, True), (119, 37, False), (120, 40, False)]
)
def test_clients_without_a_part_are_counted_if_chance_does_not_explain_them(
    updates: int, clients: int, told: bool, tmp_path: Path
) -> None:
    jobs = jobs_table(
        client=np.arange(updates) % clients, dispatch_us=np.zeros(updates), end_us=np.ones(updates)
    )
    folders = [run_of(tmp_path / name, accuracy(), tables={"jobs": jobs}) for name in "ab"]
    for folder in folders:
        file = folder / "config.resolved.toml"
        file.write_text(f"{file.read_text()}\n[task]\nclients = {K}\n")
    clause = "a and b used no update of 3 of the 40 clients"
    assert (clause in said(*folders)["doubts"]) == told


def test_a_failed_run_is_named_and_the_others_are_compared(tmp_path: Path) -> None:
    failed = run_of(tmp_path / "bad", status="failed", error="no luck")
    texts = said(failed, run_of(tmp_path / "a", accuracy()), run_of(tmp_path / "b", accuracy(0.05, seed=1)))
    assert "is better than a (" in texts["accuracy"]
    assert "bad is not complete (failed: no luck)" in texts["doubts"]
    assert "bad was never evaluated on the test split" in texts["doubts"]
    alone = said(failed)
    assert alone["accuracy"] == "No run was evaluated, so nothing can be said about accuracy."
    assert alone["lost work"] == "No job was recorded."


def test_runs_with_other_seeds_clients_or_worlds_are_not_taken_for_equal(tmp_path: Path) -> None:
    first = run_of(tmp_path / "a", accuracy())
    texts = said(
        first, run_of(tmp_path / "b", accuracy(0.05), seed=4), run_of(tmp_path / "c", accuracy()[:20])
    )
    assert texts["accuracy"].startswith("a ends at a mean accuracy of")
    assert "b has another seed than a and is not compared" in texts["doubts"]
    assert "c was not evaluated on the clients of a and is not compared" in texts["doubts"]
    bare = run_of(tmp_path / "bare", accuracy(seed=1), world=False)
    assert "unknown whether the compared runs had the same world" in said(first, bare)["doubts"]
    pq.write_table(world_table([(0, 0, 5)], clients=K, horizon_us=HORIZON_US), bare / "world.parquet")
    assert "compared runs met different worlds" in said(first, bare)["doubts"]


NAN = np.full(K, np.nan)


@pytest.mark.filterwarnings("error")
def test_a_run_without_an_accuracy_is_not_compared(tmp_path: Path) -> None:
    lost = run_of(tmp_path / "lost", np.stack([accuracy(), *[NAN] * 6]))
    first = run_of(tmp_path / "a", accuracy())
    texts = said(lost, first, run_of(tmp_path / "b", np.stack([NAN, *[accuracy(0.05)] * 5])))
    assert "is better than a (" in texts["accuracy"]
    assert "lost has no accuracy and is not compared" in texts["doubts"]
    assert texts["participation"].startswith(
        "The 10 of 40 clients least online end below the others with a ("
    )
    assert "lost" not in texts["participation"]
    assert said(first, lost)["accuracy"].startswith("a ends at a mean accuracy of ")
    for folders in ((lost,), (lost, run_of(tmp_path / "lost too", NAN))):
        text = said(*folders)["accuracy"]
        assert text == "No run has an accuracy, so nothing can be said about accuracy."


def test_a_difference_within_the_noise_of_evaluations_is_doubted(tmp_path: Path) -> None:
    def restless(shift: float, swing: float, seed: int) -> np.ndarray:
        return np.stack([accuracy(shift + swing * (i % 2), seed=seed) for i in range(9)])

    for swing in (0.1, 0.0):
        root = tmp_path / str(swing)
        texts = said(run_of(root / "a", restless(0, swing, 0)), run_of(root / "b", restless(0.05, swing, 1)))
        assert "is better than a" in texts["accuracy"]
        assert ("mean accuracy still moves by 10.0 points from" in texts["doubts"]) == (swing > 0)


@pytest.mark.parametrize("lifted", [True, False])
def test_a_worst_tenth_that_one_evaluation_lifts_is_doubted(tmp_path: Path, lifted: bool) -> None:
    """Of the last evaluations only the final one differs, so that the median change is 0."""

    def rows(worst: list[float], seed: int = 0) -> np.ndarray:
        others = 0.2 + accuracy(seed=seed)[12:]
        return np.stack([np.concatenate([np.full(12, each), others]) for each in worst])

    before = 0.1 if lifted else 0.3
    first = run_of(tmp_path / "a", rows([before] * 8 + [0.3]))
    texts = said(first, run_of(tmp_path / "b", rows([0.1] * 9, seed=1)))
    assert "b (−20.0 points" in texts["worst-off clients"]
    assert "worse than a (30.0 %)" in texts["worst-off clients"]
    doubt = "the difference of b for the worst 10 % is within the noise floor: their accuracy still moves by up to 20.0"
    assert (doubt in texts["doubts"]) == lifted


@pytest.mark.parametrize(
    ("manifest", "clause"),
    [
        ({"virtual_us": 3 * HORIZON_US}, "a ran for 6 h in a world of 2 h"),
        ({"ended_by": "wall"}, "a was ended by the wall clock"),
        ({"ended_by": "world"}, "a ended early, when nothing more could happen"),
        ({"device": "cuda"}, "a was computed on cuda, and its digest holds on that kind of device only"),
        ({"resumed": [{"step": 1, "changed": {"torch": "2"}}]}, "a was resumed with other versions"),
        ({"warning": "no usable update"}, "a says nothing about learning (no usable update)"),
        ({"status": "interrupted"}, "a is not complete (interrupted)"),
    ],
)
def test_what_the_manifest_says_against_a_run_is_passed_on(
    tmp_path: Path, manifest: dict[str, Any], clause: str
) -> None:
    assert clause in said(run_of(tmp_path / "a", accuracy(), **manifest))["doubts"]


def test_extreme_weights_and_updates_left_out_are_counted(tmp_path: Path) -> None:
    steps = steps_table(time_us=np.arange(5), max_weight=[0.5, 2e4, np.nan, 1e4, 3e7])
    jobs = jobs_table(
        dispatch_us=np.zeros(3), end_us=np.ones(3), status=["aggregated", "nonfinite", "nonfinite"]
    )
    doubts = said(run_of(tmp_path / "a", accuracy(), tables={"steps": steps, "jobs": jobs}))["doubts"]
    assert "a has a weight above 10,000 in 2 of 5 steps" in doubts
    assert "a left out 2 updates that were not finite or too long" in doubts
    folders = [run_of(tmp_path / f"m{i}", accuracy(), tables={"steps": steps}) for i in range(5)]
    assert "5 of 5 runs have steps with a weight above 10,000" in said(*folders)["doubts"]


@pytest.mark.parametrize(
    ("table", "attacked"),
    [
        ({}, True),
        ({"after": 1.0}, False),
        ({"until": 0.1}, True),
        ({"after": 0.2, "until": 0.9}, False),
        ({"steps": [0, 1]}, True),
        ({"steps": [1, 9]}, False),
    ],
)
def test_an_adversary_without_a_job_in_its_time_is_told(
    table: dict[str, float], attacked: bool, tmp_path: Path
) -> None:
    """Its clients 3 and 4 have one job, at the start; 0 and 1 have others."""
    jobs = jobs_table(
        client=np.array([3, 0, 1]),
        version=np.arange(3),
        dispatch_us=np.arange(3) * US,
        end_us=np.full(3, 3 * US),
    )
    folder = run_of(
        tmp_path / "a", accuracy(), tables={"jobs": jobs}, adversaries=[{"name": "zero", "clients": [3, 4]}]
    )
    file = folder / "config.resolved.toml"
    file.write_text(f"{file.read_text()}\n{tomli_w.dumps({'adversary': {'name': 'zero'} | table})}")
    assert (
        "a was not attacked: no client of zero had a job in its time" in said(folder)["doubts"]
    ) != attacked


def test_groups_of_several_sizes_are_told_with_their_range() -> None:
    gap = Contrast("a", -3.0, (-5.0, -1.0), seeds=5)
    text = participation_sentence([gap], "availability", {(6, 9), (7, 10)})
    assert text.startswith("The 6 to 7 of 9 to 10 clients least online end below the others with a (")
    assert (
        "the 6 to 7 of 12 clients"
        in participation_sentence([gap], "availability", {(6, 12), (7, 12)}).lower()
    )


def test_runs_without_an_accuracy_and_updates_left_out_are_counted_apart(tmp_path: Path) -> None:
    left_out = {"jobs": jobs_table(dispatch_us=np.zeros(1), end_us=np.ones(1), status=["nonfinite"])}
    folders = [run_of(tmp_path / f"w{i}", accuracy(), warning="accuracy is no number") for i in range(4)]
    folders += [run_of(tmp_path / f"m{i}", accuracy(), tables=left_out) for i in range(5)]
    doubts = said(*folders)["doubts"]
    assert "4 of 9 runs say nothing about learning" in doubts
    assert "5 of 9 runs left out updates that were not finite or too long" in doubts


def test_runs_that_did_different_amounts_of_work_are_doubted(tmp_path: Path) -> None:
    def ended(name: str, hours: int, steps: int) -> Path:
        table = {"steps": steps_table(time_us=np.arange(steps))}
        return run_of(tmp_path / name, accuracy(), tables=table, virtual_us=hours * 3600 * US)

    one = ended("one", 1, 10)
    assert "end after 1 h to 2 h and 10 to 20 steps" in said(one, ended("both", 2, 20))["doubts"]
    for same in (ended("time", 1, 20), ended("steps", 2, 10)):
        assert "end after" not in said(one, same)["doubts"]


def test_findings_need_a_run() -> None:
    with pytest.raises(FolderError, match="at least one run"):
        analysis.findings([])


def study_of(folder: Path, shift: Mapping[str, float], seeds: int, spread: float = 0.002) -> Study:
    """Write a study whose levels differ from `base` by `shift` in mean accuracy, with noise over seeds."""

    def made(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table] | None:
        level = levels["rule"]
        rng = np.random.default_rng([seed, *map(ord, level)])
        noise = 0 if not spread else rng.normal(0, spread)
        jobs = jobs_table(client=np.arange(30, K), dispatch_us=np.zeros(10), end_us=np.ones(10))
        return {"evals": evals_table(accuracy(seed=seed)[None] + shift.get(level, 0.0) + noise), "jobs": jobs}

    return write_study(folder, made, axes={"rule": ["base", *shift]}, seeds=list(range(1, seeds + 1)))


def told(study: Study) -> dict[str, str]:
    found = analysis.findings(study)
    assert 3 <= len(found) <= 5
    return {each.topic: each.text for each in found}


def test_a_study_with_many_seeds_tells_both_signs(tmp_path: Path) -> None:
    texts = told(study_of(tmp_path / "s", {"up": 0.05, "down": -0.05}, 12))
    better, worse = texts["accuracy"].split("; ")
    assert re.fullmatch(
        r"In mean accuracy, up \(\+\d\.\d points \[\+\d\.\d, \+\d\.\d\]\) is better than base \(.*\)", better
    )
    assert re.fullmatch(r"down \(−\d\.\d points \[−\d\.\d, −\d\.\d\]\) is worse than base\.", worse)
    assert "up (" in texts["worst-off clients"]
    assert "is worse than base" in texts["worst-off clients"]
    assert "too few" not in texts["doubts"]
    assert "one seed" not in texts["doubts"]


def test_the_largest_of_many_differences_are_named(tmp_path: Path) -> None:
    shift = {"a": 0.02, "b": -0.01, "c": 0.05, "d": 0.03, "e": 0.04}
    text = told(study_of(tmp_path / "s", shift, 12))["accuracy"]
    names = r"c \(\S+ points .*\), e \(\S+ points .*\), d \(\S+ points .*\) and 1 more"
    assert re.match(rf"In mean accuracy, {names} are better than base \(.*; b \(", text)


@pytest.mark.parametrize(
    ("seeds", "claim", "why"),
    [
        (1, "no difference from base ", "no interval from 1 seed"),
        (2, "no difference from base ", "no interval from 2 seeds"),
        (5, "the rank test does not confirm the difference from base ", " points [+"),
    ],
)
def test_few_seeds_claim_nothing_however_large_the_difference(
    tmp_path: Path, seeds: int, claim: str, why: str
) -> None:
    texts = told(study_of(tmp_path / "s", {"up": 0.05}, seeds))
    assert claim in texts["accuracy"]
    assert why in texts["accuracy"]
    assert "better" not in texts["accuracy"]
    assert re.search(
        rf"{seeds} seeds? (is|are) too few for that whatever the difference: it takes 8", texts["doubts"]
    )


def test_nothing_compared_and_nothing_in_doubt_is_no_finding(tmp_path: Path) -> None:
    """Of one rule, where every client takes part alike."""

    def made(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table]:
        jobs = jobs_table(client=np.arange(K), dispatch_us=np.zeros(K), end_us=np.ones(K))
        return {"evals": evals_table(accuracy(0.0, seed)[None]), "jobs": jobs}

    found = analysis.findings(write_study(tmp_path / "s", made, axes={}, seeds=(1, 2)))
    assert [each.topic for each in found] == ["accuracy", "lost work"]
    assert "nothing to compare" in found[0].text


@pytest.mark.parametrize(("n", "it_takes"), [(1, True), (5, True), (6, False)])
def test_too_few_seeds_are_told_where_participation_alone_is_compared(
    tmp_path: Path, n: int, it_takes: bool
) -> None:
    """One comparison takes six seeds, since `2^(1 - 6)` is the first below 5 %."""
    texts = told(study_of(tmp_path / "s", {}, n))
    assert "participation" in texts
    intervals = (
        "Brackets are 95 % intervals of Student's t over seeds" if n > 2 else f"{n} seed gives no interval"
    )
    assert texts["doubts"].startswith(f"{intervals}, and better or worse")
    assert ("too few for that whatever the difference: it takes 6" in texts["doubts"]) == it_takes


def test_each_level_is_told_with_its_own_seeds(tmp_path: Path) -> None:
    """Of `late` two of twelve seeds are done, of `last` one, so the levels meet different runs of the baseline."""
    done = {"base": 12, "up": 12, "late": 2, "last": 1}

    def made(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table] | None:
        level = levels["rule"]
        if seed > done[level]:
            return None
        jobs = jobs_table(client=np.arange(10, K), dispatch_us=np.zeros(30), end_us=np.ones(30))
        shift = 0.0 if level == "base" else 0.05
        return {"evals": evals_table(accuracy(shift, seed)[None] + 0.001 * seed * shift), "jobs": jobs}

    study = write_study(tmp_path / "s", made, axes={"rule": list(done)}, seeds=range(1, 13))
    texts = told(study)
    better, unseen = texts["accuracy"].split("; ")
    assert re.fullmatch(r"In mean accuracy, up \(\+5\.\d+ points \[.*\]\) is better than base", better)
    for text in (unseen, texts["participation"]):
        assert re.search(r"late \([+−]\d+\.\d+ points, no interval from 2 seeds\)", text)
    assert re.search(r"last \(\+5\.\d points, no interval from 1 seed\)", unseen)
    same = told(study_of(tmp_path / "same", {"up": 0.05, "down": -0.05}, 12))
    assert re.search(r"better than base \(\d\d\.\d %\); down", same["accuracy"])


def test_with_a_t_test_five_seeds_can_tell(tmp_path: Path) -> None:
    texts = told(study_of(tmp_path / "s", {"up": 0.05}, 5).asked({"test": "t"}))
    assert texts["accuracy"].startswith("In mean accuracy, up (+")
    assert "is better than base" in texts["accuracy"]
    assert "and better or worse takes one that leaves out 0" in texts["doubts"]
    assert "rank" not in texts["doubts"]
    assert "too few" not in texts["doubts"]


def test_ties_and_noise_of_a_study_are_no_difference(tmp_path: Path) -> None:
    tie = told(study_of(tmp_path / "tie", {"same": 0.0}, 12, spread=0.0))["accuracy"]
    assert tie.endswith("is seen for same (+0.0 points [+0.0, +0.0]).")
    noise = told(study_of(tmp_path / "noise", {"same": 0.0}, 12, spread=0.05))["accuracy"]
    assert "no difference from base" in noise


def test_cells_that_failed_are_counted(tmp_path: Path) -> None:
    def made(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table] | None:
        return (
            None if seed == 2 and levels["rule"] == "b" else {"evals": evals_table(accuracy(seed=seed)[None])}
        )

    texts = told(write_study(tmp_path / "s", made, axes={"rule": ["a", "b"]}, seeds=[1, 2, 3]))
    assert "1 of 6 runs is failed and left out" in texts["doubts"]
    none = write_study(tmp_path / "n", lambda levels, seed: None, axes={"rule": ["a", "b"]}, seeds=[1])
    text = {each.topic: each.text for each in analysis.findings(none)}
    assert text["accuracy"] == "No run of the study is done, so nothing can be said about accuracy."


def test_levels_are_told_where_nothing_is_compared(tmp_path: Path) -> None:
    study = study_of(tmp_path / "s", {}, 2)
    assert re.search(
        r"the runs end at \d\d\.\d % \(base, 2 seeds\); there is nothing to compare\.",
        told(study)["accuracy"],
    )


def test_seeds_without_an_accuracy_are_not_counted(tmp_path: Path) -> None:
    def study_without(seeds: set[int]) -> Study:
        def made(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table]:
            return {"evals": evals_table((NAN if seed in seeds else accuracy(seed=seed))[None])}

        return write_study(tmp_path / f"without {len(seeds)}", made, axes={"rule": ["a"]}, seeds=[1, 2, 3])

    for seeds, text in (
        ({2}, " % (a, 2 seeds); there is nothing"),
        ({1, 2, 3}, "No run of the study has an"),
    ):
        assert text in told(study_without(seeds))["accuracy"]


def test_a_study_says_what_it_was_asked_and_where(tmp_path: Path) -> None:
    study = study_of(tmp_path / "s", {"up": 0.05}, 10)
    asked = study.asked({"metrics": ["angle_rad"], "at": ["steps"], "group": "used"})
    texts = told(asked)
    assert texts["accuracy"].startswith("In angle after equal steps, ")
    assert " rad [" in texts["accuracy"]
    assert texts["participation"].startswith(
        "The 30 of 40 clients whose updates were used least end below the others"
    )


def evals_of(**accuracy_of: np.ndarray) -> pa.Table:
    return pa.concat_tables([evals_table(values[None], split=split) for split, values in accuracy_of.items()])


def test_participation_in_a_study_is_told_of_the_split_that_it_compares(tmp_path: Path) -> None:
    """The ten clients without a job are the worst of the test split, and the best of the train split."""

    def made(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table]:
        worst = np.where(np.arange(K) < 10, 0.2, 0.6) + 0.001 * seed
        jobs = jobs_table(client=np.arange(10, K), dispatch_us=np.zeros(30), end_us=np.ones(30))
        return {"evals": evals_of(test=worst, train=1 - worst), "jobs": jobs}

    study = write_study(tmp_path / "s", made, axes={"rule": ["a", "b"]}, seeds=range(1, 13))
    who = "10 of 40 clients whose updates were used least"
    assert told(study)["participation"].startswith(f"The {who} end below the others with ")
    asked = told(study.asked({"split": "train"}))
    assert asked["accuracy"].startswith("In mean accuracy on the train split, ")
    assert asked["participation"].startswith(f"On the train split, the {who} end above the others with ")


def test_clients_that_never_train_have_no_sentence_on_participation(tmp_path: Path) -> None:
    def made(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table]:
        unseen = evals_table(accuracy(seed=seed)[None], split="unseen")
        away = unseen.set_column(2, "client", pa.array(np.arange(K, 2 * K), pa.int32()))
        seen = evals_table(accuracy(seed=seed)[None])
        jobs = jobs_table(client=np.arange(30), dispatch_us=np.zeros(30), end_us=np.ones(30))
        return {"evals": pa.concat_tables([seen, away]), "jobs": jobs}

    study = write_study(tmp_path / "s", made, axes={"rule": ["a", "b"]}, seeds=[1, 2, 3])
    assert "participation" in told(study)
    assert "participation" not in told(study.asked({"split": "unseen"}))


def test_every_key_of_a_bare_manifest_may_be_missing(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "a", accuracy(), world=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({"status": manifest["status"]}))
    assert "All of this is one seed: " in said(folder)["doubts"]


def test_late_and_stale_updates_are_told_apart(tmp_path: Path) -> None:
    """A buffered server has no step for which an update could be late."""
    status = ["aggregated"] * 6 + ["stale"] * 3 + ["remembered"]
    ends = np.arange(1, 11) * US
    jobs = jobs_table(dispatch_us=ends - US, end_us=ends, status=np.array(status))
    run = analysis.open_run(run_of(tmp_path / "buffered", accuracy(), tables={"jobs": jobs}))
    said = lost_work({"buffered": work_of(run)})
    assert said == (
        "No job was lost; 1 of 10 jobs (10.0 %) came too late for their step; 3 of 10 jobs (30.0 %) were too stale to "
        "use; 30.0 % of the clients' device time was wasted."
    )

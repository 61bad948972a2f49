"""Importers of constant speeds: speed tests and training times."""

import json
from pathlib import Path

import pytest

import inputs
from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.units import US
from fedsim.worlds.importer import import_trace
from trace_files import DAY_S, imported, notes, speeds

# Speed tests


def test_lines_of_mlab_are_clients_with_numbers_from_texts(tmp_path: Path) -> None:
    tests = [
        {"date": "2022-06-02", "dl_mbps": "8.0", "ul_mbps": "0.42095"},
        {"date": "2022-06-03", "dl_mbps": "16", "ul_mbps": "0"},
        {"date": "2022-06-04", "dl_mbps": "24", "ul_mbps": "0.8"},
    ]
    files = {"x.json": json.dumps(tests)}
    trace = imported(tmp_path, files, None)
    assert speeds(trace, "downlink") == [(0, 0.0, DAY_S, 1e6), (1, 0.0, DAY_S, 3e6)]
    assert [v for *_, v in speeds(trace, "uplink")] == pytest.approx([52618.75, 1e5])
    assert trace.about.to_pylist() == [{"id": "0", "date": "2022-06-02"}, {"id": "2", "date": "2022-06-04"}]
    assert (notes(trace)["tests_left_out_with_speed_0"], notes(trace)["suspicious_uploads"]) == (1, 1)
    kept = imported(tmp_path, files, "mlab", drop_suspicious=True)
    assert kept.about["id"].to_pylist() == ["2"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ([{"dl_mbps": "1"}], "x.json, entry 0: expected a key 'ul_mbps'"),
        ([{"dl_mbps": "a", "ul_mbps": "1"}], "entry 0, dl_mbps: expected a number"),
        ([{"dl_mbps": "1", "ul_mbps": "1", "date": 5}], "entry 0, date: expected str, found 5"),
        ({"dl_mbps": "1"}, "x.json: expected list"),
        ([], "expected tests with speeds above 0, found none"),
    ],
)
def test_wrong_lists_of_tests_are_refused(tmp_path: Path, content: object, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        imported(tmp_path, {"x.json": json.dumps(content)}, "mlab")


def test_tests_of_phones_keep_latency_radio_and_model(tmp_path: Path) -> None:
    text = (
        "Date,downlink_Mbps,uplink_Mbps,latency_ms,UE_model,radio_type,UE_Server_distance_km,UE_location\n"
        '"01/13/2021, 10:22 PM",8,0.8,27,S20,5G-NSA-mmWave,,"Minneapolis, MN"\n'
        '"01/13/2021, 10:23 PM",0,0.8,27,S20,4G-LTE,,\n'
        '"01/14/2021, 12:23 AM",16,1.6,30,S21,4G-LTE,2.5,\n'
    )
    trace = imported(tmp_path, {"o.csv": text}, None)
    assert speeds(trace, "downlink") == [(0, 0.0, DAY_S, 1e6), (1, 0.0, DAY_S, 2e6)]
    assert speeds(trace, "uplink") == [(0, 0.0, DAY_S, 1e5), (1, 0.0, DAY_S, 2e5)]
    assert trace.about.drop_columns(["location"]).to_pylist() == [
        {
            "id": "0",
            "date": "2021-01-13T22:22:00",
            "latency_ms": 27.0,
            "radio_type": "5G-NSA-mmWave",
            "model": "S20",
            "server_distance_km": None,
        },
        {
            "id": "2",
            "date": "2021-01-14T00:23:00",
            "latency_ms": 30.0,
            "radio_type": "4G-LTE",
            "model": "S21",
            "server_distance_km": 2.5,
        },
    ]
    with pytest.raises(TraceError, match="line 2, downlink_Mbps: expected a number from 0"):
        imported(tmp_path, {"o.csv": "downlink_Mbps,uplink_Mbps\n-1,1\n"}, "ookla")
    with pytest.raises(TraceError, match="line 2, Date: expected a time like"):
        imported(tmp_path, {"o.csv": "Date,downlink_Mbps,uplink_Mbps\nnow,1,1\n"}, "ookla")


# MNN

TIMES = ",batchsize,expr_train,expr_infer,session_infer\n1,1,8,1,nan\n2,4,16,2,0.5\n3,8,nan,2,0.5\n"
TABLE = "S_Freq_1/processed_data/Lenet/time_table_Lenet.csv"


def test_training_times_are_seconds_a_sample_at_the_batch_size(tmp_path: Path) -> None:
    trace = imported(tmp_path, {TABLE: TIMES}, None, batch=4)
    assert speeds(trace, "compute") == [(0, 0.0, DAY_S, 0.004)]
    facts = trace.about.to_pylist()[0]
    assert (facts["network"], facts["setting"]) == ("Lenet", "S_Freq_1")
    assert (facts["train_ms_batch_1"], facts["session_infer_ms_batch_4"]) == (8.0, 0.5)
    assert "session_infer_ms_batch_1" not in facts
    assert notes(trace)["missing_times"] == 2
    for batch in (2, 8):
        with pytest.raises(
            TraceError, match=f"expected a training time at batch size {batch}, found some for 1, 4"
        ):
            imported(tmp_path, {TABLE: TIMES}, "mnn", batch=batch)


def test_clocks_are_a_training_time_that_changes(tmp_path: Path) -> None:
    text = ",stamp,temperature,cpu0,cpu1\n1,0,247,1000,3000\n2,1000,247,4000,4000\n"
    trace = imported(tmp_path, {"f.csv": text}, None, sample_ms=10.0, reference_khz=2000.0, cores=[0, 1])
    assert speeds(trace, "compute") == [(0, 0.0, 1.0, 0.01), (0, 1.0, 2.0, 0.005)]
    assert trace.periods["compute"].tolist() == [2 * US]
    with pytest.raises(TraceError, match="expected a column 'cpu2'"):
        imported(tmp_path, {"f.csv": text}, "mnn")
    with pytest.raises(ConfigError, match="option 'cores': expected different numbers"):
        imported(tmp_path, {"f.csv": text}, "mnn", cores=[1, 1])


def test_energy_adds_facts_to_time_tables_and_is_no_trace_alone(tmp_path: Path) -> None:
    energy = {"singleBatch_energy_S_Freq_1.csv": ",Lenet,Alexnet\n1,0.5,2\n4,nan,3\n"}
    log = {"S_Freq_1/bench_session.result": "Processor\t: some\n"}
    trace = imported(tmp_path, {TABLE: TIMES} | energy | log, None)
    assert trace.about["joule_a_batch_at_1"].to_pylist() == [0.5]
    assert (trace.clients, notes(trace)["passed_over_log_files"]) == (1, 1)
    with pytest.raises(TraceError, match=r"singleBatch_energy_S_Freq_1.csv: not a trace: joules"):
        imported(tmp_path, energy, None)
    with pytest.raises(TraceError, match=r"bench_session.result: not a trace: the raw log"):
        imported(tmp_path, log, None)


# The published files


@pytest.mark.parametrize(
    ("folder", "name", "clients", "rows"),
    [
        ("network-mlab-ndt", "mlab", 10_000, {"downlink": 10_000, "uplink": 10_000}),
        ("network-ookla-phones", "ookla", 8_819, {"downlink": 8_819, "uplink": 8_819}),
        ("ondevice-training-mnn", "mnn", 9, {"compute": 155}),
    ],
)
def test_the_published_tables_are_recognised_and_read(
    folder: str, name: str, clients: int, rows: dict[str, int]
) -> None:
    trace = import_trace([inputs.trace(folder)])
    assert (notes(trace)["importer"], trace.clients) == (name, clients)
    assert {kind: len(trace.spans(kind).client) for kind in rows} == rows
    assert len(trace.spans("unknown").client) == clients

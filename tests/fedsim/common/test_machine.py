"""The cores that affinity and container leave to a process, and the GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedsim.common import machine
from fedsim.records.environment import hardware

QUOTAS: dict[str, tuple[dict[str, str], int]] = {
    "nothing said": ({}, 8),
    "two and a half": ({"cpu.max": "250000 100000\n"}, 3),
    "a tenth": ({"cpu.max": "10000 100000\n"}, 1),
    "more than there are": ({"cpu.max": "3200000 100000\n"}, 8),
    "no limit": ({"cpu.max": "max 100000\n"}, 8),
    "first version": ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
    "first version, no limit": ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    "what nobody understands": ({"cpu.max": "much\n", "cpu/cpu.cfs_quota_us": "\n"}, 8),
    "no period": ({"cpu.max": "100000 0\n"}, 8),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_a_cpu_quota_limits_the_cores(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, expected = QUOTAS[case]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert machine.cores() == expected


def test_affinity_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert machine.cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cores() == 1


def test_hardware_is_described_without_a_gpu_in_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert hardware("cuda")["gpu"] is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert hardware("cuda")["gpu"] == "a GPU"
    assert hardware("cpu")["gpu"] is None

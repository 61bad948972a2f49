"""A cluster of several nodes, joined with its token: the same results, also when one of the nodes is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from small import run, small

pytestmark = [pytest.mark.ray, pytest.mark.slow]
TOKEN = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
    "RAY_health_check_period_ms": "1000",  # that a node is lost is known sooner
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_prestart_worker_first_driver": "0",  # none of these could be used: workers bring packages of their own
}
CHANGES = {"pacing": {"preset": "fedbuff", "concurrency": 6, "buffer": 3}, "stop": {"steps": 100}}
DRIVER = f"""
import sys
sys.path.insert(0, "tests/helpers")
from pathlib import Path
from fedsim.execution.actor_pool import RayPool
from fedsim.runs.simulate import simulate
from small import small

with RayPool("auto", gpus=True, address=sys.argv[1]) as pool:
    print(pool.workers, flush=True)
    result = simulate(
        small(**{CHANGES!r}), out=Path(sys.argv[2]), workers=pool, force=True, device="cpu",
        watch=lambda progress: print("step", flush=True),
    )
    import ray
    left = ray.available_resources().get("GPU", 0)
    assert abs(left - 1.02) < 1e-3, f"{{left}} of the 4 GPUs that are left: 3 workers take 0.99, the server 0.01"
print(result[0].digest)
"""


@pytest.fixture
def nodes(root: Path) -> Iterator[subprocess.Popen[str]]:
    """The process of `nodes.py`; the GPUs of its nodes are not there, and nothing computes on them."""
    with subprocess.Popen(
        [sys.executable, str(root / "tests" / "chaos" / "nodes.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | TOKEN,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def test_results_come_home_though_a_node_is_lost(
    nodes: subprocess.Popen[str], root: Path, tmp_path: Path
) -> None:
    assert nodes.stdin is not None
    assert nodes.stdout is not None
    address = nodes.stdout.readline().strip()
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, address, str(tmp_path / "away")],
        stdout=subprocess.PIPE,
        env=os.environ | TOKEN,
        cwd=root,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        lines = iter(driver.stdout)
        assert next(lines).strip() == "3", "one worker per CPU of the nodes"
        for _ in range(8):
            next(lines)
        nodes.stdin.write("lose\n")
        nodes.stdin.flush()
        assert nodes.stdout.readline().strip() == "lost"
        *_, digest = lines
    assert digest.strip() == run(small(**CHANGES), tmp_path / "here").digest
    assert (tmp_path / "away" / "small" / "jobs.parquet").is_file()

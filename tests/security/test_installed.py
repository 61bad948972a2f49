"""SECURITY.md, promises 7 and 8: Ray listens to this machine, packages have known licences and weaknesses."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fedsim import plugins

NOT_COPYLEFT = {"certifi"}
"""Packages under the MPL 2.0, whose terms hold for their own files alone."""


def requirements(name: str, found: dict[str, metadata.PackageMetadata]) -> None:
    """Collect the metadata of a package and of all that it needs when it runs here."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    distribution = metadata.distribution(name)
    found[key] = distribution.metadata
    for line in distribution.requires or []:
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            requirements(needed.name, found)


def licence(package: metadata.PackageMetadata) -> str:
    """Return what a package says of its licence, without the text of the licence itself."""
    classifiers = [c for c in package.get_all("Classifier") or [] if c.startswith("License ::")]
    return " ".join(
        [package.get("License-Expression") or "", *classifiers, (package.get("License") or "")[:60]]
    )


def test_nothing_that_a_run_needs_is_under_the_gpl() -> None:
    found: dict[str, metadata.PackageMetadata] = {}
    requirements("fedsim-dynamics", found)
    assert len(found) > 30
    copyleft = re.compile(r"\b[AL]?GPL|GNU|Mozilla|\bMPL|EUPL|CC-BY-SA|SSPL", re.IGNORECASE)
    strict = {name for name, package in found.items() if copyleft.search(licence(package))}
    assert strict == NOT_COPYLEFT & found.keys()


def test_an_audit_tells_silence_from_innocence(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("audit", root / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    silent = {"dependencies": [{"name": "x", "skip_reason": "not found"}]}
    clean = {"name": "y", "version": "1.0", "vulns": []}
    weak = {"name": "z", "version": "2.0", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}
    assert audit.known(silent) == []
    assert audit.known({"dependencies": [clean, weak, *silent["dependencies"]]}) == [clean, weak]
    assert audit.weaknesses([clean]) == []
    assert audit.weaknesses([clean, weak]) == ["z 2.0: CVE-1, without it: 2.1"]


@pytest.mark.ray
def test_a_ray_of_our_own_listens_to_this_machine_alone() -> None:
    code = """
import os, psutil
os.environ["RAY_ADDRESS"] = "192.0.2.1:6379"  # of somebody else; there is none at this address
from fedsim.execution.cluster import connect
cluster = connect(None, 1)
mine = {p.pid for p in psutil.Process().children(recursive=True)} | {os.getpid()}
found = [c.laddr.ip for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.pid in mine]
print(os.environ["RAY_AUTH_MODE"], *sorted({ip.removeprefix("::ffff:") for ip in found}))
cluster.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["token", "127.0.0.1"]


def test_security_page_names_what_exists(root: Path) -> None:
    """Options, variables and files that the page names are there."""
    page = (root / "SECURITY.md").read_text()
    assert plugins.ONLY_SHIPPED in page
    for path in re.findall(r"`((?:fedsim|tests|scenarios|analysis)/[\w/.]+\.py)`", page):
        assert (root / path).is_file(), path

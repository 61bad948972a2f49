"""Ask an advisory service about every installed package; where none answers, say so and let the rest go on.

Exit codes: 0 nothing known against any package, or nobody to ask; 1 a package has a published weakness.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

SERVICES = ("osv", "pypi")
LONGEST_S = 300


def asked(service: str) -> list[dict[str, Any]]:
    """Return what a service says of the packages that it knows; nothing if it cannot be reached."""
    command = [sys.executable, "-m", "pip_audit", "-s", service, "-f", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, "--timeout", "10"], capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
        return known(json.loads(done.stdout))
    except (subprocess.TimeoutExpired, ValueError):
        return []


def known(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the packages of a report that were looked up: a mirror without advisories skips them all."""
    return [package for package in report["dependencies"] if "skip_reason" not in package]


def weaknesses(packages: list[dict[str, Any]]) -> list[str]:
    """Return a line for each published weakness: package, version, its number, and the versions without it."""
    return [
        f"{package['name']} {package['version']}: {found['id']}, "
        f"without it: {', '.join(found['fix_versions']) or 'no version yet'}"
        for package in packages
        for found in package["vulns"]
    ]


def main() -> int:
    """Ask one service after the other until one answers."""
    for service in SERVICES:
        if packages := asked(service):
            lines = weaknesses(packages)
            print("\n".join([*lines, f"audit: {len(packages)} packages, {len(lines)} published weaknesses"]))
            return 1 if lines else 0
    print("audit: no advisory service can be reached from here; nothing was checked")
    return 0


if __name__ == "__main__":
    sys.exit(main())

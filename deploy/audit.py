"""Ask for known vulnerabilities of the packages that a release installs, with pip-audit: `make audit`, before each release.

`make check` asks as well and prints what it finds, but does not fail: an advisory of today is no fault of the change that is
checked, and without the service nothing is known. The service is that of the package index that pip-audit asks.

Usage: python -m deploy.audit [--report]     exit 1: advisories, exit 2: not audited; with --report always 0
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.licenses import installed_packages
from deploy.locked_requirements import entries_of

ROOT = Path(__file__).resolve().parents[1]
# Advisories that do not concern this program: id -> why, and until when that holds. `make audit` prints them.
IGNORED: Mapping[str, str] = {}
TIMEOUT_S = 15  # of each connection


class NotAuditedError(Exception):
    """The service did not answer about a package; the message has why."""


def audit(names: list[str]) -> list[str]:
    """Return a line for each advisory about some packages of requirements.lock, without those that are ignored.

    Raises:
        NotAuditedError: There is no answer about one of them.
    """
    entries = entries_of((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join("\n".join(entries[name]) + "\n" for name in names))
        file.flush()
        command = [
            *(sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner=off"),
            *("--format=json", "--timeout", str(TIMEOUT_S), "--requirement", file.name),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError) as problem:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise NotAuditedError(f"pip-audit: {lines[-1][:300]}") from problem
    return advisories(found)


def advisories(found: list[dict[str, Any]]) -> list[str]:
    """Return a line for each advisory in the answer of pip-audit that is not ignored.

    Raises:
        NotAuditedError: A package was skipped. pip-audit itself calls that no known vulnerability.
    """
    if skipped := [f"{one['name']}: {one['skip_reason']}" for one in found if "skip_reason" in one]:
        raise NotAuditedError("; ".join(skipped))
    return [
        f"{one['name']} {one['version']}: {vulnerability['id']}, fixed in {', '.join(vulnerability['fix_versions']) or 'no version'}"
        for one in found
        for vulnerability in one["vulns"]
        if not {vulnerability["id"], *vulnerability.get("aliases", [])} & IGNORED.keys()
    ]


def main() -> int:
    """Return 1 if there are advisories, 2 if it is not known."""
    parser = argparse.ArgumentParser(prog="python -m deploy.audit")
    parser.add_argument("--report", action="store_true", help="print what is found, and return 0")
    report = parser.parse_args().report
    names = sorted(installed_packages())
    try:
        audit(names[:1])  # one request shows whether the service answers
        lines = audit(names)
    except NotAuditedError as why:
        print(f"NOT AUDITED, vulnerabilities are not known: {why}", file=sys.stderr)
        return 0 if report else 2
    for name, reason in IGNORED.items():
        print(f"ignored: {name}: {reason}")
    for line in lines:
        print(f"advisory: {line}", file=sys.stderr)
    print(f"audited: {len(names)} packages, {len(lines)} advisories")
    return 0 if report else int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())

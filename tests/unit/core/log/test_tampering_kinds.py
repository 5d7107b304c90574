"""Which findings are reported, and which are counted as what follows from another one."""

from __future__ import annotations

import re

import pytest

from extender.core.log.tampering import (
    ADVICE,
    COMPARED_WITH_THE_LOG,
    OF_THE_LOG,
    Findings,
    LogFinding,
)


def findings(*kinds_and_positions, most=100):
    made = Findings(most)
    for kind, position in kinds_and_positions:
        made.add(LogFinding(kind=kind, position=position, message="m"))
    return [(one.kind, one.position, dict(one.weaker)) for one in made.explained()]


def test_the_cause_stands_first_and_has_the_number_of_what_follows():
    placements = [("forged-projection", position) for position in range(10, 260)]
    found = findings(
        *placements, ("forged-snapshot", 12), ("forged-projection", 0), ("rewritten", 10)
    )
    assert found == [("rewritten", 10, {"forged-projection": 251, "forged-snapshot": 1})]


def test_what_is_before_the_cause_does_not_follow_from_it():
    found = findings(("forged-reference", 3), ("forged-reference", 9), ("hole", 5))
    assert found == [("hole", 5, {"forged-reference": 1}), ("forged-reference", 3, {})]


@pytest.mark.parametrize("kind", sorted({*ADVICE} - OF_THE_LOG - COMPARED_WITH_THE_LOG))
def test_what_is_not_compared_with_the_log_never_follows_from_it(kind):
    assert findings(("log-truncated", 0), (kind, 7)) == [("log-truncated", 0, {}), (kind, 7, {})]


def test_several_causes_are_all_reported_by_position():
    found = findings(("tail-deleted", 90), ("missing-input", 50), ("rewritten", 10))
    assert found == [("rewritten", 10, {"missing-input": 1}), ("tail-deleted", 90, {})]


def test_of_too_many_of_a_kind_the_last_one_has_the_number_of_the_others():
    made = Findings(3)
    for position in range(1, 11):
        made.add(LogFinding(kind="forged-projection", position=position, message="m"))
    first, second, third = made.explained()
    assert (first.message, second.message) == ("m", "m")
    assert third.message == "m; 7 more of this kind"


def test_of_findings_with_something_in_common_the_first_has_the_number_of_the_others():
    """Before a cause; those behind it follow from it."""
    made = Findings(3)
    for position in range(1, 11):
        made.add(
            LogFinding(kind="forged-reference", position=position, message="m"), common="pears"
        )
    made.add(LogFinding(kind="forged-reference", position=2, message="another"))
    assert [one.message for one in made.explained()] == ["another", "m; 9 more pears"]
    made.add(LogFinding(kind="hole", position=6, message="h"))
    hole, *others = made.explained()
    assert hole.weaker == {"forged-reference": 5}
    assert [one.message for one in others] == ["another", "m; 4 more pears"]


CHANGES = re.compile(r"rebuild|delete|empty|restore|prune|from a backup|start the service|move")


def test_nothing_that_changes_evidence_is_advised_before_a_copy_is():
    """Each advice that names such a change begins with the copy."""
    changing = {kind for kind, advice in ADVICE.items() if CHANGES.search(advice)}
    assert {"forged-projection", "forged-snapshot", "older-copy", "forged-input"} < changing
    for kind in changing:
        assert ADVICE[kind].startswith("keep this database, copy it first")

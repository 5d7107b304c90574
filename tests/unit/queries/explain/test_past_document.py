"""docs/how-to/explain-at.md: every first line of `explain --at`, from one log.

GX_TEST_WRITE_GOLDEN=1 writes the lines into the document instead.
"""

from __future__ import annotations

import ast
import inspect
import os
from uuid import UUID

from extender.core.admit.gang_sentences import THEN
from extender.core.log.events import (
    GangAdmitted,
    GangInvalid,
    GangObserved,
    GangScheduled,
    GangUnschedulable,
    GroupRecord,
    MemberTerminated,
    PreemptionPlanned,
    RecordedEvent,
    TreeCompiled,
    TreeRefused,
    TreeRetired,
    VictimPod,
    VictimUnit,
)
from extender.core.model.ids import NIL_GANG, Epoch, GangUid, NodeName, PlanId, PodUid, Position
from extender.core.model.pods import SUCCEEDED
from extender.core.workloads.tree_compiler import GroupSpec
from extender.queries.explain import past_explanation
from extender.queries.explain.object_explanation import ObjectReader, held_refusal
from tests.support.document_outputs import DOCS, fixed_parts
from tests.support.logs.short_log import GPUS, admitted, at_us, bound, events
from tests.unit.queries.explain.test_past_explanation import asking
from tests.unit.queries.state.test_historical_state import Past

PAGE = DOCS / "how-to/explain-at.md"
FEW = 9  # characters; shorter parts of a sentence are no sentence


def refused(outcome: str, reason: str, **more) -> GangUnschedulable:
    return GangUnschedulable(outcome=outcome, reasons=(reason,), **more)


def more_events():
    """Return what follows the events of the short log, from position 15 on."""
    job = {"kind": "Job", "workload": "ns/batch", "uid": "job"}
    tree = GangAdmitted(
        plan=PlanId("plan-tree"), kind="CompositePodGroup", priority=1, shapes=(GPUS,), topology={},
        groups=(
            GroupRecord(kind="CompositePodGroup", name="tree", minimum=1),
            GroupRecord(kind="PodGroup", name="leaf", parent="tree", minimum=1, domain={"rack": "r1"}),
        ),
        assignments=admitted("leaf", t="n1").assignments,
    )  # fmt: skip
    lone = VictimPod(pod="ns/lone", uid=PodUid("lone"), node=NodeName("n1"))
    evicts = PreemptionPlanned(
        preemption=PlanId("by-vip"), kind="Pod", priority=9, cost={}, alternatives=(), shapes=(), assignments=(),
        victims=(VictimUnit(kind="Pod", path="ns/lone", uid="lone", priority=0, pods=(lone,)),),
    )  # fmt: skip
    ended = MemberTerminated(
        pod="ns/t", uid=PodUid("t"), node=NodeName("n1"), cause="ended", message=SUCCEEDED
    )
    needs = "PodGroup ns/late needs 4 pods; the cluster holds 2 (2 missing: nvidia.com/gpu)"
    never = refused(
        "impossible", needs, when_empty="never", help=("1 more empty node like n1",),
        reasons_when_empty=("PodGroup ns/late needs 4 pods; the cluster holds 3 (1 missing: nvidia.com/gpu)",),
    )  # fmt: skip
    return [
        ("ns/late", GangObserved(kind="PodGroup")),
        ("ns/late", refused("waiting", "waiting for members of PodGroup ns/late: 4 required, 1 present")),
        ("ns/late", refused("unknown", "no placement found within the budget of 10 search nodes")),
        ("ns/late", never),
        ("ns/late", refused("impossible", needs, when_empty="fits")),
        ("ns/late", GangInvalid(problems=("B9: its pods have two priorities",))),
        ("ns/tree", tree),
        ("ns/tree", bound("leaf", "t", "n1", plan="plan-tree")),
        ("ns/tree", GangScheduled(plan=PlanId("plan-tree"), bound=1)),
        ("ns/tree", ended),
        ("", TreeCompiled(generation=1, table_version=1, profile="default", groups=(GroupSpec(kind="PodGroup", name="low"),), **job)),
        ("", TreeRefused(generation=2, table_version=1, profile="default", reason="X", field="spec", message="two priorities", **job)),
        ("", TreeRetired(reason="deleted", **job)),
        ("ns/vip", evicts),
    ]  # fmt: skip


# What is asked, at which position.
ASKED = (
    ("low", 2), ("low", 3), ("low", 6), ("low", 11), ("low", 14), ("other/high", 6), ("other/high", 9),
    ("late", 16), ("late", 17), ("late", 18), ("late", 19), ("late", 20), ("leaf", 23), ("tree", 24),
    ("a", 2), ("a", 3), ("a", 4), ("a", 9), ("a", 11), ("a", 14),
    ("Job/batch", 25), ("Job/batch", 26), ("Job/batch", 27), ("Pod/vip", 28), ("lone", 28),
    ("n1", 4), ("n1", 9), ("n9", 4),
)  # fmt: skip


def whole_log():
    """Return the events of the short log and the further ones, a second apart."""
    versions: dict[GangUid, int] = {}
    entries = [*events(), *((101 + n, *one) for n, one in enumerate(more_events()))]
    for number, (seconds, root, data) in enumerate(entries, start=1):
        uid = GangUid(f"uid-of-{root}") if root else NIL_GANG
        versions[uid] = versions.get(uid, 0) + 1
        yield RecordedEvent(
            position=Position(number), event_id=str(UUID(int=number)), epoch=Epoch(1), at_us=at_us(seconds),
            gang_uid=uid, stream_version=versions[uid], gang=root, actor="me", cause="", data=data,
        )  # fmt: skip


async def lines() -> list[str]:
    """Return the commands with their first lines."""
    past = Past(whole_log())
    past.database.projected = len(past.database.rows)
    ask = asking(past.database)
    found = []
    for name, at in ASKED:
        shown = name if "/" in name or name.startswith("n") else f"ns/{name}"
        found += [
            f"    $ gang-extender explain {shown} --at {at}",
            f"    {(await ask(name, at)).answer}",
        ]
    return found


async def test_the_first_lines_are_those_in_the_document() -> None:
    printed = "\n".join(await lines()) + "\n"
    head, _, block = PAGE.read_text().partition("    $ gang-extender explain ns/low")
    if os.environ.get("GX_TEST_WRITE_GOLDEN"):
        PAGE.write_text(head + printed)
        return
    assert f"    $ gang-extender explain ns/low{block}" == printed


async def test_every_first_line_of_the_past_is_there() -> None:
    """The longest fixed part of each sentence is in one of the lines; a hint, in backquotes, is none."""
    found = "\n".join(await lines())
    missing = set()
    parts = set(THEN) - {THEN.no_reason}
    for source in (past_explanation, ObjectReader, held_refusal):
        parts |= fixed_parts(ast.parse(inspect.getsource(source)))
    for part in map(str.strip, parts):
        if len(part) >= FEW and "`" not in part and part not in found:
            missing.add(part)
    assert missing == ELSEWHERE


# Of a name that the log never had: an error, not an answer; and of a workload with several root groups.
ELSEWHERE = {
    "(the first of",
    ", the log had nothing that is called",
    "did you mean",
}

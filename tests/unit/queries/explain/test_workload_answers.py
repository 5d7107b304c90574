"""`explain` of workloads without groups, of their pods, and of what makes a workload that is explained."""

from __future__ import annotations

import pytest

from extender.core.log.events import NewEvent, TreeCompiled, TreeRefused
from extender.core.model.errors import BadInput
from extender.core.model.ids import NIL_GANG
from extender.core.workloads.kinds.plain_pods_kind import NAME_LABEL, TOTAL_LABEL
from extender.core.workloads.workload_object import TREE_LABEL
from extender.queries.explain.name_lookup import parse_name
from tests.support.service.manifest_builders import a_pod
from tests.unit.queries.explain.test_explain_service import a_stage, failing, led


async def decided(stage, event) -> None:
    await stage.leader.append([NewEvent(gang_uid=NIL_GANG, gang="", data=event, actor="test")])
    await stage.settled()


async def test_a_workload_that_needs_no_pods_needs_no_correction() -> None:
    """A StatefulSet that is scaled to zero has a tree without groups."""
    async with a_stage() as stage:
        event = TreeCompiled(
            kind="StatefulSet", workload="default/web", uid="u", generation=1, table_version=1, profile="default",
        )  # fmt: skip
        ask = await led(stage)
        await decided(stage, event)
        answer = await ask("StatefulSet/web")
        assert answer.answer == "StatefulSet default/web has no groups: it needs no pods as it is"
        assert answer.help == ()


async def test_the_pods_of_a_refused_workload_have_its_reason() -> None:
    """The service makes the group, so to create it, or another name in the pods is no help either."""
    reason = f"PlainPods/default/pg: metadata.labels[{TOTAL_LABEL}]: its pods have '3' and '4'"
    labels = {TREE_LABEL: "default", NAME_LABEL: "pg", TOTAL_LABEL: "3"}
    pod = a_pod("p", "pg", metadata={"labels": labels})
    async with a_stage(pod, a_pod("q", "other")) as stage:
        event = TreeRefused(
            kind="PlainPods", workload="default/pg", uid="u", generation=1, table_version=1, profile="default",
            reason="InvalidField", field="metadata.labels", message=reason,
        )  # fmt: skip
        ask = await led(stage)
        await decided(stage, event)
        answer = await ask("Pod/p")
        assert reason in answer.answer
        assert failing(answer) == ("group exists", "no")
        assert answer.help == ("correct the workload; docs/workloads.md has the reasons",)
        assert "create PodGroup default/other" in (await ask("Pod/q")).help[-1]


def test_what_makes_a_workload_is_asked_for_by_that() -> None:
    with pytest.raises(BadInput, match="ask for the RayCluster that a RayService makes;"):
        parse_name("RayService/team-a/rs", "default")
    with pytest.raises(BadInput, match="ask for the Job that a CronJob makes;"):
        parse_name("CronJob/nightly", "default")

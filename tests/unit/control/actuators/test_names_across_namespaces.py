"""What the service writes on objects of one namespace has no name of another namespace (M4 of the security review).

Each story has two tenants whose every name has a marker, and looks at every call of every writer.
"""

from __future__ import annotations

import pytest

from extender.core.log.events import (
    GangUnschedulable,
    PreemptionCancelled,
    PreemptionPlanned,
    ReservationReleased,
)
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.visibility import Visibility
from extender.core.verbs.preempt_verb import NodeCandidate
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_node
from tests.support.service.two_tenants import (
    FOREIGN,
    OWN,
    leaks,
    other,
    tenant_gang,
    tenant_pod,
)
from tests.unit.control.admission.test_preemption_policy import settled

NODES = ("n0", "n1")


async def story(*objects, nodes=NODES, **rest):
    """Lead on nodes of one GPU each, with evictions and reports beside the passes."""
    stage = Stage(*(a_node(name, gpu=1) for name in nodes), *objects, **rest)
    await stage.lead()
    stage.start(stage.parts.evictor.run())
    stage.start(stage.reporter.run())
    return stage


async def reported(stage):
    """Run passes until everything that is due is written."""
    await settled(stage)
    stage.later(2)
    await settled(stage, 2)
    stage.conditions_due()
    await settled(stage, 2)


def texts_on(stage, tenant):
    return [text for _, path, text in stage.cluster.calls if path.startswith(f"{tenant}/")]


@pytest.mark.parametrize("victim", [OWN, FOREIGN])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_victim_learns_priority_and_size_of_its_preemptor_and_no_name(victim, whole):
    """DisruptionTarget, the conditions of the groups and Events: kind, priority, pods and the position of the plan."""
    running = tenant_gang(victim, "low", nodes=NODES, whole=whole)
    hi = tenant_gang(other(victim), "hi", priority=1000)
    async with await story(*running, *hi) as stage:
        await reported(stage)
        (position,) = (e.position for e in stage.events() if isinstance(e.data, PreemptionPlanned))
        by = f"a PodGroup of priority 1000 with 2 pods (log position {position}) needs the capacity of "
        marks = stage.cluster.did("mark_disrupted")
        assert marks
        assert all(text.startswith(by) for _, text in marks)
        assert not leaks(stage)
        assert any(text.startswith(by) for text in texts_on(stage, victim))
        assert all(n.related is None for n in stage.cluster.notices)


async def test_a_preemptor_learns_of_victims_of_another_namespace_what_it_waits_for():
    """The condition of the waiting tree counts them, with kind and priority."""
    low = tenant_gang(FOREIGN, "low", nodes=NODES)
    async with await story(*low, *tenant_gang(OWN, "hi", priority=10)) as stage:
        await reported(stage)
        assert any(
            "waits for victims of its preemption: 2 victims to go of a" in t
            for t in texts_on(stage, OWN)
        )
        assert not leaks(stage)


async def test_a_deletion_that_the_api_server_refuses_is_reported_without_its_words():
    """The error of the API server names pod and budget; the tenant of the preemptor gets neither."""
    low = tenant_gang(FOREIGN, "low", nodes=NODES)
    async with await story(*low, *tenant_gang(OWN, "hi", priority=10)) as stage:
        stage.cluster.fault = lambda verb, name: (
            ClusterUnavailable(f"evict {name}: 429: budget {FOREIGN}-budget", refused=True)
            if verb == "evict"
            else None
        )
        await reported(stage)
        reasons = str(stage.parts.evictor.stall_reasons)
        assert "a pod of priority 0 is not deleted" in reasons
        assert FOREIGN not in reasons
        assert not leaks(stage)


async def test_the_only_unit_that_could_go_is_not_named():
    """A refusal with the note why preemption does not help: the log has the name, the condition its kind."""
    objects = (
        tenant_pod(FOREIGN, "vip", node="n1", priority=5000),
        tenant_pod(FOREIGN, "low", node="n0"),
        *tenant_gang(OWN, "hi", priority=10),
    )
    async with await story(*objects) as stage:
        await reported(stage)
        (refused,) = stage.event_data(GangUnschedulable)
        assert (
            f"Pod/{FOREIGN}/{FOREIGN}-low, the only lower-priority unit"
            in refused.preemption_notes[0]
        )
        assert (
            "a Pod of priority 0 with 1 pod, the only lower-priority unit"
            in refused.preemption_notes_reduced[0]
        )
        assert any("the only lower-priority unit" in text for text in texts_on(stage, OWN))
        assert not leaks(stage)


async def test_a_tree_that_loses_its_reservations_is_not_shown_to_whom():
    """Superseded reservations: the event has the name of the preemptor for operators, and a text without it."""
    early = tenant_gang(OWN, "early")
    async with await story(*early) as stage:
        await settled(stage, 2)
        assert stage.where(f"{OWN}/{OWN}-early")
        stage.cluster.add(*tenant_gang(FOREIGN, "hi", priority=10))
        await reported(stage)
        released = stage.event_data(ReservationReleased)
        assert any(
            f"PodGroup/{FOREIGN}/{FOREIGN}-hi of priority 10 takes" in r.message for r in released
        )
        assert all(
            r.message_reduced == "a PodGroup of priority 10 with 2 pods takes the capacity"
            for r in released
            if FOREIGN in r.message
        )
        assert not leaks(stage)


async def test_a_tree_whose_capacity_another_pod_uses_is_not_shown_its_name():
    """A pod of another scheduler on a reserved node: neither its name nor the name of its scheduler."""
    async with await story(*tenant_gang(OWN, "early")) as stage:
        await settled(stage, 2)
        stage.cluster.add(tenant_pod(FOREIGN, "intruder", node="n0", priority=7))
        await reported(stage)
        (released,) = (r for r in stage.event_data(ReservationReleased) if r.taken_by)
        assert FOREIGN in released.message
        assert "taken by a Pod of priority 7" in released.message_reduced
        assert FOREIGN not in released.message_reduced
        assert not leaks(stage)


async def test_a_preemption_that_is_taken_over_does_not_name_who_did():
    """PreemptionCancelled: the message for the namespace of the preemptor has kind and priority."""
    low = tenant_gang(FOREIGN, "low", nodes=NODES)
    async with await story(*low, *tenant_gang(OWN, "hi", priority=10)) as stage:
        await settled(stage, 3)
        assert stage.event_data(PreemptionPlanned)
        stage.cluster.add(*tenant_gang(FOREIGN, "top", priority=100))
        await reported(stage)
        (end,) = stage.event_data(PreemptionCancelled)
        assert end.taken_over_by == f"PodGroup/{FOREIGN}/{FOREIGN}-top"
        assert end.message_reduced.startswith("a PodGroup of priority 100 takes over the capacity")
        assert not leaks(stage)


async def test_a_lone_pod_that_evicts_a_whole_gang_is_not_named():
    """The preempt verb of kube-scheduler: the victims learn that a Pod of its priority needs their capacity."""
    low = tenant_gang(OWN, "low", nodes=NODES, whole=True)
    async with await story(*low, tenant_pod(FOREIGN, "vip", priority=77)) as stage:
        await settled(stage, 2)
        pods = {node: stage.cluster.pod(f"{OWN}/{OWN}-low-{n}") for n, node in enumerate(NODES)}
        offered = [NodeCandidate(node=node, victims=(pod.uid,)) for node, pod in pods.items()]
        vip = stage.cluster.pod(f"{FOREIGN}/{FOREIGN}-vip")
        assert await stage.extender_service.preempt(vip, offered)
        assert stage.event_data(PreemptionPlanned)
        await reported(stage)
        assert any(
            "a Pod of priority 77 with 1 pod" in text
            for _, text in stage.cluster.did("mark_disrupted")
        )
        assert not leaks(stage)


async def test_a_gang_that_lost_its_minimum_does_not_name_who_took_it():
    """Preempted members are gone: the conditions of what waits now have no name of the preemptor."""
    low = tenant_gang(OWN, "low", nodes=NODES, whole=True)
    async with await story(*low, *tenant_gang(FOREIGN, "hi", priority=1000)) as stage:
        stage.cluster.obeys = True
        await reported(stage)
        stage.cluster.add(*tenant_gang(OWN, "low", pods=2)[1:])
        await reported(stage)
        root = stage.root(f"{OWN}/{OWN}-low")
        assert root.last_loss.preemptor == f"PodGroup/{FOREIGN}/{FOREIGN}-hi"
        assert (root.last_loss.preemptor_priority, root.last_loss.preemptor_pods) == (1000, 2)
        assert texts_on(stage, OWN)
        assert not leaks(stage)


async def test_what_the_verbs_answer_names_no_other_tenant():
    """The texts that kube-scheduler writes on pods: refused members, reserved nodes, and a barrier that times out."""
    objects = (*tenant_gang(FOREIGN, "early"), *tenant_gang(OWN, "late"), tenant_pod(OWN, "lone"))
    async with await story(*objects, barrier_timeout_s=0.01) as stage:
        await reported(stage)
        assert stage.where(f"{FOREIGN}/{FOREIGN}-early")
        answers = [
            stage.extender_service.filter(stage.cluster.pod(f"{OWN}/{OWN}-{name}"), list(NODES))
            for name in ("late-0", "lone")
        ]
        assert all(answer.refused for answer in answers)
        assert not any(FOREIGN in answer.reason for answer in answers)
        (member, *_) = stage.where(f"{FOREIGN}/{FOREIGN}-early")
        error = await stage.bind(f"{FOREIGN}/{member}")
        assert "not all of its minimum reached bind" in error
        assert OWN not in error
        assert not leaks(stage)


async def test_the_setting_shows_names_across_namespaces():
    """With show_names_across_namespaces the same story has names, also as the related object of the Event."""
    low = tenant_gang(OWN, "low", nodes=NODES)
    hi = tenant_gang(FOREIGN, "hi", priority=1000)
    async with await story(*low, *hi, show_names_across_namespaces=True) as stage:
        await reported(stage)
        found = leaks(stage)
        assert any(f"PodGroup {FOREIGN}/{FOREIGN}-hi (priority 1000)" in text for _, text in found)
        assert all(n.related is not None for n in stage.cluster.notices if n.reason == "Preempted")


async def test_names_of_the_own_namespace_stay():
    """Victim and preemptor of one namespace: the sentence names both, as without tenants."""
    low = tenant_gang(OWN, "low", nodes=NODES)
    async with await story(*low, *tenant_gang(OWN, "hi", priority=10)) as stage:
        await reported(stage)
        marks = stage.cluster.did("mark_disrupted")
        assert marks
        assert all(f"PodGroup {OWN}/{OWN}-hi (priority 10) needs" in text for _, text in marks)
        assert Visibility.of([OWN]).sees(OWN)

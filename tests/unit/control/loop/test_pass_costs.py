"""A pass costs what has changed since the last one, not what there is; counted are calls of Python functions."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.model.cluster_view import with_pod
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import Pod, PodShape
from tests.bench.passes import Gang, Passes
from tests.unit.core.model.test_hostile_groups import Looked

FEW, MANY = 40, 400


async def calls_of(passes: Passes, pods) -> int:
    """Return how many functions the pass calls in which the cluster first shows some pods."""
    passes.show(pods)
    with Looked() as looked:
        await passes.stage.control_loop.run_pass()
    return looked.calls


async def a_gang_of(size: int, change) -> int:
    """Return the calls of a pass in which two members of an admitted gang changed, the second time that happens."""
    passes = Passes(size // 8 + 2)
    async with passes.stage as stage:
        await stage.lead()
        gang = Gang("gang", size)
        await passes.create(gang)
        held = stage.leader.committed.gangs[gang.group.uid].reservations
        for part in (gang.pods[:2], gang.pods[2:4]):
            calls = await calls_of(passes, [change(pod, held[pod.uid]) for pod in part])
            await passes.one_pass(measured=False)
        return calls


CHANGES = {
    "nominated": lambda pod, held: msgspec.structs.replace(pod, gates=(), nominated=held.node),
    "bound": lambda pod, held: msgspec.structs.replace(
        pod, gates=(), node=held.node, plan=held.plan, phase="Running"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_members_of_a_large_gang_cost_as_much_as_those_of_a_small_one(change):
    """Of ten times the members, a pass that sees two of them change calls about as many functions."""
    few, many = [await a_gang_of(size, CHANGES[change]) for size in (FEW, MANY)]
    assert many < 1.2 * few, (few, many)


async def test_an_ordinary_pod_costs_the_same_beside_any_number_of_gangs():
    """Gangs that run and do not change are not looked at one by one."""
    calls = []
    for count in (5, 50):
        passes = Passes(2 * count + 2)
        async with passes.stage as stage:
            await stage.lead()
            for number in range(count):
                gang = Gang(f"gang-{number}", 8)
                await passes.create(gang)
                await passes.bind(gang)
            for number in range(2):
                uid = PodUid(f"ordinary-{number}")
                pod = Pod(uid=uid, namespace="b", name=uid, shape=PodShape(), node=NodeName("n0"))
                found = await calls_of(passes, [pod])
            calls.append(found)
    few, many = calls
    assert many < 1.5 * few, calls


def test_the_log_of_changes_names_what_changed():
    """Not what is there."""
    passes = Passes(2)
    before = passes.stage.cluster.seen
    pod = Pod(uid=PodUid("u"), namespace="b", name="u", shape=PodShape())
    view = with_pod(before, pod)
    assert view.pod_log.since(before.pod_log) == ["u"]
    assert before.pod_log.since(view.pod_log) is None

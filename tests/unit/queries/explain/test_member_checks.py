"""A member has checks of its own: bound, reserved, or beyond the minimum of a gang that runs."""

from __future__ import annotations

from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import a_gang, a_group, a_node, a_pod
from tests.unit.queries.explain.test_explain_service import WHOLE, a_stage, failing, led


async def run_all(stage, *pods: str) -> None:
    """Bind members on the nodes n0, n1, ... in order."""
    for number, name in enumerate(pods):
        stage.cluster.change_pod(name, node=f"n{number}")
    await stage.settled()


async def test_an_extra_member_that_does_not_fit_now() -> None:
    """Two of three run, and no node is free: the third waits, and is not called bound."""
    async with a_stage(*a_gang("g", pods=3, minimum=2, requests=WHOLE), nodes=2) as stage:
        ask = await led(stage)
        await run_all(stage, "g-0", "g-1")
        extra, member, gang = await ask("g-2"), await ask("g-1"), await ask("PodGroup/g")
        assert extra.answer == (
            "Pod default/g-2 waits, an extra member that does not fit now: 1 beyond the minimum of 2 not placed: "
            "no more fit; PodGroup default/g runs: 2 of 2 pods of the minimum, 2 bound"
        )
        assert failing(extra) == ("fits now", "no")
        assert {check.outcome for check in member.checks} == {"yes"}
        assert member.checks[-1].text == "on n1"
        assert gang.answer.startswith("PodGroup default/g runs: 2 of 2")


async def test_an_extra_member_that_fits_or_that_others_hold() -> None:
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    held = a_pod("held", "g", requests=WHOLE, schedulingGates=gates)
    async with a_stage(*a_gang("g", pods=2, requests=WHOLE), held) as stage:
        ask = await led(stage)
        await run_all(stage, "g-0", "g-1")
        found = await ask("held")
        assert found.answer.startswith(
            "Pod default/held waits, an extra member that is held by the scheduling gates "
            "kueue.x-k8s.io/admission; PodGroup default/g runs"
        )
        assert failing(found) == ("members complete", "no")
        assert found.help[0].startswith("remove the scheduling gates kueue.x-k8s.io/admission")
        stage.cluster.add(a_pod("late", "g", requests=WHOLE))
        late = await ask("late")
        assert "an extra member that fits now and is about to get its place" in late.answer


async def test_a_member_whose_claim_does_not_exist_is_no_member_until_it_is_created() -> None:
    """The gang waits with the claim in its reason; one beyond the minimum waits alone."""
    lacks = "PersistentVolumeClaim default/c of pod {} does not exist: create it"
    async with a_stage(*a_gang("g", pods=2, requests=WHOLE)) as stage:
        for name in ("g-0", "g-1"):
            stage.cluster.change_pod(name, waits_for=lacks.format(name))
        ask = await led(stage)
        gang = await ask("PodGroup/g")
        assert gang.answer == (
            "PodGroup default/g waits for members of PodGroup default/g: 2 required, 0 present; "
            f"{lacks.format('g-0')}; the same for 1 more pod"
        )
        assert gang.help == (lacks.format("g-0"),)
        assert gang.state == "waiting", "the log has it"
        for name in ("g-0", "g-1"):
            stage.cluster.change_pod(name, waits_for="")
        await stage.settled()
        assert (await ask("PodGroup/g")).state == "admitted"
        await run_all(stage, "g-0", "g-1")
        stage.cluster.add(a_pod("late", "g", requests=WHOLE))
        stage.cluster.change_pod("late", waits_for=lacks.format("late"))
        await stage.settled()
        late = await ask("late")
        assert late.answer.startswith(
            "Pod default/late waits, an extra member that is no member yet, because PersistentVolumeClaim default/c of "
            "pod late does not exist; PodGroup default/g runs"
        )
        assert late.help == ("create it",)


async def test_a_reserved_member_has_its_gate_its_node_and_what_kube_scheduler_answered() -> None:
    async with a_stage(*a_gang("g", pods=2, requests=WHOLE, schedulingGates=GATED)) as stage:
        ask = await led(stage)
        stage.cluster.change_pod("g-0", gates=(), unschedulable="0/4 nodes are available")
        free, gated = await ask("g-0"), await ask("g-1")
        assert failing(free) == ("accepted by kube-scheduler", "unknown")
        assert any(check.text.startswith("capacity is reserved on n") for check in free.checks)
        assert free.reasons[0] == "kube-scheduler: 0/4 nodes are available"
        assert failing(gated) == ("gates removed", "no")


async def test_a_child_group_beyond_the_minimum() -> None:
    """One of two child groups is enough and runs; the other does not fit."""
    root = a_group("root", gang=1, composite=True)
    leaves = [a_group(name, gang=2, parent="root") for name in ("left", "right")]
    pods = [
        a_pod(f"{leaf}-{n}", leaf, requests=WHOLE) for leaf in ("left", "right") for n in range(2)
    ]
    async with a_stage(root, *leaves, *pods, nodes=2) as stage:
        ask = await led(stage)
        reserved = {m.group for m in stage.root("root").reservations.values()}
        assert len(reserved) == 1
        (other,) = {"left", "right"} - reserved
        found = await ask(f"PodGroup/{other}")
        assert found.answer.startswith(
            f"PodGroup default/{other} waits, a child group beyond the minimum that does not fit now: "
            "none of 2 placed, 2 needed together: no more fit"
        )
        assert failing(found) == ("fits now", "no")
        placed = await ask(f"PodGroup/{reserved.pop()}")
        assert "is a child group of CompositePodGroup default/root, which has its" in placed.answer


async def test_a_member_of_a_gang_that_waits_has_the_checks_of_its_gang() -> None:
    async with a_stage(a_node("n9", gpu=8), *a_gang("g", pods=9, requests=WHOLE)) as stage:
        found = await (await led(stage))("g-0")
        assert failing(found) == ("fits an empty cluster", "no")

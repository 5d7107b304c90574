"""Stories in which the service only waits: for the end of a lease, a renewal, a back-off. Whole replicas, in virtual time.

Beside what a story asserts, all that must hold with random faults is looked at (`tests/support/faults/invariants.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from extender.cluster.manifests.manifest_entries import Role, entries_in, with_metadata
from extender.cluster.manifests.yaml_reader import Document
from extender.control.monitors.notifier import EVERY_S, RETRY_S, Notifier
from extender.core.log.events import (
    GangRemoved,
    GangUnschedulable,
    HistoryTruncated,
    LeaseAcquired,
    MemberTerminated,
    PreemptionPlanned,
)
from extender.core.log.notifications import Notification
from extender.core.model.errors import NotificationFailed
from extender.core.model.ids import GangUid
from extender.ports.log_ports import NotifiedUpTo
from extender.queries.state.gang_status import gang_status
from extender.settings import Settings
from extender.simulation.arrivals import Arrival, ArrivingGroup
from extender.simulation.job_files import job_of
from extender.store.log.event_codec import chain
from tests.support.faults.cases import GPU, Case
from tests.support.faults.run import TTL_MS, Replica, Run, run_case
from tests.support.logs.fake_store import FakeEventQueries
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import Object, a_group, a_node, a_pod

RACK = "net/rack"
LEASE_S = TTL_MS / 1000


def holds_in(story: Callable[[Run], Awaitable[None]], replicas: int = 2, racks: int = 1) -> None:
    """Run a story about replicas and racks of two nodes of 8 GPUs; nothing else may be violated by it."""
    case = Case(
        seed=1, racks=racks, gpus=8, replicas=replicas, hold_after_s=0, cycle_s=0.001, finalizer_s=0.0,
        arrivals=(), faults=(), bursts=(), until_s=0.0,
    )  # fmt: skip
    result = run_case(case, story)
    assert (result.violated, result.detail) == ("", ""), "\n".join(result.story)


def arrives(run: Run, name: str, pods: int, **fields: object) -> None:
    """Let a gang of pods of one GPU arrive."""
    group = ArrivingGroup(name="g0", pods=pods, minimum=pods, requests={GPU: 1, "cpu": 1000})
    arrival = Arrival(
        at_s=0.0, namespace="default", name=name, groups=(group,), runs_for_s=float("inf"), **fields,
    )  # fmt: skip
    run.controllers.arrive(job_of(arrival))


def puts(run: Run, *manifests: Object) -> None:
    """Create or replace objects; those without a UID get one by their name."""
    documents = (Document(where="story", value=manifest) for manifest in manifests)
    for entry in entries_in(documents, Role.CLUSTER):
        metadata = entry.obj.metadata
        uid = metadata.uid or f"uid-{metadata.namespace}-{metadata.name}"
        run.model.put(with_metadata(entry.obj, uid=uid, creation_timestamp=run.model.now()))


def reserved(replica: Replica) -> dict[str, str]:
    gangs = replica.leader.committed.gangs.values()
    return {uid: r.node for gang in gangs for uid, r in gang.reservations.items()}


def test_a_second_replica_waits_and_takes_over() -> None:
    """While the lease is renewed it names the leader and writes nothing; after the death of that one it leads, with the same reservations."""

    async def story(run: Run) -> None:
        run.loop.kill(run.scheduler_process)  # nothing is bound
        await run.eventually(lambda: run.events(LeaseAcquired), 5.0, "a leader")
        arrives(run, "g", 4)
        first = run.holder()
        (second,) = (replica for replica in run.replicas if replica is not first)
        held = await run.eventually(lambda: reserved(first), 5.0, "an admission")
        await run.loop.rest(1.0)
        before = run.events()
        await run.loop.rest(2.5 * LEASE_S)
        assert f"held by {first.name}" in second.leader.not_leading_reason
        assert run.events() == before
        assert {event.actor for event in before} == {first.name}
        run.loop.kill(first.process)
        await run.eventually(second.service.ready, LEASE_S + 2.0, "the other one leads")
        assert reserved(second) == held
        assert len(held) == 4
        await run.loop.rest(2.0)
        (taken,) = run.events()[len(before) :]
        assert isinstance(taken.data, LeaseAcquired)
        assert (taken.actor, taken.epoch) == (second.name, 2)

    holds_in(story)


LOWER = {"g9a-0", "g9b-0", "g9c-0", "g10-0"}


def full_nodes() -> list[Object]:
    """Make three nodes, full of pods of priority 0; o4 terminates."""
    cpus = {"n0": "4", "n1": "3", "n2": "4"}
    pods = (
        ("o1", "n0", 1), ("o2", "n0", 2), ("o3", "n0", 1), ("o4", "n1", 2), ("o5", "n1", 1),
        ("o6", "n2", 1), ("o7", "n2", 2), ("o8", "n2", 1),
    )  # fmt: skip
    terminates = {"deletionTimestamp": "2023-12-31T23:55:00Z", "deletionGracePeriodSeconds": 30}
    return [
        *(a_node(name, {RACK: f"r{int(name == 'n2')}"}, cpu=cpu) for name, cpu in cpus.items()),
        *(
            a_pod(
                name, node=node, namespace="hold", requests={"cpu": cpu}, priority=0,
                metadata={"uid": f"uid-{name}", **(terminates if name == "o4" else {})},
            )
            for name, node, cpu in pods
        ),
    ]  # fmt: skip


def a_tree(
    name: str, priority: int, minimum: int, leaves: dict[str, tuple[tuple[int, ...], int, str]], *, whole: bool = True
) -> list[Object]:  # fmt: skip
    """Make a composite: by leaf the CPUs of its pods, their minimum, and its topology."""
    common: dict[str, Any] = {"namespace": "hold", "priority": priority, "whole": whole}
    objects = [a_group(name, composite=True, gang=minimum, **common)]
    for leaf, (cpus, least, topo) in leaves.items():
        objects.append(a_group(name + leaf, gang=least, parent=name, topo=topo, **common))
        objects += gated_pods(name + leaf, cpus, priority)
    return objects


def gated_pods(leaf: str, cpus: tuple[int, ...], priority: int) -> list[Object]:
    return [
        a_pod(
            f"{leaf}-{n}", leaf, namespace="hold", requests={"cpu": cpu}, priority=priority,
            schedulingGates=GATED,
        )
        for n, cpu in enumerate(cpus)
    ]  # fmt: skip


def test_a_preemption_that_becomes_possible_is_looked_for() -> None:
    """Case preemption-refused-stale: refused while o4 terminates; when it is gone, evicting what runs is enough."""

    async def story(run: Run) -> None:
        puts(run, *full_nodes())
        await run.eventually(lambda: run.events(LeaseAcquired), 5.0, "a leader")
        one = ((1,), 1, "")
        puts(
            run,
            *a_tree("g9", 5, 1, {"a": one, "b": one, "c": one}),
            a_group("g10", gang=1, namespace="hold", priority=5, whole=True),
            *gated_pods("g10", (2,), 5),
            *a_tree(
                "g11", 7, 3,
                {"a": ((1, 2, 2), 3, ""), "b": ((1, 1), 2, RACK), "c": ((1, 1, 2), 3, "")},
                whole=False,
            ),
        )  # fmt: skip

        def of_large(kind: type) -> list[Any]:
            return [event for event in run.events(kind) if event.gang == "hold/g11"]

        await run.eventually(lambda: of_large(GangUnschedulable), 30.0, "g11 is refused")

        def bound() -> set[str]:
            pods = run.model.stored().pods.values()
            return {pod.name for pod in pods if pod.node and pod.group is not None}

        await run.eventually(lambda: bound() == LOWER, 60.0, "g9 and g10 run")
        assert of_large(PreemptionPlanned) == []
        left = {
            pod.name for pod in run.model.stored().pods.values() if pod.node and not pod.deleting
        }
        policy, leader = run.holder().engine.parts.preemption_policy, run.holder().leader

        def pauses() -> bool:
            """Whether victims are not searched again in the next 3 s, unless something has changed."""
            again_us = policy.searches_again_us(leader.committed).get(GangUid("uid-hold-g11"), 0)
            return again_us - run.clock.now_us() > 3_000_000

        await run.eventually(pauses, 10.0, "a pause between two searches for victims")
        run.model.remove("uid-o4")
        ((planned,),) = [await run.eventually(lambda: of_large(PreemptionPlanned), 2.0, "a plan")]
        victims = {pod.pod for unit in planned.data.victims for pod in unit.pods}
        assert victims == {f"hold/{name}" for name in left}  # g11 needs every CPU
        await run.loop.rest(20.0)
        assert [e for e in of_large(GangUnschedulable) if e.position > planned.position] == []

    holds_in(story, replicas=1, racks=0)


# --- the minimum of a gang


def racks() -> list[Object]:
    return [a_node(f"n{n}", {RACK: f"r{n // 2}"}, cpu=4) for n in range(4)]


def a_running_pod(number: int, leaf: str) -> Object:
    return a_pod(f"p{number}", leaf, node=f"n{number}", requests={"cpu": "3"})


def flat(minimum: int = 4, **metadata: str) -> list[Object]:
    """Make a gang of four pods that run."""
    group = a_group("p", gang=minimum, metadata=metadata)
    return [group, *(a_running_pod(number, "p") for number in range(4))]


def composite() -> list[Object]:
    """Make a composite whose two children run with two pods each."""
    children = [a_group(f"p-{child}", gang=2, parent="p") for child in range(2)]
    pods = [a_running_pod(number, f"p-{number // 2}") for number in range(4)]
    return [a_group("p", composite=True, gang=2), *children, *pods]


def are_gone(run: Run, *numbers: int) -> None:
    for number in numbers:
        run.model.remove(f"uid-default-p{number}")


async def until_gang(run: Run, state: str, present: int, needed: int) -> str:
    """Wait until gang p is in a state, with so many pods of its minimum; return its UID."""

    def uid() -> str:
        for root in run.holder().leader.committed.gangs.values():
            status = gang_status(root)
            if (status.state, status.present, status.needed) == (state, present, needed):
                return root.uid
        return ""

    return await run.eventually(uid, 10.0, f"{state} with {present} of {needed}")


async def until_led(run: Run) -> Replica:
    """Wait for the first leader."""
    await run.eventually(lambda: run.events(LeaseAcquired), 5.0, "a leader")
    return run.holder()


@pytest.mark.parametrize("objects", [flat, composite])
@pytest.mark.parametrize("down", [False, True], ids=["seen", "while down"])
def test_the_minimum_of_a_gang_older_than_the_log_is_that_of_its_groups(
    objects: Callable[[], list[Object]], down: bool
) -> None:
    """Case bound-before-the-log: 4 of 4, then degraded with 1 of 4; also when the members went while the service was down."""

    async def story(run: Run) -> None:
        puts(run, *racks(), *objects())
        replica = await until_led(run)
        await until_gang(run, "scheduled", 4, 4)
        if down:
            run.loop.kill(replica.process)
        are_gone(run, 1, 2, 3)
        if down:
            run.start_again(replica)
        await until_gang(run, "degraded", 1, 4)

    holds_in(story, replicas=1, racks=0)


def test_a_minimum_that_is_lowered_and_raised_is_the_one_that_counts() -> None:
    """Degraded with 4 needed, scheduled with 1, degraded with 2."""

    async def story(run: Run) -> None:
        puts(run, *racks(), *flat())
        await until_led(run)
        await until_gang(run, "scheduled", 4, 4)
        are_gone(run, 1, 2, 3)
        await until_gang(run, "degraded", 1, 4)
        puts(run, flat(minimum=1)[0])
        await until_gang(run, "scheduled", 1, 1)
        puts(run, flat(minimum=2)[0])
        await until_gang(run, "degraded", 1, 2)

    holds_in(story, replicas=1, racks=0)


@pytest.mark.parametrize("down", [False, True], ids=["seen", "while down"])
def test_a_group_that_is_created_again_with_running_members_has_its_minimum(down: bool) -> None:
    """The new one has 4 of 4 and is degraded when three are gone; no member of the old one has terminated."""

    async def story(run: Run) -> None:
        puts(run, *racks(), *flat(uid="first"))
        replica = await until_led(run)
        assert await until_gang(run, "scheduled", 4, 4) == "first"
        if down:
            run.loop.kill(replica.process)
        run.model.remove("first")
        puts(run, flat(uid="second")[0])
        if down:
            run.start_again(replica)
        await run.eventually(lambda: run.events(GangRemoved), 10.0, "the end of the old one")
        assert await until_gang(run, "scheduled", 4, 4) == "second"
        assert run.events(MemberTerminated) == []
        are_gone(run, 1, 2, 3)
        assert await until_gang(run, "degraded", 1, 4) == "second"

    holds_in(story, replicas=1, racks=0)


# --- the log


def test_a_renewal_finds_a_rewritten_log() -> None:
    """Without any append: each renewal of the lease compares the hash of the last event."""

    async def story(run: Run) -> None:
        arrives(run, "g", 2)
        leader = (await until_led(run)).leader
        await run.loop.rest(10.0)
        rows = run.database.shared.rows
        before = len(rows)
        assert before > 3
        digest = rows[1][1]
        rows[2] = (rows[2][0]._replace(actor="someone"), digest)
        for index in range(2, before):
            digest = chain(digest, rows[index][0])
            rows[index] = (rows[index][0], digest)
        run.truth.on_rewritten()
        assert len(rows) == before
        (lost,) = await run.eventually(
            lambda: run.events(HistoryTruncated), LEASE_S / 3 + 3.0, "the loss"
        )
        assert lost.data.evidence == "memory"
        await run.eventually(leader.may_act, 5.0, "leading again")

    holds_in(story, replicas=1)


# --- notifications


class Receiver:
    """A receiver of notifications, and where its position is kept."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reached: NotifiedUpTo | None = None
        self.fails = 0  # so often
        self.tried_s: list[float] = []
        self.accepted: list[str] = []

    async def read(self) -> NotifiedUpTo | None:
        return self._reached

    async def save(self, reached: NotifiedUpTo) -> None:
        self._reached = reached

    async def deliver(self, notification: Notification) -> bool:
        self.tried_s.append(self._run.loop.time())
        if self.fails:
            self.fails -= 1
            raise NotificationFailed("500")
        self.accepted.append(notification.subject)
        return True

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    def notified_by(self, replica: Replica) -> None:
        """Start the notifier of a replica, as the service does."""
        notifier = Notifier(
            FakeEventQueries(self._run.database.shared), self, self, replica.leader,  # type: ignore[arg-type]
            replica.machine, Settings(notify_url="http://receiver"),
        )  # fmt: skip
        self._run.spawn(replica.process, notifier.run(), f"{replica.name} notifier")


def test_a_receiver_that_fails_is_tried_again_later_each_time() -> None:
    """It begins when this process leads, and goes on after failures."""

    async def story(run: Run) -> None:
        receiver = Receiver(run)
        receiver.notified_by(await until_led(run))
        await run.loop.rest(2 * EVERY_S)
        receiver.fails = 4
        arrives(run, "large", 30)
        await run.eventually(lambda: receiver.accepted, 60.0, "the notification")
        assert receiver.accepted == ["PodGroup/default/large"]
        pauses_s = [after - tried for tried, after in itertools.pairwise(receiver.tried_s)]
        assert pauses_s == pytest.approx(RETRY_S[:4], abs=0.1)
        await run.loop.rest(30.0)
        assert len(receiver.accepted) == 1

    holds_in(story, replicas=1)


def test_the_standby_notifies_of_nothing_and_takes_over() -> None:
    """Of two replicas the leader sends; after its death the other one sends what it could not and what comes then, and nothing twice."""

    async def story(run: Run) -> None:
        receiver = Receiver(run)
        leader = await until_led(run)
        for replica in run.replicas:
            receiver.notified_by(replica)
        await run.loop.rest(2 * EVERY_S)
        arrives(run, "first", 30)
        await run.eventually(lambda: receiver.accepted, 10.0, "what the leader sends")
        receiver.fails = 1_000_000
        arrives(run, "large", 30)
        await run.eventually(lambda: len(receiver.tried_s) > 1, 10.0, "a try")
        run.loop.kill(leader.process)
        receiver.fails = 0
        await run.eventually(
            lambda: len(receiver.accepted) == 2, LEASE_S + 10.0, "what it could not send"
        )
        arrives(run, "larger", 30)
        await run.eventually(lambda: len(receiver.accepted) == 3, 10.0, "the next one")
        await run.loop.rest(2 * LEASE_S)
        names = ("first", "large", "larger")
        assert receiver.accepted == [f"PodGroup/default/{name}" for name in names]

    holds_in(story)

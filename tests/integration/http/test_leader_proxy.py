"""Two replicas over real HTTP on one log: a follower is as good an address as the leader."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from deploy.demo.ports import free_port
from extender.core.log.events import BindBarrierTimedOut
from extender.http.scheduler.leader_proxy import FORWARDED, MISDIRECTED
from extender.ports.access_ports import AccessRight
from extender.queries.plan.moves_query import MovesInput, PlannedMoves, planned_moves
from extender.queries.plan.plan_dto import MovesQuestion
from extender.queries.plan.plan_query import PlanInput
from extender.queries.plan.plan_service import PlanResult
from tests.integration.http.test_access_middleware import JOB, bearer
from tests.integration.http.test_scheduler_verbs import Served, wire_pod
from tests.support.logs.fake_store import FakeDatabase
from tests.support.service.fake_access import FakeAccessReviews
from tests.support.service.fakes import TTL_MS, FakeClock, FakeCluster
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually


class Replicas:
    """A leader and a follower; they share log, cluster and clock."""

    def __init__(self, *objects, **settings):
        self.clock = FakeClock()
        self.database = FakeDatabase(self.clock.now_us)
        gang = [*a_gang("g", pods=2, requests={GPU: 1}), a_pod("alien", requests={GPU: 4})]
        nodes = [a_node(f"n{n}", gpu=4) for n in range(2)]
        self.cluster = FakeCluster(*nodes, *(objects or gang))
        self.first, self.second = self._served("first", settings), self._served("second", settings)

    def _served(self, holder, settings):
        listen = f"127.0.0.1:{free_port()}"
        return Served(
            database=self.database, cluster=self.cluster, clock=self.clock, holder=holder,
            address=f"http://{listen}", listen=listen, **settings,
        )  # fmt: skip

    async def __aenter__(self):
        await self.first.__aenter__()
        await self.second.__aenter__()
        await self.first.ready()
        self.second.stage.start(self.second.stage.leader.run())
        self.second.stage.start(self.second.stage.control_loop.run())
        await eventually(lambda: self.second.stage.leader.role == "following", "following")
        await self.followed()
        return self

    async def __aexit__(self, *_):
        await self.second.__aexit__()
        await self.first.__aexit__()

    async def followed(self):
        leader, follower = self.first.stage.leader, self.second.stage.leader
        await eventually(lambda: follower.committed == leader.committed, "the log followed")

    def bind_args(self, name):
        stage = self.first.stage
        ref = stage.ref(name)
        return {"PodName": ref.name, "PodNamespace": ref.namespace, "PodUID": ref.uid,
                "Node": stage.reserved_node(name)}  # fmt: skip

    def at_barrier(self, served):
        return [a for b in served.stage.barriers._barriers.values() for a in b.arrivals.values()]


@pytest.fixture
async def replicas():
    async with Replicas() as made:
        yield made


async def test_each_verb_is_answered_with_the_leaders_bytes(replicas):
    """Asked at the follower or at the leader: one answer, byte for byte, also for what does not decode."""
    pod = wire_pod(replicas.first.stage, "g-0")
    args = {"Pod": pod, "Nodes": None, "NodeNames": ["n0", "n1"]}
    preempt = {"Pod": wire_pod(replicas.first.stage, "alien"), "NodeNameToVictims": None,
               "NodeNameToMetaVictims": {}}  # fmt: skip
    for verb, body in (("filter", args), ("prioritize", args), ("preempt", preempt),
                       ("filter", {"Pod": 1}), ("bind", [])):  # fmt: skip
        assert await replicas.second.post(verb, body) == await replicas.first.post(verb, body), verb
    calls = [
        asyncio.create_task(replicas.second.ask("bind", replicas.bind_args(f"g-{n}")))
        for n in (0, 1)
    ]
    assert [call["Error"] for call in await asyncio.gather(*calls)] == ["", ""]
    assert len(replicas.cluster.bindings) == 2


async def test_a_follower_is_ready_names_its_leader_and_answers_queries(replicas):
    """Ready, with the position; gangs from its own fold."""
    async with replicas.second.client.get("/readyz") as reply:
        answer = await reply.json()
    assert reply.status == 200, answer
    assert "held by first" in answer["checks"][0]["reason"]
    position = replicas.database.head.position
    assert answer["checks"][1] == {
        "name": "log",
        "ok": True,
        "reason": f"followed to position {position}",
    }
    async with replicas.second.client.get("/v1/gangs/default/g") as reply:
        assert reply.headers["X-Log-Position"] == str(position)
        assert (await reply.json())["reserved"] == 2
    assert {event.actor for event in replicas.first.stage.events()} == {"first"}


async def test_moves_asked_for_at_a_follower_are_made_by_the_leader():
    """Apply, pause and stop: the leader's answer, also its refusal, under the name of the user; reading needs no leader."""
    pods = (
        a_pod(f"g-{n}", "g", metadata={"ownerReferences": [JOB]}, requests={GPU: 4})
        for n in range(2)
    )

    async def plan(_body, _readers):
        stage = replicas.first.stage
        question = MovesInput(
            plan=PlanInput(state=stage.leader.committed),
            asked=MovesQuestion(drain=("n0",)),
            members_only=True,
        )
        answer, request = planned_moves(stage.cluster.view(), question)
        encoded = msgspec.json.encode(request, order="deterministic")
        return PlanResult(msgspec.json.encode(PlannedMoves(answer=answer, request=encoded)))

    reviews = FakeAccessReviews()
    token = reviews.add_user(
        "ann", AccessRight("list"), AccessRight("post", path="/v1/moves/apply")
    )
    reader = reviews.add_user("bob", AccessRight("list"))
    async with Replicas(a_group("g", gang=1), *pods, plan=plan, reviews=reviews) as replicas:
        leader = replicas.first.stage
        for name, node in leader.where("g").items():
            replicas.cluster.change_pod(name, node=node, phase="Running")
        await leader.settled()
        replicas.cluster.add(a_node("n2", gpu=4))

        async def ask(path, body, served=replicas.second, caller=token):
            async with served.client.post(path, json=body, headers=bearer(caller)) as reply:
                return reply.status, await reply.json()

        drain = ("/v1/moves/apply", {"drain": ["n0"]})
        status, answer = await ask(*drain)
        assert (status, len(answer["moves"])) == (200, 1)
        moves = leader.leader.committed.moves
        assert (answer["plan"], moves.by) == (moves.id, "ann")
        refused = await ask(*drain)
        assert (refused[0], refused) == (400, await ask(*drain, replicas.first))
        status, shown = await ask("/v1/moves/control", {"action": "pause"})
        assert (status, shown["by"], shown["paused"]) == (200, "ann", True)
        await replicas.followed()
        async with replicas.second.client.get("/v1/moves", headers=bearer(token)) as reply:
            assert (await reply.json())["plan"] == moves.id
        replica = ("/scheduler/moves/control", {"action": "stop"})
        assert (await ask(*replica, replicas.first, reader))[0] == 403
        assert (await ask(*replica))[0] == 503  # a follower passes nothing on that was passed to it
        status, shown = await ask("/v1/moves/control", {"action": "stop"})
        assert (status, shown["plan"], leader.leader.committed.moves) == (200, "", None)
        address = str(replicas.first.client.make_url("")).rstrip("/")
        await replicas.first.client.close()
        status, problem = await ask(*drain)
        assert status == 503
        assert f"the leader at {address} gave no answer" in problem["detail"]
        assert "gang-extender moves" in problem["detail"]


async def test_who_hangs_up_at_the_follower_has_gone_at_the_leader(replicas):
    """A bind call held at the barrier: its caller leaves the follower, and the leader knows."""
    call = asyncio.create_task(replicas.second.post("bind", replicas.bind_args("g-0")))
    await eventually(
        lambda: replicas.at_barrier(replicas.first), "the call at the leader's barrier"
    )
    (arrival,) = replicas.at_barrier(replicas.first)
    assert arrival.alive()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await eventually(lambda: not arrival.alive(), "the leader to know")
    answer = asyncio.create_task(replicas.first.ask("bind", replicas.bind_args("g-1")))
    await eventually(lambda: len(replicas.at_barrier(replicas.first)) == 2, "the other member")
    assert replicas.cluster.bindings == [], "one that is alive is not the minimum"
    answer.cancel()
    await asyncio.gather(answer, return_exceptions=True)


async def test_a_held_bind_goes_on_at_the_next_leader(replicas):
    """The lease is given back while one member waits at the old leader and one came by the follower: both are bound."""
    calls = [asyncio.create_task(replicas.first.ask("bind", replicas.bind_args("g-0")))]
    await eventually(lambda: replicas.at_barrier(replicas.first), "the barrier")
    await replicas.first.stage.leader.release_lease()
    await eventually(
        lambda: replicas.second.stage.extender_service.checks()[-1].name == "reconciled", "lead"
    )
    calls.append(asyncio.create_task(replicas.first.ask("bind", replicas.bind_args("g-1"))))
    answers = await asyncio.gather(*calls)
    assert [a["Error"] for a in answers] == ["", ""]
    assert len(replicas.cluster.bindings) == 2
    assert replicas.first.stage.event_data(BindBarrierTimedOut) == []


async def test_a_call_in_a_hand_over_waits_for_the_next_leader(replicas):
    """Filter at a replica that has just released the lease, before another acquires it: no error, a moment later an answer."""
    pod = wire_pod(replicas.first.stage, "g-0")
    args = {"Pod": pod, "Nodes": None, "NodeNames": ["n0", "n1"]}
    handing = asyncio.create_task(replicas.first.stage.leader.release_lease())
    await eventually(lambda: not replicas.first.stage.leader.leads(), "given back")
    answer = await replicas.first.ask("filter", args)
    assert answer["Error"] == ""
    assert len(answer["NodeNames"]) == 1
    await handing


async def test_the_time_spent_elsewhere_counts(replicas):
    """A call that was forwarded late is too old for a Binding, though it came this moment."""
    args = [replicas.bind_args(f"g-{n}") for n in (0, 1)]

    async def old(body):
        headers = {FORWARDED: "55000"}
        async with replicas.first.client.post(
            "/scheduler/bind", json=body, headers=headers
        ) as reply:
            return (await reply.json())["Error"]

    errors = await asyncio.gather(*map(old, args))
    assert all(error.startswith("too late") for error in errors), errors
    assert replicas.cluster.bindings == []


async def test_a_leader_that_does_not_answer_is_named(replicas):
    """Each verb has its own form of error, with the address and what helps; the calls after the first fail at once."""
    await replicas.first.client.close()
    pod = wire_pod(replicas.first.stage, "g-0")
    args = {"Pod": pod, "Nodes": None, "NodeNames": ["n0", "n1"]}
    for _ in range(2):
        error = (await replicas.second.ask("filter", args))["Error"]
        assert error.startswith(
            "cannot answer now: this replica follows first at http://127.0.0.1:"
        )
        assert "GANG_EXTENDER_ADVERTISE_URL" in error
    assert await replicas.second.ask("prioritize", args) == []
    status, text = await replicas.second.post("preempt", {"Pod": pod})
    assert (status, text.startswith(b"cannot answer now")) == (503, True)


async def test_a_bind_outlives_its_leader():
    """Killed while it held the call: the follower keeps the caller, takes over, and binds."""
    async with Replicas() as replicas:
        calls = [asyncio.create_task(replicas.second.ask("bind", replicas.bind_args("g-0")))]
        await eventually(lambda: replicas.at_barrier(replicas.first), "the call at the leader")
        last = replicas.bind_args("g-1")
        await replicas.first.stage.killed()
        runner = replicas.first.client.server.runner
        for site in list(runner.sites):
            await site.stop()
        for connection in runner.server.connections:
            connection.transport.abort()
        replicas.clock.advance(TTL_MS / 1000)
        calls.append(asyncio.create_task(replicas.second.ask("bind", last)))
        assert [a["Error"] for a in await asyncio.gather(*calls)] == ["", ""]


async def test_a_held_bind_leaves_a_leader_that_lost_the_database(replicas):
    """Its lease runs out unnoticed: calls that wait there are answered, and forwarded calls go on at the next leader."""
    first, second = replicas.first, replicas.second
    body = replicas.bind_args("g-0")
    own = asyncio.create_task(first.ask("bind", body))
    sent = asyncio.create_task(second.ask("bind", body))
    await eventually(lambda: [len(a.calls) for a in replicas.at_barrier(first)] == [2], "both held")
    last = replicas.bind_args("g-1")
    first.stage.log.unavailable = True
    replicas.clock.advance(TTL_MS / 1000)
    assert (await own)["Error"] == "cannot answer now: the lease has run out"
    answers = await asyncio.gather(sent, second.ask("bind", last))
    assert [a["Error"] for a in answers] == ["", ""]
    assert second.stage.leader.epoch == 2
    assert first.stage.extender_service.checks()[0].reason == "the lease has run out"


async def test_who_is_not_ready_keeps_no_connection(replicas):
    """A Service balances connections, not calls: answers of a replica that is cut off, or ends, end theirs."""

    async def kept(served):
        async with served.client.get("/readyz") as reply:
            return reply.status, reply.headers.get("Connection", "kept")

    first, second = replicas.first, replicas.second
    assert await kept(first) == await kept(second) == (200, "kept")
    second.stage.leader.draining = True
    assert await kept(second) == (503, "close")
    first.stage.log.unavailable = True
    replicas.clock.advance(TTL_MS / 1000)
    assert await kept(first) == (503, "close")


async def test_a_forwarded_call_is_not_forwarded_again(replicas):
    """Never two hops: a replica that does not lead answers so, also when the lease names the wrong address."""
    pod = wire_pod(replicas.first.stage, "g-0")
    args = {"Pod": pod, "Nodes": None, "NodeNames": ["n0", "n1"]}
    headers = {FORWARDED: "1"}
    async with replicas.second.client.post(
        "/scheduler/filter", json=args, headers=headers
    ) as reply:
        assert MISDIRECTED in reply.headers
        assert "is not the leader" in json.loads(await reply.read())["Error"]
    wrong = str(replicas.second.client.make_url("")).rstrip("/")
    replicas.database.address = wrong
    await eventually(lambda: replicas.second.stage.leader.follower.lease.address == wrong, "seen")
    replicas.second.forwarder._filter_s = 0.2  # so long it waits for another leader
    error = (await replicas.second.ask("filter", args))["Error"]
    assert error == f"cannot answer now: {wrong} does not lead any more"

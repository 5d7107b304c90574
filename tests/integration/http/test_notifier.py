"""Notifications from a real log to a real receiver: down, slow, failing, refusing; what another leader goes on with."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress

import asyncpg
import msgspec
import pytest
from aiohttp import web

from extender.control.log.leader import Leader
from extender.control.log.leader_role import LeaseIdentity
from extender.control.monitors import notifier as notifier_module
from extender.control.monitors.notifier import HttpReceiver, Notifier, read_keys, signed_headers
from extender.core.log.events import (
    AssignmentRecord,
    GangObserved,
    GangRemoved,
    GangUnschedulable,
    NewEvent,
    PreemptionCancelled,
    PreemptionPlanned,
    TreeCompiled,
    VictimPod,
    VictimUnit,
)
from extender.core.model.errors import BadInput, NotificationFailed
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, PlanId, PodUid
from extender.core.model.message_formatting import rfc3339
from extender.core.workloads.tree_compiler import GroupSpec
from extender.ports.log_ports import NotifiedUpTo
from extender.runtime.log_keys import NO_KEYS
from extender.runtime.system_clock import SystemClock
from extender.settings import Settings
from extender.store.connections import ConnectionPool
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PostgresReadModels
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from extender.store.snapshot_table import PostgresSnapshots
from extender.telemetry import METRICS
from tests.support.certificates import certificate_folder
from tests.support.service.event_receiver import KEYS, EventReceiver, accept
from tests.support.service.fakes import FakeCluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

NEVER = GangUnschedulable(outcome="impossible", reasons=("full",), when_empty="never")
NOT_NOW = GangUnschedulable(outcome="impossible", reasons=("full",), when_empty="fits")


class LaterClock(SystemClock):
    """The clock of the machine, ahead by what a test adds, or at the time that a test sets."""

    ahead_us = 0
    at_us = 0

    def now_us(self):
        return self.at_us or super().now_us() + self.ahead_us


class Sender:
    """A leader, and the notifier of its process."""

    def __init__(self, url, engines, receiver, key_file, holder, **settings):
        writing, reading = engines
        self.clock = LaterClock()
        self.log = PostgresEventLog(url)
        identity = LeaseIdentity(holder=holder, address="", ttl_ms=30_000)
        snapshots = PostgresSnapshots(writing, NO_KEYS)
        self.leader = Leader(self.log, snapshots, SystemClock(), identity)
        self.leader.history.anchor = FakeCluster()
        self.cursor = PostgresReadModels(writing)
        given = {"notify_url": receiver.url, "notify_secret_file": str(key_file)} | settings
        self.settings = Settings(**given)
        self.http = HttpReceiver(self.settings, self.clock)
        self.notifier = Notifier(
            PostgresEventQueries(reading), self.cursor, self.http, self.leader, self.clock, self.settings
        )  # fmt: skip

    async def append(self, *drafts):
        for uid, data in drafts:
            gang = "" if uid == NIL_GANG else f"{uid}/job"
            draft = NewEvent(gang_uid=GangUid(uid), gang=gang, data=data, actor="t")
            await self.leader.append([draft])

    async def never(self, *uids):
        """Record that gangs, each in a namespace of its name, never fit."""
        for uid in uids:
            await self.append((uid, GangObserved(kind="PodGroup")), (uid, NEVER))


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{KEYS[0]}\nwhsec_{KEYS[1]}\n")
    return path


@pytest.fixture
async def receiver():
    async with EventReceiver() as started:
        yield started


@pytest.fixture
async def sender(database_url, receiver, key_file):
    """Return a function that makes a leader with its notifier; it leads until its block ends."""
    engines = ConnectionPool(database_url, name="test"), reading_pool(database_url)

    @asynccontextmanager
    async def leading(holder="a", **settings):
        one = Sender(database_url, engines, receiver, key_file, holder, **settings)
        running = asyncio.create_task(one.leader.run())
        try:
            await eventually(
                lambda: one.leader.role == "leading" and not one.leader.appends.in_flight, "leading"
            )
            yield one
        finally:
            running.cancel()
            await asyncio.wait([running])
            await one.leader.stop()
            await one.http.close()
            await one.log.close()

    yield leading
    for engine in engines:
        await engine.close()


def subjects(events):
    return [event["subject"] for event in events]


def counted(result, kind="never-fits"):
    return METRICS.registry.get_sample_value(
        "gang_extender_notifications_total", {"type": kind, "result": result}
    )


async def test_each_is_sent_once_in_order_and_signed(sender, receiver):
    """From the first start on; a repeated refusal of the same gang is no news, one after it could fit is."""
    async with sender() as one:
        await one.never("before")
        await one.notifier.look()
        await one.never("b", "a")
        await one.append(("a", NEVER), ("b", NOT_NOW), ("b", NEVER))
        await one.notifier.look()
        await one.notifier.look()
        names = ["PodGroup/b/job", "PodGroup/a/job", "PodGroup/b/job"]
        assert subjects(receiver.events) == names
        assert len(set(receiver.ids())) == 3
        assert (await one.cursor.read()).position == one.leader.committed.position
        assert METRICS.notification_delay_seconds.collect()
        await one.append(("a", GangRemoved(reason="deleted")))
        await one.notifier.look()
        assert len(receiver.events) == 3


async def test_victims_are_notified_of_a_preemption_and_of_its_end(sender, receiver):
    """Each disruption unit when the preemption is recorded, and when it is spared after all."""
    pod = VictimPod(pod="a/job-0", uid=PodUid("p"), node=NodeName("n"))
    unit = VictimUnit(kind="PodGroup", path="a/job", uid="u", priority=1, pods=(pod,))
    planned = PreemptionPlanned(
        preemption=PlanId("x"), kind="PodGroup", priority=9, victims=(unit,), cost={}, alternatives=(), shapes=({"cpu": 1},),
        assignments=(AssignmentRecord(pod="b/job-0", uid=PodUid("q"), group="job", node=NodeName("n")),),
    )  # fmt: skip
    cancelled = PreemptionCancelled(
        preemption=PlanId("x"), reason="no-longer-needed", units_spared=(unit.name,), units_in_progress=(), evicted=0,
    )  # fmt: skip
    async with sender() as one:
        await one.notifier.look()
        await one.append(("b", GangObserved(kind="PodGroup")), ("b", planned))
        await one.notifier.look()
        await one.append(("b", cancelled))
        await one.notifier.look()
        kinds = [event["type"].rpartition(".")[2] for event in receiver.accepted]
        assert kinds == ["preempted", "spared"]
        assert set(subjects(receiver.accepted)) == {"PodGroup/a/job"}
        data = receiver.accepted[0]["data"]
        assert (data["preemptor"], data["pods"]) == ("PodGroup/b/job", [{"pod": "a/job-0", "node": "n"}])  # fmt: skip


async def test_a_large_event_goes_on_with_the_first_that_was_not_accepted(sender, receiver):
    """A preemption of five units at a receiver that takes two requests at a time."""
    units = tuple(
        VictimUnit(
            kind="PodGroup", path=f"a/job-{n}", uid=f"u{n}", priority=1,
            pods=(VictimPod(pod=f"a/job-{n}-0", uid=PodUid(f"p{n}"), node=NodeName("n")),),
        )
        for n in range(5)
    )  # fmt: skip
    planned = PreemptionPlanned(
        preemption=PlanId("x"), kind="PodGroup", priority=9, victims=units, cost={}, alternatives=(), shapes=({"cpu": 1},),
        assignments=(AssignmentRecord(pod="b/job-0", uid=PodUid("q"), group="job", node=NodeName("n")),),
    )  # fmt: skip

    async def answer(_):
        return web.Response(status=204 if len(receiver.events) % 3 else 429)

    async with sender() as one:
        await one.notifier.look()
        receiver.answer = answer
        await one.append(("b", GangObserved(kind="PodGroup")), ("b", planned))
        for _ in range(2):
            with pytest.raises(NotificationFailed, match="answered 429"):
                await one.notifier.look()
        await one.notifier.look()
        assert subjects(receiver.accepted) == [f"PodGroup/a/job-{n}" for n in range(5)]
        assert (await one.cursor.read()).position == one.leader.committed.position


async def test_nothing_waits_for_a_receiver_that_is_down(sender, receiver):
    """Appends go on, the delay grows, and when the receiver comes back it gets all of them."""
    async with sender() as one:
        await one.notifier.look()
        await receiver.stop()
        failed = counted("failed")
        await one.never("a", "b")
        for _ in range(3):
            with pytest.raises(NotificationFailed) as caught:
                await one.notifier.look()
            assert "secret" not in str(caught.value)
            assert str(receiver.port) in str(caught.value)
        assert counted("failed") == failed + 3
        one.clock.ahead_us = 100_000_000
        delay = METRICS.registry.get_sample_value("gang_extender_notification_delay_seconds")
        assert delay >= 100
        await one.never("c")
        await receiver.start()
        await one.notifier.look()
        assert subjects(receiver.accepted) == [f"PodGroup/{n}/job" for n in "abc"]
        assert METRICS.registry.get_sample_value("gang_extender_notification_delay_seconds") == 0


async def test_a_failing_receiver_gets_it_again_and_one_that_refuses_it_does_not(sender, receiver):
    """500 and a redirect are tried again, after what Retry-After asks; 413 concerns only this notification."""
    statuses = [500, 307, 503, 204, 413, 204]

    async def answer(_):
        status = statuses.pop(0)
        headers = {"Retry-After": "120"} if status == 503 else {"Location": "http://127.0.0.1:1/"}
        return web.Response(status=status, headers=headers)

    async with sender() as one:
        await one.notifier.look()
        receiver.answer = answer
        await one.never("a", "b", "c")
        pauses = []
        for status in (500, 307, 503):
            with pytest.raises(NotificationFailed, match=f"answered {status}"):
                await one.notifier.look()
            pauses.append(one.notifier._retry_s())
        assert pauses == [1.0, 2.0, 120.0]
        refused = counted("refused")
        await one.notifier.look()
        assert subjects(receiver.accepted) == ["PodGroup/a/job", "PodGroup/c/job"]
        assert counted("refused") == refused + 1
        assert (await one.cursor.read()).position == one.leader.committed.position


async def test_what_was_accepted_before_a_failure_is_not_sent_again(sender, receiver):
    """The position is that of the last event that was accepted whole."""

    async def answer(event):
        return web.Response(status=500 if event["subject"] == "PodGroup/b/job" else 204)

    async with sender() as one:
        await one.notifier.look()
        receiver.answer = answer
        await one.never("a", "b")
        with pytest.raises(NotificationFailed):
            await one.notifier.look()
    receiver.answer = accept
    async with sender("other") as heir:
        await heir.notifier.look()
        assert subjects(receiver.accepted) == ["PodGroup/a/job", "PodGroup/b/job"]


async def test_a_slow_receiver_delays_nothing_else(sender, receiver, monkeypatch):
    """While a request is open events are appended; after its time is over it is a failure."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def answer(_):
        asked.set()
        await go.wait()
        return web.Response(status=204)

    async with sender() as one:
        await one.notifier.look()
        receiver.answer = answer
        await one.never("a")
        looking = asyncio.create_task(one.notifier.look())
        await asked.wait()
        await one.never("b")
        assert not looking.done()
        go.set()
        await looking
        assert subjects(receiver.accepted) == ["PodGroup/a/job", "PodGroup/b/job"]
        go.clear()
        await one.http.close()
        monkeypatch.setattr(notifier_module, "TIMEOUT_S", 0.05)
        await one.never("c")
        with pytest.raises(NotificationFailed, match="no answer within"):
            await one.notifier.look()
        go.set()


RUBBISH = {
    b"": "closed the connection before it answered",
    b"\0rubbish\r\n\r\n": "its answer is not HTTP",
    b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n": "its answer is not HTTP",
    b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n": "its answer is not HTTP",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n": "its answer is not HTTP",
    b"HTTP/1.1 302 Found\r\nLocation: http://[::\r\nContent-Length: 0\r\n\r\n": "answered 302; redirects are not followed",
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n": "answered 404",
    b"HTTP/1.1 503 Busy\r\nRetry-After: " + b"9" * 400 + b"\r\n\r\n": "answered 503",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 1000: "closed the connection before it answered",
}


async def test_what_a_receiver_answers_that_is_none_changes_nothing(sender):
    """Each is tried again, with the same id and in order, while events are recorded; a body after a success is not read."""
    asked: list[bytes] = []
    answers = [*RUBBISH]

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(next(line for line in head.split(b"\r\n") if line.startswith(b"webhook-id:")))
        if answers:
            writer.write(answers[0])
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"a" * 100)
        await writer.drain()
        if not answers:
            await reader.read()  # until the other side has read enough
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, sender(notify_url=f"http://127.0.0.1:{port}/secret") as one:
        await one.notifier.look()
        begin = one.leader.committed.position
        for number, text in enumerate(RUBBISH.values()):
            await one.never(f"team-{number}")
            with pytest.raises(NotificationFailed, match=text) as failed:
                await one.notifier.look()
            assert "secret" not in str(failed.value)
            assert (await one.cursor.read()).position <= begin + 1
            answers.pop(0)
        assert len(set(asked)) == 1
        asked.clear()
        await one.notifier.look()
        assert len(asked) == len(set(asked)) == len(RUBBISH)
        assert (await one.cursor.read()).position == one.leader.committed.position


async def test_a_gang_that_is_resumed_waits_from_then_on(sender, receiver):
    """It is notified once, when its time is over since then, though it was suspended when its first time was."""

    def compiled(*, suspended):
        return TreeCompiled(
            kind="Job", workload="a/w", uid="w", generation=1, table_version=1, profile="",
            groups=(GroupSpec(kind="PodGroup", name="job"),), suspended=suspended,
        )  # fmt: skip

    async with sender(notify_waiting_after_s=60) as one:
        await one.notifier.look()
        await one.append(("a", GangObserved(kind="PodGroup")), ("b", GangObserved(kind="PodGroup")))
        await one.append((NIL_GANG, compiled(suspended=True)))
        one.clock.ahead_us += 61_000_000
        await one.notifier.look()
        assert subjects(receiver.events) == ["PodGroup/b/job"]
        await one.append((NIL_GANG, compiled(suspended=False)))
        one.clock.ahead_us += 61_000_000
        for _ in range(2):
            await one.notifier.look()
        assert subjects(receiver.events) == ["PodGroup/b/job", "PodGroup/a/job"]
        resumed = one.leader.committed.trees["w"].resumed_us
        assert receiver.events[-1]["data"]["waiting_since"] == rfc3339(resumed)


async def test_who_does_not_lead_sends_nothing(sender, receiver):
    """Also in the middle of what it had to send: the lease is lost between two requests."""
    async with sender() as one:
        await one.notifier.look()

        async def answer(_):
            one.leader.lose("another leads")
            return web.Response(status=204)

        receiver.answer = answer
        await one.never("a", "b")
        await one.notifier.look()
        assert subjects(receiver.events) == ["PodGroup/a/job"]


async def test_the_next_leader_goes_on(sender, receiver):
    """From the position of the one before, and without what that one has sent of gangs that still never fit."""
    async with sender() as one:
        await one.notifier.look()
        await one.never("a")
        await one.notifier.look()
        await one.never("b")
    async with sender("other") as heir:
        await heir.notifier.look()
        await heir.append(("a", NEVER))
        await heir.notifier.look()
        assert subjects(receiver.accepted) == ["PodGroup/a/job", "PodGroup/b/job"]


async def test_a_gang_that_waits_is_notified_when_its_time_is_over(sender, receiver):
    """Once for each gang, by this leader or the next; not of one that is gone before."""
    async with sender(notify_waiting_after_s=60) as one:
        await one.notifier.look()
        for uid in ("a", "b", "c"):
            await one.append((uid, GangObserved(kind="PodGroup")), (uid, NOT_NOW))
        await one.append(("c", GangRemoved(reason="deleted")))
        await one.notifier.look()
        assert receiver.events == []
        one.clock.ahead_us = 100_000_000
        await one.notifier.look()
        await one.notifier.look()
        assert subjects(receiver.accepted) == ["PodGroup/a/job", "PodGroup/b/job"]
        assert {event["type"] for event in receiver.events} == {"dev.gang-extender.waiting"}
        assert receiver.events[0]["data"]["waited_seconds"] == 60
    async with sender("other", notify_waiting_after_s=60) as heir:
        heir.clock.ahead_us = 200_000_000
        await heir.notifier.look()
        assert len(receiver.events) == 2


@pytest.mark.parametrize(("after_s", "expected"), [(30, ["a", "b"]), (90, ["a"])])
async def test_another_time_to_wait_skips_and_repeats_none(sender, receiver, after_s, expected):
    """The next leader has a shorter one, which is over for a gang that has waited between the two, or a longer one."""
    async with sender(notify_waiting_after_s=60) as one:
        await one.notifier.look()
        await one.append(("a", GangObserved(kind="PodGroup")), ("a", NOT_NOW))
        await one.append(("b", GangObserved(kind="PodGroup")), ("b", NOT_NOW))
        state = one.leader.committed
        since_us = {uid: state.gangs[GangUid(uid)].observed_us for uid in ("a", "b")}
        assert since_us["a"] < since_us["b"]
        one.clock.at_us = since_us["a"] + 60_000_000  # b's time is not over
        await one.notifier.look()
        assert subjects(receiver.accepted) == ["PodGroup/a/job"]
    async with sender("other", notify_waiting_after_s=after_s) as heir:
        heir.clock.at_us = since_us["b"] + 59_000_000
        await heir.notifier.look()
        assert subjects(receiver.accepted) == [f"PodGroup/{uid}/job" for uid in expected]


async def test_only_the_chosen_namespaces_are_notified(sender, receiver):
    """All others count as sent."""
    async with sender(notify_namespaces=("a", "c"), notify_waiting_after_s=60) as one:
        await one.notifier.look()
        await one.never("a", "b", "c")
        one.clock.ahead_us = 100_000_000
        await one.notifier.look()
        assert {event["namespace"] for event in receiver.events} == {"a", "c"}
        assert len(receiver.events) == 4
        assert (await one.cursor.read()).position == one.leader.committed.position


async def test_many_events_are_read_in_pages(sender, receiver):
    """More than one page, none twice."""
    async with sender() as one:
        await one.notifier.look()
        names = [f"g{number:03}" for number in range(notifier_module.PAGE + 7)]
        await one.never(*names)
        await one.notifier.look()
        assert subjects(receiver.accepted) == [f"PodGroup/{name}/job" for name in names]


async def test_the_database_has_a_size(sender, database_url):
    """As PostgreSQL itself gives it for the metric."""
    async with sender() as one:
        size = await one.notifier._events.database_bytes()
    connection = await asyncpg.connect(database_url)
    try:
        files = await connection.fetchval("SELECT sum(pg_relation_size(oid)) FROM pg_class")
    finally:
        await connection.close()
    assert size > files / 2 > 0


async def test_the_position_never_goes_back(sender):
    """Neither by a leader that was overtaken."""
    async with sender() as one:
        await one.cursor.save(NotifiedUpTo(position=9, waited_us=5))
        await one.cursor.save(NotifiedUpTo(position=4, waited_us=7))
        assert await one.cursor.read() == NotifiedUpTo(position=9, waited_us=7)


async def test_the_certificate_of_the_receiver_is_verified(sender, receiver, tmp_path):
    """By the CA of the setting; without it there is no request."""
    folder = certificate_folder(tmp_path / "certificates")
    await receiver.stop()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder.certificate("server"), folder.key("server"))
    app = web.Application()
    app.router.add_post("/hook/secret", receiver._receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", receiver.port, ssl_context=context).start()
    url = receiver.url.replace("http:", "https:")
    try:
        async with sender(notify_url=url) as one:
            await one.notifier.look()
            await one.never("a")
            with pytest.raises(NotificationFailed, match="certificate"):
                await one.notifier.look()
        async with sender(
            "other", notify_url=url, notify_ca_file=str(folder.certificate("ca"))
        ) as heir:
            await heir.notifier.look()
            assert subjects(receiver.accepted) == ["PodGroup/a/job"]
    finally:
        await runner.cleanup()


def test_the_signature_is_that_of_standard_webhooks():
    """The example that the libraries of Standard Webhooks are tested with."""
    key = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    headers = signed_headers(
        [msgspec.json.decode(f'"{key}"', type=bytes)],
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}',
    )  # fmt: skip
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "has no key"),
        ("short", "key 1 of .* is not 24 bytes"),
        (f"{KEYS[0]}\nnot base64!", "key 2 of "),
        (None, "cannot read"),
    ],
)
def test_keys_that_cannot_be_used_are_named_without_their_text(tmp_path, text, fault):
    """Before the service starts, with what helps."""
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=f"--notify-secret-file: .*{fault}") as caught:
        read_keys(str(path))
    assert "base64!" not in str(caught.value)
    if text is not None:
        assert "openssl rand -base64 32" in str(caught.value)

"""kube-scheduler calls over one connection of HTTP/2, and each call is answered as over HTTP/1.1."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta

import h2.exceptions
import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import (
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from extender.cli.certificates.certificate_folder import SERVER_NAME
from extender.http.listener import connection_limits, http2_connection
from extender.http.responses import unsent_answers
from extender.listener_settings import HTTP1_SERVER_NAME
from extender.telemetry import METRICS
from tests.integration.http.test_fast_path_calls import bodies
from tests.support.certificates import certificate_folder, client_context
from tests.support.service.http2_client import Http2Client, http2_client
from tests.support.service.tls_listeners import BIND, FILTER, client, listening
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return certificate_folder(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def in_a_second(monkeypatch):
    """What arrives counts as if within one second, however slow the machine is."""
    monkeypatch.setattr(http2_connection, "COUNTED_S", 3600.0)


@pytest.mark.parametrize("name", [SERVER_NAME, HTTP1_SERVER_NAME])
async def test_the_name_of_the_server_chooses_the_version_of_http(made, name):
    """Both are in the certificate; the caller offers both versions, as kube-scheduler does; new files change nothing."""
    context = client_context(made)
    context.set_alpn_protocols(["h2", "http/1.1"])
    chosen = "h2" if name == SERVER_NAME else "http/1.1"
    async with listening(made) as service:
        for _ in range(2):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", service.ports[0], ssl=context, server_hostname=name
            )
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
            writer.close()
            made.renew(datetime.now(UTC), timedelta(days=9))
            service.reload()


async def test_a_connection_for_http_1_1_stays_open_until_files_have_changed(made):
    async with listening(made) as service, client(made) as session:

        async def call():
            async with session.post(
                service.url(FILTER), json=service.filter_body(), server_hostname=HTTP1_SERVER_NAME
            ) as reply:
                assert reply.status == 200, await reply.text()
                return reply.headers.get("Connection")

        assert [await call(), await call()] == [None, None]
        made.renew(datetime.now(UTC), timedelta(days=9))
        service.reload()
        assert [await call(), await call(), await call()] == ["close", None, None]


def bind_body(listening_, name):
    stage = listening_.served.stage
    ref = stage.ref(name)
    return {"PodName": ref.name, "PodNamespace": ref.namespace, "PodUID": ref.uid, "Node": stage.reserved_node(name)}  # fmt: skip


async def test_every_answer_is_that_of_http_1_1(made):
    """Status, headers and body, of usual calls and of those that aiohttp answers; only the date may differ."""
    async with (
        listening(made) as service,
        client(made) as one,
        http2_client(made, service.ports[0]) as two,
    ):
        calls = [
            ("POST", f"/scheduler/{verb}", body) for verb, body in bodies(service.served).values()
        ]
        calls += [
            ("GET", "/scheduler/filter", b""), ("POST", "/scheduler/nonsense", b"{}"), ("GET", "/livez", b""),
            ("POST", "/scheduler/preempt", b"{}"), ("POST", FILTER, b"x" * 600_000),
        ]  # fmt: skip
        for method, path, body in calls:
            url = f"https://127.0.0.1:{service.ports[0]}{path}"
            headers = {"Content-Type": "application/json", "User-Agent": "Go"}
            async with one.request(method, url, data=body, headers=headers) as reply:
                old = (reply.status, await reply.read())
                expected = {name.lower(): value for name, value in reply.headers.items()}
            new = await two.ask(path, body, method=method, user_agent="Go")
            assert (new.status, new.body) == old, (method, path)
            for headers in (new.headers, expected):
                headers.pop("date", None), headers.pop("connection", None)
            assert new.headers == expected, (method, path)


async def test_calls_that_wait_do_not_hold_up_others(made):
    """The first bind waits for the second at the barrier; as many calls of filter as may be open are answered meanwhile."""
    async with listening(made) as service, http2_client(made, service.ports[0]) as caller:
        first = caller.start(BIND, json.dumps(bind_body(service, "g-0")).encode())
        body = json.dumps(service.filter_body()).encode()
        numbers = [caller.start(FILTER, body) for _ in range(http2_connection.STREAMS_MAX - 1)]
        assert {(await caller.answer(number)).status for number in numbers} == {200}
        assert not caller.has_answer(first)
        second = await caller.ask(BIND, bind_body(service, "g-1"))
        for answer in (second, await caller.answer(first)):
            assert (answer.status, json.loads(answer.body)) == (200, {"Error": ""})


async def test_a_large_answer_waits_for_the_window_of_the_caller(made):
    """A caller that takes 1,000 bytes at a time gets all of it; the body of its request is large as well."""
    names = [f"node-{number:05}" for number in range(5_000)]
    async with (
        listening(made) as service,
        http2_client(made, service.ports[0], window=1_000) as caller,
    ):
        body = service.filter_body() | {"NodeNames": names}
        del body["Pod"]["metadata"]["labels"]
        body["Pod"]["metadata"]["uid"] = "unknown"
        answer = await caller.ask(FILTER, body)
        assert answer.status == 200
        assert len(answer.body) > 50_000
        assert answer.body.startswith(b"{")
        json.loads(answer.body)


async def test_a_body_without_a_length_is_read_to_its_end(made):
    """As HTTP/2 permits; aiohttp gets it in chunks."""
    async with listening(made) as service, http2_client(made, service.ports[0]) as caller:
        body = json.dumps(service.filter_body()).encode()
        number = caller.start(FILTER, body[:100], ends=False, content_length=None)
        await asyncio.sleep(0.01)
        caller.h2.send_data(number, body[100:], end_stream=True)
        caller.flush()
        answer = await caller.answer(number)
        assert (answer.status, json.loads(answer.body)["NodeNames"]) == (200, ["n0"])


def large_filter_body(service, names):
    """Return a call whose answer is larger than itself: a pod that waits gets no node, with the reason for each."""
    body = service.filter_body() | {"NodeNames": [f"node-{n:05}-{'x' * 100}" for n in range(names)]}
    body["Pod"]["metadata"]["uid"] = "unknown"
    return json.dumps(body).encode()


async def test_answers_that_are_not_read_count_and_end(made, monkeypatch):
    """Beyond `max_body_bytes_in_flight` a call is refused; after the time without progress their streams end, and calls are answered."""
    monkeypatch.setattr(unsent_answers, "STALL_S", 3600.0)
    held, settle = set(), unsent_answers.UnsentBytes.settle

    def noted(unsent, **options):
        settle(unsent, **options)
        held.add(unsent)

    monkeypatch.setattr(unsent_answers.UnsentBytes, "settle", noted)
    refused = METRICS.http_requests_refused.labels("answer-not-read")._value.get
    before = refused()
    async with (
        listening(made, max_body_bytes_in_flight=1_000_000) as service,
        http2_client(made, service.ports[0], window=0) as idle,
        http2_client(made, service.ports[0]) as other,
    ):
        body = large_filter_body(service, 1000)
        unread = [idle.start(FILTER, body) for _ in range(8)]
        await eventually(
            lambda: METRICS.http_body_bytes_in_flight._value.get() > 1_000_000 - len(body),
            "unread answers",
        )
        answer = await other.ask(FILTER, body)
        assert (answer.status, b"answers that were not read" in answer.body) == (503, True)
        for unsent in [*held]:
            if unsent._timer is not None:  # the time is over
                unsent._timer.cancel()
                unsent._look()
        for number in unread:
            with pytest.raises(ConnectionResetError):
                await idle.answer(number)
        assert refused() >= before + 5
        await eventually(lambda: METRICS.http_body_bytes_in_flight._value.get() == 0, "all of it")
        async with http2_client(made, service.ports[0]) as third:
            assert (await third.ask(FILTER, body)).status == 200


async def test_a_window_that_is_closed_holds_the_one_who_writes(made, monkeypatch):
    """As a full socket does over HTTP/1.1: `pause_writing`, and `resume_writing` when the caller takes the rest."""
    calls = []
    for name in ("pause_writing", "resume_writing"):
        inner = getattr(connection_limits._Gate, name)

        def noted(gate, inner=inner, name=name):
            calls.append(name)
            inner(gate)

        monkeypatch.setattr(connection_limits._Gate, name, noted)
    async with (
        listening(made) as service,
        http2_client(made, service.ports[0], window=1_000) as caller,
    ):
        answer = await caller.ask(FILTER, large_filter_body(service, 2000))
        assert (answer.status, calls) == (200, ["pause_writing", "resume_writing"])
        json.loads(answer.body)


async def until_settled(client):
    """Read the settings of the server, open the window of the connection, and read nothing after that."""
    client.h2.increment_flow_control_window(1 << 30)
    for event in client.h2.receive_data(await client.reader.read(1 << 16)):
        client._take(event)
    client.flush()
    client.writer.transport.pause_reading()


async def test_a_caller_that_reads_nothing_at_all_is_ended(made, monkeypatch):
    """The window is open, and the socket full: nothing of it stays."""
    monkeypatch.setattr(unsent_answers, "STALL_S", 0.5)
    monkeypatch.setattr(Http2Client, "_read", until_settled)
    async with listening(made) as service:  # noqa: SIM117 -- as long as the connection is open
        async with http2_client(made, service.ports[0], window=2**31 - 1) as idle:
            for _ in range(30):
                idle.start(FILTER, large_filter_body(service, 3000))
            await eventually(
                lambda: (
                    METRICS.http_body_bytes_in_flight._value.get() == 0
                    and not service.runners[0].app[connection_limits.CONNECTIONS]._http2
                ),
                "the end of the connection",
            )


TINY = {
    "pings": PingFrame(0, opaque_data=b"12345678").serialize(),
    "settings": SettingsFrame(0, settings={3: 100}).serialize(),
    "windows": WindowUpdateFrame(0, window_increment=1).serialize(),
    "resets": RstStreamFrame(1, error_code=8).serialize(),
    "priorities": PriorityFrame(1).serialize(),
    "unknown frames": b"\0\0\0\xff\0\0\0\0\0",
    "empty data": DataFrame(1).serialize(),
    "ends": DataFrame(1, flags=["END_STREAM"]).serialize(),
    "a mixture": b"".join(
        (
            PingFrame(0, opaque_data=b"12345678").serialize(), b"\0\0\0\xff\0\0\0\0\0",
            SettingsFrame(0).serialize(), PriorityFrame(1).serialize(), WindowUpdateFrame(1, window_increment=1).serialize(),
            DataFrame(7, data=b"x").serialize(), SettingsFrame(0, flags=["ACK"]).serialize(),
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TINY)
async def test_a_hundred_thousand_tiny_frames_end_their_connection(
    kind, made, in_a_second, monkeypatch
):
    """After some thousand, with a reason, and with some of them in each turn of the loop, so that others are answered between."""
    sizes, inner = [], http2_connection.Http2Connection._receive

    def noted(connection, data):
        sizes.append(len(data))
        inner(connection, data)

    refused = METRICS.http_requests_refused.labels("control-frames")._value.get
    before = refused()
    async with listening(made) as service, http2_client(made, service.ports[0]) as good:  # noqa: SIM117 -- that of the flood ends
        async with http2_client(made, service.ports[0]) as caller:
            caller.start(FILTER, b"{", ends=False, content_length="9")  # stream 1
            assert (await good.ask(FILTER, service.filter_body())).status == 200
            monkeypatch.setattr(http2_connection.Http2Connection, "_receive", noted)
            caller.writer.write(TINY[kind] * (900_000 // len(TINY[kind])))
            await caller.ended.wait()
            assert (await good.ask(FILTER, service.filter_body())).status == 200
            monkeypatch.undo()
    frames = sum(sizes) / len(TINY[kind])
    assert max(sizes) < 4096
    if kind not in (
        "resets",
        "empty data",
        "ends",
        "a mixture",
    ):  # where h2 may find an error of its own first
        assert caller.reason == ErrorCodes.ENHANCE_YOUR_CALM
        assert refused() == before + 1
    assert frames < 2 * http2_connection.CONTROL_FRAMES_PER_S + 1000


async def test_many_malformed_requests_end_their_connection(made, in_a_second, monkeypatch):
    """Each is reset, and brings nothing of a request."""
    monkeypatch.setattr(http2_connection, "CONTROL_FRAMES_PER_S", 20)
    monkeypatch.setattr(Http2Client, "_read", until_settled)
    block = b"\x82\x87"  # a method and a scheme, no path
    refused = METRICS.http_requests_refused.labels("control-frames")._value.get
    before = refused()
    async with listening(made) as service, http2_client(made, service.ports[0]) as caller:
        for number in range(1, 601, 2):
            frame = HeadersFrame(number, block, flags=["END_HEADERS", "END_STREAM"])
            caller.writer.write(frame.serialize())
        await eventually(lambda: refused() == before + 1, "the end of the connection")


async def test_what_is_not_taken_beside_answers_has_a_limit(made, monkeypatch):
    """Acknowledgements of pings to a caller that takes nothing: its connection ends, and none of it counts any more."""
    monkeypatch.setattr(http2_connection, "UNTAKEN_BYTES_MAX", 1_000)
    async with listening(made) as service, http2_client(made, service.ports[0]) as caller:
        assert (await caller.ask(FILTER, service.filter_body())).status == 200
        (connection,) = service.runners[0].app[connection_limits.CONNECTIONS]._http2.values()
        connection.pause_writing()
        for _ in range(100):
            caller.writer.write(TINY["pings"])
            await asyncio.sleep(0)
        await caller.ended.wait()
        await eventually(lambda: METRICS.http_body_bytes_in_flight._value.get() == 0)


async def test_rapid_resets_end_their_connection(made, in_a_second):
    """A call that is reset at once costs more than the caller pays: CVE-2023-44487."""
    async with listening(made) as service, http2_client(made, service.ports[0]) as caller:
        for _ in range(3000):
            caller.h2.reset_stream(caller.start(FILTER, b"{", ends=False, content_length="9"))
        caller.flush()
        await caller.ended.wait()
        assert caller.reason == ErrorCodes.ENHANCE_YOUR_CALM


BAD = {
    "a line break in a value": {"x_other": "a\r\nhost: elsewhere"},
    "a line break in a name": {"x\r\nhost": "elsewhere"},
    "a header of a connection": {"transfer_encoding": "chunked"},
    "no path": {":path": None},
    "a space in the path": {":path": "/scheduler/filter HTTP/1.1"},
    "a name in upper case": {"X_Other": "a"},
    "a space around a value": {"x_other": " a"},
    "another host": {"host": "elsewhere"},
    "a pseudo-header among the headers": {":protocol": "a"},
    "a pseudo-header of a response": {":status": "200"},
}


@pytest.mark.parametrize("name", BAD)
async def test_a_malformed_request_reaches_no_handler(name, made, monkeypatch):
    """It could become two requests, or another one; the others of its connection are answered."""
    received = []
    monkeypatch.setattr(connection_limits._Gate, "_receive", lambda _, data: received.append(data))
    async with listening(made) as service, http2_client(made, service.ports[0]) as caller:
        for _ in range(2):  # what was refused is not remembered as right
            with pytest.raises(ConnectionResetError, match="PROTOCOL_ERROR"):
                await caller.ask(FILTER, service.filter_body(), **BAD[name])
        assert received == []
        monkeypatch.undo()
        assert (await caller.ask(FILTER, service.filter_body())).status == 200


@pytest.mark.parametrize(
    "bytes_",
    [(9).to_bytes(3) + b"\6\0\0\0\0\0" + bytes(9), b"\xff" * 100_000],
    ids=["a ping of nine bytes", "a frame of 16 MiB"],
)
async def test_what_is_not_http2_ends_the_connection(bytes_, made):
    """Also where a call is open on it; others are answered."""
    async with listening(made, header_timeout_s=60.0) as service:
        async with http2_client(made, service.ports[0]) as caller:
            caller.start(BIND, json.dumps(bind_body(service, "g-0")).encode())
            assert (await caller.ask(FILTER, service.filter_body())).status == 200
            caller.writer.write(bytes_)
            await caller.ended.wait()
        async with http2_client(made, service.ports[0]) as other:
            assert (await other.ask(FILTER, service.filter_body())).status == 200


def random_frame(chance):
    """Return a frame of a random type and stream, with random flags and bytes, often of the right length."""
    kind = chance.choice([*range(10), 255])
    size = {2: 5, 3: 4, 4: 6 * chance.randrange(3), 6: 8, 7: 8, 8: 4}.get(
        kind, chance.randrange(40)
    )
    payload = chance.randbytes(size if chance.random() < 0.8 else chance.randrange(60))
    head = len(payload).to_bytes(3) + bytes([kind, chance.choice([0, 1, 4, 5, 8, 32, 255])])
    return head + chance.choice([0, 1, 3, 5, 2, 2**31 - 1]).to_bytes(4) + payload


async def test_random_frames_do_not_disturb_others(made):
    """100 connections with some random frames each, between real calls; nothing fails unexpectedly in the event loop."""
    chance, failures = random.Random(5), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with listening(made) as service, http2_client(made, service.ports[0]) as good:
        for _ in range(100):
            async with http2_client(made, service.ports[0]) as caller:
                caller.start(FILTER, b"{", ends=False, content_length="9")
                for _ in range(chance.randrange(1, 6)):
                    caller.writer.write(random_frame(chance))
                    caller.writer.write(caller.h2.data_to_send())
                await asyncio.sleep(0)
            assert (await good.ask(FILTER, service.filter_body())).status == 200
    assert failures == []


async def test_a_body_that_does_not_arrive_is_a_408(made):
    """Only its stream ends with an error; a call that waits on the same connection is answered."""
    async with (
        listening(made, body_timeout_s=0.3) as service,
        http2_client(made, service.ports[0]) as caller,
    ):
        waiting = caller.start(BIND, json.dumps(bind_body(service, "g-0")).encode())
        number = caller.start(FILTER, b"{", ends=False, content_length="100")
        answer = await caller.answer(number)
        assert answer.status == 408
        assert b"body is not complete" in answer.body
        async with http2_client(made, service.ports[0]) as other:
            await other.ask(BIND, bind_body(service, "g-1"))
        assert (await caller.answer(waiting)).status == 200


async def test_streams_count_as_connections(made):
    """`max_connections_per_peer` is a limit of open calls for whichever version."""
    async with (
        listening(made, max_connections_per_peer=3) as service,
        http2_client(made, service.ports[0]) as caller,
    ):
        held = [caller.start(FILTER, b"{", ends=False, content_length="9") for _ in range(2)]
        refused = await caller.ask(FILTER, service.filter_body())
        assert (refused.status, b"3 connections of 127.0.0.1" in refused.body) == (503, True)
        for number in held:
            caller.reset(number)


async def test_a_caller_that_resets_a_bind_call_is_seen_to_be_gone(made):
    """As one that closes its connection of HTTP/1.1: its member does not count as arrived."""
    async with listening(made) as service, http2_client(made, service.ports[0]) as caller:
        barriers = service.served.stage.barriers._barriers
        number = caller.start(BIND, json.dumps(bind_body(service, "g-0")).encode())
        await eventually(lambda: any(barrier.arrivals for barrier in barriers.values()))
        ((arrival,),) = [tuple(barrier.arrivals.values()) for barrier in barriers.values()]
        assert arrival.alive()
        caller.reset(number)
        await eventually(lambda: not arrival.alive())
        assert (await caller.ask(FILTER, service.filter_body())).status == 200


async def test_a_stop_answers_what_is_open_and_sends_goaway(made):
    """The rest of the gang may still come over another connection, as from a kube-scheduler that reads GOAWAY."""
    async with listening(made) as service, http2_client(made, service.ports[0]) as caller:
        first = caller.start(BIND, json.dumps(bind_body(service, "g-0")).encode())
        await caller.ask(FILTER, service.filter_body())
        stopping = asyncio.create_task(service.runners[0].cleanup())
        await caller.going_away.wait()
        second = await caller.ask(BIND, bind_body(service, "g-1"))  # it has crossed the GOAWAY
        assert [second.status, (await caller.answer(first)).status] == [200, 200]
        await caller.ended.wait()
        await stopping


async def test_a_connection_has_so_many_open_calls_only(made):
    """h2 looks through all of them for each that is new; one more is refused, as one that may be sent again."""
    async with listening(made) as service, http2_client(made, service.ports[0]) as caller:
        count = http2_connection.STREAMS_MAX
        held = [caller.start(FILTER, b"{", ends=False, content_length="9") for _ in range(count)]
        with pytest.raises(h2.exceptions.TooManyStreamsError):  # the client knows the setting
            caller.start(FILTER)
        caller.reset(held[0])
        assert (await caller.ask(FILTER, service.filter_body())).status == 200

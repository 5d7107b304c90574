"""What a client of the bench sends again, and what it does not, to a server that loses answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from aiohttp import web

from extender.core.model.errors import ClusterUnavailable, RequestRejected
from tests.bench import calls_and_log, quick, race, stand
from tests.bench.race import BoundWatch
from tests.bench.sides import NAMESPACE
from tests.bench.stand import TRIES, Loader, Stand
from tests.bench.verdicts import verdict_text
from tests.controlplane.api import ApiError
from tests.controlplane.objects import a_pod, path_of
from tests.e2e.scenarios.service import NotAnswered
from tests.support.certificates import certificate_folder
from tests.support.waiting import eventually

PODS = f"/api/v1/namespaces/{NAMESPACE['ours']}/pods"
PUBLISHED = "/api/v1/namespaces/gang-extender/configmaps"
COLLECTIONS = ("pods", "events", "podgroups", "compositepodgroups", "configmaps")
POD = a_pod("a", namespace=NAMESPACE["ours"])


class Answer(NamedTuple):
    """What is answered in place of the true answer."""

    status: int
    message: str = ""


SLOW = Answer(504, "Timeout: request did not complete within the allotted timeout")
ETCD = Answer(500, "etcdserver: request timed out")
BROKEN = Answer(500, "no such column")
DROPPED = Answer(0)  # the connection is closed


class LossyApi:
    """An API server that keeps objects by their path, and does not answer some requests as it should."""

    url: str

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.calls: Counter[tuple[str, str]] = Counter()
        self.losses: dict[tuple[str, str], list[tuple[Answer, bool]]] = {}

    def lose(self, method: str, path: str, *answers: Answer, carried_out: bool = False) -> None:
        """Answer the next requests of a method to a path so, after they are carried out or in place of it."""
        self.losses[method, path] = [(answer, carried_out) for answer in answers]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        call = ("WATCH" if "watch" in request.query else request.method, request.path)
        self.calls[call] += 1
        lost, carried_out = self.losses[call].pop(0) if self.losses.get(call) else (None, True)
        if carried_out:
            answer = await self._carry_out(request)
        if lost is DROPPED:
            assert request.transport is not None
            request.transport.close()
        if lost is not None:
            return web.json_response({"message": lost.message}, status=lost.status or 502)
        return answer

    async def _carry_out(self, request: web.Request) -> web.StreamResponse:
        path, method = request.path, request.method
        body = msgspec.json.decode(await request.read() or b"{}")
        owner, _, last = path.rpartition("/")
        if last == "binding":
            self.objects[owner]["spec"]["nodeName"] = body["target"]["name"]
            return web.json_response({}, status=201)
        if last in COLLECTIONS:
            return await self._collection(request, body)
        if path not in self.objects:
            return web.json_response({"reason": "NotFound"}, status=404)
        stored = self.objects.pop(path) if method == "DELETE" else self.objects[path]
        if method == "PATCH":
            stored["metadata"].update(body["metadata"])
        return web.json_response(stored)

    async def _collection(self, request: web.Request, body: Any) -> web.StreamResponse:
        names = [key for key in self.objects if key.rpartition("/")[0] == request.path]
        if request.method == "POST":
            name = f"{request.path}/{body['metadata']['name']}"
            if name in names:
                return web.json_response({"reason": "AlreadyExists"}, status=409)
            if "dryRun" not in request.query:
                self.objects[name] = body
            return web.json_response(body, status=201)
        if request.method == "DELETE":
            for name in names:
                del self.objects[name]
            return web.json_response({})
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            return response  # it ends at once
        listed = [self.objects[name] for name in names]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": listed})


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LossyApi]:
    """Serve it, to clients that do not pause before they try again."""
    monkeypatch.setattr(stand, "PAUSE_S", 0.0)
    monkeypatch.setattr(race, "PAUSE_S", 0.0)
    lossy = LossyApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", lossy.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    lossy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield lossy
    await runner.cleanup()


@pytest.fixture(scope="module")
def ca_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the CA that a client wants to know."""
    return certificate_folder(tmp_path_factory.mktemp("certs")).certificate("ca")


@pytest.fixture
def bench(server: LossyApi, ca_file: Path) -> Stand:
    """Make a stand whose control plane is the server."""
    made = Stand()
    made.plane = SimpleNamespace(url=server.url, ca_file=ca_file)
    return made


@pytest.fixture
async def api(bench: Stand) -> AsyncIterator[Loader]:
    async with bench.loader() as client:
        yield client


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("lost", [SLOW, ETCD, DROPPED], ids=["504", "etcd", "dropped"])
async def test_sweeps_survive_a_lost_delete(
    bench: Stand, server: LossyApi, lost: Answer, *, carried_out: bool
) -> None:
    """The pods of a run are deleted, where the API server did not finish it in time."""
    server.objects = {f"{PODS}/a{number}": {} for number in range(40)}
    server.lose("DELETE", PODS, lost, carried_out=carried_out)
    await bench.sweep()
    assert server.calls["DELETE", PODS] == 2
    assert server.objects == {}


@pytest.mark.parametrize(("carried_out", "sent"), [(False, 2), (True, 1)])
async def test_lost_creates_are_looked_up(
    api: Loader, server: LossyApi, sent: int, *, carried_out: bool
) -> None:
    """A pod whose create is not answered is created once, and returned."""
    server.lose("POST", PODS, SLOW, carried_out=carried_out)
    assert await api.create(POD) == POD
    assert server.calls["POST", PODS] == sent
    assert server.objects == {path_of(POD, named=True): POD}


async def test_creates_may_come_late(api: Loader, server: LossyApi) -> None:
    """A pod that is not there when it is looked up, and is when its create is sent again, was created."""
    named = path_of(POD, named=True)
    server.lose("POST", PODS, SLOW, carried_out=True)
    server.lose("GET", named, Answer(404))
    assert await api.create(POD) == POD
    assert server.calls["POST", PODS] == server.calls["GET", named] == 2


async def test_a_first_conflict_is_raised(api: Loader, server: LossyApi) -> None:
    await api.create(POD)
    with pytest.raises(ApiError, match="409 AlreadyExists"):
        await api.create(POD)
    assert server.calls["POST", PODS] == 2


@pytest.mark.parametrize(("carried_out", "sent"), [(False, 2), (True, 1)])
async def test_lost_bindings_are_looked_up(
    api: Loader, server: LossyApi, sent: int, *, carried_out: bool
) -> None:
    """A second Binding of a pod would be refused."""
    named = path_of(POD, named=True)
    server.objects = {named: {"metadata": {}, "spec": {}}}
    server.lose("POST", f"{named}/binding", SLOW, carried_out=carried_out)
    await api.post(f"{named}/binding", {"target": {"name": "n1"}})
    assert server.objects[named]["spec"] == {"nodeName": "n1"}
    assert server.calls["POST", f"{named}/binding"] == sent


async def test_dry_runs_are_sent_again(api: Loader, server: LossyApi) -> None:
    """Nothing is looked up: a dry run stores nothing."""
    server.lose("POST", PODS, SLOW, carried_out=True)
    assert await api.post(PODS, POD, dryRun="All") == POD
    assert server.calls == {("POST", PODS): 2}


async def test_objects_are_deleted_once(api: Loader, server: LossyApi) -> None:
    """The second DELETE finds nothing, and that is what was wanted; without a first one it is an error."""
    named = path_of(POD, named=True)
    server.objects = {named: POD}
    server.lose("DELETE", named, SLOW, carried_out=True)
    assert await api.delete(named) == {}
    with pytest.raises(ApiError, match="404"):
        await api.delete(named)
    assert server.calls["DELETE", named] == 3


async def test_merge_patches_are_sent_again(api: Loader, server: LossyApi) -> None:
    named = path_of(POD, named=True)
    server.objects = {named: {"metadata": {"name": "a"}}}
    server.lose("PATCH", named, SLOW, carried_out=True)
    patched = await api.patch(named, {"metadata": {"finalizers": None}})
    assert patched == {"metadata": {"name": "a", "finalizers": None}}
    assert server.calls["PATCH", named] == 2


async def test_json_patches_are_not(api: Loader, server: LossyApi) -> None:
    """One that adds to a list would add twice."""
    server.lose("PATCH", PODS, SLOW)
    with pytest.raises(ApiError, match="504"):
        await api.patch(PODS, [], kind="json")
    assert server.calls["PATCH", PODS] == 1


async def test_other_errors_are_raised(api: Loader, server: LossyApi) -> None:
    """An error of the server with another cause is not one of time."""
    server.lose("GET", PODS, BROKEN)
    with pytest.raises(ApiError, match="no such column"):
        await api.get(PODS)
    assert server.calls["GET", PODS] == 1


async def test_tries_are_counted(api: Loader, server: LossyApi) -> None:
    server.lose("GET", PODS, *[SLOW] * (TRIES + 1))
    with pytest.raises(ApiError, match="allotted timeout"):
        await api.get(PODS)
    assert server.calls["GET", PODS] == TRIES


async def test_the_service_with_only_the_calls_sends_its_writes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is rejected the second time was carried out the first time; what is rejected at once is an error."""
    monkeypatch.setattr(calls_and_log, "PAUSE_S", 0.0)
    away = ClusterUnavailable("no answer within 5.0 s")
    rejected = RequestRejected("409")
    sent: list[Exception | None] = []

    async def write() -> None:
        sent.append(answers.pop(0))
        if (error := sent[-1]) is not None:
            raise error

    for answers in ([None], [away, away, None], [away, rejected]):
        sent.clear()
        await calls_and_log.repeated(write)
        assert answers == []
    answers = [rejected, None]
    with pytest.raises(RequestRejected):
        await calls_and_log.repeated(write)
    assert answers == [None]


def test_a_side_that_bound_nothing_leaves_the_rows_of_the_others() -> None:
    """It has no value, and it is counted as not finished."""
    figures = quick.wait_rows("trees", {"calls": [], "native": [20.0, 30.0]})
    assert [(f.values, f.baseline) for f in figures] == [((), (30.0,)), ((), (30.0,))]
    assert "nan ms" in verdict_text(figures)


async def test_a_lost_watch_begins_again(api: Loader, server: LossyApi) -> None:
    """It lists again what it may have missed."""
    server.lose("WATCH", PODS, SLOW, DROPPED)
    async with BoundWatch(api, NAMESPACE["ours"]) as watch:
        await eventually(lambda: server.calls["WATCH", PODS] > 2)
        server.objects = {f"{PODS}/a": {"metadata": {"name": "a"}}}
        assert await watch.until(["a"], within_s=60)


async def test_watches_are_counted(api: Loader, server: LossyApi) -> None:
    server.lose("WATCH", PODS, *[SLOW] * (TRIES + 1))
    async with BoundWatch(api, NAMESPACE["ours"]) as watch:
        with pytest.raises(ApiError, match="allotted timeout"):
            await watch.until(["a"], within_s=60)
    assert server.calls["WATCH", PODS] == TRIES


@pytest.fixture
def service(bench: Stand, tmp_path: Path) -> stand.RepeatedQuestions:
    """Make the service of a bench; nothing runs."""
    kubeconfig = tmp_path / "admin.kubeconfig"
    kubeconfig.write_text("{}")
    bench.plane.kubeconfig, bench.plane.api = (lambda _user: kubeconfig), None
    return stand.RepeatedQuestions(bench.plane, tmp_path, "postgresql://none", admin=bench.loader)


async def test_what_another_service_published_is_deleted(
    service: stand.RepeatedQuestions, server: LossyApi
) -> None:
    """It is the first request of each start of a service."""
    server.objects = {f"{PUBLISHED}/a": {}}
    server.lose("DELETE", PUBLISHED, SLOW)
    await service._delete_published()
    assert server.calls["DELETE", PUBLISHED] == 2
    assert server.objects == {}


def test_the_service_of_a_bench_writes_no_line_about_a_call(
    service: stand.RepeatedQuestions,
) -> None:
    """What it costs to write them is none of its users'; no row may be read of lines that are not there."""
    with pytest.raises(AssertionError, match="no call has a line"):
        service.calls("filter")


async def test_the_read_api_is_asked_again(
    service: stand.RepeatedQuestions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers 503 where its query process or the database was too slow; other answers are errors at once."""
    answers = [NotAnswered("/v1/gangs: too slow"), NotAnswered("/v1/gangs: too slow"), ([], 7)]

    async def answer(*_: object) -> Any:
        if isinstance(next_answer := answers.pop(0), AssertionError):
            raise next_answer
        return next_answer

    monkeypatch.setattr(stand, "PAUSE_S", 0.0)
    monkeypatch.setattr("tests.e2e.scenarios.service.Service._get", answer)
    monkeypatch.setattr("tests.e2e.scenarios.service.Service.metrics", answer)
    assert await service.get("/v1/gangs") == []
    answers += [NotAnswered("/v1/gangs: too slow")] * TRIES
    with pytest.raises(NotAnswered):
        await service.get("/v1/gangs")
    answers[:] = [AssertionError("/v1/gangs: 404"), ([], 7)]
    with pytest.raises(AssertionError, match="404"):
        await service.get("/v1/gangs")
    answers[:] = [NotAnswered("/metrics: too slow"), "text"]
    assert await service.metrics() == "text"

"""What is written, and what the adapter does when the API server refuses, hesitates or is silent."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.cluster.connection import api_client
from extender.cluster.connection.api_client import ApiServer
from extender.cluster.connection.kept_connections import KeptConnections
from extender.core.model.errors import BadInput, ClusterUnavailable, RequestRejected
from extender.core.model.ids import NodeName, PlanId, PodUid
from extender.core.model.pod_groups import leaf_key
from extender.ports.cluster_ports import Binding, Condition, K8sEvent, PodRef
from extender.runtime.system_clock import SystemClock
from tests.integration.cluster.fake_api import FakeApi, Fault, a_pod, a_pod_group, counted
from tests.support.waiting import eventually

POD = PodRef(namespace="default", name="p", uid=PodUid("uid-pods-p"))
TO_N1 = Binding(pod=POD, node=NodeName("n1"), plan=PlanId("plan-1"))
GROUP = leaf_key("default", "g")
WAITS = Condition(
    type="PodGroupInitiallyScheduled", status="False", reason="Unschedulable", message="waits"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds."""
    monkeypatch.setattr(api_client, "PAUSE_FIRST_S", 0.005)


@pytest.fixture
async def there(cluster: KubernetesCluster, fake: FakeApi) -> KubernetesCluster:
    """A synced adapter, one pod and one group."""
    fake.groups["gang-extender.dev/v1alpha1"] = ["podgroups"]
    fake.put("pods", a_pod("p"))
    fake.put("podgroups", a_pod_group("g"))
    await cluster.start()
    await cluster.synced()
    return cluster


def on(method: str, part: str):
    return lambda request: request.method == method and part in request.path


async def test_a_binding_carries_uid_and_plan(there: KubernetesCluster, fake: FakeApi) -> None:
    """The UID is the precondition, the plan the crash-proof record."""
    await there.bind(TO_N1)
    (_, body) = fake.bodies[-1]
    assert body["metadata"]["uid"] == POD.uid
    assert body["metadata"]["annotations"] == {"gang-extender.dev/plan": "plan-1"}
    await eventually(lambda: there.view().pods[POD.uid].node == "n1")


async def test_binding_twice_to_the_same_node_succeeds(
    there: KubernetesCluster, fake: FakeApi
) -> None:
    """A pod that is there already is a success."""
    await there.bind(TO_N1)
    await there.bind(TO_N1)


async def test_a_binding_whose_answer_was_lost_is_found_out(
    there: KubernetesCluster, fake: FakeApi
) -> None:
    """The second try gets 409, and the pod is on its node: success, bound once."""
    fake.faults.append(Fault(on("POST", "/binding"), drop_after=True))
    with pytest.raises(ClusterUnavailable):
        await there.bind(TO_N1)
    await there.bind(TO_N1)
    assert fake.count("POST", "/binding") == 2
    assert fake.objects["pods"]["default", "p"]["spec"]["nodeName"] == "n1"


async def test_a_victim_is_marked_then_deleted_by_uid(
    there: KubernetesCluster, fake: FakeApi
) -> None:
    """DisruptionTarget as kube-scheduler writes it, then DELETE with the UID as precondition and no grace of ours."""
    await there.mark_disrupted(POD, "PodGroup default/hi (priority 10) needs the capacity")
    (_, body) = fake.bodies[-1]
    (condition,) = body["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "DisruptionTarget", "True", "PreemptionByScheduler",
    )  # fmt: skip
    assert body["metadata"]["uid"] == POD.uid
    await eventually(
        lambda: there.view().pods[POD.uid].disruption_target == "PreemptionByScheduler"
    )
    await there.evict(POD, "deleted")
    (path, body) = fake.bodies[-1]
    assert path.endswith("/pods/p")
    assert body["preconditions"] == {"uid": POD.uid}
    assert "gracePeriodSeconds" not in body
    await eventually(lambda: POD.uid not in there.view().pods)


async def test_a_victim_that_was_made_again_is_not_touched(
    there: KubernetesCluster, fake: FakeApi
) -> None:
    """Another UID under the name: refused for good, and the pod is still there; the same when it is gone."""
    other = PodRef(namespace="default", name="p", uid=PodUid("uid-of-before"))
    for how in ("deleted", "evicted"):
        with pytest.raises(RequestRejected):
            await there.evict(other, how)
    assert ("default", "p") in fake.objects["pods"]
    with pytest.raises(RequestRejected, match="404"):
        await there.evict(PodRef(namespace="default", name="x", uid=PodUid("x")), "deleted")


async def test_the_eviction_api_may_answer_not_now(there: KubernetesCluster, fake: FakeApi) -> None:
    """A spent budget answers 429 with Retry-After: nothing was done for certain, and the error has the time of the next try."""
    fake.faults.append(
        Fault(on("POST", "/eviction"), status=429, headers={"Retry-After": "10"}, body=b"budget")
    )
    with pytest.raises(ClusterUnavailable) as raised:
        await there.evict(POD, "evicted")
    assert (raised.value.refused, raised.value.retry_after_s) == (True, 10.0)
    fake.faults.append(Fault(on("POST", "/eviction"), drop_after=True))
    with pytest.raises(ClusterUnavailable) as raised:
        await there.evict(POD, "evicted")
    assert not raised.value.refused, "the outcome is unknown"
    await eventually(lambda: POD.uid not in there.view().pods)


async def test_an_event_names_who_caused_it(there: KubernetesCluster, fake: FakeApi) -> None:
    """`related` is the group of the preemptor (E-12)."""
    notice = K8sEvent(
        kind="Pod", namespace="default", name="p", uid=POD.uid, reason="Preempted", message="m",
        action="Preempting", related=("PodGroup", "default", "g", "uid-of-g"),
    )  # fmt: skip
    await there.notice(notice)
    (_, body) = fake.bodies[-1]
    assert body["related"] == {
        "apiVersion": "gang-extender.dev/v1alpha1", "kind": "PodGroup", "namespace": "default",
        "name": "g", "uid": "uid-of-g",
    }  # fmt: skip
    assert (body["reason"], body["action"], body["type"]) == ("Preempted", "Preempting", "Normal")


async def test_a_binding_is_refused_for_good(there: KubernetesCluster, fake: FakeApi) -> None:
    """Bound elsewhere, made again, gone: no second try helps."""
    await there.bind(TO_N1)
    for wrong, why in (
        (Binding(pod=POD, node=NodeName("n2")), "bound to n1"),
        (
            Binding(
                pod=PodRef(namespace="default", name="p", uid=PodUid("old")), node=NodeName("n1")
            ),
            "recreated",
        ),
        (
            Binding(
                pod=PodRef(namespace="default", name="x", uid=PodUid("x")), node=NodeName("n1")
            ),
            "404",
        ),
    ):
        with pytest.raises(RequestRejected, match=why):
            await there.bind(wrong)


@pytest.mark.parametrize("status", [429, 500, 503, 504])
async def test_a_nomination_is_tried_once(
    there: KubernetesCluster, fake: FakeApi, status: int
) -> None:
    """A plan may end while the server is in trouble: a late retry would write the node of a plan that is over."""
    fake.faults.append(Fault(on("PATCH", "/pods/"), status=status))
    with pytest.raises(ClusterUnavailable, match=str(status)):
        await there.nominate(POD, NodeName("n1"))
    assert fake.count("PATCH", "/status") == 1
    await there.nominate(POD, NodeName("n1"))
    assert fake.count("PATCH", "/status") == 2


async def test_a_binding_is_tried_once(there: KubernetesCluster, fake: FakeApi) -> None:
    """Its caller must look whether it may still bind before each try; the error has the time to wait."""
    fault = Fault(on("POST", "/binding"), status=429, headers={"Retry-After": "3"})
    fake.faults.append(fault)
    with pytest.raises(ClusterUnavailable, match="429") as raised:
        await there.bind(TO_N1)
    assert raised.value.retry_after_s == 3
    assert fake.count("POST", "/binding") == 1


async def test_a_lasting_failure_is_reported(there: KubernetesCluster, fake: FakeApi) -> None:
    """After five tries the caller knows that the outcome is unknown."""
    fake.faults.append(Fault(on("PATCH", "/status"), status=503, times=100))
    with pytest.raises(ClusterUnavailable, match="503"):
        await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    assert fake.count("PATCH", "/status") == api_client.TRIES_MAX


async def test_retry_after_is_honoured(there: KubernetesCluster, fake: FakeApi) -> None:
    """A server that asks for a second gets it."""
    fake.faults.append(Fault(on("PATCH", "/status"), status=429, headers={"Retry-After": "1"}))
    began = time.monotonic()
    await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    assert time.monotonic() - began >= 1


async def test_a_retry_after_beyond_the_budget_is_not_waited_for(
    there: KubernetesCluster, fake: FakeApi
) -> None:
    """The caller can do something better than to wait for a minute."""
    fake.faults.append(Fault(on("PATCH", "/status"), status=429, headers={"Retry-After": "60"}))
    with pytest.raises(ClusterUnavailable, match="429"):
        await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    assert fake.count("PATCH", "/status") == 1


async def test_nothing_is_sent_or_tried_again_without_the_lease(
    there: KubernetesCluster, fake: FakeApi, leading: list[bool]
) -> None:
    """Fencing reaches every single request."""
    fake.faults.append(Fault(on("PATCH", "/status"), status=503, times=100))
    nominating = asyncio.create_task(there.set_conditions(GROUP, "uid-podgroups-g", [WAITS]))
    await eventually(lambda: fake.count("PATCH", "/status") >= 1)
    leading[0] = False
    with pytest.raises(ClusterUnavailable):
        await nominating
    sent = fake.count("PATCH", "/status")
    with pytest.raises(ClusterUnavailable, match="not the leader"):
        await there.bind(TO_N1)
    assert fake.count("PATCH", "/status") == sent < api_client.TRIES_MAX
    assert fake.count("POST", "/binding") == 0


async def test_nothing_is_sent_when_the_lease_went_while_it_waited_for_its_turn(
    there: KubernetesCluster, fake: FakeApi, leading: list[bool]
) -> None:
    """Fencing is asked after the queue, not only in front of it: a process may sleep there for long."""
    turns = there._server._slots
    for _ in range(api_client.CONNECTIONS_MAX):
        await turns.acquire()
    binding = asyncio.create_task(there.bind(TO_N1))
    await eventually(lambda: turns._waiters)
    leading[0] = False
    for _ in range(api_client.CONNECTIONS_MAX):
        turns.release()
    with pytest.raises(ClusterUnavailable, match="not the leader"):
        await binding
    assert fake.count("POST", "/binding") == 0


async def test_nothing_is_sent_when_the_lease_went_while_it_connected(
    there: KubernetesCluster, fake: FakeApi, leading: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a process that was stopped at its first nomination: those beside it were connecting."""
    connecting, go = asyncio.Event(), asyncio.Event()
    connect = KeptConnections._connect

    async def slowly(connections: KeptConnections, until_s: float) -> Any:
        connecting.set()
        await go.wait()
        return await connect(connections, until_s)

    monkeypatch.setattr(KeptConnections, "_connect", slowly)
    binding = asyncio.create_task(there.bind(TO_N1))
    await connecting.wait()
    leading[0] = False
    go.set()
    with pytest.raises(ClusterUnavailable, match="not the leader"):
        await binding
    assert fake.count("POST", "/binding") == 0


async def test_calls_keep_to_their_connections(there: KubernetesCluster, fake: FakeApi) -> None:
    """A thousand patches at once are never more than 24 in flight."""
    open_before, most = len(fake._runner.server.connections), 0

    def matches(request) -> bool:
        nonlocal most
        if request.method == "PATCH":
            most = max(most, len(fake._runner.server.connections))
        return False

    fake.faults.append(Fault(matches))
    await asyncio.gather(*(there.nominate(POD, NodeName("n1")) for _ in range(200)))
    assert 1 < most <= open_before + api_client.CONNECTIONS_MAX


async def test_who_comes_later_has_a_turn(there: KubernetesCluster, fake: FakeApi) -> None:
    """A Binding does not stand behind nominations that are written one after another."""

    async def nominate_often() -> None:
        for _ in range(20):
            await there.nominate(POD, NodeName("n1"))

    busy = [asyncio.create_task(nominate_often()) for _ in range(api_client.CONNECTIONS_MAX)]
    await eventually(lambda: fake.count("PATCH", "/status") > api_client.CONNECTIONS_MAX)
    before = fake.count("PATCH", "/status")
    await there.bind(TO_N1)
    assert fake.count("PATCH", "/status") - before <= 3 * api_client.CONNECTIONS_MAX
    await asyncio.gather(*busy)


async def test_missing_rights_are_not_a_verdict_on_the_pod(
    there: KubernetesCluster, fake: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """403 is for a person to repair; the pod may still be bound later."""
    fake.faults.append(Fault(on("POST", "/binding"), status=403))
    with pytest.raises(ClusterUnavailable, match="403"):
        await there.bind(TO_N1)
    assert "rbac.yaml" in caplog.text


async def test_credentials_are_loaded_again_after_401(fake: FakeApi) -> None:
    """Tokens of exec plugins and files end."""
    renewals = 0

    async def renew():
        nonlocal renewals
        renewals += 1
        fresh = fake.configuration()
        fresh.api_key["BearerToken"] = "Bearer new"
        return fresh

    fake.faults.append(
        Fault(lambda r: r.headers.get("authorization") != "Bearer new", status=401, times=100)
    )
    configuration = fake.configuration()
    configuration.api_key["BearerToken"] = "Bearer old"
    async with ApiServer(configuration, renew=renew) as server:
        await server.call(api_client.Request(method="GET", path="/readyz"))
    assert renewals == 1


async def test_no_configuration_is_bad_input(tmp_path) -> None:
    """A path that is not there is named, with the options that would help."""
    with pytest.raises(BadInput, match=r"^--kubeconfig .*/nowhere: no such file; set --kubeconfig"):
        await api_client.load_configuration(str(tmp_path / "nowhere"))


async def test_without_a_kubeconfig_the_default_file_is_named(tmp_path, monkeypatch) -> None:
    """Outside of a pod, as after `gang-extender serve` without a cluster."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        BadInput, match=r"^~/.kube/config: no such file; .* or --cluster to manifests$"
    ):
        await api_client.load_configuration(None)


async def test_a_kubeconfig_that_is_none_is_named(tmp_path) -> None:
    path = tmp_path / "config"
    path.write_text("{}")
    with pytest.raises(BadInput, match=f"^no usable Kubernetes configuration in {path}: "):
        await api_client.load_configuration(f"{tmp_path}/nowhere:{path}".rpartition(":")[2])


A_READ = api_client.Request(method="GET", path="/x")
A_WRITE = api_client.Request(method="PATCH", path="/x", body=b"{}")
A_USER = "users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\ncurrent-context: c\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "it is malformed "),
        ("[]", "it is malformed "),
        ("{:", "it is malformed "),
        ("clusters: [{name: k, cluster: {}}]\n" + A_USER, "it is malformed "),
        ("clusters: [{name: k, cluster: {server: 'ftp://h'}}]\n" + A_USER, "cluster.server: 'ftp://h' is not a URL"),
        ("clusters: [{name: k, cluster: {server: 'https://u:p@h'}}]\n" + A_USER, "cluster.server: a user before h "),
        ("clusters: [{name: k, cluster: {server: 'https://h', tls-server-name: 5}}]\n" + A_USER, "cluster.tls-server-name: 5 "),
        ("clusters: [{name: k, cluster: {server: 'https://h', tls-server-name: .x}}]\n" + A_USER, "cluster.tls-server-name: '.x' "),
    ],
)  # fmt: skip
async def test_a_kubeconfig_that_cannot_be_used_is_bad_input(tmp_path, text, named) -> None:
    """An empty file, one of another type, no YAML, an entry without a server, and fields that no request can be sent with."""
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(BadInput) as refused:
        await api_client.load_configuration(str(path))
    assert str(refused.value).startswith(f"no usable Kubernetes configuration in {path}: {named}")
    assert "u:p" not in str(refused.value)


async def test_the_path_of_a_server_may_be_escaped(fake: FakeApi) -> None:
    """A kubeconfig of a proxy of clusters, such as `https://host/k8s/a%20b`; `%` has a meaning in what writes are made of."""
    configuration = fake.configuration()
    configuration.host += "/k8s/a%20b"
    async with ApiServer(configuration) as server:
        for request in A_READ, A_WRITE:
            with pytest.raises(api_client.ApiResponse):
                await server.call(request)
    assert [path for _, path, _ in fake.calls] == ["/k8s/a b/x"] * 2  # as the server reads it


async def test_a_token_of_two_lines_is_not_sent(fake: FakeApi) -> None:
    configuration = fake.configuration()
    configuration.api_key["BearerToken"] = "Bearer a\r\nX-B: c"
    async with ApiServer(configuration) as server:
        for request in A_READ, A_WRITE:
            with pytest.raises(ClusterUnavailable, match="control character"):
                await server.call(request)


# --- conditions


async def test_conditions_are_merged(there: KubernetesCluster, fake: FakeApi) -> None:
    """Conditions of others stay; lastTransitionTime moves with the status only."""
    group = fake.objects["podgroups"]["default", "g"]
    since = "2020-01-01T00:00:00Z"
    other = {
        "type": "Other",
        "status": "True",
        "lastTransitionTime": since,
        "reason": "R",
        "message": "",
    }
    mine = {**other, "type": WAITS.type, "status": "False"}
    group["status"] = {"conditions": [other, mine]}
    fake.put("podgroups", group)
    await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    stored = fake.objects["podgroups"]["default", "g"]["status"]["conditions"]
    assert stored[0] == other
    assert stored[1] == {
        **mine, "reason": "Unschedulable", "message": "waits", "observedGeneration": 1
    }  # fmt: skip


async def test_equal_conditions_are_not_written_again(
    there: KubernetesCluster, fake: FakeApi
) -> None:
    """Once the view shows what we wrote, the same again costs no request."""
    await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    await eventually(lambda: there.view().groups[GROUP].conditions)
    calls = len(fake.calls)
    await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    assert not [c for c in fake.calls[calls:] if "podgroups" in c[1]]


async def test_a_view_that_lags_behind_our_own_write_proves_nothing(
    there: KubernetesCluster, fake: FakeApi
) -> None:
    """Back to what the view still shows: the object is read, and written."""
    await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    await eventually(lambda: there.view().groups[GROUP].conditions)
    fake._notify = lambda *_: None  # the watch is late from here on
    done = Condition(type=WAITS.type, status="True", reason="Scheduled", message="")
    await there.set_conditions(GROUP, "uid-podgroups-g", [done])
    await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    (stored,) = fake.objects["podgroups"]["default", "g"]["status"]["conditions"]
    assert stored["status"] == "False"


async def test_what_is_known_as_a_whole_is_not_read(
    there: KubernetesCluster, fake: FakeApi
) -> None:
    """The first condition, and the next ones after our own writes: each is one request."""
    done = Condition(type=WAITS.type, status="True", reason="Scheduled", message="")
    for condition in (WAITS, done):
        await there.set_conditions(GROUP, "uid-podgroups-g", [condition])
    await eventually(lambda: there.view().groups[GROUP].conditions[0][1] == "True")
    await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    assert (fake.count("GET", "podgroups/g"), fake.count("PATCH", "podgroups/g/status")) == (0, 3)
    (stored,) = fake.objects["podgroups"]["default", "g"]["status"]["conditions"]
    assert (stored["status"], stored["observedGeneration"]) == ("False", 1)


async def test_what_others_wrote_meanwhile_is_read_and_kept(
    there: KubernetesCluster, fake: FakeApi
) -> None:
    """Memory and view know nothing of it: it is found by the conflict."""
    await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    await eventually(lambda: there.view().groups[GROUP].conditions)
    notify, fake._notify = fake._notify, lambda *_: None
    group = fake.objects["podgroups"]["default", "g"]
    other = {"type": "Other", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    group["status"]["conditions"].append(other)
    fake.put("podgroups", group)
    fake._notify = notify
    done = Condition(type=WAITS.type, status="True", reason="Scheduled", message="")
    await there.set_conditions(GROUP, "uid-podgroups-g", [done])
    stored = fake.objects["podgroups"]["default", "g"]["status"]["conditions"]
    assert {c["type"]: c["status"] for c in stored} == {WAITS.type: "True", "Other": "True"}
    assert fake.count("GET", "podgroups/g") == 1


async def test_a_conflict_of_writers_is_resolved(there: KubernetesCluster, fake: FakeApi) -> None:
    """409: read again and merge again."""
    fake.faults.append(Fault(on("PATCH", "podgroups/g/status"), status=409))
    await there.set_conditions(GROUP, "uid-podgroups-g", [WAITS])
    assert fake.count("PATCH", "podgroups/g/status") == 2


async def test_a_group_made_again_gets_no_condition(there: KubernetesCluster) -> None:
    """The UID is a precondition here too."""
    with pytest.raises(RequestRejected):
        await there.set_conditions(GROUP, "another", [WAITS])


# --- events


def notice(message: str = "waits", uid: str = "uid-podgroups-g") -> K8sEvent:
    return K8sEvent(
        kind="PodGroup",
        namespace="default",
        name="g",
        uid=uid,
        reason="FailedScheduling",
        message=message,
        warning=True,
    )


async def test_an_event_names_its_object(there: KubernetesCluster, fake: FakeApi) -> None:
    """With the version of the group, for `kubectl describe`."""
    await there.notice(notice("é" * 1000))
    (_, body) = fake.bodies[-1]
    assert body["regarding"]["apiVersion"] == "gang-extender.dev/v1alpha1"
    assert body["type"] == "Warning"
    assert len(body["note"].encode()) <= 1024


async def test_a_storm_of_events_stays_small(
    there: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same again is counted, one object gets ten, all together fifty at once; time stands, so that none is added meanwhile."""
    now_ms = SystemClock().monotonic_ms()
    monkeypatch.setattr(SystemClock, "monotonic_ms", lambda _: now_ms)
    for _ in range(100):
        await there.notice(notice())
    assert fake.count("POST", "/events") == 1
    for number in range(100):
        await there.notice(notice(f"text {number}"))
    assert fake.count("POST", "/events") == 10
    for number in range(200):
        await there.notice(notice(uid=f"uid-{number}"))
    assert fake.count("POST", "/events") == 50
    assert counted("k8s_events_dropped") == 91 + 160


async def test_an_event_that_cannot_be_written_does_no_harm(
    there: KubernetesCluster, fake: FakeApi
) -> None:
    """Best effort: counted, not raised."""
    fake.faults.append(Fault(on("POST", "/events"), status=500))
    await there.notice(notice())
    assert counted("k8s_events_failed") == 1
    await there.notice(notice())
    assert fake.count("POST", "/events") == 2

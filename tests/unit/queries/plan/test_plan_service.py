"""Would it fit now: the answer of the service, from a snapshot of what it sees and holds."""

from __future__ import annotations

import json
import pickle
import re

import msgspec
import pytest
import yaml

from extender.cluster.manifests.manifest_entries import FAULTS_MAX
from extender.cluster.manifests.node_group_file import node_groups
from extender.cluster.manifests.plan_request_body import answer_plan_request
from extender.core.model.errors import BadInput, ClusterUnavailable
from extender.core.preempt.disruption_units import EvictableContext
from extender.core.workloads.tree_policy import TreeProfile
from extender.queries.plan import plan_service
from extender.queries.plan.plan_dto import NodeGroupSpec
from extender.queries.plan.plan_query import PlanInput
from extender.queries.plan.plan_service import PlanQueryWorker, PlanService, restored, snapshot
from tests.support.service.fake_workloads import FakeWorkloads
from tests.support.service.fakes import Stage
from tests.support.service.live_plans import live_plans
from tests.support.service.manifest_builders import (
    GPU,
    RACK,
    a_budget,
    a_gang,
    a_node,
    a_pod,
    an_object,
)
from tests.support.service.workload_builders import TREE, a_job, a_template


def asking(stage):
    """Return a function that asks about the cluster of a stage, and one that counts what was planned."""
    what_if = live_plans(stage)

    async def ask(*wanted, **more):
        result = await what_if.plan(json.dumps({"workload": wanted, **more}).encode())
        return json.loads(result.body), result.position

    return ask


def a_stage(*more):
    nodes = [a_node(f"n{n}", {RACK: f"r{n // 2}"}, gpu=8) for n in range(4)]
    return Stage(*nodes, *more)


async def led(stage):
    await stage.lead()
    await stage.settled()
    return asking(stage)


async def test_reservations_of_others_are_no_capacity():
    """Of 4 nodes 3 are reserved: one is left, and files alone would not know."""
    async with a_stage(*a_gang("here", pods=3, requests={GPU: 8})) as stage:
        ask = await led(stage)
        before = len(stage.events())
        one, position = await ask(*a_gang("one", pods=1, requests={GPU: 8}))
        assert one["verdict"] == "placed"
        taken = set(stage.where("here").values())
        assert one["gangs"][0]["assignments"][0]["node"] not in taken
        two, _ = await ask(*a_gang("two", pods=2, requests={GPU: 8}), preemption=False)
        assert (two["verdict"], two["gangs"][0]["gang"]) == ("impossible", "default/two")
        assert position == stage.leader.committed.position
        assert one["as_of"].endswith("Z")
        await stage.settled()
        assert len(stage.events()) == before  # nothing came of it
        every, _ = await ask()
        (root,) = every["gangs"]
        assert (root["verdict"], root["assignments"]) == ("placed", [])
        assert root["reasons"] == ["3 members are reserved already"]


@pytest.mark.parametrize("copies", [1, 2])
async def test_new_pods_use_the_volumes_of_the_cluster(copies):
    """A claim of the cluster restricts the nodes of a new pod as it does those of its own; only an absent one is a warning."""
    there = {"matchExpressions": [{"key": RACK, "operator": "In", "values": ["r1"]}]}
    reach = {"nodeAffinity": {"required": {"nodeSelectorTerms": [there]}}}
    volume = an_object("PersistentVolume", "disk", "v1", "", spec=reach)
    claim = an_object("PersistentVolumeClaim", "data", "v1", spec={"volumeName": "disk"})

    def wanted(name):
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
        return a_gang("g", pods=2, requests={GPU: 4}, volumes=volumes)

    async with a_stage(volume, claim) as stage:
        ask = await led(stage)
        found, _ = await ask(*wanted("data"), copies=copies)
        nodes = {one["node"] for gang in found["gangs"] for one in gang["assignments"]}
        assert (found["verdict"], nodes <= {"n2", "n3"}, found["warnings"]) == ("placed", True, [])
        body = yaml.safe_dump_all(wanted("data"))
        found, _ = await ask(manifest=body)
        assert {one["node"] for one in found["gangs"][0]["assignments"]} <= {"n2", "n3"}
        found, _ = await ask(*wanted("other"))
        assert found["warnings"] == [
            "volume claims of 2 pods (default/other) are neither in the request nor in the cluster, or their volumes: "
            "which nodes their volumes can be used on is not known, so kube-scheduler may find fewer nodes"
        ]


async def test_who_would_be_evicted():
    async with a_stage(*a_gang("here", pods=4, requests={GPU: 8})) as stage:
        await led(stage)
        for n in range(4):
            name = f"here-{n}"
            node = stage.where("here")[name]
            stage.cluster.change_pod(name, node=node, phase="Running")
        await stage.settled()
        ask = asking(stage)
        wanted = a_gang("urgent", pods=1, requests={GPU: 8}, priorityClassName="high")
        wanted[0]["spec"]["priorityClassName"] = "high"
        result, _ = await ask(*wanted)
        assert result["verdict"] == "placed"
        assert [v["unit"] for v in result["gangs"][0]["victims"]]
        assert all("here" in v["unit"] for v in result["gangs"][0]["victims"])
        forbidden = "1 eviction more than PodDisruptionBudgets allow (E-8)"
        assert forbidden not in result["gangs"][0]["reasons"]
        stage.cluster.add(a_budget("none", {}))
        result, _ = await ask(*wanted)
        assert forbidden in result["gangs"][0]["reasons"]
        low, _ = await ask(*a_gang("low", pods=1, requests={GPU: 8}))
        assert low["verdict"] in ("impossible", "unknown")


async def test_members_that_have_a_node_are_counted_in_the_reasons():
    """Of a running gang with an extra member; with its pods sent again, they are pending and none is bound."""
    gang = a_gang("here", pods=3, minimum=2, requests={GPU: 8})
    async with a_stage(*gang) as stage:
        ask = await led(stage)
        for name in ("here-0", "here-1"):
            stage.cluster.change_pod(name, node=stage.where("here")[name], phase="Running")
        await stage.settled()
        result, _ = await ask()
        (root,) = result["gangs"]
        assert root["reasons"] == ["1 member is reserved already", "2 members are bound already"]
        result, _ = await ask(*gang)
        assert "2 members are bound already" not in result["gangs"][0]["reasons"]


async def test_what_is_there_already_is_asked_about_by_its_name():
    """A gang that waits, with fewer members: the object that is there is replaced, not doubled."""
    async with a_stage(*a_gang("large", pods=5, requests={GPU: 8})) as stage:
        ask = await led(stage)
        result, _ = await ask()
        assert [(r["gang"], r["verdict"]) for r in result["gangs"]] == [
            ("default/large", "impossible")
        ]
        smaller = a_gang("large", pods=3, requests={GPU: 8})
        result, _ = await ask(*smaller)
        (root,) = result["gangs"]
        assert root["verdict"] == "placed"
        more, _ = await ask(a_node("n9", gpu=8))
        assert more["gangs"] == []
        more, _ = await ask(a_node("n9", gpu=8), all_pending=True)
        assert more["verdict"] == "placed"


async def test_a_workload_is_planned_on_the_live_cluster():
    """The answer names it; a pod of it that runs already is not planned again."""
    uid = "0123456789abcdef"
    labels = {
        TREE: "default",
        "gang-extender.dev/pod-group": "fit-01234567",
        "batch.kubernetes.io/job-name": "fit",
        "batch.kubernetes.io/controller-uid": uid,
    }
    runs = a_pod(
        "fit-x7k2p",
        node="n0",
        requests={GPU: 8},
        metadata={"labels": labels},
        schedulerName="gang-scheduler",
    )
    job = a_job(metadata={"uid": uid}, parallelism=4, template=a_template({GPU: 8}))
    async with a_stage(runs) as stage:
        ask = await led(stage)
        result, _ = await ask(job)
        (gang,) = result["gangs"]
        assert (gang["workload"], gang["verdict"]) == ("Job/default/fit", "placed")
        assert [line["node"] for line in gang["assignments"]] == ["n1", "n2", "n3"]
        assert [(line["placed"], line["total"]) for line in gang["groups"]] == [(4, 4)]
        other = a_job(metadata={"uid": uid}, parallelism=4, labels={TREE: "research"})
        stage.cluster.workloads = workloads = FakeWorkloads(stage.cluster)
        result, _ = await ask(other)
        assert (result["verdict"], result["gangs"][0]["workload"]) == ("invalid", "Job/default/fit")
        assert result["gangs"][0]["reasons"][0].startswith("body: workload[0]: Job/default/fit: ")
        workloads.put_profile(TreeProfile(name="research"))
        result, _ = await ask(other)
        assert (result["verdict"], result["gangs"][0]["workload"]) == ("placed", "Job/default/fit")
        with pytest.raises(
            BadInput, match=r"^body: workload\[0\]: Job/default/fit: spec.parallelism: "
        ):
            await ask(a_job(parallelism="4"))


async def test_view_and_state_come_back_as_they_were():
    async with a_stage(
        *a_gang("a", pods=2, requests={GPU: 8}), *a_gang("b", pods=5, requests={GPU: 8})
    ) as stage:
        await led(stage)
        view, state = stage.cluster.view(), stage.leader.committed
        saved = await snapshot(view, state, EvictableContext(now_us=1))
        seen, held = restored(
            msgspec.msgpack.decode(msgspec.msgpack.encode(saved), type=type(saved))
        )
        for name in ("nodes", "pods", "groups", "usage", "members", "on_node", "budgets"):
            assert getattr(seen, name) == getattr(view, name)
        for name in (
            "position",
            "epoch",
            "gangs",
            "claims_on",
            "gang_of",
            "rejections",
            "preemptions",
        ):
            assert getattr(held, name) == getattr(state, name)


async def test_questions_that_cannot_be_answered(monkeypatch):
    async with a_stage(*a_gang("here", pods=9, requests={GPU: 8})) as stage:
        ask = await led(stage)
        stage.cluster.doubted = "nodes: not synced"
        with pytest.raises(ClusterUnavailable, match="nodes: not synced"):
            await ask()
        assert (await ask(cluster=[]))[1] is None  # files need no cluster
        stage.cluster.doubted = ""
        monkeypatch.setattr("extender.cluster.manifests.plan_request_body.ROOTS_MAX", 1)
        pairs = [thing for n in "ab" for thing in a_gang(n, pods=1)]
        with pytest.raises(BadInput, match="2 root groups to plan, 1 at most"):
            await ask(*pairs)
        monkeypatch.setattr(plan_service, "NOW_BODY_MAX", 10)
        with pytest.raises(BadInput, match="no cluster"):
            await ask(*pairs)
        with pytest.raises(BadInput, match="body"):
            await ask(wonted=[])


async def test_a_manifest_is_read_as_kubectl_reads_it():
    """YAML with several documents, and JSON; the same answer as for the objects themselves; an error names its line."""
    objects = a_gang("one", pods=2, requests={GPU: 8})
    async with a_stage() as stage:
        ask = await led(stage)
        expected, _ = await ask(*objects)
        assert expected["verdict"] == "placed"
        for text in (
            yaml.safe_dump_all(objects),
            json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
        ):
            found, _ = await ask(manifest=text)
            assert found["gangs"] == expected["gangs"]
        with pytest.raises(BadInput, match=r"body: manifest: line 2, column 1: not valid YAML"):
            await ask(manifest="kind: Pod\n\tname: x\n")


async def test_copies_and_changes_of_the_live_cluster():
    """The same options as the command: one node is reserved, and copies of names that exist are left out."""
    async with a_stage(*a_gang("here", pods=1, requests={GPU: 8})) as stage:
        ask = await led(stage)
        (used,) = stage.where("here").values()
        gang = a_gang("here-2", pods=1, requests={GPU: 8})
        found, _ = await ask(*gang, max_copies=True)
        assert found["copies"] == {"wanted": 0, "fit": 3, "proved": True, "limited": False}
        found, _ = await ask(*gang, copies=2, without=[used])
        assert (found["verdict"], found["copies"]["fit"]) == ("placed", 2)
        assert [one["gang"] for one in found["gangs"]] == ["default/here-2", "default/here-2-2"]
        found, _ = await ask(*gang, max_copies=True, without=["n0", f"{RACK}=r1"])
        assert found["copies"]["fit"] == (1 if used != "n1" else 0)
        found, _ = await ask(*gang, max_copies=True, **{"with": [f"5x{used}"]})
        assert found["copies"]["fit"] == 8
        large = a_gang("large", pods=6, requests={GPU: 8}, topo=RACK)
        found, _ = await ask(*large, relax=["large:topology", "large:minCount=3"])
        assert (found["verdict"], len(found["given"])) == ("placed", 2)


async def test_a_reservation_on_a_node_that_is_away_is_planned_again():
    """A gang that is admitted keeps its other reservations and gets another node for that one."""
    async with a_stage(*a_gang("here", pods=3, requests={GPU: 8})) as stage:
        ask = await led(stage)
        away = stage.where("here")["here-0"]
        found, _ = await ask(without=[away])
        (root,) = found["gangs"]
        assert (root["verdict"], root["reasons"]) == ("placed", ["2 members are reserved already"])
        (line,) = root["assignments"]
        assert (line["pod"], line["node"] in stage.where("here").values()) == (
            "default/here-0",
            False,
        )


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"copies": 2}, "copies: counts copies of the trees that are given"),
        (
            {"without": ["n9"]},
            'without "n9": the cluster has no node of this name; it has n0, n1, n2, n3',
        ),
        ({"with": ["2xm0"]}, 'with "2xm0": the cluster has no node "m0"'),
        ({"relax": ["g:topology"]}, 'relax "g:topology": no planned tree has a group "g"'),
    ],
)
async def test_wrong_changes_are_named(more, text):
    """The message has option and value, and what exists."""
    async with a_stage() as stage:
        ask = await led(stage)
        with pytest.raises(BadInput, match=re.escape(text)):
            await ask(**more)


WRONG_BODIES = [
    ({"copys": 2}, "body: copys: there is no such field; did you mean copies?"),
    ({"copies": "two"}, 'body: copies: expected a whole number from 0 to 200, found "two"'),
    ({"copies": 201}, "body: copies: expected a whole number from 0 to 200, found 201"),
    ({"max_copies": 1}, "body: max_copies: expected true or false, found 1"),
    ({"without": "n0"}, 'body: without: expected a list, found "n0"'),
    ({"with": [4]}, "body: with[0]: expected text, found 4"),
    ({"relax": {"g": "topology"}}, 'body: relax: expected a list, found {"g":"topology"}'),
    ({"workload": [3]}, "body: workload[0]: expected an object, found 3"),
    ({"budget": 0}, "body: budget: expected a whole number from 1 to 200000, found 0"),
    (b'{"copies": ', "body: not valid JSON: it ends too early"),
    (b"[" * 100_000, "body: nested too deep"),
    (b'{"a": "\xff"}', "body: "),
    (b'{"copies": 2,,}', "body: line 1, column 14: not valid JSON"),
]


@pytest.mark.parametrize(("body", "text"), WRONG_BODIES, ids=range(len(WRONG_BODIES)))
def test_a_wrong_body_names_field_value_and_what_is_expected(body, text):
    """No words of the decoder; several wrong fields are named at once."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(BadInput, match=re.escape(text)):
        answer_plan_request(raw)


def test_all_wrong_fields_of_a_body_are_named():
    """Two fields, two lines."""
    with pytest.raises(BadInput, match=r"^2 problems:\n  body: copys: .*\n  body: budget: "):
        answer_plan_request(b'{"copys": 1, "budget": 0}')


async def test_the_worker_process_names_all_wrong_fields_as_this_one_does():
    """What is wrong is made in another process; its message arrives as it was."""
    body = b'{"cluster": [0, {}], "workload": [], "more": 1}'
    with pytest.raises(BadInput) as here:
        answer_plan_request(body)
    worker = PlanQueryWorker()
    try:
        with pytest.raises(BadInput) as there:
            await worker.run(answer_plan_request, body)
    finally:
        worker.stop()
    assert str(there.value) == str(here.value)
    assert str(here.value).startswith("2 problems:\n  body: cluster[0]: ")


async def test_a_live_query_in_the_worker_process():
    """Query, snapshot and answer go to another process and back: the answer is that of this process."""
    async with a_stage(*a_gang("large", pods=5, requests={GPU: 8})) as stage:
        await led(stage)
        (node_group,) = node_groups(
            (NodeGroupSpec(name="more", max=9, template=a_node("new", {"pool": "a"}, gpu=8)),),
            "test",
        )
        query = PlanInput(groups=frozenset(stage.cluster.seen.groups), node_groups=(node_group,))
        worker = PlanQueryWorker()
        try:
            args = (stage.cluster, stage.leader, stage.barriers.started, stage.clock)
            answer = await PlanService(*args, worker.run, answer_plan_request).plan_live(query)
        finally:
            worker.stop()
        assert answer == await live_plans(stage).plan_live(query)
        (gang,) = answer.gangs
        assert (gang.verdict, gang.node_groups[0].nodes) == ("impossible", 1)


@pytest.mark.parametrize("item", [0, {}, {"kind": "Node", "apiVersion": "v1"}])
def test_of_very_many_wrong_objects_the_first_are_named(item):
    """No memory and no time for millions of messages: the rest is not read, and the message has that."""
    body = json.dumps({"cluster": [item] * 5_000, "workload": []}).encode()
    with pytest.raises(BadInput) as caught:
        answer_plan_request(body)
    assert str(caught.value).startswith(f"{FAULTS_MAX} problems or more:\n  body: cluster[0]")
    assert len(pickle.dumps(caught.value)) < 100_000

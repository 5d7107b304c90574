"""The view follows from the objects, in whatever order they come."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from extender.cluster import types as api
from extender.cluster.read import pod_conversion
from extender.cluster.read.object_decoding import convert
from extender.cluster.read.object_store import ObjectStore
from extender.cluster.read.pod_conversion import requests_of, shape_of
from extender.core.model.errors import BadInput
from extender.core.model.pod_groups import leaf_key
from extender.core.model.pods import NO_VOLUMES, PodEnd
from tests.support.service.manifest_builders import a_group, a_node, a_pod, an_object

ZONE = "topology.kubernetes.io/zone"
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


def read(thing):
    return convert(api.KINDS[thing["kind"]], thing)


def a_world(*things, guards=False) -> ObjectStore:
    world = ObjectStore(guards=guards)
    for thing in things:
        world.upsert(read(thing))
    return world


def a_claim(name, volume="", modes=("ReadWriteOnce",)):
    spec = {"accessModes": list(modes), **({"volumeName": volume} if volume else {})}
    return an_object("PersistentVolumeClaim", name, "v1", spec=spec)


def a_volume(name, nodes=(), **labels):
    term = {"matchExpressions": [{"key": "host", "operator": "In", "values": list(nodes)}]}
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}} if nodes else {}
    return an_object("PersistentVolume", name, "v1", "", metadata={"labels": labels}, spec=spec)


def with_claim(name, claim, **more):
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    return a_pod(name, metadata={"uid": name}, volumes=volumes, **more)


def shape(world, uid="p"):
    return world.view.pods[uid].shape


def test_a_bound_claim_brings_the_reach_of_its_volume() -> None:
    world = a_world(a_volume("pv", ["h1"]), a_claim("c", "pv"), with_claim("p", "c"))
    (selector,) = shape(world).selectors
    assert selector.terms[0].labels[0].values == ("h1",)
    assert shape(world).unmodelled == ()


def test_a_pod_follows_its_claims_and_volumes() -> None:
    """Each change of a claim or volume re-derives the pods behind it, and them only."""
    world = a_world(with_claim("p", "c"), with_claim("q", "other"))
    assert shape(world).unmodelled == ("claim default/c does not exist",)
    assert not shape(world).commits
    world.upsert(read(a_claim("c")))
    assert shape(world).unmodelled == ("claim default/c is not bound to a volume",)
    assert shape(world).commits
    world.upsert(read(a_claim("c", "pv")))
    assert shape(world).unmodelled == ("volume pv of claim default/c does not exist",)
    other = world.view.pods["q"]
    world.upsert(read(a_volume("pv", ["h1"])))
    assert (shape(world).unmodelled, len(shape(world).selectors)) == ((), 1)
    assert not shape(world).commits
    world.upsert(read(a_volume("pv", ["h2"])))
    assert shape(world).selectors[0].terms[0].labels[0].values == ("h2",)
    assert world.view.pods["q"] is other
    world.delete(read(a_volume("pv")))
    assert shape(world).unmodelled == ("volume pv of claim default/c does not exist",)
    world.delete(read(a_claim("c")))
    assert shape(world).unmodelled == ("claim default/c does not exist",)


def test_zone_labels_of_a_volume_bind_labelled_nodes_only() -> None:
    """VolumeZone: several zones are joined by two underscores; a node without any such label passes."""
    world = a_world(a_volume("pv", **{ZONE: "a__b"}), a_claim("c", "pv"), with_claim("p", "c"))
    (selector,) = shape(world).selectors
    inside, nowhere = selector.terms
    assert (inside.labels[0].key, inside.labels[0].values) == (ZONE, ("a", "b"))
    assert {one.operator for one in nowhere.labels} == {"DoesNotExist"}
    assert len(nowhere.labels) == 4


def test_a_volume_of_a_csi_driver_has_an_unknown_limit() -> None:
    """Bound or not: how many of them a node attaches is named as not modelled; rejections of nodes show it."""
    volume = a_volume("pv", ["a"])
    volume["spec"]["csi"] = {"driver": "disks.example.com"}
    world = a_world(volume, a_claim("c", "pv"), with_claim("p", "c"))
    assert shape(world).unmodelled == ("how many volumes of disks.example.com a node attaches",)
    assert len(shape(world).selectors) == 1


def test_a_pod_of_a_served_cluster_waits_for_claims_and_volumes_that_do_not_exist() -> None:
    """As PreFilter of kube-scheduler refuses it on every node; a file may leave them out."""
    pod = with_claim("p", "c")
    assert a_world(pod).view.pods["p"].waits_for == ""
    world = a_world(pod, with_claim("bound", "c", node="n"), a_pod("none"), guards=True)
    claim = "PersistentVolumeClaim default/c of pod p"

    def waits_for(name="p"):
        return world.view.pods[name].waits_for

    assert waits_for() == f"{claim} does not exist: create it"
    assert waits_for("bound") == "", "kube-scheduler has scheduled it"
    world.upsert(read(a_claim("c")))
    assert waits_for() == ""
    world.upsert(read(a_claim("c", "pv")))
    assert waits_for().startswith(f"PersistentVolume pv of {claim} does not exist")
    world.upsert(read(a_volume("pv")))
    assert waits_for() == ""
    going = a_claim("c", "pv")
    going["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    world.upsert(read(going))
    assert waits_for().startswith(f"{claim} is being deleted")
    world.delete(read(a_claim("c")))
    assert waits_for() == f"{claim} does not exist: create it"


def a_resource_claim(name: str, **metadata):
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", **metadata},
    }


def test_a_pod_of_a_served_cluster_waits_for_its_resource_claims() -> None:
    """kube-scheduler does not try it before, and writes nothing; a claim from a template is that of the pod's status."""
    claims = [
        {"name": "gpus", "resourceClaimName": "c"},
        {"name": "net", "resourceClaimTemplateName": "t"},
    ]
    pod = a_pod("p", metadata={"uid": "p"}, resourceClaims=claims)
    assert a_world(pod).view.pods["p"].waits_for == ""
    bound = a_pod("bound", metadata={"uid": "bound"}, resourceClaims=claims, nodeName="n")
    world = a_world(pod, bound, guards=True)

    def waits_for(name="p"):
        return world.view.pods[name].waits_for

    assert waits_for() == "ResourceClaim default/c of pod p does not exist: create it"
    assert waits_for("bound") == ""
    world.upsert(read(a_claim("c")))
    assert waits_for().startswith("ResourceClaim default/c"), "a claim of volumes is another one"
    world.upsert(read(a_resource_claim("c")))
    assert waits_for() == (
        'spec.resourceClaims "net" of pod p has no ResourceClaim yet: create ResourceClaimTemplate '
        "default/t if it does not exist; kube-controller-manager makes the claim from it"
    )
    pod["status"] = {"resourceClaimStatuses": [{"name": "net", "resourceClaimName": "p-net"}]}
    world.upsert(read(pod))
    made = "ResourceClaim default/p-net of pod p"
    assert waits_for() == f"{made} does not exist: kube-controller-manager creates it again"
    world.upsert(read(a_resource_claim("p-net")))
    assert waits_for() == ""
    world.delete(read(a_resource_claim("c")))
    assert waits_for() == "ResourceClaim default/c of pod p does not exist: create it"
    world.upsert(read(a_resource_claim("c", deletionTimestamp="2026-11-30T00:00:00Z")))
    assert waits_for() == (
        "ResourceClaim default/c of pod p is being deleted: create it again when it is gone"
    )
    world.upsert(read(a_resource_claim("c")))
    pod["status"] = {"resourceClaimStatuses": [{"name": "net"}]}
    world.upsert(read(pod))
    assert waits_for() == "", "kube-controller-manager found that none is needed"


def test_a_claim_of_an_ephemeral_volume_is_created_by_a_controller() -> None:
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    world = a_world(a_pod("p", metadata={"uid": "p"}, volumes=[volume]), guards=True)
    assert world.view.pods["p"].waits_for == (
        "PersistentVolumeClaim default/p-scratch of pod p does not exist: "
        "kube-controller-manager creates it for the pod"
    )
    claim = a_claim("p-scratch")
    world.upsert(read(claim))
    assert world.view.pods["p"].waits_for == (
        "PersistentVolumeClaim default/p-scratch of pod p was not made for this pod: "
        "delete it, so that kube-controller-manager creates it"
    )
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": True}
    claim["metadata"]["ownerReferences"] = [owner]
    world.upsert(read(claim))
    assert world.view.pods["p"].waits_for == ""


def test_a_pod_whose_claim_was_just_bound_does_not_wait_for_a_volume_that_is_read_later() -> None:
    """A reservation would be released while kube-scheduler binds the pod; a claim that lost its volume is Lost."""
    world = a_world(with_claim("p", "c"), guards=True)
    claim = a_claim("c", "pv")
    claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    world.upsert(read({**claim, "status": {"phase": "Pending"}}))
    assert world.view.pods["p"].waits_for == ""
    world.upsert(read({**claim, "status": {"phase": "Lost"}}))
    assert world.view.pods["p"].waits_for.startswith("PersistentVolume pv of ")


def test_a_claim_for_one_pod_is_exclusive_and_an_ephemeral_volume_is_a_claim() -> None:
    pod = a_pod("p", metadata={"uid": "p"}, volumes=[{"name": "scratch", "ephemeral": {"x": 1}}])
    world = a_world(pod, a_claim("p-scratch", "pv", ["ReadWriteOncePod"]), a_volume("pv"))
    assert shape(world).exclusive_claims == ("default/p-scratch",)
    world.upsert(read(with_claim("p", "c", node="n")))
    assert shape(world).exclusive_claims == ()
    assert world.view.usage["n"].claims == ()


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"phase": "Succeeded"}, PodEnd("ended", "Succeeded")),
        ({"phase": "Failed", "containerStatuses": [{"name": "main"}]}, PodEnd("ended", "Failed")),
        (
            {"phase": "Failed", "reason": "DeadlineExceeded", "containerStatuses": [{"name": "main"}]},
            PodEnd("ended", "DeadlineExceeded"),
        ),
        (
            {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "it has none"},
            PodEnd("rejected-by-kubelet", "OutOfnvidia.com/gpu: it has none"),
        ),
        ({"phase": "Failed", "reason": "NodeAffinity"}, PodEnd("rejected-by-kubelet", "NodeAffinity")),
        ({"phase": "Failed", "reason": "Evicted"}, PodEnd("evicted", "Evicted")),
        (
            {"phase": "Failed", "reason": "Terminated", "containerStatuses": [{"name": "main"}],
             "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]},
            PodEnd("evicted", "TerminationByKubelet"),
        ),
    ],
)  # fmt: skip
def test_how_a_member_ended_is_known(status, why) -> None:
    """Of members only, by UID, and still when it is deleted a moment later."""
    world = a_world(a_pod("p", "g", node="n", metadata={"uid": "p"}))
    over = a_pod("p", "g", node="n", metadata={"uid": "p"}, status=status)
    world.upsert(read(over))
    assert "p" not in world.view.pods
    assert world.view.ends.get("p") == msgspec.structs.replace(why, node="n")
    other = a_pod(
        "q", node="n", metadata={"uid": "q"}, status={"phase": "Failed", "reason": "Evicted"}
    )
    world.upsert(read(other))
    assert "q" not in world.view.ends
    world.delete(read(over))
    world.upsert(read(a_pod("p", "g", node="n", metadata={"uid": "again"})))
    assert dict(world.view.ends) == {"p": msgspec.structs.replace(why, node="n")}


@pytest.mark.parametrize(
    ("metadata", "conditions", "end"),
    [
        ({}, [], None),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, [], PodEnd("deleted", node="n")),
        ({}, [EVICTED], PodEnd("evicted", "EvictionByEvictionAPI", "n")),
    ],
)
def test_what_was_seen_of_a_deletion_is_known_when_the_pod_is_gone(
    metadata, conditions, end
) -> None:
    """Both may come in one piece of a watch."""
    before = a_pod("p", "g", node="n", metadata={"uid": "p"})
    world = a_world(before)
    going = a_pod(
        "p", "g", node="n", metadata={"uid": "p", **metadata},
        status={"phase": "Running", "conditions": conditions},
    )  # fmt: skip
    world.upsert(read(going))
    world.delete(read(before))
    assert world.view.ends.get("p") == end


def test_ends_are_not_kept_for_ever(monkeypatch) -> None:
    """The log has them a moment later."""
    monkeypatch.setattr("extender.cluster.read.object_store._ENDS_KEPT", 2)
    world = a_world()
    for name in "pqr":
        over = a_pod(name, "g", node="n", metadata={"uid": name}, status={"phase": "Succeeded"})
        world.upsert(read(over))
    assert set(world.view.ends) == {"q", "r"}


def test_any_order_gives_the_same_view() -> None:
    things = [
        a_node("n"), a_volume("pv", ["h"]), a_claim("c", "pv"), with_claim("p", "c"),
        a_pod("q", "g", node="n", metadata={"uid": "q"}), a_group("g", gang=1, priorityClassName="prod"),
        a_group("g", gang=2, version="scheduling.k8s.io/v1beta1", priorityClassName="prod"),
        an_object("PriorityClass", "prod", "scheduling.k8s.io/v1", "", value=9),
    ]  # fmt: skip
    views, warnings = [], set()
    for seed in range(12):
        random.Random(seed).shuffle(things)
        world = a_world(*things)
        view = world.view
        views.append((view.nodes, view.pods, view.groups, view.usage, view.members, view.on_node))
        warnings.add(world.warnings)
    assert all(view == views[0] for view in views)
    assert views[0][2][leaf_key("default", "g")].priority == 9
    assert len(warnings) == 1


def test_classes_may_come_after_what_they_are_for() -> None:
    """A class, a volume of it, its claim, a pod and its priority: no order changes the answer, nor what goes again."""
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]
    store = an_object("StorageClass", "fast", "storage.k8s.io/v1", "", provisioner="csi",
                      volumeBindingMode="WaitForFirstConsumer", allowedTopologies=topologies)  # fmt: skip
    pv = a_volume("pv", ["h"])
    pv["spec"]["storageClassName"] = "fast"
    claim = an_object("PersistentVolumeClaim", "c", "v1", spec={"storageClassName": "fast"})
    never = an_object("PriorityClass", "never", "scheduling.k8s.io/v1", "", value=9, preemptionPolicy="Never")  # fmt: skip
    pod = with_claim("p", "c", priority=9, priorityClassName="never")
    things = [store, pv, claim, pod, never]
    found = set()
    for order in itertools.permutations(things):
        world = a_world(*order)
        both = world.view.pods["p"]
        world.delete(read(pv))
        alone = world.view.pods["p"]
        world.upsert(read(pv))
        assert world.view.pods["p"] == both
        world.delete(read(never))
        found.add((both.shape, both.preemption_policy, alone.shape, world.view.pods["p"].preemption_policy))  # fmt: skip
    ((both_shape, policy, alone_shape, without),) = found
    assert (policy, without) == ("Never", "PreemptLowerPriority")
    assert (both_shape.selectors, both_shape.unmodelled) == (
        (),
        ("claim default/c is not bound to a volume",),
    )
    assert alone_shape.selectors[0].terms[0].labels[0].values == ("b",)
    assert alone_shape.unmodelled == ()


def test_a_volume_that_changes_its_class_is_no_volume_of_the_old_one() -> None:
    claim = an_object("PersistentVolumeClaim", "c", "v1", spec={"storageClassName": "fast"})
    store = an_object("StorageClass", "fast", "storage.k8s.io/v1", "", provisioner="csi", volumeBindingMode="WaitForFirstConsumer")  # fmt: skip
    pv, other = a_volume("pv"), a_volume("pv")
    pv["spec"]["storageClassName"], other["spec"]["storageClassName"] = "fast", "slow"
    world = a_world(store, claim, with_claim("p", "c"), pv)
    assert shape(world).unmodelled == ("claim default/c is not bound to a volume",)
    world.upsert(read(pv))  # again, as after a new list
    world.upsert(read(other))
    assert shape(world).unmodelled == ()


def test_of_two_groups_of_one_name_the_built_in_one_counts() -> None:
    ours = a_group("g", gang=1)
    theirs = a_group("g", gang=2, version="scheduling.k8s.io/v1beta1")
    key = leaf_key("default", "g")
    world = a_world(theirs, ours)
    assert (world.view.groups[key].minimum, world.view.groups[key].source) == (2, "builtin")
    assert world.warnings == (
        "PodGroup/default/g: exists in scheduling.k8s.io/v1beta1 and in gang-extender.dev/v1alpha1; "
        "the first one counts",
    )
    world.delete(read(theirs))
    assert (world.view.groups[key].minimum, world.warnings) == (1, ())
    world.delete(read(ours))
    assert not world.view.groups


def test_a_pod_that_ends_leaves_the_view() -> None:
    world = a_world(a_pod("p", node="n", metadata={"uid": "u"}))
    world.upsert(read(a_pod("p", node="n", metadata={"uid": "u"}, status={"phase": "Succeeded"})))
    assert not world.view.pods
    assert not world.view.usage


def test_a_recreated_pod_replaces_its_namesake_and_a_late_delete_does_not_hit_it() -> None:
    old, new = a_pod("p", metadata={"uid": "old"}), a_pod("p", metadata={"uid": "new"})
    world = a_world(old, new)
    world.delete(read(old))
    assert set(world.view.pods) == {"new"}
    world.delete(read(new))
    assert not world.view.pods


def test_deleted_objects_leave_the_view() -> None:
    pods = [a_pod(f"p{n}", metadata={"uid": f"p{n}"}) for n in range(3)]
    world = a_world(*pods, a_node("n"))
    for obj in (pods[0], pods[2], a_node("n")):
        world.delete(read(obj))
    assert set(world.view.pods) == {"p1"}
    assert not world.view.nodes
    ours, builtin = (
        a_group("g", gang=1),
        a_group("h", gang=1, version="scheduling.k8s.io/v1beta1"),
    )
    groups = a_world(ours, builtin)
    groups.delete(read(builtin))
    assert {key.name for key in groups.view.groups} == {"g"}


def test_what_cannot_be_read_changes_nothing() -> None:
    world = a_world(a_group("g", gang=3), a_pod("p", metadata={"uid": "u"}))
    before = world.view
    bad = a_group("g", gang=3)
    bad["spec"]["schedulingPolicy"] = {}
    with pytest.raises(BadInput):
        world.upsert(read(bad))
    with pytest.raises(BadInput, match="Pod/default/p"):
        world.upsert(read(a_pod("p", metadata={"uid": "u"}, requests={"cpu": "x"})))
    assert world.view is before


def test_pods_of_one_shape_share_it() -> None:
    world = a_world(*(a_pod(f"p{n}", metadata={"uid": f"p{n}"}) for n in range(3)))
    assert len({id(pod.shape) for pod in world.view.pods.values()}) == 1


NODE_TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
POD_TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OTHER_SPECS = {
    "requests": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "7"}}}]},
    "limits": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "7"}}}]},
    "ports": {"containers": [{"name": "main", "ports": [{"containerPort": 1, "hostPort": 80}]}]},
    "init": {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "9"}}}]},
    "sidecar": {
        "initContainers": [
            {"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "9"}}}
        ]
    },
    "pod level": {"resources": {"requests": {"cpu": "9"}}},
    "overhead": {"overhead": {"cpu": "1"}},
    "selector": {"nodeSelector": {"zone": "a"}},
    "node affinity": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NODE_TERM]}}}},
    "tolerations": {"tolerations": [{"key": "k", "operator": "Exists"}]},
    "claims": {"resourceClaims": [{"name": "gpu"}]},
    "affinity": {"affinity": {"podAffinity": {REQUIRED: [POD_TERM]}}},
    "anti-affinity": {"affinity": {"podAntiAffinity": {REQUIRED: [POD_TERM]}}},
    "spread": {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        ]
    },
    "volume": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
}


def test_the_shape_of_running_pods_of_a_template_is_converted_once(monkeypatch) -> None:
    """Each has a volume of its own for the token of its service account, and containers that run with what was asked for."""
    pods = [
        a_pod(
            f"p{n}",
            metadata={"uid": f"p{n}"},
            volumes=[{"name": f"kube-api-access-{n}", "projected": {}}],
            status={
                "phase": "Running",
                "containerStatuses": [
                    {"name": "main", "resources": {"requests": {"cpu": "1"}}, "restartCount": n}
                ],
            },
        )
        for n in range(3)
    ]
    converted = []
    monkeypatch.setattr(
        pod_conversion, "requests_of", lambda pod: converted.append(pod) or requests_of(pod)
    )
    world = a_world(*pods)
    assert shape(world, "p0") is shape(world, "p2")
    assert shape(world, "p0") == shape_of(read(pods[0]), NO_VOLUMES)
    assert len(converted) == 2  # the other one is of the line above


def test_objects_that_are_added_together_give_the_view_of_one_after_the_other() -> None:
    """Also of a pod that comes twice, of one that was created again, and with one that cannot be read."""
    things = [
        a_node("n"),
        a_pod("p", node="n", metadata={"uid": "p"}),
        a_pod("q", metadata={"uid": "q"}, priorityClassName="high"),
        a_pod("q", metadata={"uid": "q2"}),
        a_pod("ended", "g", metadata={"uid": "e"}, status={"phase": "Succeeded"}),
        a_pod("bad", metadata={"uid": "b"}, requests={"cpu": "x"}),
        an_object("PriorityClass", "high", "scheduling.k8s.io/v1", "", value=7),
        a_node("n", {"zone": "a"}),
        a_pod("p", node="n", metadata={"uid": "p", "labels": {"a": "b"}}),
    ]
    together = ObjectStore()
    faults = together.upsert_all(map(read, things))
    assert [*faults] == [5]
    alone = a_world(*(each for n, each in enumerate(things) if n not in faults))
    for name in ("nodes", "pods", "on_node", "usage", "members", "ends"):
        assert getattr(together.view, name) == getattr(alone.view, name), name


@pytest.mark.parametrize("name", OTHER_SPECS)
def test_a_shape_that_was_seen_before_is_that_of_the_conversion(name: str) -> None:
    """Among pods that differ in one field, each has its own shape, also when it comes again."""
    common = a_pod("p", metadata={"uid": "p"})
    other = a_pod("q", metadata={"uid": "q"})
    other["spec"] = {**other["spec"], **OTHER_SPECS[name]}
    world = a_world(common, other, other, common, other)
    unknown = a_world(other)
    assert shape(world, "q") == shape(unknown, "q")
    assert shape(world, "p") == shape_of(read(common), NO_VOLUMES)
    assert shape(world, "q") != shape(world, "p")


def test_host_network_changes_what_ports_a_shape_has() -> None:
    """All ports of a pod in the network of its node are ports of the node."""
    containers = [{"name": "main", "ports": [{"containerPort": 80}]}]
    pods = [
        a_pod(uid, metadata={"uid": uid}, containers=containers, hostNetwork=host)
        for uid, host in (("p", False), ("q", True))
    ]
    world = a_world(*pods, *pods)
    assert [len(shape(world, uid).host_ports) for uid in ("p", "q")] == [0, 1]


def test_a_resize_changes_a_shape_that_was_seen_before() -> None:
    """What the containers have counts as long as it is more than what the spec asks for."""
    pod = a_pod("p", metadata={"uid": "p"}, requests={"cpu": "1"})
    container = pod["spec"]["containers"][0]["name"]
    running = {"name": container, "resources": {"requests": {"cpu": "4"}}}
    resized = {**pod, "status": {"phase": "Running", "containerStatuses": [running]}}
    world = a_world(pod, resized)
    assert dict(shape(world).requests)["cpu"] == 4000
    world.upsert(read(pod))
    assert dict(shape(world).requests)["cpu"] == 1000


def test_priority_classes_reach_back_only_to_those_without_a_number() -> None:
    prod = an_object("PriorityClass", "prod", "scheduling.k8s.io/v1", "", value=9)
    world = a_world(
        a_group("g", gang=1, priorityClassName="prod"),
        a_pod("p", metadata={"uid": "p"}, priorityClassName="prod"),
        a_pod("q", metadata={"uid": "q"}, priorityClassName="prod", priority=3),
        prod,
    )
    assert world.view.groups[leaf_key("default", "g")].priority == 9
    assert (world.view.pods["p"].priority, world.view.pods["q"].priority) == (9, 3)
    world.delete(read(prod))
    assert world.view.pods["p"].priority == 0


def test_the_policy_of_a_class_reaches_a_group_with_a_number() -> None:
    """An API server writes the number of a class into a group, and drops the policy while a gate is off."""
    never = an_object(
        "PriorityClass", "prod", "scheduling.k8s.io/v1", "", value=9, preemptionPolicy="Never"
    )
    known = {"priorityClassName": "prod", "priority": 9}
    world = a_world(
        a_group("early", gang=1, **known),
        a_group("own", gang=1, preemptionPolicy="PreemptLowerPriority", **known),
        never,
        a_group("late", gang=1, **known),
    )
    groups = world.view.groups
    assert {key.name: group.preemption_policy for key, group in groups.items()} == {
        "early": "Never",
        "own": "PreemptLowerPriority",
        "late": "Never",
    }


def test_workloads_are_kept_by_name() -> None:
    workload = an_object("Workload", "w", spec={"podGroupTemplates": [{"name": "t"}]})
    world = a_world(workload)
    assert [t.name for t in world.view.blueprints["default", "w"]] == ["t"]
    world.delete(read(workload))
    assert not world.view.blueprints

"""Objects of the API become values of the core, exactly, or an error that names everything."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from deploy.render.crd_group_types import LeafConstraints
from extender.cluster import types as api
from extender.cluster.manifests import workload_objects
from extender.cluster.read.object_decoding import (
    constraints_body,
    convert,
    decode,
    decode_page,
    decode_watch,
    group_of,
    group_warnings,
    node_of,
    without_nulls,
)
from extender.cluster.read.pod_conversion import ended, pod_of, requests_of
from extender.cluster.read.priority_classes import Priorities
from extender.core.model.errors import BadInput
from extender.core.model.nodes import ExclusiveDomain, NearGroup, SchedulingConstraints, SliceLevel
from extender.core.model.pods import (
    AboutPods,
    HostPort,
    NodePreference,
    NodeSelectorRequirement,
    PodPreference,
    PodRule,
    PodShape,
    SelectorTerm,
    SoftRules,
    Toleration,
)
from extender.core.workloads.tree_compiler import GroupSpec, constraint_fields
from tests.support.service.manifest_builders import a_group, a_node, a_pod, an_object

NO_CLASSES = Priorities()


def a_container(requests=None, limits=None, **rest):
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **rest}


def pod_with(**spec):
    return convert(api.Pod, a_pod("p", **spec))


def requests(**spec) -> dict[str, int]:
    return dict(requests_of(pod_with(**spec)))


def group_from(thing):
    kind = api.PodGroup if thing["kind"] == "PodGroup" else api.CompositePodGroup
    return group_of(convert(kind, thing), NO_CLASSES)


# --- requests


def test_containers_add_up_and_are_rounded_once() -> None:
    cpu = [a_container({"cpu": "100u", "memory": "0.5"}) for _ in range(10)]
    assert requests(containers=cpu) == {"cpu": 1, "memory": 5, "pods": 1}


def test_an_init_container_counts_where_it_is_larger() -> None:
    init = [a_container({"cpu": 3, "memory": 1})]
    main = [a_container({"cpu": 1, "memory": 5}), a_container({"cpu": 1})]
    assert requests(containers=main, initContainers=init) == {"cpu": 3000, "memory": 5, "pods": 1}


def test_a_sidecar_runs_beside_containers_and_beside_later_init_containers_only() -> None:
    sidecar = a_container({"cpu": 2}, restartPolicy="Always")
    main = [a_container({"cpu": 1})]
    before = requests(containers=main, initContainers=[a_container({"cpu": 4}), sidecar])
    after = requests(containers=main, initContainers=[sidecar, a_container({"cpu": 4})])
    assert before["cpu"] == 4000
    assert after["cpu"] == 6000


def test_requests_of_the_pod_replace_cpu_memory_and_hugepages_only() -> None:
    main = [a_container({"cpu": 1, "memory": 1, "x/y": 2, "hugepages-2Mi": 1})]
    whole = {"requests": {"cpu": 8, "hugepages-2Mi": 4, "x/y": 9}, "limits": {"memory": 7}}
    assert requests(containers=main, resources=whole) == {
        "cpu": 8000, "memory": 1, "x/y": 2, "hugepages-2Mi": 4, "pods": 1,
    }  # fmt: skip
    assert requests(containers=[a_container()], resources=whole)["memory"] == 7


def test_a_limit_without_a_request_is_the_request_and_overhead_comes_on_top() -> None:
    main = [a_container({"cpu": 1}, {"cpu": 2, "memory": 3})]
    assert requests(containers=main, overhead={"cpu": "1m"}) == {
        "cpu": 1001,
        "memory": 3,
        "pods": 1,
    }


def test_markers_and_zeros_are_left_out() -> None:
    main = [a_container({"gang-extender.dev/member": 1, "gang-extender.dev/bind": 1, "cpu": 0})]
    assert requests(containers=main) == {"pods": 1}


@pytest.mark.parametrize(("reason", "cpu"), [("Deferred", 4000), ("Infeasible", 2000)])
def test_a_resized_pod_counts_with_the_most_it_wants_or_has(reason, cpu) -> None:
    """Without what it wants when the kubelet has reported that this is infeasible."""
    status = {
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
        "containerStatuses": [
            {"name": "c", "resources": {"requests": {"cpu": 1}}, "allocatedResources": {"cpu": 2}}
        ],
    }
    assert requests(containers=[a_container({"cpu": 4})], status=status)["cpu"] == cpu


def test_a_negative_or_unreadable_request_names_everything() -> None:
    with pytest.raises(BadInput, match=r'Pod/default/p: .*containers\[0\].*cpu: "-1" is negative'):
        requests(containers=[a_container({"cpu": "-1"})])
    with pytest.raises(BadInput, match=r'Pod/default/p: .*limits.*memory: quantity "1gb"'):
        requests(containers=[a_container({}, {"memory": "1gb"})])


@given(
    st.lists(st.integers(0, 50), max_size=4),
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=5),
)
def test_requests_equal_the_peak_of_a_simulated_start(main, init) -> None:
    """The arithmetic is the highest sum that ever runs at once."""
    running, peak = 0, 0
    for size, sidecar in init:
        peak = max(peak, running + size)
        running += size if sidecar else 0
    peak = max(peak, running + sum(main))
    inits = [a_container({"x/y": n}, **({"restartPolicy": "Always"} if s else {})) for n, s in init]
    got = requests(containers=[a_container({"x/y": n}) for n in main], initContainers=inits)
    assert got.get("x/y", 0) == peak


# --- the rest of a pod


def test_a_pod_in_full() -> None:
    pod = pod_of(
        pod_with(
            metadata={
                "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-01T00:00:01.5Z",
                "labels": {"app": "x"}, "annotations": {"gang-extender.dev/plan": "plan"},
            },
            node="n1", schedulerName="gang-scheduler", priority=5, preemptionPolicy="Never",
            nodeSelector={"b": "2", "a": "1"}, schedulingGates=[{"name": "g"}],
            tolerations=[{"operator": "Exists"}, {"key": "k", "value": "v", "effect": "NoExecute"},
                         {"key": "k", "operator": "Gt", "value": "1"}, {"operator": "Exists"}],
            status={"nominatedNodeName": "n2"},
        ),
        NO_CLASSES,
    )  # fmt: skip
    assert (pod.uid, pod.path, pod.resource_version, pod.plan) == ("u", "default/p", "7", "plan")
    assert (pod.node, pod.nominated, pod.gates, pod.deleting) == ("n1", "n2", ("g",), True)
    assert (pod.priority, pod.preemption_policy, pod.scheduler_name) == (
        5,
        "Never",
        "gang-scheduler",
    )
    assert pod.created_us == pod.assigned_us == 1_767_225_600_000_000
    assert pod.shape.node_selector == (("a", "1"), ("b", "2"))
    assert pod.shape.tolerations == (
        Toleration(operator="Exists"), Toleration(key="k", value="v", effect="NoExecute"),
    )  # fmt: skip
    assert not ended(pod_with(node="n1"))
    assert ended(pod_with(status={"phase": "Failed"}))


def test_when_a_pod_got_its_node() -> None:
    """As kube-apiserver notes at a Binding; who was made with a node has it since then, others have none."""
    condition = {"type": "PodScheduled", "status": "True"}
    status = {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:02Z"}]}
    made = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    pods = [
        pod_of(pod_with(metadata=made, node=node, status=status), NO_CLASSES) for node in ("n1", "")
    ]
    assert [pod.assigned_us for pod in pods] == [1_767_225_602_000_000, 0]
    status["conditions"][0]["lastTransitionTime"] = "tomorrow"
    with pytest.raises(BadInput, match=r'default/p.*lastTransitionTime: "tomorrow"'):
        pod_of(pod_with(node="n1", status=status), NO_CLASSES)


def test_equal_pods_have_equal_shapes() -> None:
    one = [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]
    shapes = {
        pod_of(pod_with(tolerations=list(order)), NO_CLASSES).shape
        for order in (one, reversed(one))
    }
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("field", "labels", "name"),
    [
        ("f", {"gang-extender.dev/pod-group": "g", "scheduling.x-k8s.io/pod-group": "x"}, "f"),
        ("", {"gang-extender.dev/pod-group": "g", "scheduling.x-k8s.io/pod-group": "x"}, "g"),
        ("", {"scheduling.x-k8s.io/pod-group": "x"}, "x"),
        ("", {"gang-extender.dev/pod-group": ""}, None),
    ],
)
def test_the_order_in_which_a_pod_names_its_group(field, labels, name) -> None:
    spec = {"schedulingGroup": {"podGroupName": field}} if field else {}
    group = pod_of(pod_with(metadata={"labels": labels}, **spec), NO_CLASSES).group
    assert (group and group.name) == name
    assert group is None or group.kind == "PodGroup"


def affinity(*terms):
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}
    }
    return {"nodeAffinity": required}


def by_name(name):
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}


def test_a_daemonset_pod_is_pinned() -> None:
    assert (
        pod_of(pod_with(affinity=affinity(by_name("n1"), by_name("n1"))), NO_CLASSES).pinned == "n1"
    )
    for terms in ((by_name("n1"), by_name("n2")), (by_name("n1"), {}), ()):
        assert pod_of(pod_with(affinity=affinity(*terms)), NO_CLASSES).pinned is None


def test_required_affinity_is_a_selector_and_wrong_values_are_named() -> None:
    term = {"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["3"]}]}
    (selector,) = pod_of(pod_with(affinity=affinity(term)), NO_CLASSES).shape.selectors
    assert selector.terms[0].labels == (NodeSelectorRequirement("k", "Gt", ("3",)),)
    term["matchExpressions"][0]["values"] = ["three"]
    with pytest.raises(
        BadInput, match=r'Pod/default/p: spec.affinity.*k Gt \["three"\]: needs exactly'
    ):
        pod_of(pod_with(affinity=affinity(term)), NO_CLASSES)


def test_host_ports_of_containers_sidecars_and_the_hosts_network() -> None:
    main = [
        a_container(
            ports=[{"containerPort": 80}, {"containerPort": 1, "hostPort": 81, "hostIP": "1.1.1.1"}]
        )
    ]
    init = [
        a_container(ports=[{"containerPort": 1, "hostPort": 90}], restartPolicy="Always"),
        a_container(ports=[{"containerPort": 1, "hostPort": 91}]),
    ]
    shape = pod_of(pod_with(containers=main, initContainers=init), NO_CLASSES).shape
    assert shape.host_ports == (HostPort("TCP", 81, "1.1.1.1"), HostPort("TCP", 90))
    shape = pod_of(pod_with(containers=main, hostNetwork=True), NO_CLASSES).shape
    assert HostPort("TCP", 80) in shape.host_ports


def ruled(**spec: Any) -> PodShape:
    """Read a pod with labels app=a and index=7."""
    return pod_of(
        pod_with(metadata={"labels": {"app": "a", "index": "7"}}, **spec), NO_CLASSES
    ).shape


def required(kind: str, **term: Any) -> dict[str, Any]:
    term = {"topologyKey": "zone", **term}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_what_the_planner_cannot_see_is_named() -> None:
    elsewhere = {"namespaceSelector": {"matchLabels": {"team": "x"}}}
    affinity = required("podAffinity", **elsewhere) | required("podAntiAffinity", **elsewhere)
    shape = ruled(resourceClaims=[{"name": "gpu"}], affinity=affinity)
    assert shape.rules == ()
    assert shape.unmodelled == (
        "pod affinity over zone", "pod anti-affinity over zone", "resource claim gpu",
    )  # fmt: skip
    assert shape.pod_rules == ("pod affinity over zone", "pod anti-affinity over zone")
    assert shape.has_pod_affinity


@pytest.mark.parametrize(
    ("term", "namespaces", "labels"),
    [
        ({}, ("default",), (NodeSelectorRequirement("", "In"),)),
        ({"labelSelector": {}}, ("default",), ()),
        ({"labelSelector": {}, "namespaces": ["b", "a"]}, ("a", "b"), ()),
        ({"labelSelector": {}, "namespaceSelector": {}}, (), ()),
        (
            {"labelSelector": {"matchLabels": {"k": "v"}}},
            ("default",),
            (NodeSelectorRequirement("k", "In", ("v",)),),
        ),
        (
            {
                "labelSelector": {},
                "matchLabelKeys": ["app", "none"],
                "mismatchLabelKeys": ["index"],
            },
            ("default",),
            (
                NodeSelectorRequirement("app", "In", ("a",)),
                NodeSelectorRequirement("index", "NotIn", ("7",)),
            ),
        ),
    ],
    ids=["no selector", "all here", "namespaces", "everywhere", "labels", "own values"],
)
def test_rules_about_other_pods_are_read_as_kube_scheduler_reads_them(
    term: dict[str, Any], namespaces: tuple[str, ...], labels: tuple[NodeSelectorRequirement, ...]
) -> None:
    about = AboutPods(namespaces, labels)
    shape = ruled(affinity=required("podAntiAffinity", **term))
    assert shape.rules == (PodRule("apart", ("zone",), (about,)),)
    assert shape.has_anti_affinity
    assert ruled(affinity=required("podAffinity", **term)).rules == (
        PodRule("near", ("zone",), (about,)),
    )


def test_topology_spread_is_read_with_its_policies() -> None:
    hard = {
        "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 2, "minDomains": 3,
        "labelSelector": {"matchLabels": {"app": "a"}}, "nodeTaintsPolicy": "Honor",
        "nodeAffinityPolicy": "Ignore",
    }  # fmt: skip
    soft = {"topologyKey": "soft", "whenUnsatisfiable": "ScheduleAnyway"}
    about = AboutPods(("default",), (NodeSelectorRequirement("app", "In", ("a",)),))
    assert ruled(topologySpreadConstraints=[hard, soft]).rules == (
        PodRule("spread", ("rack",), (about,), 2, 3, honors_affinity=False, honors_taints=True),
    )


def test_preferences_are_read_apart_from_what_is_required() -> None:
    """With their weights; those of weight 0 and empty terms change nothing, and namespaces by label are named."""
    node = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}
    zone = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
    wide = {**zone, "namespaceSelector": {"matchLabels": {"team": "x"}}}

    def weighted(field: str, *terms: tuple[int, dict[str, Any]]) -> dict[str, Any]:
        listed = [{"weight": weight, field: term} for weight, term in terms]
        return {"preferredDuringSchedulingIgnoredDuringExecution": listed}

    shape = ruled(
        affinity={
            "nodeAffinity": weighted("preference", (30, node), (5, {}), (0, node)),
            "podAffinity": weighted("podAffinityTerm", (8, wide), (0, zone)),
            "podAntiAffinity": weighted("podAffinityTerm", (9, zone)),
        },
        topologySpreadConstraints=[{**zone, "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 2}],
    )
    app = (AboutPods(("default",), (NodeSelectorRequirement("app", "In", ("a",)),)),)
    assert shape.rules == ()
    assert shape.unmodelled == ()
    assert not shape.has_pod_affinity
    assert shape.soft == SoftRules(
        nodes=(
            NodePreference(30, SelectorTerm((NodeSelectorRequirement("disk", "In", ("fast",)),))),
        ),
        pods=(
            PodPreference(PodRule("apart", ("zone",), app), 9),
            PodPreference(PodRule("spread", ("zone",), app, skew=2)),
        ),
        unseen=("preferred pod affinity over zone of namespaces that a label selects",),
    )
    assert ruled().soft is UNSET
    node["matchExpressions"] = [{"key": "k", "operator": "Gt", "values": ["three"]}]
    soft = ruled(affinity={"nodeAffinity": weighted("preference", (1, node))}).soft
    assert soft.nodes == ()
    assert soft.unseen == (
        'preferred node affinity [0].preference.matchExpressions: k Gt ["three"]: needs exactly one whole number',
    )


# --- groups


def test_a_leaf_of_every_version_reads_the_same() -> None:
    """L49: an object of 1.36 gives the same group."""
    new = a_group("g", gang=4, parent="c", topo="rack", whole=True, workload="w")
    old = a_group("g", gang=4, topo="rack", version="scheduling.k8s.io/v1alpha2")
    old["metadata"]["annotations"] = {"gang-extender.dev/parent": "c"}
    old["spec"] |= {
        "podGroupTemplateRef": {"workload": {"workloadName": "w", "podGroupTemplateName": "t"}},
        "disruptionMode": "PodGroup",
    }
    a, b = group_from(new), group_from(old)
    assert (a.source, b.source) == ("crd", "builtin")
    same = {"source": "crd", "api_version": "", "resource_version": ""}
    assert msgspec.structs.replace(a, **same) == msgspec.structs.replace(b, **same)
    assert (a.parent, a.workload, a.template, a.minimum, a.disruption_mode, a.constraints.topology) == (
        "c", "w", "t", 4, "all", ("rack",),
    )  # fmt: skip


def test_the_workload_of_a_linked_group_is_that_of_its_controller() -> None:
    """B8 counts the Workload of a group that people hung below a composite, not that of an adopted one."""
    group = a_group("g", gang=4, version="scheduling.k8s.io/v1beta1")
    group["spec"]["workloadRef"] = {"workloadName": "fit-1", "templateName": "fit-pgt-0"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "fit", "uid": "u1", "controller": True}
    assert group_from(group).workload == "fit-1"
    group["metadata"]["annotations"] = {"gang-extender.dev/parent": "search"}
    assert (group_from(group).parent, group_from(group).workload) == ("search", "fit-1")
    group["metadata"]["ownerReferences"] = [job]
    linked = group_from(group)
    assert (linked.parent, linked.workload, linked.template) == ("search", None, "fit-pgt-0")
    group["spec"]["parentCompositePodGroupName"] = "search"
    assert group_from(group).workload == "fit-1"


@pytest.mark.parametrize("alias", ["key", "level", "topologyKey"])
def test_spellings_of_topology(alias) -> None:
    """X1: the aliases are read, with a warning."""
    thing = a_group("g", gang=1, schedulingConstraints={"topology": [{alias: "rack"}]})
    assert group_from(thing).constraints.topology == ("rack",)
    warnings = group_warnings(convert(api.PodGroup, thing))
    assert bool(warnings) == (alias != "key")
    assert all(alias in text and "PodGroup/default/g" in text for text in warnings)


@pytest.mark.parametrize("name", ["topology", "slices", "exclusive", "near", "parent"])
@pytest.mark.parametrize("composite", [False, True])
def test_a_group_with_an_annotation_of_workloads_is_questionable(name, composite) -> None:
    """What the annotations ask for are fields of a group; built-in groups may have them from their workload."""
    noted = {"annotations": {f"gang-extender.dev/{name}": "x"}}
    kind = api.CompositePodGroup if composite else api.PodGroup
    group = convert(kind, a_group("g", gang=1, metadata=noted, composite=composite))
    text = (
        f"{kind.__name__}/default/g: metadata.annotations[gang-extender.dev/{name}]: is read of workloads alone; "
        "a group has it in spec.schedulingConstraints"
    )
    assert group_warnings(group) == ((text,) if name != "parent" else ())
    built_in = a_group("g", gang=1, metadata=noted, version="scheduling.k8s.io/v1beta1")
    assert group_warnings(convert(api.PodGroup, built_in)) == ()


@pytest.mark.parametrize(
    "annotation",
    ["gang-extender.dev/parent", "scheduling.k8s.io/parent-compositepodgroup", "scheduling.k8s.io/parent-composite-podgroup"],
)  # fmt: skip
def test_parents_by_annotation_yield_to_the_field(annotation) -> None:
    """X3."""
    noted = {"annotations": {annotation: "noted"}}
    assert group_from(a_group("g", gang=1, metadata=noted)).parent == "noted"
    assert group_from(a_group("g", gang=1, metadata=noted, parent="field")).parent == "field"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"schedulingPolicy": {}}, "spec.schedulingPolicy: choose exactly one of basic, gang; found neither"),
        ({"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}}, "found both"),
        ({"schedulingPolicy": {"gang": {}}}, "spec.schedulingPolicy.gang.minCount: is required"),
        ({"schedulingPolicy": {"gang": {"minCount": 0}}}, "spec.schedulingPolicy.gang.minCount: expected a whole number of at least 1, found 0"),
        ({"schedulingPolicy": {"gang": {"minCount": "4"}}}, 'minCount: expected a whole number of at least 1, found "4"'),
        ({"disruptionMode": "Everything"}, 'spec.disruptionMode: "Everything" is none of'),
        ({"disruptionMode": {"single": {}, "all": {}}}, "spec.disruptionMode: choose exactly one"),
        ({"schedulingConstraints": {"topology": [{}]}}, "topology: an entry has no key"),
        ({"schedulingConstraints": {"exclusive": {"scope": "Cluster"}}}, "spec.schedulingConstraints.exclusive.key: is empty; name"),
        ({"schedulingConstraints": {"exclusive": {"key": "a", "scope": "All"}}}, 'exclusive.scope: "All" is none of Profile, Namespace, Cluster|exclusive.scope: .*"All"'),
        ({"schedulingConstraints": {"near": [{"key": "a"}]}}, r"spec.schedulingConstraints.near\[0\].group: is empty; name"),
        ({"schedulingConstraints": {"near": [{"group": "b"}]}}, r"spec.schedulingConstraints.near\[0\].key: is empty; name"),
        ({"schedulingConstraints": {"near": [{"group": "g", "key": "a"}]}}, r"near\[0\].group: g is itself; name"),
        ({"schedulingConstraints": {"balanced": True}}, "spec.schedulingConstraints.balanced: is true without preferred, so"),
        ({"schedulingConstraints": {"slices": [{"size": 4}]}}, "spec.schedulingConstraints.slices: an entry has no key; name"),
        ({"schedulingConstraints": {"slices": [{"size": 3, "key": "a"}, {"size": 2, "key": "b"}]}}, "slices: 3 of a is no larger multiple of 2 of b"),
        ({"schedulingConstraints": {"preferred": ["a", ""]}}, "spec.schedulingConstraints.preferred: an entry is empty; name"),
    ],
)  # fmt: skip
def test_bad_groups_name_object_field_and_value(spec, words) -> None:
    """E06, E07."""
    thing = a_group("g", gang=1)
    thing["spec"] |= spec
    with pytest.raises(BadInput, match="PodGroup/default/g: .*" + words):
        group_from(thing)


def test_a_domain_alone_is_for_our_kinds() -> None:
    constraints = {"exclusive": {"key": "rack"}}
    group = group_from(a_group("g", gang=1, schedulingConstraints=constraints))
    assert group.constraints.exclusive == ExclusiveDomain("rack", "Profile")
    assert group.constraints.topology_keys == ("rack",)
    builtin = "scheduling.k8s.io/v1beta1"
    with pytest.raises(BadInput, match=r"exclusive: only groups of gang-extender\.dev have it"):
        group_from(a_group("g", gang=1, version=builtin, schedulingConstraints=constraints))


def test_lost_members_wait_unless_a_group_of_ours_has_another_choice() -> None:
    assert group_from(a_group("g", gang=1)).constraints.lost_members == "Wait"
    constraints = {"topology": [{"key": "rack"}], "lostMembers": "Widen"}
    assert (
        group_from(a_group("g", gang=1, schedulingConstraints=constraints)).constraints.lost_members
        == "Widen"
    )
    builtin = "scheduling.k8s.io/v1beta1"
    with pytest.raises(
        BadInput, match=r"lostMembers: only groups of gang-extender\.dev have it; found Widen"
    ):
        group_from(a_group("g", gang=1, version=builtin, schedulingConstraints=constraints))
    with pytest.raises(BadInput, match="lostMembers"):
        group_from(a_group("g", gang=1, schedulingConstraints={"lostMembers": "Move"}))


def test_preferred_keys_are_those_of_our_kinds_alone() -> None:
    """Narrowest first, beside a required key or without one; kube-apiserver would drop them from a built-in group."""
    constraints = {"topology": [{"key": "zone"}], "preferred": ["rack", "block", "rack"]}
    group = group_from(a_group("g", gang=1, schedulingConstraints=constraints))
    assert (group.constraints.topology, group.constraints.preferred) == (
        ("zone",),
        ("rack", "block"),
    )
    assert group.constraints.topology_keys == ("zone", "rack", "block")
    builtin = "scheduling.k8s.io/v1beta1"
    with pytest.raises(
        BadInput,
        match=r"preferred: only groups of gang-extender\.dev have it; found rack, block, rack",
    ):
        group_from(a_group("g", gang=1, version=builtin, schedulingConstraints=constraints))


def test_groups_to_be_near_to_are_of_our_kinds_alone() -> None:
    constraints = {"near": [{"group": "b", "key": "rack"}, {"group": "b", "key": "block"}]}
    group = group_from(a_group("g", gang=1, schedulingConstraints=constraints))
    assert group.constraints.near == (NearGroup("b", "rack"), NearGroup("b", "block"))
    assert group.constraints.topology_keys == ("rack", "block")
    builtin = "scheduling.k8s.io/v1beta1"
    with pytest.raises(BadInput, match=r"near: only groups of gang-extender\.dev have it; found b"):
        group_from(a_group("g", gang=1, version=builtin, schedulingConstraints=constraints))


def test_slices_and_balance_are_of_our_kinds_alone() -> None:
    """Slices of leaves, the largest first whatever the order is."""
    slices = [{"size": 2, "key": "host"}, {"size": 4, "key": "rack"}]
    group = group_from(a_group("g", gang=1, schedulingConstraints={"slices": slices}))
    assert group.constraints.slices == (SliceLevel("rack", 4), SliceLevel("host", 2))
    assert group.constraints.topology_keys == ("rack", "host")
    builtin = "scheduling.k8s.io/v1beta1"
    words = r"slices: only PodGroups of gang-extender\.dev have them; found 2"
    with pytest.raises(BadInput, match=words):
        group_from(a_group("g", gang=1, version=builtin, schedulingConstraints={"slices": slices}))
    with pytest.raises(BadInput, match=words):
        group_from(a_group("g", composite=True, schedulingConstraints={"slices": slices}))
    wish = {"preferred": ["rack"], "balanced": True}
    assert group_from(a_group("g", gang=1, schedulingConstraints=wish)).constraints.balanced
    with pytest.raises(BadInput, match="preferred: only groups of"):
        group_from(a_group("g", gang=1, version=builtin, schedulingConstraints=wish))


def test_each_constraint_is_read_as_it_is_written() -> None:
    """A constraint that one of the forms lacks would be dropped without a word."""
    constraints = SchedulingConstraints(
        topology=("zone",),
        preferred=("rack", "block"),
        balanced=True,
        slices=(SliceLevel("rack", 4), SliceLevel("host", 2)),
        exclusive=ExclusiveDomain("block", "Cluster", "nvidia.com/gpu"),
        near=(NearGroup("b", "rack"),),
        lost_members="Widen",
    )
    fields = msgspec.structs.fields(SchedulingConstraints)
    assert all(getattr(constraints, field.name) != field.default for field in fields)
    body = constraints_body(constraints)
    custom_resource = {field.encode_name for field in msgspec.structs.fields(LeafConstraints)}
    assert body.keys() == custom_resource == {field.encode_name for field in fields}
    spec = GroupSpec(kind="PodGroup", name="g", **constraint_fields(constraints))
    assert spec.constraints == constraints
    assert group_from(a_group("g", gang=1, schedulingConstraints=body)).constraints == constraints
    assert group_of(workload_objects.group_from(spec), NO_CLASSES).constraints == constraints


def test_conditions_come_along() -> None:
    thing = a_group("g", composite=True)
    thing["status"] = {
        "conditions": [{"type": "T", "status": "False", "reason": "R", "message": "m"}]
    }
    group = group_from(thing)
    assert group.conditions == (("T", "False", "R", "m"),)
    assert (group.basic, group.minimum, group.key.kind) == (True, 1, "CompositePodGroup")


# --- decoding


def test_nulls_are_absent_fields() -> None:
    thing = a_node("n") | {"spec": {"taints": None, "unschedulable": None}}
    thing["metadata"]["creationTimestamp"] = None
    assert node_of(decode(api.Node, msgspec.json.encode(thing))) == node_of(
        convert(api.Node, a_node("n"))
    )
    assert without_nulls([{"a": None, "b": [1, {"c": None}]}]) == [{"b": [1, {}]}]


def test_a_node_in_full() -> None:
    thing = a_node("n", {"rack": "r"}, cpu="1.5", gpu=8)
    thing["spec"] = {"unschedulable": True, "taints": [{"key": "k", "effect": "NoExecute"}]}
    node = node_of(convert(api.Node, thing))
    assert node.allocatable == {"cpu": 1500, "memory": 256 << 30, "pods": 110, "nvidia.com/gpu": 8}
    assert (node.unschedulable, node.taints[0].effect, node.labels["rack"]) == (
        True,
        "NoExecute",
        "r",
    )
    with pytest.raises(BadInput, match=r'Node/n: status.allocatable: cpu: quantity "many"'):
        node_of(convert(api.Node, a_node("n", cpu="many")))
    with pytest.raises(BadInput, match=r'Node/n: spec.taints\[0\].effect: .*, found "Maybe"'):
        convert(api.Node, a_node("n") | {"spec": {"taints": [{"key": "k", "effect": "Maybe"}]}})


def test_one_bad_object_does_not_spoil_a_page() -> None:
    body = {
        "apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "9", "continue": "tok"},
        "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b", "labels": 3}}, {"metadata": {"name": "c"}}],
    }  # fmt: skip
    page = decode_page(api.Node, msgspec.json.encode(body))
    assert [item.metadata.name for item in page.items] == ["a", "c"]
    assert {item.api_version for item in page.items} == {"v1"}
    assert (page.resource_version, page.continue_) == ("9", "tok")
    (fault,) = page.bad
    assert "Node/b: metadata.labels: " in str(fault)
    assert "found 3" in str(fault)
    assert decode_page(api.Node, b'{"items":null}').items == ()


def test_lines_of_a_watch() -> None:
    line = decode_watch(b'{"type":"ADDED","object":{"metadata":{"name":"n"}}}')
    assert (line.type, decode(api.Node, line.object).metadata.name) == ("ADDED", "n")
    for torn in (b'{"type":"ADD', b"[]"):
        with pytest.raises(BadInput):
            decode_watch(torn)
    with pytest.raises(BadInput, match="Node: not JSON"):
        decode(api.Node, b"{")


# --- priorities


def a_class(name, value, **more):
    thing = an_object("PriorityClass", name, "scheduling.k8s.io/v1", "", value=value, **more)
    return convert(api.PriorityClass, thing)


def test_a_priority_is_the_number_else_the_class_else_the_default_else_zero() -> None:
    known = Priorities()
    assert known.resolve(None, "", "").value == 0
    known.put(a_class("prod", 1000, preemptionPolicy="Never"))
    known.put(a_class("usual", 7, globalDefault=True))
    assert known.resolve(5, "prod", "").value == 5
    found = known.resolve(None, "prod", "")
    assert (found.value, found.class_name, found.preemption_policy) == (1000, "prod", "Never")
    assert (
        known.resolve(None, "prod", "PreemptLowerPriority").preemption_policy
        == "PreemptLowerPriority"
    )
    assert (known.resolve(None, "", "").value, known.resolve(None, "", "").class_name) == (
        7,
        "usual",
    )
    assert known.resolve(None, "system-node-critical", "").value == 2_000_001_000
    assert known.resolve(None, "no-such-class", "").unknown
    assert not known.resolve(3, "no-such-class", "").unknown
    assert known.put(a_class("prod", 1000, preemptionPolicy="Never")) is False
    known.drop("prod")
    assert known.resolve(None, "prod", "").unknown

"""What a RuntimeClass and a StorageClass in the files add to pods is in the plan; classes that are not there are named."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from extender.cluster.manifests.plan_request_body import answer_plan_request
from extender.core.model.errors import BadInput
from tests.support.service.manifest_builders import a_manifest, a_node, a_pod, an_object
from tests.support.service.workload_builders import a_job, a_namespace, a_template

TAINT = {"key": "gv", "value": "yes", "effect": "NoSchedule"}
ZONE = "topology.kubernetes.io/zone"


def a_runtime_class(name: str = "gv", **rest: Any):
    return an_object("RuntimeClass", name, "node.k8s.io/v1", "", handler="runsc", **rest)


def a_storage_class(
    name: str = "fast", mode: str = "WaitForFirstConsumer", zones: Any = (), **rest: Any
):
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}] if zones else []
    rest = {"provisioner": "csi.example.com", **rest}
    return an_object(
        "StorageClass", name, "storage.k8s.io/v1", "", volumeBindingMode=mode, allowedTopologies=allowed, **rest
    )  # fmt: skip


def a_claim(name: str = "data", **spec: Any):
    return an_object("PersistentVolumeClaim", name, "v1", spec=spec)


def plan(workload: list[object], cluster: list[object]) -> tuple[str, set[str], list[str]]:
    """Return the verdict of a plan on two nodes of two zones, its nodes and its warnings."""
    nodes = [a_node("a", {ZONE: "a"}, cpu="4"), a_node("b", {ZONE: "b"}, cpu="4")]
    body = msgspec.json.encode({"cluster": [*nodes, *cluster], "workload": workload})
    answer = msgspec.json.decode(answer_plan_request(body))
    placed = {line["node"] for gang in answer["gangs"] for line in gang["assignments"]}
    return answer["verdict"], placed, answer["warnings"]


def job(**spec: Any):
    template = a_template({"cpu": "3"}, restartPolicy="Never", **spec)
    return a_job(parallelism=1, completions=1, template=template)


@pytest.mark.parametrize("pod", [True, False], ids=["Pod", "Job"])
@pytest.mark.parametrize("beside", [True, False], ids=["in -f", "in --cluster"])
def test_overhead_node_selector_and_tolerations_of_a_runtime_class_count(pod, beside) -> None:
    wanted = a_pod("p", requests={"cpu": "3"}, runtimeClassName="gv") if pod else job(runtimeClassName="gv")  # fmt: skip
    tainted = a_node("t", {"rt": "gv"}, cpu="4") | {"spec": {"taints": [TAINT]}}

    def with_class(**rest: Any):
        cls = a_runtime_class(**rest)
        return plan([wanted, *([cls] if beside else [])], [tainted, *([] if beside else [cls])])

    heavy = with_class(overhead={"podFixed": {"cpu": "1500m"}})
    assert heavy[0] == "impossible"
    light = with_class(overhead={"podFixed": {"cpu": "500m"}})
    assert (light[0], light[2]) == ("placed", [])
    selected = with_class(
        scheduling={
            "nodeSelector": {"rt": "gv"},
            "tolerations": [{"key": "gv", "operator": "Exists"}],
        }
    )
    assert selected == ("placed", {"t"}, [])
    assert with_class(scheduling={"nodeSelector": {"rt": "gv"}})[0] == "impossible"


def test_a_runtime_class_counts_for_the_pods_that_a_service_of_files_makes() -> None:
    from extender.cluster.manifests.manifest_entries import Role, entries_in
    from extender.cluster.manifests.manifest_loader import build, complete
    from extender.cluster.manifests.yaml_reader import Document

    things = [
        a_namespace("default", tree="default"),
        a_runtime_class(overhead={"podFixed": {"cpu": "1500m"}}),
        job(runtimeClassName="gv"),
    ]
    documents = [Document(where="f", value=thing) for thing in things]
    found = build(complete(entries_in(documents, Role.CLUSTER), serving=True))
    (pod,) = found.world.view.pods.values()
    assert dict(pod.shape.requests)["cpu"] == 4500


@pytest.mark.parametrize(
    ("spec", "cls", "words"),
    [
        ({"nodeSelector": {"rt": "x"}}, {"scheduling": {"nodeSelector": {"rt": "gv"}}},
         'spec.nodeSelector: rt is "x", and RuntimeClass gv asks for "gv"'),
        ({"overhead": {"cpu": "1"}}, {"overhead": {"podFixed": {"cpu": "2"}}},
         "spec.overhead: differs from that of RuntimeClass gv"),
        ({"overhead": {"cpu": "1"}}, {}, "spec.overhead: differs from that of RuntimeClass gv"),
    ],
)  # fmt: skip
def test_a_pod_that_its_runtime_class_contradicts_is_refused(spec, cls, words) -> None:
    for wanted in (job(runtimeClassName="gv", **spec), a_pod("p", runtimeClassName="gv", **spec)):
        with pytest.raises(BadInput) as caught:
            a_manifest([a_runtime_class(**cls)], [wanted])
        assert words in str(caught.value)


def test_overhead_that_is_written_the_other_way_is_the_same() -> None:
    cls = a_runtime_class(overhead={"podFixed": {"cpu": "250m"}})
    found = a_manifest([cls], [a_pod("p", runtimeClassName="gv", overhead={"cpu": "0.25"})])
    assert found.warnings == ()


def test_the_topologies_of_a_storage_class_limit_the_nodes_of_its_claims() -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    wanted = job(volumes=volumes)
    claim = a_claim(storageClassName="fast")
    assert plan([wanted, claim], [a_storage_class(zones=["b"])]) == ("placed", {"b"}, [])
    assert plan([wanted, claim, a_storage_class(zones=["c"])], [])[0] == "impossible"
    default = {"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
    marked = a_storage_class(zones=["b"], **default)
    assert plan([wanted, a_claim()], [marked])[1] == {"b"}
    second = a_storage_class("slow", zones=["a"], **default)
    verdict, _, warnings = plan([wanted, a_claim()], [marked, second])
    assert (verdict, any("not bound" in text for text in warnings)) == ("placed", True)
    verdict, _, warnings = plan([wanted, a_claim(storageClassName="")], [marked])
    assert (verdict, len(warnings)) == ("placed", 1)


def test_a_volume_of_the_pod_itself_has_the_topologies_of_its_class() -> None:
    template = {"spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]}}
    wanted = job(volumes=[{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}])
    assert plan([wanted], [a_storage_class(zones=["b"])]) == ("placed", {"b"}, [])


@pytest.mark.parametrize(
    ("cls", "others", "warned"),
    [
        (a_storage_class(), [], False),
        (a_storage_class(mode="Immediate", zones=["b"]), [], True),
        (a_storage_class(provisioner="kubernetes.io/no-provisioner"), [], True),
        (a_storage_class(zones=["c"]), [an_object("PersistentVolume", "pv", "v1", "", spec={"storageClassName": "fast"})], True),
    ],
    ids=["any node", "bound before", "only volumes that exist", "a volume that exists may be bound"],
)  # fmt: skip
def test_a_claim_of_which_more_is_open_is_a_warning(cls, others, warned) -> None:
    wanted = job(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    verdict, _, warnings = plan([wanted, a_claim(storageClassName="fast")], [cls, *others])
    assert (verdict, any("not bound" in text for text in warnings)) == ("placed", warned)


def a_limit_range(namespace: str = "default", **item: Any):
    spec = {"limits": [{"type": "Container", **item}, {"type": "Pod", "max": {"cpu": "1m"}}]}
    return an_object("LimitRange", "bounds", "v1", namespace, spec=spec)


@pytest.mark.parametrize("pod", [True, False], ids=["Pod", "Job"])
@pytest.mark.parametrize("beside", [True, False], ids=["in -f", "in --cluster"])
@pytest.mark.parametrize(
    ("item", "own", "cpu"),
    [
        ({"defaultRequest": {"cpu": "3"}}, {}, 3000),
        ({"default": {"cpu": "3"}}, {}, 3000),
        ({"default": {"cpu": "4"}, "defaultRequest": {"cpu": "2"}}, {}, 2000),
        ({"max": {"cpu": "2"}}, {}, 2000),
        ({"min": {"cpu": "500m"}}, {}, 500),
        ({"max": {"cpu": "4"}, "min": {"cpu": "500m"}}, {}, 4000),
        ({"defaultRequest": {"cpu": "3"}}, {"requests": {"cpu": 1}}, 1000),
        ({"defaultRequest": {"cpu": "3"}}, {"limits": {"cpu": 1}}, 1000),
        ({"type": "Pod", "defaultRequest": {"cpu": "3"}}, {}, 0),
        ({"namespace": "other", "defaultRequest": {"cpu": "3"}}, {}, 0),
    ],
)  # fmt: skip
def test_containers_have_the_defaults_of_the_limit_range_of_their_namespace(
    pod, beside, item, own, cpu
) -> None:
    bounds = a_limit_range(**item)
    template = a_template({}, restartPolicy="Never")
    template["spec"]["containers"][0]["resources"] = own
    wanted = a_pod("p", **template["spec"]) if pod else a_job(parallelism=1, template=template)
    found = a_manifest(
        [a_node("n")] + ([] if beside else [bounds]), [wanted, *([bounds] if beside else [])]
    )
    (of,) = found.world.view.pods.values()
    assert dict(of.shape.requests).get("cpu", 0) == cpu
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("item", "own", "words"),
    [
        ({"max": {"cpu": "2"}}, {"requests": {"cpu": 3}}, 'resources.requests: cpu: "3" is more than the maximum of LimitRange bounds, which is 2'),
        ({"max": {"cpu": "2"}}, {"limits": {"cpu": 3}}, 'resources.limits: cpu: "3" is more than the maximum of LimitRange bounds, which is 2'),
        ({"min": {"cpu": "2"}}, {"requests": {"cpu": 1}}, 'resources.requests: cpu: "1" is less than the minimum of LimitRange bounds, which is 2'),
        ({"default": {"cpu": "500m"}}, {"requests": {"cpu": 1}}, 'resources.requests: cpu: "1" is more than the default limit of LimitRange bounds, which is 500m'),
    ],
)  # fmt: skip
def test_a_container_outside_of_a_limit_range_is_refused(item, own, words) -> None:
    template = a_template({}, restartPolicy="Never")
    template["spec"]["containers"][0]["resources"] = own
    for wanted in (a_job(template=template), a_pod("p", **template["spec"])):
        with pytest.raises(BadInput) as caught:
            a_manifest([a_limit_range(**item)], [wanted])
        assert words in str(caught.value)
        assert "spec.containers[0].resources" in str(caught.value)


def test_a_limit_range_that_cannot_be_read_is_named() -> None:
    words = r'LimitRange/default/bounds: spec.limits: cpu: quantity "much" is not a number'
    with pytest.raises(BadInput, match=words):
        a_manifest([a_limit_range(default={"cpu": "much"})], [job()])


def test_a_misspelt_field_of_a_limit_range_is_named() -> None:
    (text,) = a_manifest([a_limit_range(defaultRequests={"cpu": 1})], [job()]).warnings
    assert (
        "spec.limits[0].defaultRequests: there is no such field; did you mean defaultRequest?"
        in text
    )


def test_no_order_of_the_objects_in_a_file_changes_the_answer() -> None:
    """Classes, volumes and a namespace may come after what they are for."""
    template = a_template(
        {"cpu": "3"}, restartPolicy="Never", runtimeClassName="gv", priorityClassName="prod",
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
    )  # fmt: skip
    things = [
        a_job(labels={}, parallelism=1, template=template),
        a_namespace("default", tree="default"),
        a_runtime_class(scheduling={"nodeSelector": {"rt": "gv"}}),
        a_storage_class(zones=["b"]),
        a_claim(storageClassName="fast"),
        an_object("PriorityClass", "prod", "scheduling.k8s.io/v1", "", value=9),
        a_limit_range(default={"memory": "1Gi"}),
    ]
    nodes = [a_node("a", {ZONE: "a", "rt": "gv"}), a_node("b", {ZONE: "b", "rt": "gv"}), a_node("c", {ZONE: "b"})]  # fmt: skip
    answers = set()
    for order in itertools.islice(itertools.permutations(things), 0, None, 41):  # 123 of 5,040
        found = a_manifest(nodes, list(order))
        (pod,) = found.world.view.pods.values()
        assert found.warnings == ()
        answers.add((pod.priority, pod.shape))
    ((priority, shape),) = answers
    assert (priority, shape.node_selector) == (9, (("rt", "gv"),))
    assert dict(shape.requests)["memory"] == 1 << 30
    assert shape.selectors[0].terms[0].labels[0].values == ("b",)


def test_a_class_that_is_not_in_the_files_is_named() -> None:
    text = (
        "RuntimeClass kata is not in the files: what it adds to 1 pod (overhead, node selector, tolerations) is not in the "
        "plan; add the output of `kubectl get runtimeclass kata -o yaml`"
    )
    for wanted in (job(runtimeClassName="kata"), a_pod("p", runtimeClassName="kata")):
        assert text in a_manifest([], [wanted]).warnings


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (a_runtime_class(overhead={"podFixd": {}}), "overhead.podFixd: there is no such field; did you mean podFixed?"),
        (a_runtime_class(scheduling={"nodeSelecter": {}}), "scheduling.nodeSelecter: there is no such field; did you mean nodeSelector?"),
        (a_storage_class(allowedTopology=[]), "allowedTopology: there is no such field; did you mean allowedTopologies?"),
        (a_claim(storageClass="fast"), "spec.storageClass: there is no such field; did you mean storageClassName?"),
        (a_runtime_class(scheduling={"tolerations": [{"operator": "Exists", "tolerationSeconds": 1}]}), ""),
        (a_storage_class(parameters={}, reclaimPolicy="Delete"), ""),
        (a_claim(accessModes=[], resources={"requests": {"storage": "1Gi"}}, volumeMode="Block"), ""),
    ],
)  # fmt: skip
def test_a_field_that_a_class_does_not_have_is_named(thing, words) -> None:
    warnings = a_manifest([thing], [job()]).warnings
    assert any(words in text for text in warnings) if words else warnings == ()

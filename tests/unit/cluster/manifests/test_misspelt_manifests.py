"""Manifests with misspelt fields, kinds, versions, labels and namespaces: each is named with object, field and suggestion."""

from __future__ import annotations

import re

import pytest
import yaml

from extender.cluster.manifests.manifest_loader import load
from extender.core.model.errors import BadInput, BadInputs
from extender.core.model.pods import CHECKPOINT_ANNOTATION
from extender.core.preempt.movable_pods import MOVE_LABEL
from extender.queries.plan.plan_query import PlanInput, answer_plan_query
from tests.support.service.manifest_builders import (
    OURS,
    RACK,
    a_gang,
    a_group,
    a_manifest,
    a_node,
    a_pod,
    an_object,
)

GANG = {"schedulingPolicy": {"gang": {"minCount": 1}}}


@pytest.fixture
def write(tmp_path):
    """Write objects, or a text, to a file."""

    def to_file(name, *objects, text=None):
        path = tmp_path / name
        path.write_text(text if text is not None else yaml.safe_dump_all(objects))
        return str(path)

    return to_file


def a_spec(kind="PodGroup", version=OURS, **spec):
    return an_object(kind, "g", version, spec=spec)


MISSPELT = [
    (a_spec(schedulingPolicy={"gang": {"minCuont": 8}}),
     "PodGroup/default/g: spec.schedulingPolicy.gang.minCuont: there is no such field; did you mean minCount?"),
    (a_spec(schedulingPolcy={}), "spec.schedulingPolcy: there is no such field; did you mean schedulingPolicy?"),
    (a_spec(**GANG, schedulingConstraints={"topolgy": []}),
     "spec.schedulingConstraints.topolgy: there is no such field; did you mean topology?"),
    (a_spec(**GANG, schedulingConstraints={"topology": [{"kee": RACK}]}),
     "spec.schedulingConstraints.topology[0].kee: there is no such field; the fields are key, level, topologyKey"),
    (a_spec(**GANG, disruptionMode={"al": {}}), "spec.disruptionMode.al: there is no such field; did you mean all?"),
    (a_spec("CompositePodGroup", schedulingPolicy={"gang": {"minGroupCont": 1}}),
     "CompositePodGroup/default/g: spec.schedulingPolicy.gang.minGroupCont: there is no such field; did you mean minGroupCount?"),
    (a_spec("Workload", podGroupTemplate=[]), "spec.podGroupTemplate: there is no such field; did you mean podGroupTemplates?"),
    ({**a_spec(**GANG), "spce": {}}, "PodGroup/default/g: spce: there is no such field; did you mean spec?"),
    (an_object("PodGroup", "g", metadata={"anotations": {}}, spec=GANG),
     "metadata.anotations: there is no such field; did you mean annotations?"),
    (an_object("TreeProfile", "p", namespace="", spec={"kinds": [{"kind": "Job", "enabeld": True}]}),
     "TreeProfile/p: spec.kinds[0].enabeld: there is no such field; did you mean enabled?"),
    (a_spec(version="gang-extender.dev/v1", **GANG),
     'apiVersion: there is no "gang-extender.dev/v1" of PodGroup; did you mean gang-extender.dev/v1alpha1?'),
    (a_spec(version="gang-extneder.dev/v1alpha1", **GANG),
     'there is no "gang-extneder.dev/v1alpha1" of PodGroup; did you mean gang-extender.dev/v1alpha1?'),
    (a_spec("PodGruop", **GANG), 'kind: gang-extender.dev has no kind "PodGruop"; did you mean PodGroup?'),
    (an_object("Node", "n", "v2", ""), 'Node/n: apiVersion: there is no "v2" of Node; did you mean v1?'),
    (a_pod("p", namespace="Team_A"), 'Pod/Team_A/p: metadata.namespace: "Team_A" is not a valid name of a namespace'),
]  # fmt: skip


@pytest.mark.parametrize("role", ["--cluster", "-f"])
@pytest.mark.parametrize(("thing", "text"), MISSPELT, ids=range(len(MISSPELT)))
def test_a_misspelt_field_kind_or_version_is_named(write, thing, text, role):
    """In files of either option, as an API server with our kinds would refuse it."""
    path = write("x.yaml", thing)
    with pytest.raises(BadInput, match="x.yaml, document 1: .*" + re.escape(text)):
        load(*(([path], []) if role == "--cluster" else ([], [path])))


IN_F = [
    (an_object("Job", "j", "batch/v2", spec={}), 'there is no "batch/v2" of Job; did you mean batch/v1?'),
    (an_object("Pod", "p", "apps/v1"), "kind Pod of apps/v1 is not planned; that of v1 is"),
    (an_object("Jobset", "j", "jobset.x-k8s.io/v1alpha2"), "is not planned; did you mean JobSet?"),
    (a_pod("p", metadata={"labels": {"gang-extender.dev/pod-gruop": "g"}}),
     "metadata.labels[gang-extender.dev/pod-gruop]: has no meaning; did you mean gang-extender.dev/pod-group?"),
    (a_group("g", gang=1, metadata={"annotations": {"gang-extender.dev/parnet": "x"}}),
     "metadata.annotations[gang-extender.dev/parnet]: has no meaning; did you mean gang-extender.dev/parent?"),
    (an_object("Job", "j", "batch/v1", metadata={"annotations": {"gang-extender.dev/preferred": "net/rack"}}, spec={}),
     "Job/default/j: metadata.annotations[gang-extender.dev/preferred]: has no meaning; a workload has it in gang-extender.dev/topology, such as "
     "leaf=~net/rack, a group in spec.schedulingConstraints"),
    (a_pod("p", metadata={"labels": {"gang-extender.dev/size": "4"}}),
     "metadata.labels[gang-extender.dev/size]: has no meaning; the labels are pod-group, group, total, tree, leaf, kind, exempt, move"),
    (an_object("Job", "j", "batch/v1", metadata={"annotations": {"gang-extender.dev/size": "4"}}, spec={}),
     "metadata.annotations[gang-extender.dev/size]: has no meaning; the annotations are parent, gang, topology, slices, exclusive, near, lost-members, min, workload and 7 more"),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "text"), IN_F, ids=range(len(IN_F)))
def test_what_is_planned_must_be_of_a_known_kind_and_label(write, thing, text):
    """In --cluster the same is ignored, or a warning: others may have other kinds and labels."""
    path = write("x.yaml", thing)
    with pytest.raises(BadInput, match=re.escape(text)):
        load([], [path])
    labels = [text for text in load([path]).warnings if "has no meaning" in text]
    assert len(labels) == ("metadata." in text)


def test_the_marks_of_pods_about_moves_have_a_meaning(write):
    """Also on the pods that are planned, where an unknown one is an error."""
    marks = {MOVE_LABEL: "never"}, {CHECKPOINT_ANNOTATION: "2026-01-01T00:00:00Z"}
    pod = a_pod("w", metadata=dict(zip(("labels", "annotations"), marks, strict=True)))
    assert load([], [write("x.yaml", pod)]).warnings == ()


OF_WORKLOADS = [
    (an_object("Job", "w", "batch/v1", spec={"paralelism": 2}), "Job/default/w: spec.paralelism: there is no such field in"),
    (an_object("RayCluster", "w", "ray.io/v1", spec={"workerGroupSpecs": [{"groupName": "g", "minReplica": 2}]}),
     "spec.workerGroupSpecs[0].minReplica: there is no such field in KubeRay v1.6.2, so it is not used; did you mean minReplicas?"),
    (an_object("LeaderWorkerSet", "w", "leaderworkerset.x-k8s.io/v1", spec={"leaderWorkerTemplate": {"sise": 4}}),
     "spec.leaderWorkerTemplate.sise: there is no such field in LWS v0.9.0, so it is not used; did you mean size?"),
    (an_object("Job", "w", "batch/v1", spec={"template": {"spec": {"nodeSelecter": {}}}}), "did you mean nodeSelector?"),
    (a_pod("w", nodeSelecter={"a": "b"}), "Pod/default/w: spec.nodeSelecter: there is no such field in Kubernetes"),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "text"), OF_WORKLOADS, ids=range(len(OF_WORKLOADS)))
def test_a_misspelt_field_of_a_workload_or_pod_is_a_warning(write, thing, text):
    """Their APIs get fields with time, so it is no error."""
    found = load([], [write("x.yaml", thing)])
    assert text in found.warnings[0]


def test_a_field_of_a_later_kubernetes_is_a_warning(write):
    """The built-in kinds get fields and versions with time."""
    later = a_spec(version="scheduling.k8s.io/v2", **GANG, gangTimeout="5m")
    found = load([], [write("x.yaml", later)])
    (warning,) = found.warnings
    assert "PodGroup/default/g: spec.gangTimeout: there is no such field" in warning


def test_an_empty_namespace_is_a_warning(write):
    """It is read as the default namespace, as kubectl does."""
    found = load(
        [],
        [
            write(
                "x.yaml",
                an_object("PodGroup", "g", namespace="", metadata={"namespace": ""}, spec=GANG),
            )
        ],
    )
    assert [key.namespace for key in found.groups] == ["default"]
    (warning,) = found.warnings
    assert 'metadata.namespace: is empty; read as "default"' in warning


def test_all_problems_of_all_files_are_named_at_once(write):
    """Two files, one of them not even YAML, and three wrong fields."""
    first = write(
        "a.yaml",
        a_spec(schedulingPolicy={"gang": {"minCount": "x", "minDomains": 3}}),
        a_pod("p", nodeSelector=[]),
    )
    second = write("b.yaml", text="a: [1")
    third = write("c.yaml", an_object("Pod", "q", "v1", spec={"priority": 1.5}))
    with pytest.raises(BadInputs) as caught:
        load([first], [second, third])
    assert [text.rpartition("/")[2] if "YAML" in text else text.partition(": ")[2] for text in caught.value.texts] == [
        'PodGroup/default/g: spec.schedulingPolicy.gang.minCount: expected a whole number of at least 1, found "x"',
        "PodGroup/default/g: spec.schedulingPolicy.gang.minDomains: there is no such field; the fields are minCount, minGroupCount, requiredGroups",
        "Pod/default/p: spec.nodeSelector: expected an object, found []",
        "b.yaml: line 2, column 1: not valid YAML: a list in [ ] that is not closed, or lacks a comma",
        "Pod/default/q: spec.priority: expected a whole number, found 1.5",
    ]  # fmt: skip
    assert str(caught.value).startswith("5 problems:\n  ")


def test_a_member_in_another_namespace_names_its_group_there(write):
    """Of pods without a group of their namespace, and of groups without their parent; else a similar name."""
    gang = a_gang("train", pods=1)
    lost = a_pod("lost", "train", namespace="other")
    near = a_pod("near", "trian")
    child = a_group("child", gang=1, parent="top")
    top = a_group("top", gang=1, composite=True, namespace="other")
    found = load([write("n.yaml", a_node("n"))], [write("x.yaml", *gang, lost, near, child, top)])
    answer = answer_plan_query(
        found.world.view, PlanInput(all_pending=True, groups=frozenset(found.groups))
    )
    reasons = {one.gang: one.reasons[0] for one in answer.gangs if one.reasons}
    assert reasons["other/train"] == (
        "PodGroup/other/train does not exist, 1 pod names it; PodGroup/default/train is in another namespace, and a "
        "group and its members are in the same one"
    )
    assert reasons["default/trian"].endswith("1 pod names it; did you mean train?")
    assert "CompositePodGroup/other/top is in another namespace" in reasons["default/top"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:\n\tb: 1\n", "line 2, column 1: not valid YAML: a tab"),
        ("a: b: c\n", "line 1, column 5: not valid YAML: a colon where no key can be"),
        ("a: 'x\n", "not valid YAML: a quoted text that is not closed"),
        ("a:\n  b: 1\n c: 2\n", "line 3, column 2: not valid YAML: a line that is indented in another way"),
        ("a: {b: 1\n", "not valid YAML: an object in { } that is not closed"),
    ],
    ids=range(5),
)  # fmt: skip
def test_a_file_that_is_no_yaml_names_what_to_look_for(write, text, words):
    """With line and column, and not in the words of the parser."""
    with pytest.raises(BadInput, match=re.escape(words)):
        load([write("x.yaml", text=text)])


def test_a_file_that_is_no_json_names_line_and_column(write):
    with pytest.raises(BadInput, match=r"x.json: line 2, column 9: not valid JSON$"):
        load([write("x.json", text='{"kind": "Pod",\n "spec":}')])


TASK = {"name": "a", "container": {"image": "i"}}


@pytest.mark.parametrize(
    ("kind", "version", "spec"),
    [
        ("InferenceService", "serving.kserve.io/v1beta1", {"predictor": {"model": {"modelFormat": {"name": "x"}}}}),
        ("LLMInferenceService", "serving.kserve.io/v1alpha1", {"replicas": 2, "model": {"uri": "hf://x"}}),
        ("Workflow", "argoproj.io/v1alpha1", {"entrypoint": "a", "templates": [TASK]}),
        ("SparkApplication", "sparkoperator.k8s.io/v1beta2", {"executor": {"instances": 4}}),
        ("Deployment", "extensions/v1beta1", {"replicas": 2}),
        ("Notebook", "kubeflow.org/v1", {"template": {}}),
        ("AppWrapper", "workload.codeflare.dev/v1beta2", {"components": []}),
        ("Job", "batch.volcano.sh/v1alpha1", {"minAvailable": 2, "tasks": []}),
    ],
)  # fmt: skip
def test_what_makes_pods_is_not_left_out_as_if_it_had_none(kind, version, spec) -> None:
    with pytest.raises(BadInput) as caught:
        a_manifest([], [an_object(kind, "x", version, spec=spec)])
    assert f"kind {kind} of {version} is not planned" in str(caught.value)
    assert "give its pods and groups" in str(caught.value)


def test_of_a_kind_that_is_not_known_nothing_is_claimed() -> None:
    things = [
        an_object("Widget", "w", "example.com/v1"),
        an_object("Service", "s", "v1"),
        an_object("ResourceQuota", "q", "v1"),
    ]
    assert a_manifest([], things).warnings == (
        "left out; how many pods they allow is not in the plan: ResourceQuota (1)",
        "left out, as they have no pods: Service (1)",
        "left out; if they make pods, give those in the files: Widget (1)",
    )


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (an_object("Kustomization", "k", "kustomize.config.k8s.io/v1beta1"), "of a kustomization give the output of `kubectl kustomize`"),
        (an_object("PodGroup", "g", "scheduling.volcano.sh/v1beta1"), f"that of {OURS} is; its networkTopology has tiers where groups here have keys of node labels, mode soft in schedulingConstraints.preferred"),
        (an_object("PodGroup", "g", "scheduling.run.ai/v2alpha2"), f"that of {OURS} is; its topologyConstraint.preferredTopologyLevel is in schedulingConstraints.preferred here"),
        (an_object("Job", "j", "batch.volcano.sh/v1alpha1"), "give its pods and groups; its networkTopology has tiers"),
        (an_object("PodGroup", "g", "scheduling.x-k8s.io/v1alpha1"), f"that of {OURS} is; planned are CompositePodGroup, CronJob, DisaggregatedSet, JAXJob, Job, JobSet, LeaderWorkerSet, MPIJob, PaddleJob, Pod, PodCliqueSet,"),
        (an_object("Job", "j", "batch/v1", metadata={"labels": {"gang-extender.dev/tree": False}}, spec={}), "expected text, found false; write it in quotes"),
        ({"apiVersion": "v1", "kind": "List", "items": {}}, "List: items: expected a list, found {}"),
        ({"apiVersion": "v1", "kind": "PodList", "items": ""}, 'PodList: items: expected a list, found ""'),
        (an_object("CronJob", "c", "batch/v1beta1", spec={"jobTemplate": {"spec": {}}}), 'apiVersion: "batch/v1beta1" of CronJob is older than what is read; write batch/v1, and the fields as it has them'),
        (an_object("RayService", "r", "ray.io/v1alpha1", spec={"rayClusterConfig": {}}), '"ray.io/v1alpha1" of RayService is older than what is read; write ray.io/v1,'),
        (an_object("RayCluster", "r", "ray.io/v1alpha1", spec={}), '"ray.io/v1alpha1" of RayCluster is older than what is read; write ray.io/v1,'),
        (an_object("JobSet", "s", "jobset.x-k8s.io/v1alpha1", spec={}), '"jobset.x-k8s.io/v1alpha1" of JobSet is older than what is read; write jobset.x-k8s.io/v1alpha2,'),
        (an_object("JobSet", "s", "jobset.x-k8s.io/v1beta1", spec={}), 'there is no "jobset.x-k8s.io/v1beta1" of JobSet; did you mean jobset.x-k8s.io/v1alpha2?'),
    ],
)  # fmt: skip
def test_what_is_no_object_of_a_plan_is_named_with_what_helps(thing, words) -> None:
    with pytest.raises(BadInput) as caught:
        a_manifest([], [thing])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("kustomization.yaml", b"resources: [a.yaml]", "of a kustomization give the output of `kubectl kustomize`"),
        ("job.yaml", b"metadata: {name: {{ .Values.name }}}", "of a Helm chart give the output of `helm template`"),
        ("job.yaml", "kind: Job".encode("utf-16"), "save it as UTF-8"),
        ("jobs.json", b'{"kind": "Job"}{"kind": "Job"}', "several objects are the items of a List"),
    ],
)  # fmt: skip
def test_a_file_of_another_tool_is_named_with_what_helps(tmp_path, name, body, words) -> None:
    (tmp_path / name).write_bytes(body)
    with pytest.raises(BadInput) as caught:
        load([], [str(tmp_path)])
    assert words in str(caught.value)

"""Files give the cluster that an API server would have stored, or an error that names the place."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.manifest_loader import complete, load
from extender.cluster.manifests.plan_request_body import answer_plan_request
from extender.cluster.manifests.yaml_reader import EXPANDED_MAX, Document, read_bytes
from extender.core.model.errors import BadInput
from extender.core.model.pod_groups import build_forest, leaf_key
from tests.support.planning import spec_vectors
from tests.support.service.manifest_builders import (
    SLOT,
    a_budget,
    a_gang,
    a_group,
    a_manifest,
    a_node,
    a_pod,
    an_object,
    vector_objects,
)

EXAMPLES = Path(__file__).parents[4] / "deploy" / "examples"
VECTORS = [*spec_vectors.of_kind("place"), *spec_vectors.of_kind("preempt")]


@pytest.fixture
def write(tmp_path):
    def write(name: str, *things, text: str | None = None) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump_all(things) if text is None else text)
        return str(path)

    return write


def a_workload(**spec):
    return an_object("Workload", "w", spec=spec)


def a_template(name="t", *, gang=1, composite=False, **more):
    field = "minGroupCount" if composite else "minCount"
    return {"name": name, "schedulingPolicy": {"gang": {field: gang}}, **more}


ALL = {"all": {}}


def basic(name: str, **more):
    return {"name": name, "schedulingPolicy": {"basic": {}}, **more}


def a_builtin_workload(*leaves, version="v1beta1", **more):
    """Make a built-in Workload with a composite, which only Kubernetes 1.38 has in v1beta1."""
    top = a_template("top", composite=True, podGroupTemplates=list(leaves), **more)
    spec = {"compositePodGroupTemplates": [top]}
    return an_object("Workload", "w", f"scheduling.k8s.io/{version}", spec=spec)


def nested(levels: int):
    """Make composites inside composites, with a leaf at the bottom."""
    template = {"podGroupTemplates": [a_template("leaf")]}
    for level in range(levels - 1):
        template = {
            "compositePodGroupTemplates": [a_template(f"c{level}", composite=True, **template)]
        }
    return template


# --- forms of files


def test_yaml_json_lists_and_directories_read_the_same(write, tmp_path) -> None:
    things = [a_node("n"), *a_gang(pods=2)]
    plain = load([write("a.yaml", *things)]).world.view
    forms = [
        write("b.yaml", {"apiVersion": "v1", "kind": "List", "items": things}),
        write("c.json", text=msgspec.json.encode({"kind": "List", "apiVersion": "v1", "items": things}).decode()),
        write("d.yaml", text="".join(f"---\n{msgspec.json.encode(t).decode()}\n" for t in things)),
    ]  # fmt: skip
    for form in forms:
        assert load([form]).world.view == plain
    for number, thing in enumerate(things):
        write(f"dir/{number}.yaml", thing)
    write("dir/notes.txt", text="not read")
    assert load([str(tmp_path / "dir")]).world.view == plain


def test_a_typed_list_lends_its_kind_to_its_items(write) -> None:
    items = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]
    path = write("n.yaml", {"apiVersion": "v1", "kind": "NodeList", "items": items})
    assert set(load([path]).world.view.nodes) == {"a", "b"}


def test_standard_input(monkeypatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(yaml.safe_dump(a_node("n")).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert set(load(["-"]).world.view.nodes) == {"n"}


def test_unknown_kinds_are_ignored_in_the_cluster_and_refused_in_f(write) -> None:
    other = an_object("Deployment", "d", "apps/v1", spec={})
    foreign = an_object("PodGroup", "g", "scheduling.x-k8s.io/v1alpha1", spec={})
    path = write("x.yaml", a_node("n"), other, foreign)
    assert not load([path]).world.view.groups
    with pytest.raises(
        BadInput, match=r"x.yaml, document 2: Deployment/default/d: kind Deployment of apps/v1"
    ):
        load([], [path])
    load([], [write("ns.yaml", an_object("Namespace", "a", "v1", ""))])


def test_what_has_no_pods_beside_a_workload_is_left_out_in_one_line(write) -> None:
    """As manifests are written: a Service, access rights and settings in one file with the workload."""
    job = an_object(
        "Job",
        "j",
        "batch/v1",
        spec={"parallelism": 2, "template": {"spec": {"containers": [{"name": "c"}]}}},
    )
    beside = [
        an_object("Service", "s", "v1", spec={"selector": {"a": "b"}}),
        an_object("ConfigMap", "a", "v1", data={}),
        an_object("ConfigMap", "b", "v1", data={}),
        an_object("RoleBinding", "r", "rbac.authorization.k8s.io/v1", roleRef={}),
        an_object("LocalQueue", "q", "kueue.x-k8s.io/v1beta1", spec={}),
        an_object("WorkloadPriorityClass", "p", "kueue.x-k8s.io/v1beta1", "", value=1),
        an_object("ResourceClaimTemplate", "t", "resource.k8s.io/v1", spec={"spec": {}}),
    ]
    found = load([write("nodes.yaml", a_node("n"))], [write("x.yaml", *beside, job)])
    assert len(found.pods) == 2
    (line,) = (text for text in found.warnings if "left out" in text)
    assert line == (
        "left out, as they have no pods: ConfigMap (2), LocalQueue (1), ResourceClaimTemplate (1), RoleBinding (1), Service (1), "
        "WorkloadPriorityClass (1)"
    )

    # the same at the door of the service
    question = {"cluster": [a_node("n")], "workload": [*beside, job]}
    reply = msgspec.json.decode(answer_plan_request(msgspec.json.encode(question)))
    assert (reply["verdict"], line in reply["warnings"]) == ("placed", True)
    reply = msgspec.json.decode(
        answer_plan_request(msgspec.json.encode(question | {"workload": beside}))
    )
    assert (reply["verdict"], reply["gangs"], reply["warnings"]) == ("nothing", [], [line])


def test_claims_that_pods_use_are_read_or_named() -> None:
    """A claim of a volume limits the nodes as ever; devices of a resource claim are not counted, which is a warning."""
    template = {
        "spec": {
            "containers": [{"name": "c"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
        }
    }
    job = an_object("Job", "j", "batch/v1", spec={"parallelism": 2, "template": template})
    where = {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}
                ]
            }
        ]
    }
    volume = an_object(
        "PersistentVolume", "pv", "v1", "", spec={"nodeAffinity": {"required": where}}
    )
    claim = an_object("PersistentVolumeClaim", "data", "v1", spec={"volumeName": "pv"})
    beside = an_object("ResourceClaimTemplate", "t", "resource.k8s.io/v1", spec={})
    question = {"cluster": [a_node("a"), a_node("b"), volume], "workload": [claim, beside, job]}
    reply = msgspec.json.decode(answer_plan_request(msgspec.json.encode(question)))
    assert {line["node"] for line in reply["gangs"][0]["assignments"]} == {"b"}
    assert any(
        "2 pods with resource claims (gpu): their devices are not counted" in text
        for text in reply["warnings"]
    )


def test_a_misspelt_field_is_named_at_the_door_of_the_service() -> None:
    job = an_object(
        "Job",
        "j",
        "batch/v1",
        spec={"paralelism": 2, "template": {"spec": {"containers": [{"name": "c"}]}}},
    )
    question = {"cluster": [a_node("n")], "workload": [job]}
    reply = msgspec.json.decode(answer_plan_request(msgspec.json.encode(question)))
    assert any("spec.paralelism: there is no such field" in text for text in reply["warnings"])
    served = complete(
        entries_in([Document(where="jobs.yaml", value=job)], Role.CLUSTER), serving=True
    )
    assert any("jobs.yaml: Job/default/j: spec.paralelism" in text for text in served.warnings)


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (an_object("Notebook", "m", "kubeflow.org/v1", spec={"template": {"spec": {
            "containers": [{"name": "c"}]}}}), "kind Notebook of kubeflow.org/v1 is not planned; give its pods and groups; planned are CompositePodGroup, "),
        (an_object("MPIJob", "m", "kubeflow.org/v1", spec={}), '"kubeflow.org/v1" of MPIJob'),
        (an_object("Servise", "s", "v1"), "kind Servise of v1 is not planned; planned are CompositePodGroup, "),
        (an_object("RayClusters", "s", "ray.io/v1"), "is not planned; did you mean RayCluster?"),
        (an_object("Jobset", "s", "jobset.x-k8s.io/v1alpha2"), "is not planned; did you mean JobSet?"),
    ],
)  # fmt: skip
def test_what_has_pods_that_are_not_planned_or_is_misspelt_is_an_error(write, thing, words) -> None:
    with pytest.raises(BadInput, match=words):
        load([], [write("x.yaml", thing)])


def test_an_object_with_a_generated_name_gets_one_by_its_place(write) -> None:
    """As the API server does for `kubectl create`; the same file gives the same names, and two objects have two."""
    job = an_object(
        "Job", "", "batch/v1", spec={"template": {"spec": {"containers": [{"name": "c"}]}}}
    )
    job["metadata"] = {"generateName": "j-"}
    path = write("x.yaml", job, job, a_pod("", metadata={"name": None, "generateName": "p-"}))
    found = load([], [path])
    names = sorted(str(one.workload) for one in found.origins.values())
    assert [name.rpartition("-")[0] for name in names] == ["Job/default/j", "Job/default/j"]
    assert names[0] != names[1]
    assert len(found.pods) == 3
    assert found.pods == load([], [path]).pods


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: {c: 1, c: 2}\n", 'line 2: key "c" is a duplicate'),
        ("a: [1\n", "line 2, column 1: not valid YAML: a list in"),
        ("- 1\n", "document 1: not an object"),
        ("kind: Pod\n", "document 1: object: apiVersion is missing"),
        ("{a: *nowhere}", 'undefined alias|"nowhere" is not defined'),
        ("a: !!python/object:os.system {}", "tag .*python/object:os.system is not allowed"),
        ("? [a]\n: 1\n", "a key must be text"),
        ("a: " + "[" * 101 + "]" * 101, "nested deeper than 100"),
        ("apiVersion: v1\nkind: Node\nmetadata: {name: n, labels: {a: on}}\n",
         r"document 1: Node/n: metadata.labels.a: expected text, found true"),
        ("apiVersion: v1\nkind: Node\nmetadata: {}\n", "metadata.name: is missing"),
        ("apiVersion: v1\nkind: List\nitems: 3\n", "List: items: expected a list, found 3"),
    ],
    ids=range(11),
)  # fmt: skip
def test_the_error_of_a_bad_file_names_the_place(write, text, words) -> None:
    with pytest.raises(BadInput, match=r"bad.yaml.*" + words):
        load([write("bad.yaml", text=text)])


def test_a_bomb_of_aliases_is_refused() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    with pytest.raises(BadInput, match=f"more than {EXPANDED_MAX} values"):
        read_bytes(bomb.encode(), "bomb.yaml")


def test_a_file_that_is_nested_very_deep_is_refused() -> None:
    """The composer of pyyaml crashes on this one."""
    with pytest.raises(BadInput, match="line 1: nested deeper than 100 levels"):
        read_bytes(b"a: " + b"[" * 200_000, "deep.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"a: &x 1\n*x : 2\n", "line 2: a key must be text"),
        (b"a: &x {b: *x}\n", 'line 1: alias "x" is not defined before'),
        (b"---\na: &x 1\n---\nb: *x\n", 'line 4: alias "x" is not defined before'),
        (b"a: {<<: 1}\n", "line 1: << merges mappings only"),
    ],
)
def test_errors_of_aliases_name_the_line(text, words) -> None:
    with pytest.raises(BadInput, match=words):
        read_bytes(text, "x.yaml")


def test_anchors_and_merges_are_understood() -> None:
    text = b"base: &b {a: 1, c: 2}\none: {<<: *b, c: 3}\ntwo: {<<: [*b, {d: 4}]}\n"
    (document,) = read_bytes(text, "x")
    assert document.value["one"] == {"a": 1, "c": 3}
    assert document.value["two"] == {"a": 1, "c": 2, "d": 4}


def test_other_bad_inputs(write, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    for path, words in (
        (str(tmp_path / "missing"), "no such file"),
        (str(tmp_path / "empty"), "in this directory"),
        (
            "",
            "the name of a file or folder is empty",
        ),  # a variable that is not set is not the current folder
        (write("x.json", text="{"), "x.json"),
    ):
        with pytest.raises(BadInput, match=words):
            load([path])
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(BadInput, match=r"latin.yaml: not UTF-8 at byte 3"):
        load([str(tmp_path / "latin.yaml")])


# --- what an API server fills in


def test_f_wins_over_the_cluster_and_keeps_the_identity_of_what_it_replaces() -> None:
    old = a_pod("p", node="n", metadata={"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"})
    found = a_manifest([a_node("n"), old], [a_pod("p")])
    pod = found.world.view.pods["u"]
    assert (pod.node, pod.created_us) == (None, 1_767_225_600_000_000)
    assert found.pods == ("u",)


def test_the_same_object_twice_on_one_side_is_a_warning() -> None:
    found = a_manifest([a_node("n", gpu=1), a_node("n", gpu=2)])
    assert found.world.view.nodes["n"].allocatable["nvidia.com/gpu"] == 2
    assert found.warnings == (
        "Node/n: found twice, in object 1 and object 2; the second one counts",
    )


def test_two_pods_or_groups_of_one_uid_are_an_error() -> None:
    """A copied manifest with another name and the UID of the first: the second would replace the first."""
    one, two = (a_pod(name, metadata={"uid": "u"}) for name in "ab")
    with pytest.raises(
        BadInput, match=r"Pod/default/b: metadata.uid: 'u' is that of Pod/default/a"
    ):
        a_manifest([one], [two])


def test_identity_without_a_uid_is_the_name_and_age_follows_the_file() -> None:
    dated = a_pod("c", metadata={"creationTimestamp": "2026-01-01T00:00:00Z"})
    one, two = (a_manifest([a_pod("b"), a_pod("a"), dated]).world.view for _ in range(2))
    assert set(one.pods) == set(two.pods)
    assert [p.name for p in sorted(one.pods.values(), key=lambda p: p.created_us)] == [
        "c",
        "b",
        "a",
    ]


def test_capacity_of_nodes() -> None:
    bare, known = a_node("bare"), a_node("known")
    bare["status"] = {"capacity": {"cpu": 4}}
    found = a_manifest([bare, known])
    assert found.world.view.nodes["bare"].allocatable == {"cpu": 4000, "pods": 110}
    (warning,) = found.warnings
    assert "Node/bare" in warning
    assert "110" in warning


def test_running_and_ended_pods() -> None:
    view = a_manifest([
        a_pod("running", node="n", status={"phase": "Pending"}),
        a_pod("done", node="n", status={"phase": "Succeeded"}),
    ]).world.view  # fmt: skip
    assert [pod.name for pod in view.pods.values()] == ["running"]
    assert view.usage["n"].requests == {"cpu": 1000, "pods": 1}


def test_priorities_of_files() -> None:
    prod = an_object("PriorityClass", "prod", "scheduling.k8s.io/v1", "", value=9)
    usual = an_object(
        "PriorityClass", "usual", "scheduling.k8s.io/v1", "", value=2, globalDefault=True
    )
    pods = [
        a_pod("a", priority=5, priorityClassName="missing"), a_pod("b", priorityClassName="prod"),
        a_pod("c"), a_pod("d", priorityClassName="system-node-critical"),
    ]  # fmt: skip
    view = a_manifest([*pods, prod, usual]).world.view
    assert {p.name: p.priority for p in view.pods.values()} == {
        "a": 5, "b": 9, "c": 2, "d": 2_000_001_000,
    }  # fmt: skip
    for thing in (
        a_pod("p", priorityClassName="gone"),
        a_group("p", gang=1, priorityClassName="gone"),
    ):
        with pytest.raises(
            BadInput, match=r'/default/p: spec.priorityClassName: no PriorityClass "gone"'
        ):
            a_manifest([thing])
    ended = a_pod("p", priorityClassName="gone", status={"phase": "Failed"})
    assert not a_manifest([ended]).world.view.pods


def test_what_came_from_f_is_given_in_order() -> None:
    found = a_manifest(
        [a_node("n"), *a_gang("old", pods=1)], [*a_gang("b", pods=2), *a_gang("a", pods=1)]
    )
    assert found.groups == (leaf_key("default", "b"), leaf_key("default", "a"))
    names = [found.world.view.pods[uid].name for uid in found.pods]
    assert names == ["b-0", "b-1", "a-0"]
    assert sorted(found.order.values()) == list(found.order.values())


@pytest.mark.parametrize(
    "thing",
    [
        a_workload(podGroupTemplates=[basic("a", disruptionMode=ALL)]),
        a_builtin_workload(basic("a", disruptionMode=ALL), version="v1alpha3", disruptionMode=ALL),
    ],
    ids=["ours", "1.37"],
)
def test_a_basic_template_that_is_disrupted_as_a_whole_is_a_warning(thing) -> None:
    """Kubernetes 1.37 accepts it, and a basic leaf below a gang; 1.38 does not."""
    (text,) = a_manifest([thing]).warnings
    assert "Workload/default/w: spec." in text
    assert "Kubernetes 1.38 refuses it in built-in objects (E11)" in text


# --- what an API server refuses (vectors A01 to A08)


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (a_workload(), "Workload/default/w: spec: set exactly one of .*found neither"),
        (a_workload(podGroupTemplates=[a_template()], **nested(2)), "found both"),
        (a_workload(podGroupTemplates=[a_template(f"t{n}") for n in range(9)]), "too many entries: 9, at most 8"),
        (a_workload(compositePodGroupTemplates=[a_template("a", composite=True, podGroupTemplates=[a_template("a")])]),
         'template name "a" used twice: spec.compositePodGroupTemplates.0., spec.compositePodGroupTemplates.0..podGroupTemplates.0.'),
        (a_workload(**nested(5)), "has 5 levels, at most 4"),
        (a_workload(**nested(10)), "has 10 levels, at most 4"),
        (a_workload(compositePodGroupTemplates=[a_template("a", composite=True)]), '"a" has no child template'),
        (a_workload(compositePodGroupTemplates=[a_template("a", composite=True, disruptionMode={"all": {}}, podGroupTemplates=[a_template("b")])]),
         'child "b" is single under "a"'),
        (a_builtin_workload(basic("a", disruptionMode=ALL), disruptionMode=ALL), "0..disruptionMode: all is meant for a gang"),
        (a_builtin_workload(basic("a")), 'child "a" is basic under "top", which is a gang; give "a" a gang policy'),
        (a_builtin_workload(a_template("a", preemptionPolicy="Never")), 'share one: "top" has "", "a" has "Never"'),
        (a_workload(podGroupTemplates=[a_template("a", priorityClassName="x", priority=5), a_template("b", priorityClassName="y", priority=5)]),
         'priority and class: "a" has 5 and class "x", "b" has 5 and class "y"'),
        (a_workload(podGroupTemplates=[{"name": "a"}]), "choose exactly one of basic, gang"),
        (a_workload(podGroupTemplates=[a_template("A")]), 'name: "A" is not a valid name'),
        (a_workload(podGroupTemplates=[a_template("a", schedulingConstraints={"topology": [{"key": "not a key"}]})]),
         '"not a key" is not a valid label key'),
        (a_group("g", gang=1, priority=1_000_000_001), "spec.priority: 1000000001 is more than 1000000000"),
        (a_group("g", gang=1, preemptionPolicy="Maybe"), 'spec.preemptionPolicy: "Maybe"'),
        (a_group("g", gang=1, schedulingConstraints={"topology": [{"key": "a"}, {"key": "b"}]}), "too many entries: 2, at most 1"),
        (a_group("g", gang=1, schedulingConstraints={"preferred": [*"abcde"]}), "spec.schedulingConstraints.preferred: too many entries: 5, at most 4"),
        (a_group("g", gang=1, schedulingConstraints={"near": [{"group": x, "key": "a"} for x in "abcde"]}), "spec.schedulingConstraints.near: too many entries: 5, at most 4"),
        (a_group("g", gang=1, schedulingConstraints={"near": [{"group": "b", "key": "a"}] * 2}), r"near\[1\]: group b and key a are there twice; name each pair once"),
        (a_builtin_workload(a_template("a", schedulingConstraints={"near": [{"group": "b", "key": "rack"}]})),
         "schedulingConstraints.near: only templates of gang-extender.dev have it; found group b"),
        (a_workload(podGroupTemplates=[a_template("a", schedulingConstraints={"slices": [{"size": 0, "key": "a"}]})]), "schedulingConstraints.slices: the size of a is 0"),
        (a_builtin_workload(a_template("a", schedulingConstraints={"slices": [{"size": 2, "key": "rack"}]})),
         "schedulingConstraints.slices: only templates of gang-extender.dev have it; found key rack"),
        (a_workload(podGroupTemplates=[a_template("a", schedulingConstraints={"balanced": True})]), "schedulingConstraints.balanced: is true without preferred"),
        (a_group("g", gang=1, schedulingConstraints={"preferred": [*"aba"]}), 'preferred: "a" is there twice; name each key once, the narrowest first'),
        (a_workload(podGroupTemplates=[a_template("a", schedulingConstraints={"preferred": ["not a key"]})]),
         'schedulingConstraints.preferred: "not a key" is not a valid label key'),
        (a_builtin_workload(a_template("a", schedulingConstraints={"preferred": ["rack"]})),
         "schedulingConstraints.preferred: only templates of gang-extender.dev have it; found rack"),
    ],
    ids=range(28),
)  # fmt: skip
def test_refused(thing, words) -> None:
    with pytest.raises(BadInput, match=words):
        a_manifest([thing])


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (
            a_group("g", gang=1, parentCompositePodGroupName="c"),
            'PodGroup/default/g: spec.workloadRef: is required with parentCompositePodGroupName "c"',
        ),
        (a_group("g", gang=1, topo="not a key"), '"not a key" is not a valid label key'),
        (a_group("PG-1", gang=1), 'metadata.name: "PG-1" is not a valid name'),
    ],
    ids=["reference", "key", "name"],
)
def test_questioned(thing, words) -> None:
    """Files come without admission: what does not change where a tree goes is a warning."""
    (warning,) = a_manifest([thing]).warnings
    assert words in warning
    assert warning.endswith("an API server would refuse it")


def test_accepted() -> None:
    """The other halves of A02, A04, A05 and A08."""
    leaves = [a_template(f"l{n}") for n in range(8)]
    composites = [
        a_template(f"c{n}", composite=True, podGroupTemplates=[a_template(f"cl{n}")])
        for n in range(8)
    ]
    both = a_template(
        "root", composite=True, podGroupTemplates=leaves, compositePodGroupTemplates=composites
    )
    whole = a_template("leaf", disruptionMode={"all": {}})
    a_manifest([a_workload(compositePodGroupTemplates=[both])])
    a_manifest([a_workload(**nested(4))])
    a_manifest(
        [
            a_workload(
                compositePodGroupTemplates=[
                    a_template("a", composite=True, podGroupTemplates=[whole])
                ]
            )
        ]
    )
    a_manifest([a_group("r", gang=3, composite=True), a_group("x", gang=1, parent="r")])
    old = an_object("Workload", "w", "scheduling.k8s.io/v1alpha1", spec={"podGroups": []})
    assert not a_manifest([old]).world.view.blueprints  # Kubernetes 1.35: another thing


# --- examples and vectors


def test_the_examples_are_sound_trees() -> None:
    found = load(
        [str(EXAMPLES / "cluster.yaml")],
        [str(EXAMPLES / "serve.yaml"), str(EXAMPLES / "train.yaml")],
    )
    view = found.world.view
    assert (len(view.nodes), len(found.pods), found.warnings) == (32, 32, ())
    forest = build_forest(view.groups, {k: pods.values() for k, pods in view.members.items()})
    assert {str(key): len(tree.pods) for key, tree in forest.trees.items()} == {
        "CompositePodGroup/default/serve": 24, "PodGroup/default/train": 8,
    }  # fmt: skip
    assert not any(tree.problems for tree in forest.trees.values())
    assert not forest.orphans
    members = [view.pods[uid] for uid in found.pods]
    assert {pod.gates for pod in members} == {("gang-extender.dev/admission",)}
    assert not any("gang-extender.dev" in name for pod in members for name, _ in pod.shape.requests)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["id"])
def test_vectors_become_manifests_with_the_stated_capacity(vector) -> None:
    view = a_manifest(vector_objects(vector)).world.view
    for name, about in vector["nodes"].items():
        used = view.usage[name].requests.get(SLOT, 0) if name in view.usage else 0
        assert view.nodes[name].allocatable[SLOT] - used == about["f"]


# --- disruption budgets


def a_protected_world(**spec):
    pods = [a_pod(f"p{n}", node="n0", metadata={"labels": {"app": "db"}}) for n in range(4)]
    waiting = a_pod("p4", metadata={"labels": {"app": "db"}})
    budget = a_budget("b", {"app": "db"}, allowed=None, **spec)
    return a_manifest([a_node("n0"), *pods, waiting, budget]).world.view.budgets["default", "b"]


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"minAvailable": 3}, 1),
        ({"minAvailable": "50%"}, 1),  # of five, rounded up: three
        ({"maxUnavailable": 2}, 1),  # one of five is missing already
        ({"maxUnavailable": "50%"}, 2),
        ({"minAvailable": 9}, 0),
        ({}, 4),
    ],
    ids=str,
)
def test_budgets_without_a_status_are_counted(spec, allowed) -> None:
    assert a_protected_world(**spec).allowed == allowed


def test_a_stored_count_stands() -> None:
    budget = a_budget("b", {"app": "db"}, allowed=7, minAvailable=1)
    found = a_manifest([budget]).world.view.budgets["default", "b"]
    assert found.allowed == 7
    assert found.protects("default", {"app": "db"})


def test_bad_budgets_name_field_and_value() -> None:
    with pytest.raises(BadInput, match=r'PodDisruptionBudget/default/b: spec.minAvailable: "half"'):
        a_protected_world(minAvailable="half")
    odd = {"matchExpressions": [{"key": "a", "operator": "In"}]}
    with pytest.raises(BadInput, match=r"spec.selector.matchExpressions\[0\]: a In \[\]"):
        a_manifest([an_object("PodDisruptionBudget", "b", "policy/v1", spec={"selector": odd})])

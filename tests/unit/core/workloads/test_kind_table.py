"""The table against what the real controllers made: every recorded pod has a leaf in the tree of its workload."""

from __future__ import annotations

import re
from collections import Counter

from extender.core.workloads.kind_table import (
    BY_KIND,
    KINDS,
    OBJECT_KINDS,
    kind_of_pod,
    leaf_of_pod,
)
from extender.core.workloads.workload_object import pod_templates
from tests.support.planning.controller_records import NAMES, labels_of, record, uses_of
from tests.support.planning.workload_builders import compiled

REFUSED = {
    "jobset/exclusive-topology-no-leader-bound.json",
    "lws/exclusive-topology-leader-not-bound.json",
}
KEPT_OUT = {"job/native-scheduling-block.json"}
EXTRAS = {"rc-ray-small": 2}  # more pods than the minimum of a worker group


def test_the_tree_of_every_recording_has_its_pods(subtests):
    for name in NAMES:
        with subtests.test(name):
            found = record(name)
            uses = uses_of(found.pods())
            results = [compiled(one, *uses) for one in found.roots()]
            expected = (
                "refused" if name in REFUSED else "kept-out" if name in KEPT_OUT else "compiled"
            )
            assert {one.outcome for one in results} == {expected}
            if expected != "compiled":
                continue
            leaves = {
                one.name: one for tree in results for one in tree.groups if one.kind == "PodGroup"
            }
            assert {leaf_of_pod(labels_of(one)) for one in found.pods()} <= leaves.keys()
            pending = [
                one for one in found.pods() if one["status"]["phase"] in ("Pending", "Running")
            ]
            pods = Counter(leaf_of_pod(labels_of(one)) for one in pending)
            for leaf, count in pods.items():
                assert leaves[leaf].basic or count == EXTRAS.get(leaf, leaves[leaf].minimum)


def test_the_kind_of_a_recorded_pod_is_that_of_its_workload(subtests):
    for name in NAMES:
        with subtests.test(name):
            found = record(name)
            roots = {(one.kind, one.name): one for one in found.roots()}
            for one in found.pods():
                labels = labels_of(one)
                kind = kind_of_pod(labels)
                assert kind is not None
                workload = roots[kind.kind, kind.name_in(labels)]
                if kind.uid_label:
                    assert labels[kind.uid_label] == workload.uid


def test_a_recorded_pod_without_a_profile_has_no_leaf(subtests):
    for name in NAMES:
        with subtests.test(name):
            for one in record(name).pods():
                labels = labels_of(one)
                assert leaf_of_pod(labels)
                for tree in ({}, {"gang-extender.dev/tree": "off"}):
                    plain = {
                        key: value
                        for key, value in labels.items()
                        if key != "gang-extender.dev/tree"
                    }
                    assert leaf_of_pod(plain | tree) == ""


def test_the_pod_templates_of_recorded_workloads_are_found(subtests):
    for name in (one for one in NAMES if not one.startswith("grove/")):
        with subtests.test(name):
            for one in record(name).roots():
                assert list(pod_templates(BY_KIND[one.kind].template_paths, one.spec))


def test_a_pod_of_no_known_kind_has_no_leaf():
    assert kind_of_pod({"app": "x"}) is None
    assert leaf_of_pod({"app": "x", "gang-extender.dev/tree": "default"}) == ""


def test_a_kind_is_in_the_table_once():
    assert len({(one.group, one.plural) for one in KINDS}) == len(BY_KIND) == len(KINDS)


def test_pods_have_the_profile_from_a_template_or_from_an_object_that_gives_them_labels(subtests):
    for kind in OBJECT_KINDS:
        with subtests.test(kind.kind):
            assert bool(kind.template_paths) + bool(kind.labels_from) == bool(kind.name_rules)
            assert bool(kind.name_rules) == bool(kind.name_label) == (kind.parts is not None)


def test_leaf_labels_exist_in_python_and_cel(subtests):
    for kind in KINDS:
        with subtests.test(kind.kind):
            assert (kind.leaf_label is None) == (not kind.leaf_label_cel)


def test_owners_are_known_kinds(subtests):
    for kind in KINDS:
        with subtests.test(kind.kind):
            assert set(kind.part_of) <= {*BY_KIND, "Pod"}
            assert set(kind.policy_from) <= set(BY_KIND)


def test_paths_of_templates_are_those_of_fields(subtests):
    for kind in KINDS:
        with subtests.test(kind.kind):
            for path in kind.template_paths:
                assert re.fullmatch(r"spec(\.[a-zA-Z]+(\[\])?)*", path)


def test_the_pod_of_a_part_has_the_leaf_of_its_owner():
    """Those kinds come first whose pods also have the labels of a later one."""
    (pod, *_) = record("jobset/any-order.json").pods()
    assert {"batch.kubernetes.io/job-name", "jobset.sigs.k8s.io/jobset-name"} <= labels_of(
        pod
    ).keys()
    assert kind_of_pod(labels_of(pod)) is BY_KIND["JobSet"]


def test_the_job_that_submits_a_ray_job_is_a_tree_of_its_own():
    """It is made when the cluster is ready, so it is no member of the gang of the cluster."""
    assert "RayJob" not in BY_KIND["Job"].part_of

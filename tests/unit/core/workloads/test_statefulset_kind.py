"""StatefulSet: a gang where its pods start at once."""

from __future__ import annotations

import pytest

from extender.core.workloads.kind_table import BY_KIND, kind_of_pod, leaf_of_pod
from tests.support.planning.workload_builders import compiled, drawn, template, workload


def a_set(**spec):
    return workload("StatefulSet", "web-a", {"template": template(), **spec})


def pod_labels(name, **more):
    return {"gang-extender.dev/tree": "default", "statefulset.kubernetes.io/pod-name": name} | more


def test_a_set_that_starts_its_pods_at_once_is_a_gang():
    assert drawn(compiled(a_set(replicas=4, podManagementPolicy="Parallel"))) == [
        "web-a-sts: gang 4, all"
    ]
    assert drawn(compiled(a_set())) == ["web-a-sts: gang 1, all"]


@pytest.mark.parametrize("policy", [{}, {"podManagementPolicy": "OrderedReady"}])
def test_a_set_that_starts_them_one_after_the_other_is_placed_pod_by_pod(policy):
    """The second pod is made when the first one is ready: a gang would wait for ever."""
    result = compiled(a_set(replicas=4, **policy))
    assert drawn(result) == ["web-a-sts: basic"]
    assert [notice.reason for notice in result.notices] == ["NotAllAtOnce"]


def test_a_set_without_replicas_has_no_group():
    assert compiled(a_set(replicas=0, podManagementPolicy="Parallel")).groups == ()


def test_the_leaf_of_a_pod_is_named_by_its_name_without_the_ordinal():
    labels = pod_labels("web-a-12")
    assert leaf_of_pod(labels) == "web-a-sts"
    assert kind_of_pod(labels) is BY_KIND["StatefulSet"]
    assert BY_KIND["StatefulSet"].name_in(labels) == "web-a"
    assert BY_KIND["StatefulSet"].name_in({}) is None


def test_the_pods_of_a_leaderworkerset_are_in_its_tree():
    labels = pod_labels(
        "serve-0-1",
        **{
            "leaderworkerset.sigs.k8s.io/name": "serve",
            "leaderworkerset.sigs.k8s.io/group-index": "0",
            "leaderworkerset.sigs.k8s.io/template-revision-hash": "abc",
        },
    )
    assert kind_of_pod(labels) is BY_KIND["LeaderWorkerSet"]


def test_the_ordinals_of_pods_begin_at_the_start():
    kind = BY_KIND["StatefulSet"]
    labels = kind.pod_labels(a_set(replicas=2, ordinals={"start": 2}), {}, None, 1)
    assert labels == {
        "statefulset.kubernetes.io/pod-name": "web-a-3",
        "apps.kubernetes.io/pod-index": "3",
    }
    assert kind.pod_labels(a_set(), {}, None, 1)["apps.kubernetes.io/pod-index"] == "1"


def test_pods_that_end_are_refused():
    refusal = compiled(a_set(template={"spec": {"restartPolicy": "Never"}})).refusal
    assert refusal.reason == "InvalidField"
    assert "spec.template.spec.restartPolicy: is 'Never'" in refusal.message


def test_no_name_before_the_webhook_labels():
    """At the first pass of the policy a pod of a subgroup lacks its index: it is none of its StatefulSet either."""
    labels = pod_labels(
        "serve-0-1",
        **{
            "gang-extender.dev/leaf": "subgroup",
            "leaderworkerset.sigs.k8s.io/name": "serve",
            "leaderworkerset.sigs.k8s.io/group-index": "0",
            "leaderworkerset.sigs.k8s.io/template-revision-hash": "abc",
        },
    )
    assert leaf_of_pod(labels) == ""
    assert leaf_of_pod(labels | {"leaderworkerset.sigs.k8s.io/subgroup-index": "1"}) == (
        "serve-0-abc-s1"
    )

"""TreeProfiles as an API server or a file has them become profiles of the core; errors name object, field and value."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from extender.cluster import types as api
from extender.cluster.read.object_decoding import convert, profile_of
from extender.core.model.errors import BadInput
from extender.core.model.nodes import ExclusiveDomain, SliceLevel
from extender.core.workloads.tree_policy import KindPolicy, NearRole, TreeProfile

PROFILE = """
apiVersion: gang-extender.dev/v1alpha1
kind: TreeProfile
metadata: {name: training}
spec:
  kinds:
    - kind: JobSet
      gang: per-replicated-job
      topology: {root: net/block, leaf: net/rack, rootPreferred: [net/row], leafPreferred: [a, b],
                 balanced: true, slices: [{size: 2, key: net/rack}, {size: 4, key: net/block}],
                 levels: [net/rack, net/block], readFrom: [Kueue]}
      exclusive: {leaf: {key: net/rack, scope: Namespace}}
      near: [{role: prefill, to: decode, key: net/block}]
      lostMembers: GiveUp
      disruptionMode: single
      nativeGroups: Adopt
    - {kind: Job, enabled: false}
"""


def read(**fields: Any) -> TreeProfile:
    thing = yaml.safe_load(PROFILE) | fields
    return profile_of(convert(api.TreeProfile, thing))


def test_each_field_is_read() -> None:
    """What is not set has the default of the core."""
    assert read() == TreeProfile(
        name="training",
        kinds={
            "JobSet": KindPolicy(
                gang="per-replicated-job",
                root_topology="net/block",
                leaf_topology="net/rack",
                root_preferred=("net/row",),
                leaf_preferred=("a", "b"),
                balanced=True,
                slices=(SliceLevel("net/block", 4), SliceLevel("net/rack", 2)),
                leaf_exclusive=ExclusiveDomain("net/rack", "Namespace"),
                near=(NearRole("prefill", "decode", "net/block"),),
                lost_members="GiveUp",
                levels=("net/rack", "net/block"),
                read_topology=("Kueue",),
                disruption_mode="single",
                native_groups="Adopt",
            ),
            "Job": KindPolicy(enabled=False),
        },
    )


@pytest.mark.parametrize("spec", [{}, {"kinds": []}, {"kinds": None}])
def test_a_profile_without_kinds_is_the_default(spec: Any) -> None:
    assert read(spec=spec).of("Job") == KindPolicy()


@pytest.mark.parametrize(
    ("kinds", "error"),
    [
        ([{"kind": "CronJob"}], r"TreeProfile/training: spec\.kinds\[0\]\.kind: 'CronJob' is none of JobSet,.* Job"),
        ([{"kind": "Job"}, {"kind": "Job"}], r"spec\.kinds\[1\]\.kind: 'Job' is there twice; write one"),
        ([{"kind": "Job", "gang": "per-job"}], r"spec\.kinds\[0\]\.gang: 'per-job' is not for Job; it has all$"),
        ([{"kind": "Job", "gang": "some"}], r"training.*spec\.kinds\[0\]\.gang.*\"some\""),
        ([{"kind": "PodGang", "nativeGroups": "Adopt"}],
         r"kinds\[0\]\.nativeGroups: 'Adopt' is not for PodGang, .*; it is for JobSet, Job, LeaderWorkerSet$"),
        ([{"kind": "Job", "nativeGroups": "Take"}], r"training.*nativeGroups.*\"Take\""),
        ([{"kind": "Job", "disruptionMode": "none"}], r"training.*disruptionMode.*\"none\""),
        ([{"kind": "Job", "enabled": "yes"}], r"TreeProfile/training: spec\.kinds\[0\]\.enabled.*yes"),
        ([{"kind": "Job", "topology": {"root": "a key"}}], r"kinds\[0\]\.topology\.root: 'a key' is not the key of a node label, such as net/rack"),
        ([{"kind": "Job", "topology": {"leaf": "/"}}], r"kinds\[0\]\.topology\.leaf: '/' is not the key of a node label"),
        ([{"kind": "Job", "topology": {"leafPreferred": ["/"]}}], r"kinds\[0\]\.topology\.leafPreferred: '/' is not the key"),
        ([{"kind": "Job", "topology": {"leafPreferred": [*"abcde"]}}], r"leafPreferred: 5 keys, at most 4"),
        ([{"kind": "Job", "topology": {"rootPreferred": [*"aba"]}}], r"rootPreferred: a, b, a has a key twice"),
        ([{"kind": "Job", "topology": {"slices": [{"size": 0, "key": "a"}]}}], r"topology\.slices: the size of a is 0"),
        ([{"kind": "Job", "topology": {"slices": [{"size": 1, "key": "/"}]}}], r"topology\.slices: '/' is not the key"),
        ([{"kind": "PodGang", "topology": {"readFrom": ["Kueue"]}}], r"topology\.readFrom: 'Kueue' is not for PodGang"),
        ([{"kind": "Job", "topology": {"readFrom": ["Volcano"]}}], r"topology\.readFrom.*\"Volcano\""),
        ([{"kind": "Job", "near": [{"to": "b", "key": "k"}]}], r"kinds\[0\]\.near\[0\]\.role: is empty; name a role"),
        ([{"kind": "Job", "near": [{"role": "a", "key": "k"}]}], r"kinds\[0\]\.near\[0\]\.to: is empty; name a role"),
        ([{"kind": "Job", "near": [{"role": "a", "to": "a", "key": "k"}]}], r"near\[0\]\.to: 'a' is the role itself"),
        ([{"kind": "Job", "near": [{"role": "a", "to": "b"}]}], r"near\[0\]\.key: '' is not the key of a node label"),
        ([{"kind": "Job", "near": [{"role": "a", "to": "b", "key": "k"}] * 2}], r"near: a is near b by k twice; name each"),
        ([{"kind": "Job", "near": [{"role": f"a{n}", "to": "b", "key": "k"} for n in range(17)]}], r"near: 17 entries, at most 16"),
        ([{"gang": "all"}], r"training.*spec\.kinds\[0\].*kind"),
    ],
)  # fmt: skip
def test_an_error_names_object_field_and_value(kinds: list[Any], error: str) -> None:
    with pytest.raises(BadInput, match=error):
        read(spec={"kinds": kinds})

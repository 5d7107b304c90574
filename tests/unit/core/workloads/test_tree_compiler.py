"""What holds for the trees of all kinds: outcomes, names, minima, and that a compilation is a function of its input."""

from __future__ import annotations

import random
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.model.nodes import ExclusiveDomain, SliceLevel
from extender.core.model.pod_groups import CHILDREN_MAX, DEPTH_MAX
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.tree_compiler import CompileRequest, compile_tree, workload_parts
from extender.core.workloads.tree_parts import Composite, ExistingGroup, Leaf, LeafUse, leaves_of
from extender.core.workloads.tree_policy import (
    InvalidPolicy,
    KindPolicy,
    NearRole,
    TreeProfile,
    read_policy,
)
from tests.support.hypothesis_profile import examples
from tests.support.planning.random_workloads import COMPILED, requests
from tests.support.planning.workload_builders import (
    compiled,
    drawn,
    existing,
    job,
    jobset,
    leader_worker,
    lws,
    replicated,
    template,
    use,
    workload,
)

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def compile_request(request):
    return compile_tree(BY_KIND[request.workload.kind], request)


# --- properties of every input


@given(request=requests())
@examples(500, quick=30)
def test_any_combination_of_fields_has_an_outcome(request):
    result = compile_request(request)
    if result.outcome == "compiled":
        assert result.refusal is None
    else:
        assert result.refusal is not None
        assert result.refusal.field
        assert result.refusal.message.startswith(f"{request.workload}: {result.refusal.field}: ")
    if result.outcome in ("refused", "kept-out"):
        assert result.groups == ()
    if result.outcome == "basic":
        assert not request.requested
        assert all(one.basic and one.kind == "PodGroup" and not one.parent for one in result.groups)


@given(request=requests())
@examples(250, quick=25)
def test_a_compilation_is_a_function_of_its_stored_input(request):
    """As `replay` decides it again: from the bytes that the log keeps."""
    stored = msgspec.json.encode(request, order="deterministic")
    again = msgspec.json.decode(stored, type=CompileRequest)
    assert msgspec.json.encode(again, order="deterministic") == stored
    assert compile_request(again) == compile_request(request)


@given(request=requests(), seed=st.integers(0, 9))
@examples(250, quick=25)
def test_the_order_of_what_was_observed_does_not_matter(request, seed):
    uses, groups = list(request.uses), list(request.existing)
    random.Random(seed).shuffle(uses)
    random.Random(seed).shuffle(groups)
    other = msgspec.structs.replace(request, uses=tuple(uses), existing=tuple(groups))
    assert compile_request(other) == compile_request(request)


@given(request=requests())
@examples(375, quick=30)
def test_names_are_valid_and_unique_and_every_parent_comes_first(request):
    groups = compile_request(request).groups
    seen = {request.workload.annotations.get("gang-extender.dev/parent", ""), ""}
    for one in groups:
        assert NAME.fullmatch(one.name)
        assert len(one.name) <= 63
        assert one.parent in seen
        if one.kind == "CompositePodGroup":
            seen.add(one.name)
    assert len({(one.kind, one.name) for one in groups}) == len(groups)


@given(request=requests())
@examples(375, quick=30)
def test_no_minimum_is_above_what_can_exist(request):
    """Below: the pods of a leaf, the children of a composite, or what runs already."""
    kind = BY_KIND[request.workload.kind]
    result = compile_request(request)
    if result.outcome != "compiled":
        return
    policy = read_policy(request.workload, request.profile.of(kind.kind))
    most: dict[str, int] = {}
    for root in workload_parts(kind, request, policy).roots:
        for part in _all(root):
            most[part.name] = max(most.get(part.name, 0), _most(part))
    before = {(one.kind, one.name): one.minimum for one in request.existing if not one.basic}
    for one in result.groups:
        assert 1 <= one.minimum <= max(1, most[one.name], before.get((one.kind, one.name), 1))


def _all(part):
    yield part
    if isinstance(part, Composite):
        for child in part.children:
            yield from _all(child)


def _most(part):
    return part.most if isinstance(part, Leaf) else max(len(part.children), part.most)


@given(request=requests())
@examples(375, quick=30)
def test_trees_keep_the_limits_and_the_rules_of_their_groups(request):
    groups = compile_request(request).groups
    parents = {one.name: one.parent for one in groups if one.kind == "CompositePodGroup"}
    policies = {one.name: one for one in groups if one.kind == "CompositePodGroup"}
    for one in groups:
        level, above = 1, one.parent
        while above:
            level, above = level + 1, parents.get(above, "")
        assert level <= DEPTH_MAX
        assert one.disruption_mode == "single" or not one.basic
        if (parent := policies.get(one.parent)) is not None:
            assert parent.disruption_mode == "single" or one.disruption_mode == "all"
            assert one.priority_class == parent.priority_class
    for name in parents:
        assert sum(one.parent == name for one in groups) <= CHILDREN_MAX


@given(request=requests())
@examples(375, quick=30)
def test_compiling_with_its_own_groups_gives_the_same_groups(request):
    """A restart at any moment ends in the same objects: some of them exist already."""
    first = compile_request(msgspec.structs.replace(request, existing=()))
    if first.outcome != "compiled":
        return
    made = existing(first)
    for there in (made, made[: len(made) // 2]) if request.workload.kind != "PodGang" else (made,):
        ordered = tuple(sorted(there, key=lambda one: (one.kind, one.name)))
        second = compile_request(msgspec.structs.replace(request, existing=ordered))
        assert {(one.kind, one.name): one for one in first.groups}.items() <= {
            (one.kind, one.name): one for one in second.groups
        }.items()


@given(request=requests())
@examples(250, quick=25)
def test_every_leaf_has_a_template_for_each_of_its_pods(request):
    kind = BY_KIND[request.workload.kind]
    policy = read_policy(msgspec.structs.replace(request.workload, annotations={}), KindPolicy())
    try:
        roots = workload_parts(kind, request, policy).roots
    except InvalidPolicy:
        return  # too many groups, or another shape
    for leaf in (leaf for root in roots for leaf in leaves_of(root)):
        assert len(leaf.leading) <= leaf.most
        for number in {0, len(leaf.leading), leaf.most}:
            expected = leaf.leading[number] if number < len(leaf.leading) else leaf.template
            assert leaf.template_of(number) is expected


# --- outcomes


@pytest.mark.parametrize("requested", [True, False])
def test_a_profile_that_does_not_exist(requested):
    result = compiled(job(2), profile=None, profile_name="gone", requested=requested)
    assert result.outcome == ("refused" if requested else "basic")
    assert result.refusal.reason == "NoSuchProfile"
    assert (
        "no TreeProfile 'gone'; create it, or use the label value default" in result.refusal.message
    )


@pytest.mark.parametrize(
    ("found", "uses", "lines"),
    [
        (job(2), [], ["fit-6f2f0f4a: basic"]),
        (
            jobset(replicated("d"), replicated("w", 2, 2)),
            [],
            [f"train-{part}-6f2f0f4a: basic" for part in ("d", "w-0", "w-1")],
        ),
        (lws(), [use("serve-0-a")], ["serve-0-a: basic"]),
        (
            workload("PodGang", "g", {"podgroups": [{"name": "a", "minReplicas": 2}]}),
            [],
            ["a: basic"],
        ),
        (
            workload("RayCluster", "rc", {"workerGroupSpecs": [{"groupName": "w"}]}),
            [],
            ["rc-ray-headgroup: basic", "rc-ray-w: basic"],
        ),
        (
            workload("DisaggregatedSet", "pd", {"roles": [{"name": "r", "spec": leader_worker()}]}),
            [use("pd-x-r-0-a")],
            ["pd-x-r-0-a: basic"],
        ),
    ],
    ids=lambda found: getattr(found, "kind", None),
)
def test_bad_input_that_only_the_namespace_covers_runs_pod_by_pod(found, uses, lines):
    bad = msgspec.structs.replace(
        found,
        annotations={"gang-extender.dev/topology": "rack", "gang-extender.dev/parent": "search"},
    )
    held = compiled(bad, *uses)
    assert (held.outcome, held.groups) == ("refused", ())
    alone = compiled(bad, *uses, requested=False)
    assert (alone.outcome, alone.refusal) == ("basic", held.refusal)
    assert drawn(alone) == lines


def test_a_running_tree_stays_when_its_workload_cannot_be_compiled_any_more():
    bad = job(2, annotations={"gang-extender.dev/min": "x"})
    gangs = existing(compiled(job(2)))
    assert compiled(bad, existing=gangs, requested=False).outcome == "refused"
    basic = existing(compiled(bad, requested=False))
    assert compiled(bad, existing=basic, requested=False).outcome == "basic"


def test_a_field_that_is_not_used_is_a_notice():
    found = compiled(job(2, paralelism=3))
    assert found.outcome == "compiled"
    (notice,) = found.notices
    assert notice.reason == "FieldNotUsed"
    assert notice.message == (
        "Job/team/fit: spec.paralelism: there is no such field in Kubernetes v1.37.2, so it is not used; did you mean parallelism?"
    )


def test_a_constraint_that_is_not_known_is_refused():
    """X14: a lost constraint is worse than an error; one that is only covered by its namespace runs pod by pod."""
    later = job(2, placementPolicy={"rack": "one"})
    found = compiled(later)
    assert (found.outcome, found.groups) == ("refused", ())
    assert found.refusal.reason == "UnknownConstraint"
    assert found.refusal.message.startswith(
        "Job/team/fit: spec.placementPolicy: a tree without it might be placed where it must not"
    )
    assert "there is no such field in Kubernetes v1.37.2" in found.refusal.message
    assert compiled(later, requested=False).outcome == "basic"


def test_two_priorities_in_one_leaf_are_refused_also_for_a_namespace():
    found = lws(workerTemplate=template("high"), leaderTemplate=template("low"))
    result = compiled(found, use("serve-0-a"), requested=False)
    assert (result.outcome, result.refusal.reason) == ("refused", "PrioritiesDiffer")


def test_two_priorities_in_two_trees_are_basic_leaves_of_their_own_for_a_namespace():
    jobs = [replicated(name, spec={"template": template(name)}) for name in ("high", "low")]
    result = compiled(jobset(*jobs), requested=False)
    assert drawn(result) == ["train-high-6f2f0f4a: basic, high", "train-low-6f2f0f4a: basic, low"]


def test_names_that_are_too_long_to_differ_are_refused():
    """Edge case 7."""
    long = "r" * 62
    result = compiled(jobset(replicated(f"a{long}"), replicated(f"b{long}")))
    assert (result.outcome, result.refusal.reason) == ("refused", "NamesCollide")
    text = f"a{long} and b{long} would both be PodGroup x"
    assert text in result.refusal.message
    assert result.refusal.message.endswith(
        "another name, a shorter one: of long names only the end is kept"
    )


def test_a_role_with_the_name_of_a_slice_of_another_one_is_named():
    spec = {"template": sliced(required_topology="net/rack", size="4")}
    roles = (replicated(role, replicas=4, parallelism=2, spec=spec) for role in ("a", "a-slice-0"))
    refusal = placed_as_kueue(jobset(*roles)).refusal
    assert (refusal.reason, refusal.message) == (
        "NamesCollide",
        "JobSet/team/train: spec: a group of a and a-slice-0 would both be CompositePodGroup train-a-slice-0-6f2f0f4a; "
        "give one of the two another name",
    )


def test_a_name_that_no_object_can_have_is_refused():
    result = compiled(workload("Job", "fit", {}, uid=""))
    assert result.refusal.reason == "InvalidName"
    assert "a PodGroup cannot have the name 'fit-'" in result.refusal.message


def test_more_than_512_replicated_jobs_are_refused():
    """Edge case 7."""
    result = compiled(jobset(*(replicated(f"r{index}") for index in range(513))))
    assert (result.outcome, result.refusal.reason) == ("refused", "TooManyGroups")
    assert (
        "train-6f2f0f4a would have 513 groups, at most 512 are allowed; make several JobSets"
        in (result.refusal.message)
    )


# --- minima of running groups


@pytest.mark.parametrize(
    ("old", "pods", "expected"),
    [(2, 2, 2), (2, 3, 2), (2, 4, 4), (4, 0, 4), (6, 0, 4), (None, 0, 4)],
)
def test_a_minimum_is_raised_when_its_pods_are_there_and_lowered_at_once(old, pods, expected):
    there = (
        ()
        if old is None
        else (ExistingGroup(kind="PodGroup", name="fit-6f2f0f4a", basic=False, minimum=old),)
    )
    uses = [use("fit-6f2f0f4a", pods)] if pods else []
    assert compiled(job(4), *uses, existing=there).groups[0].minimum == expected


def test_a_basic_group_has_no_minimum_to_keep():
    there = (ExistingGroup(kind="PodGroup", name="fit-6f2f0f4a", basic=True, minimum=1),)
    assert compiled(job(4), existing=there).groups[0].minimum == 4


def test_the_minimum_of_a_composite_is_raised_when_its_children_are_there():
    result = compiled(jobset(replicated("w", 2, 2)))
    assert result.groups[0].kind == "CompositePodGroup"
    lower = tuple(msgspec.structs.replace(one, minimum=1) for one in existing(result))
    assert [
        one.minimum for one in compiled(jobset(replicated("w", 2, 2)), existing=lower).groups
    ] == [2, 1, 1]


def test_every_kind_with_parts_is_tried():
    assert set(COMPILED) == {kind for kind, one in BY_KIND.items() if one.parts is not None}


@examples(400)
@given(requests())
def test_whatever_a_composite_requires_is_a_child_that_counts(request_):
    """L27: names of children, each once, at most as many as are counted; a Basic one requires nothing."""
    groups = compile_tree(BY_KIND[request_.workload.kind], request_).groups
    for group in groups:
        children = {one.name for one in groups if one.parent == group.name}
        assert set(group.required) <= children
        assert len(set(group.required)) == len(group.required) <= group.minimum
        assert not (group.basic and group.required)


# --- preferred keys


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leaf=~net/rack", {"train": ("", ())} | dict.fromkeys(("train-a-0", "train-b-0"), ("", ("net/rack",)))),
        ("root=net/zone~net/block,leaf=net/block~net/rack",
         {"train": ("net/zone", ("net/block",))} | dict.fromkeys(("train-a-0", "train-b-0"), ("net/block", ("net/rack",)))),
    ],
)  # fmt: skip
def test_root_and_leaves_have_the_preferred_keys_of_their_level(text, expected):
    """A leaf of one pod is in one domain anyway."""
    workload_object = jobset(
        replicated("a", parallelism=2),
        replicated("b", parallelism=2),
        replicated("c"),
        annotations={"gang-extender.dev/topology": text},
    )
    groups = {name_of(group): group for group in compiled(workload_object).groups}
    assert {n: (g.topology, g.preferred) for n, g in groups.items() if n in expected} == expected
    assert {g.preferred for n, g in groups.items() if n not in expected} == {()}


RACK_OF_2 = SliceLevel("net/rack", 2)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"slices": "2@net/rack"}, (False, (RACK_OF_2,))),
        ({"slices": "4@net/block > 2@net/rack"}, (False, (SliceLevel("net/block", 4), RACK_OF_2))),
        ({"topology": "leaf=~net/rack~net/block:Balanced"}, (True, ())),
        ({"topology": "root=~net/rack:Balanced,leaf=~net/block"}, (False, ())),
    ],
)
def test_leaves_with_more_than_one_pod_have_slices_and_balance(annotations, expected):
    workload_object = jobset(
        replicated("a", parallelism=4),
        replicated("b"),
        annotations={f"gang-extender.dev/{key}": text for key, text in annotations.items()},
    )
    groups = {name_of(group): group for group in compiled(workload_object).groups}
    assert (groups["train-a-0"].balanced, groups["train-a-0"].slices) == expected
    assert not any(group.slices for name, group in groups.items() if name != "train-a-0")
    assert groups["train"].balanced == ("root=" in annotations.get("topology", ""))


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"slices": "net/rack"}, "'net/rack' is not SIZE@KEY; examples are 4@net/rack"),
        ({"slices": "x@net/rack"}, "'x@net/rack' is not SIZE@KEY"),
        ({"slices": "4@a rack"}, "'a rack' is not the key of a node label"),
        ({"slices": "0@net/rack"}, "the size of net/rack is 0; write a number of at least 1"),
        ({"slices": "4@net/rack>4@net/block"}, "4 of net/rack is no larger multiple of 4 of net/block"),
        ({"slices": "2@net/rack>4@net/block"}, "'2@net/rack>4@net/block' has a smaller size before a larger one; write 4@net/block>2@net/rack"),
        ({"slices": "4@net/rack>2@net/rack"}, "net/rack, net/rack: a key is there twice"),
        ({"slices": "8@a>4@b>2@c>1@d"}, "4 levels, at most 3 are possible"),
        ({"topology": "leaf=~net/rack:Even"}, "'Even' behind the colon is not Balanced; an example"),
        ({"topology": "leaf=net/rack:Balanced"}, "has no preferred keys, whose domains could be balanced; an example"),
        ({"workload": "w", "slices": "2@net/rack"}, "cannot be combined with gang-extender.dev/workload"),
    ],
)  # fmt: skip
def test_slices_and_balance_that_cannot_be_are_refused(annotations, words):
    given = {f"gang-extender.dev/{key}": text for key, text in annotations.items()}
    result = compiled(job(8, annotations=given))
    assert (result.outcome, result.refusal.reason) == ("refused", "InvalidAnnotation")
    assert words in result.refusal.message


def test_groups_with_a_required_topology_have_the_choice_for_lost_members():
    workload_object = jobset(
        replicated("a", parallelism=2),
        replicated("b"),
        annotations={
            "gang-extender.dev/topology": "leaf=net/rack",
            "gang-extender.dev/lost-members": "Widen",
        },
    )
    result = compiled(workload_object)
    groups = {name_of(group): group.lost_members for group in result.groups}
    assert groups == {"train": "Wait", "train-a-0": "Widen", "train-b": "Wait"}
    assert result.notices == ()


def test_a_choice_for_lost_members_of_no_required_topology_is_a_notice():
    """Not that of a profile, which is for other workloads too."""
    annotations = {f"gang-extender.dev/{k}": v for k, v in {"topology": "leaf=~net/rack", "lost-members": "GiveUp"}.items()}  # fmt: skip
    ((reason, message),) = [
        (notice.reason, notice.message)
        for notice in compiled(job(2, annotations=annotations)).notices
    ]
    assert reason == "LostMembersNotUsed"
    field = "metadata.annotations[gang-extender.dev/lost-members]"
    assert message.startswith(
        f"Job/team/fit: {field}: GiveUp asks for nothing: no group that this service makes has a"
    )
    profile = TreeProfile(name="p", kinds={"Job": KindPolicy(lost_members="GiveUp")})
    assert compiled(job(2), profile=profile).notices == ()


@pytest.mark.parametrize(
    ("annotation", "value", "ours"),
    [
        ("kai.scheduler/topology-preferred-placement", "net/rack", "root=~KEY"),
        ("kai.scheduler/topology-required-placement", "net/rack", "root=KEY"),
        ("volcano.sh/network-topology-mode", "soft", "root=~KEY (soft) or root=KEY (hard)"),
    ],
)
def test_a_topology_for_another_scheduler_is_a_notice(annotation, value, ours):
    """With what is the same here; nothing is noted beside ours."""
    annotations = {annotation: value}
    (notice,) = compiled(job(2, annotations=annotations)).notices
    assert notice.message == (
        f"Job/team/fit: metadata.annotations[{annotation}]: '{value}' is for another scheduler and is not read; "
        f"the same is gang-extender.dev/topology: {ours} with the key of a node label"
    )
    annotations["gang-extender.dev/topology"] = "leaf=net/rack"
    assert compiled(job(2, annotations=annotations)).notices == ()


def test_leaves_with_more_than_one_pod_have_a_domain_alone():
    """The launcher of one pod does not take a rack."""
    workload_object = jobset(
        replicated("a", parallelism=2),
        replicated("b"),
        annotations={"gang-extender.dev/exclusive": "leaf=net/rack:Namespace"},
    )
    groups = {name_of(group): group.exclusive for group in compiled(workload_object).groups}
    domain = ExclusiveDomain("net/rack", "Namespace")
    assert groups == {"train": None, "train-a-0": domain, "train-b": None}


PREFILL = replicated("prefill", 2, parallelism=2)
DECODE = replicated("decode", parallelism=2)


def near(result):
    """Return the groups that each group shall be near to, without the piece of a UID at the ends of names."""
    return {
        name_of(group): [(wish.group.rpartition("-")[0], wish.key) for wish in group.near]
        for group in result.groups
        if group.near
    }


def test_a_role_is_near_the_groups_of_another_role():
    """Two Jobs of one ReplicatedJob are one composite, and that has the wish."""
    text = "prefill=decode~net/rack~net/block"
    result = compiled(jobset(PREFILL, DECODE, annotations={"gang-extender.dev/near": text}))
    keys = [("train-decode-0", "net/rack"), ("train-decode-0", "net/block")]
    assert near(result) == {"train-prefill": keys}
    assert result.notices == ()


def test_each_replica_has_its_roles_near_each_other():
    """The partner is the one of the same replica, and not one of each."""
    uses = [use(f"serve-{n}-a-{part}") for n in range(2) for part in ("leader", "worker")]
    text = {"gang-extender.dev/near": "worker=leader~net/rack", "gang-extender.dev/gang": "all"}
    result = compiled(lws(startup="LeaderReady", annotations=text), *uses)
    wishes = {group.name: [wish.group for wish in group.near] for group in result.groups}
    assert {name: partners for name, partners in wishes.items() if partners} == {
        f"serve-{n}-a-worker": [f"serve-{n}-a-leader"] for n in range(2)
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prefil=decode~k", "no role 'prefil'; there are prefill, decode; did you mean prefill?"),
        ("prefill=router~k", "no role 'router'; there are prefill, decode"),
    ],
)
def test_a_wish_to_be_near_a_role_that_is_not_there_is_a_notice(text, expected):
    """It refuses nothing; once the tree exists a role may have ended."""
    jobs = jobset(PREFILL, DECODE, annotations={"gang-extender.dev/near": text})
    result = compiled(jobs)
    assert (result.outcome, near(result)) == ("compiled", {})
    ((reason, message),) = [(notice.reason, notice.message) for notice in result.notices]
    assert reason == "NearNotUsed"
    field = "metadata.annotations[gang-extender.dev/near]"
    assert message == f"JobSet/team/train: {field}: {text} asks for nothing: {expected}"
    assert compiled(jobs, existing=existing(result)).notices == ()
    profile = TreeProfile(name="p", kinds={"JobSet": KindPolicy(near=(NearRole("a", "b", "k"),))})
    assert compiled(jobset(PREFILL, DECODE), profile=profile).notices == ()


def name_of(group):
    """Return the name of a group without the piece of a UID at its end."""
    return group.name.rpartition("-")[0]


def test_a_leaf_that_is_the_root_has_the_keys_of_both_levels():
    """Narrowest first: those of leaves, then those of roots, at most four."""
    profile = KindPolicy(
        root_preferred=("net/block", "net/row", "net/zone"),
        leaf_preferred=("net/rack", "net/block"),
    )
    (group,) = compiled(job(4), profile=TreeProfile(name="p", kinds={"Job": profile})).groups
    assert group.preferred == ("net/rack", "net/block", "net/row", "net/zone")


# --- topology that Kueue reads

KUEUE = KindPolicy(read_topology=("Kueue",), levels=("net/rack", "net/block", "net/zone"))


def podset(**keys):
    """Return a pod template with annotations of Kueue: `required`, `preferred`."""
    names = {key.replace("_", "-"): value for key, value in keys.items()}
    annotations = {f"kueue.x-k8s.io/podset-{key}-topology": value for key, value in names.items()}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": []}}


def sliced(**annotations):
    """Return a pod template with annotations of Kueue about slices: `size`, `required_topology`, `required_topology_constraints`."""
    names = {
        f"kueue.x-k8s.io/podset-slice-{key.replace('_', '-')}": value
        for key, value in annotations.items()
    }
    return {"metadata": {"annotations": names}, "spec": {"containers": []}}


def placed_as_kueue(found, *uses):
    return compiled(found, *uses, profile=TreeProfile(name="p", kinds={found.kind: KUEUE}))


def test_a_pod_set_has_the_topology_of_its_template():
    """Where the profile reads it; the key that is preferred, then the wider ones of the profile."""
    found = job(4, template=podset(preferred="net/block"))
    assert [group.preferred for group in placed_as_kueue(found).groups] == [
        ("net/block", "net/zone")
    ]
    assert [group.preferred for group in compiled(found).groups] == [()]
    (group,) = placed_as_kueue(job(4, template=podset(required="net/block"))).groups
    assert (group.topology, group.preferred) == ("net/block", ())
    ours = {"gang-extender.dev/topology": "leaf=net/row"}
    (group,) = placed_as_kueue(
        job(4, template=podset(required="net/block"), annotations=ours)
    ).groups
    assert group.topology == "net/row"


def test_a_pod_set_of_several_groups_is_the_composite_above_them():
    """A ReplicatedJob is one pod set, whatever number of Jobs it has."""
    spec = {"template": podset(required="net/block")}
    alone = jobset(replicated("a", replicas=2, parallelism=2, spec=spec))
    groups = placed_as_kueue(alone).groups
    assert [(group.kind, group.topology) for group in groups] == [
        ("CompositePodGroup", "net/block"),
        ("PodGroup", ""),
        ("PodGroup", ""),
    ]
    beside = jobset(replicated("a", parallelism=2, spec=spec), replicated("b", parallelism=2))
    assert [group.topology for group in placed_as_kueue(beside).groups] == ["", "net/block", ""]
    several = jobset(replicated("a", replicas=2, parallelism=2, spec=spec), replicated("b"))
    assert [group.topology for group in placed_as_kueue(several).groups] == [
        "",
        "net/block",
        "",
        "",
        "",
    ]
    replicas = lws(workerTemplate=podset(preferred="net/rack"), size=4)
    trees = placed_as_kueue(replicas, use("serve-0-a", 4), use("serve-1-a", 4)).groups
    assert [group.preferred for group in trees] == [("net/rack", "net/block", "net/zone")] * 2


def test_the_slices_of_a_pod_set_are_those_of_its_leaves():
    """Of one level or several; a Job of a JobSet is one where no size is given."""
    rack = sliced(required_topology="net/rack", size="2")
    levels = '[{"topology": "net/block", "size": "4"}, {"topology": "net/rack", "size": "2"}]'
    several = sliced(required_topology_constraints=levels)
    default = {"template": sliced(required_topology="net/rack")}
    two_jobs = jobset(replicated("a", replicas=2, parallelism=4, spec=default))
    assert [g.slices for g in placed_as_kueue(job(5, template=rack)).groups] == [(RACK_OF_2,)]
    assert [g.slices for g in placed_as_kueue(job(8, template=several)).groups] == [
        (SliceLevel("net/block", 4), RACK_OF_2)
    ]
    assert [g.slices for g in placed_as_kueue(two_jobs).groups] == [
        (),
        (SliceLevel("net/rack", 4),),
        (SliceLevel("net/rack", 4),),
    ]
    ours = {"gang-extender.dev/slices": "4@net/block"}
    (group,) = placed_as_kueue(job(8, template=rack, annotations=ours)).groups
    assert group.slices == (SliceLevel("net/block", 4),)


def test_topology_and_slices_of_ours_take_precedence_each_by_itself():
    """Also those of a TrainJob: one of the two does not drop what Kueue's annotations have of the other."""
    both = podset(required="net/block")
    both["metadata"]["annotations"] |= sliced(required_topology="net/rack", size="2")["metadata"]["annotations"]  # fmt: skip
    for key, value, topology, slices in (
        ("topology", "leaf=net/row", "net/row", (RACK_OF_2,)),
        ("slices", "4@net/row", "net/block", (SliceLevel("net/row", 4),)),
    ):
        annotations = {f"gang-extender.dev/{key}": value}
        (group,) = placed_as_kueue(job(8, template=both, annotations=annotations)).groups
        assert (group.topology, group.slices) == (topology, slices)
        made = jobset(replicated("node", parallelism=8, spec={"template": both}))
        owner = workload("TrainJob", "tune", {}, annotations=annotations)
        profile = TreeProfile(name="p", kinds={"TrainJob": KUEUE})
        (group,) = compiled(made, owner=owner, profile=profile).groups
        assert (group.topology, group.slices) == (topology, slices)


def test_a_slice_of_several_jobs_is_a_group_of_them():
    """By the index of the Jobs, in one domain each; a Job that has ended leaves the others in their slices."""
    spec = {"template": sliced(required_topology="net/rack", size="4")}
    workers = jobset(replicated("a", replicas=5, parallelism=2, spec=spec))

    def tree(*uses):
        groups = placed_as_kueue(workers, *uses).groups
        return [(g.name.removesuffix("-6f2f0f4a"), g.parent.removesuffix("-6f2f0f4a"), g.minimum, g.topology) for g in groups]  # fmt: skip

    slices = [
        ("train-a", "", 3, ""),
        ("train-a-slice-0", "train-a", 2, "net/rack"),
        ("train-a-0", "train-a-slice-0", 2, ""),
        ("train-a-1", "train-a-slice-0", 2, ""),
        ("train-a-slice-1", "train-a", 2, "net/rack"),
        ("train-a-2", "train-a-slice-1", 2, ""),
        ("train-a-3", "train-a-slice-1", 2, ""),
        ("train-a-slice-2", "train-a", 1, "net/rack"),
        ("train-a-4", "train-a-slice-2", 2, ""),
    ]
    assert tree() == slices
    ended = [row for row in slices if row[0] != "train-a-1"]
    ended[1] = ("train-a-slice-0", "train-a", 1, "net/rack")
    assert tree(LeafUse(name="train-a-1-6f2f0f4a", finished=2)) == ended


def test_slices_of_two_roles_have_names_of_their_own_however_long_that_of_the_workload_is():
    spec = {"template": sliced(required_topology="net/rack", size="4")}
    roles = (replicated(f"worker-{x}", replicas=4, parallelism=2, spec=spec) for x in "ab")
    names = [group.name for group in placed_as_kueue(jobset(*roles, name="t" * 44)).groups]
    slices = [name for name in names if "-slice-" in name]
    assert len(slices) == len(set(slices)) == 4
    assert slices[0].endswith("t-worker-a-slice-0-6f2f0f4a")


def test_slices_of_several_sizes_are_groups_of_jobs_and_pieces_of_them():
    levels = '[{"topology": "net/zone", "size": "16"}, {"topology": "net/block", "size": "8"}, {"topology": "net/rack", "size": "2"}]'
    spec = {"template": sliced(required_topology_constraints=levels)}
    groups = placed_as_kueue(jobset(replicated("a", replicas=4, parallelism=4, spec=spec))).groups
    assert [(g.name.removeprefix("train-a").removesuffix("-6f2f0f4a"), g.topology, g.slices) for g in groups] == [
        ("", "", ()),
        ("-slice-0", "net/zone", ()),
        ("-slice-0-0", "net/block", ()),
        ("-0", "", (RACK_OF_2,)),
        ("-1", "", (RACK_OF_2,)),
        ("-slice-0-1", "net/block", ()),
        ("-2", "", (RACK_OF_2,)),
        ("-3", "", (RACK_OF_2,)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("minimum", "gang", "minima"),
    [("", "all", [2, 2, 2]), ("a=1", "all", [1, 2, 2]), ("", "per-job", [0, 0, 0]), ("a=1", "per-job", [1, 2, 2])],
)  # fmt: skip
def test_the_minimum_of_slices_of_jobs_counts_slices(minimum, gang, minima):
    """A slice is needed with all its Jobs; 0: each for itself."""
    spec = {"template": sliced(required_topology="net/rack", size="4")}
    asked = {"gang": gang, "min": minimum} if minimum else {"gang": gang}
    annotations = {f"gang-extender.dev/{key}": value for key, value in asked.items()}
    workers = jobset(replicated("a", replicas=4, parallelism=2, spec=spec), annotations=annotations)
    groups = [g for g in placed_as_kueue(workers).groups if g.kind == "CompositePodGroup"]
    assert [0 if group.basic else group.minimum for group in groups] == minima


def test_a_minimum_of_jobs_holds_when_some_have_ended():
    """It follows those that are left downwards."""
    workers = jobset(
        replicated("a", replicas=4, parallelism=2), annotations={"gang-extender.dev/min": "a=3"}
    )
    ended = [LeafUse(name=f"train-a-{number}-6f2f0f4a", finished=2) for number in (1, 2)]
    for uses, minimum in (((), 3), (ended[:1], 3), (ended, 2)):
        assert compiled(workers, *uses).groups[0].minimum == minimum


def test_jobs_in_one_group_have_slices_of_any_size():
    """By the ranks of their pods; without a size each Job is one."""
    template = sliced(required_topology="net/rack")
    single = jobset(replicated("a", replicas=6, parallelism=1, spec={"template": template}))
    (group,) = placed_as_kueue(single).groups
    assert group.slices == (SliceLevel("net/rack", 1),)
    template = sliced(required_topology="net/rack", size="3")
    spec = {"template": template}
    several = jobset(replicated("a", replicas=3, parallelism=2, leaf="replicated-job", spec=spec))
    result = placed_as_kueue(several)
    assert [group.slices for group in result.groups] == [(SliceLevel("net/rack", 3),)]
    assert result.notices == ()  # that are true of more than 512 Jobs


def test_slices_of_jobs_below_a_step_are_too_deep():
    """With what helps: the same in one group."""
    spec = {"template": sliced(required_topology="net/rack", size="4")}
    after = [{"name": "i", "status": "Complete"}]

    def train(leaf):
        workers = replicated("a", replicas=4, parallelism=2, leaf=leaf, spec=spec, dependsOn=after)
        beside = replicated("b", dependsOn=after)
        return placed_as_kueue(jobset(replicated("i"), workers, beside))

    assert train(None).refusal.reason == "TooDeep"
    assert "the label gang-extender.dev/leaf: replicated-job" in train(None).refusal.message
    assert [g.slices for g in train("replicated-job").groups if g.slices] == [(SliceLevel("net/rack", 4),)]  # fmt: skip


def test_a_slice_has_no_pods_of_two_groups_that_are_no_jobs():
    uses = [use(f"serve-0-a-s{at}", 2) for at in range(2)]
    worker = sliced(required_topology="net/rack", size="4")
    serve = lws(size=4, workerTemplate=worker, subGroupPolicy={"subGroupSize": 2})
    result = placed_as_kueue(serve, *uses)
    assert (
        "a slice of 4 pods by net/rack would have pods of several groups of 2; write a size of which 2 is a multiple, "
        "or leave Kueue out of topology.readFrom of the TreeProfile" in result.refusal.message
    )


def test_a_pod_set_without_replicas_has_no_slices():
    group = {"groupName": "w", "replicas": 0, "minReplicas": 0, "numOfHosts": 2}
    group["template"] = sliced(required_topology="net/rack", size="2")
    spec = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [group]}
    assert placed_as_kueue(workload("RayCluster", "a", spec)).outcome == "compiled"


def test_a_balanced_pod_set_has_shares_of_the_level_below_the_one_that_it_prefers():
    """As Kueue balances; other projects' keys included."""
    profile = TreeProfile(name="p", kinds={"Job": msgspec.structs.replace(KUEUE, balanced=True)})
    wish = job(4, template=podset(preferred="net/block"))
    (group,) = compiled(wish, profile=profile).groups
    assert (group.preferred, group.balanced) == (("net/rack", "net/block", "net/zone"), True)
    (group,) = compiled(job(4), profile=profile).groups
    assert not group.balanced


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (job(2, template=podset(required="a rack")), "podset-required-topology]: 'a rack' is not the key of a node label"),
        (job(4, template=sliced(required_topology="net/rack")), "'' of kueue.x-k8s.io/podset-slice-size is not a number of at least 1"),
        (job(4, template=sliced(required_topology="net/rack", size="two")), "'two' of kueue.x-k8s.io/podset-slice-size is not a number"),
        (job(4, template=sliced(required_topology="a rack", size="2")), "'a rack' is not the key of a node label"),
        (job(4, template=sliced(size="2")), "'2' of kueue.x-k8s.io/podset-slice-size is there without kueue.x-k8s.io/podset-slice-required-topology"),
        (job(4, template=sliced(size="2", required_topology_constraints="[]")), "is there beside the annotations for one level"),
        (job(4, template=sliced(required_topology_constraints="[4]")), "cannot be read; an example is [{"),
        (job(4, template=sliced(required_topology_constraints='[{"topology": "a", "size": "4"}, {"topology": "b", "size": "3"}]')),
         "4 of a is no larger multiple of 3 of b; write a multiple, such as 6"),
        (jobset(replicated("a", replicas=2, parallelism=2, spec={"template": sliced(required_topology="net/rack", size="3")})),
         "a slice of 3 pods by net/rack would have pods of several Jobs of 2; write a size of which 2 is a multiple, or a multiple of 2, "
         "or write the label gang-extender.dev/leaf: replicated-job into the pod template"),
        (jobset(replicated("a", replicas=4, parallelism=2, spec={"template": sliced(required_topology="net/rack", size="4")}),
                annotations={"gang-extender.dev/min": "a=3"}),
         "gang-extender.dev/min]: a=3 is more than the 2 groups that a has"),
    ],
)  # fmt: skip
def test_a_pod_set_that_cannot_have_its_topology_is_refused(found, words):
    """A constraint is never dropped in silence."""
    result = placed_as_kueue(found)
    assert (result.outcome, result.refusal.reason) == ("refused", "InvalidAnnotation")
    assert words in result.refusal.message

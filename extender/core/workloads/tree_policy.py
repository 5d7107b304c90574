"""What operators (TreeProfile) and users (annotations) ask of the tree of a workload.

A profile has for each kind of workload how its tree is made; the annotations of a workload refine it. Both are read
here, with an error that names the object, the field and the value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from extender.core.model.nodes import (
    NEAR_MAX,
    PREFERRED_MAX,
    ExclusiveDomain,
    ExclusiveScope,
    LostMembers,
    SchedulingConstraints,
    SliceLevel,
    by_size,
    slices_problem,
)
from extender.core.workloads.workload_object import (
    EXCLUSIVE_ANNOTATION,
    GANG_ANNOTATION,
    LOST_MEMBERS_ANNOTATION,
    MIN_ANNOTATION,
    NEAR_ANNOTATION,
    PARENT_ANNOTATION,
    SLICES_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    TREE_ANNOTATIONS,
    WORKLOAD_ANNOTATION,
    WorkloadObject,
)

GangMode = Literal["all", "per-replicated-job", "per-job"]
Disruption = Literal["single", "all"]
NativeGroups = Literal["Ignore", "Adopt"]
TopologySource = Literal["Kueue"]  # whose annotations of pod templates are read
ZONE = "topology.kubernetes.io/zone"  # an example of the key of a node label
LEVELS_MAX = 16
BALANCED = "Balanced"  # in annotations, behind preferred keys
NEAR_ENTRIES_MAX = 16  # of a kind in a TreeProfile

LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NAME_MAX = 253  # of an object
KEY_PREFIX_MAX = 253  # of LABEL_KEY, before its slash
_COUNT_MAX = 2**31 - 1


class TreeRefusal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why no tree is made from a workload; `message` names field and values and what would help."""

    reason: str  # CamelCase, the reason of the Event
    field: str
    message: str


class InvalidPolicy(Exception):
    """An annotation or a profile that cannot be read."""

    def __init__(self, refusal: TreeRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class NearRole(msgspec.Struct, frozen=True, gc=False):
    """A wish: as few pairs of pods as possible, one of each role, in different domains of a key."""

    role: str  # has the wish
    to: str  # another role beside it in the same tree
    key: str


class KindPolicy(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What a profile sets for one kind of workload."""

    enabled: bool = True
    gang: GangMode = "all"
    root_topology: str = ""  # node label of the domain of the whole tree; empty: anywhere
    leaf_topology: str = ""  # node label of the domain of each leaf with more than one pod
    # node labels, narrowest first: the domain that the tree, or such a leaf, should have
    root_preferred: tuple[str, ...] = ()
    leaf_preferred: tuple[str, ...] = ()
    balanced: bool = False  # over preferred ones, also those that others name
    slices: tuple[SliceLevel, ...] = ()  # of each such leaf, the largest first
    # the domain that the tree, or such a leaf, has alone
    root_exclusive: ExclusiveDomain | None = None
    leaf_exclusive: ExclusiveDomain | None = None
    near: tuple[NearRole, ...] = ()  # those whose roles a workload has count for it
    lost_members: LostMembers = "Wait"  # of groups with a required topology
    # node labels, narrowest first: the key that another project prefers is followed by those after it
    levels: tuple[str, ...] = ()
    read_topology: tuple[TopologySource, ...] = ()
    disruption_mode: Disruption = "all"  # of gangs
    # what becomes of the groups that the controller of a workload with a scheduling block makes
    native_groups: NativeGroups = "Ignore"

    @property
    def root(self) -> SchedulingConstraints:
        """Return what is asked of the whole tree."""
        return SchedulingConstraints(
            topology=(self.root_topology,) if self.root_topology else (),
            preferred=self.root_preferred,
            balanced=self.balanced,
            exclusive=self.root_exclusive,
            lost_members=self.lost_members,
        )

    @property
    def leaf(self) -> SchedulingConstraints:
        """Return what is asked of each leaf with more than one pod."""
        return SchedulingConstraints(
            topology=(self.leaf_topology,) if self.leaf_topology else (),
            preferred=self.leaf_preferred,
            balanced=self.balanced,
            slices=self.slices,
            exclusive=self.leaf_exclusive,
            lost_members=self.lost_members,
        )


class TreeProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A profile that operators write and users name."""

    name: str
    kinds: Mapping[str, KindPolicy] = {}  # a kind that is not there has the defaults

    def of(self, kind: str) -> KindPolicy:
        """Return the policy of a kind."""
        return self.kinds.get(kind, KindPolicy())


DEFAULT_PROFILE = TreeProfile(name="default")


def profile_of_name(name: str, profiles: Mapping[str, TreeProfile]) -> TreeProfile | None:
    """Return a profile, or None if it does not exist; `default` always does."""
    built_in = DEFAULT_PROFILE if name == DEFAULT_PROFILE.name else None
    return profiles.get(name, built_in)


def missing_profile(name: str) -> str:
    """Return that a profile does not exist, with what would help."""
    return f"no TreeProfile {name!r}; create it, or use the label value default"


class TreePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of one tree: the profile with the annotations of the workload over it."""

    gang: GangMode
    root: SchedulingConstraints  # of the whole tree
    leaf: SchedulingConstraints  # of each leaf with more than one pod
    near: tuple[NearRole, ...]
    levels: tuple[str, ...]
    disruption_mode: Disruption
    minima: Mapping[str, int]  # by role; "" is the only role of the workload
    workload: str  # name of a Workload of the user's; empty: none
    parent: str  # name of a CompositePodGroup of the user's; empty: none


def read_policy(workload: WorkloadObject, kind: KindPolicy) -> TreePolicy:
    """Return the policy of a workload.

    Args:
        workload: Whose annotations count.

    Raises:
        InvalidPolicy: An annotation cannot be read.
    """
    _only_templates(workload)
    of: dict[str, SchedulingConstraints] = {"root": kind.root, "leaf": kind.leaf}
    topology = _pairs(workload, TOPOLOGY_ANNOTATION, tuple(of))
    for level, base in of.items():
        if level in topology:
            of[level] = _levels(workload, level, topology[level], base)
    for level, text in _pairs(workload, EXCLUSIVE_ANNOTATION, tuple(of)).items():
        exclusive = _exclusive(workload, level, text)
        of[level] = replace(of[level], exclusive=exclusive)
    gang = workload.annotations.get(GANG_ANNOTATION, kind.gang)
    if gang not in get_args(GangMode):
        text = f"{gang!r} is none of {', '.join(get_args(GangMode))}"
        raise invalid_annotation(workload, GANG_ANNOTATION, text)
    lost_members = workload.annotations.get(LOST_MEMBERS_ANNOTATION, kind.lost_members)
    if lost_members not in get_args(LostMembers):
        text = f"{lost_members!r} is none of {', '.join(get_args(LostMembers))}"
        raise invalid_annotation(workload, LOST_MEMBERS_ANNOTATION, text)
    return TreePolicy(
        gang=gang,  # type: ignore[arg-type]
        root=replace(of["root"], lost_members=lost_members),
        leaf=replace(of["leaf"], lost_members=lost_members, slices=_slices(workload, kind)),
        near=_near(workload) or kind.near,
        levels=kind.levels,
        disruption_mode=kind.disruption_mode,
        minima=_minima(workload),
        workload=_object_name(workload, WORKLOAD_ANNOTATION),
        parent=_object_name(workload, PARENT_ANNOTATION),
    )


def _levels(
    workload: WorkloadObject, level: str, text: str, base: SchedulingConstraints
) -> SchedulingConstraints:
    """Return `base` with another required key, or none, other preferred ones, and whether they are balanced.

    Of `net/zone~net/rack~net/block`, or with `:Balanced` at its end.
    """
    keys, colon, word = (part.strip() for part in text.partition(":"))
    required, *preferred = (part.strip() for part in keys.split("~"))
    problem = ""
    for key in (required, *preferred) if required else preferred:
        if not is_label_key(key):
            problem = not_a_key(key, ZONE)
    if len(preferred) > PREFERRED_MAX:
        problem = f"{text!r} has {len(preferred)} preferred keys, at most {PREFERRED_MAX} are possible; leave out the widest"
    elif len({*preferred}) < len(preferred):
        problem = f"{text!r} has a preferred key twice; name each once, the narrowest first"
    elif colon and word != BALANCED:
        problem = f"{word!r} behind the colon is not {BALANCED}"
    elif colon and not preferred:
        problem = f"{text!r} has no preferred keys, whose domains could be balanced"
    if problem:
        hint = f"; an example with preferred keys is {level}=net/zone~net/rack~net/block"
        text = f"{level}={problem}{hint if preferred or colon else ''}"
        raise invalid_annotation(workload, TOPOLOGY_ANNOTATION, text)
    topology = (required,) if required else ()
    return replace(base, topology=topology, preferred=tuple(preferred), balanced=bool(colon))


def _slices(workload: WorkloadObject, kind: KindPolicy) -> tuple[SliceLevel, ...]:
    """Return the slices of leaves, the largest first, of `64@net/block>16@net/rack`."""
    text = workload.annotations.get(SLICES_ANNOTATION)
    if text is None:
        return kind.slices
    levels: list[SliceLevel] = []
    for entry in text.split(">"):
        number, at, key = (part.strip() for part in entry.partition("@"))
        if not at or not number.isascii() or not number.isdigit() or int(number) > _COUNT_MAX:
            problem = f"{entry.strip()!r} is not SIZE@KEY"
        elif not is_label_key(key):
            problem = not_a_key(key)
        else:
            levels.append(SliceLevel(key, int(number)))
            continue
        hint = "; examples are 4@net/rack, and 64@net/block>16@net/rack"
        raise invalid_annotation(workload, SLICES_ANNOTATION, problem + hint)
    problem, ordered = slices_problem(levels), by_size(levels)
    if not problem and tuple(levels) != ordered:
        example = ">".join(f"{level.size}@{level.key}" for level in ordered)
        problem = f"{text!r} has a smaller size before a larger one; write {example}"
    if problem:
        raise invalid_annotation(workload, SLICES_ANNOTATION, problem)
    return ordered


def _exclusive(workload: WorkloadObject, level: str, text: str) -> ExclusiveDomain:
    """Return the key and the scope of `net/rack` or `net/rack:Namespace`."""
    key, colon, scope = (part.strip() for part in text.partition(":"))
    if not is_label_key(key):
        problem = f"{level}={not_a_key(key)}"
    elif colon and scope not in get_args(ExclusiveScope):
        scopes = ", ".join(get_args(ExclusiveScope))
        problem = f"{level}={text!r}: the scope {scope!r} is none of {scopes}; an example is {level}={key}:Cluster"
    else:
        return ExclusiveDomain(key, scope) if colon else ExclusiveDomain(key)  # type: ignore[arg-type]
    raise invalid_annotation(workload, EXCLUSIVE_ANNOTATION, problem)


def _near(workload: WorkloadObject) -> tuple[NearRole, ...]:
    """Return the wishes of `prefill=decode~net/rack~net/block`: keys in the order in which they count."""
    wishes: list[NearRole] = []
    for role, text in _entries(workload, NEAR_ANNOTATION):
        to, *keys = (part.strip() for part in text.split("~"))
        problem = ""
        if not keys or not to:
            problem = f"{text!r} is not ROLE~KEY"
        elif to == role:
            problem = f"{role!r} is itself; name another role of the workload"
        for key in keys:
            if not problem and not is_label_key(key):
                problem = not_a_key(key, "net/block")
        if problem:
            example = f"an example is {_EXAMPLES[NEAR_ANNOTATION]}"
            raise invalid_annotation(workload, NEAR_ANNOTATION, f"{role}={problem}; {example}")
        wishes += [NearRole(role, to, key) for key in keys]
    if problem := near_problem(wishes):
        raise invalid_annotation(workload, NEAR_ANNOTATION, problem)
    return tuple(wishes)


def near_problem(wishes: Sequence[NearRole]) -> str:
    """Return what is wrong with a list of wishes to be near, or an empty string."""
    for role, count in Counter(wish.role for wish in wishes).items():
        if count > NEAR_MAX:
            return f"{role} has {count} wishes to be near, at most {NEAR_MAX} are possible; leave out the last"
    for wish, count in Counter(wishes).items():
        if count > 1:
            return f"{wish.role} is near {wish.to} by {wish.key} twice; name each pair once"
    return ""


def from_level(key: str, levels: tuple[str, ...], *, balanced: bool = False) -> tuple[str, ...]:
    """Return a preferred key of another project as it means it: that level, then the wider ones of `levels`.

    A balanced placement has equal shares of the domains one level below it.
    """
    if key not in levels:
        return (key,)
    at = levels.index(key)
    return levels[max(at - balanced, 0) :][:PREFERRED_MAX]


def is_label_key(text: str) -> bool:
    """Return whether a text is the key of a label."""
    prefix, slash, _ = text.rpartition("/")
    return bool(LABEL_KEY.fullmatch(text)) and (not slash or len(prefix) <= KEY_PREFIX_MAX)


def is_object_name(text: str, most: int = NAME_MAX) -> bool:
    """Return whether a text of at most `most` characters is the name of an object."""
    return len(text) <= most and _SUBDOMAIN.fullmatch(text) is not None


def not_a_key(key: str, example: str = "net/rack") -> str:
    """Return that a value is not the key of a node label."""
    return f"{key!r} is not the key of a node label, such as {example}"


def _only_templates(workload: WorkloadObject) -> None:
    """Raise InvalidPolicy if annotations ask for what the templates of a Workload set already."""
    if WORKLOAD_ANNOTATION not in workload.annotations:
        return
    for other in TREE_ANNOTATIONS:
        if other in workload.annotations:
            text = f"cannot be combined with {WORKLOAD_ANNOTATION}, whose templates set it; remove one of the two"
            raise invalid_annotation(workload, other, text)


def _minima(workload: WorkloadObject) -> Mapping[str, int]:
    text = workload.annotations.get(MIN_ANNOTATION)
    if text is None:
        return {}
    raw = {"": text} if "=" not in text else _pairs(workload, MIN_ANNOTATION, None)
    minima = {}
    for role, given in raw.items():
        number = given.strip()
        if not (number.isascii() and number.isdigit()) or not 1 <= int(number) <= _COUNT_MAX:
            given_to = f"{role}=" if role else ""
            text = f"{given_to}{number!r} is not a number of at least 1, such as 4"
            raise invalid_annotation(workload, MIN_ANNOTATION, text)
        minima[role] = int(number)
    return minima


def _pairs(
    workload: WorkloadObject, annotation: str, allowed: tuple[str, ...] | None
) -> dict[str, str]:
    """Return the entries of a list such as `root=net/block,leaf=net/rack`, each name once."""
    pairs: dict[str, str] = {}
    for key, value in _entries(workload, annotation):
        if allowed is not None and key not in allowed:
            text = f"{key!r} is none of {', '.join(allowed)}"
            raise invalid_annotation(workload, annotation, text)
        if key in pairs:
            raise invalid_annotation(workload, annotation, f"{key!r} is there twice")
        pairs[key] = value
    return pairs


_EXAMPLES = {MIN_ANNOTATION: "prefill=2,decode=1", NEAR_ANNOTATION: "prefill=decode~net/block"}


def _entries(workload: WorkloadObject, annotation: str) -> Iterator[tuple[str, str]]:
    text = workload.annotations.get(annotation, "")
    for entry in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not key or not value:
            example = _EXAMPLES.get(annotation, "root=net/block,leaf=net/rack")
            text = f"{entry!r} is not NAME=VALUE; an example is {example}"
            raise invalid_annotation(workload, annotation, text)
        yield key, value


def _object_name(workload: WorkloadObject, annotation: str) -> str:
    name = workload.annotations.get(annotation, "")
    if name and not is_object_name(name):
        raise invalid_annotation(workload, annotation, f"{name!r} is not the name of an object")
    return name


def invalid_annotation(workload: WorkloadObject, annotation: str, text: str) -> InvalidPolicy:
    """Return the error for an annotation that cannot be read."""
    field = f"metadata.annotations[{annotation}]"
    return InvalidPolicy(refusal_of(workload, "InvalidAnnotation", field, text))


def refusal_of(workload: WorkloadObject, reason: str, field: str, text: str) -> TreeRefusal:
    """Return a refusal whose message names the object and the field."""
    return TreeRefusal(reason=reason, field=field, message=f"{workload}: {field}: {text}")

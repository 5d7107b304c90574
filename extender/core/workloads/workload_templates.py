"""The tree that the templates of a user's Workload describe: one group per template, one leaf template per part.

The names of the leaf templates are those of the parts (the ReplicatedJobs of a JobSet), and no minimum is above what the
part has. The templates count as they are, and not the policy of the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from extender.core.model.message_formatting import counted
from extender.core.model.nodes import (
    ExclusiveDomain,
    LostMembers,
    NearGroup,
    SchedulingConstraints,
    SliceLevel,
    by_size,
    slices_problem,
)
from extender.core.model.pod_groups import DEPTH_MAX
from extender.core.workloads.tree_parts import BASIC, Composite, Given, Leaf, Part
from extender.core.workloads.tree_policy import InvalidPolicy, refusal_of
from extender.core.workloads.workload_kind import listed, number
from extender.core.workloads.workload_object import LEAF_LABEL, WORKLOAD_ANNOTATION, WorkloadObject

Template = Mapping[str, Any]
T = TypeVar("T")
_NOT_READ = ("resourceClaims", "preemptionPolicy")


class TemplateUse(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that names a Workload, and its parts."""

    workload: WorkloadObject
    name: str  # of the Workload, in its annotation
    templates: WorkloadObject | None  # the Workload, if it exists
    parts: Mapping[str, Part | None]  # by name of the leaf template; None: all its work is done
    # parts that start one after the other: which step each is in; empty: all start together
    step_of: Mapping[str, int]
    name_of: Callable[[str], str]  # the name of the composite of a template

    def composites(self) -> Iterable[str]:
        """Return the names of all composite templates."""
        left = [self.templates.spec] if self.templates is not None else []
        while left:
            inner = left.pop().get("compositePodGroupTemplates") or ()
            left += inner
            yield from (str(template.get("name")) for template in inner)

    def refusal(self, text: str, reason: str = "WorkloadDiffers") -> InvalidPolicy:
        """Return the refusal of the workload with this reason."""
        field = f"metadata.annotations[{WORKLOAD_ANNOTATION}]"
        text = f"Workload {self.name}: {text}"
        return InvalidPolicy(refusal_of(self.workload, reason, field, text))


def templated_roots(reading: TemplateUse) -> tuple[Part, ...]:
    """Return the roots that the templates describe.

    Raises:
        InvalidPolicy: The Workload does not exist, or does not fit the parts.
    """
    parts = reading.parts
    if reading.templates is None or reading.templates.name != reading.name:
        text = "does not exist in this namespace yet; create it, or remove the annotation"
        raise reading.refusal(text, "WorkloadMissing")
    spec = reading.templates.spec
    names = sorted(_leaf_names(spec, reading))
    if names != sorted(parts):
        text = f"its pod group templates are {listed(names)}, but the parts are {listed(parts)}; give them the same names"
        raise reading.refusal(text)
    return tuple(_children(spec, reading))


def _leaf_names(template: Template, reading: TemplateUse, level: int = 1) -> Iterable[str]:
    """Yield the names of all leaf templates below.

    Raises:
        InvalidPolicy: There are too many levels.
    """
    if level > DEPTH_MAX:
        text = f"it has more than {DEPTH_MAX} levels of templates; leave some out"
        raise reading.refusal(text, "TooDeep")
    for leaf in template.get("podGroupTemplates") or ():
        yield str(leaf.get("name"))
    for inner in template.get("compositePodGroupTemplates") or ():
        yield from _leaf_names(inner, reading, level + 1)


def _children(template: Template, reading: TemplateUse) -> Iterable[Part]:
    """Yield the parts of the templates directly below one, without those whose work is done."""
    for inner in template.get("compositePodGroupTemplates") or ():
        yield from _composite(inner, reading)
    for leaf in template.get("podGroupTemplates") or ():
        part = reading.parts[leaf["name"]]
        if part is not None:
            yield _leaf(leaf, part, reading)


def _composite(template: Template, reading: TemplateUse) -> Iterable[Part]:
    name = str(template.get("name"))
    children = tuple(_children(template, reading))
    fields = ("podGroupTemplates", "compositePodGroupTemplates")
    total = sum(len(template.get(field) or ()) for field in fields)
    gang = (template.get("schedulingPolicy") or {}).get("gang")
    if gang is not None:
        _check_steps(name, template, reading)
    if not children:
        return
    minimum = _minimum(gang, "minGroupCount", total, f"template {name}", "groups", reading)
    required = tuple(_required(gang or {}, template, reading))
    names = {child.name for child in children}
    yield Composite(
        name=reading.name_of(name),
        role="",
        children=children,
        minimum=min(max(minimum, len(required)), len(children)),
        required=tuple(child_name for child_name in required if child_name in names),
        given=_given(template, reading),
    )


def _required(gang: Mapping[str, Any], template: Template, reading: TemplateUse) -> Iterable[str]:
    """Yield the names of the groups of the templates that a gang cannot do without.

    Raises:
        InvalidPolicy: There is no such template below it.
    """
    inner = [str(child.get("name")) for child in template.get("compositePodGroupTemplates") or ()]
    leaves = [str(child.get("name")) for child in template.get("podGroupTemplates") or ()]
    for name in gang.get("requiredGroups") or ():
        if name in inner:
            yield reading.name_of(name)
        elif name in leaves:
            part = reading.parts[name]
            yield part.name if part is not None else reading.name_of(name)
        else:
            text = (
                f"template {template.get('name')} has {name!r} in requiredGroups, but below it are "
                f"{listed((*inner, *leaves))}; name one of them"
            )
            raise reading.refusal(text)


def _check_steps(name: str, template: Template, reading: TemplateUse) -> None:
    """Raise InvalidPolicy if a gang has parts that its controller makes one after the other."""
    first: dict[int, str] = {}
    for leaf in _leaf_names(template, reading):
        first.setdefault(reading.step_of.get(leaf, 0), leaf)
    if len(first) > 1:
        before, after = list(first.values())[:2]
        text = (
            f"template {name} is a gang of {before} and {after}, but they start one after the other, so it could never "
            "start; make it basic"
        )
        raise reading.refusal(text)


def _leaf(template: Template, part: Part, reading: TemplateUse) -> Leaf:
    name = template["name"]
    if isinstance(part, Composite):
        text = (
            f"template {name} is one group, but {name} has {counted(len(part.children), 'group')}, one per Job; write the label "
            f"{LEAF_LABEL}: replicated-job into its pod template, or leave the annotation out"
        )
        raise reading.refusal(text)
    its_class = template.get("priorityClassName") or ""
    of_pods = (part.template.get("spec") or {}).get("priorityClassName") or ""
    if its_class and its_class != of_pods:
        text = f"template {name} has priorityClassName {its_class!r}, its pods have {of_pods!r}; make them equal"
        raise reading.refusal(text, "PrioritiesDiffer")
    gang = (template.get("schedulingPolicy") or {}).get("gang")
    minimum = _minimum(gang, "minCount", part.most, f"template {name}", "pods", reading)
    return replace(part, minimum=min(minimum, max(1, part.pods)), given=_given(template, reading))


def _minimum(
    gang: Mapping[str, Any] | None,
    field: str,
    most: int,
    subject: str,
    unit: str,
    reading: TemplateUse,
) -> int:
    """Return the minimum of a gang; BASIC where it is none.

    Raises:
        InvalidPolicy: It is more than there can be.
    """
    if gang is None:
        return BASIC
    minimum = number(gang, field, most)
    if minimum > most:
        text = f"{subject} has {field} {minimum}, but there are only {most} {unit}; lower it"
        raise reading.refusal(text)
    return max(1, minimum)


def _converted(place: str, given: object, type_: type[T], fields: str, reading: TemplateUse) -> T:
    """Return a constraint of a template; raise InvalidPolicy if it cannot be read."""
    try:
        return msgspec.convert(given, type_)
    except msgspec.ValidationError as error:
        raise reading.refusal(f"{place} {given}: {error}; write {fields}") from error


def _near(
    template: str, given: Iterable[Mapping[str, Any]], reading: TemplateUse
) -> Iterable[NearGroup]:
    """Yield the groups of the templates that one names; none of a part whose work is done.

    Raises:
        InvalidPolicy: There is no such template, or a key is missing.
    """
    for entry in given:
        partner, key = str(entry.get("group") or ""), str(entry.get("key") or "")
        names = {*reading.composites(), *reading.parts}
        if not key or partner == template or partner not in names:
            text = (
                f"template {template} has schedulingConstraints.near with group {partner!r} and key {key!r}; name another "
                f"template, of {listed(names - {template})}, and the key of a node label"
            )
            raise reading.refusal(text)
        if partner not in reading.parts:
            yield NearGroup(reading.name_of(partner), key)
        elif (part := reading.parts[partner]) is not None:
            yield NearGroup(part.name, key)


def _given(template: Template, reading: TemplateUse) -> Given:
    """Return what a template sets for its group.

    Raises:
        InvalidPolicy: It has a field that is not read, or a constraint that cannot be read.
    """
    name = str(template.get("name"))
    for field in _NOT_READ:
        if template.get(field):
            text = f"template {name} has {field}, which is not copied to the groups of a workload; leave it out"
            raise reading.refusal(text)
    constraints = template.get("schedulingConstraints") or {}
    topology = constraints.get("topology") or ()
    key = str(topology[0].get("key", "")) if topology else ""
    place = f"template {name} has schedulingConstraints."
    exclusive = constraints.get("exclusive") or None
    if exclusive is not None:
        exclusive = _converted(
            f"{place}exclusive", exclusive, ExclusiveDomain, "key and scope", reading
        )
    slices: tuple[SliceLevel, ...] = _converted(
        f"{place}slices", given := constraints.get("slices") or (), tuple[SliceLevel, ...], "size and key", reading
    )  # fmt: skip
    if problem := slices_problem(slices):
        raise reading.refusal(f"{place}slices {given}: {problem}")
    lost_members = constraints.get("lostMembers", "Wait")
    if lost_members not in get_args(LostMembers):
        choices = ", ".join(get_args(LostMembers))
        raise reading.refusal(f"{place}lostMembers {lost_members!r}, which is none of {choices}")
    return Given(
        workload=reading.name,
        template=name,
        constraints=SchedulingConstraints(
            topology=(key,) if key else (),
            preferred=tuple(dict.fromkeys(map(str, constraints.get("preferred") or ()))),
            balanced=bool(constraints.get("balanced")),
            slices=by_size(slices),
            exclusive=exclusive,
            near=tuple(_near(name, constraints.get("near") or (), reading)),
            lost_members=lost_members,
        ),
        disrupted_as_a_whole=(template.get("disruptionMode") or {}).get("all") is not None,
    )

"""Requirements of groups that a plan query drops or lowers: `GROUP:topology`, `GROUP:slices`, `GROUP:exclusive`, `GROUP:minCount=N`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from extender.core.model.errors import BadInput
from extender.core.model.ids import GroupKey
from extender.core.model.message_formatting import did_you_mean, spaced
from extender.core.model.pod_groups import Group
from extender.queries.plan.workload_summaries import GroupOrigin

FIELDS: Final = ("topology", "slices", "exclusive", "minCount", "minGroupCount")
GROUPS_SHOWN_MAX: Final = 20
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


class GroupRelaxation(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement of one group that is dropped, or lowered to `minimum`."""

    group: GroupKey
    field: Literal["topology", "slices", "exclusive", "minimum"]
    minimum: int = 0

    def of(self, group: Group) -> Group:
        """Return the group with the requirement dropped or lowered."""
        if self.field == "topology":
            return _with(group, topology=(), exclusive=None)
        if self.field == "slices":
            return _with(group, slices=())
        if self.field == "exclusive":
            return _with(group, topology=group.constraints.domain_keys, exclusive=None)
        return msgspec.structs.replace(group, minimum=self.minimum)

    def text(self, group: Group) -> str:
        """Return what is changed about the group, as a sentence."""
        name = spaced(group.key)
        if self.field == "topology":
            return f"{name} without its topology constraint ({', '.join(group.constraints.domain_keys)})"
        if self.field == "slices":
            levels = ", ".join(f"{level.size} by {level.key}" for level in group.constraints.slices)
            return f"{name} without its slices ({levels})"
        if self.field == "exclusive" and group.constraints.exclusive is not None:
            return f"{name} sharing its domain of {group.constraints.exclusive.key} with others"
        return f"{name} with {_minimum_field(group)} {self.minimum} in place of {group.minimum}"


def _with(group: Group, **constraints: object) -> Group:
    """Return a group with other constraints."""
    changed = msgspec.structs.replace(group.constraints, **constraints)
    return msgspec.structs.replace(group, constraints=changed)


def read_relaxations(
    texts: Sequence[str], groups: Iterable[Group], origins: Mapping[GroupKey, GroupOrigin]
) -> tuple[GroupRelaxation, ...]:
    """Return the relaxations that a user wrote.

    Args:
        texts: `GROUP:topology`, `GROUP:slices`, `GROUP:exclusive`, `GROUP:minCount=N` or `GROUP:minGroupCount=N`; GROUP is the name of a group, with
            namespace or kind and namespace where that is needed, or its role in a workload.
        origins: What groups were made from.

    Raises:
        BadInput: The form, the group, the field or the number is wrong; the message has those that exist.
    """
    named = tuple(groups)
    return tuple(_relaxation(text, named, origins) for text in texts)


def _relaxation(
    text: str, groups: tuple[Group, ...], origins: Mapping[GroupKey, GroupOrigin]
) -> GroupRelaxation:
    name, colon, change = text.rpartition(":")
    field, equals, number = change.partition("=")
    if not colon or not name:
        raise BadInput(
            f'relax "{text}": write GROUP:topology, GROUP:slices, GROUP:exclusive, GROUP:minCount=N or GROUP:minGroupCount=N'
        )
    group = _group_named(text, name, groups, origins)
    if field not in FIELDS:
        hint = did_you_mean(field, FIELDS) or f"; it is one of {', '.join(FIELDS)}"
        raise BadInput(f'relax "{text}": {spaced(group.key)} has no requirement "{field}"{hint}')
    if field in {"topology", "slices", "exclusive"}:
        if equals:
            raise BadInput(f'relax "{text}": {field} takes no value; the constraint is dropped')
        if field == "topology" and not group.constraints.domain_keys:
            raise BadInput(f'relax "{text}": {spaced(group.key)} has no topology constraint')
        if field == "slices" and not group.constraints.slices:
            raise BadInput(f'relax "{text}": {spaced(group.key)} has no slices')
        if field == "exclusive" and group.constraints.exclusive is None:
            raise BadInput(f'relax "{text}": {spaced(group.key)} has no exclusive domain')
        return GroupRelaxation(group=group.key, field=field)  # type: ignore[arg-type]
    right = _minimum_field(group)
    if field != right:
        raise BadInput(f'relax "{text}": {spaced(group.key)} has {right}, not {field}')
    if group.basic:
        raise BadInput(
            f'relax "{text}": {spaced(group.key)} has the policy basic, which needs no minimum'
        )
    least = max(1, len(group.required))
    if not _NUMBER.fullmatch(number) or not least <= int(number) <= group.minimum:
        always = f", and it requires {least} of its groups" if group.required else ""
        raise BadInput(
            f'relax "{text}": {right} of {spaced(group.key)} is {group.minimum}{always}; write a number from {least} to '
            f'{group.minimum}, found "{number}"'
        )
    return GroupRelaxation(group=group.key, field="minimum", minimum=int(number))


def _minimum_field(group: Group) -> str:
    return "minCount" if group.key.kind == "PodGroup" else "minGroupCount"


def _group_named(
    text: str, name: str, groups: tuple[Group, ...], origins: Mapping[GroupKey, GroupOrigin]
) -> Group:
    """Return the group of a name."""
    names = {
        group.key: (str(group.key), group.key.path, group.key.name, _role(group, origins))
        for group in groups
    }
    matching = [group for group in groups if name in names[group.key]]
    if len(matching) == 1:
        return matching[0]
    if matching:
        several = " or ".join(str(group.key) for group in matching[:GROUPS_SHOWN_MAX])
        raise BadInput(f'relax "{text}": "{name}" is ambiguous; write {several}')
    near = did_you_mean(
        name, (spelling for all_ in names.values() for spelling in all_ if spelling)
    )
    listed = ", ".join(group.key.path for group in groups[:GROUPS_SHOWN_MAX]) or "none"
    more = len(groups) - GROUPS_SHOWN_MAX
    listed += f" and {more} more" if more > 0 else ""
    raise BadInput(
        f'relax "{text}": no planned tree has a group "{name}"{near or "; the groups are " + listed}'
    )


def _role(group: Group, origins: Mapping[GroupKey, GroupOrigin]) -> str:
    origin = origins.get(group.key)
    return origin.role if origin is not None else ""

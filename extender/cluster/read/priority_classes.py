"""What a priority class name means; the part of the Priority admission plugin that files go without."""

from __future__ import annotations

from typing import Final

import msgspec

from extender.cluster import types as api

PREEMPT: Final = "PreemptLowerPriority"
SYSTEM: Final = {  # built into every API server
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


class Priority(msgspec.Struct, frozen=True, kw_only=True):
    """A priority in full."""

    value: int = 0
    class_name: str = ""
    preemption_policy: str = PREEMPT
    unknown: bool = False  # names a class that is not there and gives no number itself


class Priorities:
    """The priority classes that are known."""

    def __init__(self) -> None:
        self._classes: dict[str, api.PriorityClass] = {}

    def put(self, found: api.PriorityClass) -> bool:
        """Add or replace a class; say whether it means something else now."""
        before = self._classes.get(found.metadata.name)
        self._classes[found.metadata.name] = found
        return before is None or _meaning(before) != _meaning(found)

    def drop(self, name: str) -> bool:
        """Forget a class; say whether it was there."""
        return self._classes.pop(name, None) is not None

    def names(self) -> frozenset[str]:
        """Give the names of all known classes but the built-in ones."""
        return frozenset(self._classes)

    def documents(self) -> tuple[bytes, ...]:
        """Give all known classes as JSON objects of Kubernetes."""
        return tuple(
            msgspec.json.encode(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": found.value,
                    "globalDefault": found.global_default,
                    "preemptionPolicy": found.preemption_policy,
                }
            )
            for name, found in self._classes.items()
        )

    def resolve(self, value: int | None, class_name: str, policy: str) -> Priority:
        """Fill in what an object leaves out.

        Args:
            value: `spec.priority`; it counts when it is there, as an API server has put it there.
            class_name: `spec.priorityClassName`, else the global default class is meant.
            policy: `spec.preemptionPolicy`, else that of the class.

        Returns:
            The priority; `unknown` when the class is not known and no value was given (value 0).

        Source:
            The Priority admission plugin. Of several global defaults it takes the lowest value.
        """
        found = self._classes.get(class_name) if class_name else self._default()
        if class_name and found is None:
            number = value if value is not None else SYSTEM.get(class_name)
            return Priority(
                value=number or 0,
                class_name=class_name,
                preemption_policy=policy or PREEMPT,
                unknown=number is None,
            )
        if found is None:
            return Priority(value=value or 0, preemption_policy=policy or PREEMPT)
        if value is not None and not class_name:  # a default that came later does not reach back
            return Priority(value=value, preemption_policy=policy or PREEMPT)
        return Priority(
            value=found.value if value is None else value,
            class_name=found.metadata.name,
            preemption_policy=policy or found.preemption_policy,
        )

    def _default(self) -> api.PriorityClass | None:
        defaults = [one for one in self._classes.values() if one.global_default]
        return min(defaults, key=lambda one: (one.value, one.metadata.name), default=None)


def _meaning(one: api.PriorityClass) -> tuple[int, bool, str]:
    return (one.value, one.global_default, one.preemption_policy)

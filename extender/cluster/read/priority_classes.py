"""Resolve priority class names, as the Priority admission plugin does; objects from files need it."""

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
    """A resolved priority."""

    value: int = 0
    class_name: str = ""
    preemption_policy: str = PREEMPT
    unknown: bool = False  # the class does not exist and the object has no number


class Priorities:
    """The priority classes that are known."""

    def __init__(self) -> None:
        self._classes: dict[str, api.PriorityClass] = {}

    def put(self, priority_class: api.PriorityClass) -> bool:
        """Add or replace a class; return whether its meaning has changed."""
        before = self._classes.get(priority_class.metadata.name)
        self._classes[priority_class.metadata.name] = priority_class
        return before is None or _meaning(before) != _meaning(priority_class)

    def drop(self, name: str) -> bool:
        """Remove a class; return whether there was one."""
        return self._classes.pop(name, None) is not None

    def names(self) -> frozenset[str]:
        """Return the names of all known classes without the built-in ones."""
        return frozenset(self._classes)

    def documents(self) -> tuple[bytes, ...]:
        """Return all known classes as JSON objects of Kubernetes."""
        return tuple(
            msgspec.json.encode(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": priority_class.value,
                    "globalDefault": priority_class.global_default,
                    "preemptionPolicy": priority_class.preemption_policy,
                }
            )
            for name, priority_class in self._classes.items()
        )

    def resolve(self, value: int | None, class_name: str, policy: str) -> Priority:
        """Return the priority of an object, with missing fields filled in.

        Args:
            value: `spec.priority`; if it is set, an API server has set it and it takes precedence.
            class_name: `spec.priorityClassName`; empty: the global default class.
            policy: `spec.preemptionPolicy`; empty: that of the class.

        Returns:
            The priority; `unknown` if the class is not known and no value was given (value 0).

        Source:
            The Priority admission plugin. Of several global defaults it takes the lowest value.
        """
        priority_class = self._classes.get(class_name) if class_name else self._default()
        # a default does not apply to older objects
        if priority_class is None or (value is not None and not class_name):
            number = value if value is not None else SYSTEM.get(class_name)
            return Priority(
                value=number or 0,
                class_name=class_name,
                preemption_policy=policy or PREEMPT,
                unknown=bool(class_name) and number is None,
            )
        return Priority(
            value=priority_class.value if value is None else value,
            class_name=priority_class.metadata.name,
            preemption_policy=policy or priority_class.preemption_policy,
        )

    def _default(self) -> api.PriorityClass | None:
        defaults = (of for of in self._classes.values() if of.global_default)
        return min(defaults, key=lambda of: (of.value, of.metadata.name), default=None)


def _meaning(priority_class: api.PriorityClass) -> tuple[int, bool, str]:
    return (priority_class.value, priority_class.global_default, priority_class.preemption_policy)

"""Render a ValidatingAdmissionPolicy and its binding as text.

Owns the form of the documents; what they allow is that of their callers.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from deploy.render.render_tree_policies import block, document, section

LABELS = "{app.kubernetes.io/name: gang-extender}"


class Rule(msgspec.Struct, frozen=True):
    """Resources and operations that a policy applies to."""

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    operations: tuple[str, ...]


class Validation(msgspec.Struct, frozen=True):
    """An expression that must be true, and the message for the user if it is not."""

    expression: str
    message: str
    message_expression: str = ""
    forbidden: bool = True  # the user may not do this (403); else the object is not valid (422)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy; its binding denies what it does not allow, in all namespaces."""

    name: str
    comment: str
    rules: tuple[Rule, ...]
    conditions: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    validations: tuple[Validation, ...]


def policy_text(policy: Policy) -> str:
    """Return the documents of a policy and its binding."""
    kind, name = "ValidatingAdmissionPolicy", policy.name
    spec = (
        "  failurePolicy: Fail\n"
        f"  matchConstraints:\n    resourceRules:\n{''.join(map(_rule, policy.rules))}"
        f"{section('matchConditions', policy.conditions.items())}"
        f"{section('variables', policy.variables.items())}"
        f"  validations:\n{''.join(map(_validation, policy.validations))}"
    )
    denies = f"  policyName: {name}\n  validationActions: [Deny]\n"
    return document(kind, name, LABELS, spec, f"# {policy.comment}\n") + document(
        f"{kind}Binding", name, LABELS, denies
    )


def _rule(rule: Rule) -> str:
    return (
        f"      - apiGroups: {_quoted(rule.groups)}\n"
        '        apiVersions: ["*"]\n'
        f"        operations: [{', '.join(rule.operations)}]\n"
        f"        resources: [{', '.join(rule.resources)}]\n"
    )


def _validation(validation: Validation) -> str:
    lines = f"    - expression: {block(validation.expression, 8)}      message: {_quoted(validation.message)}\n"
    if validation.forbidden:
        lines += "      reason: Forbidden\n"
    if validation.message_expression:
        lines += f"      messageExpression: {block(validation.message_expression, 8)}"
    return lines


def _quoted(value: object) -> str:
    """Return a value as JSON, which YAML contains."""
    return msgspec.json.encode(value).decode()

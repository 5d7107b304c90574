"""Run Helm and read what it renders."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.packaging.manifests import NAMESPACE, ROOT
from deploy.packaging.written import CHART
from tests.controlplane.build import build_helm

RELEASE = "gang-extender"
VALUE_SETS = sorted((CHART / "ci").glob("*.yaml"))
# values.yaml of the version before: of its tag, or of 2026-11-29 (e180c48a) before there is one
VALUES_BEFORE = ROOT / "tests" / "golden" / "chart-values-before.yaml"
Object = dict[str, Any]
Key = tuple[str, str, str]


class HelmError(Exception):
    """Helm refused; the message is its output."""


def helm(*arguments: str) -> str:
    """Run Helm, without plugins and settings of the user, and return what it prints.

    Raises:
        HelmError: It failed.
    """
    done = subprocess.run(
        [build_helm(), *arguments], capture_output=True, text=True, check=False,
        env={"HOME": "/nonexistent", "HELM_NO_PLUGINS": "1"},
    )  # fmt: skip
    if done.returncode != 0:
        raise HelmError(done.stderr or done.stdout)
    return done.stdout


def render(
    values: Path | None = None, *options: str, chart: Path = CHART, namespace: str = NAMESPACE
) -> list[Object]:
    """Return the objects that a set of values gives, in the order of their output.

    Raises:
        HelmError: The values are refused.
    """
    chosen = ["--values", str(values)] if values else []
    text = helm("template", RELEASE, str(chart), "--namespace", namespace, *chosen, *options)
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]


def key_of(thing: Object) -> Key:
    """Return kind, namespace and name."""
    return thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def by_key(things: Sequence[Object]) -> dict[Key, Object]:
    """Return objects by kind, namespace and name; two with the same are an error."""
    found = {key_of(one): one for one in things}
    assert len(found) == len(things), sorted(key_of(one) for one in things)
    return found


def comparable(thing: Object) -> Object:
    """Return an object without what only Helm needs, and with named entries of lists in order of their names.

    The order of variables matters where one refers to another: `check_order` looks at it.
    """
    if thing["kind"] == "CustomResourceDefinition":
        kept = {k: v for k, v in thing["metadata"].items() if k != "annotations"}
        return {**thing, "metadata": kept}
    if thing["kind"] != "Deployment":
        return thing
    return _sorted(thing, "")


def _sorted(value: Any, field: str) -> Any:
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k != "imagePullPolicy"}
        return {k: _sorted(v, k) for k, v in kept.items()}
    if isinstance(value, list):
        made = [_sorted(one, "") for one in value]
        return (
            sorted(made, key=lambda one: str(one["name"]))
            if field in ("env", "volumes", "volumeMounts")
            else made
        )
    return value


def check_order(deployment: Object) -> None:
    """Check that a variable stands behind those it refers to: the kubelet replaces only these."""
    pod = deployment["spec"]["template"]["spec"]
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        seen: set[str] = set()
        for one in container.get("env", []):
            named = {part.partition(")")[0] for part in one.get("value", "").split("$(")[1:]}
            assert named <= seen, (container["name"], one)
            assert one["name"] not in seen, one
            seen.add(one["name"])

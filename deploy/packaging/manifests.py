"""Read deploy/kubernetes, the one source of the chart and of the kustomizations: files, documents, and names in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SOURCE = DEPLOY / "kubernetes"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMESPACE = "gang-extender"
KIND_LABEL = "gang-extender.dev/kind"  # kinds of workloads begin with a capital letter
# The name and the tag of the image stand in pyproject.toml only; these files repeat them, and `make chart` writes them.
NAME, TAG = PROJECT["name"], PROJECT["version"]
IMAGE = f"{NAME}:{TAG}"
IMAGE_IN_TEXT = re.compile(rf"\b{NAME}:\d+\.\d+\.\d+[\w.-]*")
NAMING_IMAGE = (
    "deploy/Dockerfile",
    "docs/how-to/install.md",
    "deploy/kubernetes/deployment.yaml",
)


def text_of(name: str) -> str:
    """Return a file of deploy/kubernetes."""
    return (SOURCE / name).read_text(encoding="utf-8")


def alerting_rules() -> str:
    """Return the rules of deploy/monitoring."""
    return (DEPLOY / "monitoring" / "rules.yaml").read_text(encoding="utf-8")


def parts_of(name: str) -> list[str]:
    """Return the documents of a file as text with their comments, each ending in a newline; what is no object is left out."""
    parts = re.split(r"^---\n", text_of(name), flags=re.MULTILINE)
    head = ""
    found = []
    for part in parts:
        if yaml.safe_load(part) is None:
            head += part  # the comment of a file that goes on with ---
        else:
            found.append((head if not found else "") + part.rstrip("\n") + "\n")
    return found


def documents_of(name: str) -> list[dict[str, Any]]:
    """Return the documents of a file."""
    return [one for one in yaml.safe_load_all(text_of(name)) if one]


def deployment() -> dict[str, Any]:
    """Return the Deployment of the extender."""
    return next(d for d in documents_of("deployment.yaml") if d["kind"] == "Deployment")


def container() -> dict[str, Any]:
    """Return the container of the extender."""
    (only,) = deployment()["spec"]["template"]["spec"]["containers"]
    return only


def variables() -> dict[str, str]:
    """Return the variables of the extender that have a value."""
    return {one["name"]: one["value"] for one in container()["env"] if "value" in one}


def kinds_of_workloads() -> list[str]:
    """Return the kinds that have a role of their own, in the order of the file."""
    labels = (one["metadata"]["labels"] for one in documents_of("workloads/rbac.yaml"))
    kinds = (one.get(KIND_LABEL, "") for one in labels)
    return [*dict.fromkeys(kind for kind in kinds if kind[:1].isupper())]

"""What docker-compose.yml has to be before anything is started: what the Compose specification takes, and one build of our image."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = Path(__file__).resolve().parents[1] / "unit" / "compose_spec" / "compose-spec.json"
SHOWN = "demo"
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def faults_of(document: dict[str, Any]) -> list[str]:
    """Return what is wrong with a file, a line per fault; what the schema refuses comes alone, without further looks."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    refused = jsonschema.validators.validator_for(schema)(schema).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in refused] or [*_faults(document)]


def _faults(document: dict[str, Any]) -> Iterator[str]:
    services = document["services"]
    built = Counter(one["image"] for one in services.values() if "build" in one)
    for image, count in built.items():
        if count > 1:
            yield f"{count} services build {image}: parallel builds of one tag fail"
    for name, service in services.items():
        if service["image"] in built and "build" not in service:
            policy = service.get("pull_policy")
            if policy != "never":
                yield f"{name}: pull_policy is {policy}: {service['image']} is built here and is in no registry"
        if service.get("attach", True) != (name == SHOWN):
            yield f"{name}: attach is {service.get('attach', True)}: only the lines of {SHOWN} are shown"
        for volume in service.get("volumes", []):
            source, *_, options = volume.split(":")
            if source.startswith(".") and not {"ro", "z"} <= {*options.split(",")}:
                yield f"{name}: {volume} needs ro,z: SELinux keeps a bind without z from containers"
        for port in service.get("ports", []):
            if not re.fullmatch(r"127\.0\.0\.1:\$\{\w+:-\d+\}:\d+", port):
                yield f"{name}: port {port} is not 127.0.0.1:${{VARIABLE:-DEFAULT}}:PORT"


def replaced(text: str, environment: dict[str, str]) -> str:
    """Return a text with its variables as Compose replaces them."""
    return VARIABLE.sub(lambda match: environment.get(match[1]) or match[2], text)

"""What `status --bundle` writes for a maintainer, with names or with numbers in place of them.

Without names: they are read from the structured fields of all files; then each is replaced wherever it stands, also within
sentences. A namespace is `ns-1`, a node `node-1`, a replica `replica-1`, anything else `object-1`, the same in all files.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from extender.cli.connection.service_client import finder, read_body
from extender.cli.output.printing import complain
from extender.core.model.errors import BadInput
from extender.queries.log.event_dto import parse_time
from extender.queries.state.service_status import ServiceStatus

EVENTS: Final = 1000  # of the end of the log, in a bundle
# Files of a bundle that are answers of the service, by their path there.
ANSWERS: Final = {
    "readiness.json": "/v1/readiness",
    "gangs.json": "/v1/gangs",
    "trees.json": "/v1/trees",
    "events.json": f"/v1/events?order=newest&limit={EVENTS}",
    "metrics.txt": "/metrics",
}
# Names of objects: NAMESPACE/NAME or KIND/NAMESPACE/NAME.
_PATH: Final = re.compile(r"(?:[A-Z]\w*/)?([a-z0-9.-]+)/([a-z0-9.-]+)")
_NODES: Final = frozenset({"node", "nodes", "from_node", "to_node"})
_DOMAINS: Final = frozenset({"domain", "before", "after"})  # by topology key
_NAMED: Final = frozenset({"name", "pod", "group", "gang", "preemptor", "workload", "unit"})
# Values that are no names: replacing a gang that is called `waiting` must not change a state.
_WORDS: Final = frozenset(
    {
        "type", "kind", "state", "role", "time", "version", "outcome", "actor", "planner", "uid", "gang_uid", "since", "started",
        "renewed", "ends", "ok", "sub_type",
    }
)  # fmt: skip
# Keys that are no names, whatever a group is called.
_FIELDS: Final = _WORDS | _NAMED | _NODES
_PLACES: Final = frozenset({"address", "place"})  # of replicas and of the database
_REPLICAS: Final = frozenset({"replica", "replicas"})  # names of any form, by default HOST:PORT
_LEFT_OUT: Final = "(left out)"
_METRIC_NAMES: Final = re.compile(r'\b(namespace|file|folder)="((?:[^"\\]|\\.)*)"')
# Fields of the status whose names are words of ours.
_OURS: Final = frozenset({"checks", "certificates", "settings", "gangs"})


class NamesRemoved:
    """Files of a bundle without names.

    Args:
        files: By name; those in JSON end with `.json`.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._values = {
            name: msgspec.json.decode(body)
            for name, body in files.items()
            if name.endswith(".json")
        }
        self._numbers: dict[str, str] = {}
        self._counts = {"ns": 0, "node": 0, "object": 0, "replica": 0}
        for value in self._values.values():
            self._collect(value, "")
        # the longest first: `train-long` before `train`
        names = sorted(self._numbers, key=lambda name: (-len(name), name))
        pattern = "|".join(map(re.escape, names)) or r"(?!)"
        self._pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])")

    def files(self) -> dict[str, bytes]:
        """Return the files, with numbers in place of names."""
        changed: dict[str, bytes] = {}
        for name, body in self._files.items():
            if name in self._values:
                value = self._values[name]
                if name == "status.json":
                    value = _without_settings(value)
                changed[name] = msgspec.json.encode(self._replaced(value, ""))
            else:
                text = body.decode(errors="replace")
                changed[name] = _METRIC_NAMES.sub(self._label, text).encode()
        return changed

    def _label(self, match: re.Match[str]) -> str:
        value = match[2]
        return f'{match[1]}="{self._numbers.get(value, _LEFT_OUT if value else "")}"'

    def _collect(self, value: object, key: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if key == "topology":  # by node, and by topology key below it
                    self._number(name, "node")
                    self._collect(inner, "domain")
                elif key in _DOMAINS:
                    self._number(str(inner), "object")
                elif name not in _OURS:
                    self._collect(inner, str(name))
        elif isinstance(value, list):
            for inner in value:
                self._collect(inner, key)
        elif isinstance(value, str) and key not in _WORDS:
            for name, prefix in _names_in(value, key):
                self._number(name, prefix)

    def _number(self, name: str, prefix: str) -> None:
        if name and name not in self._numbers:
            self._counts[prefix] += 1
            self._numbers[name] = f"{prefix}-{self._counts[prefix]}"

    def _replaced(self, value: object, key: str) -> object:
        if isinstance(value, dict):
            return {
                name if name in _FIELDS else self._numbers.get(name, name): self._replaced(
                    inner, str(name)
                )
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [self._replaced(inner, key) for inner in value]
        if not isinstance(value, str):
            return value
        if key in _PLACES:
            return value and _LEFT_OUT
        if key in _WORDS:
            number = self._numbers.get(value, "")
            return number if number.startswith("replica-") else value  # as an actor
        return self._pattern.sub(lambda match: self._numbers[match[0]], value)


def _names_in(text: str, key: str) -> Iterator[tuple[str, str]]:
    """Yield the names in the value of a field, each with the prefix of its number."""
    if key in _REPLICAS:
        yield text, "replica"
    elif match := _PATH.fullmatch(text):
        yield match[1], "ns"
        yield match[2], "object"
    elif key == "namespace":
        yield text, "ns"
    elif key in _NODES:
        yield text, "node"
    elif key == "domain":
        yield text.rpartition("=")[2], "object"
    elif key in _NAMED and re.fullmatch(r"[a-z0-9.-]+", text):
        yield text, "object"


def _without_settings(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status without the texts of settings."""
    settings = {
        name: value if isinstance(value, bool | int | float) or not value else _LEFT_OUT
        for name, value in status["settings"].items()
    }
    return status | {"settings": settings}


def write_bundle(server: str | None, path: Path, current: ServiceStatus, *, names: bool) -> None:
    """Write the bundle.

    Raises:
        BadInput: The file cannot be written.
    """
    contents = [
        f"gang-extender status --bundle, {current.time}. Names are {'as they are' if names else 'numbers'}."
    ]
    files = {"status.json": msgspec.json.encode(current)}
    for name, where in ANSWERS.items():
        _add(files, contents, name, partial(read_body, server, where))
    if names:
        _add(files, contents, "logs.txt", lambda: finder().logs().encode())
    else:
        files = NamesRemoved(files).files()
        contents.append(
            "logs.txt: left out, because texts of logs may have names that nothing else has"
        )
    contents[1:1] = [f"{name}: {len(body)} bytes" for name, body in files.items()]
    files["contents.txt"] = ("\n".join(contents) + "\n").encode()
    try:
        with tarfile.open(path, "w:gz") as archive:
            for name, body in files.items():
                entry = tarfile.TarInfo(f"gang-extender-status/{name}")
                entry.size, entry.mtime = len(body), parse_time(current.time, "time") // 1_000_000
                archive.addfile(entry, io.BytesIO(body))
    except OSError as error:
        raise BadInput(f"--bundle {path}: cannot be written: {error.strerror or error}") from error
    complain(f"{path}: {', '.join(files)}; look at it before you send it")


def _add(
    files: dict[str, bytes], contents: list[str], name: str, read: Callable[[], bytes]
) -> None:
    """Add a file to a bundle, or the reason why it is not there to the contents."""
    try:
        files[name] = read()
    except BadInput as error:
        contents.append(f"{name}: left out: {error}")

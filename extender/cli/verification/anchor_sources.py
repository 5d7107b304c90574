"""Where `verify` has anchors from: the cluster, a saved copy, or the file beside an embedded database."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from extender.cli.connection.kubectl import Kubectl
from extender.core.log.anchors import Anchor, decode_anchors
from extender.core.model.errors import BadInput
from extender.ports.written_names import LOG_HEAD_CONFIGMAP, NAMESPACE

FROM_CLUSTER = "cluster"
BESIDE_DATABASE = "log-end.json"  # of a service with --cluster


class Anchors(msgspec.Struct, frozen=True):
    """Anchors, and where they are from; an empty place if none were given."""

    place: str
    anchors: tuple[Anchor, ...]


def find_anchors(given: str | None, data_dir: str, *, embedded: bool) -> Anchors:
    """Return the anchors to compare with.

    Args:
        given: Value of --anchors: a file, or `cluster`.
        data_dir: Folder of the embedded database.
        embedded: Whether the log is in it; then the file beside it is used if no other is given.

    Raises:
        BadInput: They cannot be read.
    """
    if given == FROM_CLUSTER:
        place = f"ConfigMap {NAMESPACE}/{LOG_HEAD_CONFIGMAP}"
        body = Kubectl(None, None).config_map(NAMESPACE, LOG_HEAD_CONFIGMAP)
        return Anchors(place, _parsed(body, place))
    if given is not None:
        return Anchors(given, _parsed(_read(Path(given)), given))
    beside = Path(data_dir) / BESIDE_DATABASE
    if embedded and beside.exists():
        return Anchors(str(beside), _parsed(_read(beside), str(beside)))
    return Anchors("", ())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"--anchors: {path} cannot be read: {error.strerror}") from error


def _parsed(text: bytes, place: str) -> tuple[Anchor, ...]:
    """Return the anchors of a ConfigMap in YAML or JSON, or of its data alone.

    Raises:
        BadInput: There are none in it.
    """
    try:
        document = yaml.safe_load(text)
        data = document.get("data", document) if isinstance(document, dict) else document
        anchors = decode_anchors(msgspec.json.encode(data))
    except (yaml.YAMLError, ValueError, UnicodeError) as error:
        problem = str(error).partition("\n")[0]
        raise BadInput(
            f"--anchors: {place} is not a copy of ConfigMap {LOG_HEAD_CONFIGMAP}: {problem}; save one with kubectl -n "
            f"{NAMESPACE} get configmap {LOG_HEAD_CONFIGMAP} -o yaml"
        ) from error
    if not anchors:
        raise BadInput(f"--anchors: {place} has no anchor; was anything published?")
    return anchors

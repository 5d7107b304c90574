"""Image and chart of a release in an OCI registry of the operator, pushed with podman and Helm."""

from __future__ import annotations

import ipaddress
import re
import shutil
import tempfile
from pathlib import Path

from deploy.packaging.manifests import NAME
from deploy.release.image import Image
from deploy.release.source import ReleaseError, run

# HOST[:PORT][/PATH], as in the name of an image
REGISTRY = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:[0-9]+)?(/[a-z0-9._-]+)*")
CHARTS = "charts"  # an image and a chart of one name and version need two places


def checked(registry: str) -> str:
    """Return the place in a registry as it was given.

    Raises:
        ReleaseError: It is none.
    """
    if not REGISTRY.fullmatch(registry):
        raise ReleaseError(
            f"REGISTRY: {registry!r} is not HOST[:PORT][/PATH] in small letters, such as registry.example.com/team; leave out "
            "scheme and image"
        )
    return registry


def is_loopback(registry: str) -> bool:
    """Return whether a registry is on this machine; it is spoken to without TLS then, as Docker does."""
    (host,) = re.findall(r"^(\[.*\]|[^:/]+)", registry)
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return bool(host == "localhost")


def push_image(image: Image, registry: str, version: str) -> str:
    """Push an image that podman has built; return its name with its digest.

    Raises:
        ReleaseError: podman failed, or the registry has another digest than the archive: then the chart would name what is not there.
    """
    name = f"{registry}/{NAME}"
    plain = ["--tls-verify=false"] if is_loopback(registry) else []
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "digest")
        run(
            *("podman", "push", "--quiet", "--format=oci", *plain, f"--digestfile={file}"),
            *(image.number, f"docker://{name}:{version}"),
        )
        digest = file.read_text(encoding="utf-8").strip()
    if digest != image.digest:
        raise ReleaseError(
            f"{name}:{version} has digest {digest} in the registry and {image.digest} in the archive: podman has compressed its "
            f"layers differently; push the archive with skopeo copy --preserve-digests"
        )
    return f"{name}@{digest}"


def push_chart(archive: Path, registry: str) -> str:
    """Push the archive of the chart; return the name that `helm install` takes.

    Raises:
        ReleaseError: Helm is not there, or it failed.
    """
    if shutil.which("helm") is None:
        raise ReleaseError(
            "helm is not installed; it pushes the chart: put Helm 3.8 or newer on PATH"
        )
    place = f"oci://{registry}/{CHARTS}"
    plain = ["--plain-http"] if is_loopback(registry) else []
    run("helm", "push", str(archive), place, *plain)
    return f"{place}/{NAME}"

"""Create the kinds of other projects on a control plane: CustomResourceDefinitions, until they are served."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import NotReadyError
from tests.support.waiting import until


def create_kinds(plane: ControlPlane, files: Iterable[Path]) -> None:
    """Apply the definitions in some files and wait until all kinds of the plane are established.

    Raises:
        NotReadyError: kube-apiserver refuses one.
        WaitedInVain: They are not established.
    """
    # Server-side, because the largest are too long for the annotation of the other way.
    apply = plane.kubectl("apply", "--server-side", *(f"--filename={file}" for file in files))
    if apply.returncode != 0:
        raise NotReadyError(f"kubectl apply: {apply.stderr}")
    refusal = ""

    def established() -> bool:
        """Ask; it fails at once where a definition has no conditions yet."""
        nonlocal refusal
        wait = plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        refusal = wait.stderr
        return wait.returncode == 0

    until(established, "all kinds are established", every_s=0.1, state=lambda: refusal)

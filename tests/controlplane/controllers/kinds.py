"""Create the kinds of other projects on a control plane: CustomResourceDefinitions, until they are served."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from tests.controlplane.plane import READY_TIMEOUT_S, ControlPlane
from tests.controlplane.processes import NotReadyError


def create_kinds(plane: ControlPlane, files: Iterable[Path]) -> None:
    """Apply the definitions in some files and wait until all kinds of the plane are established.

    Raises:
        NotReadyError: kube-apiserver refuses one, or they are not established in time.
    """
    # Server-side, because the largest are too long for the annotation of the other way.
    apply = plane.kubectl("apply", "--server-side", *(f"--filename={file}" for file in files))
    if apply.returncode != 0:
        raise NotReadyError(f"kubectl apply: {apply.stderr}")
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        # It fails at once where a definition has no conditions yet.
        wait = plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        if wait.returncode == 0:
            return
        if time.monotonic() > deadline_s:
            raise NotReadyError(f"kubectl wait: {wait.stderr}")
        time.sleep(0.1)

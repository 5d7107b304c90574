"""CustomResourceDefinitions of other projects, out of their Go modules, for objects of ours that name their kinds.

Owns the versions and the sums of the modules, which Go downloads once; nothing of them is built or run.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.controlplane.build import CannotBuildError, ensure_go
from tests.controlplane.pin import HELM_FOLDER


class OperatorModule(NamedTuple):
    """A Go module, the sum of its content as in a go.sum, and the files with the definitions."""

    path: str
    version: str
    sum: str
    files: tuple[str, ...]


MODULES = {
    "cert-manager": OperatorModule(
        "github.com/cert-manager/cert-manager", "v1.21.2", "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
        ("deploy/crds/cert-manager.io_certificates.yaml", "deploy/crds/cert-manager.io_issuers.yaml"),
    ),
    "CloudNativePG": OperatorModule(
        "github.com/cloudnative-pg/cloudnative-pg", "v1.28.0", "h1:vkv0a0ewDSfJOPJrsyUr4uczsxheReAWf/k171V0Dm0=",
        (
            "config/crd/bases/postgresql.cnpg.io_clusters.yaml",
            "config/crd/bases/postgresql.cnpg.io_scheduledbackups.yaml",
        ),
    ),
    "Barman Cloud plugin": OperatorModule(
        "github.com/cloudnative-pg/plugin-barman-cloud", "v0.15.0", "h1:gNVytrzzYUE08wxLDrjfJqy1FPPSFkMe1OEr4s4pVI0=",
        ("config/crd/bases/barmancloud.cnpg.io_objectstores.yaml",),
    ),
    "prometheus-operator": OperatorModule(
        "github.com/prometheus-operator/prometheus-operator", "v0.85.0", "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        (
            "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
            "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        ),
    ),
}  # fmt: skip


def definitions(name: str) -> list[Path]:
    """Return the files with the definitions of a project; the first call downloads its module.

    Raises:
        CannotBuildError: There is no Go, the module cannot be downloaded, or its content is another one.
    """
    module = MODULES[name]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [ensure_go(HELM_FOLDER), "mod", "download", "-json", f"{module.path}@{module.version}"],
            cwd=empty, env=os.environ | {"GOFLAGS": "-mod=mod"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        raise CannotBuildError(f"{module.path} {module.version}: {done.stdout}{done.stderr}")
    found = json.loads(done.stdout)
    if found["Sum"] != module.sum:
        raise CannotBuildError(
            f"{module.path} {module.version} has the sum {found['Sum']}, not {module.sum}"
        )
    return [Path(found["Dir"], file) for file in module.files]

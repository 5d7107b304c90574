"""The workload controllers that the tests run: their Go modules and the manifests that belong to them.

Standard library only, as build.py. The versions stand in the go.mod of the wrapper modules beside this file. Several,
because a Go module has one version of each dependency: what asks for the same minor version of k8s.io/* is built
together, and a program never gets another minor version than the one that its own go.mod asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENT = re.compile(r"^(?:require\s+|\s+)(\S+) (v\S+)(?: // indirect)?$", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """One controller.

    Attributes:
        name: Of the program and of its folder of manifests, in the cache.
        wrapper: Name of the wrapper module that pins it.
        module: Its Go module.
        main: Its main package, inside the module; None: a main.go of ours in the wrapper, which calls the module.
        manifests: Where its manifests are in the module, by where they are in the cache; patterns of files.
    """

    name: str
    wrapper: str
    module: str
    main: str | None
    manifests: Mapping[str, str] = field(default_factory=dict)

    @property
    def built_name(self) -> str:
        """Return the name that `go build` gives the program."""
        return self.wrapper if self.main is None else self.package.rpartition("/")[2]

    @property
    def package(self) -> str:
        """Return the import path of the main package."""
        if self.main is None:
            return "."
        return f"{self.module}/{self.main}".rstrip("/")


PROGRAMS = (
    Program(
        "jobset",
        "jobset_lws_trainer",
        "sigs.k8s.io/jobset",
        "",
        {
            "crds": "config/components/crd/bases/*.yaml",
            "webhooks": "config/components/webhook/manifests.yaml",
        },
    ),
    Program(
        "lws",
        "jobset_lws_trainer",
        "sigs.k8s.io/lws",
        "cmd",
        {"crds": "config/crd/bases/*.yaml", "webhooks": "config/webhook/manifests.yaml"},
    ),
    Program(
        "trainer",
        "jobset_lws_trainer",
        "github.com/kubeflow/trainer/v2",
        "cmd/trainer-controller-manager",
        {
            "crds": "manifests/base/crds/trainer.*.yaml",
            "webhooks": "manifests/base/webhook/manifests.yaml",
            "runtimes": "manifests/base/runtimes/*_distributed.yaml",
        },
    ),
    Program(
        "kuberay",
        "kuberay",
        "github.com/ray-project/kuberay/ray-operator",
        "",
        {"crds": "config/crd/bases/*.yaml"},
    ),
    Program(
        "training-operator",
        "training_operator",
        "github.com/kubeflow/training-operator",
        None,
        {"crds": "manifests/base/crds/kubeflow.org_[!m]*.yaml"},  # its MPIJob is v1
    ),
    Program(
        "mpi-operator",
        "mpi_operator",
        "github.com/kubeflow/mpi-operator",
        None,
        {"crds": "manifests/base/kubeflow.org_mpijobs.yaml"},
    ),
    Program(
        "kueue",
        "kueue",
        "sigs.k8s.io/kueue",
        "cmd/kueue",
        {
            "crds": "config/components/crd/bases/*.yaml",
            "webhooks": "config/components/webhook/manifests.yaml",
        },
    ),
)
# Those of workload kinds: Kueue changes objects of all of them, and runs only for the tests that name it.
DEFAULT_NAMES = tuple(one.name for one in PROGRAMS if one.name != "kueue")
WRAPPERS = tuple(dict.fromkeys(one.wrapper for one in PROGRAMS))


def programs_of(wrapper: str) -> tuple[Program, ...]:
    """Return the programs that a wrapper module pins."""
    return tuple(one for one in PROGRAMS if one.wrapper == wrapper)


def wrapper_folder(wrapper: str) -> Path:
    """Return the folder of a wrapper module."""
    return HERE / wrapper


def pinned_versions(wrapper: str) -> dict[str, str]:
    """Read the version of each program of a wrapper module by the name of the program; {} before the first pin."""
    file = wrapper_folder(wrapper) / "go.mod"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = dict(REQUIREMENT.findall(text))
    return {one.name: found[one.module] for one in programs_of(wrapper) if one.module in found}

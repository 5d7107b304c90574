"""The client is imported without the models, and another importer in the same process has the whole package."""

from __future__ import annotations

import subprocess
import sys

PARTS = "from extender.cluster.connection import api_client as parts"
WHOLE = "import kubernetes_asyncio as whole"
IS_WHOLE = """
import sys
client = sys.modules["kubernetes_asyncio.client.api_client"].kubernetes_asyncio.client
assert client is whole.client
assert client.models.V1Pod is whole.client.V1Pod
"""
USED = """
configuration = parts.Configuration()
assert parts.kubernetes_config.load_kube_config
"""


def run(*lines: str) -> str:
    """Run lines in a new interpreter and return what it printed."""
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_parts_import_no_models():
    printed = run(
        "import sys",
        "from importlib.abc import MetaPathFinder",
        "found = []",
        "class Finder(MetaPathFinder):",
        "    def find_spec(self, name, path, target=None): found.append(name)",
        "sys.meta_path.insert(0, Finder())",
        PARTS,
        USED,
        "found = [name for name in found if name.startswith('kubernetes_asyncio.')]",
        "print(len(found), [name for name in found if '.models.' in name or '.api.' in name])",
    )
    count, _, models = printed.partition(" ")
    assert 0 < int(count) < 50
    assert models == "[]\n"


def test_the_whole_package_is_there_after_the_parts():
    run(PARTS, WHOLE, IS_WHOLE, USED)


def test_the_parts_are_there_after_the_whole_package():
    run(WHOLE, PARTS, IS_WHOLE, USED, "assert parts.Configuration is whole.client.Configuration")

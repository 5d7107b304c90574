"""The parts of kubernetes-asyncio that find the configuration, the credentials and the TLS settings, without its models.

Importing the package runs 850 generated modules, which took a quarter of the CPU time of a start of the service. None of
them is used here: bodies are decoded elsewhere with msgspec. So its `__init__` modules are left out while the parts
are imported. Another importer in the same process gets the whole package, with modules of its own.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubernetes_asyncio import config as kubernetes_config
    from kubernetes_asyncio.client import ApiClient, Configuration

__all__ = ["ApiClient", "Configuration", "kubernetes_config"]

PACKAGE = "kubernetes_asyncio"
CLIENT = f"{PACKAGE}.client"
MODELS = f"{CLIENT}.models"  # named by the client, for the objects that it would make of answers


def _import_parts() -> None:
    """Set the names of this module, from the whole package if it is imported already."""
    names = globals()
    if PACKAGE in sys.modules:
        client = sys.modules[CLIENT]
        names["Configuration"], names["ApiClient"] = client.Configuration, client.ApiClient
        names["kubernetes_config"] = importlib.import_module(f"{PACKAGE}.config")
        return
    packages = [_empty_package(name) for name in (PACKAGE, CLIENT, MODELS)]
    try:
        configuration = importlib.import_module(f"{CLIENT}.configuration").Configuration
        client = importlib.import_module(f"{CLIENT}.api_client").ApiClient
        # its config imports both from the package, and only these
        packages[1].__dict__.update(Configuration=configuration, ApiClient=client)
        names["Configuration"], names["ApiClient"] = configuration, client
        names["kubernetes_config"] = importlib.import_module(f"{PACKAGE}.config")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


def _empty_package(name: str) -> ModuleType:
    """Register a package that has the modules of the installed one but runs no `__init__`."""
    parent, _, last = name.rpartition(".")
    above = sys.modules.get(parent)
    spec = PathFinder.find_spec(name, above.__path__ if above is not None else None)
    if spec is None or spec.submodule_search_locations is None:
        msg = f"{name} is not installed"
        raise ImportError(msg, name=name)
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    package.__package__ = name
    sys.modules[name] = package
    if above is not None:
        setattr(above, last, package)
    return package


_import_parts()

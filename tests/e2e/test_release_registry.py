"""`make release REGISTRY=...`: image and chart are pushed to a real registry on loopback, and are what Helm and podman then get from it.

The registry is that of the CNCF project Distribution, built from its Go module. The image is a small one: what is in an image does not matter to a
registry, and `make release` builds the whole one.
"""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.demo.ports import free_port
from deploy.packaging import archive
from deploy.release import __main__ as release
from deploy.release import image
from deploy.release.source import ReleaseError, Source
from tests.chart.helm import helm
from tests.compose.engine import CannotRunError, Engine
from tests.controlplane.build import build_helm, build_registry, locked
from tests.support.failure_report import show_log
from tests.support.waiting import until

VERSION = "0.1.0"
DOCKERFILE = "ARG BASE\nARG RELEASE\nFROM scratch\nCOPY words /words\n"
BASE = f"localhost/none@sha256:{'a' * 64}"  # not used by this image
pytestmark = pytest.mark.e2e


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """podman with storage of its own, and Helm, as a release finds them."""
    prepared = Engine()
    try:
        prepared.prepare()
    except CannotRunError as why:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(why))
    for name in ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"):
        monkeypatch.setenv(name, prepared.environment[name])
    monkeypatch.setenv("PATH", f"{Path(build_helm()).parent}:{os.environ['PATH']}")
    with locked(prepared.folder / "run.lock"):
        try:
            yield prepared
        finally:
            prepared.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    """A registry; gives HOST:PORT/PATH."""
    address = f"127.0.0.1:{free_port()}"
    config = tmp_path / "registry.yml"
    config.write_text(yaml.safe_dump({
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": address},
    }))  # fmt: skip
    show_log(tmp_path / "registry.log")
    with (tmp_path / "registry.log").open("wb") as log:
        running = subprocess.Popen(
            [build_registry(), "serve", str(config)],
            env=os.environ | {"OTEL_TRACES_EXPORTER": "none"},
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: answers(f"http://{address}/v2/"), "the registry answers")
        yield f"{address}/team"
    finally:
        running.terminate()
        running.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return bool(response.status == 200)
    except urllib.error.URLError:
        return False


@pytest.fixture
def built(engine: Engine, tmp_path: Path) -> Iterator[image.Image]:
    """An image, built as that of a release."""
    folder = tmp_path / "source"
    (folder / "deploy").mkdir(parents=True)
    (folder / "deploy" / "Dockerfile").write_text(DOCKERFILE, encoding="utf-8")
    (folder / "words").write_text("in the image\n" * 1000, encoding="utf-8")
    made = image.build(Source("c" * 40, 1_700_000_000, VERSION, ""), folder, BASE, cached=True)
    yield made
    engine.podman("image", "rm", "--force", made.number)


def test_what_was_pushed_is_what_helm_and_podman_get(
    engine: Engine, built: image.Image, place: str, tmp_path: Path
) -> None:
    """The chart names the image by its digest, which is that of the archive; nothing is set by hand."""
    folder = tmp_path / "dist"
    folder.mkdir()
    packed = archive.packed(place, built.digest)
    (folder / f"gang-extender-{VERSION}.tgz").write_bytes(packed)
    release.push(built, folder, place, VERSION)
    chart = f"oci://{place}/charts/gang-extender"
    options = ("--version", VERSION, "--plain-http", "--namespace", "gang-extender")
    rendered = yaml.load_all(helm("template", "gx", chart, *options), yaml.CSafeLoader)
    (pod,) = (
        one["spec"]["template"]["spec"] for one in rendered if one and one["kind"] == "Deployment"
    )
    name = f"{place}/gang-extender@{built.digest}"
    assert {one["image"] for one in pod["initContainers"] + pod["containers"]} == {name}
    hub = yaml.safe_load(helm("show", "chart", chart, "--version", VERSION, "--plain-http"))
    (listed, _) = yaml.safe_load(hub["annotations"]["artifacthub.io/images"])
    assert listed["image"] == f"{place}/gang-extender:{VERSION}@{built.digest}"
    engine.podman("image", "rm", "--force", built.number)
    for by in (name, f"{place}/gang-extender:{VERSION}"):
        number = engine.podman("pull", "--quiet", "--tls-verify=false", by)
        assert number.removeprefix("sha256:") == built.number.removeprefix("sha256:")
        engine.podman("image", "rm", "--force", number)


def test_a_registry_that_does_not_answer_is_named(engine: Engine, built: image.Image) -> None:
    """With the program that asked it."""
    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(ReleaseError, match=rf"podman push: .*{nowhere}"):
        release.push(built, Path("nowhere"), nowhere, VERSION)

"""Files of a release: what is refused, what names what, the same bytes twice, and the wheel alone in a fresh environment."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from deploy.locked_requirements import SERVICE, entries_of, needed, roots_of
from deploy.release import __main__ as release
from deploy.release import archives, image, krew, provenance, registry, source
from deploy.release.source import ROOT, ReleaseError, Source
from tests.support.logs.postgres import fresh_database
from tests.support.logs.postgres import run as until_async
from tests.support.service.manifest_builders import a_fleet, a_gang
from tests.support.service.replicas import Replica

BASE = "registry.example.com/python@sha256:" + 64 * "a"


@pytest.fixture(scope="module")
def head():
    """The commit that is checked out."""
    return source.read()


@pytest.fixture(scope="module")
def built(head):
    """Its release without an image."""
    return release.build(head, None, "https://example.com/releases")[0]


@pytest.mark.full
def test_a_release_is_the_same_bytes_twice(head, built):
    """Of the commit, not of the moment or the folder."""
    assert release.build(head, None, "https://example.com/releases")[0] == built


def test_a_release_has_these_files(built):
    """Wheel, source distribution, chart, plugin, bill of materials, provenance."""
    assert sorted(built) == [
        "gang-extender-0.1.0.cdx.json",
        "gang-extender-0.1.0.provenance.json",
        "gang-extender-0.1.0.tgz",
        "gang.yaml",
        "gang_extender-0.1.0-py3-none-any.whl",
        "gang_extender-0.1.0.tar.gz",
        "kubectl-gang-0.1.0.tar.gz",
    ]


def test_the_wheel_has_what_a_program_reads(built):
    """Code, page and SQL: manifests and the map of the code are in the source distribution, and 0.7 MB for each who installs the client."""
    wheel = zipfile.ZipFile(io.BytesIO(built["gang_extender-0.1.0-py3-none-any.whl"]))
    names = [name for name in wheel.namelist() if name.startswith("extender/")]
    assert not [name for name in names if name.endswith((".yaml", ".md"))]


def test_sha256sum_accepts_the_checksums(built, tmp_path):
    """Written beside all files, and nothing else stays in the folder."""
    (tmp_path / "old").write_text("of another release")
    release.write(built | {"SHA256SUMS": release.checksums(built)}, tmp_path)
    assert not (tmp_path / "old").exists()
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": OK") == len(built)


def test_the_provenance_names_commit_lock_and_every_file(head, built):
    """As an in-toto statement; a verifier needs no more than digests."""
    found = json.loads(built["gang-extender-0.1.0.provenance.json"])
    assert {one["name"]: one["digest"]["sha256"] for one in found["subject"]} == {
        name: hashlib.sha256(content).hexdigest()
        for name, content in built.items()
        if "provenance" not in name
    }
    commit, lock = found["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"] == {"gitCommit": head.commit}
    shown = subprocess.run(
        ["git", "show", f"{head.commit}:requirements.lock"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert lock["digest"] == {"sha256": hashlib.sha256(shown.stdout).hexdigest()}


def test_the_provenance_names_the_base_image(head, monkeypatch):
    """With its digest, and the program that built on it."""
    monkeypatch.setattr(image, "program_version", lambda: "4.3.1")
    found = json.loads(provenance.statement(head, ROOT, {}, BASE))["predicate"]
    *_, base = found["buildDefinition"]["resolvedDependencies"]
    assert base["uri"] == "registry.example.com/python"
    assert base["digest"] == {"sha256": 64 * "a"}
    assert found["runDetails"]["builder"]["version"]["podman"] == "4.3.1"


def test_krew_installs_the_archive_that_the_manifest_names(built):
    """Digest, address, program; and its requirements are those of the lock, by hash."""
    manifest = yaml.safe_load(built["gang.yaml"])
    packed = built["kubectl-gang-0.1.0.tar.gz"]
    assert manifest["spec"]["version"] == "v0.1.0"
    for one in manifest["spec"]["platforms"]:
        assert one["sha256"] == hashlib.sha256(packed).hexdigest()
        assert one["uri"] == "https://example.com/releases/v0.1.0/kubectl-gang-0.1.0.tar.gz"
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as archive:
        modes = {one.name: one.mode for one in archive.getmembers()}
        lines = archive.extractfile("requirements.txt").read().decode()
    assert modes == {
        "LICENSE": 0o644,
        "gang_extender-0.1.0-py3-none-any.whl": 0o644,
        "kubectl-gang": 0o755,
        "requirements.txt": 0o644,
    }
    entries = entries_of(lines)
    assert {"msgspec", "typer", "markdown-it-py"} <= {*entries}
    assert not {"aiohttp", "numpy", "pydantic", "pytest", "ruff"} & {*entries}
    assert all("--hash=sha256:" in "\n".join(entry) for entry in entries.values())


def test_archives_have_one_time_no_owners_and_two_modes():
    """The order in which files are given does not matter."""
    files = {"b": b"2", "a": b"1"}
    first = archives.packed(files, time_s=7, programs=frozenset({"a"}))
    assert first == archives.packed(dict(sorted(files.items())), time_s=7, programs=frozenset("a"))
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        assert [(one.name, one.mode, one.mtime, one.uid, one.uname) for one in archive] == [
            ("a", 0o755, 7, 0, ""),
            ("b", 0o644, 7, 0, ""),
        ]
    assert archives.compressed(first) == archives.compressed(first)


def test_a_base_without_digest_is_refused():
    """Its tag may name another image tomorrow."""
    assert image.digest_of(BASE) == "sha256:" + 64 * "a"
    with pytest.raises(ReleaseError, match=r"'python:3.12' has no digest.*IMAGE=none"):
        image.digest_of("python:3.12")


def test_without_podman_the_image_is_not_left_out_silently(head, tmp_path, monkeypatch):
    """The release ends with what to install, or how to leave the image out."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReleaseError, match=r"podman is not installed.*IMAGE=none"):
        image.build(head, tmp_path, BASE, cached=True)


REGISTRIES = {
    "registry.example.com": False,
    "registry.example.com:5000/team/images": False,
    "localhost": True,
    "localhost:5000/team": True,
    "127.0.0.1:5000": True,
    "[::1]:5000/team": True,
    "[2001:db8::1]": False,
}


@pytest.mark.parametrize("place", REGISTRIES)
def test_a_registry_on_this_machine_is_asked_without_tls(place):
    """And no other one."""
    assert registry.checked(place) == place
    assert registry.is_loopback(place) == REGISTRIES[place]


@pytest.mark.parametrize("place", ["https://registry.example.com", "Registry.example.com", "a/b:c", "a/", ""])  # fmt: skip
def test_what_is_no_registry_is_refused(place):
    """With what it should look like."""
    with pytest.raises(ReleaseError, match=rf"REGISTRY: '{place}' is not HOST\[:PORT\]"):
        registry.checked(place)


def test_an_image_that_must_not_be_published_is_not_pushed():
    """One on a stand-in of its base stays on this machine; without an image there is none for the chart to name."""
    release.check_push("registry.example.com", BASE)
    release.check_push("localhost:5000", "localhost/stand-in@sha256:" + 64 * "a")
    with pytest.raises(ReleaseError, match=r"must not be published; set BASE="):
        release.check_push("registry.example.com", "localhost/stand-in@sha256:" + 64 * "a")
    with pytest.raises(ReleaseError, match=r"REGISTRY=registry.example.com with IMAGE=none"):
        release.check_push("registry.example.com", None)


HEADINGS = {
    "no release yet": ("## [Unreleased]\n*Unreleased* becomes 0.1.0.", "", True),
    "no release yet, but a tag": ("## [Unreleased]\n*Unreleased* becomes 0.1.0.", "v0.1.0", False),
    "of another version": ("## [Unreleased]\n*Unreleased* becomes 0.2.0.", "", False),
    "released": ("## [Unreleased]\n\n## [0.1.0] - 2026-12-01\n", "v0.1.0", True),
    "without its date": ("## [Unreleased]\n\n## [0.1.0]\n", "v0.1.0", False),
    "only the one before": ("## [Unreleased]\n\n## [0.0.9] - 2026-11-01\n", "v0.1.0", False),
}


@pytest.mark.parametrize("case", HEADINGS)
def test_the_changelog_has_the_version(case):
    """As a heading with its date once the commit is tagged."""
    text, tag, good = HEADINGS[case]
    problems = source.heading_problems(text, Source("c" * 40, 0, "0.1.0", tag))
    assert (problems == []) == good
    assert all("CHANGELOG.md" in one and "0.1.0" in one for one in problems)


def test_the_files_of_this_checkout_agree(head):
    """Version of package, chart and changelog; chart and bill of materials as they are written."""
    assert source.differing(head) == []


def repository(folder: Path) -> Path:
    """Make a copy of this checkout with a history of its own: files of the commit, without what is not committed."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, folder], check=True)
    return folder


def run_release(folder, *words):
    """Run the release of a checkout."""
    return subprocess.run(
        [sys.executable, "-m", "deploy.release", "--no-image", "--into", "out", *words],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_checkout_that_is_not_clean_or_has_another_tag_is_refused(tmp_path):
    """With each file and what would help; nothing is written."""
    folder = repository(tmp_path / "checkout")
    (folder / "forgotten.txt").write_text("x")
    (folder / "Makefile").write_text("all:\n")
    refused = run_release(folder)
    assert refused.returncode == 1
    for line in ("the checkout is not clean", " M Makefile", "?? forgotten.txt"):
        assert line in refused.stderr
    (folder / "forgotten.txt").unlink()
    for command in (["checkout", "-q", "Makefile"], ["tag", "v9.9.9"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    refused = run_release(folder)
    assert refused.returncode == 1
    assert "has the tag v9.9.9, pyproject.toml has version 0.1.0" in refused.stderr
    assert not (folder / "out").exists()


def installed(built, folder, requirements):
    """Install the wheel with the packages of a requirements file in a new environment; gives what runs its programs outside of the checkout."""
    name = next(name for name in built if name.endswith(".whl"))
    wheel = folder / name
    wheel.write_bytes(built[name])
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    locked = folder / "requirements.txt"
    locked.write_text(requirements)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("GANG_", "PYTHON"))}
    for words in (
        ["--require-hashes", "--requirement", str(locked)],
        ["--no-deps", "--no-index", str(wheel)],
    ):
        command = [environment / "bin" / "pip", "install", "--quiet", *words]
        subprocess.run(command, env=environ, check=True)

    def run(*words, code=0):
        """Run a program; gives what it prints."""
        done = subprocess.run(
            [environment / "bin" / words[0], *words[1:]],
            cwd=folder, env=environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stdout + done.stderr

    return run


@pytest.mark.full
@pytest.mark.postgres
def test_the_wheel_works_alone(built, tmp_path, empty_database_url):
    """With the extra of the service, in a fresh environment: version, plan, migrations, page."""
    entries = entries_of((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    names = sorted(needed(entries, roots_of(ROOT / "pyproject.toml", SERVICE)))
    run = installed(built, tmp_path, "".join("\n".join(entries[name]) + "\n" for name in names))
    shutil.copytree(ROOT / "deploy" / "examples", tmp_path / "examples")
    assert "0.1.0" in run("gang-extender", "--version")
    plan = run("gang-extender", "plan", "-f", "examples/train.yaml", "--cluster", "examples/cluster.yaml")  # fmt: skip
    assert "train" in plan
    assert "has schema" in run("gang-extender", "db", "migrate", "--database-url", empty_database_url)  # fmt: skip
    assert run("gang-extender", "verify", "--database-url", empty_database_url)
    assert "explain" in run("kubectl-gang", "--help")
    where = run("python", "-c", "import extender; print(extender.__file__)").strip()
    folder = Path(where).parent
    assert tmp_path / "venv" in folder.parents
    for file in (
        "http/pages/index.html",
        "store/postgres/roles.sql",
        "store/migrations/env.py",
    ):
        assert (folder / file).is_file(), file


CLIENT_BYTES_MAX = 40_000_000
# Sums up the files of all packages but those that `python -m venv` brings.
SIZE = """
from importlib.metadata import distributions
packages = [d for d in distributions() if d.metadata["Name"] not in ("pip", "setuptools")]
print(sum(file.locate().stat().st_size for d in packages for file in d.files if file.locate().exists()))
"""


@pytest.mark.full
@pytest.mark.postgres
def test_the_base_package_is_a_client_that_weighs_little(built, tmp_path, postgres_url, template_database):  # fmt: skip
    """In a fresh environment beside a real service: it asks, and names the extra of what it cannot do."""
    run = installed(built, tmp_path, krew.requirements(ROOT))
    assert int(run("python", "-c", SIZE)) <= CLIENT_BYTES_MAX
    folder = tmp_path / "manifests"
    folder.mkdir()
    objects = [*a_fleet("4 nodes", gpu=4), *a_gang("train", pods=2)]
    (folder / "all.yaml").write_text(yaml.safe_dump_all(objects))
    with fresh_database(postgres_url, template=template_database) as url:
        replica = Replica(tmp_path, url, folder, "a")
        try:
            until_async(replica.until_leads())
            until_async(replica.until_events("?type=GangAdmitted", 1))
            server = ("--server", replica.url)
            assert "train" in run("gang-extender", "gangs", *server)
            assert "GangAdmitted" in run("gang-extender", "history", "train", *server)
            assert "GangAdmitted" in run("kubectl-gang", "events", "--follow", "--after", "0", "--limit", "3", *server)  # fmt: skip
            status = json.loads(run("gang-extender", "status", "-o", "json", *server))
            assert status["gangs"]
        finally:
            replica.end()
    served = run("gang-extender", "serve", code=2)
    assert served.endswith("pip install 'gang-extender[server]'\n")
    planned = run("gang-extender", "plan", "--cluster", "manifests", code=2)
    assert planned.endswith("pip install 'gang-extender[plan]'\n")


@pytest.mark.full
def test_the_archive_for_krew_installs_its_packages_once(built, tmp_path):
    """The script is called through a link, as krew makes one; the second call finds what the first has installed."""
    with tarfile.open(
        fileobj=io.BytesIO(gzip.decompress(built["kubectl-gang-0.1.0.tar.gz"]))
    ) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4
        archive.extractall(tmp_path / "store")
    link = tmp_path / "bin" / "kubectl-gang"
    link.parent.mkdir()
    link.symlink_to("../store/kubectl-gang")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("GANG_", "PYTHON"))}
    environ |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHON": sys.executable}

    def call(**more):
        """Call the plugin."""
        return subprocess.run(
            [link, "--version"], env=environ | more, capture_output=True, text=True, check=False
        )

    refused = call(PYTHON="/bin/false")
    assert refused.returncode == 1
    assert "/bin/false is not Python 3.11 or newer" in refused.stderr
    first, second = call(), call(PYTHON="/bin/false")
    assert "0.1.0" in first.stdout, first.stderr
    assert "the first call installs its packages" in first.stderr
    assert (second.returncode, second.stdout, second.stderr) == (0, first.stdout, "")

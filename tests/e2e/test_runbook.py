"""The commands of README.md, of two how-tos and of the runbook (deploy/README.md, docs/runbook), as written, on a real API server and PostgreSQL.

Every command of an indented block runs in a shell, or is listed here with the reason why not; one
that is new and does neither fails. What a reader must fill in is in one table.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import URL, make_url

from deploy.demo.ports import free_port
from extender.store.connections import plain_url
from extender.store.embedded.os_account import find_binaries
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process
from tests.e2e.conftest import NEWEST, require_programs
from tests.support import page_commands
from tests.support.logs.postgres import run, running_postgres
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
INSTALL = "docs/how-to/install.md"
TOP = (INSTALL, "README.md", "docs/how-to/ask-the-service.md")
RUNBOOK = (
    "deploy/README.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs/runbook").glob("*.md")),
)
BY_CI = "a stage of .ci/run by itself"
BY_COMPOSE = "make compose runs it"
NEEDS_PAST = (
    "asks for events that a new log does not have; tests/unit/test_cli.py, tests/acceptance"
)
DUMP = "tests/integration/store/test_embedded.py dumps a log of the embedded server and restores it into a newer one"
CHART = "tests/e2e/test_chart.py"
READERS = "the service has no rights of readers here; tests/e2e/scenarios/test_readers.py"
# The beginning of a command -> why it does not run here.
NOT_RUN = {
    "make demo": BY_CI,
    "make test": BY_CI,
    "docker build ": BY_COMPOSE,
    "docker compose up": BY_COMPOSE,
    "kube-scheduler --config=": BY_COMPOSE + ", with this file where kubeadm puts its kubeconfig",
    "kubectl get --raw /api/v1/namespaces/gang-extender/services/": "no pod runs behind it here",
    "gang-extender events --follow": "has no end; tests/acceptance/test_event_stream_failover.py",
    "gang-extender gangs --context": READERS,
    "gang-extender proxy --context": READERS,
    "curl --cacert ca.crt --connect-to": READERS,
    "gang-extender gangs -n team-a": "has no end; tests/integration/test_list_commands.py",
    "gang-extender state --at": NEEDS_PAST,
    "gang-extender decision replay": NEEDS_PAST,
    "gang-extender explain --why-preempted": NEEDS_PAST,
    "pg_dump -Fc -n gx -h DATA_DIR": DUMP,
    "pg_restore --exit-on-error": DUMP,
    "helm ": CHART,
    "kubectl apply --server-side -k deploy/kustomize": CHART,
    "kubectl apply --server-side -f deploy/kubernetes/cert-manager": "needs the CRDs of cert-manager; tests/unit/test_deploy.py has their schemas",
    "gang-extender verify --database-url": "needs a service that signs its anchors; tests/integration/test_verify_command.py",
    "gang-extender serve ": "has no end; started by the test with these arguments",
}
NO_SHELL = ("nodes, pods, groups",)  # the first line of a block that is a drawing
SUPERUSER = "administrator"
FILLED_IN = {
    "gang-extender certs pki --renew": "gang-extender certs $PKI --renew",
    "gang-extender certs pki": "test -e $PKI || gang-extender certs $PKI",  # both texts make it
    "=pki/": "=$PKI/",
    " pki/": " $PKI/",
    "gang-extender keys anchor.key": "test -e $PKI/anchor.key || gang-extender keys $PKI/anchor.key",
    "=anchor.key": "=$PKI/anchor.key",
    "kubectl create rolebinding gangs": (
        "kubectl get namespace team-a || kubectl create namespace team-a; kubectl create rolebinding gangs"
    ),
    "> anchors-$(date +%F).yaml": "> $PKI/anchors.yaml",
    "/etc/kubernetes/gang-extender": "$NODE_FILES",
    ".venv/bin/gang-extender": "gang-extender",
    "gang-extender db migrate --database-url postgresql://...": (
        "gang-extender db migrate --database-url $MIGRATE_URL"
    ),
    "http://127.0.0.1:8888": "$GANG_EXTENDER_SERVER",
    # Exit code 1 is the answer here: it does not fit, because there are no nodes.
    "-f deploy/examples/train.yaml": "-f deploy/examples/serve.yaml || test $? = 1",
}

pytestmark = pytest.mark.e2e


def blocks(files: tuple[str, ...]) -> list[list[str]]:
    """Return the commands of each indented block of some pages; what continues a command is one with it."""
    found: list[list[str]] = []
    previous = ""
    for line in (line for file in files for line in (*lines_of(file), "")):
        if line.startswith("    ") and line.strip():
            if not previous.startswith("    "):
                found.append([])
            found[-1].append(line[4:])
        previous = line
    return [list(commands(lines)) for lines in found if not lines[0].startswith(NO_SHELL)]


def lines_of(file: str) -> list[str]:
    """Return the lines of a page outside of its fenced blocks: those of docs/how-to/install.md are followed by test_first_gang.py."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()


def commands(lines: list[str]) -> Iterator[str]:
    """Join what a shell reads as one command: continued lines, here-documents, loops."""
    whole: list[str] = []
    for line in lines:
        whole.append(line)
        text = "\n".join(whole)
        document = re.search(r"<<'?(\w+)'?", text)
        open_loop = text.startswith("for ") and line != "done"
        if line.endswith("\\") or open_loop or (document and line != document.group(1)):
            continue
        if not line.startswith("#"):
            yield text
        whole = []
    assert not whole, f"a command without an end: {whole}"


def filled_in(command: str) -> str:
    for words, value in FILLED_IN.items():
        command = command.replace(words, value)
    return command


def not_leading_reason(command: str) -> str:
    """Return why a command does not run here; empty when it does."""
    return next((why for words, why in NOT_RUN.items() if command.startswith(words)), "")


@dataclass
class Reader:
    """Who follows the text: a shell at the top of a checkout, with the programs on PATH."""

    plane: ControlPlane
    environment: dict[str, str]
    ran: list[str] = field(default_factory=list)

    def follow(self, block: list[str]) -> str:
        """Run a block as one script; give what it printed."""
        script = [filled_in(command) for command in block if not not_leading_reason(command)]
        self.ran += script
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", "\n".join(script)],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A control plane and a PostgreSQL of their own: the commands change what others share."""
    require_programs(NEWEST)
    programs = tmp_path / "bin"
    programs.mkdir()
    with running_postgres() as server, ControlPlane(NEWEST, tmp_path / "plane") as plane:
        url = make_url(server.url)
        assert url.database == "gang_extender"
        run(make_external(server.url))
        (programs / "kubectl").symlink_to(plane.binaries / "kubectl")
        (programs / "gang-extender").write_text(
            f'#!/bin/sh\nexec {sys.executable} -m extender "$@"\n', encoding="utf-8"
        )
        (programs / "gang-extender").chmod(0o755)
        environment = {
            "PATH": f"{programs}:{find_binaries().folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "KUBECONFIG": str(plane.kubeconfig()),
            "PGHOST": str(url.query["host"]),
            "PGUSER": SUPERUSER,
            "MIGRATE_URL": with_password(url, "gang_migrator"),
            "GANG_EXTENDER_DATABASE_URL": with_password(url, "gang_extender"),
            "PKI": str(tmp_path / "pki"),
            "NODE_FILES": str(tmp_path / "node"),
            "GANG_EXTENDER_SERVER": f"https://127.0.0.1:{free_port()}",
            "SSL_CERT_FILE": str(tmp_path / "pki" / "ca.crt"),
        }
        yield Reader(plane, environment)


async def make_external(url: str) -> None:
    """Make the embedded server one as others run it: another superuser, roles that log in by password."""
    connection = await asyncpg.connect(plain_url(url))
    try:
        rules = Path(await connection.fetchval("SHOW hba_file"))
        lines = f"local all {SUPERUSER} trust\nlocal all all scram-sha-256\n"
        rules.write_text(lines + rules.read_text(encoding="utf-8"), encoding="utf-8")
        await connection.execute(f"CREATE ROLE {SUPERUSER} SUPERUSER LOGIN")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()
    outside = make_url(url).set(username=SUPERUSER).render_as_string(hide_password=False)

    async def renamed() -> bool:
        try:
            connection = await asyncpg.connect(plain_url(outside))
        except asyncpg.InvalidAuthorizationSpecificationError:  # not read again yet
            return False
        try:
            name = make_url(url).username
            await connection.execute(f'ALTER ROLE "{name}" RENAME TO embedded')
        finally:
            await connection.close()
        return True

    await eventually(renamed)


def with_password(url: URL, role: str) -> str:
    """Return the URL of a role with the password that the runbook writes."""
    return url.set(username=role, password="...").render_as_string(hide_password=False)


def serving(reader: Reader, folder: Path) -> Process:
    """Start the service with the arguments of docs/how-to/install.md."""
    (line,) = (c for b in blocks(TOP) for c in b if c.startswith("gang-extender serve "))
    words = line.replace("\\\n", " ").split()[2:]
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert (given.pop("--database-url"), given.pop("--kubeconfig")) == ("postgresql://...", "...")
    pki = reader.environment["PKI"]
    certificates = [
        word for flag, file in given.items() for word in (flag, file.replace("pki", pki, 1))
    ]
    command = [
        *(sys.executable, "-m", "extender", "serve"),
        *("--database-url", reader.environment["GANG_EXTENDER_DATABASE_URL"]),
        *("--kubeconfig", str(reader.plane.kubeconfig("extender"))),
        *certificates,
    ]
    listeners = {
        "GANG_EXTENDER_LISTEN": f"127.0.0.1:{free_port()}",
        "GANG_EXTENDER_API_LISTEN": reader.environment["GANG_EXTENDER_SERVER"].removeprefix(
            "https://"
        ),
        "GANG_EXTENDER_AUTHENTICATION": "none",  # commands of the text ask it without a token
    }
    return Process("extender", command, folder / "extender.log", listeners)


@pytest.mark.full
def test_every_command_runs_or_is_listed(reader: Reader, tmp_path: Path) -> None:
    """The runbook in its order, with the roles first; then README.md and the how-tos with the service up."""
    runbook, top = blocks(RUNBOOK), blocks(TOP)
    (roles,) = (b for b in runbook if b[0].startswith("psql "))
    (install,) = (b for b in top if any(c.startswith("gang-extender db migrate") for c in b))
    (by_file,) = (b for b in top if any("kubernetes/deployment.yaml" in c for c in b))
    (remove,) = (b for b in runbook if b[0].startswith("for kind in"))
    reader.follow(roles)
    reader.follow(install)
    (first_step,) = page_commands.blocks(INSTALL, "1. Database, certificates, Secrets")
    reader.follow([c for c in page_commands.commands(first_step) if " create secret " in c])
    service, authority = serving(reader, tmp_path), reader.environment["SSL_CERT_FILE"]
    service.start()
    try:
        service.wait_until(
            lambda: answers(f"{reader.environment['GANG_EXTENDER_SERVER']}/readyz", authority)
        )
        reader.follow(by_file)  # the runbook changes what it has applied
        for block in runbook:
            if block not in (roles, remove):
                reader.follow(block)
        for block in top:
            if block not in (install, by_file):
                reader.follow(block)
    finally:
        service.stop()  # before finalizers are taken off, as in the runbook
    reader.follow(remove)
    listed = {why for why in NOT_RUN if any(c.startswith(why) for b in runbook + top for c in b)}
    assert listed == set(NOT_RUN), "a reason is left of a command that is gone"


def test_each_way_to_install_applies_the_same_in_the_same_order() -> None:
    """The admission policies are the last of each: with them members are held. Without pods there is nothing for them."""
    by_file, as_processes = (
        applied(b) for b in blocks((INSTALL,)) if any("namespace.yaml" in c for c in b)
    )
    assert by_file[-1] == as_processes[-1] == "deploy/kubernetes/admission-policy.yaml"
    assert [file for file in by_file if file in as_processes] == as_processes
    assert set(by_file) - set(as_processes) == {
        "deploy/kubernetes/deployment.yaml",
        "deploy/kubernetes/service.yaml",
    }


def applied(block: list[str]) -> list[str]:
    """Return the manifests that a block applies, in order."""
    lines = [c for c in block if c.startswith("kubectl apply --server-side")]
    return [word for line in lines for word in re.findall(r"-f (deploy/kubernetes/\S+)", line)]


def answers(url: str, authority: str) -> bool:
    trusted = ssl.create_default_context(cafile=authority)
    try:
        with urllib.request.urlopen(url, timeout=30, context=trusted) as response:
            return bool(response.status == 200)
    except OSError:
        return False

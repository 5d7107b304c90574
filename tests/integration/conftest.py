"""The service as a child process, on a database of its own and a cluster of one node."""

from __future__ import annotations

import os

import pytest
import yaml

from deploy.demo.ports import free_port
from tests.support.logs.postgres import fresh_database
from tests.support.service import fork_server
from tests.support.service.manifest_builders import a_fleet


@pytest.fixture(scope="session", autouse=True)
def _log_is_verified_late():
    with fork_server.shortened(fork_server.VERIFIES_LATE):
        yield


@pytest.fixture
def manifests(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump_all(a_fleet("1 nodes")))
    return path


@pytest.fixture
def serve(postgres_url, template_database, tmp_path):
    """Start `serve` with these words; gives the process, its URL, and what it writes to stderr."""
    started = []
    with fresh_database(postgres_url, template=template_database) as url:

        def start(*words, stdout, stderr, **environ):
            port = free_port()
            command = ["serve", "--database-url", url, "--data-dir", str(tmp_path)]
            process = fork_server.run(
                [*command, "--listen", f"127.0.0.1:{port}", *words],
                os.environ | environ,
                stdout,
                errors=stderr,
            )
            started.append(process)
            return process, f"127.0.0.1:{port}", url

        try:
            yield start
        finally:
            for process in started:
                process.kill()
                process.wait()

"""The service as a child process, on a database of its own and a cluster of one node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.demo.ports import free_port
from tests.support.logs.postgres import fresh_database
from tests.support.service.command_line import product_environ
from tests.support.service.manifest_builders import a_fleet

ROOT = Path(__file__).parents[2]


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
            command = [sys.executable, "-m", "extender", "serve", "--database-url", url]
            process = subprocess.Popen(
                [*command, "--data-dir", str(tmp_path), "--listen", f"127.0.0.1:{port}", *words],
                cwd=ROOT,
                env=product_environ() | environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
            started.append(process)
            return process, f"127.0.0.1:{port}", url

        try:
            yield start
        finally:
            for process in started:
                process.kill()
                process.wait()

"""Completion with the names of a running service, as bash and kubectl ask for it."""

from __future__ import annotations

import os
from subprocess import PIPE

import pytest

from deploy.demo.ports import free_port
from tests.support.service import fork_server

pytestmark = pytest.mark.postgres


def run(environ, *words, module="extender"):
    environ = os.environ | {"PATH": "/nowhere"} | environ
    command = fork_server.run(words, environ, PIPE, errors=PIPE, module=module, text=True)
    output, errors = command.communicate()
    assert (command.returncode, errors) == (0, "")
    return output.splitlines()


def kubectl(*words):
    """Return what kubectl reads to complete `kubectl gang WORDS`; the last word is incomplete."""
    return run({}, *words, module="extender.cli.completion.kubectl_completion")


def bash(*words):
    """Return what bash reads to complete `gang-extender WORDS`."""
    environ = {
        "_GANG_EXTENDER_COMPLETE": "complete_bash", "COMP_CWORD": str(len(words)),
        "COMP_WORDS": " ".join(("gang-extender", *words)),
    }  # fmt: skip
    return run(environ)


def test_names_of_the_default_namespace_need_no_prefix(service):
    """Groups, pods and nodes for explain; the kind is the description; files are not offered."""
    found = kubectl("explain", "--server", service.url, "fi")
    assert "fits\tPodGroup" in found
    assert "fits-0\tPod" in found
    assert found[-1] == ":4"
    assert all(line.startswith("fi") for line in found[:-1])


def test_names_with_their_namespace_and_of_one_that_is_chosen(service):
    """After `default/` names have it; with another namespace those of default need it."""
    assert "default/fits\tPodGroup" in kubectl("explain", "--server", service.url, "default/f")
    other = kubectl("explain", "-n", "team-a", "--server", service.url, "")
    assert "default/fits\tPodGroup" in other
    assert "fits\tPodGroup" not in other


def test_history_has_only_groups(service):
    """The log has events about groups, so a pod is not offered."""
    found = kubectl("history", "--server", service.url, "")
    assert {line.partition("\t")[2] for line in found[:-1]} == {"PodGroup"}


def test_bash_completes_commands_and_names(service):
    """The same names for the shell; as an option's value too."""
    assert "explain" in bash("ex")
    assert "fits" in bash("explain", "--server", service.url, "fi")
    assert "fits-0" in bash("preemptions", "--server", service.url, "--victim", "fi")


def test_without_a_service_there_are_no_names_and_no_noise():
    """A shell shows what is printed in the middle of the line."""
    away = f"http://127.0.0.1:{free_port()}"
    assert kubectl("explain", "--server", away, "fi") == [":4"]
    assert kubectl("explain", "--context", "missing", "fi") == [":4"]
    assert kubectl("explain", "--server", "not an address", "fi") == [":4"]

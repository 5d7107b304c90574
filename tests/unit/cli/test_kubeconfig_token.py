"""Which token a kubeconfig has for a context: from several files, from a file beside it, and from a credential plugin."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from extender.cli.connection.service_credentials import kubeconfig_token
from extender.core.model.errors import BadInput

V1 = "client.authentication.k8s.io/v1"


def write(path, users, contexts, current=""):
    """Write a kubeconfig: user by name, and name of the user by context."""
    document = {
        "apiVersion": "v1", "kind": "Config", "clusters": [], "current-context": current, "preferences": {},
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "contexts": [{"name": name, "context": {"user": user, "cluster": "c"}} for name, user in contexts.items()],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(document))
    return str(path)


def plugin(text, **more):
    """Return a user whose plugin prints a text."""
    return {"exec": {"apiVersion": V1, "command": sys.executable, "args": ["-c", text]} | more}


def credential(token, version=V1):
    answer = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": token}}
    return f"print({msgspec.json.encode(answer).decode()!r})"


def test_the_first_of_several_files_counts(tmp_path):
    """As of kubectl: for each entry, and for the current context; a file that is not there counts as empty."""
    first = write(tmp_path / "a", {"u": {"token": "first"}}, {"x": "u"}, current="y")
    second = write(
        tmp_path / "b", {"u": {"token": "second"}, "v": {"token": "other"}}, {"x": "v", "y": "v"}
    )
    paths = os.pathsep.join(("/nowhere/config", first, second))
    assert kubeconfig_token(paths, "x") == "first"
    assert kubeconfig_token(paths, None) == "other"


def test_the_file_of_a_token_is_beside_the_kubeconfig(tmp_path):
    """And is used before a token that is written down, as of kubectl."""
    (tmp_path / "token").write_text("of-file\n")
    path = write(tmp_path / "a", {"u": {"tokenFile": "token", "token": "old"}}, {"x": "u"}, "x")
    assert kubeconfig_token(path, None) == "of-file"


def test_a_plugin_gets_what_kubectl_gives_it(tmp_path):
    """Its variables, and the request; a command with a slash is beside the kubeconfig."""
    program = tmp_path / "plugin"
    program.write_text(f"""#!{sys.executable}
import json, os
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert info["apiVersion"] == {V1!r} and info["kind"] == "ExecCredential"
print(json.dumps({{"apiVersion": {V1!r}, "kind": "ExecCredential", "status": {{"token": os.environ["GIVEN"]}}}}))
""")
    program.chmod(0o700)
    user = {"exec": {"apiVersion": V1, "command": "./plugin", "args": None, "env": [{"name": "GIVEN", "value": "t"}]}}  # fmt: skip
    assert kubeconfig_token(write(tmp_path / "a", {"u": user}, {"x": "u"}, "x"), None) == "t"


def test_the_token_of_an_older_provider_is_the_one_that_kubectl_renewed(tmp_path):
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": "of-oidc", "client-id": "c"}}}
    assert kubeconfig_token(write(tmp_path / "a", {"u": user}, {"x": "u"}, "x"), None) == "of-oidc"


def test_a_user_without_a_token_has_none(tmp_path):
    users = {"certificate": {"client-certificate-data": "AA=="}, "empty": None}
    path = write(tmp_path / "a", users, {"x": "certificate", "y": "empty"}, "x")
    assert [kubeconfig_token(path, name) for name in ("x", "y")] == ["", ""]


def test_a_context_without_a_user_has_no_token(tmp_path):
    path = write(tmp_path / "a", {}, {"x": ""}, "x")
    assert kubeconfig_token(path, None) == ""


def test_a_kubeconfig_can_be_a_pipe(tmp_path):
    """As of the shell: `--kubeconfig <(program)`."""
    body = Path(write(tmp_path / "a", {"u": {"token": "t"}}, {"x": "u"}, "x")).read_bytes()
    reader, writer = os.pipe()
    os.write(writer, body)
    os.close(writer)
    try:
        assert kubeconfig_token(f"/dev/fd/{reader}", None) == "t"
    finally:
        os.close(reader)


def test_yaml_that_is_not_valid_has_its_line(tmp_path):
    (tmp_path / "config").write_text("users:\n- name: u\n\tuser: {token: SECRET}\n")
    with pytest.raises(BadInput, match=r"config: line 3, column 1: not valid YAML: ") as fault:
        kubeconfig_token(str(tmp_path / "config"), None)
    assert "SECRET" not in str(fault.value)


FAULTS = {
    "absent context": ({"u": {}}, {"x": "u"}, "prod", "no context 'prod'; it has x"),
    "no current context": ({"u": {}}, {"x": "u"}, None, "no current context; it has x"),
    "absent user": ({}, {"x": "u"}, "x", "context x has user 'u', which is not in it"),
    "no file of a token": ({"u": {"tokenFile": "gone"}}, {"x": "u"}, "x", "user u: tokenFile"),
    "failing plugin": ({"u": plugin("raise SystemExit(3)")}, {"x": "u"}, "x", "ended with exit code 3"),
    "silent plugin": ({"u": plugin("")}, {"x": "u"}, "x", "printed no ExecCredential"),
    "other version": ({"u": plugin(credential("t", "v9"))}, {"x": "u"}, "x", f"printed v9, and the kubeconfig asks for {V1}"),
    "plugin that needs the cluster": (
        {"u": {"exec": {"apiVersion": V1, "command": "false", "provideClusterInfo": True}}}, {"x": "u"}, "x",
        "ended with exit code 1; provideClusterInfo is not supported",
    ),
    "command of no program": ({"u": {"exec": {"apiVersion": V1, "command": "a\0b"}}}, {"x": "u"}, "x", "cannot be run: embedded null byte"),
    "variable without a name": (
        {"u": {"exec": {"apiVersion": V1, "command": "true", "env": [{"name": "A=B", "value": ""}]}}}, {"x": "u"}, "x",
        "cannot be run: illegal environment variable name",
    ),
    "two lines": ({"u": {"token": "SECRET\nb"}}, {"x": "u"}, "x", "user u: token: is not one token"),
    "no ASCII": ({"u": plugin(credential("SECRET\u20ac"))}, {"x": "u"}, "x", "user u: token: is not one token"),
    "absent plugin": (
        {"u": {"exec": {"apiVersion": V1, "command": "no-such-plugin", "installHint": "get it at example.com"}}}, {"x": "u"}, "x",
        "no-such-plugin: No such file or directory; get it at example.com",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_names_file_and_user(tmp_path, name):
    users, contexts, context, sentence = FAULTS[name]
    path = write(tmp_path / "config", users, contexts)
    with pytest.raises(BadInput) as fault:
        kubeconfig_token(path, context)
    assert str(fault.value).startswith(f"kubeconfig {path}: ")
    assert sentence in str(fault.value)
    assert "SECRET" not in str(fault.value)


@pytest.mark.parametrize("text", ["users: [1]", "users: {", "- a"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path, text):
    (tmp_path / "config").write_text(text)
    with pytest.raises(BadInput, match=f"^kubeconfig {tmp_path}/config: "):
        kubeconfig_token(str(tmp_path / "config"), None)
    with pytest.raises(BadInput, match=f"^kubeconfig {tmp_path}: Is a directory"):
        kubeconfig_token(str(tmp_path), None)
    with pytest.raises(BadInput, match=r"^kubeconfig /nowhere: no such file; --kubeconfig FILE"):
        kubeconfig_token("/nowhere", None)

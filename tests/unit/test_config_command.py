"""`gang-extender config`: every setting with its value, its default, and where the value is from."""

from __future__ import annotations

import json

import pytest
import yaml

from extender.cli.commands.serve_command import setting_lines
from extender.settings import MASK, PREFIX, Settings, all_settings, masked
from tests.support.service.command_line import run_command


def lines_of(environ, **flags):
    return {line.name: line for line in setting_lines(environ, flags)}


def test_every_setting_is_listed_once_in_order():
    """With its flag, its variable and its description; without anything each has its default."""
    lines = setting_lines({"HOME": "/home/me"}, {})
    assert [line.name for line in lines] == [setting.name for setting in all_settings()]
    for line, setting in zip(lines, all_settings(), strict=True):
        assert (line.flag, line.variable) == (setting.flag, setting.variable)
        assert line.effect == setting.help
        assert (line.source, line.set_by) == ("default", "")
        assert line.value == line.default
    assert lines_of({"HOME": "/home/me"})["data_dir"].value == "/home/me/.local/share/gang-extender"


@pytest.mark.parametrize(
    ("environ", "flags", "expected"),
    [
        ({}, {"listen": "[::1]:9"}, ("[::1]:9", "flag", "--listen")),
        ({PREFIX + "LISTEN": "localhost:1"}, {}, ("localhost:1", "variable", PREFIX + "LISTEN")),
        (
            {PREFIX + "LISTEN": "localhost:1"},
            {"listen": "localhost:2"},
            ("localhost:2", "flag", "--listen"),
        ),
        ({PREFIX + "LISTEN": ""}, {"listen": None}, ("127.0.0.1:8888", "default", "")),
    ],
    ids=["flag", "variable", "flag and variable", "empty variable"],
)
def test_the_source_of_a_value_is_named(environ, flags, expected):
    """A flag takes precedence over a variable; an empty variable is not set."""
    line = lines_of(environ, **flags)["listen"]
    assert (line.value, line.source, line.set_by) == expected
    assert line.default == "127.0.0.1:8888"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example:8443/services/T0/x?token=y", f"https://hooks.example:8443/{MASK}"),
        ("https://me:pw@hooks.example/x", f"https://hooks.example/{MASK}"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9"),
        ("http://[::1]:9/x", f"http://[::1]:9/{MASK}"),
    ],
)
def test_of_the_url_of_notifications_only_the_place_is_shown(url, shown):
    """Its path may be the secret of the receiver."""
    assert lines_of({}, notify_url=url, notify_secret_file="/keys")["notify_url"].value == shown


def test_a_default_that_depends_on_the_address_is_shown_as_it_is_used():
    """The URL for other replicas and the identity are made from --listen."""
    found = lines_of({}, listen="[::1]:9", identity="a")
    assert found["advertise_url"].value == "http://[::1]:9"
    assert found["advertise_url"].source == "default"
    assert found["identity"].value == "a"
    assert found["identity"].default.endswith(":9")


def test_the_kubeconfig_of_kubectl_is_a_source():
    """KUBECONFIG counts when our own variable is not set."""
    line = lines_of({"KUBECONFIG": "/k"})["kubeconfig"]
    assert (line.value, line.source, line.set_by) == ("/k", "variable", "KUBECONFIG")
    line = lines_of({"KUBECONFIG": "/k", PREFIX + "KUBECONFIG": "/own"})["kubeconfig"]
    assert (line.value, line.set_by) == ("/own", PREFIX + "KUBECONFIG")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@db/gang",
        "postgresql+asyncpg://me:s3cret@[::1]:5432/gang?sslmode=require",
        "postgresql://me:p@s3cret@db/gang",
        "postgresql://me:p:s3cret/x@db/gang",
        "postgresql:///gang?user=me&password=s3cret",
        "postgresql://db/gang?sslpassword=s3cret&user=me",
        "https://me:s3cret@gangs.example.com/",
    ],
)
def test_a_password_is_masked_wherever_it_is_in_a_url(url):
    """Host, database and user stay readable."""
    shown = masked(url)
    assert "s3cret" not in shown
    assert MASK in shown
    assert shown.startswith(url.partition("://")[0])
    assert ("me" in shown) == ("me" in url)


@pytest.mark.parametrize("value", ["http://[::1]:8888", "postgresql://db:5432/gang", 7, True, ""])
def test_a_value_without_a_password_is_shown_as_it_is(value):
    assert masked(value) == value


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_no_form_of_output_has_the_password(form):
    """Neither from the flag nor from the variable."""
    url = "postgresql://me:s3cret@db/gang"
    for words, environ in (
        (["--database-url", url], {}),
        ([], {PREFIX + "DATABASE_URL": url}),
    ):
        done = run_command("config", "-o", form, *words, **environ)
        assert (done.returncode, done.stderr) == (0, "")
        assert "s3cret" not in done.stdout
        assert "postgresql://me:***@db/gang" in done.stdout


def test_the_text_has_value_source_default_and_effect():
    """What is given by a flag of serve is shown as serve would use it."""
    done = run_command("config", "--listen", "127.0.0.1:1", "--no-preemption", "--cluster", "a")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("--listen "))
    assert lines[at].split(maxsplit=1)[1] == (
        "127.0.0.1:1  (flag --listen; default: 127.0.0.1:8888)"
    )
    assert (
        lines[at + 1]
        == "    GANG_EXTENDER_LISTEN: HOST:PORT for the calls of kube-scheduler; without TLS and --api-listen also for everything else."
    )
    assert any("false  (flag --preemption; default: true)" in line for line in lines)
    assert any("a  (flag --cluster; default: unset)" in line for line in lines)


def test_json_and_yaml_have_the_same_values_with_their_types():
    words = ("--search-budget", "7", "--cluster", "a", "--cluster", "b")
    as_json = json.loads(run_command("config", "-o", "json", *words).stdout)
    assert as_json == yaml.safe_load(run_command("config", "-o", "yaml", *words).stdout)
    found = {line["name"]: line for line in as_json}
    assert (found["search_budget"]["value"], found["search_budget"]["default"]) == (
        7,
        Settings().search_budget,
    )
    assert found["cluster"]["value"] == ["a", "b"]
    assert found["preemption"]["value"] is True


def test_a_value_that_does_not_fit_is_refused_as_by_serve():
    done = run_command("config", GANG_EXTENDER_SEARCH_BUDGET="many")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gang-extender: GANG_EXTENDER_SEARCH_BUDGET: 'many' is not a whole number, "
        f"for example {Settings().search_budget}\n"
    )


def test_a_variable_that_is_no_setting_is_warned_about_and_does_not_fail():
    """With the nearest name; without one the command that lists them is named."""
    done = run_command("config", GANG_EXTENDER_LISTENS="x", GANG_EXTENDER_COLOUR="red")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "gang-extender: environment variable GANG_EXTENDER_COLOUR is not a setting; "
        "`gang-extender config` prints all settings",
        "gang-extender: environment variable GANG_EXTENDER_LISTENS is not a setting; "
        "did you mean GANG_EXTENDER_LISTEN?",
    ]


@pytest.mark.parametrize(
    "setting", [s for s in all_settings() if s.kind is int], ids=lambda setting: setting.name
)
def test_a_number_with_hundreds_of_digits_is_refused(setting):
    done = run_command("config", f"{setting.flag}={'9' * 400}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gang-extender: {setting.flag}: 999")
    assert " must be at most " in done.stderr

"""Settings: flags, then the environment, then defaults; what would break a promise is refused by name."""

from __future__ import annotations

import msgspec
import pytest
import typer

from extender.cli.commands import serve_command
from extender.core.model.errors import BadInput
from extender.settings import (
    PREFIX,
    Settings,
    all_settings,
    default_data_dir,
    load,
    unknown_variables,
)
from tests.support.service.command_line import run_command


def test_defaults():
    """Without anything the service listens on loopback and knows its folder, its name and its address."""
    found = load({"HOME": "/home/me"})
    assert found.listen == "127.0.0.1:8888"
    assert found.data_dir == "/home/me/.local/share/gang-extender"
    assert found.advertise_url == "http://127.0.0.1:8888"
    assert found.identity.endswith(":8888")


def test_flags_win_over_the_environment():
    """A flag that is given wins; one that is not leaves the variable alone."""
    environ = {
        PREFIX + "LISTEN": "127.0.0.1:1",
        PREFIX + "LEASE_DURATION_S": "3.5",
        PREFIX + "CLUSTER": "a, b",
    }
    found = load(environ, listen="127.0.0.1:2", lease_duration_s=None, cluster=())
    assert (found.listen, found.lease_duration_s, found.cluster) == ("127.0.0.1:2", 3.5, ("a", "b"))


def test_every_field_is_a_variable():
    """Each field is read from GANG_EXTENDER_<FIELD>; an empty variable is no variable."""
    odd = {"listen": "127.0.0.1:9", "log_level": "DEBUG", "barrier_timeout_s": "12"}
    odd |= {
        "api_listen": "127.0.0.1:8",
        "log_format": "json",
        "insecure_plain_http": "True",
        "preemption": "False",
        "show_names_across_namespaces": "True",
        "eviction_method": "eviction-api",
        "unschedulable_gates": "remove",
    }
    odd["scheduler_metrics_url"] = "https://localhost:10259/metrics"
    odd["server"] = "http://localhost:8888"
    odd["notify_url"] = "https://events.example/gangs"
    odd |= {"authentication": "kubernetes", "api_server_tokens": "False"}
    odd["keepalive_timeout_s"] = "97"
    numbers = {setting.name for setting in all_settings() if setting.kind in (int, float)}
    for field in msgspec.structs.fields(Settings):
        text = odd.get(field.name, "7" if field.name in numbers else "x")
        if field.name == "bind_timeout_s":
            text = "77"
        others = {PREFIX + other.upper(): "x" for other in NEEDS.get(field.name, ())}
        found = load(others | {PREFIX + field.name.upper(): text})
        value = getattr(found, field.name)
        assert str(value).strip("(),'") in (text, f"{text}.0"), field.name
        assert load({PREFIX + field.name.upper(): ""}) == load({})


WRONG = (
        ("LISTEN", "8888"), ("LISTEN", "host:"), ("LISTEN", "host:99999"), ("LISTEN", "host:http"),
        ("SEARCH_BUDGET", "many"), ("SEARCH_BUDGET", "0"), ("LEASE_DURATION_S", "-1"), ("LEASE_DURATION_S", "soon"),
        ("RESERVATION_TTL_S", "1.5"), ("REPLACEMENT_TTL_S", "-1"), ("LOG_LEVEL", "LOUD"), ("BARRIER_TIMEOUT_S", "50"),
        ("BIND_TIMEOUT_S", "20"), ("PREEMPTION", "no"), ("PREEMPTION", "1"),
        ("EVICTION_METHOD", "evict"), ("MAX_REQUEST_BODY_BYTES", "64MiB"), ("KEEPALIVE_TIMEOUT_S", "90"),
        ("MAX_FILTER_BODY_BYTES", "-1"), ("MAX_CONNECTIONS", "0"), ("HEADER_TIMEOUT_S", "0"),
)  # fmt: skip


def test_a_value_that_does_not_fit_is_named(subtests):
    """The message names the variable (of one of the pair) and the value."""
    for name, value in WRONG:
        with subtests.test(name=name, value=value):
            with pytest.raises(BadInput) as caught:
                load({PREFIX + name: value})
            assert PREFIX + name in str(caught.value)
            assert value in str(caught.value)


def test_no_binding_is_posted_near_the_timeout_of_kube_scheduler():
    """10 s before its end, or a quarter of a short one."""
    assert Settings(bind_timeout_s=60).bind_post_within_ms == 50_000
    assert Settings(bind_timeout_s=20).bind_post_within_ms == 15_000


def test_ipv6_and_data_home():
    """Brackets are not part of the host; XDG_DATA_HOME wins over HOME."""
    assert load({}, listen="[::1]:8000").host_port == ("::1", 8000)
    assert default_data_dir({"XDG_DATA_HOME": "/data"}) == "/data/gang-extender"
    assert default_data_dir({}) == "/var/lib/.local/share/gang-extender"


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("10.0.0.1:10259", "is not a URL"),
        ("ftp://127.0.0.1/metrics", "is not a URL"),
        ("https://10.0.0.1:10259/metrics", "refusing to send the token"),
        ("http://10.0.0.1:10259/metrics", "refusing to send the token"),
        ("http://[::1", "is not a URL"),
    ],
)
def test_a_token_is_not_sent_to_an_unverified_server(url, fault):
    with pytest.raises(BadInput, match=fault) as raised:
        load({"GANG_EXTENDER_SCHEDULER_METRICS_URL": url})
    assert url in str(raised.value)


def test_metrics_of_kube_scheduler_on_this_machine_or_with_a_ca():
    local = {"GANG_EXTENDER_SCHEDULER_METRICS_URL": "https://127.0.0.1:10259/metrics"}
    assert load(local).scheduler_metrics_url.endswith("/metrics")
    far = {
        "GANG_EXTENDER_SCHEDULER_METRICS_URL": "https://10.0.0.1:10259/metrics",
        "GANG_EXTENDER_SCHEDULER_METRICS_CA_FILE": "/ca.crt",
    }
    assert load(far).scheduler_metrics_ca_file == "/ca.crt"


def test_the_url_of_notifications_is_in_no_message():
    """Its path and its parameters may be secret; it needs keys, and a source."""
    name = PREFIX + "NOTIFY_URL"
    for text in ("ftp://me:secret@host/x", "secret", "http://[secret"):
        with pytest.raises(BadInput, match=f"{name}: its value is not a URL") as caught:
            load({name: text, PREFIX + "NOTIFY_SECRET_FILE": "/keys"})
        assert "secret" not in str(caught.value)
    url = {name: "https://host/secret"}
    with pytest.raises(BadInput, match=r"NOTIFY_SECRET_FILE.*signature") as caught:
        load(url)
    assert "https://host" not in str(caught.value)
    assert load(url | {PREFIX + "NOTIFY_SECRET_FILE": "/keys"}).notify_url == "https://host/secret"


# By setting: a value other than the default, and one that does not fit (None: any text fits).
VALUES = {
    "listen": ("127.0.0.1:8889", "0.0.0.0"),
    "api_listen": ("127.0.0.1:8890", "8890"),
    "tls_cert_file": ("/tls.crt", None),
    "tls_private_key_file": ("/tls.key", None),
    "client_ca_file": ("/ca.crt", None),
    "allowed_client_names": ("kube-scheduler", None),
    "replica_client_names": ("replica", None),
    "tls_client_cert_file": ("/client.crt", None),
    "tls_client_private_key_file": ("/client.key", None),
    "server_ca_file": ("/server-ca.crt", None),
    "tls_server_name": ("gang-extender", None),
    "insecure_plain_http": (True, "on"),
    "allowed_hosts": ("gang-extender", None),
    "advertise_url": ("http://10.0.0.1:8888", None),
    "database_url": ("postgresql://db/gang", None),
    "data_dir": ("/data", None),
    "pg_bin": ("/usr/lib/postgresql/15/bin", None),
    "anchor_key_file": ("/etc/gang-extender/anchor.key", None),
    "authentication": ("kubernetes", "basic"),
    "api_server_tokens": (False, "off"),
    "identity": ("replica-1", None),
    "cluster": ("cluster.yaml", None),
    "node_groups": ("groups.yaml", None),
    "server": ("http://10.0.0.1:8888", "10.0.0.1:8888"),
    "token_file": ("/token", None),
    "kubeconfig": ("/kube/config", None),
    "barrier_timeout_s": (12.5, "soon"),
    "bind_timeout_s": (77.0, "soon"),
    "filter_deadline_ms": (1200, "1.5"),
    "search_budget": (1000, "many"),
    "max_children": (1000, "many"),
    "max_new_gangs_per_minute": (0, "many"),
    "reservation_ttl_s": (60, "1.5"),
    "nomination_delay_ms": (25, "soon"),
    "replacement_ttl_s": (0, "never"),
    "hold_capacity_after_s": (0, "never"),
    "hold_capacity_for_s": (60, "1.5"),
    "hold_capacity_max_percent": (75, "half"),
    "moves_after_s": (600, "never"),
    "moves_at_most": (2, "some"),
    "moves_per_hour": (6, "few"),
    "moves_lost_work_min": (60, "1h"),
    "preemption": (False, "off"),
    "eviction_method": ("eviction-api", "evict"),
    "unschedulable_gates": ("remove", "drop"),
    "show_names_across_namespaces": (True, "some"),
    "lease_duration_s": (3.5, "soon"),
    "max_request_body_bytes": (1024, "64MiB"),
    "max_filter_body_bytes": (4096, "-"),
    "max_preempt_body_bytes": (2048, "8MiB"),
    "max_body_bytes_in_flight": (65536, "64MiB"),
    "header_timeout_s": (2.5, "5s"),
    "body_timeout_s": (20.0, "10s"),
    "keepalive_timeout_s": (100.0, "long"),
    "max_connections": (1000, "many"),
    "max_connections_per_peer": (100, "few"),
    "max_streams_per_peer": (8, "1.5"),
    "shutdown_grace_s": (1.5, "short"),
    "topology_keys": ("topology.kubernetes.io/zone", None),
    "capacity_sample_interval_s": (5.0, "often"),
    "scheduler_metrics_url": ("https://127.0.0.1:10259/metrics", "127.0.0.1:10259"),
    "scheduler_metrics_ca_file": ("/ca.crt", None),
    "scheduler_metrics_token_file": ("/token", None),
    "notify_url": ("https://events.example/gangs", None),
    "notify_secret_file": ("/keys", None),
    "notify_ca_file": ("/ca.crt", None),
    "notify_namespaces": ("team-a", None),
    "notify_waiting_after_s": (60, "long"),
    "notify_source": ("east", None),
    "admission_check_retry_s": (60, "soon"),
    "log_level": ("DEBUG", "LOUD"),
    "log_format": ("text", "xml"),
}
# Settings that need others beside them, by setting.
SERVER_FILES = {
    "tls_cert_file": "/tls.crt",
    "tls_private_key_file": "/tls.key",
    "client_ca_file": "/ca.crt",
}
FORWARDING_FILES = SERVER_FILES | {
    "tls_client_cert_file": "/client.crt",
    "tls_client_private_key_file": "/client.key",
}
NEEDS = (
    dict.fromkeys(SERVER_FILES, SERVER_FILES)
    | dict.fromkeys(("tls_client_cert_file", "tls_client_private_key_file"), FORWARDING_FILES)
    | dict.fromkeys(("server_ca_file", "tls_server_name"), SERVER_FILES)
    | {"notify_url": {"notify_secret_file": "/keys"}}
)
REFUSED = [name for name, (_, wrong) in VALUES.items() if wrong is not None]
# that is a flag of those who ask a service
ON_SERVE = [name for name in VALUES if name not in ("server", "token_file")]


def flag_of(name):
    return "--" + name.replace("_", "-")


def words_of(name, value):
    """Return the words of a command line that give a setting this value."""
    if isinstance(value, bool):
        return [flag_of(name) if value else flag_of("no_" + name)]
    return [flag_of(name), str(value)]


ALONE = typer.Typer(add_completion=False)
ALONE.command("serve")(serve_command.serve)
SERVE = typer.main.get_command(ALONE)


def given_on_the_command_line(*words):
    """What `serve` passes to `load` when it is run with these words."""
    return SERVE.make_context("serve", list(words)).params


def test_every_setting_has_values_to_try():
    """The table of these tests is complete; every setting has a sentence for people."""
    assert list(VALUES) == [setting.name for setting in all_settings()]
    assert list(VALUES) == list(Settings.__struct_fields__)
    assert all(setting.help.endswith(".") for setting in all_settings())


def needed_by(name):
    """Return the variables of the settings that a setting needs beside it."""
    return {PREFIX + other.upper(): text for other, text in NEEDS.get(name, {}).items()}


def test_a_setting_is_read_from_its_variable(subtests):
    defaults = load({})
    for name, (value, _) in VALUES.items():
        with subtests.test(name):
            found = getattr(load(needed_by(name) | {PREFIX + name.upper(): str(value)}), name)
            assert found == ((value,) if isinstance(found, tuple) else value)
            assert found != getattr(defaults, name)


def test_a_setting_is_read_from_its_flag_which_wins(subtests):
    """The flag of `serve` gives the value, whatever the variable has; without the flag the variable counts."""
    no_flags = given_on_the_command_line()
    for name in ON_SERVE:
        value, wrong = VALUES[name]
        with subtests.test(name):
            environ = needed_by(name) | {PREFIX + name.upper(): str(wrong or "of-the-variable")}
            flags = given_on_the_command_line(*words_of(name, value))
            found = getattr(load(environ, **flags), name)
            assert found == ((value,) if isinstance(found, tuple) else value)
            variable = needed_by(name) | {PREFIX + name.upper(): str(value)}
            assert getattr(load(variable, **no_flags), name) == found


@pytest.mark.parametrize("name", ["cluster", "topology_keys"])
def test_a_flag_with_several_values_is_repeated(name):
    """Each value as it is given, commas too; the variable has them between commas."""
    words = (flag_of(name), "a", flag_of(name), "b,c")
    assert getattr(load({}, **given_on_the_command_line(*words)), name) == ("a", "b,c")
    assert getattr(load({PREFIX + name.upper(): "a, b,c"}), name) == ("a", "b", "c")


def test_a_variable_that_does_not_fit_is_refused_by_name_and_value(subtests):
    for name in REFUSED:
        _, wrong = VALUES[name]
        with subtests.test(name):
            with pytest.raises(BadInput) as caught:
                load({PREFIX + name.upper(): wrong})
            assert PREFIX + name.upper() in str(caught.value)
            assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"), [("true", True), ("True", True), ("false", False), ("FALSE", False)]
)
def test_a_boolean_variable_is_true_or_false(text, found):
    assert load({PREFIX + "PREEMPTION": text}).preemption is found


@pytest.mark.parametrize("found", [True, False])
def test_a_boolean_flag_wins_over_the_variable(found):
    environ = {PREFIX + "PREEMPTION": str(not found)}
    flags = given_on_the_command_line(*words_of("preemption", found))
    assert load(environ, **flags).preemption is found


def test_other_texts_of_a_boolean_are_refused_with_both_values(subtests):
    for text in ("on", "off", "yes", "no", "1", "0", "f"):
        with subtests.test(text):
            with pytest.raises(BadInput) as caught:
                load({PREFIX + "PREEMPTION": text})
            assert str(caught.value) == f"{PREFIX}PREEMPTION: {text!r} is neither true nor false"


@pytest.mark.parametrize(
    ("name", "wrong", "choices"),
    [
        ("eviction_method", "evict", "delete, eviction-api"),
        ("unschedulable_gates", "lift", "keep, remove"),
    ],
)
def test_what_is_not_a_choice_is_refused_with_all_choices(name, wrong, choices):
    with pytest.raises(BadInput) as caught:
        load({}, **given_on_the_command_line(flag_of(name), wrong))
    assert str(caught.value) == f"{flag_of(name)}: {wrong!r} is not one of {choices}"
    with pytest.raises(BadInput) as caught:
        load({PREFIX + name.upper(): wrong})
    assert str(caught.value) == f"{PREFIX}{name.upper()}: {wrong!r} is not one of {choices}"


SWITCHES = (  # without a value
    "preemption",
    "show_names_across_namespaces",
    "api_server_tokens",
    "insecure_plain_http",
)


def test_a_flag_that_does_not_fit_ends_the_program_with_name_and_value(subtests):
    """Exit 2, before anything is started."""
    for name in REFUSED:
        if name in (*SWITCHES, "server"):
            continue
        _, wrong = VALUES[name]
        with subtests.test(name):
            done = run_command("serve", flag_of(name), wrong)
            assert done.returncode == 2
            assert done.stderr.startswith(f"gang-extender: {flag_of(name)}: {wrong!r} is not ")
            assert PREFIX not in done.stderr


@pytest.mark.parametrize(
    ("name", "number"), [("search_budget", "a whole number"), ("lease_duration_s", "a number")]
)
def test_what_is_no_number_is_refused_with_the_default_as_an_example(name, number):
    default = getattr(Settings(), name)
    with pytest.raises(BadInput) as caught:
        load({}, **{name: "soon"})
    assert str(caught.value) == f"{flag_of(name)}: 'soon' is not {number}, for example {default}"


def test_variables_that_are_no_settings_are_found_with_the_setting_that_is_meant():
    environ = {
        PREFIX + "BARRIER_TIMEOUT": "9",
        PREFIX + "COLOUR": "red",
        PREFIX + "LISTEN": "127.0.0.1:9",
        "PATH": "/bin",
    }
    assert unknown_variables(environ) == {
        PREFIX + "BARRIER_TIMEOUT": PREFIX + "BARRIER_TIMEOUT_S",
        PREFIX + "COLOUR": "",
    }


def test_variables_that_kubernetes_sets_for_a_service_are_not_unknown():
    """Those of Services gang-extender and gang-extender-metrics in the namespace of the pod."""
    ends = (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_HTTP",
        "PORT",
        "PORT_8888_TCP",
        "PORT_8888_TCP_ADDR",
    )
    environ = {f"{PREFIX}{part}{end}": "x" for part in ("", "METRICS_") for end in ends}
    assert unknown_variables(environ) == {}


PLAIN = {"insecure_plain_http": True}
TLS = {"tls_cert_file": "/a.crt", "tls_private_key_file": "/a.key", "client_ca_file": "/ca.crt"}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "none"),
        ({"listen": "[::1]:8888"}, "none"),
        ({"listen": "0.0.0.0:8888", **PLAIN}, "kubernetes"),
        ({"listen": "0.0.0.0:8888", "api_listen": "127.0.0.1:8443", **PLAIN}, "none"),
        ({"api_listen": "10.0.0.1:8443", **PLAIN}, "kubernetes"),
        ({"listen": "0.0.0.0:8888", "cluster": ("a.yaml",), **PLAIN}, "none"),
        (TLS, "kubernetes"),
        ({"cluster": ("a.yaml",), **TLS}, "none"),
        ({"authentication": "kubernetes"}, "kubernetes"),
        ({"authentication": "none", **TLS}, "none"),
    ],
)
def test_who_may_read_follows_from_the_listener(given, found):
    """Every client of this machine without TLS, or of a cluster of manifests; otherwise only with a token."""
    assert load({}, **given).authentication == found


def test_manifests_review_no_tokens():
    """The message names both settings."""
    with pytest.raises(
        BadInput, match=r"^--authentication: kubernetes .* --cluster names manifests"
    ):
        load({}, authentication="kubernetes", cluster=("a.yaml",))


def test_a_folder_that_an_option_names_wins_over_the_variable_of_a_database(tmp_path):
    """A command with --data-dir never reads, prunes or writes the database of GANG_EXTENDER_DATABASE_URL."""
    other = {PREFIX + "DATABASE_URL": "postgresql://me@127.0.0.1:1/other"}
    for words in (
        ["events"], ["history", "g"], ["verify"], ["decision", "replay", "--all"],
        ["db", "prune", "--days", "1"], ["db", "project"], ["report", "pending"], ["preemptions"],
    ):  # fmt: skip
        result = run_command(*words, "--data-dir", str(tmp_path / "log"), **other)
        assert result.returncode == 2, (words, result.stderr)
        assert f"no event log in {tmp_path / 'log'}" in result.stderr, words
    assert not list(tmp_path.iterdir())

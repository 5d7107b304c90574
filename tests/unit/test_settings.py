"""Settings: flags, then the environment, then defaults; what would break a promise is refused by name."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.errors import BadInput
from extender.settings import PREFIX, Settings, default_data_dir, load


def test_defaults():
    """Without anything the service listens on loopback and knows its folder, its name and its address."""
    found = load({"HOME": "/home/me"})
    assert found.listen == "127.0.0.1:8888"
    assert found.data_dir == "/home/me/.local/share/gang-extender"
    assert found.advertise == "http://127.0.0.1:8888"
    assert found.holder.endswith(":8888")


def test_flags_win_over_the_environment():
    """A flag that is given wins; one that is not leaves the variable alone."""
    environ = {
        PREFIX + "LISTEN": "0.0.0.0:1",
        PREFIX + "LEASE_TTL_S": "3.5",
        PREFIX + "CLUSTER": "a, b",
    }
    found = load(environ, listen="127.0.0.1:2", lease_ttl_s=None, cluster=())
    assert (found.listen, found.lease_ttl_s, found.cluster) == ("127.0.0.1:2", 3.5, ("a", "b"))


def test_every_field_is_a_variable():
    """Each field is read from GANG_EXTENDER_<FIELD>; an empty variable is no variable."""
    odd = {"listen": "127.0.0.1:9", "log_level": "DEBUG", "barrier_timeout_s": "12"}
    odd |= {"preemption": "off", "eviction": "evict", "refused_gates": "lift"}
    odd |= {"preemption": "off", "eviction": "evict"}
    odd["scheduler_metrics_url"] = "https://localhost:10259/metrics"
    for field in msgspec.structs.fields(Settings):
        text = odd.get(field.name, "7" if field.type in (int, float) else "x")
        if field.name == "bind_timeout_s":
            text = "77"
        found = load({PREFIX + field.name.upper(): text})
        value = getattr(found, field.name)
        assert str(value).strip("(),'") in (text, f"{text}.0"), field.name
        assert load({PREFIX + field.name.upper(): ""}) == load({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LISTEN", "8888"), ("LISTEN", "host:"), ("LISTEN", "host:99999"), ("LISTEN", "host:http"),
        ("PLAN_BUDGET", "many"), ("PLAN_BUDGET", "0"), ("LEASE_TTL_S", "-1"), ("LEASE_TTL_S", "soon"),
        ("RESERVATION_TTL_S", "1.5"), ("REPLACEMENT_TTL_S", "-1"), ("LOG_LEVEL", "LOUD"), ("BARRIER_TIMEOUT_S", "50"),
        ("BIND_TIMEOUT_S", "20"), ("PREEMPTION", "no"), ("EVICTION", "drain"), ("BODY_MAX_BYTES", "64MiB"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named(name, value):
    """The message names the variable (of one of the pair) and the value."""
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
        ("https://10.0.0.1:10259/metrics", "CA of kube-scheduler's certificate"),
        ("http://10.0.0.1:10259/metrics", "CA of kube-scheduler's certificate"),
        ("http://[::1", "is not a URL"),
    ],
)
def test_a_token_is_not_sent_to_whoever_answers(url, fault):
    with pytest.raises(BadInput, match=fault) as told:
        load({"GANG_EXTENDER_SCHEDULER_METRICS_URL": url})
    assert url in str(told.value)


def test_metrics_of_kube_scheduler_on_this_machine_or_with_a_ca():
    local = {"GANG_EXTENDER_SCHEDULER_METRICS_URL": "https://127.0.0.1:10259/metrics"}
    assert load(local).scheduler_metrics_url.endswith("/metrics")
    far = {
        "GANG_EXTENDER_SCHEDULER_METRICS_URL": "https://10.0.0.1:10259/metrics",
        "GANG_EXTENDER_SCHEDULER_METRICS_CA_FILE": "/ca.crt",
    }
    assert load(far).scheduler_metrics_ca_file == "/ca.crt"

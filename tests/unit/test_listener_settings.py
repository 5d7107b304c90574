"""Which listeners the settings describe; those that would be open to strangers are refused."""

from __future__ import annotations

import re

import pytest

from extender.core.model.errors import BadInput
from extender.listener_settings import listeners
from extender.settings import load

TLS = {"tls_cert_file": "/tls.crt", "tls_private_key_file": "/tls.key", "client_ca_file": "/ca.crt"}
PAIR = {"tls_client_cert_file": "/c.crt", "tls_client_private_key_file": "/c.key"}


def found(**flags):
    return [
        (one.address, one.serves, one.tls, one.asks_for_certificates, one.shows_reasons)
        for one in listeners(load({}, **flags))
    ]


def test_one_plain_listener_on_loopback_is_the_default():
    assert found() == [("127.0.0.1:8888", "everything", False, False, True)]


def test_a_second_address_separates_the_verbs_from_the_api():
    assert found(api_listen="[::1]:8443") == [
        ("127.0.0.1:8888", "verbs", False, False, True),
        ("[::1]:8443", "api", False, False, True),
    ]


def test_with_tls_the_verbs_ask_for_certificates_and_the_api_is_beside_them():
    """The API is on loopback unless an address is given; the probes give no reasons."""
    assert found(listen="0.0.0.0:8888", **TLS) == [
        ("0.0.0.0:8888", "verbs", True, True, False),
        ("127.0.0.1:8443", "api", True, False, False),
    ]
    assert load({}, listen="10.0.0.1:1", **TLS).advertise_url == "https://10.0.0.1:1"


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.7", "node-1", "example.com"])
def test_other_machines_are_not_listened_to_without_tls(host):
    """Of either listener; the message names it and what helps."""
    for name in ("listen", "api_listen"):
        with pytest.raises(BadInput) as caught:
            load({}, **{name: f"{host}:8443"})
        message = str(caught.value)
        assert message.startswith(f"--{name.replace('_', '-')}: {host}:8443 can be reached")
        for hint in ("--tls-cert-file", "gang-extender certs", "127.0.0.1", "--insecure-plain-http"):  # fmt: skip
            assert hint in message


def test_insecure_plain_http_is_asked_for_by_name():
    """Then the probes give no reasons, because others can read them."""
    insecure = {"GANG_EXTENDER_INSECURE_PLAIN_HTTP": "true"}
    assert [one.shows_reasons for one in listeners(load(insecure, listen="0.0.0.0:1"))] == [False]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_loopback_has_many_names(host):
    assert load({}, listen=f"{host}:8888").listen == f"{host}:8888"


def both_names(setting):
    """The flag and the variable of a setting, as messages name one that is not set."""
    return f"--{setting.replace('_', '-')} (GANG_EXTENDER_{setting.upper()})"


@pytest.mark.parametrize("missing", TLS)
def test_of_three_files_of_the_server_none_may_be_missing(missing):
    given = {name: path for name, path in TLS.items() if name != missing}
    with pytest.raises(BadInput, match=re.escape(f"needs {both_names(missing)} too")):
        load({}, **given)


@pytest.mark.parametrize("missing", PAIR)
def test_of_two_files_for_forwarding_none_may_be_missing(missing):
    given = {name: path for name, path in PAIR.items() if name != missing}
    with pytest.raises(BadInput, match=re.escape(f"needs {both_names(missing)} too")):
        load({}, **TLS, **given)


@pytest.mark.parametrize("given", [PAIR, {"tls_server_name": "x"}])
def test_what_only_tls_uses_is_refused_without_it(given):
    with pytest.raises(BadInput, match="is for a service with TLS"):
        load({}, **given)


@pytest.mark.parametrize("flags", [{}, TLS])
def test_two_listeners_need_two_addresses(flags):
    with pytest.raises(BadInput, match=r"--api-listen: 127\.0\.0\.1:8888 is also"):
        load({}, api_listen="127.0.0.1:8888", **flags)

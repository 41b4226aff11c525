import pytest
from tests.support.fakes.refusal import refusal

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.goplugin.server import Handshake

HANDSHAKE = Handshake("COOKIE", "crumbs", 2)


@pytest.mark.parametrize("environment", [{}, {"COOKIE": ""}, {"COOKIE": "other"}])
def test_without_the_cookie_no_host_has_started_us(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="COOKIE is not what a host sets it to"):
        HANDSHAKE.check_cookie(environment)


def test_with_the_cookie_a_host_has_started_us() -> None:
    assert refusal(HANDSHAKE.check_cookie, {"COOKIE": "crumbs"}) == ""


@pytest.mark.parametrize("offered", ["2", "1,2,3", "3, 2", ""])
def test_our_version_among_the_hosts_will_do_and_a_host_that_names_none_is_believed(offered: str) -> None:
    assert refusal(HANDSHAKE.check_protocol, {"PLUGIN_PROTOCOL_VERSIONS": offered}) == ""


@pytest.mark.parametrize("offered", ["1", "12,22", "two"])
def test_a_host_of_other_versions_gets_the_supported_ones(offered: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"version {offered} of its plugin protocol: expected 2"):
        HANDSHAKE.check_protocol({"PLUGIN_PROTOCOL_VERSIONS": offered})


def test_a_host_that_requests_tls_gets_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="requires TLS"):
        HANDSHAKE.check_protocol({"PLUGIN_CLIENT_CERT": "-----BEGIN CERTIFICATE-----"})


def test_the_line_has_an_empty_last_field_where_a_certificate_would_be() -> None:
    assert HANDSHAKE.line("/run/p/socket") == "1|2|unix|/run/p/socket|grpc|\n"

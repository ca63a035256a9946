"""What a Redis URL names."""

from __future__ import annotations

import pytest

from aiforge.core.topology import Address, topology_of


@pytest.mark.parametrize(
    "url", ["redis://h:1/0", "rediss://u:p@h:1/0?ssl_cert_reqs=none", "unix:///run/redis.sock"]
)
def test_one_server_is_left_as_it_is(url: str) -> None:
    topology = topology_of(url)
    assert (topology.kind, topology.url, topology.addresses) == ("server", url, ())


def test_a_cluster_names_nodes() -> None:
    topology = topology_of("rediss+cluster://u:p%40x@one:7000,two,[::1]:7002?ssl_ca_certs=/ca.pem")
    assert topology.kind == "cluster"
    assert topology.addresses == (Address("one", 7000), Address("two", 6379), Address("::1", 7002))
    assert [topology.at(address) for address in topology.addresses] == [
        "rediss://u:p%40x@one:7000/0?ssl_ca_certs=%2Fca.pem",
        "rediss://u:p%40x@two:6379/0?ssl_ca_certs=%2Fca.pem",
        "rediss://u:p%40x@[::1]:7002/0?ssl_ca_certs=%2Fca.pem",
    ]


def test_sentinels_name_a_service_and_have_a_password_of_their_own() -> None:
    topology = topology_of(
        "redis+sentinel://:data@one,two:5000/main/3?sentinel_password=a%3Ab&health_check_interval=9"
    )
    assert (topology.kind, topology.service, topology.database) == ("sentinel", "main", 3)
    one, two = topology.addresses
    assert topology.at(two) == "redis://:data@two:5000/3?health_check_interval=9"
    assert topology.sentinel_at(one) == "redis://:a%3Ab@one:26379"
    plain = topology_of("redis+sentinel://:data@one/main")
    assert plain.sentinel_at(plain.addresses[0]) == "redis://one:26379"
    assert plain.at(plain.addresses[0]) == "redis://:data@one:26379/0"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+cluster://h:1/2", "no database but 0"),
        ("redis+cluster://", "each node as host:port"),
        ("redis+cluster://h:1,,g:1", "each node as host:port"),
        ("redis+cluster://h:none", "Port"),
        ("redis+sentinel://h:1", "names the service"),
        ("redis+sentinel://h:1/main/x", "by a number"),
        ("redis+sentinel://,h/main", "each Sentinel as host:port"),
    ],
)
def test_what_names_nothing_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        topology_of(url)

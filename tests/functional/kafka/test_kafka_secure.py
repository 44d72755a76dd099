"""SASL and TLS by options, and what an operator is told when they are wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import BadConfig, Unavailable
from tests.functional.kafka.kafka_bus import both_protocols, frames, own_log, secure, values
from tests.support.servers.real_servers import need_servers
from tests.support.tls.certificates import Authority

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("connections_are_closed")]


transactions = both_protocols


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_everything_works_over_sasl_and_tls(
    kafka_secure: KafkaServers, mechanism: str, transactions: str
) -> None:
    bus = await KafkaBus.open(replace(secure(kafka_secure, mechanism), transactions=transactions))
    log = await own_log(bus)
    await bus.append({(log, 0): frames("appended")})
    committer = await bus.committer("shard-0")
    await committer.commit({(log, 0): frames("committed")})
    assert await values(bus, log) == ["appended", "committed"]
    await bus.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_called_that(kafka_secure: KafkaServers, mechanism: str) -> None:
    with pytest.raises(BadConfig, match=r"refused kafka\.user and kafka\.password") as refused:
        await KafkaBus.open(secure(kafka_secure, mechanism, "wrong"))
    assert "wrong" not in str(refused.value)


async def test_brokers_that_cannot_be_reached_are_named(kafka_secure: KafkaServers) -> None:
    good = secure(kafka_secure, "PLAIN")
    untrusted = KafkaOptions(good.bootstrap, protocol="SASL_SSL", mechanism="PLAIN", user="u", password="p")
    for options, text in (
        (KafkaOptions("127.0.0.1:1"), "no Kafka broker answers at 127.0.0.1:1"),
        (KafkaOptions(good.bootstrap, request_timeout_ms=2_000), "over PLAINTEXT"),
    ):
        with pytest.raises(Unavailable, match=text):
            await KafkaBus.open(options)
    with pytest.raises(BadConfig, match=r"do not agree on TLS.*kafka\.ca"):
        await KafkaBus.open(untrusted)


async def test_brokers_that_ask_for_certificates_get_them(tmp_path: Path) -> None:
    authority, stranger = Authority.make(tmp_path / "own"), Authority.make(tmp_path / "other").issue("stranger")
    asks = {
        "listener.name.sasl_ssl.ssl.client.auth": "required", "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
    }  # fmt: skip
    need_servers()
    with KafkaServers(tmp_path / "kafka", secure=True, extra=asks) as servers:
        without = secure(servers, "PLAIN")
        own = authority.issue("client")
        for shown in (without, replace(without, cert=stranger.cert, key=stranger.key)):
            with pytest.raises((BadConfig, Unavailable)):
                await KafkaBus.open(replace(shown, request_timeout_ms=2_000))
        bus = await KafkaBus.open(replace(without, cert=own.cert, key=own.key))
        log = await own_log(bus)
        await bus.append({(log, 0): frames("appended")})
        assert await values(bus, log) == ["appended"]
        await bus.close()

"""`[destinations.NAME]` of the settings: read from files and the environment, and declared once."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.bus.topic_cursor import encode_cursor
from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.relay.settings_destinations import SettingsDestinations
from duemq.cluster.admin.administration import Administration
from duemq.cluster.topics.internal_topics import create_logs
from duemq.model.errors import BadConfig
from duemq.model.messages.names import group_cursor

FILE = """
[destinations.Shop-1]
url = "https://shop.example.com/hook"
topics = ["orders"]
timeout = "30s"
credentials = { username = "u", password = "of the file" }
[destinations.Shop-1.options]
method = "PUT"
[destinations.mq]
url = "amqps://mq.example.com"
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DUEMQ_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "duemq.toml"
    file.write_text(FILE)
    return file


def test_files_and_variables_say_what_there_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUEMQ_DESTINATIONS__SHOP_1__CREDENTIALS__PASSWORD", "of the environment")
    monkeypatch.setenv("DUEMQ_DESTINATIONS__SHOP_1__RATE", "7")
    monkeypatch.setenv("DUEMQ_DESTINATIONS__SHOP_1__ORDERED", "true")
    monkeypatch.setenv("DUEMQ_DESTINATIONS__SHOP_1__RETRY__KIND", "exponential")
    monkeypatch.setenv("DUEMQ_DESTINATIONS__SHOP_1__RETRY__FACTOR", "1.5")
    monkeypatch.setenv("DUEMQ_DESTINATIONS__MQ__TOPICS", "a, b")
    monkeypatch.setenv("DUEMQ_DESTINATIONS__MQ__TIMEOUT", "500")
    monkeypatch.setenv("DUEMQ_DESTINATIONS__MORE__URL", "nats://n.example.com")
    monkeypatch.setenv("DUEMQ_STRICT_ENV", "1")
    declared = Settings.load(path).destinations
    assert list(declared) == ["Shop-1", "mq", "more"]
    shop, mq, more = declared.values()
    assert (shop.destination.name, shop.destination.rate, shop.destination.timeout) == ("Shop-1", 7, 30_000)
    assert shop.destination.ordered and shop.destination.retry.factor == 1.5
    assert shop.credentials is not None and shop.credentials.username == "u"
    assert shop.credentials.password.get_secret_value() == "of the environment"
    assert (mq.destination.topics, mq.destination.timeout) == (("a", "b"), 500)
    assert mq.credentials is more.credentials is None
    assert "of the environment" not in repr(declared)


def test_credentials_may_be_in_a_file_of_their_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = path.with_name("secrets.toml")
    own.write_text('token = "t"\npassword = "of the file"')
    monkeypatch.setenv("DUEMQ_DESTINATIONS__MQ__CREDENTIALS_FILE", str(own))
    monkeypatch.setenv("DUEMQ_DESTINATIONS__MQ__CREDENTIALS__PASSWORD", "of the environment")
    credentials = Settings.load(path).destinations["mq"].credentials
    assert credentials is not None and credentials.value() == {"token": "t", "password": "of the environment"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("destinations = 5", "destinations: it has a section for each"),
        ("[destinations]\nshop = 's3cret'", r"destinations: shop must be a section: \[destinations.shop\]"),
        ("[destinations.shop]", "destinations: shop: url: it is needed"),
        ("[destinations.shop]\nurl = 'nats://x'\npaused = true", "shop.paused is not a setting; known are url"),
        ("[destinations.shop]\nurl = 'nats://x'\ncredentials = 's3cret'", "credentials is a section"),
        ("[destinations.shop]\nurl = 'nats://x'\ncredentials.password = ['s3cret']", "credentials.password: "),
        ("[destinations.shop]\nurl = 'nats://u:s3cret@x'", "url: it has no user and password"),
        ("[destinations.shop]\nurl = 'nats://x'\ncredentials_file = '/nowhere'", "/nowhere cannot be read"),
    ],
)
def test_what_is_wrong_stops_the_start_and_is_not_shown(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "duemq.toml").write_text(text)
    with pytest.raises(BadConfig, match=why) as error:
        Settings.load(tmp_path / "duemq.toml")
    assert "s3cret" not in str(error.value)


def declare(*settings: Mapping[str, Any], between: Any = None) -> Administration:
    """The administration after starts of servers with these settings, one after another."""

    async def run() -> Administration:
        bus = MemoryBus(MemoryLog(lambda: 1_000))
        await create_logs(bus, 1)
        await bus.create_topic("orders", 1)
        await bus.append({("orders", 0): [b"frame"]})
        for start in settings:
            admin = Administration(lambda: bus, lambda: 1_000)
            following = asyncio.create_task(admin.log.run())
            await SettingsDestinations(Settings.load(overrides=start).destinations, admin, lambda: bus).run()
            await admin.log.ready.wait()
            if between is not None:
                await between(admin.destinations)
            following.cancel()
        cursor = await bus.get_consumer_cursor("orders", group_cursor("destination.shop"))
        assert cursor == encode_cursor("orders", (1,)).encode()
        return admin

    return asyncio.run(run())


SHOP = {"url": "https://shop.example.com", "topics": ["orders"], "credentials": {"token": "t"}}


def test_a_start_declares_what_is_not_so_yet(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        admin = declare(*[{"destinations": {"shop": SHOP}}] * 3)
    assert admin.destinations.version_of("shop") == (1, 1), "twice the same changes nothing"
    assert len(caplog.records) == 1
    changed = SHOP | {"rate": 5, "credentials": {"token": "new"}}
    admin = declare({"destinations": {"shop": SHOP}}, {"destinations": {"shop": changed}})
    assert admin.destinations.version_of("shop") == (2, 2) and admin.destinations.find("shop").rate == 5
    assert admin.destinations.credentials_of("shop").token.get_secret_value() == "new"


def test_a_start_leaves_alone_what_operators_did_and_what_it_says_nothing_of() -> None:
    async def pause(registry: Any) -> None:
        await registry.pause("shop", "ann")

    without = {name: value for name, value in SHOP.items() if name != "credentials"} | {"rate": 3}
    admin = declare({"destinations": {"shop": SHOP}}, {"destinations": {"shop": without}}, {}, between=pause)
    shop = admin.destinations.find("shop")
    assert (shop.paused, shop.rate, admin.destinations.credentials_of("shop").names) == (True, 3, ["token"])


def test_what_is_refused_is_said_and_the_others_are_declared(caplog: pytest.LogCaptureFixture) -> None:
    moved = {"url": "https://other.example.com", "topics": ["orders"]}
    more = {"url": "nats://n"}
    admin = declare({"destinations": {"shop": SHOP}}, {"destinations": {"shop": moved, "more": more}})
    assert admin.destinations.find("shop").url == SHOP["url"] and admin.destinations.find("more")
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "destination shop of the settings is not declared: the credentials were given for" in record.message

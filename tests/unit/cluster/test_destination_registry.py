"""Destinations as administrative state: declared, changed, found again, and never a secret at another place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.admin.administration import Administration
from duemq.cluster.admin.destination_registry import MAX_DESTINATIONS, DestinationRegistry
from duemq.cluster.admin.state import ItemChange
from duemq.cluster.topics.internal_topics import ADMIN, create_logs
from duemq.model.destinations.destination import Destination
from duemq.model.errors import Rejected

SHOP = {"name": "shop", "url": "https://shop.example.com/hook", "topics": ["orders"], "rate": 5}
SECRETS = {"username": "u", "password": "s3cret"}
Scenario = Callable[[DestinationRegistry], Awaitable[None]]


def run(*scenarios: Scenario) -> None:
    """Each in an administration of its own over the same log, one after another."""

    async def all_of_them() -> None:
        bus = MemoryBus(MemoryLog(lambda: 1_000))
        await create_logs(bus, 1)
        for scenario in scenarios:
            admin = Administration(lambda: bus, lambda: 1_000)
            following = asyncio.create_task(admin.log.run())
            await admin.log.ready.wait()
            await scenario(admin.destinations)
            following.cancel()

    asyncio.run(all_of_them())


async def refused(code: str, change: Awaitable[Any]) -> Rejected:
    with pytest.raises(Rejected) as caught:
        await change
    assert caught.value.code == code, caught.value
    return caught.value


def test_what_is_declared_is_there_for_everybody_until_it_is_removed() -> None:
    async def declare(registry: DestinationRegistry) -> None:
        declared = await registry.declare(SHOP, SECRETS, "ann")
        assert declared == registry.by_name["shop"] and declared.rate == 5
        await refused("destination_exists", registry.declare(SHOP, None, "ann"))

    async def look(registry: DestinationRegistry) -> None:
        assert [each.name for each in registry.listed()] == ["shop"]
        assert registry.credentials_of("shop").password.get_secret_value() == "s3cret"
        assert registry.credentials_of("shop").names == ["password", "username"]
        await registry.remove("shop", "ann")
        await refused("unknown_destination", registry.remove("shop", "ann"))

    async def look_again(registry: DestinationRegistry) -> None:
        assert registry.by_name == {} and registry.credentials_of("shop").names == []
        await registry.declare(SHOP, None, "ann")  # without the credentials of the one that was removed
        assert registry.credentials_of("shop").names == []

    run(declare, look, look_again)


def test_a_version_is_another_one_after_each_change() -> None:
    async def scenario(registry: DestinationRegistry) -> None:
        await registry.declare(SHOP, SECRETS, "ann")
        versions = [registry.version_of("shop")]
        for change in (
            registry.update("shop", {"rate": 6}, "ann"),
            registry.update("shop", {}, "ann", {"token": "t"}),
            registry.pause("shop", "ann"),
            registry.resume("shop", "ann"),
            registry.disable("shop", "410 Gone", "relay"),
        ):
            await change
            versions.append(registry.version_of("shop"))
        assert len(set(versions)) == 6
        assert await registry.disable("shop", "410 Gone", "relay") == registry.find("shop")
        assert registry.version_of("shop") == versions[-1], "what is so already stays so"

    run(scenario)


def test_pausing_disabling_and_resuming() -> None:
    async def scenario(registry: DestinationRegistry) -> None:
        await registry.declare(SHOP, None, "ann")
        assert not (await registry.pause("shop", "ann")).active
        assert (await registry.disable("shop", "x" * 900, "relay")).disabled == "x" * 500
        changed = await registry.update("shop", {"rate": 7}, "ann")
        assert changed.paused and changed.disabled and changed.rate == 7
        assert (await registry.resume("shop", "ann")).active
        await registry.pause("shop", "ann")
        replaced = await registry.declare({**SHOP, "rate": 9}, None, "ann", replace=True)
        assert replaced.paused and replaced.rate == 9
        assert not (await registry.declare({**SHOP, "paused": False}, None, "ann", replace=True)).paused
        await refused("unknown_destination", registry.pause("other", "ann"))

    run(scenario)


def test_of_two_who_declare_at_once_one_wins_with_all_of_its_own() -> None:
    async def scenario(registry: DestinationRegistry) -> None:
        others = ({**SHOP, "url": f"https://{host}.example.com"} for host in ("a", "b"))
        results = await asyncio.gather(
            registry.declare(next(others), {"token": "a"}, "a"), registry.declare(next(others), {"token": "b"}, "b"),
            return_exceptions=True,
        )  # fmt: skip
        lost = [each for each in results if isinstance(each, Rejected)]
        assert len(lost) == 1 and lost[0].code == "conflict"
        token = registry.credentials_of("shop").token.get_secret_value()
        assert registry.find("shop").url == f"https://{token}.example.com" and registry.find("shop").active

    run(scenario)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_nobody_declares_with_the_credentials_of_who_lost(order: tuple[int, int]) -> None:
    async def scenario(registry: DestinationRegistry) -> None:
        given = ({"token": "t"}, None)
        declarations = (registry.declare({**SHOP, "rate": at}, given[at], "x") for at in order)
        await asyncio.gather(*declarations, return_exceptions=True)
        assert registry.credentials_of("shop").names == (["token"] if registry.find("shop").rate == 0 else [])

    run(scenario)


def test_credentials_go_to_no_other_place_than_they_were_given_for() -> None:
    async def scenario(registry: DestinationRegistry) -> None:
        await registry.declare(SHOP, SECRETS, "ann")
        await registry.update("shop", {"url": "https://shop.example.com/another/path"}, "ann")
        for url in ("https://evil.example.com/hook", "http://shop.example.com/hook", "https://shop.example.com:8443/"):
            error = await refused("bad_field", registry.update("shop", {"url": url}, "ann"))
            assert error.field == "credentials"
            await refused("bad_field", registry.declare({**SHOP, "url": url}, None, "ann", replace=True))
        assert registry.find("shop").url.startswith("https://shop.example.com/")
        await registry.update("shop", {"url": "https://new.example.com"}, "ann", {"token": "t"})
        assert registry.credentials_of("shop").names == ["token"] and registry.find("shop").active
        await registry.update("shop", {"url": "https://none.example.com"}, "ann", {})
        assert registry.credentials_of("shop").names == [] and registry.find("shop").active

    run(scenario)


@pytest.mark.parametrize("secrets", [{"token": "t"}, {}])
@pytest.mark.parametrize("first", [SECRETS, {}])
def test_while_a_destination_moves_nothing_is_handed_on(first: dict[str, str], secrets: dict[str, str]) -> None:
    """A relay that reads the log to any record sees the old place with its credentials, the new one with its own, or a
    destination that is not active."""

    async def scenario(registry: DestinationRegistry) -> None:
        await registry.declare(SHOP, first, "ann")
        states: list[tuple[str, list[str]]] = []

        def look() -> None:
            if (one := registry.by_name["shop"]).active:
                states.append((one.url, registry.credentials_of("shop").names))
            else:
                assert registry.credentials_of("shop").names == []

        registry.admin.on_change(look)
        await registry.update("shop", {"url": "https://new.example.com"}, "ann", secrets)
        assert set(map(str, states)) <= {
            str((SHOP["url"], sorted(first))), str(("https://new.example.com", sorted(secrets))),
        }  # fmt: skip
        assert states[-1] == ("https://new.example.com", sorted(secrets))

    run(scenario)


def test_topics_that_are_new_begin_before_they_count() -> None:
    async def scenario(registry: DestinationRegistry) -> None:
        begun: list[tuple[str, ...]] = []

        async def begin(destination: Destination, topics: Sequence[str]) -> None:
            before = registry.by_name.get("shop")
            assert before is None or not set(topics) & set(before.topics)
            begun.append(tuple(topics))

        await registry.declare(SHOP, None, "ann", begin=begin)
        await registry.update("shop", {"topics": ["orders", "bills"]}, "ann", begin=begin)
        await registry.update("shop", {"topics": ["bills"], "rate": 1}, "ann", begin=begin)
        await registry.declare(SHOP, None, "ann", replace=True, begin=begin)
        assert begun == [("destination.shop", "retry.destination.shop", "orders"), ("bills",), ("orders",)]

    run(scenario)


def test_a_group_that_is_put_at_a_start_has_another_start_id() -> None:
    """What numbers messages by their offsets may see old offsets again."""

    async def scenario(registry: DestinationRegistry) -> None:
        async def start_id() -> str:
            return registry.by_name["shop"].start_id

        await registry.declare(SHOP, None, "ann")
        seen = [await start_id()]
        for change in (
            registry.update("shop", {"rate": 6}, "ann"),
            registry.pause("shop", "ann"),
            registry.declare(SHOP | {"rate": 7}, None, "ann", replace=True),
            registry.update("shop", {"topics": []}, "ann"),
        ):
            await change
            assert await start_id() == seen[0]
        await registry.update("shop", {"topics": ["orders"]}, "ann")
        seen.append(await start_id())
        assert seen[0].partition(".")[0] == seen[1].partition(".")[0] == registry.by_name["shop"].instance
        await registry.remove("shop", "ann")
        await registry.declare(SHOP, None, "ann")
        seen.append(await start_id())
        assert all(seen) and len(set(seen)) == 3
        assert not seen[2].startswith(seen[0].partition(".")[0]), "it is another destination of this name"

    run(scenario)


def test_an_item_of_another_version_is_left_out_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(registry: DestinationRegistry) -> None:
        await registry.declare(SHOP, None, "ann")
        await registry.declare({**SHOP, "name": "other"}, SECRETS, "ann")
        for item, value in (
            ("destinations/shop", {**SHOP, "colour": "red"}),
            ("destinations/odd", {"url": 5}),
            ("credentials/other", {"vault": "v", "password": "s3cret"}),
        ):
            await registry.admin.change(item, value, "newer")
        assert list(registry.by_name) == ["other"]
        assert not registry.by_name["other"].active, "its credentials are not known"
        await registry.declare({**SHOP, "name": "third"}, None, "ann")
        assert len(caplog.records) == 3, "each is said once"
        assert "s3cret" not in caplog.text
        await refused("destination_exists", registry.declare(SHOP, None, "ann"))
        await registry.declare(SHOP, None, "ann", replace=True)
        await registry.remove("odd", "ann")
        await registry.update("other", {}, "ann", SECRETS)
        assert registry.by_name["other"].active and list(registry.by_name) == ["shop", "other", "third"]

    with caplog.at_level(logging.WARNING):
        run(scenario)


@pytest.mark.heavy
def test_what_is_refused() -> None:
    async def scenario(registry: DestinationRegistry) -> None:
        for fields, code in (
            ({}, "bad_field"), ({**SHOP, "name": "a b"}, "bad_field"), ({**SHOP, "colour": 1}, "unknown_field"),
            ({**SHOP, "url": "ftp://x"}, "bad_field"),
        ):  # fmt: skip
            await refused(code, registry.declare(fields, None, "ann"))
        await refused("unknown_field", registry.declare(SHOP, {"pin": "1"}, "ann"))
        await registry.declare(SHOP, None, "ann")
        for name in ("name", "paused", "disabled", "colour"):
            await refused("unknown_field", registry.update("shop", {name: "x"}, "ann"))
        await refused("unknown_destination", registry.update("other", {}, "ann"))
        await registry.update("shop", {"url": "nats://x", "rate": 1}, "ann")  # with no options of HTTP any more
        assert "method" not in registry.find("shop").value()["options"]
        for number in range(MAX_DESTINATIONS - 1):
            record = ItemChange(f"destinations/d{number}", 1, {"name": f"d{number}", "url": "nats://x"}, 0, "test")
            await registry.admin._bus().append({(ADMIN, 0): [record.frame()]})
        await registry.pause("shop", "ann")
        await refused("too_many_destinations", registry.declare({**SHOP, "name": "more"}, None, "ann"))
        await registry.declare(SHOP, None, "ann", replace=True)

    run(scenario)

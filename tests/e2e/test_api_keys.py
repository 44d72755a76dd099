"""API keys on a real server: the first one, scopes, rotation, a restart, and a backup."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from duemq.client import AsyncClient
from duemq.client.http.errors import Unauthorised
from duemq.client.http.frames.frame_transport import FrameTransport
from tests.e2e.server import Server, run
from tests.support.patience import WITHIN_S

ORDER = {"topic": "orders", "payload": "p", "deliver_after": "1h"}


def status(url: str, key: str, method: str = "GET", path: str = "/v1/limits") -> int:
    body = ORDER if method == "POST" else None
    return httpx.request(method, url + path, headers={"X-API-Key": key}, timeout=60, json=body).status_code


def make(name: str, *more: object, url: str, key: str = "") -> str:
    made = run("keys", "create", name, *more, url=url, key=key)
    assert made.returncode == 0, made.stderr
    assert "shown only this once" in made.stderr and made.stdout.startswith("duemq_")
    return made.stdout.strip()


def test_from_nothing_to_keys(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data, "--set", "http.access=keys") as server:
        server.start()
        assert status(server.url, "") == status(server.url, "duemq_guess") == 401
        admin = make("ops", "--scope", "admin", "--data", data, url=server.url)
        sender = make("shop", "--scope", "send", "--expires", "90d", url=server.url, key=admin)
        viewer = make("wallboard", "--scope", "read", url=server.url, key=admin)
        assert status(server.url, sender, "POST", "/v1/messages") == 201
        assert status(server.url, viewer, "POST", "/v1/messages") == status(server.url, sender) == 403
        assert status(server.url, viewer) == 200
        refused = run("keys", "ls", url=server.url, key=viewer)
        assert refused.returncode == 7 and "scope admin" in refused.stderr

        listed = run("keys", "ls", url=server.url, key=admin).stdout.splitlines()
        ids = {line.split("\t")[1]: line.split("\t")[0] for line in listed}
        assert list(ids) == ["ops", "shop", "wallboard"]
        rotated = run("keys", "rotate", ids["shop"], "--overlap", "0s", url=server.url, key=admin).stdout.strip()
        assert run("keys", "revoke", ids["wallboard"], "--yes", url=server.url, key=admin).returncode == 0
        assert run("keys", "revoke", "nobody", "--yes", url=server.url, key=admin).returncode == 4

        def states() -> list[int]:
            return [status(server.url, key, "POST", "/v1/messages") for key in (admin, sender, rotated, viewer)]

        assert states() == [201, 401, 201, 401]
        server.kill()
        server.start()
        assert states() == [201, 401, 201, 401]
        assert run("backup", tmp_path / "backups", "--data", data).returncode == 0
        log = server.log_path.read_text()
        assert not [key for key in (admin, sender, rotated, viewer) if key in log or key.split("_")[2] in log]

    (backup,) = (tmp_path / "backups").iterdir()
    restored = tmp_path / "restored"
    assert run("restore", backup, "--data", restored).returncode == 0
    with Server(restored) as server:
        server.start()
        assert [status(server.url, key, "POST", "/v1/messages") for key in ("", admin, sender)] == [401, 201, 401]


def test_a_revoked_key_opens_nothing_more_on_a_connection_of_frames(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--set", "http.access=keys") as server:
        server.start()
        admin = make("ops", "--role", "admin", "--data", tmp_path / "data", url=server.url)
        key = make("reader", "--role", "viewer", url=server.url, key=admin)

        async def scenario() -> None:
            async with FrameTransport(False) as frames, AsyncClient(server.url, key, transport=frames) as client:
                await client.limits()
                assert frames.is_open
                following = asyncio.ensure_future(anext(client.tail("orders")))
                await asyncio.to_thread(run, "keys", "revoke", "reader", "--yes", url=server.url, key=admin)
                async with asyncio.timeout(WITHIN_S):
                    with pytest.raises(Unauthorised):
                        await client.limits()
                    with pytest.raises(Unauthorised):  # the stream ended, and its next request is refused
                        await following
                assert frames.is_open

        asyncio.run(scenario())


def test_a_key_for_some_topics_sees_and_changes_only_theirs(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--set", "http.access=keys") as server:
        server.start()
        admin = make("ops", "--role", "admin", "--data", tmp_path / "data", url=server.url)
        limited = ("--topic", "orders", "--topic", "reports.*")
        shop = make("shop", "--role", "operator", *limited, "--rate", "1000", url=server.url, key=admin)

        def ask(key: str, method: str, path: str, body: object = None) -> httpx.Response:
            return httpx.request(method, server.url + path, headers={"X-API-Key": key}, json=body, timeout=60)

        def send(key: str, topic: str, after: str = "1h") -> httpx.Response:
            return ask(key, "POST", "/v1/messages", {"topic": topic, "payload": "p", "deliver_after": after})

        ids = {topic: send(admin, topic).json()["id"] for topic in ("orders", "reports.daily", "payments")}
        for topic in ids:
            assert send(admin, topic, "0s").status_code == 201
        assert [send(shop, topic).status_code for topic in ids] == [201, 201, 403]
        messages = ask(shop, "GET", "/v1/messages").json()["messages"]
        assert sorted(message["topic"] for message in messages) == [
            "orders",
            "orders",
            "reports.daily",
            "reports.daily",
        ]
        topics = [topic["topic"] for topic in ask(shop, "GET", "/v1/topics").json()["topics"]]
        assert topics == ["orders", "reports.daily"]
        assert ask(shop, "GET", "/v1/topics/payments/records").status_code == 403
        cancelled = ask(shop, "POST", "/v1/messages:cancel", {"ids": list(ids.values())}).json()["results"]
        assert [result["status"] for result in cancelled] == ["cancelled", "cancelled", "unknown"]
        assert ask(shop, "DELETE", f"/v1/messages/{ids['payments']}").status_code == 404
        assert ask(admin, "GET", f"/v1/messages/{ids['payments']}").json()["status"] == "scheduled"
        assert ask(shop, "GET", "/v1/messages").headers["RateLimit-Policy"] == '"key";q=1000;w=1'
        for more in ((), ("--data", tmp_path / "data")):  # by the server, and by its folder
            both = run("keys", "create", "a", "--scope", "admin", "--role", "viewer", *more, url=server.url, key=admin)
            assert both.returncode != 0 and "scopes and role are both given" in both.stderr
        listed = run("keys", "ls", url=server.url, key=admin).stdout.splitlines()[1].split("\t")
        assert listed[4:6] == ["orders reports.*", "1000"]


def test_the_first_key_of_an_open_server_is_an_admins_and_closes_it_when_told_to(tmp_path: Path) -> None:
    """By the server and by its folder. A program that names no `--yes` is not asked, and makes no key."""
    data = tmp_path / "data"
    with Server(data) as server:
        server.start()
        assert status(server.url, "", "POST", "/v1/messages") == 201
        for more in ((), ("--data", data)):
            refused = run("keys", "create", "shop", "--scope", "send", "--yes", *more, url=server.url)
            assert refused.returncode != 0 and "must be an admin's" in refused.stderr
            unsure = run("keys", "create", "ops", "--role", "admin", *more, url=server.url)
            assert unsure.returncode == 2 and "--yes" in unsure.stderr
        assert status(server.url, "", "POST", "/v1/messages") == 201
        admin = make("ops", "--role", "admin", "--yes", "--data", data, url=server.url)
        make("shop", "--scope", "send", url=server.url, key=admin)
        assert status(server.url, "", "POST", "/v1/messages") == 401
        unsure = run("keys", "revoke", "shop", url=server.url, key=admin)
        assert unsure.returncode == 2 and "--yes" in unsure.stderr
        revoked = run("keys", "revoke", "shop", "--yes", url=server.url, key=admin)
        assert revoked.returncode == 0 and "(shop) is revoked" in revoked.stdout


@pytest.mark.parametrize(
    "command", [("ls",), ("create", "a", "--scope", "send"), ("rotate", "a"), ("revoke", "a", "--yes")]
)
def test_without_a_server_a_command_says_so(command: tuple[str, ...]) -> None:
    failed = run("keys", *command, url="http://127.0.0.1:9")
    assert failed.returncode == 8 and failed.stderr.count("\n") == 1


def test_the_data_folder_of_no_server_makes_no_key(tmp_path: Path) -> None:
    failed = run("keys", "create", "ops", "--scope", "admin", "--data", tmp_path)
    assert failed.returncode == 8 and "no server runs on" in failed.stderr

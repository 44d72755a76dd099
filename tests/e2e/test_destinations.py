"""Destinations on a real server: by the command line, over a restart, a backup, and from the settings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.e2e.server import Server, run, wait_for
from tests.support.http.endpoints import serving

SECRETS = ("p4ssw0rd-of-the-shop", "whsec_c2VjcmV0LW9mLXRoZS1zaG9wLW9mLXNob3Bz", "t0ken-of-the-settings")
URL = "https://shop.invalid/hook"


def shown(server: Server, name: str = "shop") -> dict[str, Any]:
    done = run("destination", "show", name, "--json", url=server.url)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    del document["figures"]
    return document


@contextmanager
def endpoint(status: list[int]) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An endpoint that answers with the last of `status`: its URL, and what it got, with the header of tests."""
    received: list[tuple[str, bytes]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.headers.get("x-duemq-test", ""), body))
            self.send_response(status[-1])
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with serving(Endpoint) as url:
        yield url, received


def test_messages_reach_an_endpoint_and_wait_while_it_is_paused(tmp_path: Path) -> None:
    status = [204]
    allowed = ("--set", "relay.private_networks=127.0.0.0/8")
    with endpoint(status) as (url, received), Server(tmp_path / "data", *allowed) as server:
        server.start()
        server.send("orders", payload="before")
        assert run("destination", "add", "shop", url, "--topic", "orders", url=server.url).returncode == 0
        server.send("orders", payload="bound")
        server.call("POST", "/v1/messages", {"destination": "shop", "payload": "named"})
        wait_for(lambda: len(received) >= 2, "both messages")
        assert sorted(received) == [("", b"bound"), ("", b"named")], "what came before is not handed on"
        tested = run("destination", "test", "shop", url=server.url)
        assert tested.returncode == 0 and tested.stdout.startswith("accepted after"), tested.stderr
        assert received.pop() == ("1", b'{"duemq":"test","destination":"shop"}')

        assert run("destination", "pause", "shop", url=server.url).returncode == 0
        time.sleep(1)  # in force within a second
        server.send("orders", payload="paused")
        status.append(500)
        failed = run("destination", "test", "shop", "--json", url=server.url)
        assert failed.returncode == 1 and json.loads(failed.stdout)["status"] == "500"
        assert received.pop() == ("1", b'{"duemq":"test","destination":"shop"}') and len(received) == 2
        status.append(204)
        assert run("destination", "resume", "shop", url=server.url).returncode == 0
        wait_for(lambda: len(received) == 3, "the message that waited")
        assert received[-1] == ("", b"paused")


def test_declared_paused_kept_and_removed(tmp_path: Path) -> None:
    data, secrets = tmp_path / "data", tmp_path / "shop.toml"
    secrets.write_text(f'signing_secrets = ["{SECRETS[1]}"]\n')
    with Server(data, "--set", "log_level=debug") as server:
        server.start()
        added = run(
            "destination", "add", "shop", URL, "--topic", "orders", "--rate", "50", "--credentials", secrets,
            "--username", "u", "--password-stdin", url=server.url, stdin=f"{SECRETS[0]}\n",
        )  # fmt: skip
        assert added.returncode == 0, added.stderr
        before = shown(server)
        assert (before["state"], before["credentials"]) == ("active", ["password", "signing_secrets", "username"])
        assert run("destination", "add", "shop", URL, url=server.url).returncode == 7
        sent = server.call("POST", "/v1/messages", {"destination": "shop", "payload": "p"})
        assert sent.status_code == 201 and sent.json()["topic"] == "destination.shop"
        assert server.call("POST", "/v1/messages", {"destination": "nobody"}).json()["code"] == "unknown_destination"

        assert run("destination", "pause", "shop", url=server.url).stdout == "shop is paused\n"
        server.kill()
        server.start()
        assert shown(server) == before | {"state": "paused", "paused": True}
        assert run("destination", "resume", "shop", url=server.url).returncode == 0
        edited = run("destination", "edit", "shop", "--rate", "9", "--timeout", "3s", "--json", url=server.url)
        changed = {"rate": 9, "timeout": 3000}
        before |= changed
        assert edited.returncode == 0 and json.loads(edited.stdout)["rate"] == 9 and shown(server) == before
        kept = run("backup", tmp_path / "backups", "--data", data)
        assert "SHARD\tPENDING\tLAST ENTRY\tAPPLIED BELOW\tDELIVERED UP TO\n0\t" in kept.stdout
        assert run("destination", "rm", "shop", "--yes", url=server.url).returncode == 0
        assert run("destination", "show", "shop", url=server.url).returncode == 4
        assert run("destination", "ls", url=server.url).stdout == ""
        trail = server.call("GET", "/v1/trail").text
        for action in ("POST /v1/destinations", "POST /v1/destinations/{name}:pause", "DELETE /v1/destinations/{name}"):
            assert f'"{action}"' in trail
        told = [server.log_path.read_text(), trail, added.stdout + added.stderr, json.dumps(before)]
        assert not [secret for secret in SECRETS for text in told if secret in text]

    (backup,) = (tmp_path / "backups").iterdir()
    assert run("restore", backup, "--data", tmp_path / "restored").returncode == 0
    with Server(tmp_path / "restored") as server:
        server.start()
        assert shown(server) == before


def test_those_of_the_settings_are_declared_at_the_start(tmp_path: Path) -> None:
    settings = tmp_path / "duemq.toml"
    settings.write_text(f'[destinations.shop]\nurl = "{URL}"\ntopics = ["orders"]\n')
    with Server(tmp_path / "data", "--config", str(settings)) as server:
        server.start()
        wait_for(lambda: run("destination", "show", "shop", url=server.url).returncode == 0, "the destination")
        assert shown(server)["topics"] == ["orders"]
        assert run("destination", "pause", "shop", url=server.url).returncode == 0
        server.stop()
        settings.write_text(settings.read_text() + f'rate = 7\ncredentials.token = "{SECRETS[2]}"\n')
        server.start()
        begun = time.monotonic()
        wait_for(lambda: shown(server)["rate"] == 7, "the new rate")
        assert time.monotonic() - begun < 60
        after = shown(server)
        assert (after["paused"], after["credentials"]) == (True, ["token"])
        assert SECRETS[2] not in server.log_path.read_text() + json.dumps(after)

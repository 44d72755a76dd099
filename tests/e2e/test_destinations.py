"""Destinations on a real server: by the command line, over a restart, a backup, and from the settings."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.e2e.server import Server, run, wait_for

SECRETS = ("p4ssw0rd-of-the-shop", "whsec_c2VjcmV0LW9mLXRoZS1zaG9w", "t0ken-of-the-settings")
URL = "https://shop.example.com/hook"


def shown(server: Server, name: str = "shop") -> dict[str, object]:
    done = run("destination", "show", name, "--json", url=server.url)
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


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
        assert run("backup", tmp_path / "backups", "--data", data).returncode == 0
        assert run("destination", "rm", "shop", url=server.url).returncode == 0
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

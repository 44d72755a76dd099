"""A node of a real cluster drained and resumed at the console: by its forms, as an operator."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.dev.cluster.cluster import LocalCluster
from tests.e2e.server import wait_for
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("servers")]

SHARDS = 4


class Forms(HTMLParser):
    """The forms of a page that are sent by POST: the fields of each by its action."""

    def __init__(self, page: httpx.Response) -> None:
        super().__init__()
        self.url, self.fields = page.url, dict[str, dict[str, str]]()
        self._action: str | None = None
        self.feed(page.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self._action = (given.get("action") or "") if given.get("method") == "post" else None
            if self._action is not None:
                self.fields[self._action] = {}
        elif tag == "input" and self._action is not None and (name := given.get("name")):
            self.fields[self._action][name] = given.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._action = None

    def send(self, http: httpx.Client, ending: str, **typed: str) -> httpx.Response:
        """The page that the form leads to whose action ends so."""
        (action,) = [action for action in self.fields if action.endswith(ending)]
        return http.post(self.url.join(action), data=self.fields[action] | typed)


def test_an_operator_drains_a_node_at_the_console_and_resumes_it(tmp_path: Path) -> None:
    need_servers()
    settings = {"shards": str(SHARDS), "storage.refuse_percent": "100"}
    with (
        LocalCluster(tmp_path, nodes=2, proxies=1, settings=settings) as cluster,
        httpx.Client(base_url=cluster.proxies[0].url, timeout=60) as api,
        httpx.Client(base_url=f"{cluster.proxies[0].url}/console", timeout=60, follow_redirects=True) as browser,
    ):

        def make_key(name: str, role: str) -> str:
            text: str = api.post("/v1/keys", json={"name": name, "role": role}).raise_for_status().json()["key"]
            return text

        api.headers["X-API-Key"] = make_key("ops", "admin")  # the first key: nobody has to have one yet
        operator = make_key("anna", "operator")

        def nodes() -> dict[str, Any]:
            return {one["name"]: one for one in api.get("/v1/cluster").raise_for_status().json()["nodes"]}

        def shares() -> list[int]:
            """How many shards each node is master of, by name: the first one is drained."""
            return [len(one["master_of"]) for _, one in sorted(nodes().items())]

        wait_for(lambda: shares() == [SHARDS // 2] * 2, "each node master of half of the shards")
        message = {"topic": "orders", "payload": "p", "deliver_after": "1d"}
        id_ = api.post("/v1/messages", json=message).raise_for_status().json()["id"]
        name = min(nodes())

        def logged_in() -> bool:
            """Once the key is known to the proxy."""
            return Forms(browser.get("/login")).send(browser, "login", key=operator).url.path == "/console/"

        wait_for(logged_in, "the login")
        page = browser.get("/cluster")
        forged = browser.post(f"/cluster/nodes/{name}:drain", data={"sure": "1"})
        assert forged.status_code == 403 and nodes()[name]["state"] == "ready", "a form of another site"

        asked = Forms(page).send(browser, f"{name}:drain")
        assert f"Drain node {name}?" in asked.text and f"the {SHARDS // 2} shards" in asked.text
        assert nodes()[name]["state"] == "ready", "it only asks"
        drained = Forms(asked).send(browser, f"{name}:drain")
        assert drained.url.path == "/console/cluster" and "hands over its shards" in drained.text
        wait_for(lambda: shares() == [0, SHARDS], "all shards at the other node")
        page = browser.get("/cluster")
        assert page.text.count("badge draining") == 1 and f"<td>{SHARDS} shards" in page.text
        api.post(f"/v1/messages/{id_}:deliver-now").raise_for_status()
        wait_for(lambda: api.get(f"/v1/messages/{id_}").json()["status"] == "delivered", "a delivery")

        resumed = Forms(page).send(browser, f"{name}:resume")
        assert resumed.url.path == "/console/cluster" and "takes part again" in resumed.text
        wait_for(lambda: shares() == [SHARDS // 2] * 2, "half of the shards again")
        assert "badge draining" not in browser.get("/cluster").text
        acts = [one["action"] for one in api.get("/v1/trail").raise_for_status().json()["entries"] if not one["code"]]
        for step in ("drain", "resume"):  # each once: that a drain was asked for is no act
            assert acts.count(f"POST /console/cluster/nodes/{{node}}:{step}") == 1, acts

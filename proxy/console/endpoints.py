"""The table of all routes of the console. Each route declares the scope that it requires.

The routes are endpoints like those of the API, but in a separate table, so the OpenAPI document does not list them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from duemq.model.callers.access import Scope
from duemq.proxy.api.endpoint import Endpoint, Handler, Parameter, Service
from duemq.proxy.console.assets import get_asset
from duemq.proxy.console.live import get_live
from duemq.proxy.console.pages import (
    changes,
    cluster,
    files,
    imports,
    login,
    messages,
    overview,
    own_letters,
    schedule,
    topic_letters,
    topics,
)
from duemq.proxy.console.pages.admin import destinations, jobs, keys, trail
from duemq.proxy.login.settings import CALLBACK_PARAMETERS

PREFIX: Final = "/console"


class Form(BaseModel):
    """The body of a console form. It declares no fields, because the pages read them."""


def _page(
    path: str, handler: Handler, summary: str, query: str = "theme", scope: Scope | None = Scope.READ
) -> Endpoint:
    """The endpoint for a page. `query`: the names of its parameters, separated by blanks."""
    parameters = tuple(Parameter(name, "", {"type": "string"}) for name in query.split())
    return Endpoint("GET", PREFIX + path, handler, summary, "console", {}, parameters=parameters, scope=scope)


def _form(path: str, handler: Handler, summary: str, scope: Scope | None) -> Endpoint:
    """The endpoint for a form. Its acts are recorded in the trail."""
    return Endpoint(
        "POST", PREFIX + path, handler, summary, "console", {}, body=Form, raw_body=True, audited=True, scope=scope
    )


async def _get_trail(service: Service, request: Request) -> Response:
    return await trail.get_trail(service, request, CONSOLE_ENDPOINTS)


CONSOLE_ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    _page("/assets/{name}", get_asset, "A script or style sheet", scope=None),
    _page("/live", get_live, "Values of the overview as they change"),
    _page("/login", login.get_login, "Log in", "next", None),
    _form("/login", login.post_login, "Log in by an API key", None),
    _page("/login/provider", login.get_provider, "Log in by the provider", "next", None),
    _page("/login/callback", login.get_callback, "Return from the provider", " ".join(CALLBACK_PARAMETERS), None),
    _form("/logout", login.post_logout, "Log out", None),
    _page("/", overview.get_overview, "Overview"),
    _page("/messages", messages.get_messages, "Find messages", messages.QUERY),
    _page("/messages/{id}", messages.get_message, "One message", "as done"),
    _page("/dlq", own_letters.get_letters, "Dead letters", own_letters.QUERY),
    _page("/dlq/topics", topic_letters.get_topics, "Topics of dead letters", "topic"),
    _form("/dlq/topics/{topic}:confirm", topic_letters.confirm_selected,
          "Ask whether to redrive dead letters of a topic", Scope.OPERATE),
    _page("/dlq/topics/{topic}:matching", topic_letters.confirm_matching,
          "Ask whether to redrive or purge all of a topic that match", f"kind {topic_letters.QUERY}", Scope.OPERATE),
    _page("/dlq/topics/{topic}", topic_letters.get_letters, "Dead letters in a topic", topic_letters.QUERY),
    _page("/dlq/topics/{topic}/{place}", topic_letters.get_letter, "One dead letter in a topic", "as"),
    _form("/changes:confirm", changes.confirm_change, "Ask whether to change messages", Scope.CANCEL),
    _page("/changes:matching", changes.confirm_matching, "Ask whether to change all that match",
          f"kind {messages.QUERY}", Scope.CANCEL),
    _form("/changes", changes.post_change, "Cancel, move or deliver now", Scope.CANCEL),
    _form("/redrives:confirm", changes.confirm_redrive, "Ask whether to redrive dead letters", Scope.OPERATE),
    _page("/redrives:matching", own_letters.confirm_matching, "Ask whether to redrive or purge all that match",
          f"kind {own_letters.QUERY}", Scope.OPERATE),
    _form("/redrives", changes.post_redrive, "Redrive dead letters", Scope.OPERATE),
    _page("/schedule", schedule.get_schedule, "Schedule a message", "topic", Scope.SEND),
    _form("/schedule", schedule.post_schedule, "Schedule a message", Scope.SEND),
    _page("/topics", topics.get_topics, "Topics", "all"),
    _page("/topics/{topic}", topics.get_topic, "One topic and its records", topics.QUERY),
    _page("/cluster", cluster.get_cluster, "Nodes and shards", "done"),
    _form("/cluster/nodes/{node}:drain", cluster.post_drain, "Make a node hand over its shards", Scope.OPERATE),
    _page("/jobs", jobs.get_jobs, "Bulk jobs"),
    _page("/jobs/{id}", jobs.get_job, "One bulk job"),
    _form("/jobs", jobs.post_job, "Create a bulk job", Scope.OPERATE),
    _form("/jobs/{id}", jobs.post_step, "Pause, resume or cancel a bulk job", Scope.OPERATE),
    _page("/destinations", destinations.get_destinations, "Destinations"),
    _page("/destinations/{name}", destinations.get_destination, "One destination"),
    _form("/destinations/{name}", destinations.post_step, "Pause, resume or test a destination", Scope.OPERATE),
    replace(_page("/files", files.get_files, "Delay files by window", "from"), all_topics=True),
    _page("/imports", imports.get_imports, "Imported files", "state below"),
    _form("/imports", imports.post_import, "Submit a file of messages", Scope.SEND),
    _page("/imports/{id}", imports.get_import, "One imported file", "done"),
    _page("/keys", keys.get_keys, "API keys", "done", Scope.ADMIN),
    _form("/keys", keys.post_key, "Make an API key", Scope.ADMIN),
    _form("/keys/{id}:rotate", keys.post_rotate, "Give an API key a new text", Scope.ADMIN),
    _form("/keys/{id}:revoke", keys.post_revoke, "Revoke an API key", Scope.ADMIN),
    _page("/trail", _get_trail, "Acts and denials", "cursor", Scope.ADMIN),
    _form("/cluster/nodes/{node}:resume", cluster.post_resume, "Give a drained node shards again", Scope.OPERATE),
)  # fmt: skip

"""Selects the handler for a message by its topic and tags."""

from __future__ import annotations

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.policy import Reject
from duemq.client.consumer.work.tags import TagFilter
from duemq.client.consumer.work.work import Route


class Routes:
    """Routes in the order in which they were added."""

    def __init__(self) -> None:
        self._routes: dict[str, list[tuple[TagFilter, Route]]] = {}

    def __bool__(self) -> bool:
        return bool(self._routes)

    def add(self, topic: str, tags: TagFilter, route: Route) -> None:
        self._routes.setdefault(topic, []).append((tags, route))

    @property
    def subscription(self) -> dict[str, str]:
        """The tag filter for each topic."""
        return {topic: str(TagFilter.any_of(tags for tags, _ in routes)) for topic, routes in self._routes.items()}

    @property
    def done(self) -> dict[str, int]:
        """Number of messages that handlers have finished, by topic."""
        return {topic: sum(route.done for _, route in routes) for topic, routes in self._routes.items()}

    def only(self, topic: str) -> Route | None:
        """The route for all messages of the topic, if the topic has a single route and no tag filter."""
        routes = self._routes.get(topic, [])
        return routes[0][1] if len(routes) == 1 and not routes[0][0].tags else None

    def of(self, message: Message, retried: bool) -> Route | None:
        """The first route that matches; None to skip the message. A retried message that no route matches any more gets
        the first route of its topic: an earlier tag filter of the group accepted it, so it must be handled."""
        routes = self._routes.get(message.topic)
        if routes is None:
            return UNHANDLED
        headers = message.record.headers
        match = next((route for tags, route in routes if tags.matches(headers)), None)
        return routes[0][1] if match is None and retried else match


class NoHandler(Reject):
    """This consumer has no handler for the topic."""

    reason = "no_handler"


class OfFormer(Reject):
    """The message was sent back by an earlier group with the same name."""

    reason = "former_destination"


async def _refuse_former(message: Message) -> None:
    raise OfFormer("a former destination of this name sent it back")


async def _refuse(message: Message) -> None:
    raise NoHandler(f"no handler here for messages of {message.topic}")


FORMER = Route(_refuse_former, 60.0)
"""Route for a message that another instance of the group sent back."""
UNHANDLED = Route(_refuse, 60.0)
"""Route for a retried message whose topic this consumer no longer handles."""

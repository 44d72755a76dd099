"""The overview: problems, rates, lateness, and pending messages by due time. Rates and counts cover all topics, so a
caller limited to some topics sees only the problems."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from duemq.cluster.figures import HORIZONS_MS
from duemq.model.callers.access import Grant
from duemq.model.timing import WINDOW_MS
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.caller import grant_of
from duemq.proxy.console.pages.problems import problems
from duemq.proxy.console.views import NONE, input_time, ms_text, number, rate, render, render_text

_HORIZONS: Final = ("half an hour", "1 hour", "1 day", "7 days", "30 days", "1 year", "10 years", "later")


async def get_overview(service: Service, request: Request) -> Response:
    grant = grant_of(request)
    return render(
        request, "overview.html", problems=problems(service, grant), whole=not grant.topics, topics=grant.topics,
        values=_values(service), horizon=_horizon(service),
    )  # fmt: skip


def live_values(service: Service, grant: Grant) -> dict[str, Any]:
    """The current values of the page: texts by their place on the page, and rendered templates."""
    return {
        "values": {} if grant.topics else _values(service),
        "problems": render_text("parts/problems.html", problems=problems(service, grant), all_topics=not grant.topics),
        "horizon": [] if grant.topics else _horizon(service),
    }


def _values(service: Service) -> dict[str, str]:
    history = service.history
    now, points = history.now, history.points
    last = points[-1] if points else None
    late = next((point for point in reversed(points[-60:]) if point.p99_ms is not None), None)
    outcomes = [shard["outcomes"] for shard in now.cluster["shards"] if "outcomes" in shard]
    return {
        "in": rate(last.accepted) if last else NONE,
        "out": rate(last.delivered) if last else NONE,
        "pending": number(now.pending),
        "p50": ms_text(late.p50_ms) if late else NONE,
        "p99": ms_text(late.p99_ms) if late else NONE,
        "overdue": ms_text(now.overdue_ms) if now.overdue_ms > 0 else "none",
        "delivered": number(sum(one["delivered"] for one in outcomes)),
        "cancelled": number(sum(one["cancelled"] for one in outcomes)),
        "dead": number(sum(one["dead"] for one in outcomes)),
        "sealed": number(now.total("sealed")),
    }


def _horizon(service: Service) -> list[dict[str, Any]]:
    """The numbers of pending messages by due time. Each has its percentage of the largest number, and the query that
    lists its messages."""
    counts, now = service.history.now.horizon, service.clock()
    most = max(*counts, 1)
    edges = (now + WINDOW_MS, *(now + end for end in HORIZONS_MS[1:]))
    return [
        {"name": name, "count": number(count), "percent": round(100 * count / most, 1),
         "query": urlencode({name: input_time(at) for name, at in (("due_from", start), ("due_to", end)) if at})}
        for name, count, start, end in zip(_HORIZONS, counts, (None, *edges), (*edges, None), strict=True)
    ]  # fmt: skip

"""The overview: what is wrong, what flows, how late it is, and what is pending until when."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.pages.problems import problems
from duemq.proxy.console.views import NONE, ms_text, number, rate, render, render_text

_HORIZONS: Final = ("half an hour", "1 hour", "1 day", "7 days", "30 days", "1 year", "10 years", "later")


async def get_overview(service: Service, request: Request) -> Response:
    return render(
        request, "overview.html", problems=problems(service), values=_values(service), horizon=_horizon(service),
        sampled=bool(service.history.now.at),
    )  # fmt: skip


def live_values(service: Service) -> dict[str, Any]:
    """What the page shows, as it is now: texts by their places, and what is made of templates."""
    return {
        "values": _values(service),
        "problems": render_text("parts/problems.html", problems=problems(service)),
        "horizon": _horizon(service),
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
    """Pending by when it is due, each with its share of the largest in percent."""
    counts = service.history.now.horizon
    most = max(*counts, 1)
    return [
        {"name": name, "count": number(count), "percent": round(100 * count / most, 1)}
        for name, count in zip(_HORIZONS, counts, strict=True)
    ]

"""Shows nodes and shards with masters, progress and disk use; drains and resumes nodes."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from duemq.proxy.access import UNCHANGED
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.caller import grant_of
from duemq.proxy.console.forms import read_form
from duemq.proxy.console.pages.problems import problems
from duemq.proxy.console.views import redirect, render
from duemq.proxy.request.query import read_query

_DONE: Final = {
    "drain": "The node hands over its shards, cycle by cycle.",
    "resume": "The node gets shards again.",
}


async def get_cluster(service: Service, request: Request) -> Response:
    query = read_query(request, ("done",))
    cluster = await call_api(service, request, "GET", "/v1/cluster")
    grant = grant_of(request)
    all_figures = () if grant.topics else service.history.now.figures  # figures cover all topics
    figures = {one.node: one for one in all_figures if one.lateness}
    nodes = [node | {"figures": _figures_of(node, figures, len(cluster["nodes"]))} for node in cluster["nodes"]]
    return render(
        request, "cluster/cluster.html", cluster=cluster, nodes=nodes, problems=problems(service, grant),
        done=_DONE.get(query.get("done", ""), ""), alone=len(nodes) < 2,
    )  # fmt: skip


def _figures_of(node: dict[str, Any], figures: dict[str, Any], nodes: int) -> Any:
    """The figures of a node; they have no node's name if the cluster is a single node."""
    return figures.get(node["name"]) or (figures.get("") if nodes == 1 else None)


async def post_drain(service: Service, request: Request) -> Response:
    return await _steer(service, request, "drain")


async def post_resume(service: Service, request: Request) -> Response:
    return await _steer(service, request, "resume")


async def _steer(service: Service, request: Request, step: str) -> Response:
    """Drain or resume a node. A drain moves the node's work to the other nodes, so it needs a confirmation, for which
    the page asks unless the form has it."""
    node: str = request.path_params["node"]
    form = await read_form(request)
    if step == "drain" and not form.get("sure"):
        request.scope[UNCHANGED] = True
        cluster = await call_api(service, request, "GET", "/v1/cluster")
        shards: list[int] = next((one["master_of"] for one in cluster["nodes"] if one["name"] == node), [])
        return render(request, "cluster/drain.html", node=node, shards=len(shards))
    await call_api(service, request, "POST", f"/v1/cluster/nodes/{node}:{step}")
    return redirect(request, f"cluster?done={step}")

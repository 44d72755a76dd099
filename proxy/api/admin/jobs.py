"""Creates, lists, pauses, resumes and cancels bulk jobs."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from duemq.cluster.admin.jobs import Jobs
from duemq.cluster.topics.internal_topics import JOBS, is_internal
from duemq.cluster.topics.job_plans import append_whole
from duemq.model.callers.access import Grant, Scope
from duemq.model.errors import Rejected, Unavailable
from duemq.model.log.job import OF_THE_DEAD, Job, JobEvent, JobState, Order, PlanPosition, new_id
from duemq.model.timing import shown
from duemq.model.topics.topic_patterns import topic_matcher
from duemq.proxy.access import GRANT, UNCHANGED, caller_name
from duemq.proxy.api.endpoint import Service
from duemq.proxy.jobs.order import read_order
from duemq.proxy.jobs.topic_work import TopicWork, source_of
from duemq.proxy.jobs.work import JobWork, MessageWork
from duemq.proxy.request.caller_names import name_in_header
from duemq.proxy.request.json_body import read_both
from duemq.proxy.response.render import times
from duemq.web.json_response import JsonResponse

_MAX_BYTES = 1 << 20


async def post_job(service: Service, request: Request) -> Response:
    body, raw = await read_both(request, _MAX_BYTES, code="batch_too_large")
    jobs, now = _jobs(service), service.clock()
    once = _once(request, raw)
    if once is not None and (known := jobs.begun(once)) is not None:
        return JsonResponse(job_json(known))  # even if the order would be refused by now
    grant: Grant = request.scope[GRANT]
    order, ids, dry_run = read_order(body, service.ingress, now, grant.namespace)
    if order.kind not in OF_THE_DEAD and not grant.allows(Scope.CANCEL):
        raise Rejected("forbidden", f"this key does not have the scope {Scope.CANCEL}")
    if not is_covered(grant, order):
        detail = "a key for some topics can only create jobs for one of them, named in filter.topic, without ids"
        raise Rejected("forbidden", detail, "filter")
    if order.kind == "purge" and order.source and not grant.allows(Scope.ADMIN):
        _check_purgeable(service, order.source)
    if is_internal(order.source):
        raise Rejected("bad_topic", f"{order.source} is one of duemq's own topics", "source")
    if order.source:
        await source_of(service.gateway, order.source)
    if dry_run:
        request.scope[UNCHANGED] = True
        total = len(ids) if ids is not None else await _count(service, request, order, now)
        return JsonResponse({"kind": order.kind, "dry_run": True, "total": total})
    bus = service.gateway.bus
    start = await bus.sure_end(JOBS, 0)
    job = Job(new_id(now), order, now, caller_name(request), start, PlanPosition(start), once=once)
    if ids is not None:
        await append_whole(bus, job.id, ids)
        job = replace(job, total=len(ids))
    begun = await jobs.add(job)
    if begun.id != job.id:
        return JsonResponse(job_json(begun))
    return JsonResponse(job_json(begun), 201, {"Location": f"jobs/{job.id}"})


def _once(request: Request, raw: bytes | bytearray) -> str | None:
    """The digest that identifies a job created with an Idempotency-Key. Raises Rejected."""
    name = name_in_header(request)
    return f"{sha256(name).hexdigest()[:32]}:{sha256(raw).hexdigest()[:32]}" if name else None


def _check_purgeable(service: Service, topic: str) -> None:
    """Raises Rejected `forbidden` for a topic that may hold records other than dead letters."""
    if topic_matcher(service.ingress.limits.purgeable)(topic) is None:
        detail = (
            f"{topic} may hold more than dead letters, so its purge needs the scope {Scope.ADMIN}; topics of dead "
            "letters are named in topics.purgeable"
        )
        raise Rejected("forbidden", detail, "source")


def is_covered(grant: Grant, order: Order) -> bool:
    """Whether a job stays within the topics of a restricted caller."""
    if not grant.topics:
        return True
    own, prefix = order.source or order.filter.get("topic"), order.filter.get("topic_prefix")
    covered = grant.covers(own) if own is not None else prefix is not None and grant.covers_all(prefix)
    covered = covered and (not order.topic or grant.covers(order.topic))
    return covered and (not order.source or bool(order.topic) or order.kind == "purge")


async def list_jobs(service: Service, request: Request) -> Response:
    grant: Grant = request.scope[GRANT]
    jobs = [job for job in _jobs(service).listed() if is_covered(grant, job.order)]
    return JsonResponse({"jobs": list(map(job_json, jobs))})


async def get_job(service: Service, request: Request) -> Response:
    return JsonResponse(job_json(_find(service, request)))


def _find(service: Service, request: Request) -> Job:
    job = _jobs(service).find(id_ := request.path_params["id"])
    if not is_covered(request.scope[GRANT], job.order):
        raise Rejected("unknown_job", f"there is no job {shown(id_)} of this key's topics", "id")
    return job


async def pause_job(service: Service, request: Request) -> Response:
    return await _tell(service, request, JobEvent.PAUSE)


async def resume_job(service: Service, request: Request) -> Response:
    return await _tell(service, request, JobEvent.RESUME)


async def cancel_job(service: Service, request: Request) -> Response:
    return await _tell(service, request, JobEvent.CANCEL)


async def _tell(service: Service, request: Request, event: JobEvent) -> Response:
    before = _find(service, request)
    job = await _jobs(service).tell(before.id, event, caller_name(request))
    if job == before:
        request.scope[UNCHANGED] = True
    return JsonResponse(job_json(job))


async def _count(service: Service, request: Request, order: Order, now: int) -> int:
    """The number of messages that a job would apply to."""
    work: JobWork = TopicWork(service.gateway, 0) if order.source else MessageWork(service.gateway, 0)
    total, cursor = 0, None
    while True:
        page = await work.plan(order, now, cursor)
        total, cursor = total + len(page.entries), page.cursor
        if cursor is None:
            return total
        if await request.is_disconnected():
            raise ClientDisconnect


def job_json(job: Job) -> dict[str, Any]:
    """A job, as the API shows it."""
    order = job.order
    return {
        "id": job.id, "kind": order.kind, "state": str(job.state), **times("created_at", job.created_at), "by": job.by,
        "filter": order.filter, "total": job.total, "done": job.done, "skipped": sum(job.skipped.values()),
        "failed": sum(job.failed.values()), "rate": order.rate, "reason": job.reason,
        "skipped_by_reason": job.skipped, "failed_by_reason": job.failed, "topic": order.topic or None,
        "source": order.source or None, "active": job.needs_work,
        "waiting": job.state is JobState.RUNNING and not job.owner,
        **(times("ended_at", job.ended_at) if job.ended_at else {}),
        **(times("deliver_at", order.due) if order.due else {}), **({"shift_ms": order.shift} if order.shift else {}),
    }  # fmt: skip


def _jobs(service: Service) -> Jobs:
    admin = service.access.admin
    if admin is None:
        raise Rejected("not_supported", "this server runs no jobs")
    if not admin.log.ready.is_set():
        raise Unavailable(admin.log.trouble or "the administrative log is being read")
    return admin.jobs

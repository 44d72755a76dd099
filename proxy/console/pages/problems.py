"""The current problems, the worst first: those with shards, nodes, disks, lateness, topics and destinations, and dead
letters that wait for a decision. A caller limited to some topics sees only the problems with these topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from duemq.model.callers.access import Grant
from duemq.model.destinations.destination import Destination
from duemq.model.log.job import JobState
from duemq.model.messages.dead_letters import DESTINATION, MALFORMED, home_of
from duemq.model.topics.group_topics import group_of_letters
from duemq.proxy.api.admin.jobs import is_covered as is_job_covered
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.views import ms_text, number
from duemq.proxy.destinations.handlers import is_covered

_LATE_MS: Final = 5_000
_FAILED_MS: Final = 3_600_000  # how long a failed attempt at a destination is shown
_LAG: Final = 1_000  # ledger entries
_NOT_READY: Final = frozenset(("joining", "out", "draining"))
_MAX_SHOWN: Final = 20


class ClusterProblem(NamedTuple):
    """`page`: the page with details, relative to the root of the console. `things`: how many things are affected."""

    severe: bool
    text: str
    page: str
    things: int = 1


def problems(service: Service, grant: Grant) -> list[ClusterProblem]:
    """At most 20 problems. If there are more, the last entry says how many."""
    listed = sorted(_all(service, grant), key=lambda problem: not problem.severe)
    if (more := len(listed) - _MAX_SHOWN + 1) > 1:
        listed[_MAX_SHOWN - 1 :] = [ClusterProblem(listed[_MAX_SHOWN - 1].severe, f"{more} more problems", "./", more)]
    return listed


def counters(service: Service, grant: Grant) -> dict[str, int]:
    """The number of problems for each page in the navigation; for `dlq`, the number of waiting dead letters."""
    listed = problems(service, grant)
    counts = Counter({"./": sum(problem.things for problem in listed if not problem.page.startswith("dlq"))})
    for problem in listed:
        page = problem.page.partition("/")[0].partition("?")[0]
        if page != ".":
            counts[page] += problem.things
    return counts


def _all(service: Service, grant: Grant) -> Iterator[ClusterProblem]:
    for reason in (service.gateway.why_not_ready(), service.access.why_not_ready()):
        if reason is not None:
            yield ClusterProblem(True, f"Not ready: {reason}", "cluster")
    now = service.history.now
    for shard in now.cluster["shards"]:
        if now.at and shard.get("master") is None:
            yield ClusterProblem(
                True, f"Shard {shard['shard']} has no master: its due messages are not delivered", "cluster"
            )
    if now.overdue_ms > _LATE_MS:
        text = f"The oldest overdue message is {ms_text(now.overdue_ms)} late"
        yield ClusterProblem(True, text, "messages?status=scheduled")
    for node in now.cluster["nodes"]:
        yield from _of_node(node)
    for topic, trouble in service.gateway.troubles().items():
        yield ClusterProblem(False, f"Topic {topic} refuses messages: {trouble}", f"topics/{quote(topic)}")
    yield from _of_letters(service, grant)
    if (admin := service.access.admin) is None:
        return
    for destination in admin.destinations.listed():
        if is_covered(grant, destination):
            figures = service.relay.figures(destination.name)
            yield from _of_destination(destination, figures, service.clock())
    for job in admin.jobs.listed():
        if job.state is JobState.PAUSED and is_job_covered(grant, job.order):
            yield ClusterProblem(False, f"A {job.order.kind} job is paused{': ' * bool(job.reason)}{job.reason}",
                          f"jobs/{job.id}")  # fmt: skip


def _of_letters(service: Service, grant: Grant) -> Iterator[ClusterProblem]:
    fresh = service.fresh_letters
    if fresh.trouble:
        yield ClusterProblem(False, fresh.trouble, "dlq/topics")
    reasons: dict[tuple[str, str], Counter[str]] = {}
    for letter in fresh.letters:
        if letter.is_shown_to(grant):
            page = "dlq" if letter.is_own else f"dlq/topics/{quote(letter.source)}"
            if letter.reason == MALFORMED:
                page += f"?reason={MALFORMED}"
            reasons.setdefault((letter.source, page), Counter())[letter.reason] += 1
    for source in sorted(fresh.more - {source for source, _ in reasons}):
        if grant.covers(source):
            yield ClusterProblem(
                False, f"More dead letters in {source} than are counted", f"dlq/topics/{quote(source)}"
            )
    for (source, page), counts in reasons.items():
        of = _writer(source) if page.startswith("dlq/topics") and MALFORMED not in page else ""
        what = "malformed Kafka record" if MALFORMED in page else "dead letter"
        total = sum(counts.values())
        words = ", ".join(reason for reason, _ in counts.most_common(3) if reason and reason != MALFORMED)
        text = f"{'At least ' if source in fresh.more else ''}{number(total)} {what}{'' if total == 1 else 's'}{of}"
        yield ClusterProblem(False, f"{text} in the last 24 h{': ' * bool(words)}{words}", page, total)


def _writer(source: str) -> str:
    """A phrase that says whose dead letters are in a topic."""
    if home := home_of(source):
        return f" of destination {home.removeprefix(DESTINATION)}"
    return f" of group {group}" if (group := group_of_letters(source)) else f" in {source}"


def _of_destination(one: Destination, figures: Mapping[str, Any] | None, now: int) -> Iterator[ClusterProblem]:
    page = f"destinations/{one.name}"
    if one.disabled:
        yield ClusterProblem(True, f"Destination {one.name} is disabled: {one.disabled}", page)
    elif one.paused:
        yield ClusterProblem(False, f"Destination {one.name} is paused", page)
    elif figures is None:
        yield ClusterProblem(True, f"Destination {one.name} is served by no relay: its messages wait", page)
    elif figures.get("trouble"):
        yield ClusterProblem(True, f"Destination {one.name} gets nothing: {figures['trouble']}", page)
    elif (last := next(iter(figures.get("last_failures") or ()), None)) and now - last["at"] < _FAILED_MS:
        is_failing = (figures.get("last_accepted_at") or 0) < last["at"]
        what = "The last attempt" if is_failing else "An earlier attempt"
        ago = ms_text(max(now - last["at"], 0) // 1000 * 1000)
        yield ClusterProblem(
            is_failing, f"{what} at destination {one.name} failed {ago} ago with {last['status']}", page
        )


def _of_node(node: dict[str, Any]) -> Iterator[ClusterProblem]:
    name = node["name"]
    if node.get("full"):
        yield ClusterProblem(True, f"Node {name} takes no new messages: {node['full']}", "cluster")
    elif node.get("watermark"):
        yield ClusterProblem(False, f"The disk of node {name} is filling up (mark {node['watermark']} of 3)", "cluster")
    if node.get("state") in _NOT_READY:
        yield ClusterProblem(
            False, f"Node {name} is {node['state']}{': ' * bool(node['reason'])}{node['reason']}", "cluster"
        )
    for shard, why in node.get("unfit", {}).items():
        yield ClusterProblem(True, f"Node {name} cannot hold shard {shard}: {why}", "cluster")
    for shard, behind in node.get("lag", {}).items():
        if behind > _LAG:
            yield ClusterProblem(False, f"Node {name} is {behind} ledger entries behind in shard {shard}", "cluster")

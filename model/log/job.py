"""A bulk job: its order, its progress and its states. Pure. See docs/adr/0041.

A job first writes its *plan* into a log: records that list, in steps, the entries to which the job applies. Then it
executes the plan. Its whole state is one small value, which the process that runs the job writes about once a second.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, MOVE_WITH_EXPIRY, PURGE, REDRIVE
from duemq.model.state_table import StateTable

KINDS: Final[Mapping[str, int]] = {
    "redrive": REDRIVE, "purge": PURGE, "cancel": CANCEL, "move": MOVE, "move-with-expiry": MOVE_WITH_EXPIRY,
    "deliver-now": DELIVER_NOW,
}  # fmt: skip
"""The kinds of jobs, and the kind of command (`model/messages/message.py`) that each one sends."""
OF_THE_DEAD: Final = frozenset(("redrive", "purge"))
"""The kinds of jobs that apply to dead letters; all other kinds apply to pending messages."""

MAX_REASONS: Final = 20
"""How many reasons a job counts separately, for failed and for skipped entries; all others are counted as `other`."""

_REASON_CHARACTERS: Final = 300
_LETTERS: Final = "23456789abcdefghijkmnpqrstuvwxyz"  # in ascending order, so that ids sort by time
_TIME_LETTERS: Final = 9
_ID: Final = re.compile(r"[a-z0-9]{12}")


class JobState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class JobEvent(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    FINISH = "finish"  # the whole plan is executed
    FAIL = "fail"  # the job cannot continue, for a given reason


JOB: Final = StateTable(
    "job",
    JobState.RUNNING,
    {
        (JobState.RUNNING, JobEvent.PAUSE): JobState.PAUSED,
        (JobState.PAUSED, JobEvent.RESUME): JobState.RUNNING,
        (JobState.RUNNING, JobEvent.CANCEL): JobState.CANCELLED,
        (JobState.PAUSED, JobEvent.CANCEL): JobState.CANCELLED,
        (JobState.RUNNING, JobEvent.FINISH): JobState.DONE,
        (JobState.RUNNING, JobEvent.FAIL): JobState.FAILED,
    },
)
ENDED: Final = frozenset((JobState.DONE, JobState.CANCELLED, JobState.FAILED))


class PlanPosition(NamedTuple):
    """A job's position in its plan: the offset of a record in the log (or the first offset at which the next record can
    be), the number of the step in that record, and how many entries of the step have been counted."""

    offset: int
    step: int = 0
    counted: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """What the caller ordered. `filter`: the API's fields, as given. `rate`: messages/s; None: unlimited.

    `topic`: the topic for redrives; empty: each message goes to its own topic. `due` (epoch ms) or `shift` (ms): the
    new time for a move. `source`: the topic whose records are the dead letters; empty: the dead letters of duemq
    itself. `caller`: the caller whose names the filter's prefix means (`Grant.namespace`); None: the filter has no
    prefix.
    """

    kind: str
    filter: Mapping[str, Any] = field(default_factory=dict)
    rate: float | None = None
    topic: str = ""
    due: int = 0
    shift: int = 0
    source: str = ""
    caller: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """`plan_start`: the offset in the log after which the job's plan begins. `total`: the number of entries in the
    plan; None while the plan is being written. `claimed`: how many entries may have been started; this is written
    before more entries are started. `skipped`, `failed`: counts by reason. `by`: the caller that created the job, or
    last resumed it. `owner`: the process that runs the job; empty for none. `once`: the digests of the Idempotency-Key
    with which the job was created, and of the request's body; None without such a key."""

    id: str
    order: Order
    created_at: int
    by: str
    plan_start: int
    position: PlanPosition
    state: JobState = JobState.RUNNING
    total: int | None = None
    done: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    claimed: int = 0
    reason: str = ""
    owner: str = ""
    ended_at: int = 0
    once: str | None = None

    @property
    def counted(self) -> int:
        """The number of entries whose outcomes are known and counted."""
        return self.done + sum(self.skipped.values()) + sum(self.failed.values())

    @property
    def needs_work(self) -> bool:
        """Whether a process must run the job. A paused or cancelled job needs this, too, until the outcomes of all
        started entries are known."""
        return self.state is JobState.RUNNING or self.counted < self.claimed

    def after(self, event: JobEvent, at: int, reason: str = "") -> Job:
        """The job after an event at this time (epoch ms). Raises IllegalStep."""
        state = JOB.next(self.state, event)
        return replace(
            self, state=state, ended_at=at if state in ENDED else 0, reason=reason[:_REASON_CHARACTERS] or self.reason
        )

    def with_outcomes(self, outcomes: Counter[tuple[str, str]], position: PlanPosition) -> Job:
        """The job with the outcomes of more entries. `outcomes`: counts by kind (`done`, `skipped`, `failed`) and
        reason."""
        skipped, failed = dict(self.skipped), dict(self.failed)
        done = self.done
        for (what, reason), count in outcomes.items():
            if what == "done":
                done += count
            else:
                reasons = skipped if what == "skipped" else failed
                name = reason if reason in reasons or len(reasons) < MAX_REASONS else "other"
                reasons[name] = reasons.get(name, 0) + count
        return replace(self, done=done, skipped=skipped, failed=failed, position=position)

    def tag(self, step: int) -> str:
        """The tag for the commands of a step (`model/messages/row_notes.py`)."""
        return f"{self.id}/{step}"

    def value(self) -> dict[str, Any]:
        """The job as an item of the administrative state.

        An older version ignores filter fields that it does not know, so it would apply the job to more messages. But it
        cannot read `caller` or `once`, so it does not run a job that has one of them.
        """
        value = asdict(self) | {"position": list(self.position)}
        if self.once is None:
            del value["once"]
        if self.order.caller is None:
            del value["order"]["caller"]
        return value

    @staticmethod
    def from_value(value: Mapping[str, Any]) -> Job:
        """The job in an item. Raises KeyError, TypeError or ValueError."""
        fields = dict(value)
        fields["order"] = Order(**fields["order"])
        fields["position"] = PlanPosition(*fields["position"])
        fields["state"] = JobState(fields["state"])
        return Job(**fields)


def new_id(now: int) -> str:
    """The id of a job created now (epoch ms). Ids sort by creation (docs/adr/0051)."""
    time = (_LETTERS[now >> 5 * place & 31] for place in reversed(range(_TIME_LETTERS)))
    return "".join((*time, *(secrets.choice(_LETTERS) for _ in range(12 - _TIME_LETTERS))))


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None

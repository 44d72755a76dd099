"""A bulk job: what it does, how far it is, and the states it can be in. Pure. See docs/adr/0041.

A job first writes its *plan* into a log: records that list what it applies to, in steps. Then it works the plan off.
All that is known of it is one small value, which whoever runs it writes about once a second.
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
"""What jobs there are, and the kinds of commands (`model/messages/message.py`) that they send."""
OF_THE_DEAD: Final = frozenset(("redrive", "purge"))
"""The kinds of jobs that apply to dead letters; the others apply to pending messages."""

MAX_REASONS: Final = 20
"""How many reasons a job counts apart, of what failed and of what was skipped; those beyond are `other`."""

_REASON_CHARACTERS: Final = 300
_LETTERS: Final = "23456789abcdefghijkmnpqrstuvwxyz"  # in the order of their bytes
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
    FINISH = "finish"  # all of the plan is worked off
    FAIL = "fail"  # it cannot go on, for a reason


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


class Position(NamedTuple):
    """Where a job is in its plan: the offset of a record of the log (or of where the next one may be), the number of
    the step that it holds, and how many entries of it are settled."""

    offset: int
    step: int = 0
    counted: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for. `filter`: fields of the API, as given. `rate`: messages/s; None: as fast as it goes.

    `topic`: where redrives go; empty: to the topic of each. `due` (epoch ms) or `shift` (ms): of a move. `source`: the
    topic whose records are the dead letters; empty: duemq's own. `caller`: of a filter with a prefix, whose names are
    meant (`Grant.namespace`); None: the filter has no prefix.
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
    """`plan_start`: the offset of the log behind which its plan is. `total`: entries of the plan; None while it is
    being written. `claimed`: entries that may have been begun: no more are before a value that says so is written.
    `skipped`, `failed`: how many, by reason. `by`: who began it, or resumed it last. `owner`: the process that runs it;
    empty for none. `once`: digests of the Idempotency-Key that it was begun with, and of the body; None without."""

    id: str
    order: Order
    created_at: int
    by: str
    plan_start: int
    position: Position
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
        """Entries of which it is known, and counted, what became of them."""
        return self.done + sum(self.skipped.values()) + sum(self.failed.values())

    @property
    def needs_work(self) -> bool:
        """Whether somebody has to run it: also one that is paused or cancelled, as long as it is not known what became
        of all that may have been begun."""
        return self.state is JobState.RUNNING or self.counted < self.claimed

    def after(self, event: JobEvent, at: int, reason: str = "") -> Job:
        """The job after an event `at` ms. Raises IllegalStep."""
        state = JOB.next(self.state, event)
        return replace(
            self, state=state, ended_at=at if state in ENDED else 0, reason=reason[:_REASON_CHARACTERS] or self.reason
        )

    def settle(self, outcomes: Counter[tuple[str, str]], position: Position) -> Job:
        """The job once it is known what became of more entries. `outcomes`: how many, by what they count as (`done`,
        `skipped`, `failed`) and reason."""
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
        """The tag of the commands of a step (`model/messages/row_notes.py`)."""
        return f"{self.id}/{step}"

    def value(self) -> dict[str, Any]:
        """As the administrative state has it.

        An older version passes over fields of a filter that it does not know, and would apply the job to more. It
        cannot read `caller`, so it leaves alone a job that has it, or `once`.
        """
        value = asdict(self) | {"position": list(self.position)}
        if self.once is None:
            del value["once"]
        if self.order.caller is None:
            del value["order"]["caller"]
        return value

    @staticmethod
    def from_value(value: Mapping[str, Any]) -> Job:
        """Raises KeyError, TypeError or ValueError."""
        fields = dict(value)
        fields["order"] = Order(**fields["order"])
        fields["position"] = Position(*fields["position"])
        fields["state"] = JobState(fields["state"])
        return Job(**fields)


def new_id(now: int) -> str:
    """The id of a job that begins now (epoch ms). Ids are in the order of their beginning (docs/adr/0051)."""
    time = (_LETTERS[now >> 5 * place & 31] for place in reversed(range(_TIME_LETTERS)))
    return "".join((*time, *(secrets.choice(_LETTERS) for _ in range(12 - _TIME_LETTERS))))


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None

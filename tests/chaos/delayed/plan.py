"""The plan of a round, from the seed and its number alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.delayed.holds import Api, Hold, draw_seconds
from tests.chaos.pace import SLOW

REQUEST_TIMEOUT_MS = int(1_000 * SLOW)
TRANSACTION_TIMEOUT_MS = int(2_500 * SLOW)
_GIVEN_UP_S = 1.3 * REQUEST_TIMEOUT_MS / 1_000
_SECOND = 0.5  # how often the retry is held, too


class Scene(StrEnum):
    """`TIMED_OUT`: the client's request times out. `CUT`: its connection is closed at once. `CROSSED`: the request
    continues only after one that its producer sent later. `DEPOSED`: a second master took over in between. `UNHEARD`:
    the request passes, and its answer is late."""

    TIMED_OUT = "timed out"
    CUT = "connection closed"
    CROSSED = "crossed"
    DEPOSED = "deposed master"
    UNHEARD = "answer late"


COMMITTER = (Api.END_TXN, Api.PRODUCE, Api.ADD_PARTITIONS, Api.INIT_PRODUCER_ID)
NAMES = {
    Api.END_TXN: "EndTxn", Api.PRODUCE: "Produce", Api.ADD_PARTITIONS: "AddPartitionsToTxn",
    Api.INIT_PRODUCER_ID: "InitProducerId",
}  # fmt: skip
# Of one producer in its order: what may come after a request of each kind, at its retry or its successor.
_LATER: tuple[Api, ...] = (Api.ADD_PARTITIONS, Api.PRODUCE, Api.END_TXN)
_LATER_OF_SENDER: tuple[Api, ...] = (Api.PRODUCE,)


@dataclass(frozen=True)
class Kind:
    """`of_sender`: the request is one of the producer that appends commands, which has no transactions."""

    api: Api
    scene: Scene
    of_sender: bool = False

    @property
    def name(self) -> str:
        whose = "sender's " if self.of_sender else ""
        return f"{whose}{NAMES[self.api]}, {self.scene}"


KINDS = (
    *(Kind(api, scene) for scene in Scene for api in COMMITTER),
    *(Kind(Api.PRODUCE, scene, of_sender=True) for scene in (Scene.TIMED_OUT, Scene.CUT, Scene.CROSSED)),
)


@dataclass(frozen=True)
class Plan:
    """`holds`: the first is the one the round is about; others hold a retry, if there is one. `takeover_s`: from when
    the request is held until a second master takes over; `told_s`: until the first one is told so. `pause_s`: between
    two cycles."""

    number: int
    kind: Kind
    holds: tuple[Hold, ...]
    takeover_s: float
    told_s: float
    pause_s: float

    @property
    def chance(self) -> random.Random:
        return random.Random(f"{self.number}.{self.kind.name}")


def plan(seed: int, number: int, marker: bytes, kinds: tuple[Kind, ...] = KINDS, most_s: float = 60.0) -> Plan:
    """The plan of a round. `marker`: the transactional id of its committer; `most_s`: the longest hold."""
    kind, chance = kinds[number % len(kinds)], random.Random(f"{seed}.{number}")
    scene, whose, later = kind.scene, marker, _LATER
    if kind.of_sender:
        whose, later = b"", _LATER_OF_SENDER
    cut = scene is Scene.CUT or (scene is not Scene.TIMED_OUT and chance.random() < 0.6)
    seconds = draw_seconds(chance, 1.0 if cut else _GIVEN_UP_S, most_s)
    after: Api | None = None
    if scene is Scene.CROSSED or chance.random() < 0.5:
        after = chance.choice(later)
    # A request in the midst of others of its kind, such as the second of a transaction.
    skip = chance.randrange(4) if kind.api is not Api.INIT_PRODUCER_ID else 0
    cut_s = chance.uniform(0, 0.2) if cut else None
    holds = [Hold(kind.api, whose, seconds, skip, cut_s, after, of_answer=scene is Scene.UNHEARD)]
    if scene is Scene.CROSSED and chance.random() < _SECOND:
        second = draw_seconds(chance, 1.0, 3.0), 0, chance.uniform(0, 0.2), chance.choice(later)
        holds.append(Hold(kind.api, whose, *second))
    told_s = chance.choice((0.0, chance.uniform(0, 2)))
    return Plan(number, kind, tuple(holds), chance.uniform(0, 0.5), told_s, 0.15 if seconds < 10 else 0.4)

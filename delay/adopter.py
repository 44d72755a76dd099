"""Adopting files of messages: each replica takes in the files its shard was asked to adopt, the master decides.

    the command is applied      every replica notes the file as wanted, and the ledger answers WANTED
    taking in                   each replica for itself, beside its cycles: read, validate, copy, sync
    a later cycle of the master the file is here and sound: its ledger entry says `adopted`, with rows and checksum,
                                and the messages are pending from then on; or it is refused, with the reason
    a follower                  waits at that entry until it has the file, too, and compares rows and checksum

So nothing waits for a file but the adoption itself, and a replica that cannot get it stays behind, visibly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from duemq.delay.replica import Replica
from duemq.delay.threads import in_thread
from duemq.delay.work import Lines
from duemq.model.errors import Behind, CorruptStore, DuemqError, StoreFailed, Unavailable
from duemq.model.key import due_of
from duemq.model.ledger import Adopted
from duemq.storage.adoptions import Adoption, Here
from duemq.storage.delay_file import About
from duemq.storage.far import Sealed
from duemq.storage.intake_rules import AdoptLimits
from duemq.storage.store import ShardStore

log = logging.getLogger(__name__)

_TOGETHER = 64  # files that one process takes in
_DECIDED = 1_000  # files that one ledger entry speaks of
_LOOK_S = 1.0
_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class AdoptPolicy:
    """`folders`: where files may be taken from. `limits`: of the messages.

    `lead_ms`: how far ahead of now the window of a file must begin. `patience_ms`: how long the master looks for a file
    that is not there. `furthest_ms`: how far ahead of now messages may be due.
    """

    folders: tuple[Path, ...] = ()
    limits: AdoptLimits = field(default_factory=AdoptLimits)
    lead_ms: int = 120_000
    patience_ms: int = 60_000
    furthest_ms: int = 10 * 365 * 86_400_000

    @property
    def too_near(self) -> str:
        """Why a file is refused whose window begins too soon."""
        return f"its window begins in less than {self.lead_ms // 1000} s: send its messages one by one"

    @property
    def too_far(self) -> str:
        """Why a file is refused whose window begins too late."""
        return "its messages are due later than limits.max_delay allows"

    def refuse_folder(self, path: str) -> str | None:
        """Why no file may be taken from there, in a sentence; None where it may. Links are followed."""
        if not self.folders:
            return "no folder is named to adopt files from (far.adopt_from)"
        found = Path(path).resolve()
        if not any(found.is_relative_to(folder) for folder in self.folders):
            return f"{path} is in none of the folders that files may be adopted from (far.adopt_from)"
        return None


@dataclass(frozen=True, slots=True)
class Wrong:
    """Why a file cannot be adopted. `final`: looking again would change nothing."""

    reason: str
    final: bool


class Adopter:
    """Of one shard. `turn`: shared by the shards of a node, for taking files in needs a core."""

    def __init__(
        self,
        shard: int,
        replica: Callable[[], Replica],
        policy: AdoptPolicy,
        clock: Callable[[], int],
        turn: asyncio.Lock,
        work: Lines,
        has_peer: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_peer`: whether another node has a replica of the shard that can be copied, with its files."""
        self._shard, self._replica, self._policy = shard, replica, policy
        self._clock, self._turn, self._work = clock, turn, work
        self._has_peer = has_peer
        self._store: ShardStore | None = None
        self._found: dict[int, Here | Wrong] = {}
        self._looked_at: dict[int, int] = {}
        self._news = asyncio.Event()  # set, and made anew, whenever files were looked at

    def _wanted(self) -> Mapping[int, Adoption]:
        """The files of the store as it is now. What was taken in for one that a peer's has replaced is gone with it."""
        store = self._replica().store
        if store is not self._store:
            self._store = store
            self._found.clear()
            self._looked_at.clear()
        return store.adoptions.wanted

    # --- deciding -------------------------------------------------------------------------------------------------

    def decide(self, now: int) -> list[Adopted]:
        """What the master can say of the wanted files just now."""
        if not (wanted := self._wanted()):
            return []
        start = max(now, due_of(self._replica().entry.cursor)) + self._policy.lead_ms
        decided: list[Adopted] = []
        for offset, adoption in wanted.items():
            found = self._found.get(offset)
            if adoption.adopt.window < start:
                decided.append(Adopted(offset, 0, 0, self._policy.too_near))
            elif adoption.adopt.window > now + self._policy.furthest_ms:
                decided.append(Adopted(offset, 0, 0, self._policy.too_far))
            elif isinstance(found, Here):
                decided.append(Adopted(offset, found.about.rows, found.checksum))
            elif found is not None and (found.final or now - adoption.at > self._policy.patience_ms):
                decided.append(Adopted(offset, 0, 0, found.reason))
            if len(decided) == _DECIDED:
                break
        return decided

    async def have(self, said: Adopted) -> None:
        """Wait until the file is here that the ledger says was adopted. Raises CorruptStore where it is another.

        Raises Behind where it cannot be had for long, and a peer can be copied instead.
        """
        self._wanted()
        since = self._clock()
        while True:
            found = self._found.get(said.offset)
            if isinstance(found, Here):
                if (found.about.rows, found.checksum) != (said.rows, said.checksum):
                    raise CorruptStore(
                        f"shard {self._shard}: the adopted file {found.path} has {found.about.rows} rows with checksum "
                        f"{found.checksum:016x}, the ledger says {said.rows}, {said.checksum:016x}"
                    )
                return
            late = self._clock() - since > self._policy.patience_ms
            if late and isinstance(found, Wrong) and self._has_peer():
                raise Behind(f"shard {self._shard} cannot get a file that was adopted: {found.reason}")
            await self._news.wait()

    def here(self, offset: int) -> Here:
        found = self._found[offset]
        assert isinstance(found, Here)
        return found

    def waiting(self) -> str | None:
        """Of a replica that waits: for which file, and why it is not here."""
        for offset, adoption in self._wanted().items():
            if isinstance(found := self._found.get(offset), Wrong):
                return f"shard {self._shard} waits for {adoption.adopt.path}: {found.reason}"
        return None

    def forget(self, settled: Sequence[Adopted]) -> None:
        """They are adopted or refused in the store."""
        if rows := sum(said.rows for said in settled):
            log.info("shard %d adopted %d messages", self._shard, rows, extra={"action": "adopt", "shard": self._shard})
        for said in settled:
            if said.reason:
                log.warning(
                    "shard %d refused the file of command %d: %s", self._shard, said.offset, said.reason,
                    extra={"action": "adopt", "shard": self._shard},
                )  # fmt: skip
            self._looked_at.pop(said.offset, None)
            found = self._found.pop(said.offset, None)
            if said.reason and isinstance(found, Here):
                found.path.unlink(missing_ok=True)

    # --- taking in ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pause = _LOOK_S
            try:
                while await self.step():
                    pass
            except Unavailable as error:
                log.warning("shard %d: %s", self._shard, error, extra={"action": "adopt", "shard": self._shard})
                pause = _AGAIN_S
            await asyncio.sleep(pause)

    async def step(self) -> bool:
        """Take some wanted files in that were not looked at lately; False where there is none."""
        now, wanted, store = self._clock(), self._wanted(), self._replica().store
        todo = [one for one in wanted.values() if self._is_to_be_looked_at(one, now)][:_TOGETHER]
        if not todo:
            return False
        for one in todo:
            self._looked_at[one.offset] = now
        jobs = await in_thread(lambda: [self._job(store.path, one) for one in todo])
        async with self._turn, aclosing(self._work({"files": jobs, "limits": asdict(self._policy.limits)})) as answers:
            left = list(todo)
            try:
                async for line in answers:
                    if self._replica().store is not store:
                        return True
                    self._note(store, left.pop(0), orjson.loads(line))
                if left:
                    raise StoreFailed(f"the process that takes files in ended before {left[0].adopt.path}")
            except DuemqError as error:
                # The first one may be why: it is tried again later, the others at once.
                if left:
                    self._found[left[0].offset] = Wrong(str(error), final=False)
                for one in left[1:]:
                    self._looked_at.pop(one.offset, None)
                raise
        return True

    def _is_to_be_looked_at(self, one: Adoption, now: int) -> bool:
        found = self._found.get(one.offset)
        if isinstance(found, Here):
            return False
        looked_at = self._looked_at.get(one.offset)
        return looked_at is None or now - looked_at >= _AGAIN_S * 1000 or now < looked_at

    def _job(self, folder: Path, one: Adoption) -> dict[str, Any]:
        adopt = one.adopt
        return {
            "source": adopt.path, "target": str(folder / Sealed.name_of_adopted(adopt.window, one.offset)),
            "shard": self._shard, "offset": one.offset, "window": adopt.window, "rows": adopt.rows,
            "size": adopt.size, "sha256": adopt.sha256, "link": adopt.link,
            "refused": self._policy.refuse_folder(adopt.path),
        }  # fmt: skip

    def _note(self, store: ShardStore, one: Adoption, said: dict[str, Any]) -> None:
        if "about" in said:
            about = About(**said["about"])
            here = Here(about, said["checksum"], store.path / Sealed(about).name)
            if one.offset in store.adoptions.wanted:
                self._found[one.offset] = here
            else:  # it was refused meanwhile
                here.path.unlink(missing_ok=True)
        elif self._found.get(one.offset) != (wrong := Wrong(said["reason"], said["final"])):
            self._found[one.offset] = wrong
            log.warning(
                "shard %d cannot take in %s: %s", self._shard, one.adopt.path, wrong.reason,
                extra={"action": "adopt", "shard": self._shard},
            )  # fmt: skip
        self._news.set()
        self._news = asyncio.Event()

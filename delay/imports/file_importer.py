"""Imports files of messages: each replica reads and copies the requested files of its shard, and the master decides.

    the command is applied      every replica records the file as pending, and the ledger answers PENDING
    the file is read            by each replica, in parallel to its cycles: read, validate, copy, sync; a replica that
                                cannot read the source gets a copy from another replica
    the master decides          in a later cycle, once enough replicas have the file: the ledger entry lists the file as
                                imported, with rows and checksum, and its messages are pending from then on; or the
                                entry lists it as refused, with the reason
    a follower waits            at that entry until it has the file, too, and compares rows and checksum

So only the import itself waits for a file, and a replica that cannot get the file visibly stays behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path

from duemq.background.loop import Loop
from duemq.delay.imports.file_copies import FileCopy, FilePeers, NoPeers, fetch_copy
from duemq.delay.imports.import_candidates import Candidates
from duemq.delay.metrics import TieringCounts
from duemq.delay.replica.replica import Replica
from duemq.model.errors import Behind, CorruptStore, DuemqError, StoreFailed, Unavailable
from duemq.model.log.ledger import FileDecision
from duemq.model.messages.import_command import cut
from duemq.model.messages.key import due_of
from duemq.storage.delay_files.catalog import CatalogFile
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.jobs.jobs import ImportFailure, ImportFile, ImportSuccess, ReadProgress, import_answer
from duemq.storage.jobs.parent import Lines, Unresponsive
from duemq.storage.object_store import is_object
from duemq.storage.shard.records import ImportRecord, LocalFile
from duemq.storage.shard.store import ShardStore

log = logging.getLogger(__name__)

_TOGETHER = 64  # files per child process
_MAX_QUERY = 1_000  # files per request to peers
_LOOK_S = 1.0
_AGAIN_S, _LONGEST_S = 5.0, 300.0
_SKIPPED_S = 30.0


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """Why a file cannot be imported. `final`: a retry would not help. `since`: when the problem began (ms). `away`: an
    object store is unreachable. That is not the file's fault, so the import waits as long as the file's window
    allows."""

    reason: str
    final: bool
    since: int
    away: bool = False


class FileImporter:
    """The importer of one shard. `turn`: a lock that the shards of a node share, because an import takes a whole
    core."""

    def __init__(
        self,
        shard: int,
        replica: Replica,
        policy: ImportPolicy,
        clock: Callable[[], int],
        turn: asyncio.Lock,
        work: Lines,
        peers: FilePeers | None = None,
        counts: TieringCounts | None = None,
    ) -> None:
        """`peers`: the other nodes with a replica of the shard; None if there are none."""
        self._shard, self._replica, self.policy = shard, replica, policy
        self._clock, self._turn, self.work = clock, turn, work
        self.peers = peers or NoPeers()
        self._counts = counts or TieringCounts()
        self._loop = Loop(
            "import", self._run_steps, f"shard {shard}", every_s=_LOOK_S, expected=(DuemqError,), ends_on=(),
            first_s=_AGAIN_S, longest_s=_LONGEST_S, on_failure=lambda error: self._counts.count_failure(),
        )  # fmt: skip
        self._store = replica.store
        self._candidates = Candidates(policy, self.why_pending)
        self.outcomes: dict[int, LocalFile | ImportProblem] = {}
        self._rechecks: list[tuple[int, int]] = []  # a heap: when to try again (ms), and the offset of the command
        self._failures: dict[int, int] = {}  # how often an import failed for a reason other than the file
        self._copies: dict[int, int] = {}  # for a local file: how many replicas have it, while they are too few
        self._asked_at: dict[int, int] = {}  # when (ms) peers were asked for a missing file and none had it
        self._leading_since: int | None = None
        self._blocker: FileDecision | None = None  # the file without which the replica cannot follow the ledger
        self._news = asyncio.Event()  # set and replaced whenever the outcomes of files may have changed

    def _pending_records(self) -> dict[int, ImportRecord]:
        """The pending files by the offset of their command. New ones become candidates."""
        records = self._store.imports.pending
        for record in self._candidates.add_new(records):
            heappush(self._rechecks, (0, record.offset))
        return records

    # --- deciding -------------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Lead the shard from now on. The master's patience with missing files begins now."""
        self._leading_since = self._clock()
        for offset, outcome in self.outcomes.items():
            self._weigh(offset, outcome)

    def follow(self) -> None:
        """Stop leading the shard."""
        self._leading_since = None

    def decide(self, now: int) -> list[FileDecision]:
        """The master's current decisions about pending files."""
        if not self._pending_records():
            return []
        start = max(now, due_of(self._replica.entry.cursor)) + self.policy.lead_ms
        return self._candidates.decide(now, start)

    def _weigh(self, offset: int, outcome: LocalFile | ImportProblem) -> None:
        """Update the decision that is possible for a file."""
        if isinstance(outcome, LocalFile):
            self._asked_at.pop(offset, None)
            if self.policy.copies <= 1 or self._copies.get(offset, 1) >= self.policy.copies:
                self._copies.pop(offset, None)
                self._candidates.import_file(offset, outcome.about.rows, outcome.checksum)
            else:
                self._copies.setdefault(offset, 1)
                self._candidates.wait(offset)
        elif self.peers.have(self._shard) and offset not in self._asked_at:
            self._candidates.wait(offset)  # another replica may have it
        elif outcome.away:
            self._candidates.wait(offset)
        else:
            patient = max(outcome.since, self._leading_since or 0) + self.policy.patience_ms
            self._candidates.refuse(offset, outcome.reason, 0 if outcome.final else patient)

    async def have(self, decision: FileDecision) -> None:
        """Wait for a file that the ledger lists as imported. Raises CorruptStore if the local file is a different one.

        Raises Behind if the file stays missing for long and a peer's replica can be copied instead.
        """
        self._pending_records()
        since = self._clock()
        try:
            while True:
                outcome = self.outcomes.get(decision.offset)
                if isinstance(outcome, LocalFile):
                    rows, checksum = outcome.about.rows, outcome.checksum
                    if (rows, checksum) != (decision.rows, decision.checksum):
                        raise CorruptStore(
                            f"shard {self._shard}: the imported file {outcome.path} has {rows} rows with checksum "
                            f"{checksum:016x}, the ledger says {decision.rows}, {decision.checksum:016x}"
                        )
                    return
                self._blocker = decision
                late = self._clock() - since > self.policy.patience_ms
                if late and isinstance(outcome, ImportProblem) and self.peers.have(self._shard):
                    raise Behind(f"shard {self._shard} cannot get a file that was imported: {outcome.reason}")
                await self._news.wait()
        finally:
            self._blocker = None

    def local_file(self, offset: int) -> LocalFile:
        outcome = self.outcomes[offset]
        assert isinstance(outcome, LocalFile)
        return outcome

    def copy(self, offset: int) -> tuple[Path, FileCopy] | None:
        """A file of this replica and its description, for replicas that lack it; None if there is no such file."""
        outcome, store = self.outcomes.get(offset), self._store
        with suppress(FileNotFoundError):  # the file was damaged or removed, so this replica has no copy
            if isinstance(outcome, LocalFile):
                size = outcome.path.stat().st_size
                return outcome.path, FileCopy(outcome.about.rows, outcome.checksum, size, outcome.about.content)
            if (import_record := store.imports.get(offset)) is not None:
                for file in store.delay_files.of(import_record.import_command.window):
                    if file.about.offset == offset:
                        path = store.path / file.name
                        return path, FileCopy(file.about.rows, None, path.stat().st_size, file.about.content)
        return None

    def why_waiting(self) -> str | None:
        """The file that keeps a replica from following the ledger, and why it is not on this node; None if there is
        none."""
        if self._blocker is None or (import_record := self._pending_records().get(self._blocker.offset)) is None:
            return None
        return cut(
            f"shard {self._shard} waits for {import_record.import_command.path[-100:]}: "
            f"{self.why_pending(import_record.offset)}"
        )

    def seeks_file(self) -> bool:
        """Whether a replica waits for a file that may arrive soon, because not all peers that may have it were
        asked."""
        return self._blocker is not None and self._blocker.offset not in self._asked_at

    def why_pending(self, offset: int) -> str:
        """Why a file is still pending; empty if this replica has it."""
        outcome = self.outcomes.get(offset)
        if isinstance(outcome, ImportProblem):
            return outcome.reason
        if outcome is not None and (copies := self._copies.get(offset)) is not None:
            return f"{copies} of {self.policy.copies} replicas have it"
        return "" if outcome is not None else "it was not read yet"

    @property
    def trouble(self) -> str | None:
        """Why no file is being imported now; None if imports work."""
        return self._loop.trouble and cut(f"shard {self._shard}: import fails: {self._loop.trouble}")

    def forget(self, decisions: Sequence[FileDecision]) -> None:
        """Drop the state of files whose import or refusal is in the store."""
        if rows := sum(decision.rows for decision in decisions):
            log.info(
                "shard %d imported %d messages", self._shard, rows, extra={"action": "import", "shard": self._shard}
            )
        for decision in decisions:
            if decision.reason:
                log.warning(
                    "shard %d refused the file of command %d: %s", self._shard, decision.offset, decision.reason,
                    extra={"action": "import", "shard": self._shard},
                )  # fmt: skip
            self._candidates.drop(decision.offset)
            for table in (self._failures, self._copies, self._asked_at):
                table.pop(decision.offset, None)
            outcome = self.outcomes.pop(decision.offset, None)
            if decision.reason and isinstance(outcome, LocalFile):
                outcome.path.unlink(missing_ok=True)

    # --- reading --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled. Errors are retried: a file must not affect anything but its own import."""
        await self._loop.run()

    async def _run_steps(self) -> None:
        while await self.step():
            pass
        await self.ask()

    async def step(self) -> bool:
        """Import some pending files that were not tried recently. False if there are none."""
        now, records, store = self._clock(), self._pending_records(), self._store
        todo = self._next(now, records)
        if not todo:
            return False
        job, left = self.policy.job([self._job_file(store.path, record) for record in todo]), list(todo)
        try:
            async with self._turn, aclosing(self.work(job)) as answers:
                async for line in answers:
                    answer = import_answer(line)
                    if not isinstance(answer, ReadProgress):
                        self._record(store, left.pop(0), answer, now)
                if left:
                    raise StoreFailed(f"the import process ended before {left[0].import_command.path[-100:]}")
        except Exception as error:
            # The first file left may be the cause: retry it later, and the others at once.
            if left:
                self._blame(left, error, now)
            raise
        return True

    def _next(self, now: int, records: dict[int, ImportRecord]) -> list[ImportRecord]:
        todo: dict[int, ImportRecord] = {}
        heap, latest = self._rechecks, now + int(_LONGEST_S * 1000)
        while heap and len(todo) < _TOGETHER and (heap[0][0] <= now or heap[0][0] > latest):  # or the clock went back
            offset = heappop(heap)[1]
            if offset in records and not isinstance(self.outcomes.get(offset), LocalFile):
                todo[offset] = records[offset]
        return list(todo.values())

    def _blame(self, left: Sequence[ImportRecord], error: Exception, now: int) -> None:
        """Defer the first of these files: the process ended or went silent before it finished that file."""
        first = left[0]
        text = str(error).strip().splitlines() or [type(error).__name__]
        hangs = isinstance(error, Unresponsive)
        self._put_off(first, cut(text[-1]), now, away=hangs and is_object(first.import_command.path))
        # If a mount hangs, each file in the same folder would delay the other imports by the same time.
        beside = Path(first.import_command.path).parent if hangs else None
        for record in left[1:]:
            if Path(record.import_command.path).parent == beside:
                self._put_off(record, cut(text[-1]), now, away=is_object(record.import_command.path))
            else:
                heappush(self._rechecks, (0, record.offset))

    def _put_off(self, record: ImportRecord, reason: str, now: int, *, away: bool = False) -> None:
        """Retry a file with backoff after a failure that the file did not cause."""
        failures = self._failures.get(record.offset, 0)
        self._failures[record.offset] = failures + 1
        pause = min(_AGAIN_S * 2.0 ** min(failures, 30), _LONGEST_S)
        self._record_outcome(
            record.offset, self._problem(record.offset, reason, False, now, away), now + int(pause * 1000)
        )

    def _problem(self, offset: int, reason: str, final: bool, now: int, away: bool = False) -> ImportProblem:
        before = self.outcomes.get(offset)
        # Patience with a missing file begins only once its store has reported that it is missing.
        since = before.since if isinstance(before, ImportProblem) and not before.away else now
        return ImportProblem(reason, final, since, away)

    def _record_outcome(self, offset: int, outcome: LocalFile | ImportProblem, recheck_at: int | None = None) -> None:
        self.outcomes[offset] = outcome
        if recheck_at is not None:
            heappush(self._rechecks, (recheck_at, offset))
        self._weigh(offset, outcome)

    def _job_file(self, folder: Path, record: ImportRecord) -> ImportFile:
        command = record.import_command
        return ImportFile(
            command.path, str(folder / CatalogFile.imported_name(command.window, record.offset)), self._shard,
            record.offset, command.window, command.rows, command.size, command.sha256, command.link,
        )  # fmt: skip

    def _record(self, store: ShardStore, record: ImportRecord, answer: ImportSuccess | ImportFailure, now: int) -> None:
        if isinstance(answer, ImportSuccess):
            path = store.path / CatalogFile(answer.about).name
            local_file = LocalFile(answer.about, answer.checksum, path, answer.topics)
            if record.offset in store.imports.pending:
                self._failures.pop(record.offset, None)
                self._record_outcome(record.offset, local_file)
            else:  # it was refused in the meantime
                local_file.path.unlink(missing_ok=True)
        elif record.offset in store.imports.pending:
            before = self.outcomes.get(record.offset)
            if answer.skipped:
                # Retried after the other files, so that one unreadable object does not delay them forever.
                problem = self._problem(record.offset, answer.reason, False, now, away=True)
                self._record_outcome(record.offset, problem, now + int(_SKIPPED_S * 1000))
            elif answer.away:
                self._counts.count_failure()
                self._put_off(record, answer.reason, now, away=True)
            elif answer.trace:
                self._counts.count_failure()
                self._put_off(record, answer.reason, now)
            else:
                problem = self._problem(record.offset, answer.reason, answer.final, now)
                self._record_outcome(record.offset, problem, now + int(_AGAIN_S * 1000))
            if not isinstance(before, ImportProblem) or before.reason != answer.reason:
                log.warning(
                    "shard %d cannot take in %s: %s%s", self._shard, record.import_command.path, answer.reason,
                    f"\n{answer.trace}" if answer.trace else "",
                    extra={"action": "import", "shard": self._shard},
                )  # fmt: skip
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- other replicas -------------------------------------------------------------------------------------------

    async def ask(self) -> None:
        """Ask the peers which files they have, and fetch those that are missing here."""
        now, records, store = self._clock(), self._pending_records(), self._store
        few = [offset for offset in self._copies if self._leading_since is not None][:_MAX_QUERY]
        blocker = None if self._blocker is None else self._blocker.offset  # asked for each time: a node may have joined
        missing = [
            offset
            for offset, outcome in self.outcomes.items()
            if isinstance(outcome, ImportProblem)
            and (offset == blocker or not 0 <= now - self._asked_at.get(offset, -1 << 62) < _AGAIN_S * 1000)
        ][:_MAX_QUERY]
        if not (few or missing):
            return
        answers = await self.peers.copies(self._shard, [*few, *missing])
        for offset in few:
            if isinstance(outcome := self.outcomes.get(offset), LocalFile):
                alike = (outcome.about.rows, outcome.checksum)
                peer_copies = (copies.get(offset) for copies in answers.values())
                self._copies[offset] = 1 + sum(
                    (copy.rows, copy.checksum) == alike for copy in peer_copies if copy is not None
                )
                self._weigh(offset, outcome)
        for offset in missing:
            source = next(((node, copies[offset]) for node, copies in answers.items() if offset in copies), None)
            if source is None:
                self._asked_at[offset] = now
                if isinstance(outcome := self.outcomes.get(offset), ImportProblem):
                    self._weigh(offset, outcome)
            elif offset in records:
                await self._fetch(store, records[offset], *source)
        self._tell()

    async def _fetch(self, store: ShardStore, record: ImportRecord, node: str, copy: FileCopy) -> None:
        """Fetch a file from a peer. The next step validates it like any other import."""
        target = store.path / CatalogFile.imported_name(record.import_command.window, record.offset)
        try:
            await fetch_copy(self.peers, self._shard, node, record.offset, copy, target)
        except Unavailable as error:
            log.warning(
                "shard %d cannot get a file of node %s: %s", self._shard, node, error,
                extra={"action": "import", "shard": self._shard, "peer": node},
            )  # fmt: skip
            return
        log.info(
            "shard %d got %s of node %s", self._shard, record.import_command.path, node,
            extra={"action": "import", "shard": self._shard, "peer": node},
        )  # fmt: skip
        heappush(self._rechecks, (0, record.offset))

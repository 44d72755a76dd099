"""What the answers of the other side make of a message and of its destination, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.headers import HandlingFailure, RetryOrigin
from duemq.client.consumer.retry.policy import DeadLetter, Pause, Policy, Wait, decide
from duemq.model.destinations.destination import read_destination
from duemq.relay.base import Reply, Result
from duemq.relay.delivery import Delivery, policy_of
from duemq.relay.figures import DestinationFigures
from duemq.relay.memory import MemoryOutlet
from tests.support.virtual_loop import VirtualLoop
from tests.unit.consumer.test_consumer_values import Plain

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
LATER = Reply(Result.FAILED, "503", "maintenance", 1_000, overloaded=True)


class Bench:
    """A destination, and what it makes of messages."""

    def __init__(self, **fields: object) -> None:
        destination = read_destination({"name": "one", "url": "https://h.example/"} | fields)
        self.policy: Policy = policy_of(destination.retry)
        self.outlet, self.figures, self.disabled = MemoryOutlet(), DestinationFigures(), list[str]()
        self.outlet.answer = self.answer
        self.reply = Reply(Result.ACCEPTED, "200")
        self.sent_at: list[float] = []
        self.delivery = Delivery(destination, self.outlet, self.figures, self.now, self.disable)

    def now(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def answer(self, message: Message) -> Reply:
        self.sent_at.append(asyncio.get_running_loop().time() - 1_000)
        return self.reply

    async def disable(self, name: str, reason: str) -> None:
        self.disabled.append(reason)

    async def hand(
        self, reply: Reply | None = None, retried: int = 0, *attempts: HandlingFailure
    ) -> Wait | DeadLetter | str | None:
        """The verdict; the text of a pause; None once it was accepted."""
        self.reply = reply or self.reply
        message = Message(Plain(), RetryOrigin("orders", 0, 1, "id", retried, attempts))
        try:
            await self.delivery.handle(message)
        except Pause as error:
            return f"{error} {error.after_s:g}"
        except Exception as error:
            return decide(error, self.policy, retried, self.now())
        return None


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reply", "retried", "expected"),
    [
        (Reply(Result.ACCEPTED, "200"), 0, None),
        (Reply(Result.FAILED, "500"), 1, Wait("level", 4)),
        (Reply(Result.FAILED, "500"), 16, DeadLetter("retries")),
        (Reply(Result.REJECTED, "400"), 0, DeadLetter("rejected")),
        (Reply(Result.AWAY, "refused", "nobody listens"), 16, "refused after 0 ms: nobody listens 1"),
        (Reply(Result.GONE, "410"), 16, "410 after 0 ms 5"),
    ],
    ids=["accepted", "failed", "failed for the last time", "rejected", "away", "gone"],
)
def test_five_results(reply: Reply, retried: int, expected: object) -> None:
    async def scenario() -> None:
        bench = Bench()
        assert await bench.hand(reply, retried) == expected
        assert bench.figures.results == {reply.result: 1} and bench.figures.statuses == {reply.status: 1}
        assert len(bench.figures.attempts) == (reply.result is not Result.ACCEPTED)
        assert bool(bench.figures.trouble) == (reply.result in (Result.AWAY, Result.GONE))
        assert bench.disabled == (["410 after 0 ms"] if reply.result is Result.GONE else [])

    run(scenario)


@pytest.mark.parametrize(
    ("hint", "wait"), [(1_000, 30_000), (90_000, 90_000), (0, None), (-5_000, None), (None, None), (9 * DAY_MS, DAY_MS)]
)
@pytest.mark.parametrize("overloaded", [True, False])
def test_the_longer_of_the_rule_and_of_what_the_other_side_asks_for(
    hint: int | None, wait: int | None, overloaded: bool
) -> None:
    """Only an answer that asks for later, by a usable time, uses up no retry."""

    async def scenario() -> None:
        reply = Reply(Result.FAILED, "503", "", hint, overloaded)
        to = await Bench().hand(reply, 1)
        assert to == (Wait("level", 4) if wait is None else Wait("after", wait))
        assert isinstance(to, Wait) and to.counts is not (overloaded and wait is not None)
        last = await Bench().hand(reply, 16)
        postponed = overloaded and wait is not None
        assert last == (Wait("after", max(hint or 0, 2 * HOUR_MS) if hint != 9 * DAY_MS else DAY_MS)
                        if postponed else DeadLetter("retries"))  # fmt: skip

    run(scenario)


def test_for_a_day_what_is_postponed_uses_up_no_retry() -> None:
    async def scenario() -> None:
        bench, retried, attempts = Bench(), 0, list[HandlingFailure]()
        began = bench.now()
        while True:
            to = await bench.hand(LATER, retried, *attempts[:20])
            if isinstance(to, DeadLetter):
                break
            assert isinstance(to, Wait) and to.value >= 10_000
            assert to.counts == (bench.now() - began >= DAY_MS)
            attempts.append(HandlingFailure(bench.now(), ""))
            retried += to.counts
            await asyncio.sleep(to.ms(bench.now()) / 1000)
        assert to == DeadLetter("retries") and retried == 16
        assert DAY_MS < bench.now() - began < DAY_MS + 6 * HOUR_MS

    run(scenario)


def test_one_that_asks_for_later_closes_nothing() -> None:
    """It may be the quota of a tenant: all others go on at once."""

    async def scenario() -> None:
        bench = Bench()
        for _ in range(20):
            await bench.hand(LATER._replace(retry_after_ms=900_000))
            await bench.hand(Reply(Result.ACCEPTED, "200"))
        assert bench.now() == 1_000_000 and bench.figures.trouble == ""

    run(scenario)


def test_a_closed_destination_is_tried_by_one_message_and_opens_as_it_recovers() -> None:
    async def scenario() -> None:
        bench = Bench(concurrency=10)
        bench.outlet.delay_s = 0.01
        bench.reply = LATER._replace(retry_after_ms=900_000)
        handed = [asyncio.ensure_future(bench.hand()) for _ in range(40)]
        await asyncio.sleep(300)
        tries = [round(at) for at in bench.sent_at[10:]]
        assert bench.sent_at[9] < 0.02 and tries == [1, 3, 7, 15, 31, 63, 123, 183, 243]
        assert bench.figures.trouble.startswith("closed until 1970-01-01T00:21:43Z, when one message is tried, by 503")
        bench.reply = Reply(Result.ACCEPTED, "200")
        await asyncio.gather(*handed)
        assert 302 < asyncio.get_running_loop().time() - 1_000 < 304, "within a minute, and then all at once"
        assert bench.figures.trouble == "" and bench.outlet.most_in_flight == 10

    run(scenario)


@pytest.mark.parametrize("answer", [Reply(Result.FAILED, "500"), Reply(Result.REJECTED, "400")])
def test_any_other_answer_opens_it(answer: Reply) -> None:
    async def scenario() -> None:
        bench = Bench()
        for _ in range(3):
            await bench.hand(LATER)
        assert bench.figures.trouble
        await bench.hand(answer)
        assert bench.now() == 1_001_000 and bench.figures.trouble == ""
        await bench.hand(answer)
        assert bench.now() == 1_001_000

    run(scenario)


def test_while_a_try_that_hangs_is_all_there_is_the_rest_waits() -> None:
    async def scenario() -> None:
        bench = Bench(timeout="5s")
        for _ in range(3):
            await bench.hand(LATER)
        bench.outlet.delay_s = 60.0
        first, second = asyncio.ensure_future(bench.hand()), asyncio.ensure_future(bench.hand())
        await asyncio.sleep(6)
        assert bench.outlet.in_flight == 1
        first.cancel()  # as the consumer does after the time-out
        bench.outlet.delay_s, bench.reply = 0.0, Reply(Result.ACCEPTED, "200")
        assert isinstance(await first, Wait) and await second is None
        assert bench.figures.statuses == {"503": 3, "timeout": 1, "200": 1}

    run(scenario)


@pytest.mark.parametrize("result", [Result.FAILED, Result.AWAY])
def test_a_time_out_of_the_other_side_is_an_attempt_however_early(result: Result) -> None:
    """Such as one of connecting, which is shorter than that of the message."""

    async def scenario() -> None:
        bench = Bench()
        await bench.hand(Reply(result, "timeout", "no connection in 5 s", overloaded=True))
        assert bench.figures.statuses == {"timeout": 1} and bench.figures.results == {result: 1}
        assert [attempt.detail for attempt in bench.figures.attempts] == ["no connection in 5 s"]
        assert bench.delivery.throttle.limit == 50

    run(scenario)


def test_a_cancel_is_a_time_out_only_once_the_time_is_over() -> None:
    async def scenario() -> None:
        bench = Bench(timeout="2s")
        bench.outlet.delay_s = 60.0
        for after_s in (1.9, 2.1):
            sending = asyncio.ensure_future(bench.hand())
            await asyncio.sleep(after_s)
            sending.cancel()
            await asyncio.wait([sending])
            assert sending.cancelled() == (after_s < 2)
        assert sending.result() == Wait("level", 3)
        assert bench.figures.statuses == {"timeout": 1} and bench.delivery.throttle.in_flight == 0
        assert bench.figures.attempts[0].detail == "no answer within 2 s", "as the dead letter says it"

    run(scenario)


def test_a_bug_in_an_outlet_is_an_attempt() -> None:
    async def scenario() -> None:
        bench = Bench()

        def answer(message: Message) -> Reply:
            raise LookupError("no such thing")

        bench.outlet.answer = answer
        assert await bench.hand() == Wait("level", 3)
        assert bench.figures.statuses == {"error": 1} and bench.delivery.throttle.in_flight == 0
        assert bench.figures.attempts[0].detail == "LookupError: no such thing"

    run(scenario)

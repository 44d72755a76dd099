"""The live demonstration of `make run`: it shows a few hundred messages, some cancelled or moved, as they arrive."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from rich.console import Console
from rich.text import Text

from duemq.client import AsyncClient, Draft, EpochMs, Record
from duemq.client.http.errors import TooLate
from duemq.model.errors import DuemqError

_MESSAGES, _CANCELLED, _RESCHEDULED = 300, 40, 30
_LINES = 24  # deliveries shown one by one; the others are counted
_PATIENCE_S = 120.0


@dataclass
class _Tally:
    lateness: list[int] = field(default_factory=list)
    wrong: int = 0


async def show(url: str, stop: asyncio.Event) -> None:
    """Run the demonstration against the server at `url`, then print what to try next. Ends early if `stop` is set.

    If the demonstration fails, the reason is printed, and the server continues.
    """
    console = Console(highlight=False)
    topic = f"demo-{time.strftime('%H%M%S')}"
    demonstration = asyncio.create_task(_run(console, url, topic), name="demonstration")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({demonstration, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if demonstration.done():
        try:
            demonstration.result()
        except (DuemqError, TimeoutError) as error:
            why = str(error) or f"not all messages arrived within {_PATIENCE_S:.0f} s"
            console.print(f"\n[yellow]The demonstration ended early: {why}[/yellow]\n")
        # No frame and no wrapping, so that these lines can be copied.
        console.print(_next_steps(url, topic), soft_wrap=True)
    else:
        demonstration.cancel()


async def _run(console: Console, url: str, topic: str) -> None:
    async with AsyncClient(url) as client:
        console.print(f"\n[bold]duemq[/bold] serves {url} (console: {url}/console/)", soft_wrap=True)
        console.print(f"A demonstration on topic [bold]{topic}[/bold]:\n")
        start = time.time() + 1.0
        drafts = [
            Draft(topic, f"reminder {i}", deliver_at=EpochMs(int((start + random.uniform(0, 6)) * 1000)))
            for i in range(_MESSAGES)
        ]
        sent = [message for message in await client.send_batch(drafts) if not isinstance(message, Exception)]
        picked = random.sample(sent, _CANCELLED + _RESCHEDULED)
        cancelled, rescheduled = set[str](), 0
        for message in picked[:_CANCELLED]:
            with suppress(TooLate):  # on a slow machine it may be due by now
                await message.cancel()
                cancelled.add(message.id)
        for message in picked[_CANCELLED:]:
            with suppress(TooLate):
                await message.reschedule(deliver_after=timedelta(seconds=random.uniform(3, 8)))
                rescheduled += 1
        console.print(
            f"scheduled {len(sent)} messages over the next seconds, cancelled {len(cancelled)}, "
            f"rescheduled {rescheduled}\n"
            "[dim]      due             payload         lateness[/dim]"
        )
        tally = _Tally()
        async with asyncio.timeout(_PATIENCE_S), aclosing(client.tail(topic)) as records:
            async for record in records:
                _note(console, record, cancelled, tally)
                if len(tally.lateness) == len(sent) - len(cancelled):
                    break
        _sum_up(console, len(sent), len(cancelled), tally)


def _note(console: Console, record: Record, cancelled: set[str], tally: _Tally) -> None:
    now = int(time.time() * 1000)
    due = int(record.headers["duemq-due"] or 0)
    tally.lateness.append(now - due)
    tally.wrong += record.headers["duemq-id"] in cancelled or now < due
    shown = len(tally.lateness)
    if shown <= _LINES or shown % 25 == 0:
        clock = time.strftime("%H:%M:%S", time.localtime(due / 1000)) + f".{due % 1000:03d}"
        console.print(f"{shown:4d}  {clock}    {record.text:<14}  {now - due:3d} ms")
    elif shown == _LINES + 1:
        console.print("[dim]   …  (every 25th from here)[/dim]")


def _sum_up(console: Console, sent: int, cancelled: int, tally: _Tally) -> None:
    ordered = sorted(tally.lateness)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    console.print(
        f"\n[green]{sent} scheduled = {len(ordered)} delivered + {cancelled} cancelled[/green], "
        f"{tally.wrong} wrong\nlateness p50 {p50} ms, p99 {p99} ms, max {ordered[-1]} ms\n"
    )


def _next_steps(url: str, topic: str) -> Text:
    text = Text()
    text.append("What to try next\n\n", "bold green")
    text.append("console\n", "bold")
    text.append(f"  {url}/console/\n\n")
    text.append("curl\n", "bold")
    text.append(
        f"  curl -s {url}/v1/messages -H 'content-type: application/json' \\\n"
        '       -d \'{"topic": "orders", "payload": "pay order 42", "deliver_after": "10s"}\'\n'
        f"  curl -s '{url}/v1/topics/orders/records?wait=15s'\n\n"
    )
    text.append("command line", "bold")
    text.append("  (in another terminal)\n")
    text.append(
        f"  export DUEMQ_URL={url} PATH=$PWD/.venv/bin:$PATH\n"
        "  duemq send orders 'pay order 43' --after 10s\n"
        "  duemq ls\n"
        "  duemq tail orders\n"
        f"  duemq topic get {topic}\n\n"
    )
    text.append("Python\n", "bold")
    text.append(
        "  from datetime import timedelta\n"
        "  from duemq.client import Client\n"
        f'  with Client("{url}") as duemq:\n'
        '      message = duemq.send("orders", "pay order 44", deliver_after=timedelta(minutes=5))\n'
        "      message.cancel()\n"
    )
    text.append("\nCtrl-C stops duemq; pending messages stay.\n", "dim")
    return text

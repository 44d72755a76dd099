"""The sending and reading processes of `duemq bench`, run here on one loop against a small HTTP server."""

import asyncio
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from duemq.bench.base.workers import WorkerLink
from duemq.bench.clients.reader import read
from duemq.bench.clients.send import ACCEPTED, REJECTED, SendJob, SendWindow, fill, send_singly, send_steadily
from tests.support.patience import WITHIN_S

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serve(path: str, method: str, handler: Handler) -> tuple[web.AppRunner, str]:
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route(method, path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    return runner, f"http://{host}:{port}"


def record(seq: int, due: int) -> bytes:
    headers = {"duemq-id": f"id-{seq}", "duemq-due": str(due), "duemq-attempt": "1"}
    return orjson.dumps({"partition": 0, "payload": f'{{"seq":"{seq:012d}"}}', "headers": headers})


class Unpiped(WorkerLink):
    """A link to nobody that can be waited upon."""

    def __init__(self, awaited: int = 0) -> None:
        self.awaited, self.arrived, self.stopped = awaited, asyncio.Event(), asyncio.Event()

    def progress(self, count: int) -> None:
        if count >= self.awaited:
            self.arrived.set()


def test_the_reader_follows_the_cursor_and_takes_the_rest_when_stopped() -> None:
    pages = {"": b"%s,%s" % (record(0, 10), record(1, 11)), "c1": record(1, 11), "c2": b""}
    following = {"": "c1", "c1": "c2", "c2": "c2"}
    broken = ["c1"]
    the_link = Unpiped()

    async def records(request: web.Request) -> web.Response:
        after = request.query.get("after", "")
        if after in broken:
            broken.remove(after)
            return web.Response(status=503)
        if after == "c2":
            the_link.stopped.set()
        body = b'{"records":[%s],"cursor":"%s"}' % (pages[after], following[after].encode())
        return web.Response(body=body, content_type="application/json")

    async def play() -> None:
        runner, url = await serve("/v1/topics/t/records", "GET", records)
        try:
            got = await asyncio.wait_for(read(the_link, url, "t", keep_ids=True), WITHIN_S)
        finally:
            await runner.cleanup()
        assert got.seq.tolist() == [0, 1, 1]
        assert got.due.tolist() == [10, 11, 11]
        assert got.ids == ["id-0", "id-1", "id-1"]
        assert got.answers == 2
        assert got.at[0] == got.at[1] <= got.at[2]

    asyncio.run(play())


def test_the_reader_follows_events_across_chunks_and_connections() -> None:
    the_link = Unpiped(awaited=3)
    asked: list[str] = []

    async def events(request: web.Request) -> web.StreamResponse:
        asked.append(request.query.get("after", ""))
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        if len(asked) == 1:
            whole = b"id: c1\ndata: %s\n\nid: c2\ndata: %s\n\n" % (record(0, 10), record(1, 11))
            await answer.write(whole[:70])
            await answer.write(whole[70:])
            return answer
        await answer.write(b": keep-alive\n\nid: c3\ndata: %s\n\n" % record(2, 12))
        await the_link.stopped.wait()
        return answer

    async def play() -> None:
        runner, url = await serve("/v1/topics/t/records", "GET", events)
        try:
            reading = asyncio.ensure_future(read(the_link, url, "t", pushed=True))
            await asyncio.wait_for(the_link.arrived.wait(), WITHIN_S)
            the_link.stopped.set()
            got = await asyncio.wait_for(reading, WITHIN_S)
        finally:
            await runner.cleanup()
        assert got.seq.tolist() == [0, 1, 2]
        assert asked == ["", "c2"]

    asyncio.run(play())


def test_the_sender_books_each_result() -> None:
    calls = 0

    async def batch(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        if calls == 1:
            return web.Response(status=503, headers={"Retry-After": "1"})
        messages = orjson.loads(await request.read())["messages"]
        results = [{"id": message["payload"][8:20]} for message in messages]
        results[0] = {"error": {"code": "bad_topic"}}
        return web.json_response({"results": results, "accepted": len(results) - 1, "rejected": 1})

    async def play() -> None:
        runner, url = await serve("/v1/messages:batch", "POST", batch)
        try:
            sent = await fill(
                Unpiped(), SendJob(url, "t", 25, SendWindow(5000, 5000), keep_every=10), batch=10, connections=2
            )
        finally:
            await runner.cleanup()
        assert (sent.accepted, sent.retries, sent.size.sum()) == (22, 1, 25)
        assert [sent.outcome[seq] for seq in (0, 10, 20)] == [REJECTED] * 3
        assert set(sent.dues.tolist()) == {5000}
        assert len(sent.ids) == 3
        assert sent.problem is not None and "bad_topic" in sent.problem

    asyncio.run(play())


def test_the_open_loop_waits_for_no_answer() -> None:
    waiting = 0
    five = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        nonlocal waiting
        waiting += 1
        if waiting == 5:
            five.set()
        messages = orjson.loads(await request.read())["messages"]
        await five.wait()  # a closed loop would never get out of here
        return web.json_response({"results": [{"id": "x"} for _ in messages], "accepted": len(messages), "rejected": 0})

    async def play() -> None:
        runner, url = await serve("/v1/messages:batch", "POST", slow)
        try:
            sent = await asyncio.wait_for(
                send_steadily(Unpiped(), SendJob(url, "t", 100, SendWindow(1000, 2000)), rate=1000), 20
            )
        finally:
            await runner.cleanup()
        assert sent.accepted == 100
        assert sent.size.tolist() == [20] * 5
        assert (sent.dues >= sent.began_ms + 999).all()

    asyncio.run(play())


def test_single_posts_are_booked_one_by_one() -> None:
    async def one(request: web.Request) -> web.Response:
        return web.json_response({"id": orjson.loads(await request.read())["payload"][8:20]}, status=201)

    async def play() -> None:
        runner, url = await serve("/v1/messages", "POST", one)
        try:
            sent = await send_singly(Unpiped(), SendJob(url, "t", 7, SendWindow(1, 2), keep_every=1), connections=3)
        finally:
            await runner.cleanup()
        assert (sent.outcome == ACCEPTED).all()
        assert [int(each) for each in sent.ids] == list(range(7))

    asyncio.run(play())

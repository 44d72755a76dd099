"""Mass cancel and mass move against a real server: every row has an answer, each message is asked about once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from secrets import token_hex
from threading import Lock, Thread
from typing import Any

import httpx
import orjson
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from duemq.client import Client, EpochMs
from duemq.client.http.requests import Draft
from duemq.pipeline.bulk_change import ChangeClient, ChangeResult, Targets, cancel, move
from duemq.pipeline.bulk_change.job import TARGET, in_order, new_times
from duemq.pipeline.cli.bulk_change import _tell_dry
from duemq.pipeline.errors import BadInput
from duemq.pipeline.spark.progress import Silent
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests
HOUR_MS = 3_600_000
ChangeTable = Callable[..., DataFrame]


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"t-{token_hex(6)}"


def held(client: Client, topic: str, number: int) -> list[str]:
    """Ids of messages that are due in an hour."""
    return [client.send(topic, str(at), deliver_after="1h").id for at in range(number)]


@pytest.fixture
def change_table(spark: SparkSession, tmp_path: Path) -> ChangeTable:
    """The table of answers of `cancel` or `move`, which counts them right."""

    def change_table(change: Callable[..., ChangeResult], *given: Any, **more: Any) -> DataFrame:
        done = change(*given, answers=f"{tmp_path}/{token_hex(6)}", **more)
        assert done.answers is not None
        answers = spark.read.parquet(done.answers)
        assert done.counts == {row["status"]: row["count"] for row in answers.groupBy("status").count().collect()}
        return answers

    return change_table


def by_id(answers: DataFrame) -> dict[str, Row]:
    return {row.id: row for row in answers.collect()}


def test_every_row_is_answered_and_a_repeat_is_answered_the_same(
    spark: SparkSession, server: str, client: Client, topic: str, change_table: ChangeTable
) -> None:
    ids = held(client, topic, 20)
    delivered = client.send(topic, b"now").id
    client.send(topic, b"named", deliver_after="1h", name=f"{topic}-17")
    rows = [(n, id_) for n, id_ in enumerate([*ids, *ids[:5], delivered, f"{topic}-17", "nobody", "a b", " ", None])]
    table = spark.createDataFrame(rows, "n int, id string")
    asked = ChangeClient(server, batch=7)
    first, again = (
        {row.n: row for row in change_table(cancel, table, Targets("id"), asked, connections=3).collect()}
        for _ in range(2)
    )
    assert [first[n].status for n in range(31)] == [
        *["cancelled"] * 25, "already_delivered", "cancelled", *["unknown"] * 4
    ]  # fmt: skip
    assert [first[n].detail for n in (28, 29, 30)] == [None, "no id", "no id"]
    assert all(abs(time.time() * 1000 - first[n].at_ms) < 60_000 for n in range(27))
    assert again == first  # as a task that runs again would have it
    assert not list(client.list(topic=topic))
    assert client.get(ids[0]).state.cancelled_at_ms == first[0].at_ms


def test_messages_are_cancelled_whatever_is_done_with_the_answers(
    spark: SparkSession, server: str, client: Client, topic: str
) -> None:
    table = spark.createDataFrame([(id_,) for id_ in [*held(client, topic, 6), "nobody"]], "id string")
    done = cancel(table, Targets("id"), ChangeClient(server))
    assert (done.counts, done.answers) == ({"cancelled": 6, "unknown": 1}, None)
    assert not list(client.list(topic=topic))


def test_a_business_key_stands_for_all_its_ids(
    spark: SparkSession, server: str, client: Client, topic: str, change_table: ChangeTable
) -> None:
    ids = held(client, topic, 4)
    known = [("17", ids[0]), ("17", ids[1]), ("17", ids[1]), ("18", ids[2]), ("other", ids[3])]
    ids_table = spark.createDataFrame([(key, id_, 5) for key, id_ in known], "name string, id string, due_ms bigint")
    orders = spark.createDataFrame([(17, "eu"), (18, "us"), (19, "us"), (17, "again")], "order int, region string")
    answers = change_table(cancel, orders, Targets("order", ids_table), ChangeClient(server))
    expected = [
        (17, "eu", ids[0], "cancelled", None), (17, "eu", ids[1], "cancelled", None),
        (17, "again", ids[0], "cancelled", None), (17, "again", ids[1], "cancelled", None),
        (18, "us", ids[2], "cancelled", None), (19, "us", None, "unknown", "no id for this key"),
    ]  # fmt: skip
    schema = "order int, region string, id string, status string, detail string"
    assertDataFrameEqual(answers.drop("at_ms", "due_ms"), spark.createDataFrame(expected, schema))
    assert [message.id for message in client.list(topic=topic)] == [ids[3]]


def test_messages_are_moved_to_absolute_times_and_a_repeat_ends_the_same(
    spark: SparkSession, server: str, client: Client, topic: str, change_table: ChangeTable
) -> None:
    ids = held(client, topic, 6)
    client.cancel(ids[5])
    due = client.get(ids[0]).state.deliver_at_ms
    to = [(ids[0], str(due + 1)), (ids[1], "2031-01-01T08:00:00.0005+01:00"), (ids[2], "2031-01-01T08:00:00"),
          (ids[3], str(due)), (ids[3], str(due + 1)), (ids[4], None), (ids[5], str(due)), ("nobody", str(due)),
          (ids[0], str(due + 1))]  # fmt: skip
    table = spark.createDataFrame(to, "id string, due string")
    for _ in range(2):
        answers = by_id(change_table(move, table, Targets("id"), ChangeClient(server), "due", by_ms=-1))
        assert (answers[ids[0]].status, answers[ids[0]].at_ms) == ("moved", due)
        assert (answers[ids[1]].status, answers[ids[1]].at_ms) == ("moved", 1_925_017_200_000)
        assert (answers[ids[2]].status, answers[ids[2]].detail) == (
            "refused", "due: '2031-01-01T08:00:00' has no time zone, and none is given for such times"
        )  # fmt: skip
        assert (answers[ids[4]].status, answers[ids[4]].detail) == (
            "refused", "due is null: there is no time to move to"
        )  # fmt: skip
        assert (answers[ids[3]].status, answers[ids[3]].detail) == (
            "refused", f"rows name this message with several times, from {due - 1} to {due}"
        )  # fmt: skip
        assert answers[ids[5]].status == "already_cancelled"
        assert answers[ids[5]].at_ms == client.get(ids[5]).state.cancelled_at_ms
        assert answers["nobody"].status == "unknown"
        dues = [client.get(id_).state.deliver_at_ms for id_ in ids[:2]]
        assert dues == [due, 1_925_017_200_000]


def test_the_due_time_to_shift_from_may_be_that_of_the_table_of_ids(
    spark: SparkSession, server: str, client: Client, topic: str, change_table: ChangeTable
) -> None:
    sent = client.send_batch([Draft(topic, b"", deliver_at=EpochMs(2_000_000_000_000 + at)) for at in range(3)])
    ids = [one.id for one in sent if not isinstance(one, Exception)]
    known = spark.createDataFrame(
        [(f"o{at}", id_, 2_000_000_000_000 + at) for at, id_ in enumerate(ids)], "name string, id string, due_ms bigint"
    )
    orders = spark.createDataFrame([("o0",), ("o2",)], "order string")
    answers = by_id(change_table(move, orders, Targets("order", known), ChangeClient(server), "due_ms", by_ms=HOUR_MS))
    assert [answers[id_].at_ms for id_ in (ids[0], ids[2])] == [2_000_003_600_000, 2_000_003_600_002]
    assert [message.state.deliver_at_ms for message in client.list(topic=topic)] == [
        2_000_000_000_001, 2_000_003_600_000, 2_000_003_600_002
    ]  # fmt: skip


class Away:
    """In front of a server: requests are counted, and the first ones are answered 503, or not at all although they
    were carried out."""

    def __init__(self, url: str) -> None:
        self.asked: list[str] = []
        self.connections: set[Any] = set()
        self.lock, self.now, self.most = Lock(), 0, 0  # requests under way, and the most there were
        self.away = ["busy", "lost", "busy", "lost"]
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                with outer.lock:
                    outer.now += 1
                    outer.most = max(outer.most, outer.now)
                try:
                    self._carry_out()
                finally:
                    with outer.lock:
                        outer.now -= 1

            def _carry_out(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked += orjson.loads(body).get("ids", [])
                outer.connections.add(self.client_address)
                fault = outer.away.pop() if outer.away else ""
                if fault == "busy":
                    self._answer(503, b'{"code": "unavailable", "detail": "busy"}')
                    return
                answer = httpx.post(url + self.path, content=body, headers={"Content-Type": "application/json"})
                if fault == "lost":
                    self.close_connection = True
                    return
                self._answer(answer.status_code, answer.content)

            def _answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def away(server: str) -> Iterator[Away]:
    away = Away(server)
    thread = Thread(target=away.server.serve_forever)
    thread.start()
    try:
        yield away
    finally:
        away.server.shutdown()
        away.server.server_close()
        thread.join()


def test_lost_answers_are_asked_for_again_and_each_message_once(
    spark: SparkSession, away: Away, client: Client, topic: str, change_table: ChangeTable
) -> None:
    ids = held(client, topic, 30)
    table = spark.createDataFrame([(id_,) for id_ in ids * 3], "id string")
    away.away = []
    assert change_table(cancel, table.limit(0), Targets("id"), ChangeClient(away.url)).count() == 0
    assert away.asked == []
    away.away = ["busy", "lost", "busy", "lost"]
    answers = change_table(
        cancel, table, Targets("id"), ChangeClient(away.url, batch=4, patience_s=30), connections=2
    ).collect()
    assert {row.status for row in answers} == {"cancelled"} and len(answers) == 90
    asked = {id_: away.asked.count(id_) for id_ in ids}
    assert set(asked) == set(away.asked) and min(asked.values()) == 1 and sum(asked.values()) <= 30 + 4 * 4
    again = change_table(cancel, table, Targets("id"), ChangeClient(away.url)).collect()
    assert {(row.id, row.at_ms) for row in again} == {(row.id, row.at_ms) for row in answers}


def test_tasks_are_small_and_few_of_them_ask_at_the_same_time(
    spark: SparkSession, away: Away, client: Client, topic: str, change_table: ChangeTable
) -> None:
    """A task that fails begins anew, so each has a small part of the ids; the server is asked no more for that."""
    away.away = []
    ids = held(client, topic, 200)
    table = spark.createDataFrame([(id_,) for id_ in ids], "id string").repartition(1)
    answers = change_table(cancel, table, Targets("id"), ChangeClient(away.url, batch=5), connections=1)
    spark.conf.set("spark.sql.adaptive.enabled", "false")  # which tells where answers come from
    try:
        parts = {row.part for row in in_order(table, 1).select(F.spark_partition_id().alias("part")).collect()}
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    assert 16 <= len(parts) <= 32
    assert {row.status for row in answers.collect()} == {"cancelled"}
    assert sorted(away.asked) == sorted(ids)
    assert away.most == 1, "with two cores, two tasks ran"


def test_a_server_that_never_answers_fails_the_job(spark: SparkSession, away: Away) -> None:
    away.away = ["busy"] * 100
    table = spark.createDataFrame([("a",)], "id string")
    with pytest.raises(PythonException, match=r"Unavailable: .*busy"):
        cancel(table, Targets("id"), ChangeClient(away.url, patience_s=0.3))


@pytest.mark.parametrize(
    ("columns", "targets", "said"),
    [
        ("name string", Targets("id"), "column id: the table does not have it; it has name"),
        ("id string, status int", Targets("id"), "column status: the answers have a column of this name"),
    ],
)
def test_bad_input_names_the_column(spark: SparkSession, columns: str, targets: Targets, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        cancel(spark.createDataFrame([], columns), targets, ChangeClient())


def test_a_dry_run_counts_and_asks_nobody(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    known = spark.createDataFrame([("17", "a"), ("17", "b"), ("18", "c")], "name string, id string")
    orders = spark.createDataFrame([("17",), ("17",), ("19",)], "order string")
    _tell_dry(spark, Silent(), Targets("order", known).of(orders), as_json=True)
    assert orjson.loads(capsys.readouterr().out) == {"rows": 5, "messages": 2, "without_id": 1}
    for column, wrong in (("name", orders), ("id", known.drop("id"))):
        with pytest.raises(BadInput, match=f"column {column}: the table of ids does not have it"):
            Targets("order", wrong).of(orders)


def test_a_time_that_is_no_instant_is_bad_input(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], "id string, at timestamp_ntz")
    with pytest.raises(BadInput, match=r"^at must be a timestamp, .* not timestamp_ntz: it has no time zone, and none"):
        move(rows, Targets("id"), ChangeClient(), "at")
    for zone, said in (("Mars/Base", "is no time zone"), ("Factory", "is no time zone that Spark's Java knows")):
        with pytest.raises(BadInput, match=f"^{zone} {said}"):
            move(rows, Targets("id"), ChangeClient(), "at", zone=zone)


MOVES: dict[str, tuple[int | str, int | str, int | str]] = {
    # the clock: the moment in Europe/Berlin, America/New_York and Asia/Kolkata, or why there is none
    "2028-01-01 08:00:00": (1_830_322_800_000, 1_830_344_400_000, 1_830_306_600_000),
    "2028-03-26 02:30:00": ("gap", 1_837_665_000_000, 1_837_630_800_000),
    "2028-10-29 02:30:00": ("overlap", 1_856_413_800_000, 1_856_379_600_000),
    "2028-03-12 02:30:00": (1_836_437_400_000, "gap", 1_836_421_200_000),
    "2028-11-05 01:30:00": (1_856_997_000_000, "overlap", 1_856_980_800_000),
}


@pytest.mark.usefixtures("session_zone")
@pytest.mark.parametrize("at", range(3))
def test_a_new_time_without_a_zone_is_read_in_the_one_that_is_said(spark: SparkSession, at: int) -> None:
    """As text and as TIMESTAMP_NTZ, whatever the session's zone; what its clocks leave out or show twice is refused."""
    zone = ("Europe/Berlin", "America/New_York", "Asia/Kolkata")[at]
    ends = {"gap": f"is left out by the clocks of {zone}",
            "overlap": f"is shown twice by the clocks of {zone}: say it with its offset"}  # fmt: skip
    texts = spark.createDataFrame([(text, text) for text in MOVES], f"{TARGET} string, at string")
    for table in (texts, texts.withColumn("at", F.col("at").cast("timestamp_ntz"))):
        moves = {row.id: row for row in new_times(table, "at", -1_000, zone).collect()}
        for text, moments in MOVES.items():
            moment, row = moments[at], moves[text]
            if isinstance(moment, int):
                assert (row.due_ms, row.refused) == (moment - 1_000, None), text
            else:
                assert (row.due_ms, row.refused) == (None, f"at: '{text}' {ends[moment]}")
    zoned = spark.createDataFrame([("x", "2028-03-26T02:30:00+01:00")], f"{TARGET} string, at string")
    assert new_times(zoned, "at", zone=zone).collect()[0].due_ms == 1_837_647_000_000


def test_a_shift_that_leaves_the_range_of_numbers_is_refused(spark: SparkSession) -> None:
    table = spark.createDataFrame([("x", 2**63 - 1), ("y", 10**12)], f"{TARGET} string, at bigint")
    x, y = new_times(table, "at", 1).orderBy("id").collect()
    assert x.refused == "at: '9223372036854775807' and 1 ms are out of range"
    assert (y.due_ms, y.refused) == (10**12 + 1, None)

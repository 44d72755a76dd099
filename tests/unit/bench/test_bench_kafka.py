"""`duemq bench --on kafka`: what it runs, what its processes cost, and what its consumer books."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from duemq.bench.clients.kafka_reader import RecordArrays
from duemq.bench.command_far import app
from duemq.bench.harness.harness import Setup
from duemq.bench.plans import bench_steps, kafka
from duemq.bench.report.figures import Figure
from duemq.bench.report.report import machine
from duemq.bench.steps.ceiling import share
from duemq.dev.servers.usage import Meter, ProcessUsage, Usage, cpu_s, holder


@pytest.mark.parametrize("brokers", [1, 3])
def test_the_plan_fits_its_scenarios(brokers: int) -> None:
    steps = kafka.everything(quick=False, brokers=brokers)
    for step in steps:
        wanted = bench_steps.SCENARIOS[step.name].__code__
        names = wanted.co_varnames[1 : wanted.co_argcount + wanted.co_kwonlyargcount]
        assert set(step.parameters) <= set(names), step.title
    assert [step.shards for step in steps if step.shards] == [16]


def test_a_meter_adds_up_the_lives_of_a_process() -> None:
    meter, busy = Meter("node"), "import sys; sum(range(4_000_000)); print(flush=True); sys.stdin.read()"
    spent = 0.0
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as life:
            assert life.stdout is not None
            life.stdout.readline()
            living = meter.read(life.pid).usage
        assert living.cpu_s > spent and living.rss_bytes > 1 << 20
        spent = living.cpu_s
        gone = meter.read(None).usage
        assert (gone.cpu_s, gone.rss_bytes) == (spent, 0)
        assert gone.peak_rss_bytes >= living.rss_bytes


def test_a_bill_is_split_by_role_and_memory_is_that_of_the_largest_node() -> None:
    bill = (
        ProcessUsage("broker", Usage(8.0, 900, 900)),
        ProcessUsage("node", Usage(1.0, 10, 30)),
        ProcessUsage("node", Usage(2.0, 20, 25)),
        ProcessUsage("proxy", Usage(4.0, 500, 500)),
    )
    assert cpu_s(bill, "proxy", "node") == 7.0
    assert holder(bill) == Usage(0.0, 20, 30)


def record(seq: int, due: int) -> SimpleNamespace:
    headers = (("duemq-id", b"id-%d" % seq), ("duemq-due", b"%d" % due), ("duemq-attempt", b"1"), ("x", None))
    return SimpleNamespace(value=b'{"seq":"%012d"}' % seq, headers=headers)


def test_records_of_several_partitions_are_booked_in_the_order_of_reading() -> None:
    books = RecordArrays(keep_ids=True)
    books.add(1, [record(7, 100), record(8, 101)])
    books.add(0, [record(3, 90)])
    got = books.received(breaks=0)
    assert got.seq.tolist() == [7, 8, 3]
    assert got.due.tolist() == [100, 101, 90]
    assert got.partition.tolist() == [1, 1, 0]
    assert got.ids == ["id-7", "id-8", "id-3"]
    assert got.at[0] == got.at[1] <= got.at[2]
    assert RecordArrays(keep_ids=False).received(0).seq.dtype == np.int64


def test_a_rate_is_shown_as_a_part_of_the_ceiling_where_there_is_one() -> None:
    plain = (Figure("plain_rate", "", 200.0), Figure("plain_cpu_us", "", 5.0))
    assert [(each.key, each.value) for each in share(plain, 100.0)] == [("plain_share", 0.5)]
    assert share((), 100.0) == ()


def test_a_document_says_where_it_ran() -> None:
    where = machine(Setup(on="kafka3", nodes=2, shards=16), "ext4")
    assert where["runs_on"] == "3 brokers, 3 ZooKeeper servers, 2 nodes, 1 proxy"
    assert where["shards"] == 16
    assert machine(Setup(), "ext4")["runs_on"] == "embedded bus"


@pytest.mark.parametrize(
    "options",
    [
        ("--on", "kafka", "--url", "http://127.0.0.1:1"),
        ("--on", "kafka", "--by", "events"),
        ("--nodes", "2"),
        ("--shards", "4", "--url", "http://127.0.0.1:1"),
        ("--on", "rabbit"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, ["steady", *options]).exit_code == 2

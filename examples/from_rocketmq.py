"""Turns messages that wait in RocketMQ's timer (5.x) or delay levels into a table for `duemq spark schedule`.

    python from_rocketmq.py timer.jsonl levels.jsonl --taken-at 2026-11-22T05:47:00Z

The files are JSON lines from `mqadmin exportMessage` or from `RocketMqExport.java`. The exported topics are logs: they
also hold messages that were delivered, cancelled or delayed again. docs/guides/pipeline/migrate.md describes the steps.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pending_rows import NotPending, PendingRow, from_base64, instant, options, read_documents, whole, write_rows

LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Properties that RocketMQ itself sets; all others are the sender's.
SYSTEM = re.compile(
    "KEYS|TAGS|WAIT|DELAY|RETRY_TOPIC|REAL_TOPIC|REAL_QID|TRAN_MSG|PGROUP|MIN_OFFSET|MAX_OFFSET|BUYER_ID|"
    "ORIGIN_MESSAGE_ID|TRANSFER_FLAG|CORRECTION_FLAG|MQ2_FLAG|RECONSUME_TIME|MSG_REGION|TRACE_ON|UNIQ_KEY|"
    "EXTEND_UNIQ_INFO|MAX_RECONSUME_TIMES|CONSUME_START_TIME|CLUSTER|INSTANCE_ID|MSG_TYPE|INNER_NUM|INNER_BASE|"
    "BORN_TIMESTAMP|__BORNHOST|__SHARDINGKEY|DUP_INFO|TIMER_(DELAY_SEC|DELAY_MS|DELIVER_MS|ENQUEUE_MS|DEQUEUE_MS|"
    "ROLL_TIMES|OUT_MS|DEL_UNIQKEY|DELAY_LEVEL|ROLL_LABEL)"
)


@dataclass
class RocketMQ:
    """`taken_at_ms`: when the export began; messages due by then were delivered. `topic`: the topic for all messages;
    None: their own topics. `levels`: the broker's `messageDelayLevel`. `precision_ms`: its `timerPrecisionMs`."""

    taken_at_ms: int
    topic: str | None = None
    levels: str = LEVELS
    precision_ms: int = 1000

    def read(self, document: Any) -> PendingRow:
        if not isinstance(document, dict) or not isinstance(properties := document.get("properties"), dict):
            raise NotPending("not a message of RocketMQ: it has no properties")
        if "REAL_TOPIC" not in properties:
            raise NotPending("it has no REAL_TOPIC: not of the timer's topic, nor of the delay levels'")
        real, unique = str(properties["REAL_TOPIC"]), properties.get("UNIQ_KEY")
        due = self._timer(properties) if "TIMER_OUT_MS" in properties else self._level(document, properties)
        taken_back = properties.get("TIMER_DEL_UNIQKEY")
        if taken_back is None and due <= self.taken_at_ms:
            raise NotPending("it was due before the export was made: RocketMQ has delivered it")
        keys, tags = str(properties.get("KEYS", "")).split(), str(properties.get("TAGS", ""))
        return PendingRow(
            due, self.topic or real, _body(document), keys[0] if keys else None,
            {name: str(value) for name, value in properties.items() if not SYSTEM.fullmatch(name)},
            (tags,) if tags and "," not in tags and len(tags) <= 128 else (), name=unique,
            twin=f"{real}_{unique}" if unique else None,
            ends=None if taken_back is None else f"{real}_{str(taken_back).removeprefix(f'{real}_')}",
        )  # fmt: skip

    def _timer(self, properties: dict[str, Any]) -> int:
        """The requested time. TIMER_OUT_MS is the timer slot before it; for relative times nothing else is stored."""
        if "TIMER_DELIVER_MS" in properties and not properties.keys() & {"TIMER_DELAY_SEC", "TIMER_DELAY_MS"}:
            return whole(properties["TIMER_DELIVER_MS"], "TIMER_DELIVER_MS")
        return whole(properties["TIMER_OUT_MS"], "TIMER_OUT_MS") + self.precision_ms

    def _level(self, document: dict[str, Any], properties: dict[str, Any]) -> int:
        if "DELAY" not in properties:
            raise NotPending("it says no time: no TIMER_OUT_MS, and no DELAY")
        if "storeTimestamp" not in document:
            raise NotPending("a delay level counts from storeTimestamp, which this line does not have: see the page")
        delays = [int(level[:-1]) * UNITS_MS[level[-1]] for level in self.levels.split()]
        level = min(max(whole(properties["DELAY"], "DELAY"), 1), len(delays))
        return whole(document["storeTimestamp"], "storeTimestamp") + delays[level - 1]


def _body(document: dict[str, Any]) -> bytes:
    body, form = document.get("body"), document.get("bodyFormat", "base64")
    if form == "json":
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    if not isinstance(body, str):
        raise NotPending("body is missing")
    return body.encode() if form == "string" else from_base64(body, "body")


def main() -> None:
    parser = options(__doc__, "files of JSON lines")
    parser.add_argument("--taken-at", type=instant, required=True, metavar="TIME", help="when the export began")
    parser.add_argument("--to", help="the topic of all messages; by default their own")
    parser.add_argument("--levels", default=LEVELS, help="the broker's messageDelayLevel")
    given = parser.parse_args()
    write_rows(lambda: read_documents(given.paths), RocketMQ(given.taken_at, given.to, given.levels).read, given.out)


if __name__ == "__main__":
    main()

"""Four walks through the code: the files that a reader enters who follows one operation, and its forms on the way.

The lists are made by reading. `python -m tests.support.house.walks` prints their lengths.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tests.support.house.tree import ROOT


class Walk(NamedTuple):
    """`parts`: files without `.py`, separated by blanks. `forms`: the representations of the same thing, in order.
    `most_files`, `most_forms`: may only fall."""

    parts: tuple[str, ...]
    forms: tuple[str, ...]
    most_files: int
    most_forms: int

    @property
    def files(self) -> list[str]:
        """In the order in which they are entered first."""
        return list(dict.fromkeys(f"{name}.py" for part in self.parts for name in part.split()))

    @property
    def folders(self) -> set[str]:
        return {file.rpartition("/")[0] for file in self.files}


_HTTP: Final = (
    "web/connection/protocol web/connection/exchange proxy/app web/admission/admission web/same_origin proxy/access "
    "proxy/api/endpoint web/body web/json_response"
)
_GATEWAY: Final = (
    "proxy/gateway/limited_gateway proxy/tracing/gateway proxy/gateway/gateway proxy/gateway/cluster_backend"
)
_APPEND: Final = "bus/kafka/bus bus/kafka/produce/append bus/kafka/record_batches bus/kafka/topics/catalog"
_FETCH: Final = (
    "bus/kafka/requests/wire bus/kafka/fetch/fetcher bus/kafka/record_batches bus/kafka/fetch/runs bus/subscription"
)
_CYCLE: Final = (
    "delay/shard/shard delay/shard/master delay/replica/replica delay/core/cycle delay/core/command_batch "
    "model/messages/message delay/replica/prefetch model/messages/key storage/shard/store"
)
_DUE: Final = "wheel/wheel model/messages/row delay/shard/dispatch delay/core/outbox cluster/topics/topic_states"
_COMMIT: Final = (
    "model/log/ledger model/messages/record bus/kafka/produce/kafka_committer bus/kafka/produce/v2/producer "
    "bus/kafka/produce/v2/sends bus/kafka/aiokafka_internals delay/replica/store_changes storage/shard/records "
    "storage/message_index/index cluster/shards/progress delay/metrics"
)
_CLIENT: Final = "client/http/blocking/client client/http/operations client/http/exchange"

WALKS: Final = {
    "a POST with a delay, to its record on Kafka": Walk(
        (
            _HTTP, "proxy/api/send proxy/request/caller_names proxy/request/json_body proxy/request/ingress",
            "model/timing",
            _GATEWAY, "cluster/topics/topic_states proxy/gateway/shard_router model/messages/ids",
            "proxy/response/render", _APPEND, _FETCH, _CYCLE, _DUE, _COMMIT,
        ),
        (
            "bytes", "dict", "message as sent", "draft", "command", "key, value and headers", "record batch",
            "fetched record", "command again", "stored record", "schedule", "row", "value in the store",
            "delivered frame", "key, value and headers again", "record batch again",
        ),
        54, 16,
    ),
    "a cancel by name, in a cluster": Walk(
        (
            _HTTP, "proxy/api/change proxy/request/message_ref proxy/response/render", _GATEWAY,
            "proxy/gateway/changes proxy/gateway/message_resolver model/messages/ids model/messages/plain",
            "model/callers/caller", _APPEND, _FETCH, _CYCLE, "model/messages/ended model/messages/row",
            "model/messages/row_notes", _COMMIT, "proxy/gateway/ledger_follower",
            "proxy/gateway/remote_reader cluster/shards/codec delay/api/internal_http delay/reads/local_reader",
            "delay/reads/shard_reads",
        ),
        (
            "text", "named address", "record by name", "key, value and headers", "record batch", "fetched record",
            "record again", "stored record", "change by name", "change", "ended row", "ledger entry", "timed answer",
            "outcome", "JSON",
        ),
        58, 15,
    ),
    "a Parquet row, from a bulk schedule to its delivery": Walk(
        (
            "pipeline/cli/schedule pipeline/cli/columns pipeline/cli/command pipeline/logs/server pipeline/logs/tables",
            "pipeline/columns/mapping pipeline/columns/fields pipeline/columns/instants pipeline/bulk_schedule/job",
            "pipeline/bulk_schedule/attempt pipeline/bulk_schedule/rules pipeline/bulk_schedule/files",
            "pipeline/bulk_schedule/stage pipeline/bulk_schedule/manifest pipeline/bulk_schedule/server",
            "storage/imports/import_file storage/delay_files/columns storage/imports/source", _CLIENT, _HTTP,
            "proxy/api/imports proxy/request/json_body model/messages/import_command", _GATEWAY, _APPEND, _FETCH,
            _CYCLE, _COMMIT, "delay/imports/file_importer delay/imports/import_candidates delay/imports/file_copies",
            "storage/imports/policy storage/jobs/parent storage/jobs/jobs storage/jobs/child",
            "storage/imports/import_process storage/imports/row_rules storage/delay_files/about",
            "storage/delay_files/catalog delay/tiering/tiering delay/tiering/tiering_policy",
            "storage/tiering/transitions storage/tiering/tiering_job storage/tiering/tiering_process",
            "storage/delay_files/imported_file", _DUE,
        ),
        (
            "row of the user", "mapped columns", "row of a staged file", "file of a manifest", "JSON", "import command",
            "record batch", "stored record", "import record", "row of an imported file", "row", "delivered frame",
            "record batch again",
        ),
        87, 13,
    ),
    "`destination add`, to a webhook with one retry": Walk(
        (
            "cli/destinations/command cli/destinations/declaration cli/session", _CLIENT, _HTTP,
            "proxy/destinations/handlers proxy/destinations/positions cluster/admin/destination_registry",
            "model/destinations/destination model/destinations/http cluster/admin/log cluster/admin/state",
            "cli/wiring/relay/relay_of_process relay/relay relay/outlets relay/delivery",
            "relay/throttle relay/figures client/consumer/consumer client/consumer/kafka/log",
            "client/consumer/kafka/source client/consumer/kafka/topics client/consumer/message",
            "client/consumer/work/worker_pool client/consumer/work/routes client/consumer/work/room",
            "client/consumer/work/offset_tracker relay/http/outlet relay/http/request relay/http/template",
            "relay/http/clients relay/network/address client/consumer/retry/policy client/consumer/failures",
            "client/consumer/letter client/consumer/retry/headers model/topics/group_topics",
            "client/consumer/kafka/retry_publisher model/messages/plain", _FETCH, _CYCLE, _DUE, _COMMIT,
        ),
        (
            "options", "declaration", "JSON", "destination", "item of the administration's log", "fetched record",
            "message", "request", "answer", "reply", "letter", "record of a plain client", "command", "row",
            "delivered frame",
        ),
        79, 15,
    ),
}  # fmt: skip


def missing(files: Iterable[str]) -> list[str]:
    return [file for file in files if not (ROOT / file).is_file()]


if __name__ == "__main__":
    for title, walk in WALKS.items():
        print(f"{title}: {len(walk.files)} files in {len(walk.folders)} folders, {len(walk.forms)} forms")

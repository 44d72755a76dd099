"""Finds settings that contradict each other, or that a production system should not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from duemq.cli.doctor.finding import Finding, Role, error, ok, warning
from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.parts import check_cluster, check_http_access, check_node_access, is_loopback
from duemq.model.errors import BadConfig

_SUBJECT = "configuration"


def check_configuration(settings: Settings, role: Role) -> Iterator[Finding]:
    findings = [*_contradictions(settings, role), *_risks(settings, role)]
    yield from findings or [ok(_SUBJECT, f"the settings of duemq {role} are consistent")]


def _contradictions(settings: Settings, role: Role) -> Iterator[Finding]:
    checks: list[Callable[[], None]] = []
    if role is Role.RELAY:
        if not settings.kafka.bootstrap:
            yield error(_SUBJECT, "kafka.bootstrap is not set", "name some brokers in kafka.bootstrap")
    elif role is not Role.SERVE:
        checks.append(lambda: check_cluster(settings))
    elif settings.bus == "kafka" and not settings.kafka.bootstrap:
        yield error(_SUBJECT, "bus = kafka, and kafka.bootstrap is not set", "name some brokers in kafka.bootstrap")
    if role is Role.NODE:
        checks.append(lambda: check_node_access(settings, settings.node.listen))
    elif role is not Role.RELAY:
        checks.append(lambda: check_http_access(settings))
    for check in checks:
        try:
            check()
        except BadConfig as refused:
            yield error(_SUBJECT, str(refused), "change the setting: the process does not start")
    kafka = settings.kafka
    if kafka.min_insync_replicas > kafka.replication_factor:
        yield error(
            _SUBJECT,
            f"kafka.min_insync_replicas = {kafka.min_insync_replicas} is more than kafka.replication_factor = "
            f"{kafka.replication_factor}: no broker accepts a command",
            "set kafka.replication_factor = 3 and kafka.min_insync_replicas = 2",
        )


def _risks(settings: Settings, role: Role) -> Iterator[Finding]:
    for sentence in settings.strange_variables():
        yield warning(_SUBJECT, sentence, "correct or unset the variable")
    http, kafka = settings.http, settings.kafka
    listen = settings.node.listen if role is Role.NODE else settings.listen
    if http.open and role is not Role.RELAY and not is_loopback(listen.rpartition(":")[0]):
        yield warning(
            _SUBJECT, "http.open = true: everyone with access to this machine may do everything",
            'set http.access = "keys" (node: node.token), or make sure that a firewall keeps strangers away',
        )  # fmt: skip
    if role is Role.SERVE and settings.bus == "embedded":
        return
    timeout_s = kafka.transaction_timeout_ms / 1000
    if settings.delivery.stuck_after_s < 2 * timeout_s:
        yield warning(
            _SUBJECT,
            f"delivery.stuck_after_s = {settings.delivery.stuck_after_s:g} is less than twice "
            f"kafka.transaction_timeout_ms ({timeout_s:g} s): a slow broker looks like a stuck shard",
            f"set delivery.stuck_after_s = {max(60, 3 * timeout_s):g}",
        )
    if kafka.replication_factor == 1:
        yield warning(
            _SUBJECT, "kafka.replication_factor = 1: if a broker's disk is lost, accepted messages are lost",
            "use three brokers, kafka.replication_factor = 3 and kafka.min_insync_replicas = 2",
        )  # fmt: skip
    elif kafka.min_insync_replicas == 1:
        yield warning(
            _SUBJECT,
            "kafka.min_insync_replicas = 1: a command is accepted when only one broker has it",
            "set kafka.min_insync_replicas = 2",
        )
    if role is not Role.SERVE and settings.zookeeper.acl == "open":
        yield warning(
            _SUBJECT, 'zookeeper.acl = "open": everyone with access to ZooKeeper may read the secret of the ids',
            'set zookeeper.user, zookeeper.password and zookeeper.acl = "creator"; docs/operate/cluster.md',
        )  # fmt: skip

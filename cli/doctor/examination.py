"""Runs all checks for one process, one after another. A check that fails is itself a finding."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress

from duemq.bus.base import wall_clock
from duemq.cli.doctor.certificates import check_certificates
from duemq.cli.doctor.configuration import check_configuration
from duemq.cli.doctor.finding import Finding, Role, error
from duemq.cli.doctor.folder import check_folder
from duemq.cli.doctor.kafka import check_brokers
from duemq.cli.doctor.machine import check_clock, check_open_files, check_versions, judge_unit, unit_fields
from duemq.cli.doctor.server import check_server
from duemq.cli.doctor.zookeeper import examine_zookeeper, judge_zookeeper, unreachable
from duemq.cli.settings.settings import Settings
from duemq.cli.wiring.node_options import node_options
from duemq.cli.wiring.parts import kafka_options, zookeeper_options
from duemq.model.errors import DuemqError, FolderRefused
from duemq.model.topics.topic_names import TopicNames, prefix_of
from duemq.storage.data_folder import read_info


def role_of(settings: Settings) -> Role:
    """The process that a machine with these settings most likely runs."""
    return Role.NODE if settings.kafka.bootstrap and settings.zookeeper.hosts else Role.SERVE


async def examine(settings: Settings, role: Role) -> AsyncIterator[Finding]:
    """Run all checks. They change nothing and need no lock, so the server may be running."""
    for finding in _of_machine(settings, role):
        yield finding
    shards = settings.shards if "shards" in settings.model_fields_set else None
    prefix = _prefix(settings, role)
    if role is not Role.SERVE and settings.zookeeper.hosts:
        try:
            identity, nodes = await examine_zookeeper(zookeeper_options(settings), settings.cluster)
        except DuemqError as failed:
            yield unreachable(failed)
        else:
            if identity is not None:
                shards, prefix = identity.shards, identity.prefix
            for finding in judge_zookeeper(settings, identity, nodes):
                yield finding
    if settings.kafka.bootstrap and (role is not Role.SERVE or settings.bus == "kafka"):
        async for finding in _brokers(settings, shards, prefix):
            yield finding


def _of_machine(settings: Settings, role: Role) -> Iterator[Finding]:
    unit = f"duemq@{role}.service"
    marks = node_options(settings, alone=True, trims=True).marks
    checks: list[tuple[str, Iterable[Finding]]] = [
        ("configuration", check_configuration(settings, role)),
        ("versions", check_versions()),
        ("certificates", check_certificates(settings)),
    ]
    if role in (Role.SERVE, Role.NODE):
        checks.append(("data folder", check_folder(settings.data, marks)))
    checks += [
        ("machine", (check() for check in (check_clock, check_open_files))),
        ("systemd", judge_unit(unit, unit_fields(unit))),
        ("server", check_server(settings, role)),
    ]
    for subject, findings in checks:
        try:
            yield from findings
        except Exception as failed:  # one check must not hide the findings of others
            yield _broken(subject, failed)


def _prefix(settings: Settings, role: Role) -> str:
    if role is Role.SERVE:
        with suppress(FolderRefused):
            return read_info(settings.data).prefix
    return settings.kafka.prefix or prefix_of(settings.cluster)


async def _brokers(settings: Settings, shards: int | None, prefix: str) -> AsyncIterator[Finding]:
    from duemq.bus.kafka.inspection import Inspection  # aiokafka takes 70 ms; the embedded log does not need it

    try:
        inspection = await Inspection.open(kafka_options(settings, prefix), wall_clock)
    except DuemqError as failed:
        yield error("brokers", str(failed), "start the brokers, or correct kafka.*")
        return
    try:
        async for finding in check_brokers(inspection, settings, shards, TopicNames(prefix)):
            yield finding
    except DuemqError as failed:
        yield error("brokers", str(failed), "check the brokers and their logs")
    finally:
        await inspection.close()


def _broken(subject: str, failed: Exception) -> Finding:
    return error(subject, f"this check failed: {failed!r}", "report it")

"""`duemq kafka-acls`."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

import typer

from duemq.cli.session import examples
from duemq.cli.wiring import startup

EXAMPLES = examples(
    "duemq kafka-acls --config duemq.toml --topic orders --topic 'mails.*' > acls.sh",
    "duemq kafka-acls --config duemq.toml --topic '*' --principal 'User:CN=duemq' | ADMIN=admin.properties sh",
)


def kafka_acls(
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="A topic of messages; NAME* for all that begin so. Can be repeated."),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            help="A group of consumers, for stories of messages; NAME* for all that begin so. Can be repeated.",
        ),
    ] = None,
    principal: Annotated[
        str | None, typer.Option(help="Who gets the rights. Default: User: and kafka.user, or User:duemq.")
    ] = None,
    kafka: startup.Kafka = None,
    config: startup.Config = None,
    further: startup.Further = None,
) -> None:
    """Print a script of kafka-acls.sh lines: the rights that the processes of this cluster need on Kafka.

    It asks no broker. The script takes a file for --command-config in the variable ADMIN.
    """
    from duemq.cli.settings.settings import Settings
    from duemq.cluster.topics.kafka_rights import kafka_rights
    from duemq.model.errors import BadConfig
    from duemq.model.topics.topic_names import TopicNames, prefix_of

    try:
        settings = Settings.load(config, startup.nested_options({"kafka.bootstrap": kafka}, further))
        if not settings.kafka.bootstrap:
            raise BadConfig("kafka.bootstrap is not set: name some brokers as HOST:PORT, or with --kafka")
    except BadConfig as error:
        startup.fail(error)
    who = principal or f"User:{settings.kafka.user or 'duemq'}"
    names = TopicNames(settings.kafka.prefix or prefix_of(settings.cluster))
    rights = kafka_rights(
        settings.cluster,
        names,
        topic or (),
        settings.topics.dead_letter,
        group or (),
        makes_topics=settings.topics.partitions > 0,
    )
    typer.echo("#!/bin/sh\nset -e")
    typer.echo(
        f"acls() {{ kafka-acls.sh --bootstrap-server {quote(','.join(settings.kafka.bootstrap))} "
        f'${{ADMIN:+--command-config "$ADMIN"}} --add --allow-principal {quote(who)} "$@"; }}'
    )
    for line in rights:
        typer.echo(f"acls {line}")

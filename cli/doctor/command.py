"""`duemq doctor`: finds problems on this machine, and suggests remedies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from duemq.cli.doctor.finding import Finding, Role, Severity, error
from duemq.cli.wiring import startup

EXAMPLES = """Examples:

    duemq doctor --data /var/lib/duemq
    duemq doctor --config /etc/duemq/duemq.toml --as node
    duemq doctor --json --strict | jq '.findings[] | select(.level != "ok")'

Run it as the server's user, with the server's settings; the server may be running. Exit code 0: no errors; 1: errors;
with --strict a warning counts as an error.
"""

_COLOURS = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.ERROR: "red"}


def doctor(
    data: startup.Data = None,
    listen: startup.Listen = None,
    kafka: startup.Kafka = None,
    zookeeper: startup.ZooKeeper = None,
    role: Annotated[
        Role | None,
        typer.Option("--as", help="What runs here. Default: node if Kafka and ZooKeeper are set, else serve."),
    ] = None,
    config: startup.Config = None,
    further: startup.Further = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 for warnings, too.")] = False,
) -> None:
    """Check configuration, brokers and topics, ZooKeeper, clocks, disk, versions, certificates and systemd."""
    own = "" if role in (None, Role.SERVE, Role.PROXY) else f"{role}."
    options = {
        "data": data, f"{own}listen": listen, "kafka.bootstrap": kafka,
        "zookeeper.hosts": zookeeper, "bus": "kafka" if kafka and not zookeeper else None,
    }  # fmt: skip
    role, findings = _find(startup.nested_options(options, further), config, role)
    bad = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    if json:
        _print_json(role, findings)
    else:
        _print(findings)
    raise typer.Exit(1 if any(finding.level in bad for finding in findings) else 0)


def _find(options: dict[str, Any], config: Path | None, role: Role | None) -> tuple[Role, list[Finding]]:
    import asyncio
    import logging

    from duemq.cli.doctor.examination import examine, role_of
    from duemq.cli.doctor.settings_file import check_settings_file
    from duemq.cli.settings import variables
    from duemq.cli.settings.settings import Settings
    from duemq.model.errors import BadConfig

    logging.disable(logging.CRITICAL)  # problems that a server's parts would log are reported as findings
    try:
        settings = Settings.load(config, options)
    except BadConfig as refused:
        remedy = "conf/duemq.toml of the source has every setting"
        return role or Role.SERVE, [error("configuration", line, remedy) for line in str(refused).splitlines()]
    role = role or role_of(settings)

    async def collect() -> list[Finding]:
        return [finding async for finding in examine(settings, role)]

    file = config or os.environ.get(variables.CONFIG)
    return role, [*(check_settings_file(Path(file)) if file else ()), *asyncio.run(collect())]


def _print_json(role: Role, findings: list[Finding]) -> None:
    from duemq.cli.output import echo_json

    worst = max((finding.level for finding in findings), key=list(Severity).index, default=Severity.OK)
    echo_json({"role": role, "level": worst, "findings": [finding._asdict() for finding in findings]})


def _print(findings: list[Finding]) -> None:
    for subject, level, detail, remedy in findings:
        typer.secho(f"{level:8}", fg=_COLOURS[level], nl=False)
        typer.echo(f"{subject}: {detail}")
        if remedy:
            typer.echo(f"{'':8}  -> {remedy}")

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.kafka.options import KafkaOptions
from duemq.model.errors import BadConfig
from tests.support.tls.certificates import Authority


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"bootstrap": ""}, r"kafka\.bootstrap"),
        ({"bootstrap": "here:9092,there"}, r"kafka\.bootstrap"),
        ({"protocol": "TLS"}, r"kafka\.protocol"),
        ({"protocol": "SASL_SSL", "mechanism": "GSSAPI"}, r"kafka\.mechanism"),
        ({"protocol": "SASL_SSL"}, r"kafka\.user and kafka\.password"),
        ({"cert": "a.pem"}, r"kafka\.cert and kafka\.key"),
        ({"min_insync_replicas": 2}, r"kafka\.min_insync_replicas"),
    ],
)
def test_settings_that_cannot_work_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(BadConfig, match=named):
        replace(KafkaOptions("here:9092"), **settings)


def test_files_that_cannot_be_used_are_named() -> None:
    with pytest.raises(BadConfig, match=r"nowhere\.pem"):
        KafkaOptions("here:1", protocol="SSL", ca="nowhere.pem").client()


def test_new_files_are_for_new_connections(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    files = authority.issue("client")
    context = KafkaOptions("here:1", protocol="SSL", ca=files.ca, cert=files.cert, key=files.key).client()[
        "ssl_context"
    ]
    before = context.current
    authority.issue("client")
    assert context.refresh() and context.current is not before


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(KafkaOptions("here:1, [::1]:2", user="u", password="secret"))

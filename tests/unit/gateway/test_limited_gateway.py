"""The gateway of a caller for some topics: each method is limited, passed on, or refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from duemq.model.callers.access import Grant
from duemq.model.errors import Rejected
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.gateway.limited_gateway import LimitedGateway

METHODS = [name for name in vars(Gateway) if not name.startswith("_")]
PASSED_ON = {"bus", "topic_lateness", "trouble", "readiness", "stuck", "why_not_ready"}
REFUSED = {"import_file", "import_files", "imports", "import_record", "imported_ids", "drain", "resume"}


class Inner:
    def __getattr__(self, name: str) -> str:
        return f"the inner {name}"


def limited(*topics: str) -> Any:
    return LimitedGateway(cast(Gateway, Inner()), Grant("k", frozenset(), topics=topics), lambda _: None)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_limited_passed_on_or_refused(name: str) -> None:
    for topics in ((), ("orders",)):
        gateway = limited(*topics)
        if name in REFUSED and topics:
            with pytest.raises(Rejected, match="needs a key for all topics") as refused:
                getattr(gateway, name)
            assert refused.value.code == "forbidden"
        elif name in PASSED_ON | REFUSED:
            assert getattr(gateway, name) == f"the inner {name}"
        else:
            assert name in vars(LimitedGateway)


def test_what_is_not_decided_is_missing() -> None:
    assert len(METHODS) >= 24
    with pytest.raises(AttributeError):
        _ = limited().new_method

"""Decides and reports what happens to a message whose handler failed."""

from __future__ import annotations

import logging
import time

from duemq.client.consumer.message import Message
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.retry.headers import error_text
from duemq.client.consumer.retry.policy import DeadLetter, Levels, Wait, decide

log = logging.getLogger(__name__)


def verdict(
    group: str, options: ConsumerOptions, message: Message, error: BaseException
) -> tuple[Wait | DeadLetter, str]:
    """When the message comes back, or that it becomes a dead letter; and the error text to report. Does not raise."""
    text = error_text(error, options.tell_errors)
    to = _decide(group, options, message, error)
    if isinstance(to, Wait) and not options.log_retries:
        return to, text
    log.warning(
        "consumer of group %s: %r failed and %s: %s: %s", group, message,
        "comes back" if isinstance(to, Wait) else f"goes to the dead letters ({to.reason})",
        type(error).__qualname__, text,
        extra={"action": "failed", "group": group, "topic": message.topic, "id": message.id},
    )  # fmt: skip
    return to, text


def _decide(group: str, options: ConsumerOptions, message: Message, error: BaseException) -> Wait | DeadLetter:
    """Apply the retry policy. A policy that raises must not end the consumer: after each restart the consumer would get
    the same message and end again. The default policy is used instead."""
    try:
        return decide(error, options.retry, message.retried, int(time.time() * 1000))
    except Exception:
        log.exception(
            "consumer of group %s: the retry policy fails for %r, so the default one is used", group, message,
            extra={"action": "policy", "group": group},
        )  # fmt: skip
        return decide(RuntimeError(), Levels(), message.retried)

"""Translates a commit's errors into three kinds: fenced, refused by a topic, or outcome unknown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from aiokafka import errors
from aiokafka.errors import KafkaError

from duemq.bus.base import WriteRefused
from duemq.model.errors import DuemqError, Fenced, LogFailed

_FENCES = (
    errors.ProducerFenced,
    errors.InvalidProducerEpoch,
    errors.TransactionCoordinatorFenced,
    errors.InvalidProducerIdMapping,  # a newer producer has another id, because this id ran out of epochs
)
_REFUSALS: dict[type[KafkaError], tuple[str, str]] = {
    errors.MessageSizeTooLargeError: ("too_large", "does not accept messages of this size"),
    errors.RecordListTooLargeError: ("too_large", "does not accept batches of this size"),
    errors.TopicAuthorizationFailedError: ("not_authorized", "does not let duemq's user write to it"),
    errors.UnknownTopicOrPartitionError: ("unknown_topic", "does not exist"),
    errors.InvalidTopicError: ("unknown_topic", "has no valid name"),
    errors.InvalidTimestampError: ("refused", "refuses the record's timestamp"),
    errors.PolicyViolationError: ("refused", "refuses the records by its policy"),
    errors.InvalidRequiredAcksError: ("refused", "refuses acks=all"),
}


def worst(
    name: str, failures: Sequence[tuple[str, BaseException]], own: Collection[str], forget: Callable[[str], None]
) -> BaseException:
    """The translated error that most probably caused the others, out of (topic, error) pairs.

    `own`: duemq's own topics. If one of them failed, too, a topic of messages is blamed only if the broker blamed it.
    """
    candidates = [translate(name, error, forget, topic) for topic, error in failures]
    for kind in (Fenced, WriteRefused):
        for error in candidates:
            if isinstance(error, kind) and getattr(error, "topic", "") not in own:
                return error
    if all(topic not in own for topic, _ in failures):
        topic, error = failures[0]
        forget(topic)
        return WriteRefused(topic, "refused", f"topic {topic!r} refuses the records: {error!r}")
    return LogFailed(f"a commit of {name!r} failed: {failures[0][1]!r}")


def translate(name: str, error: BaseException, forget: Callable[[str], None], topic: str = "") -> BaseException:
    """Translate an error of the committer with this name. `forget` is called with the topic that caused it."""
    if isinstance(error, _FENCES):
        return Fenced(f"committer {name!r} was fenced by the broker: {error!r}")
    for kind, (reason, text) in _REFUSALS.items():
        if isinstance(error, kind):
            target = topic or _topic_of(error)
            forget(target)
            return WriteRefused(target, reason, f"topic {target!r} {text}")
    if isinstance(error, DuemqError):
        return error
    if isinstance(error, TimeoutError):
        return LogFailed(f"Kafka did not answer a commit of {name!r} in time")
    if isinstance(error, KafkaError | OSError | AssertionError):
        return LogFailed(f"a commit of {name!r} failed: {error!r}")
    return error


def _topic_of(error: BaseException) -> str:
    """The topic in an error of aiokafka; if there are several, the first by name."""
    first = next(iter(error.args), "")
    return str(min(first, default="") if isinstance(first, set) else first)

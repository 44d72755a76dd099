"""Asks brokers about topics through Kafka's Java client, for logins that no other client supports. The Java client
comes with Spark's connector.

Classes come from the loader of the connector's jars, because Py4J cannot find them by name if the jars were added to a
running session. This needs the driver's Java, so it does not work over Spark Connect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from aiokafka.structs import TopicPartition
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from duemq.model.errors import Unavailable
from duemq.pipeline.logs.kafka import CONFIGURED, EARLIEST, JAVA, Kafka, client

_ADMIN: Final = "org.apache.kafka.clients.admin."
_COMMON: Final = "org.apache.kafka.common."
_WITHIN_MS: Final = 30_000


class JavaConnection:
    """See `ranges.KafkaConnection`. Methods raise Unavailable."""

    def __init__(self, spark: SparkSession, kafka: Kafka) -> None:
        jvm: Any = spark.sparkContext._jvm
        gateway: Any = spark.sparkContext._gateway
        self._jvm, self._new_array = jvm, gateway.new_array
        self._loader = spark._jsparkSession.sharedState().jarClassLoader()
        properties = jvm.java.util.Properties()
        for name, value in client(kafka).items():
            properties.setProperty(name.removeprefix(JAVA), value)
        for name in ("default.api.timeout.ms", "request.timeout.ms"):
            if properties.getProperty(name) is None:
                properties.setProperty(name, str(_WITHIN_MS))
        # The client loads login classes through the class loader of its thread.
        thread = jvm.java.lang.Thread.currentThread()
        before = thread.getContextClassLoader()
        thread.setContextClassLoader(self._loader)
        try:
            self._admin = self._static(_ADMIN + "Admin", "create", (jvm.java.util.Properties, properties))
        except Py4JJavaError as error:
            raise Unavailable(f"Kafka's Java client cannot log in: {_why(error)}") from error
        finally:
            thread.setContextClassLoader(before)

    async def topics(self) -> dict[str, list[int]]:
        names = self._result_of(self._admin.listTopics().names())
        described = self._result_of(self._admin.describeTopics(names).allTopicNames())
        return {
            str(topic): sorted(int(one.partition()) for one in described[topic].partitions()) for topic in described
        }

    async def offsets(
        self, times: Mapping[TopicPartition, int], *, committed: bool = True
    ) -> dict[TopicPartition, tuple[int, int]]:
        specs: dict[int, Any] = {}
        requests = self._jvm.java.util.HashMap()
        places: dict[TopicPartition, Any] = {}
        for where, time in times.items():
            if time not in specs:
                specs[time] = self._spec(time)
            places[where] = self._construct(
                _COMMON + "TopicPartition", (self._jvm.java.lang.String, where.topic),
                (self._jvm.java.lang.Integer.TYPE, where.partition),
            )  # fmt: skip
            requests.put(places[where], specs[time])
        levels = self._class(_COMMON + "IsolationLevel").getEnumConstants()
        level = next(one for one in levels if one.name() == ("READ_COMMITTED" if committed else "READ_UNCOMMITTED"))
        options = self._construct(_ADMIN + "ListOffsetsOptions", (self._class(_COMMON + "IsolationLevel"), level))
        results = self._result_of(self._admin.listOffsets(requests, options).all())
        answers = {where: results[place] for where, place in places.items()}
        return {where: (int(one.offset()), int(one.timestamp())) for where, one in answers.items() if one.offset() >= 0}

    async def configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        kind = self._class(_COMMON + "config.ConfigResource$Type")
        topic = next(one for one in kind.getEnumConstants() if one.name() == "TOPIC")
        resources = self._jvm.java.util.ArrayList()
        for name in topics:
            resource = _COMMON + "config.ConfigResource"
            resources.add(self._construct(resource, (kind, topic), (self._jvm.java.lang.String, name)))
        try:
            configs = self._admin.describeConfigs(resources).all().get()
        except Py4JJavaError:  # not authorized
            return {}
        return {
            str(one.name()): {
                name: str(entry.value()) for name in CONFIGURED if (entry := configs[one].get(name)) is not None
            }
            for one in configs
        }

    async def notes(self, group: str, topics: Collection[str]) -> dict[str, str]:
        try:
            stored = self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
        except Py4JJavaError:  # not authorized
            return {}
        return {
            str(where.topic()): str(stored[where].metadata())
            for where in stored
            if where.partition() == 0 and where.topic() in topics and stored[where] is not None
        }

    async def close(self) -> None:
        self._admin.close()

    def _result_of(self, future: Any) -> Any:
        try:
            return future.get()
        except Py4JJavaError as error:
            raise Unavailable(f"Kafka does not answer Java's client: {_why(error)}") from error

    def _spec(self, time: int) -> Any:
        kind = _ADMIN + "OffsetSpec"
        if time < 0:
            return self._static(kind, "earliest" if time == EARLIEST else "latest")
        return self._static(kind, "forTimestamp", (self._jvm.java.lang.Long.TYPE, self._jvm.java.lang.Long(time)))

    def _class(self, name: str) -> Any:
        return self._loader.loadClass(name)

    def _static(self, name: str, method: str, *arguments: tuple[Any, Any]) -> Any:
        function = self._class(name).getMethod(method, self._array("Class", [_class_of(of) for of, _ in arguments]))
        return function.invoke(None, self._array("Object", [value for _, value in arguments]))

    def _construct(self, name: str, *arguments: tuple[Any, Any]) -> Any:
        constructor = self._class(name).getConstructor(self._array("Class", [_class_of(of) for of, _ in arguments]))
        return constructor.newInstance(self._array("Object", [value for _, value in arguments]))

    def _array(self, kind: str, values: list[Any]) -> Any:
        array = self._new_array(getattr(self._jvm.java.lang, kind), len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array


def _class_of(of: Any) -> Any:
    return of._java_lang_class if isinstance(of, JavaClass) else of


def _why(error: Py4JJavaError) -> str:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"

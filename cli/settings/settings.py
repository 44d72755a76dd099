"""The settings: one frozen value, created once at the start. Only this module reads the environment for them.

Later sources override earlier ones: defaults, the TOML file (`--config`, or `DUEMQ_CONFIG`), the environment
(`DUEMQ_LISTEN`, `DUEMQ_LIMITS__MAX_DELAY`), the command line. `conf/duemq.toml` has every key with its default and
meaning.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from duemq.bus.settings import EmbeddedSettings, KafkaSettings
from duemq.cli.settings import variables
from duemq.cli.settings.destinations import DeclaredDestinations, with_names_of
from duemq.cluster.tracing.settings import TracingSettings
from duemq.delay.settings import DeliverySettings, NodeSettings
from duemq.election.settings import ZooKeeperSettings
from duemq.model.errors import BadConfig
from duemq.model.messages import dead_letters
from duemq.model.settings import host_and_port, no_switch
from duemq.model.timing import TimePolicy, shown
from duemq.proxy.login.settings import LoginSettings
from duemq.proxy.request.message_limits import MessageLimits
from duemq.proxy.settings import ConsoleSettings, LimitSettings, ProxySettings, TimingSettings, TopicSettings
from duemq.relay.settings import RelaySettings
from duemq.storage.settings import DelayFileSettings, IndexSettings, StorageSettings
from duemq.web.settings import HttpSettings

_SECRETS = frozenset(("password", "token", "s3_secret_key", "client_secret"))


class Layers(NamedTuple):
    """The sources of settings, nested as in the file; later ones override earlier ones. `path`: the file, or None."""

    path: Path | None
    file: Mapping[str, Any]
    environment: Mapping[str, Any]
    options: Mapping[str, Any]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    data: Path = Path("./duemq-data")
    listen: str = "127.0.0.1:8787"
    bus: Literal["embedded", "kafka"] = "embedded"
    cluster: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = "duemq"
    shards: Annotated[int, Field(ge=1, le=256)] = 1
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    limits: LimitSettings = LimitSettings()
    timing: TimingSettings = TimingSettings()
    topics: TopicSettings = TopicSettings()
    delivery: DeliverySettings = DeliverySettings()
    storage: StorageSettings = StorageSettings()
    index: IndexSettings = IndexSettings()
    delay_files: DelayFileSettings = DelayFileSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    kafka: KafkaSettings = KafkaSettings()
    zookeeper: ZooKeeperSettings = ZooKeeperSettings()
    node: NodeSettings = NodeSettings()
    proxy: ProxySettings = ProxySettings()
    http: HttpSettings = HttpSettings()
    console: ConsoleSettings = ConsoleSettings()
    login: LoginSettings = LoginSettings()
    relay: RelaySettings = RelaySettings()
    tracing: TracingSettings = TracingSettings()
    destinations: DeclaredDestinations = Field(default_factory=dict)

    _no_switches = field_validator("*", mode="before")(no_switch)

    @field_validator("listen")
    @classmethod
    def _listen(cls, listen: str) -> str:
        return host_and_port(listen)

    @classmethod
    def load(cls, path: Path | str | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
        """The effective settings. `overrides` (from the command line) are nested as in the file; None means not given.

        Raises BadConfig, which names each wrong key, its value and the allowed values.
        """
        return cls.of(cls.layers(path, overrides))

    @classmethod
    def layers(cls, path: Path | str | None = None, overrides: Mapping[str, Any] | None = None) -> Layers:
        """The sources, unchecked. Raises BadConfig for a file that cannot be read."""
        path = path or os.environ.get(variables.CONFIG)
        if variables.is_strict(os.environ) and (wrong := cls.strange_variables()):
            raise BadConfig("\n".join(wrong))
        file, environment = _read_file(Path(path)) if path else {}, variables.values(os.environ, cls)
        named, extra = file.get("destinations"), environment.get("destinations")
        if isinstance(named, Mapping) and isinstance(extra, Mapping):
            environment["destinations"] = with_names_of(named, extra)
        return Layers(Path(path) if path else None, file, environment, overrides or {})

    @classmethod
    def of(cls, layers: Layers) -> Settings:
        """The settings from these layers. Raises BadConfig."""
        try:
            return cls(**_merge((layers.file, layers.environment, layers.options)))
        except ValidationError as error:
            raise BadConfig("\n".join(_explain(problem) for problem in error.errors())) from error

    @classmethod
    def strange_variables(cls) -> list[str]:
        """A sentence for each environment variable that has the prefix of settings but is not a setting. `load` ignores
        these variables, because other programs may have such variables. With DUEMQ_STRICT_ENV=1 it refuses them, so
        that a misspelt name is not ignored silently."""
        return variables.strangers(os.environ, cls)

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    def ingress_limits(self) -> MessageLimits:
        own = self.limits
        return MessageLimits(
            max_payload_bytes=own.max_payload_bytes,
            max_headers=own.max_headers,
            max_headers_bytes=own.max_headers_bytes,
            max_key_bytes=own.max_key_bytes,
            max_batch_items=own.max_batch_items,
            max_batch_bytes=own.max_batch_bytes,
            topics=self.topics.allowed,
            time=TimePolicy(own.max_delay, self.timing.levels, self.timing.past_due),
            max_redrives=self.topics.max_redrives,
            purgeable=(*dead_letters.TOPICS, self.topics.dead_letter, *self.topics.purgeable),
        )


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadConfig(f"the settings file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise BadConfig(f"the settings file {path} is not TOML: {error}") from error


def _merge(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping):
                under = merged.get(key)
                merged[key] = _merge((under if isinstance(under, Mapping) else {}, value))
            elif value is not None:
                merged[key] = value
    return merged


def _explain(problem: ErrorDetails) -> str:
    *path, last = [str(part) for part in problem["loc"]]
    key = ".".join((*path, last))
    if problem["type"] == "extra_forbidden":
        section = type(getattr(Settings(), path[0])) if path else Settings
        return f"{key} is not a setting; {_known_keys(section)}"
    rule = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else problem["msg"]
    default = None if path else getattr(Settings(), last, None)
    whole = isinstance(default, BaseModel)  # a section, which may contain secrets
    if isinstance(default, BaseModel) and problem["type"] == "model_type":
        rule = f"it is a section: set its keys, such as {key}.{next(iter(type(default).model_fields))}"
    secret = last in _SECRETS or "api_keys" in key or key.startswith("destinations")
    was = "" if whole or secret else f" = {shown(problem['input'])}"
    return f"{key}{was}: {rule}"


def _known_keys(section: type[BaseModel]) -> str:
    return f"known are {', '.join(section.model_fields)}"

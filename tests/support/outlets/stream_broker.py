"""A broker with as much of the stream protocol as a publisher needs, for behaviour that is rare in a real one."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from rstream import schema
from rstream.encoding import decode_frame, encode_frame

from duemq.dev.servers.ports import HOST
from duemq.model.destinations.destination import Credentials, read_destination
from duemq.relay.rabbitmq.stream.outlet import StreamOutlet
from tests.support.outlets.site import LOOPBACK

_OK = 1


class StreamBroker:
    """`leader`: the port that it names as the stream's writer; 0: its own. `codes`: of answers, instead of OK.
    `silent`: it confirms nothing. `deaf`: it answers nothing. `published`: publishers and publishing ids. Context
    manager."""

    def __init__(self, leader: int = 0, frame_bytes: int = 1 << 20, heartbeat_s: int = 60) -> None:
        self.leader, self._frame_bytes, self._heartbeat_s = leader, frame_bytes, heartbeat_s
        self.codes: dict[type[schema.Frame], int] = {}
        self.silent = self.deaf = False
        self.published: list[tuple[int, int]] = []
        self.names: list[str] = []
        self.connections = self.largest_frame = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self.writers:
            writer.close()

    def outlet(self, timeout: int = 10_000, virtual_host: str = "") -> StreamOutlet:
        options = {"stream": "orders", "stream_port": self.port}
        fields = {"name": "there", "url": f"amqp://{HOST}/{virtual_host}", "timeout": timeout, "options": options}
        return StreamOutlet(read_destination(fields), Credentials(username="u"), LOOPBACK)

    def say(self, frame: schema.Frame) -> None:
        """To the last who connected."""
        self.writers[-1].write(encode_frame(frame))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                self.largest_frame = max(self.largest_frame, 4 + size)
                for answer in [] if self.deaf else self._answers(decode_frame(await reader.readexactly(size))):
                    raw = bytearray(encode_frame(answer))
                    if hasattr(answer, "correlation_id"):
                        raw[4] |= 0x80  # rstream codes requests alone
                    writer.write(raw)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answers(self, frame: Any) -> list[schema.Frame]:
        number, code = frame.corr_id or 0, self.codes.get(type(frame), _OK)
        match frame:
            case schema.PeerProperties():
                return [schema.PeerPropertiesResponse(number, code, [])]
            case schema.SaslHandshake():
                return [schema.SaslHandshakeResponse(number, code, ["PLAIN"])]
            case schema.SaslAuthenticate():
                return [
                    schema.SaslAuthenticateResponse(number, code),
                    schema.Tune(self._frame_bytes, self._heartbeat_s),
                ]
            case schema.Open():
                place = {"advertised_host": HOST, "advertised_port": str(self.port)}
                return [schema.OpenResponse(number, code, [schema.Property(*each) for each in place.items()])]
            case schema.Metadata():
                brokers = [schema.Broker(0, HOST, self.leader or self.port)]
                about = schema.StreamMetadata(frame.streams[0], code, 0, [])
                return [schema.MetadataResponse(number, brokers, [about])]
            case schema.DeclarePublisher():
                self.names.append(frame.reference)
                return [schema.DeclarePublisherResponse(number, code)]
            case schema.Publish():
                numbers = [message.publishing_id for message in frame.messages]
                self.published += [(frame.publisher_id, number) for number in numbers]
                return [] if self.silent else [schema.PublishConfirm(frame.publisher_id, numbers)]
            case schema.Close():
                return [schema.CloseResponse(number, code)]
        return []

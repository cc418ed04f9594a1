"""What Python's h2 makes of a client's bytes. oracles.rs describes the input and the output."""

import struct
import sys

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded, TrailersReceived
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

FEED, ANSWER = 0, 1
RST_STREAM, SETTINGS, PING, GOAWAY, ACK = 3, 4, 6, 7, 1
NO_ERROR = 0
CONFIG = H2Configuration(client_side=False, header_encoding=False)


def text(headers):
    return "".join(f" {bytes(name).hex()}:{bytes(value).hex()}" for name, value in headers)


class Case:
    def __init__(self):
        self.connection = H2Connection(config=CONFIG)
        self.connection.local_settings = Settings(client=False, initial_values={
            SettingCodes.INITIAL_WINDOW_SIZE: 64 << 10,
            SettingCodes.MAX_CONCURRENT_STREAMS: 100,
            SettingCodes.ENABLE_CONNECT_PROTOCOL: 1,
        })
        self.connection.initiate_connection()
        self.connection.increment_flow_control_window((256 << 10) - 65535)
        self.connection.data_to_send()
        self.has_failed = False
        self.received = set()

    def feed(self, data):
        for event in self.connection.receive_data(data):
            if isinstance(event, RequestReceived):
                yield f"request {event.stream_id}{text(event.headers)}"
            elif isinstance(event, TrailersReceived):
                yield f"trailers {event.stream_id}{text(event.headers)}"
            elif isinstance(event, DataReceived):
                yield f"data {event.stream_id} {event.data.hex()}"
                if event.flow_controlled_length:
                    self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                self.received.add(event.stream_id)
                yield f"end {event.stream_id}"

    def answer(self, stream):
        self.connection.send_headers(stream, [(":status", "200")], end_stream=True)
        if stream not in self.received:
            self.connection.reset_stream(stream, NO_ERROR)

    def step(self, kind, data):
        if not self.has_failed:
            try:
                if kind == FEED:
                    yield from self.feed(data)
                else:
                    self.answer(struct.unpack("<I", data)[0])
            except ProtocolError:
                # What it says of it is in its output. A stream that cannot be answered is no error of the client.
                pass
        yield from self.sent()
        yield "step"

    def sent(self):
        data = self.connection.data_to_send()
        at = 0
        while at < len(data):
            high, low, kind, flags, stream = struct.unpack_from(">BHBBI", data, at)
            payload = data[at + 9 : at + 9 + (high << 16 | low)]
            at += 9 + len(payload)
            if kind == RST_STREAM:
                yield f"reset {stream} {struct.unpack('>I', payload)[0]}"
            elif kind == GOAWAY:
                yield f"goaway {struct.unpack_from('>I', payload, 4)[0]}"
                self.has_failed = True
            elif kind == PING and flags & ACK:
                yield f"pong {payload.hex()}"
            elif kind == SETTINGS and flags & ACK:
                yield "ack"


def main():
    data, at, lines = sys.stdin.buffer.read(), 0, []
    while at < len(data):
        (steps,) = struct.unpack_from("<I", data, at)
        at += 4
        case = Case()
        for _ in range(steps):
            kind, length = struct.unpack_from("<BI", data, at)
            lines.extend(case.step(kind, data[at + 5 : at + 5 + length]))
            at += 5 + length
        lines.append("case")
    sys.stdout.write("\n".join(lines) + "\n")


main()

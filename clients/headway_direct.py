"""Programs that answer requests of `headway serve` and stay.

A program of a location with ``direct = ["program"]`` is started once and answers one request after the other. With each
it is given the client's socket; it writes the whole response there and then says that it is done. With ``research.pipe`` of
`headway-lab serve` the same program sends its responses back. The protocol is in docs/research/src/direct-protocol.md.
Needs Python 3.9 and nothing else.

    import headway_direct

    for request in headway_direct.requests():
        name = request.variables.get("QUERY_STRING", "")
        request.response(200, [("Content-Type", "text/plain")], b"Hello, " + name.encode())

A request that is left without a response, or by an exception, is answered 500 if nothing of it has been written yet, and else
cut off.
"""

import os
import select
import socket
import struct
import sys
import traceback
from email.utils import formatdate
from http import HTTPStatus

VERSION = 1
MESSAGE_BYTES_MAX = 128 * 1024
KEEP, HEAD_ONLY, OLD, FILE, BACK = 1, 2, 4, 8, 16
REQUEST = struct.Struct("<BBHIQI")
DONE = struct.Struct("<BBHIHQ")
OUTPUT = struct.Struct("<BBI")
#: What is sent back in one message.
OUTPUT_BYTES_MAX = 64 * 1024 - OUTPUT.size


class Request:
    """One request. Its response is written with `response`, or with `begin`, `write` and the end of the loop body."""

    def __init__(self, message, descriptors, server):
        version, kind, flags, self._id, self.body_bytes, length = REQUEST.unpack_from(message)
        if (version, kind) != (VERSION, 1):
            raise ValueError("not a request of version 1")
        self._server = server
        #: The client's socket, unless the response is to be sent back.
        self._client = None if flags & BACK else socket.socket(fileno=descriptors[0])
        self._file = descriptors[-1] if flags & FILE else None
        self._body = memoryview(message)[REQUEST.size + length:]
        self._keep = bool(flags & KEEP)
        self._old = bool(flags & OLD)
        self.head_only = bool(flags & HEAD_ONLY)
        pairs = bytes(message[REQUEST.size:REQUEST.size + length]).split(b"\0")
        decoded = (pair.decode("utf-8", "surrogateescape").partition("=") for pair in pairs if pair)
        #: What CGI programs find in their environment.
        self.variables = {name: value for name, _, value in decoded}
        self._status = 0
        self._written = 0
        self._left = None
        self._chunked = False
        self._failed = False

    def read(self, count=-1):
        """The next bytes of the body, at most `count`; all that are left without it."""
        if self._file is None:
            count = len(self._body) if count < 0 else count
            part, self._body = bytes(self._body[:count]), self._body[count:]
            return part
        if count >= 0:
            return os.read(self._file, count)
        parts = iter(lambda: os.read(self._file, 1 << 16), b"")
        return b"".join(parts)

    def response(self, status, fields=(), body=b""):
        """Writes a whole response."""
        self.begin(status, fields, len(body))
        self.write(body)

    def begin(self, status, fields=(), length=None):
        """Writes the head of a response. Without a length the body goes out in chunks, or ends with the connection."""
        if self._status:
            raise RuntimeError("the response has begun already")
        bodiless = status in (204, 304)
        back = self._client is None
        self._chunked = length is None and not self._old and not bodiless and not back
        self._left = length
        if length is None and self._old and not bodiless:
            self._keep = False
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = ""
        if back:
            # The server writes what is about the connection.
            lines = [f"Status: {status} {phrase}"]
        else:
            lines = [f"HTTP/1.1 {status} {phrase}", f"Date: {formatdate(usegmt=True)}"]
        lines += [f"{name}: {value}" for name, value in fields]
        if any("\r" in line or "\n" in line or "\0" in line for line in lines):
            raise ValueError("a field holds a line end")
        if length is not None and not bodiless:
            lines.append(f"Content-Length: {length}")
        if self._chunked:
            lines.append("Transfer-Encoding: chunked")
        if not self._keep:
            lines.append("Connection: close")
        elif self._old:
            lines.append("Connection: keep-alive")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        # Until here nothing has been said, and something else still can be.
        self._status = status
        if bodiless:
            self._left, self._chunked = 0, False
        self._send(head)

    def write(self, body):
        """Writes the next bytes of the body."""
        if not self._status:
            raise RuntimeError("the response has no head yet")
        if self._left is not None:
            if len(body) > self._left:
                raise ValueError("more than the promised length")
            self._left -= len(body)
        if self.head_only or not body:
            return
        self._written += len(body)
        self._send(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)

    def _send(self, data):
        if self._client is None:
            for at in range(0, len(data), OUTPUT_BYTES_MAX):
                part = data[at:at + OUTPUT_BYTES_MAX]
                self._server.send(OUTPUT.pack(VERSION, 131, self._id) + part)
            return
        # The socket does not wait, and must not be made to: it is the server's, too.
        view = memoryview(data)
        while view:
            try:
                view = view[self._client.send(view, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL):]
            except (BlockingIOError, InterruptedError):
                poll = select.poll()
                poll.register(self._client, select.POLLOUT)
                poll.poll()

    def _finish(self):
        """Ends the response and returns the notice for the server."""
        try:
            if not self._status:
                self._failed = False
                self.response(500, [("Content-Type", "text/plain")], b"The program gave no response.\n")
            # Without the last chunk, clients see that the response is incomplete.
            if self._chunked and not self.head_only and not self._failed:
                self._send(b"0\r\n\r\n")
            complete = not self._left or self.head_only
        except OSError:
            # The client has gone.
            complete = False
        keep = KEEP if self._keep and complete and not self._failed else 0
        return DONE.pack(VERSION, 130, keep, self._id, self._status or 500, self._written)

    def _close(self):
        if self._client is not None:
            self._client.close()
        if self._file is not None:
            os.close(self._file)


def requests(descriptor=0):
    """Yields the server's requests, one at a time, until the server closes. Asking for the next one ends the last."""
    server = socket.socket(fileno=os.dup(descriptor))
    with server:
        server.send(bytes([VERSION, 129]))
        while True:
            message, descriptors, _, _ = socket.recv_fds(server, MESSAGE_BYTES_MAX, 2)
            if not message:
                return
            request = Request(message, descriptors, server)
            try:
                yield request
            except BaseException:
                request._failed = True
                raise
            finally:
                done = request._finish()
                request._close()
                try:
                    server.send(done)
                except BrokenPipeError:
                    pass


def serve(answer):
    """Has `answer` called with each request; an exception is reported on standard error and answered 500."""
    for request in requests():
        try:
            answer(request)
        except OSError as error:
            request._failed = True
            print(f"{request.variables.get('REQUEST_URI')}: {error}", file=sys.stderr, flush=True)
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            request._failed = True

"""Gets a file on two connections, of which the second resumes the session: VERSION PORT CERTIFICATE."""
import socket
import ssl
import sys

version, port, certificate = sys.argv[1:]
context = ssl.create_default_context(cafile=certificate)
context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
session = None
for is_second in (False, True):
    with socket.create_connection(("localhost", int(port))) as raw:
        with context.wrap_socket(raw, server_hostname="localhost", session=session) as stream:
            stream.sendall(b"GET /file.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            response = b"".join(iter(lambda: stream.recv(4096), b""))
            assert stream.session_reused == is_second
            session = stream.session
    print(response.decode(), end="")

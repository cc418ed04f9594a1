"""The client of bench/memory for HTTPS and HTTP/2: opens connections, asks one request on each, and holds them.

    memory.py PROTOCOL PORT PATH COUNT      PROTOCOL is https, h2 (over TLS) or h2c

It says "ready COUNT" when all are open, and ends with its standard input. A connection that the server closes
meanwhile is an error, since the figure would be about fewer connections. Certificates are not verified.
"""
import resource, select, socket, ssl, struct, sys

# One source has some 28,000 ports.
SOURCES = 16
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, GOAWAY = 0, 1, 4, 7
END_STREAM, ACK, PADDED, PRIORITY = 1, 1, 8, 32


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def receive(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            sys.exit("the server closed the connection")
        data += part
    return data


def ask_http1(connection, path):
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += receive(connection, 1)
    head = answer.decode().lower()
    if not head.startswith("http/1.1 200"):
        sys.exit(f"not a 200: {head}")
    receive(connection, int(head.split("content-length:")[1].split()[0]))


def ask_http2(connection, path, scheme):
    # Indexed GET and scheme, and literals with the indexed names :path and :authority (RFC 7541, appendix A).
    text = lambda name, value: bytes((name, len(value))) + value.encode()
    block = b"\x82" + (b"\x87" if scheme == "https" else b"\x86") + text(4, path) + text(1, "localhost")
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 5, 1, block))
    has_ended, is_acknowledged = False, False
    while not (has_ended and is_acknowledged):
        length, kind, flags, stream = struct.unpack(">IBBI", b"\0" + receive(connection, 9))
        payload = receive(connection, length)
        if kind == SETTINGS and not flags & ACK:
            connection.sendall(frame(SETTINGS, ACK, 0))
            is_acknowledged = True
        if kind == HEADERS:
            block = payload.lstrip(bytes(range(0x20, 0x40)))  # without changes of the table's size
            if flags & (PADDED | PRIORITY) or block[:1] != b"\x88":
                sys.exit(f"not a 200: {block[:40]}")
        if kind == GOAWAY:
            sys.exit(f"GOAWAY: {payload}")
        has_ended = has_ended or (stream == 1 and kind in (DATA, HEADERS) and bool(flags & END_STREAM))


def connect(number, protocol, port, path, context):
    connection = socket.create_connection(("127.0.0.1", port), 30, (f"127.0.0.{2 + number % SOURCES}", 0))
    if context:
        connection = context.wrap_socket(connection, server_hostname="localhost")
        if protocol == "h2" and connection.selected_alpn_protocol() != "h2":
            sys.exit("the server does not speak HTTP/2")
    if protocol == "https":
        ask_http1(connection, path)
    else:
        ask_http2(connection, path, "https" if protocol == "h2" else "http")
    return connection


def ensure_open(connections):
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLRDHUP)
    if ended := poll.poll(0):
        sys.exit(f"the server closed {len(ended)} connections while they were idle")


def main():
    protocol, port, path, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = None
    if protocol != "h2c":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2" if protocol == "h2" else "http/1.1"])
    connections = [connect(number, protocol, port, path, context) for number in range(count)]
    ensure_open(connections)
    print(f"ready {count}", flush=True)
    sys.stdin.read()
    ensure_open(connections)


main()

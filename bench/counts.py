#!/usr/bin/env python3
"""The client of bench/counts: sends requests, counts what it reads, and compares that with the server's numbers.

  counts.py PORT STATUS_PORT REQUESTS ACCESS_LOG

It prints a table in Markdown. The exit code is 1 if any number differs.
"""
import collections
import json
import multiprocessing
import re
import socket
import sys
import time
import urllib.request

# Method, host, path, and the labels under which the server has to count the request: host, handler.
KINDS = [
    ("GET", "a.example", "/file.txt", "a.example", "files"),
    ("GET", "a.example", "/large.bin", "a.example", "files"),
    ("HEAD", "a.example", "/file.txt", "a.example", "files"),
    ("GET", "a.example", "/missing", "a.example", "files"),
    ("GET", "b.example", "/file.txt", "b.example", "files"),
    ("GET", "b.example", "/old/x", "b.example", "redirect"),
    ("POST", "b.example", "/file.txt", "b.example", "files"),
    ("GET", "other", "/file.txt", "default", "files"),
    ("GET", "other", "/app/x", "default", "proxy"),
    ("GET", "other", "/a b", "default", None),
]
# Requests that are sent together.
PIPELINE = 32
CLIENTS = 4


def receive(stream, method):
    """The status of the next response, and whether the connection stays open."""
    line = stream.readline()
    if not line:
        return None, False
    status, length, stays = int(line.split()[1]), 0, True
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        elif name.lower() == b"connection" and b"close" in value:
            stays = False
    if method != "HEAD":
        stream.read(length)
    return status, stays


def client(port, number, requests, results):
    """Sends this many requests, of each kind in turn, and counts the responses."""
    counts = collections.Counter()
    sent = 0
    connection = stream = None
    turn = number
    while sent < requests:
        kind = KINDS[turn % len(KINDS)]
        turn += 1
        method, host, path, _, _ = kind
        count = min(PIPELINE, requests - sent)
        request = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode()
        left = count
        while left:
            if connection is None:
                connection = socket.create_connection(("127.0.0.1", port), 60)
                stream = connection.makefile("rb", 1 << 16)
            # After an error the server may close the connection: then one request at a time.
            batch = left if path in ("/file.txt", "/large.bin", "/missing", "/old/x") and method != "POST" else 1
            connection.sendall(request * batch)
            for _ in range(batch):
                status, stays = receive(stream, method)
                if status is None:
                    raise SystemExit("a connection ended without a response")
                counts[kind, status] += 1
                left -= 1
                if not stays:
                    connection.close()
                    connection = None
                    break
        sent += count
    results.put(counts)


def metrics(port):
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    return text, urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=10).read().decode()


def samples(text, family, labels):
    found = collections.Counter()
    for match in re.finditer(rf"^{family}\{{(.*)\}} (\d+)$", text, re.MULTILINE):
        values = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
        found[tuple(values[label] for label in labels)] += int(match[2])
    return found


def main():
    port, status_port, requests, log = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    # Workers report once a second, and send log lines a little later: those of the request that waited for the server.
    time.sleep(3)
    before, _ = metrics(status_port)
    of_before = [
        samples(before, "headway_http_requests_total", ("code", "method")),
        samples(before, "headway_http_request_duration_seconds_count", ("host", "handler", "class")),
    ]
    before_lines = collections.Counter(open(log).read().splitlines())
    begun = time.monotonic()
    results = multiprocessing.Queue()
    clients = []
    for number in range(CLIENTS):
        share = requests // CLIENTS + (number < requests % CLIENTS)
        one = multiprocessing.Process(target=client, args=(port, number * 3, share, results))
        one.start()
        clients.append(one)
    counted = sum((results.get() for _ in clients), collections.Counter())
    for one in clients:
        one.join()
    seconds = time.monotonic() - begun
    time.sleep(3)
    after, page = metrics(status_port)

    by_status, by_handler, lines = collections.Counter(), collections.Counter(), collections.Counter()
    for ((method, host, _, name, handler), status), count in counted.items():
        by_status[str(status), method] += count
        by_handler[name, handler or "none", f"{status // 100}xx"] += count
        # What is no request names no host.
        lines[f"{host} {method} {status}" if handler else f"- - {status}"] += count
    found_status = samples(after, "headway_http_requests_total", ("code", "method")) - of_before[0]
    found_handler = samples(after, "headway_http_request_duration_seconds_count", ("host", "handler", "class"))
    found_handler -= of_before[1]
    found_lines = collections.Counter(open(log).read().splitlines()) - before_lines

    total = sum(counted.values())
    print(f"{total:,} requests in {seconds:.0f} s by {CLIENTS} client processes.\n")
    failed = total != requests
    for title, expected, found in [
        ("status and method", by_status, found_status),
        ("host, handler and class", by_handler, found_handler),
        ("line of the access log", lines, found_lines),
    ]:
        print(f"| {title} | client | server | difference |\n|---|--:|--:|--:|")
        for key in sorted(set(expected) | set(found), key=str):
            shown = key if isinstance(key, str) else " ".join(key)
            difference = found[key] - expected[key]
            failed |= difference != 0
            print(f"| {shown} | {expected[key]:,} | {found[key]:,} | {difference} |")
        print()
    of_page = json.loads(page)["total"]["counters"]["http_requests"]
    shown = sum(count for methods in of_page.values() for count in methods.values())
    expected = sum(samples(after, "headway_http_requests_total", ("code",)).values())
    print(f"The status page has {shown:,} requests, the metrics have {expected:,}.\n")
    failed |= shown != expected
    print("All numbers agree." if not failed else "Numbers differ.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

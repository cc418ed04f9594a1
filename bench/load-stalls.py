"""A server with planned stalls that knows what its clients had to wait, and the judge of bench/load-stalls.

    load-stalls.py serve PORT PATTERN LOG       serves until it gets SIGTERM
    load-stalls.py judge RATE SECONDS TIMEOUT FOLDER SUMMARY

Times are seconds since the first request was read. The path of request k is /k, and its intended start is k/RATE. So its
true latency is when its response was sent, minus k/RATE. A client gives up at TIMEOUT, which then is what it waited.
"""
import json
import math
import selectors
import signal
import socket
import sys
import time
from pathlib import Path

# What a pattern does: when it stalls (from, until), whether half of a response leaves at once, and the delay of one
# request in fifty. No stall touches the end of the run, where requests under way have no latency.
EVERY_5_S = [(at, at + 1) for at in (2.5, 7.5, 12.5, 17.5)]
PATTERNS = {
    "1 s in 5": {"stalls": EVERY_5_S},
    "0.5 s in 2": {"stalls": [(at / 2, at / 2 + 0.5) for at in range(2, 36, 4)]},
    "1 s in 5, in mid-response": {"stalls": EVERY_5_S, "half": True},
    "1 request in 50 takes 1 s": {"stalls": [], "slow_until": 18},
    "4 s, longer than the timeout": {"stalls": [(8, 12)]},
}
LIMITS = (1, 8, 64, 512)
PERCENTILES = (50, 90, 99)
BODY = b"x" * 1000
RESPONSE = b"HTTP/1.1 200 OK\r\nServer: stalls\r\nContent-Length: 1000\r\n\r\n" + BODY


class Server:
    def __init__(self, port, pattern):
        self.stalls = pattern["stalls"]
        self.half, self.slow_until = pattern.get("half", False), pattern.get("slow_until", 0)
        self.listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.listener.setblocking(False)
        self.ready = selectors.DefaultSelector()
        self.ready.register(self.listener, selectors.EVENT_READ)
        self.first = None
        # When each request was answered, by its number.
        self.answered = {}
        # What is to be sent: when, which connection, which request, which bytes.
        self.due = []
        self.stopped = False

    def now(self):
        return time.monotonic() - self.first if self.first else 0.0

    def stall_end(self, now):
        return next((end for begin, end in self.stalls if begin <= now < end), None)

    def run(self):
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopped", True))
        while not self.stopped:
            end = self.stall_end(self.now())
            if end and not self.half:
                time.sleep(end - self.now())
            wait = min((when for when, *_ in self.due), default=self.now() + 0.05) - self.now()
            for key, _ in self.ready.select(max(0, min(wait, 0.05))):
                if key.fileobj is self.listener:
                    client, _ = self.listener.accept()
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.ready.register(client, selectors.EVENT_READ)
                else:
                    self.read(key.fileobj)
            self.send_due()

    def read(self, client):
        try:
            request = client.recv(4096)
        except ConnectionError:
            request = b""
        if not request:
            self.ready.unregister(client)
            client.close()
            return
        self.first = self.first or time.monotonic()
        number, now = int(request.split()[1][1:]), self.now()
        end = self.stall_end(now)
        if end:
            self.send(client, RESPONSE[:-500])
            self.due.append((end, client, number, RESPONSE[-500:]))
        elif now < self.slow_until and number % 50 == 25:
            self.due.append((now + 1, client, number, RESPONSE))
        else:
            self.answer(client, number, RESPONSE)

    def send_due(self):
        now = self.now()
        for when, client, number, rest in [one for one in self.due if one[0] <= now]:
            self.answer(client, number, rest)
        self.due = [one for one in self.due if one[0] > now]

    def answer(self, client, number, rest):
        if self.send(client, rest):
            self.answered[number] = self.now()

    @staticmethod
    def send(client, data):
        try:
            client.sendall(data)
            return True
        except OSError:
            # The client has given up.
            return False


def percentile(ordered, percent):
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def judge(rate, seconds, timeout, folder, summary):
    planned = rate * seconds
    rows = []
    for pattern_number, pattern in enumerate(PATTERNS):
        for limit in LIMITS:
            place = folder / f"{pattern_number}-{limit}"
            load = json.loads(place.with_suffix(".json").read_text())
            answered = json.loads(place.with_suffix(".truth").read_text())
            never = math.inf
            waits = [max(0, answered.get(str(number), never) - number / rate) for number in range(planned)]
            latencies = sorted(min(wait, timeout) for wait in waits)
            timed_out = sum(wait > timeout for wait in waits)
            response = load["analysis"]["response"]
            measured = [response[f"p{percent}_us"] for percent in PERCENTILES]
            withheld = all(one is None for one in measured)
            true_ms = [percentile(latencies, percent) * 1000 for percent in PERCENTILES]
            if withheld:
                # Then the run has to be invalid; nothing else of it can be wrong.
                right, outcome = load["client"]["verdict"] == "invalid", "withheld"
            else:
                apart = [ours / 1000 - true for ours, true in zip(measured, true_ms)]
                right = all(abs(one) <= max(10, true / 100) for one, true in zip(apart, true_ms))
                outcome = "right"
            rows.append({
                "pattern": pattern, "connections": limit, "requests": load["analysis"]["counts"]["requests"],
                "timed_out": timed_out, "errors": load["summary"]["errors"], "true_ms": [round(one, 1) for one in true_ms],
                "measured_ms": None if withheld else [round(one / 1000, 1) for one in measured],
                "verdict": load["client"]["verdict"], "outcome": outcome if right else "WRONG",
            })
    summary.write_text(json.dumps({"rate": rate, "seconds": seconds, "timeout_s": timeout, "runs": rows}, indent=1) + "\n")
    print("| stall | connections | requests | timed out | errors reported | true p50, p90, p99, ms | reported, ms | verdict | outcome |")
    print("|---|--:|--:|--:|--:|--:|--:|---|---|")
    for row in rows:
        numbers = ["; ".join(f"{one:,.1f}" for one in row[which] or []) or "–" for which in ("true_ms", "measured_ms")]
        print(f"| {row['pattern']} | {row['connections']} | {row['requests']:,} | {row['timed_out']:,} | {row['errors']:,} | "
              f"{' | '.join(numbers)} | {row['verdict']} | {row['outcome']} |")
    print(f"\n{sum(row['outcome'] != 'WRONG' for row in rows)} of {len(rows)} right or rightly withheld.")


if sys.argv[1] == "serve":
    server = Server(int(sys.argv[2]), list(PATTERNS.values())[int(sys.argv[3])])
    server.run()
    Path(sys.argv[4]).write_text(json.dumps(server.answered))
else:
    judge(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]), Path(sys.argv[6]))

"""The clients of bench/attacks: what attacks a server, its victim, and the figures of both.

    hold KIND PORT PATH COUNT       keeps COUNT hostile connections open; says "ready", ends with its standard input
    victim PORT PATHS RATE SECONDS [hold]    one request per connection at a fixed rate, as JSON
    flood PORT COUNT RATE           requests COUNT paths which do not exist, RATE per second, pipelined, as JSON
    fetch PORT PATHS                requests each path once, over one connection
    heads PID PORT PATH PROXIED COUNT        CPU time per request by kind of request header, as JSON
    memory PID [DIRECTORY]          memory and CPU time of a process and its descendants, and what their open files in
                                    DIRECTORY occupy, as JSON
    report FOLDER OUTPUT            Markdown of all result files of FOLDER, and OUTPUT/summary.json
"""
import collections, errno, gc, glob, heapq, json, os, re, select, socket, statistics, sys, time

ADDRESS = "127.0.0.1"
# Rates of the slow clients: a byte every five seconds up, a thousand bytes per second down.
UPLOAD_PAUSE_S = 5
READ_BYTES = 1000
# What an unfinished upload has sent.
CHUNKED_BYTES = 250_000
# When a victim gives up.
TIMEOUT_S = 10


def request(method, path, *fields):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: victim.example", *fields, "", ""]).encode()


class Hostile:
    """One hostile connection: what it sends at once, and what it does after each pause."""

    def __init__(self, kind, port, path):
        self.socket = socket.socket()
        if kind == "read":
            # Otherwise the kernel takes megabytes in the place of the client.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(2)
        self.socket.connect((ADDRESS, port))
        self.socket.setblocking(False)
        self.pause, self.drip = 1, b""
        self.unsent = request("GET", path)
        if kind == "upload":
            self.pause, self.drip = UPLOAD_PAUSE_S, b"x"
            self.unsent = request("POST", path, "Content-Length: 100000")
        if kind == "chunked":
            chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
            self.unsent = request("POST", path, "Transfer-Encoding: chunked") + chunk * (CHUNKED_BYTES // 10_000)

    def send(self):
        while self.unsent:
            try:
                self.unsent = self.unsent[self.socket.send(self.unsent):]
            except BlockingIOError:
                return


def hold(kind, port, path, count):
    """Keeps the connections as they are. One that the server closes comes back, except an idle one."""
    poll, open_now, due = select.epoll(), {}, []
    ended = missing = 0
    poll.register(0, select.EPOLLIN)

    def begin():
        nonlocal missing
        try:
            new = Hostile(kind, port, path)
        except OSError:
            missing += 1
            return
        open_now[new.socket.fileno()] = new
        # Readability of a slow reader says nothing new; that of the others is a response or the end.
        poll.register(new.socket, select.EPOLLOUT | (select.EPOLLRDHUP if kind == "read" else select.EPOLLIN))
        heapq.heappush(due, (time.monotonic() + new.pause, new.socket.fileno(), id(new)))

    def end(fd):
        nonlocal ended, missing
        ended += 1
        open_now.pop(fd).socket.close()
        missing += kind != "idle"

    for _ in range(count):
        begin()
    started, said = time.monotonic(), False
    while True:
        for fd, events in poll.poll(0.05):
            if fd == 0:
                print(json.dumps({"ended": ended, "open": len(open_now)}))
                return
            one = open_now.get(fd)
            if one is None:
                continue
            try:
                one.send()
                if not one.unsent:
                    poll.modify(fd, select.EPOLLRDHUP if kind == "read" else select.EPOLLIN)
                if events & (select.EPOLLHUP | select.EPOLLERR) or events & select.EPOLLRDHUP and kind == "read":
                    end(fd)
                elif events & select.EPOLLIN and not one.socket.recv(65536):
                    end(fd)
            except BlockingIOError:
                pass
            except OSError:
                end(fd)
        now = time.monotonic()
        while due and due[0][0] < now:
            _, fd, who = heapq.heappop(due)
            one = open_now.get(fd)
            if one is None or id(one) != who:
                continue
            heapq.heappush(due, (now + one.pause, fd, who))
            try:
                if kind == "read":
                    one.socket.recv(READ_BYTES)
                elif one.drip and not one.unsent:
                    one.socket.send(one.drip)
            except BlockingIOError:
                pass
            except OSError:
                end(fd)
        if missing and now - started > 1:
            again, missing = min(missing, 50), missing - min(missing, 50)
            for _ in range(again):
                begin()
        if not said and (now - started > 1):
            said = True
            print("ready", flush=True)


class Answer:
    """A response as it arrives, up to its promised end."""

    def __init__(self):
        self.data, self.length, self.status = b"", None, 0

    def take(self, data):
        """Whether the response is complete."""
        self.data += data
        if self.length is None and b"\r\n\r\n" in self.data:
            head, body = self.data.split(b"\r\n\r\n", 1)
            self.status = int(head.split(b" ", 2)[1])
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            self.length = len(head) + 4 + int(length[1]) if length else -1
        if self.length == -1:
            return self.data.endswith(b"0\r\n\r\n")
        return self.length is not None and len(self.data) >= self.length


def victim(port, paths, rate, seconds, keep):
    """Requests start by the clock, whatever becomes of earlier ones."""
    gc.disable()
    poll, waiting, kept = select.epoll(), {}, []
    latencies, failures = [], collections.Counter()
    begin = time.monotonic()
    count, next_one, late = int(rate * seconds), 0, 0

    def fail(fd, why):
        failures[why] += 1
        waiting.pop(fd)[0].close()

    while next_one < count or waiting:
        now = time.monotonic()
        while next_one < count and begin + next_one / rate <= now:
            late = max(late, now - begin - next_one / rate)
            new = socket.socket()
            new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            new.setblocking(False)
            start = time.monotonic()
            new.connect_ex((ADDRESS, port))
            poll.register(new, select.EPOLLOUT)
            path = paths[next_one * 7919 % len(paths)]
            waiting[new.fileno()] = (new, start, Answer(), request("GET", path, *([] if keep else ["Connection: close"])))
            next_one += 1
        for fd in [fd for fd, one in waiting.items() if now - one[1] > TIMEOUT_S]:
            fail(fd, "timeout")
        until = begin + next_one / rate - time.monotonic() if next_one < count else 0.1
        for fd, events in poll.poll(max(0, until)):
            if fd not in waiting:
                continue
            one, start, answer, text = waiting[fd]
            try:
                if events & select.EPOLLOUT:
                    one.send(text)
                    poll.modify(fd, select.EPOLLIN)
                    continue
                data = one.recv(1 << 20)
            except OSError as error:
                fail(fd, errno.errorcode.get(error.errno, "error"))
                continue
            if not data:
                fail(fd, "closed early")
            elif answer.take(data):
                if answer.status != 200:
                    fail(fd, str(answer.status))
                    continue
                latencies.append((time.monotonic() - start) * 1e3)
                del waiting[fd]
                if keep:
                    # Its close would make room for the next one.
                    poll.unregister(fd)
                    kept.append(one)
                else:
                    one.close()
    latencies.sort()
    at = lambda share: round(latencies[min(len(latencies) - 1, int(len(latencies) * share))], 3) if latencies else None
    print(json.dumps({"requests": count, "failed": sum(failures.values()), "failures": failures, "p50_ms": at(0.5),
                      "p99_ms": at(0.99), "max_ms": at(1), "client_late_ms": round(late * 1e3, 1)}))


def flood(port, count, rate):
    began, answered, batch = time.monotonic(), 0, 20
    one = None
    while answered < count:
        time.sleep(max(0, began + answered / rate - time.monotonic()))
        if one is None:
            one, tail = socket.create_connection((ADDRESS, port)), b""
        one.sendall(b"".join(request("GET", f"/absent-{answered + i}") for i in range(batch)))
        here = 0
        while here < batch:
            data = one.recv(1 << 20)
            if not data:
                one = None
                break
            data = tail + data
            here += data.count(b"HTTP/1.1 404")
            tail = data[-11:] if not data.endswith(b"HTTP/1.1 404") else b""
        answered += here
    print(json.dumps({"absent": answered, "seconds": round(time.monotonic() - began, 2)}))


def fetch_one(one, text):
    one.sendall(text)
    answer = Answer()
    while True:
        data = one.recv(1 << 20)
        if not data:
            return answer.status, False
        if answer.take(data):
            return answer.status, b"onnection: close" not in answer.data.split(b"\r\n\r\n")[0]


def fetch(port, paths):
    one = socket.create_connection((ADDRESS, port))
    for path in paths:
        status, goes_on = fetch_one(one, request("GET", path))
        assert status == 200, (path, status)
        if not goes_on:
            one = socket.create_connection((ADDRESS, port))


def tree(pid):
    found = [pid]
    for one in found:
        for children in glob.glob(f"/proc/{one}/task/*/children"):
            found += [int(word) for word in open(children).read().split()]
    return found


def cpu_ns(pid):
    total = 0
    for one in tree(pid):
        for stat in glob.glob(f"/proc/{one}/task/*/schedstat"):
            total += int(open(stat).read().split()[0])
    return total


def full(name, item, separator=",", size=14_400):
    """A header line of nearly the largest size."""
    return f"{name}: " + separator.join([item] * (size // len(item + separator)))


HEADS = {
    "plain": [],
    "plain, closing": ["Connection: close"],
    "Connection": [full("Connection", "a")],
    "Accept-Encoding": [full("Accept-Encoding", "a;q=0.1")],
    "Range": ["Range: bytes=" + ",".join(["0-"] * 4800)],
    "If-None-Match": [full("If-None-Match", '"a"')],
    "Cookie": [full("Cookie", "a=b", "; ")],
    "plain, proxied": [],
    "X-Forwarded-For, proxied": [full("X-Forwarded-For", "192.0.2.1")],
}


def heads(pid, port, path, proxied, count):
    results = {}
    for kind, fields in HEADS.items():
        text = request("GET", proxied if "proxied" in kind else path, *fields)
        one, statuses = socket.create_connection((ADDRESS, port)), collections.Counter()
        for measured in (False, True):
            before = cpu_ns(pid)
            for _ in range(count if measured else count // 10):
                status, goes_on = fetch_one(one, text)
                statuses[status] += 1
                if not goes_on:
                    one.close()
                    one = socket.create_connection((ADDRESS, port))
            used = cpu_ns(pid) - before
        one.close()
        results[kind] = {"us": round(used / count / 1e3, 2), "status": "/".join(map(str, sorted(statuses)))}
    print(json.dumps(results))


def memory(pid, directory=None):
    pss = disk = 0
    seen = set()
    for one in tree(pid):
        try:
            pss += int(re.search(r"\nPss: +(\d+)", open(f"/proc/{one}/smaps_rollup").read())[1])
            for fd in glob.glob(f"/proc/{one}/fd/*") if directory else []:
                name, stat = os.readlink(fd), os.stat(fd)
                if name.startswith(directory) and (stat.st_dev, stat.st_ino) not in seen:
                    seen.add((stat.st_dev, stat.st_ino))
                    disk += stat.st_blocks * 512
        except OSError:
            continue
    print(json.dumps({"pss_mb": round(pss / 1024, 1), "disk_mb": round(disk / 1e6, 1), "cpu_s": cpu_ns(pid) / 1e9}))


def figure(value):
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def report(folder, output):
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    for name in sorted(glob.glob(f"{folder}/*.json")):
        attack, server, _ = os.path.basename(name)[:-5].rsplit("+", 2)
        runs[attack][server].append(json.load(open(name)))
    summary = {}

    def middle(group, *keys):
        values = []
        for run in group:
            for key in keys:
                run = (run or {}).get(key)
            if run is not None:
                values.append(run)
        return statistics.median(values) if values else None

    print("| attack | server | p50 ms | p99 ms | failed | p99 at its onset, ms | failed | p99 calm, ms "
          "| memory before, MB | during, MB | disk, MB |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for attack, servers in runs.items():
        if attack in ("heads", "paths"):
            continue
        for server, group in servers.items():
            failures = lambda phase: "{:,} of {:,}".format(*(
                sum(run[phase][key] for run in group if run.get(phase)) for key in ("failed", "requests")))
            row = {key: middle(group, *path) for key, path in {
                "p50_ms": ("victim", "p50_ms"), "p99_ms": ("victim", "p99_ms"), "onset_p99_ms": ("onset", "p99_ms"), "calm_p99_ms": ("calm", "p99_ms"),
                "before_mb": ("before", "pss_mb"), "during_mb": ("during", "pss_mb"), "disk_mb": ("during", "disk_mb"),
                "flood_s": ("flood", "seconds"), "opened_again": ("opened_again",)}.items()}
            row |= {"failed": failures("victim"), "onset_failed": failures("onset"),
                    "p99_ms_each": [run["victim"]["p99_ms"] for run in group]}
            used = [run["during"]["cpu_s"] - run["before"]["cpu_s"] for run in group if "cpu_s" in run.get("during", {})]
            if used:
                row["cpu_s"] = round(statistics.median(used), 2)
            summary.setdefault(attack, {})[server] = row
            cells = [figure(row["p50_ms"]), figure(row["p99_ms"]), row["failed"], figure(row["onset_p99_ms"])]
            cells += [row["onset_failed"] if any(run.get("onset") for run in group) else "–"]
            cells += [figure(row[key]) for key in ("calm_p99_ms", "before_mb", "during_mb", "disk_mb")]
            print(f"| {attack} | {server} | " + " | ".join(cells) + " |")
    if "flood" in runs:
        print("\n| after the flood | the flood took, s | of 2,000 files opened again |\n|---|--:|--:|")
        for server, row in summary["flood"].items():
            print(f"| {server} | {figure(row['flood_s'])} | {figure(row['opened_again'])} |")
    if "heads" in runs:
        servers = runs["heads"]
        print("\n| header of 14.4 kB | " + " | ".join(f"{server}: status | CPU µs | × plain" for server in servers) + " |")
        print("|---|" + "--:|--:|--:|" * len(servers))
        for kind in HEADS:
            cells = []
            for server, group in servers.items():
                used, status = middle(group, kind, "us"), group[0][kind]["status"]
                # A refused request costs its connection as well.
                alike = "plain, proxied" if "proxied" in kind else "plain, closing" if "431" in status else "plain"
                plain = middle(group, alike, "us")
                summary.setdefault("heads", {}).setdefault(server, {})[kind] = used
                cells += [status, figure(used), figure(used / plain)]
            print(f"| {kind} | " + " | ".join(cells) + " |")
    if "paths" in runs:
        servers = runs["paths"]
        print("\n| request | " + " | ".join(f"{server}: the upstream sees" for server in servers) + " |")
        print("|---|" + "---|" * len(servers))
        for path in next(iter(servers.values()))[0]:
            print(f"| `{path}` | " + " | ".join(group[0][path] for group in servers.values()) + " |")
        summary["paths"] = {server: group[0] for server, group in servers.items()}
    json.dump(summary, open(f"{output}/summary.json", "w"), indent=1)


if __name__ == "__main__":
    what, words = sys.argv[1], sys.argv[2:]
    if what == "hold":
        hold(words[0], int(words[1]), words[2], int(words[3]))
    elif what == "victim":
        victim(int(words[0]), open(words[1]).read().split(), float(words[2]), float(words[3]), words[4:] == ["hold"])
    elif what == "flood":
        flood(int(words[0]), int(words[1]), float(words[2]))
    elif what == "fetch":
        fetch(int(words[0]), open(words[1]).read().split())
    elif what == "heads":
        heads(int(words[0]), int(words[1]), words[2], words[3], int(words[4]))
    elif what == "memory":
        memory(int(words[0]), *words[1:])
    elif what == "report":
        report(*words)
    else:
        sys.exit(__doc__)

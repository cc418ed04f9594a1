#!/usr/bin/env python3
"""Counts the functions and files which one request runs, and lists them.

    bench/structure/path.py target/debug/headway [--list]

The request is a GET of a small file whose name and content are cold. The worker and its helper are stepped through
instruction by instruction. What an idle server runs is not counted; what the request runs is, from accept to the last
byte and the close. A function counts once whatever its type parameters are, a closure counts with its function. The
debug build is counted, because nothing is inlined there. Needs root, to make names cold, a C compiler and nm.
"""

import bisect
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIG = """
listen = ["127.0.0.1:0"]
root = "{root}"
workers = 1
helpers = "1-1"
trace = false
send-timeout = "10m"
idle-timeout = "10m"
"""


def symbols(binary):
    """All functions of the binary, by address."""
    lines = subprocess.run(["nm", "-C", "--defined-only", "-n", binary], capture_output=True, text=True).stdout
    fields = (line.split(" ", 2) for line in lines.splitlines())
    return [(int(address, 16), name) for address, kind, name in fields if kind in "tTwW"]


def plain(name):
    """A function's path without hash, type parameters and closures."""
    name = re.sub(r"::h[0-9a-f]{16}$", "", name)
    name = re.sub(r"(::\{\{closure\}\})+", "", name)
    while (shorter := re.sub(r"::<[^<>]*>", "", name)) != name:
        name = shorter
    return name


def children(process):
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [int(child) for child in file.read().split()]


def is_traced(process):
    with open(f"/proc/{process}/status") as file:
        return "TracerPid:\t0\n" not in file.read()


def cold(path):
    """Drops the content and the name from the caches of the kernel."""
    os.sync()
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2\n")


def get(port, path):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(300)
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := client.recv(4096):
            answer += part
    return answer


def run(binary, step, directory, request):
    """The addresses which worker and helper executed in ten seconds, with or without a request."""
    root = os.path.join(directory, "root")
    file = os.path.join(root, "a", "small.txt")
    if not os.path.exists(root):
        os.makedirs(os.path.dirname(file))
        with open(file, "w") as out:
            out.write("hello\n")
    config, ready = (os.path.join(directory, name) for name in ("headway.toml", "ready"))
    with open(config, "w") as out:
        out.write(CONFIG.format(root=root))
    if os.path.exists(ready):
        os.remove(ready)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([binary, "serve", "--config", config, "--ready-file", ready], **quiet)
    steppers, executed = [], set()
    try:
        while not os.path.exists(ready):
            time.sleep(0.1)
        time.sleep(1)
        with open(ready) as text:
            port = int(re.search(r"127\.0\.0\.1:(\d+)", text.read()).group(1))
        processes = children(server.pid)
        for process in processes:
            out = f"{directory}/steps.{process}"
            steppers.append((subprocess.Popen([step, str(process), out]), out))
        while not all(is_traced(process) for process in processes):
            time.sleep(0.1)
        time.sleep(1)
        if request:
            cold(file)
            answer = get(port, "/a/small.txt")
            if not answer.endswith(b"hello\n"):
                sys.exit(f"unexpected answer: {answer!r}")
        time.sleep(10)
        for stepper, out in steppers:
            stepper.terminate()
            stepper.wait()
            with open(out) as offsets:
                executed |= {int(offset) for offset in offsets}
    finally:
        server.kill()
        server.wait()
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
    return executed


def functions(table, executed):
    """The functions of this repository among these addresses, with the address of each."""
    starts = [address for address, _ in table]
    found = {}
    for offset in executed:
        at = bisect.bisect_right(starts, offset) - 1
        address, name = table[at]
        if "headway_" in name and "drop_in_place" not in name:
            found.setdefault(plain(name), address)
    return found


def crate_of(file):
    return file.split("/")[1]


def main():
    binary = os.path.abspath(sys.argv[1])
    table = symbols(binary)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        step = os.path.join(directory, "step")
        subprocess.run(["cc", "-O2", "-o", step, os.path.join(HERE, "step.c")], check=True)
        idle = functions(table, run(binary, step, directory, request=False))
        busy = functions(table, run(binary, step, directory, request=True))
    own = {name: address for name, address in busy.items() if name not in idle}
    text = "\n".join(hex(address) for address in own.values())
    lines = subprocess.run(["addr2line", "-e", binary], input=text, capture_output=True, text=True).stdout
    places = (re.search(r"((?:crates|lab)/.*\.rs)", line) for line in lines.splitlines())
    found = sorted((place.group(1), name) for name, place in zip(own, places) if place)
    if "--list" in sys.argv:
        for file, name in found:
            print(f"{file}\t{name}")
    print("| crate | files | functions | of these implementations of core's traits |\n|---|--:|--:|--:|")
    for crate in sorted({crate_of(file) for file, _ in found}):
        rows = [(file, name) for file, name in found if crate_of(file) == crate]
        derived = sum(" as core::" in name or " as alloc::" in name for _, name in rows)
        print(f"| {crate} | {len({file for file, _ in rows})} | {len(rows)} | {derived} |")
    print(f"{len({file for file, _ in found})} files, {len(found)} functions")


main()

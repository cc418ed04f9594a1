"""An asyncio server which serves the metrics of its own event loop. Argument: a port, 8000 if it is absent.

    HEADWAY_LIBDEBOX=/usr/local/lib/libdebox.so python3 asyncio_server.py
    curl -s http://127.0.0.1:8000/slow
    curl -s http://127.0.0.1:8000/metrics | grep loop_blocked

The handler of /slow calls time.sleep, which blocks the loop.
"""
import asyncio
import sys
import time

import headway_debox

# Longer than the period of the lag's timer, so that the timer is late.
SLEEP_S = 0.2


async def main():
    watch = headway_debox.watch_loop()

    async def answer(reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        path = request.split(b" ")[1]
        body = "hello\n"
        if path == b"/metrics":
            body = watch.metrics()
        elif path == b"/slow":
            time.sleep(SLEEP_S)
            body = "slept\n"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}/", flush=True)
    await server.serve_forever()


asyncio.run(main())

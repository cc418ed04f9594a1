# An event loop one of whose handlers makes a call that blocks. Arguments: a port, and perhaps how many seconds.
import asyncio
import sys
import time

DELAY_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05


async def serve(reader, writer):
    line = await reader.readline()
    if not line:
        writer.close()
        return
    while await reader.readline() not in (b"\r\n", b""):
        pass
    if line.startswith(b"GET /slow "):
        time.sleep(DELAY_S)
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ndone")
    await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


asyncio.run(main())

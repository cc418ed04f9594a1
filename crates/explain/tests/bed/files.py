# asyncio whose handlers read files, or wait for a lock, in the thread of the loop. Arguments: a port and a folder.
import asyncio
import fcntl
import sys

FOLDER = sys.argv[2]


async def serve(reader, writer):
    while line := await reader.readline():
        while await reader.readline() not in (b"\r\n", b""):
            pass
        path = FOLDER + line.split(b" ")[1].decode()
        with open(path, "rb") as file:
            if path.endswith("/lock"):
                fcntl.flock(file, fcntl.LOCK_EX)
            body = file.read()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=1)
    await server.serve_forever()


asyncio.run(main())

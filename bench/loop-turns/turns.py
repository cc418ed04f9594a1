# Nanoseconds per turn of an asyncio loop. With "watched", by headway_debox.watch_loop.
import asyncio
import sys
import time

TURNS = 100_000


async def main():
    if sys.argv[1:] == ["watched"]:
        import headway_debox

        headway_debox.watch_loop()
    begun = time.perf_counter_ns()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    print(f"{(time.perf_counter_ns() - begun) / TURNS:.1f}")


asyncio.run(main())

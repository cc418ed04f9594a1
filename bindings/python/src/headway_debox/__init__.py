"""Watches an asyncio loop: how late its timers run, and in which system calls it sleeps.

The work is done by libdebox.so, in the thread of the loop. Two calls of it surround the loop's wait for events. What the
thread sleeps in between is blocking, and the kernel's stack names the call.
"""
import asyncio
import ctypes
import ctypes.util
import os

__all__ = ["LoopWatch", "watch_loop"]

LAG_PERIOD_S = 0.1


def _library():
    place = os.environ.get("HEADWAY_LIBDEBOX") or ctypes.util.find_library("debox") or "libdebox.so"
    try:
        # PyDLL keeps the interpreter's lock, since these calls take less than a microsecond.
        library = ctypes.PyDLL(place, use_errno=True)
    except OSError as error:
        raise OSError(f"{error}; the loop is not watched. HEADWAY_LIBDEBOX names the file") from error
    handle = ctypes.c_void_p
    library.debox_watch_loop.restype = handle
    for name, arguments in {
        "debox_turn_begin": [handle],
        "debox_turn_end": [handle],
        "debox_loop_lag": [handle, ctypes.c_uint64],
        "debox_loop_metrics": [handle, ctypes.c_char_p, ctypes.c_size_t],
    }.items():
        getattr(library, name).argtypes = arguments
    return library


def watch_loop(loop=None):
    """Watches this loop, or the running one. Call it in the thread of the loop, and after a fork."""
    return LoopWatch(loop or asyncio.get_running_loop())


class LoopWatch:
    """A watch over one loop; see `watch_loop`."""

    def __init__(self, loop):
        # The selector is asyncio's wait for events. Loops in C, such as uvloop, have none.
        self._selector = getattr(loop, "_selector", None)
        if self._selector is None:
            raise TypeError(f"{type(loop).__name__} has no selector around which turns could be seen; it is not watched")
        self._library = _library()
        self._handle = self._library.debox_watch_loop()
        if not self._handle:
            number = ctypes.get_errno()
            raise OSError(number, f"debox_watch_loop: {os.strerror(number)}; the loop is not watched")
        self._loop = loop
        self._select = self._selector.select
        self._selector.select = self._wait
        self._timer = None
        self._measure_lag()

    def metrics(self):
        """The metrics in the Prometheus text format. They stay after `close`."""
        size = 1 << 16
        while True:
            text = ctypes.create_string_buffer(size)
            length = self._library.debox_loop_metrics(self._handle, text, size)
            if length < 0:
                number = ctypes.get_errno()
                raise OSError(number, f"debox_loop_metrics: {os.strerror(number)}")
            if length < size:
                return text.value.decode()
            size = length + 1

    def close(self):
        """Ends the watch, in the thread of the loop."""
        self._timer.cancel()
        # The method of the class is visible again.
        self._selector.__dict__.pop("select", None)

    def _wait(self, timeout=None):
        self._library.debox_turn_end(self._handle)
        try:
            return self._select(timeout)
        finally:
            self._library.debox_turn_begin(self._handle)

    def _measure_lag(self, due=None):
        now = self._loop.time()
        if due is not None:
            self._library.debox_loop_lag(self._handle, max(0, int((now - due) * 1e9)))
        due = now + LAG_PERIOD_S
        self._timer = self._loop.call_at(due, self._measure_lag, due)

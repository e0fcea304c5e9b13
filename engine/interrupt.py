"""Ctrl-C that is not lost: Python raises KeyboardInterrupt wherever it happens to be, also where exceptions are dropped (a
destructor, a callback of compiled code), and then goes on as if nothing had been."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """``check()`` raises KeyboardInterrupt if there was a Ctrl-C since the context was entered.  Where SIGINT is ignored or
    handled by somebody else, and beside the main thread, it never does."""
    seen: list[int] = []

    def handler(number, frame):
        seen.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if seen:
            raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""Ctrl-C during a long command."""

import os
import signal
import threading

import pytest

from engine.interrupt import interrupts


@pytest.fixture(autouse=True)
def default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # the handler runs between two instructions of here, and what it raises is dropped
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_was_dropped_is_raised_at_the_next_check():
    with interrupts() as check:
        check()
        Dropped()
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_raised_at_once_where_it_can_be():
    with pytest.raises(KeyboardInterrupt), interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts() as check:
        os.kill(os.getpid(), signal.SIGINT)
        check()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_beside_the_main_thread_nothing_is_touched():
    found = []

    def run():
        with interrupts() as check:
            found.append(signal.getsignal(signal.SIGINT))
            check()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]

"""Which threads a test may leave behind it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.conftest import threads_at_work


def test_a_thread_that_waits_for_something_of_its_own_is_at_work() -> None:
    before, over = set(threading.enumerate()), threading.Event()
    thread = threading.Thread(target=over.wait, name="waiting")
    thread.start()
    assert threads_at_work(before) == ["waiting"]
    over.set()
    thread.join()
    assert threads_at_work(before) == []


def test_threads_of_a_pool_and_of_a_loop_are_at_work_while_they_have_some() -> None:
    before, loop = set(threading.enumerate()), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="loop")
    thread.start()
    begun, over = threading.Barrier(3), threading.Event()

    def work() -> None:
        begun.wait()
        over.wait()

    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        pool.submit(work)
        loop.call_soon_threadsafe(work)
        begun.wait()
        assert threads_at_work(before) == ["loop", "pool_0"]
        over.set()
        while threads_at_work(before):
            over.wait(0.01)
        assert {each.name for each in set(threading.enumerate()) - before} == {"loop", "pool_0"}
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()

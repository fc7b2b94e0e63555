"""Threads, finalizers and fork: calls exclude each other, messages stay with their calls, nothing hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from busy import SHAPE
from interpreter import prints

from tinyllm_kv import EnvelopeError, InvalidArgument, KVError, OutOfBlocks, Pool


def together(*bodies: Callable[[], Any]) -> None:
    """Run each body in a thread of its own, all at once; raise the first error that one raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(bodies))

    def run(body: Callable[[], Any]) -> None:
        start.wait()
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def hammer(n_threads: int, rounds: int) -> None:
    """Let threads allocate and release blocks of one pool while another exports and imports."""
    pool = Pool(2 * n_threads + 4, 2, **SHAPE)
    held, out_twice = set[int](), []
    running = threading.Event()
    running.set()

    def allocate() -> None:
        for _ in range(rounds):
            a, b = pool.alloc(2).tolist()
            # set.add, len and discard of small ints are atomic under the GIL
            if a in held or b in held or a == b:
                out_twice.append((a, b))
            held.add(a)
            held.add(b)
            held.discard(a)
            held.discard(b)
            pool.unref([a, b])

    def carry() -> None:
        (mine,) = pool.alloc(1)
        pool.block(mine)[:] = 3
        pool.set_fill(mine, 2)
        pool.register(mine, 77)
        envelope = pool.export([mine])
        while running.is_set():
            assert pool.export([mine]) == envelope
            ids = pool.import_(envelope)
            assert (pool.block(int(ids[0])) == 3).all()
            pool.unref(ids)
        pool.unref(mine)

    def work(left: list[int] = [n_threads]) -> None:
        try:
            allocate()
        finally:
            left[0] -= 1
            if left[0] <= 0:
                running.clear()

    together(*[work] * n_threads, carry)
    assert out_twice == []
    assert pool.stats()[:3] == (len(pool) - 1, 0, 1)
    assert pool.evict() == 1
    assert sorted(pool.alloc(len(pool)).tolist()) == list(range(len(pool)))


@pytest.mark.parametrize(("threads", "rounds"), [(4, 50_000), (8, 25_000)])
def test_trap_06_threads_by_the_thousand(threads: int, rounds: int) -> None:
    """Threads x rounds x (alloc 2, unref both), one more exporting and importing: no id is out twice."""
    hammer(threads, rounds)


def test_eight_threads_of_everything() -> None:
    """8 threads that share, copy, register, look up, export and import never see another's bytes in their blocks."""
    pool = Pool(64, 2, **SHAPE)  # each thread holds 7 at most

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(1500):
            hash = int(random.integers(1, 30))
            ids, hits = pool.acquire([hash, hash + 1], 3)
            fresh = ids[hits:]
            for id in fresh:
                pool.block(int(id))[:] = seed
            pool.set_fill(fresh, 2)
            pool.register_many(fresh, np.arange(hash + hits, hash + 3))
            pool.ref(fresh)
            copy = pool.cow(int(fresh[0]))
            imported = pool.import_(pool.export(fresh))
            for id in [copy, *fresh, *imported]:
                assert (pool.block(int(id)) == seed).all()
            pool.unref(imported)
            pool.unref(fresh[1:])
            pool.unref(copy)
            pool.unref(ids)

    together(*[lambda seed=seed: work(seed) for seed in range(8)])
    assert pool.stats().used == 0
    assert sorted(pool.alloc(64).tolist()) == list(range(64))


def test_messages_stay_with_their_thread() -> None:
    """Each thread reads the message of its own refused call, while others are refused for other reasons."""
    pool = Pool(1, 2, **SHAPE)

    def refusals(call: Callable[[], Any], error: type[KVError], words: str) -> Callable[[], None]:
        def body() -> None:
            for _ in range(3000):
                with pytest.raises(error, match=words):
                    call()

        return body

    together(
        refusals(lambda: pool.ref(7), InvalidArgument, "^tl_kvx_ref: block 7 "),
        refusals(lambda: pool.unref(8), InvalidArgument, "^tl_kvx_unref: block 8 "),
        refusals(lambda: pool.alloc(9), OutOfBlocks, "^tl_kvx_alloc: 9 blocks "),
        refusals(lambda: pool.import_(b"1234"), EnvelopeError, "^tl_kv_import: 4 bytes"),
    )


def test_close_races_with_calls() -> None:
    """A call that meets close either ends before it or says that the pool is closed; views stay good."""
    for _ in range(100):
        pool = Pool(64, 2, **SHAPE)
        views: list[Any] = []

        def use(pool: Pool = pool, views: list[Any] = views) -> None:
            with pytest.raises(ValueError, match="the pool is closed"):
                while True:
                    ids = pool.alloc(4)
                    views.append(pool.block(int(ids[0])))
                    pool.slab
                    pool.unref(ids)

        together(use, use, use, pool.close, pool.close)
        assert pool.closed
        for view in views[:10]:
            view.tobytes()


def test_finalizers_use_the_pool() -> None:
    """Objects that die during any call, in any thread, call the pool from __del__, refused calls too."""
    prints(
        """
        import faulthandler, gc, threading
        from tinyllm_kv import InvalidArgument, OutOfBlocks, Pool

        faulthandler.dump_traceback_later(60, exit=True)
        pool = Pool(64, 2, n_layers=1, n_kv_heads=1, head_dim=2)
        wrong = []

        class Holder:
            def __init__(self):
                self.itself = self  # only a collection ends it
                self.ids = []
                self.ids = pool.alloc(2)

            def __del__(self):
                pool.unref(self.ids)
                try:
                    pool.ref(1000)
                except InvalidArgument as error:
                    if "block 1000 " not in str(error):
                        wrong.append(str(error))

        def work(bad):
            for _ in range(4000):
                try:
                    Holder()
                except OutOfBlocks:
                    gc.collect()
                try:
                    pool.unref(bad)
                except InvalidArgument as error:
                    if f"unref: block {bad} " not in str(error):
                        wrong.append(str(error))

        gc.set_threshold(1)
        threads = [threading.Thread(target=work, args=(100 + n,)) for n in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        gc.collect()
        print(wrong, pool.stats())
        """,
        "[] Stats(free=64, used=0, cached=0, evictions=0)\n",
    )


def test_a_refused_call_between_a_refusal_and_its_message() -> None:
    """A finalizer that runs after a refused call, before its message is read, does not swap the messages."""
    from tinyllm_kv import _binding

    pool = Pool(1, 2, **SHAPE)
    lib = _binding.lib
    outer = lib.tl_kvx_ref(pool._handle, 11)
    with pytest.raises(InvalidArgument, match="block 22 "):
        pool.unref(22)
    with pytest.raises(OutOfBlocks, match="^tl_kvx_alloc: 33 "):
        pool.alloc(33)
    with pytest.raises(InvalidArgument, match="^tl_kvx_ref: block 11 "):
        _binding.refuse(outer)


def test_fork_finds_whole_pools() -> None:
    """Forks in the midst of other threads' calls: each child can use the pool at once, and finds it whole."""
    prints(
        """
        import faulthandler, os, signal, threading, warnings
        from tinyllm_kv import Pool

        warnings.simplefilter("ignore", DeprecationWarning)  # "fork in a multi-threaded process"
        faulthandler.dump_traceback_later(60, exit=True)
        pools = [Pool(32, 16, n_layers=2, n_kv_heads=4, head_dim=64) for _ in range(3)]
        for pool in pools:
            pool.alloc(8)
            pool.set_fill(range(8), 16)
        stop = threading.Event()

        def work(pool):
            while not stop.is_set():
                pool.unref(pool.import_(pool.export(range(8))))
                Pool(2, n_layers=1, n_kv_heads=1, head_dim=1)

        def whole(pool):
            stats = pool.stats()
            states = [pool.state(id) for id in range(32)]
            assert stats.free + stats.used == 32, stats
            assert states.count("used") == stats.used >= 8, stats
            ids = pool.alloc(stats.free)
            assert len(set(ids.tolist()) | set(range(8))) == stats.free + 8
            pool.unref(ids)

        threads = [threading.Thread(target=work, args=(pool,)) for pool in pools for _ in range(2)]
        for thread in threads: thread.start()
        good = 0
        for _ in range(40):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                try:
                    for pool in pools:
                        whole(pool)
                    os._exit(7)
                finally:
                    os._exit(1)
            good += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        stop.set()
        for thread in threads: thread.join()
        for pool in pools: whole(pool)
        print(good)
        """,
        "40\n",
    )


def test_a_child_has_a_pool_of_its_own() -> None:
    """What the child does to its copy of the pool the parent does not see; closing it there is fine."""
    prints(
        """
        import os
        from tinyllm_kv import Pool

        pool = Pool(4, 2, n_layers=1, n_kv_heads=1, head_dim=2)
        view = pool.block(int(pool.alloc()[0]))
        view[:] = 1
        child = os.fork()
        if child == 0:
            pool.alloc(3)
            view[:] = 2
            pool.close()
            os._exit(int(view.sum()))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), view.sum(), pool.stats())
        """,
        "16 8.0 Stats(free=3, used=1, cached=0, evictions=0)\n",
    )


def test_ids_that_change_during_a_call_are_no_danger() -> None:
    """C reads a copy of an array of ids or fills: another thread may change the caller's at any moment."""
    prints(
        """
        import threading, time
        import numpy as np
        from tinyllm_kv import InvalidArgument, Pool

        pool = Pool(2000, 4, n_layers=1, n_kv_heads=1, head_dim=2)
        ids = pool.alloc(2000)
        shown, fills = ids.copy(), np.full(2000, 4, np.uint32)
        buffer = bytearray(pool.export_bytes(2000))
        done = False

        def change():
            while not done:
                shown[-1] = fills[-1] = 0x7FFFFFFF
                shown[-1], fills[-1] = ids[-1], 4

        thread = threading.Thread(target=change)
        thread.start()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for call in (
                lambda: pool.set_fill(shown, 4),
                lambda: pool.set_fill(ids, fills),
                lambda: pool.export_into(shown, buffer),
                lambda: pool.refcount(shown),
            ):
                try:
                    call()
                except InvalidArgument:
                    pass
            assert pool.fill(1999) <= 4
            try:
                pool.ref(shown)
            except InvalidArgument:
                pass
            else:
                pool.unref(ids)
        done = True
        thread.join()
        assert pool.refcount(ids).tolist() == [1] * 2000
        print("whole")
        """,
        "whole\n",
    )


def test_a_signal_during_a_fork_leaves_no_pool_held() -> None:
    """Ctrl-C while the system forks raises where it may, and holds neither the next call nor the next fork up."""
    prints(
        """
        import os, signal, threading
        from tinyllm_kv import Pool

        pools = [Pool(4, 4, n_layers=1, n_kv_heads=1, head_dim=2) for _ in range(50)]
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        interrupted = 0
        for i in range(200):
            child = None
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + i % 60))
                child = os.fork()
                if child == 0:
                    os._exit(0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
                if child == 0:
                    os._exit(0)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            thread = threading.Thread(target=lambda: [pool.stats() for pool in pools])
            thread.start()
            thread.join(20)
            assert not thread.is_alive(), "a pool is held"
        assert interrupted
        print("none")
        """,
        "none\n",
    )

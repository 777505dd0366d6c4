"""What must hold whatever a program does with arrays, threads, processes and signals."""

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import numpy as np

import nocopy

PATIENCE = 30.0


def run_program(text):
    """Runs a program of its own, with warnings as errors; returns what it printed."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(text)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0 and not ended.stderr, (ended.returncode, ended.stderr)
    return ended.stdout


class TestOwnership(unittest.TestCase):
    def test_random_orders_of_dropping(self):
        """Each array keeps what it shows, whatever was dropped before."""
        for seed in range(8):
            rng = random.Random(seed)
            right = nocopy.UdpSocket("127.0.0.1:0")
            left = nocopy.UdpSocket("127.0.0.1:0", connect=right.local_addr())
            held, shown = [right, left], []
            for number in range(rng.randrange(1, 30)):
                rows = np.full((rng.randrange(1, 20), rng.randrange(1, 1400)), number, "u1")
                left.send(rows)
                held.append(rows)
                for burst in right.receive(PATIENCE):
                    data = burst.data
                    shown.append((data[rng.randrange(len(data)) :], data.flat[0]))
                    held.append(rng.choice([burst, data, data.base, memoryview(data)]))
            for _ in range(rng.randrange(1, 5)):
                memory = left.buffer()
                if memory is not None:
                    held.append(np.frombuffer(memory, "u1"))
            del left, right, rows, burst, data, memory
            rng.shuffle(held)
            while held:
                held.pop()
                if rng.random() < 0.2:
                    gc.collect()
                for view, value in shown[-3:]:
                    self.assertTrue((view == value).all())
            rng.shuffle(shown)
            while shown:
                view, value = shown.pop()
                self.assertTrue((view == value).all())

    def test_random_orders_of_dropping_messages(self):
        for seed in range(5):
            rng = random.Random(seed)
            right, left = nocopy.Endpoint("127.0.0.1:0"), nocopy.Endpoint("127.0.0.1:0")
            peer = left.start_connect(right.local_addr())
            while left.poll_event() is None:
                left.wait(0.001)
                right.wait(0.001)
            held = [right, left]
            shown = []
            for number in range(20):
                left.send_to(np.full(rng.choice([10, 1000, 5000, 100_000]), number, "u1"), peer)
                while not (message := right.receive(0.001)):
                    left.wait(0.001)
                shown.append((message.data, number))
                held.append(rng.choice([message, memoryview(message), message.data]))
            del left, right, message
            rng.shuffle(held)
            while held:
                held.pop()
                for data, number in shown:
                    self.assertTrue((data == number).all())

    def test_a_buffer_with_views_is_not_sent(self):
        right, left = nocopy.UdpSocket("127.0.0.1:0"), nocopy.UdpSocket("127.0.0.1:0")
        buffer = left.buffer()
        views = [np.frombuffer(buffer, "u1"), memoryview(buffer), np.frombuffer(buffer, "u2")]
        views[0][:1000] = 7
        while views:
            with self.assertRaisesRegex(BufferError, rf"not sent; {len(views)} array"):
                left.send_to(buffer, right.local_addr(), segment=1000)
            views.pop()
        left.send_to(buffer, right.local_addr(), segment=1000)
        burst = right.receive(PATIENCE)[0]
        self.assertTrue((burst.data[0] == 7).all())
        with self.assertRaisesRegex(BufferError, "it was sent"):
            memoryview(buffer)

    def test_received_memory_that_is_sent_stays(self):
        right, left = nocopy.UdpSocket("127.0.0.1:0"), nocopy.UdpSocket("127.0.0.1:0")
        left.send_to(b"hello", right.local_addr())
        (burst,) = right.receive(PATIENCE)
        memory = burst.data.base
        gc.collect()
        right.send_to(memory, left.local_addr())
        self.assertEqual(burst.data.tobytes(), b"hello")
        self.assertEqual(left.receive(PATIENCE)[0].data.tobytes(), b"hello")

    def test_an_array_is_exported_until_the_kernel_is_done(self):
        right = nocopy.UdpSocket("127.0.0.1:0")
        left = nocopy.UdpSocket("127.0.0.1:0", method="zerocopy")
        array, data = np.zeros(40_000, "u1"), bytearray(40_000)
        left.send_to(array, right.local_addr(), flush=False)
        left.send_to(data, right.local_addr(), flush=False)
        with self.assertRaisesRegex(ValueError, "resize"):
            array.resize(80_000)
        with self.assertRaises(BufferError):
            data.append(0)
        self.assertTrue(left.flush(PATIENCE))
        right.receive(PATIENCE)  # over lo the kernel is done when it was received
        right.close()
        self.assertTrue(left.drain(PATIENCE))
        left.reap()
        array.resize(80_000)
        data.append(0)

    def test_an_array_is_free_when_its_socket_is_closed(self):
        for finish in (lambda socket: socket.close(), lambda socket: None):
            right = nocopy.UdpSocket("127.0.0.1:0")
            left = nocopy.UdpSocket("127.0.0.1:0", method="zerocopy")
            data = bytearray(40_000)
            left.send_to(data, right.local_addr(), flush=False)
            finish(left)
            right.close()
            del left
            end = time.monotonic() + PATIENCE
            while True:  # until the reaper has it, and a call of ours has given it back
                nocopy.UdpSocket("127.0.0.1:0").receive(0)
                try:
                    data.append(0)
                    break
                except BufferError:
                    self.assertLess(time.monotonic(), end)


class TestThreads(unittest.TestCase):
    def test_twenty_threads_that_use_one_socket(self):
        socket = nocopy.UdpSocket("127.0.0.1:0")
        endpoint = nocopy.Endpoint("127.0.0.1:0")
        peer = endpoint.start_connect(endpoint.local_addr())
        to, unexpected, refused = socket.local_addr(), [], 0
        all_run, is_over = threading.Barrier(20), threading.Event()

        def use(number):
            rng = random.Random(number)
            calls = [
                lambda: socket.receive(0.001),
                lambda: socket.send_to(np.zeros((10, 100), "u1"), to),
                lambda: (socket.ledger(), socket.stats(), socket.explain()),
                lambda: (socket.arm(), socket.fileno()),
                lambda: np.frombuffer(socket.buffer() or b"", "u1"),
                lambda: endpoint.receive_many(0.001),
                lambda: endpoint.send_many(np.zeros((10, 100), "u1"), peer, 0.001),
                lambda: (endpoint.stats(), endpoint.poll_event(), endpoint.reap()),
            ]
            all_run.wait()
            nonlocal refused
            for _ in range(50):
                try:
                    rng.choice(calls)()
                except RuntimeError as error:
                    refused += "in use by another thread" in str(error)
                except nocopy.Gone:
                    pass  # an endpoint that connects to itself may be refused
                except Exception as error:
                    unexpected.append(error)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(unexpected, [])
        self.assertGreater(refused, 0)
        is_over.set()

    def test_twenty_threads_with_their_own_sockets(self):
        failed = []

        def use(number):
            try:
                with nocopy.UdpSocket("127.0.0.1:0") as right, nocopy.UdpSocket("127.0.0.1:0") as left:
                    rows = np.full((16, 300), number, "u1")
                    for _ in range(4):
                        left.send_to(rows, right.local_addr())
                        received = 0
                        while received < 16:
                            for burst in right.receive(PATIENCE):
                                assert (burst.data == number).all()
                                received += len(burst)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_ctrl_c_ends_each_wait(self):
        socket, endpoint = nocopy.UdpSocket("127.0.0.1:0"), nocopy.Endpoint("127.0.0.1:0")
        silent = nocopy.UdpSocket("127.0.0.1:0")
        peer = endpoint.start_connect(silent.local_addr())
        rows = np.zeros((4, 100), "u1")
        waits = {
            "receive": lambda: socket.receive(),
            "receive_into": lambda: socket.receive_into(rows),
            "iteration": lambda: next(iter(socket)),
            "messages": lambda: endpoint.receive(PATIENCE),
            "many": lambda: endpoint.receive_many(PATIENCE),
            "room": lambda: endpoint.send_to(b"hello", peer),
            "rows": lambda: endpoint.send_many(rows, peer),
            "call": lambda: endpoint.call(b"hello", peer),
            "connect": lambda: nocopy.Endpoint("127.0.0.1:0").connect(silent.local_addr()),
        }
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        main = threading.get_ident()
        for name, wait in waits.items():
            with self.subTest(name=name):
                interrupt = threading.Timer(0.02, signal.pthread_kill, (main, signal.SIGINT))
                interrupt.start()
                with self.assertRaises(KeyboardInterrupt):
                    wait()
                interrupt.join()
        self.assertEqual(socket.receive(0), [])  # still usable


class TestProcesses(unittest.TestCase):
    def test_a_forked_child_leaves_the_parent_alone(self):
        # No other thread: Python warns of a fork with threads.
        printed = run_program(
            """
            import os, numpy, nocopy
            right, left = nocopy.UdpSocket("127.0.0.1:0"), nocopy.UdpSocket("127.0.0.1:0", method="zerocopy")
            a, b = nocopy.Endpoint("127.0.0.1:0"), nocopy.Endpoint("127.0.0.1:0")
            peer = a.start_connect(b.local_addr())
            while (event := a.poll_event()) is None:
                a.wait(0.001), b.wait(0.001)
            buffer = left.buffer()
            array = numpy.zeros(40_000, "u1")
            left.send_to(array, right.local_addr())
            (burst,) = right.receive(10)
            child = os.fork()
            if child == 0:
                refused = 0
                calls = [
                    right.receive, left.flush, left.buffer, right.fileno, right.arm, right.ledger, right.close,
                    lambda: left.send_to(b"x", right.local_addr()), lambda: right.receive_into(array.reshape(1, -1)),
                    a.receive, a.receive_many, a.flush, a.close, a.poll_event, a.stats, a.arm,
                    lambda: a.send_to(b"x", peer), lambda: a.send_many(array.reshape(-1, 100), peer),
                    lambda: a.call(b"x", peer),
                ]
                for call in calls:
                    try:
                        call()
                    except RuntimeError as error:
                        refused += "belongs to the process that forked this one" in str(error)
                del right, left, a, b, buffer
                del burst  # its memory is not there in the child; nothing reads it
                own = nocopy.UdpSocket("127.0.0.1:0")
                own.send_to(b"own", own.local_addr())
                assert own.receive(10)[0].data.tobytes() == b"own"
                raise SystemExit(0 if refused == len(calls) else 1)
            _, status = os.waitpid(child, 0)
            print("child", os.waitstatus_to_exitcode(status))
            left.send_to(b"after", right.local_addr())
            print(right.receive(10)[0].data.tobytes())
            a.send_to(b"message", peer)
            while not (message := b.receive(0.001)):
                a.wait(0.001)
            print(bytes(message))
            """
        )
        self.assertEqual(printed, "child 0\nb'after'\nb'message'\n")

    def test_exit_while_sends_are_in_flight(self):
        """With arrays, bursts, views and messages of all ages in modules, cycles and threads."""
        printed = run_program(
            """
            import threading, numpy, nocopy
            right, left = nocopy.UdpSocket("127.0.0.1:0"), nocopy.UdpSocket("127.0.0.1:0", method="zerocopy")
            arrays = [numpy.zeros((20, 1000), "u1") for _ in range(20)]
            for array in arrays:
                left.send_to(array, right.local_addr())
            bursts = right.receive(10)
            nocopy.kept = [burst.data for burst in bursts]
            memory, view = left.buffer(), numpy.frombuffer(left.buffer(), "u1")
            a, b = nocopy.Endpoint("127.0.0.1:0"), nocopy.Endpoint("127.0.0.1:0")
            peer = a.start_connect(b.local_addr())
            while a.poll_event() is None:
                a.wait(0.001), b.wait(0.001)
            a.send_many(numpy.zeros((100, 1000), "u1"), peer)
            message = b.receive(10) or b.receive(10)
            cycle = [left, message, memoryview(message)]
            cycle.append(cycle)
            for wait in (right.receive, b.receive_many):
                threading.Thread(target=wait, daemon=True).start()
            for array in arrays:
                left.send_to(array, ("127.0.0.1", 9), flush=False)
            print("end")
            """
        )
        self.assertEqual(printed, "end\n")


if __name__ == "__main__":
    unittest.main()

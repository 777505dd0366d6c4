"""Coroutines of `UdpSocket` and `Endpoint` on asyncio's loop."""

import asyncio
import threading
import unittest

import numpy as np

import nocopy

PATIENCE = 30.0


async def connected(**settings):
    """Two endpoints of one loop, and the left one's peer."""
    left, right = nocopy.Endpoint("127.0.0.1:0", **settings), nocopy.Endpoint("127.0.0.1:0", **settings)
    accepting = asyncio.create_task(right.areceive(PATIENCE))
    peer = await left.aconnect(right.local_addr(), PATIENCE)
    accepting.cancel()
    await asyncio.gather(accepting, return_exceptions=True)
    return left, peer, right


async def serve(endpoint):
    """Answers requests until a peer has finished; returns the other messages."""
    others = []
    while True:
        message = await endpoint.areceive(PATIENCE)
        if message is None:
            event = endpoint.poll_event()
            if event is None or event.kind in ("finished", "lost"):
                return others
        elif message.kind == "request":
            await endpoint.arespond(bytes(message).upper(), message.peer, message.call)
        else:
            others.append(bytes(message))


class TestUdpSocket(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.right = nocopy.UdpSocket("127.0.0.1:0")
        self.left = nocopy.UdpSocket("127.0.0.1:0", connect=self.right.local_addr())

    async def test_more_rows_than_a_socket_queues_are_sent_in_parts(self):
        most = 0

        class Socket(nocopy.UdpSocket):
            def send(self, data, **settings):
                nonlocal most
                most = max(most, len(data))
                super().send(data, **settings)

        with Socket("127.0.0.1:0", connect=self.right.local_addr()) as sender:
            await sender.asend(np.zeros((3000, 20), "u1")[:, :10])  # apart from each other: a message each
            self.assertEqual((sender.stats()["sent"]["moved"], most), (3000, 1024))

    async def test_aclose_closes_whatever_is_raised_before(self):
        class Socket(nocopy.UdpSocket):
            async def adrain(self, timeout=None):
                raise OSError("not drained")

        socket = Socket("127.0.0.1:0")
        with self.assertRaisesRegex(OSError, "not drained"):
            await socket.aclose()
        with self.assertRaisesRegex(ValueError, "is closed"):
            socket.receive(0.0)

    async def test_a_coroutine_waits_for_datagrams(self):
        rows = np.arange(40 * 100, dtype="u2").astype("u1").reshape(40, 100)
        receiving = asyncio.create_task(self.right.areceive())
        await asyncio.sleep(0)  # it waits
        await self.left.asend(rows)
        bursts = await receiving
        while sum(len(burst) for burst in bursts) < 40:
            bursts += await self.right.areceive(PATIENCE)
        self.assertTrue((np.concatenate([burst.data for burst in bursts]) == rows).all())
        array = np.zeros((8, 100), "u1")
        receiving = asyncio.create_task(self.right.areceive_into(array))
        await asyncio.sleep(0)
        await self.left.asend_to(b"x" * 100, self.right.local_addr())
        self.assertEqual(len(await receiving), 1)
        self.assertEqual(array[0].tobytes(), b"x" * 100)
        receiving = asyncio.create_task(self.right.areceive(gather=True))
        await asyncio.sleep(0)
        await self.left.asend(b"abc")
        gathered, lengths = await receiving
        self.assertEqual((gathered.tobytes(), lengths.tolist()), (b"abc", [3]))

    async def test_a_timeout_returns_what_the_call_returns(self):
        self.assertEqual(await self.right.areceive(0.01), [])
        self.assertEqual(len(await self.right.areceive_into(np.zeros((1, 9), "u1"), 0.01)), 0)
        array, lengths = await self.right.areceive(0.01, gather=True)
        self.assertEqual((array.size, lengths.size), (0, 0))

    async def test_a_cancelled_wait_loses_no_datagram(self):
        loop = asyncio.get_running_loop()
        for number in range(50):
            receiving = asyncio.create_task(self.right.areceive())
            await asyncio.sleep(0)
            self.left.send(b"%d" % number)
            # Cancelled when the datagram has arrived, before and after the loop has noticed it.
            if number % 2:
                receiving.cancel()
            else:
                loop.call_soon(receiving.cancel)
                await asyncio.sleep(0)
            result = (await asyncio.gather(receiving, return_exceptions=True))[0]
            if isinstance(result, asyncio.CancelledError):
                result = await self.right.areceive(PATIENCE)
            self.assertEqual([burst.data.tobytes() for burst in result], [b"%d" % number])

    async def test_two_coroutines_for_one_half_are_refused(self):
        receiving = asyncio.create_task(self.right.areceive())
        await asyncio.sleep(0)
        with self.assertRaisesRegex(RuntimeError, "UdpSocket: receiving: another coroutine waits already"):
            await self.right.areceive(0.01)
        await self.right.asend_to(b"hello", self.left.local_addr())  # the other half
        self.assertEqual(len(await self.left.areceive(PATIENCE)), 1)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        self.assertEqual(await self.right.areceive(0.0), [])

    async def test_close_ends_a_wait(self):
        receiving = asyncio.create_task(self.right.areceive())
        await asyncio.sleep(0)
        self.right.close()
        with self.assertRaisesRegex(ValueError, "is closed"):
            await receiving

    async def test_close_by_another_thread_is_refused_during_a_wait(self):
        receiving = asyncio.create_task(self.right.areceive())
        await asyncio.sleep(0)
        with self.assertRaisesRegex(RuntimeError, "a coroutine waits; close it in the thread"):
            await asyncio.to_thread(self.right.close)
        await self.left.asend(b"still open")
        self.assertEqual(len(await receiving), 1)

    async def test_sends_without_a_copy_are_drained(self):
        async with nocopy.UdpSocket("127.0.0.1:0", method="zerocopy") as sender:
            data = bytearray(40_000)
            await sender.asend_to(data, self.right.local_addr())
            await self.right.areceive(PATIENCE)
            self.assertTrue(await sender.adrain(PATIENCE))
            self.assertEqual(sender.in_flight(), 0)
            sender.reap()
            data.append(1)  # it is free
        with self.assertRaisesRegex(ValueError, "is closed"):
            sender.flush()

    async def test_others_run_while_datagrams_keep_coming(self):
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        for _ in range(200):
            self.left.send(b"x")
            await self.right.areceive(PATIENCE)
        counting.cancel()
        self.assertGreater(turns, 1)


class TestEndpoint(unittest.IsolatedAsyncioTestCase):
    async def test_calls_in_one_loop(self):
        left, peer, right = await connected()
        serving = asyncio.create_task(serve(right))
        for _ in range(20):
            self.assertEqual(bytes(await left.acall(b"hello", peer, PATIENCE)), b"HELLO")
        await left.asend_to(b"plain", peer)
        self.assertTrue(await left.aclose(PATIENCE))
        self.assertEqual(await serving, [b"plain"])

    async def test_one_sends_while_another_receives(self):
        """Both wait for the same descriptor."""
        left, peer, right = await connected(memory=40 << 20)
        rows = np.zeros((60_000, 200), "u1")
        rows[:, :4] = np.arange(60_000, dtype="u4").view("u1").reshape(-1, 4)

        async def receive_message():
            # An endpoint works only while it is called: an event is not the end of that.
            while (message := await left.areceive(PATIENCE)) is None:
                pass
            return message

        answer = asyncio.create_task(receive_message())
        sending = asyncio.create_task(left.asend_many(rows, peer, PATIENCE))
        received, numbers = 0, []
        while received < len(rows):
            messages = await right.areceive_many(PATIENCE)
            if len(messages):
                numbers.append(messages.data[:, :4].copy().view("u4").ravel())
                received += len(messages)
        self.assertEqual(await sending, len(rows))
        self.assertTrue((np.concatenate(numbers) == np.arange(len(rows))).all())
        await right.asend_to(b"all came", messages.peer(0))
        self.assertEqual(bytes(await answer), b"all came")

    async def test_waits_end_by_messages_events_and_time(self):
        left, peer, right = await connected()
        array = np.zeros((4, 16), "u1")
        while right.poll_event() or left.poll_event():
            pass
        self.assertIsNone(await left.areceive(0.01))
        self.assertEqual(len(await left.areceive_many(0.01)), 0)
        self.assertEqual(len(await left.areceive_into(array, 0.01)), 0)
        receiving = asyncio.create_task(right.areceive_into(array, PATIENCE))
        await left.asend_to(b"hello", peer)
        rows = await receiving
        self.assertEqual(array[0, : rows.lengths[0]].tobytes(), b"hello")
        receiving = asyncio.create_task(left.areceive(PATIENCE))
        await asyncio.sleep(0)
        right.close(0)
        self.assertIsNone(await receiving)
        # Finished, if the last acknowledgement came before the close.
        self.assertIn(left.poll_event().kind, ("finished", "lost"))

    async def test_a_call_without_an_answer_times_out(self):
        left, peer, _right = await connected()
        with self.assertRaises(nocopy.TimedOut):
            await left.acall(b"question", peer, 0.02)

    async def test_a_connection_without_an_answer_times_out(self):
        silent = nocopy.UdpSocket("127.0.0.1:0")
        client = nocopy.Endpoint("127.0.0.1:0", peers_max=1)
        for _ in range(2):  # the first attempt has ended, or there would be no room for a second
            with self.assertRaises(nocopy.TimedOut):
                await client.aconnect(silent.local_addr(), 0.02)
        with self.assertRaises(TypeError):
            await client.aconnect(5)

    async def test_a_full_window_is_an_error_when_the_time_is_over(self):
        left, peer, _right = await connected(memory=40 << 20)
        rows = np.zeros((100_000, 200), "u1")
        sent = await left.asend_many(rows, peer, 0.02)
        self.assertLess(sent, len(rows))
        with self.assertRaises(nocopy.Full):
            await left.asend_to(bytes(200), peer, 0.02)

    async def test_a_cancelled_call_leaves_the_endpoint_usable(self):
        left, peer, right = await connected()
        calling = asyncio.create_task(left.acall(b"question", peer))
        await asyncio.sleep(0.01)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        serving = asyncio.create_task(serve(right))
        self.assertEqual(bytes(await left.acall(b"another", peer, PATIENCE)), b"ANOTHER")
        late = await left.areceive(PATIENCE)
        self.assertEqual((late.kind, bytes(late)), ("response", b"QUESTION"))
        await left.aclose(PATIENCE)
        await serving


class TestPort(unittest.IsolatedAsyncioTestCase):
    async def test_a_pair_sends_and_receives(self):
        left, right = nocopy.Port.memory_pair()
        self.assertIsInstance(left, nocopy.Port)
        rows = np.arange(200 * 60, dtype="u2").astype("u1").reshape(200, 60)

        async def receive():
            received = []
            while len(received) < 200:
                batch = await right.areceive(PATIENCE)
                received += [batch.data[p["offset"] :][: p["length"]].tobytes() for p in batch.packets]
            return received

        receiving = asyncio.create_task(receive())
        self.assertEqual(await left.asend(rows, PATIENCE), 200)
        self.assertEqual(await receiving, [row.tobytes() for row in rows])
        self.assertEqual(await left.asend(bytes(60), PATIENCE), 1)
        self.assertTrue(await left.adrain(PATIENCE))
        await left.aclose()
        await right.aclose()


class TestThreads(unittest.TestCase):
    def test_two_loops_for_one_endpoint_are_refused(self):
        socket = nocopy.Endpoint("127.0.0.1:0")
        waits, may_end = threading.Event(), threading.Event()

        async def receive():
            receiving = asyncio.create_task(socket.areceive())
            await asyncio.sleep(0)
            waits.set()
            await asyncio.to_thread(may_end.wait)
            receiving.cancel()

        thread = threading.Thread(target=lambda: asyncio.run(receive()))
        thread.start()
        waits.wait()
        try:
            for other in (socket.areceive(0.01), socket._send(lambda: None, 0.01)):
                with self.assertRaises(RuntimeError):
                    asyncio.run(other)
        finally:
            may_end.set()
            thread.join()


class TestOthers(unittest.IsolatedAsyncioTestCase):
    async def test_a_coroutine_waits_for_a_chunk(self):
        socket = nocopy.UdpSocket("127.0.0.1:0")
        sender = nocopy.UdpSocket(connect=socket.local_addr())
        async with socket.place(number=nocopy.Field(0, ">u8"), shape=(4, 10)) as placed:
            waiting = asyncio.create_task(placed.areceive(PATIENCE))
            await asyncio.sleep(0)
            rows = np.zeros((4, 18), "u1")
            rows[:, 7] = np.arange(4)
            await sender.asend(rows[:2])
            await asyncio.sleep(0.01)
            await sender.asend(rows[2:])
            self.assertEqual((await waiting).filled, 4)
            self.assertIsNone(await placed.areceive(0.01))


if __name__ == "__main__":
    unittest.main()

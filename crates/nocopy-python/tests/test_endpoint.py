"""`nocopy.Endpoint`: messages as arrays."""

import threading
import time
import unittest

import numpy as np

import nocopy

PATIENCE = 30.0


def take_turns(left, right, done):
    """Lets two endpoints of one thread work until `done` returns something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        left.wait(0.001)
        right.wait(0.001)
        found = done()
        if found:
            return found
    raise AssertionError("it did not happen")


def connected(**settings):
    """Two endpoints, and the left one's peer."""
    left, right = nocopy.Endpoint("127.0.0.1:0", **settings), nocopy.Endpoint("127.0.0.1:0", **settings)
    peer = left.start_connect(right.local_addr())
    event = take_turns(left, right, left.poll_event)
    assert event.kind == "connected" and event.peer == peer, event
    return left, peer, right


class Server(threading.Thread):
    """Answers each request with its bytes in reverse, until a peer has finished."""

    def __init__(self, endpoint):
        super().__init__()
        self.endpoint = endpoint
        self.others = []
        self.start()

    def run(self):
        while True:
            message = self.endpoint.receive(PATIENCE)
            if message is None:
                event = self.endpoint.poll_event()
                if event is None or event.kind in ("finished", "lost"):
                    break
            elif message.kind == "request":
                self.endpoint.respond(message.data[::-1].copy(), message.peer, message.call)
            else:
                self.others.append(bytes(message))
        self.endpoint.close(PATIENCE)


class TestMessages(unittest.TestCase):
    def test_messages_of_all_lengths_arrive_in_order(self):
        left, peer, right = connected()
        sent = [bytes([at % 256]) * at for at in (0, 1, 64, 255, 256, 1400, 1500, 9000, 100_000)]
        received = []
        for message in sent:
            left.send_to(message, peer)
            got = take_turns(left, right, right.try_receive)
            self.assertEqual(got.kind, "plain")
            self.assertIsNone(got.call)
            self.assertEqual(len(got), len(message))
            self.assertEqual(got.data.dtype, np.uint8)
            self.assertEqual(got.data.shape, (len(message),))
            self.assertFalse(got.data.flags.writeable)
            received.append(got.data.tobytes())
            self.assertEqual(bytes(got), message)
            self.assertEqual(memoryview(got).tobytes(), message)
        self.assertEqual(received, sent)

    def test_a_message_in_one_packet_is_not_copied(self):
        left, peer, right = connected()
        left.send_to(np.arange(1000, dtype="u1"), peer)
        message = take_turns(left, right, right.try_receive)
        first, again = message.data, message.data
        self.assertEqual(first.__array_interface__["data"], again.__array_interface__["data"])
        self.assertEqual(right.ledger()["copied into arrays"], 0)
        left.send_to(bytes(5000), peer)
        take_turns(left, right, right.try_receive)
        self.assertIn(right.ledger()["copied into arrays"], (0, 5000))

    def test_a_message_outlives_its_endpoint(self):
        left, peer, right = connected()
        left.send_to(b"x" * 1000, peer)
        data = take_turns(left, right, right.try_receive).data
        left.close(0)
        right.close(0)
        del left, right
        self.assertEqual(data.tobytes(), b"x" * 1000)

    def test_a_received_message_is_sent_on(self):
        left, peer, right = connected()
        left.send_to(b"y" * 1200, peer)
        message = take_turns(left, right, right.try_receive)
        right.send_to(message, message.peer)
        self.assertEqual(bytes(take_turns(left, right, left.try_receive)), b"y" * 1200)

    def test_rows_are_messages(self):
        for row_bytes in (0, 1, 64, 255, 256, 1400):
            with self.subTest(row_bytes=row_bytes):
                left, peer, right = connected()
                rows = np.random.default_rng(1).integers(0, 256, (300, row_bytes), dtype="u1")
                self.assertEqual(left.send_many(rows, peer), 300)
                got = []
                while sum(len(part) for part in got) < 300:
                    got.append(take_turns(left, right, lambda: right.receive_many(0)))
                self.assertTrue((np.concatenate([part.data for part in got]) == rows).all())

    def test_rows_of_every_second_column_block_are_messages(self):
        left, peer, right = connected()
        table = np.arange(100 * 128, dtype="u2").astype("u1").reshape(100, 128)
        self.assertEqual(left.send_many(table[::2, :64], peer), 50)
        got = []
        while len(got) < 50:
            messages = take_turns(left, right, lambda: right.receive_many(0))
            got += [messages[row].copy() for row in range(len(messages))]
        self.assertTrue((np.array(got) == table[::2, :64]).all())

    def test_many_messages_have_lengths_peers_and_kinds(self):
        left, peer, right = connected()
        left.send_to(b"one", peer, flush=False)
        call = left.request(b"three", peer, flush=False)
        left.send_to(b"", peer)
        rows = []
        while len(rows) < 3:
            messages = take_turns(left, right, lambda: right.receive_many(0))
            ends = messages.offsets + messages.lengths
            for row, (start, end) in enumerate(zip(messages.offsets, ends)):
                text = messages.bytes[start:end].tobytes()
                self.assertEqual(messages[row].tobytes(), text)
                self.assertEqual(messages.peer(row).index, messages.peers[row])
                rows.append((text, messages.kinds[row], messages.calls[row]))
        self.assertEqual(rows, [(b"one", 0, 0), (b"three", 1, call), (b"", 0, 0)])
        if len(messages) == 3:
            with self.assertRaisesRegex(ValueError, "data: .* different lengths, from 0 to 5 B"):
                messages.data
            self.assertEqual([text.tobytes() for text in messages], [b"one", b"three", b""])
            self.assertEqual(messages[-1].size, 0)
        with self.assertRaisesRegex(IndexError, "row: 3"):
            messages[3]
        with self.assertRaisesRegex(IndexError, "row: 3"):
            messages.peer(3)

    def test_no_messages_are_an_empty_array(self):
        endpoint = nocopy.Endpoint("127.0.0.1:0")
        messages = endpoint.receive_many(0)
        self.assertEqual((len(messages), messages.data.shape, messages.bytes.size), (0, (0, 0), 0))
        for field in (messages.offsets, messages.lengths, messages.peers, messages.kinds, messages.calls):
            self.assertEqual(field.shape, (0,))

    def test_messages_are_received_into_rows(self):
        left, peer, right = connected()
        sent = np.arange(20 * 64, dtype="u2").astype("u1").reshape(20, 64)
        left.send_many(sent, peer)
        array = np.full((8, 100), 255, "u1")
        received = 0
        while received < 20:
            rows = take_turns(left, right, lambda: right.receive_into(array, 0))
            self.assertLessEqual(len(rows), 8)
            self.assertTrue((rows.lengths == 64).all())
            self.assertTrue((array[: len(rows), :64] == sent[received : received + len(rows)]).all())
            self.assertTrue((array[:, 64:] == 255).all())
            received += len(rows)
        self.assertEqual(right.ledger()["copied into arrays"], 20 * 64)

    def test_a_message_too_long_for_a_row_is_kept(self):
        left, peer, right = connected()
        left.send_to(b"short", peer, flush=False)
        left.send_to(b"a longer one", peer)
        buffer = bytearray(5)
        take_turns(left, right, lambda: right.receive_into(buffer, 0))
        self.assertEqual(buffer, b"short")
        with self.assertRaisesRegex(ValueError, "array: has rows of 5 B, .* has 12 B"):
            take_turns(left, right, lambda: right.receive_into(buffer, 0))
        self.assertTrue(right.wait(0))
        self.assertEqual(bytes(right.receive(0)), b"a longer one")


class TestCalls(unittest.TestCase):
    def test_calls_have_their_responses(self):
        server = Server(nocopy.Endpoint("127.0.0.1:0"))
        with nocopy.Endpoint("127.0.0.1:0") as client:
            peer = client.connect(server.endpoint.local_addr(), PATIENCE)
            for number in range(100):
                response = client.call(b"question %d" % number, peer, PATIENCE)
                self.assertEqual(bytes(response), (b"question %d" % number)[::-1])
                self.assertEqual((response.kind, response.peer), ("response", peer))
            long = np.arange(100_000, dtype="u4")
            self.assertEqual(bytes(client.call(long, peer, PATIENCE)), long.tobytes()[::-1])
        server.join()

    def test_requests_under_way_together_are_matched_by_number(self):
        server = Server(nocopy.Endpoint("127.0.0.1:0"))
        with nocopy.Endpoint("127.0.0.1:0") as client:
            peer = client.connect(server.endpoint.local_addr(), PATIENCE)
            asked = {client.request(bytes([at]) * 9, peer, flush=False): at for at in range(50)}
            client.flush()
            while asked:
                response = client.receive(PATIENCE)
                if response is not None:
                    self.assertEqual(response.data[0], asked.pop(response.call))
        server.join()

    def test_a_call_without_an_answer_times_out(self):
        left, peer, _right = connected()
        with self.assertRaises(nocopy.TimedOut) as caught:
            left.call(b"question", peer, 0.02)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertIsInstance(caught.exception, nocopy.Error)
        self.assertRegex(str(caught.exception), r"no response within 20\.0 ms")

    def test_a_call_ends_with_its_connection(self):
        left, peer, right = connected()
        call = threading.Timer(0, right.close, (0,))
        call.start()
        with self.assertRaises((nocopy.Lost, nocopy.Gone)):
            left.call(b"question", peer, PATIENCE)
        call.join()


class TestConnections(unittest.TestCase):
    def test_a_refused_connection_raises(self):
        server = nocopy.Endpoint("127.0.0.1:0", accept=False)
        serving = threading.Thread(target=lambda: [server.wait(0.01) for _ in range(50)])
        serving.start()
        with self.assertRaisesRegex(nocopy.NotConnected, "not connected; it accepts no more connections"):
            nocopy.Endpoint("127.0.0.1:0").connect(server.local_addr(), PATIENCE)
        serving.join()

    def test_a_connection_without_an_answer_times_out(self):
        silent = nocopy.UdpSocket("127.0.0.1:0")
        client = nocopy.Endpoint("127.0.0.1:0", peers_max=1)
        for _ in range(2):  # the first attempt has ended, or there would be no room for a second
            with self.assertRaisesRegex(nocopy.TimedOut, r"not connected within 20\.0 ms"):
                client.connect(silent.local_addr(), 0.02)
        client.start_connect(silent.local_addr())
        with self.assertRaisesRegex(nocopy.TooManyPeers, "raise peers_max"):
            client.start_connect(silent.local_addr())

    def test_the_end_is_an_event_behind_the_last_message(self):
        left, peer, right = connected()
        left.send_to(b"the last one", peer)
        left.finish(peer)
        with self.assertRaises(nocopy.Finished):
            left.send_to(b"one more", peer)
        left.flush()
        self.assertEqual(bytes(take_turns(left, right, right.try_receive)), b"the last one")
        events = []

        def finished():
            event = right.poll_event()
            if event is not None:
                events.append(event)
            return events and events[-1].kind == "finished"

        take_turns(left, right, finished)
        accepted = events[0]
        self.assertEqual((accepted.kind, accepted.address), ("accepted", left.local_addr()))
        self.assertEqual(events[-1].peer, accepted.peer)

    def test_a_lost_peer_is_an_event_with_a_reason(self):
        left, peer, right = connected()
        right.close(0)
        while (event := left.poll_event()) is None:
            left.wait(PATIENCE)
        self.assertEqual((event.kind, event.peer), ("lost", peer))
        self.assertRegex(event.reason, "it ended the connection")
        with self.assertRaises(nocopy.Gone):
            left.send_to(b"too late", peer)
        self.assertIsNone(left.peer_stats(peer))

    def test_a_peer_of_another_endpoint_is_refused(self):
        left, _peer, right = connected()
        _other, foreign, _third = connected()
        with self.assertRaisesRegex(ValueError, "to: is a peer of another endpoint"):
            left.send_to(b"hello", foreign)
        with self.assertRaises(TypeError):
            left.send_to(b"hello", right.local_addr())

    def test_close_waits_for_the_acknowledgement(self):
        left, peer, right = connected()
        left.send_to(b"hello", peer, flush=False)
        closing = threading.Thread(target=lambda: results.append(left.close(PATIENCE)))
        results, received = [], []
        closing.start()
        while closing.is_alive():
            message = right.receive(0.01)
            received += [bytes(message)] if message is not None else []
        self.assertEqual((results, received), ([True], [b"hello"]))
        with self.assertRaisesRegex(ValueError, "Endpoint: is closed"):
            left.receive(0)


class TestRoom(unittest.TestCase):
    def test_a_peer_that_reads_nothing_stops_the_sender(self):
        left, peer, right = connected(memory=40 << 20)
        rows = np.zeros((100_000, 200), "u1")
        rows[:, :4] = np.arange(100_000, dtype="u4").view("u1").reshape(-1, 4)
        sent = left.send_many(rows, peer, 0.0)
        self.assertLess(sent, len(rows))
        with self.assertRaises(nocopy.Full):
            left.send_to(bytes(200), peer, 0.01)
        received, wrong = [], 0

        def receive():
            while sum(received) < len(rows):
                messages = right.receive_many(0.05)
                received.append(len(messages))
                if len(messages):
                    numbers = messages.data[:, :4].copy().view("u4").ravel()
                    nonlocal wrong
                    wrong += int((np.diff(numbers) != 1).sum())

        receiving = threading.Thread(target=receive)
        receiving.start()
        # This waits for room, again and again.
        self.assertEqual(left.send_many(rows[sent:], peer, PATIENCE), len(rows) - sent)
        while receiving.is_alive():
            left.wait(0.01)
        receiving.join()
        self.assertEqual((sum(received), wrong), (len(rows), 0))

    def test_an_array_is_free_again_after_the_acknowledgement(self):
        left, peer, right = connected()
        data = bytearray(1000)
        left.send_to(data, peer)
        with self.assertRaises(BufferError):
            data.append(0)
        take_turns(left, right, right.try_receive)
        take_turns(left, right, lambda: left.reap() or left.in_flight() == 0)
        left.reap()
        data.append(0)
        self.assertEqual(len(data), 1001)


class TestArguments(unittest.TestCase):
    def test_what_cannot_be_sent_is_named(self):
        left, peer, _right = connected(max_message_bytes=1 << 16)
        refused = [
            ("text", TypeError, "data: has no buffer; it is of type str"),
            (np.zeros((8, 8), "u1")[:, ::2], ValueError, "data: is not contiguous"),
            (np.array([None]), TypeError, "data: holds Python objects"),
        ]
        for data, kind, text in refused:
            with self.subTest(text=text), self.assertRaisesRegex(kind, text):
                left.send_to(data, peer)
        with self.assertRaisesRegex(ValueError, "data: has 1 dimension"):
            left.send_many(np.zeros(8, "u1"), peer)
        with self.assertRaises(nocopy.TooLong):
            left.send_to(bytes(1 << 20), peer)
        with self.assertRaisesRegex(ValueError, "array: is read-only"):
            left.receive_into(b"bytes", 0)
        with self.assertRaisesRegex(ValueError, "array: has no rows"):
            left.receive_into(np.zeros((0, 64), "u1"), 0)
        with self.assertRaisesRegex(ValueError, "timeout: -1 s"):
            left.receive(-1)

    def test_settings_out_of_range_are_refused(self):
        for settings, text in [
            ({"datagram_bytes": 10}, "datagrams of 10: out of range"),
            ({"max_message_bytes": 1 << 20, "memory": 1 << 16}, "memory of 65536 B: too little"),
            ({"peers_max": 0}, "peers of 0: out of range"),
        ]:
            with self.subTest(settings=settings), self.assertRaisesRegex(nocopy.OpenError, text):
                nocopy.Endpoint("127.0.0.1:0", **settings)
        with self.assertRaisesRegex(ValueError, "keep_alive: -1 s"):
            nocopy.Endpoint("127.0.0.1:0", keep_alive=-1)
        with self.assertRaises(nocopy.OpenError):
            nocopy.Endpoint("192.0.2.1:0")

    def test_counters_and_explanations(self):
        left, peer, right = connected(crc=True, keep_alive=5, dead_after=20)
        left.send_to(b"hello", peer)
        take_turns(left, right, right.try_receive)
        self.assertEqual(right.stats()["moved"], 1)
        self.assertGreaterEqual(left.ledger()["bytes"], 5)
        self.assertTrue(left.explain())
        stats = left.peer_stats(peer)
        self.assertEqual(stats["address"], right.local_addr())
        self.assertGreater(stats["window_packets"], 0)
        self.assertEqual((repr(peer), {peer: 1}[peer]), (f"<Peer {peer.index}>", 1))


if __name__ == "__main__":
    unittest.main()

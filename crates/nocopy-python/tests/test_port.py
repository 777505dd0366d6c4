"""nocopy.Port: batches of packets as arrays, and arrays as packets."""

import gc
import os
import random
import socket
import sys
import threading
import unittest

import nocopy
import numpy as np
from veth import Pair, PairTest, packet

MODES = ["xdp copy native", "xdp copy generic", "packet ring"]


def bytes_of(batch):
    """The packets of a batch."""
    data = batch.data
    return [data[p["offset"] : p["offset"] + p["length"]].tobytes() for p in batch.packets]


def receive_all(port, count):
    """So many packets, from as many batches as they come in."""
    batches, got = [], 0
    while got < count:
        batch = port.receive(10)
        assert batch is not None, f"{got} of {count} packets"
        batches.append(batch)
        got += len(batch)
    return batches


class MemoryPortTest(unittest.TestCase):
    def setUp(self):
        self.left, self.right = nocopy.Port.memory_pair()
        self.addCleanup(self.left.close)
        self.addCleanup(self.right.close)

    def test_each_row_is_a_packet(self):
        rows = np.arange(300 * 100, dtype=">u2").reshape(300, 100)
        self.assertEqual(self.left.send(rows), 300)
        got = [each for batch in receive_all(self.right, 300) for each in bytes_of(batch)]
        self.assertEqual(got, [row.tobytes() for row in rows])
        self.assertEqual(self.left.ledger()["copied from arrays"], 300 * 200)
        self.assertEqual(self.left.stats()["sent"]["moved"], 300)
        self.assertEqual(self.right.stats()["received"]["moved"], 300)
        self.assertEqual(self.right.mode, "memory")
        self.assertIn("memory", self.right.explain())

    def test_rows_with_strides_and_single_packets_are_sent(self):
        rows = np.arange(64 * 64, dtype="u1").reshape(64, 64)
        self.left.send(rows[::2, :32])
        self.left.send(b"one packet")
        self.left.send(rows[3])
        got = [each for batch in receive_all(self.right, 34) for each in bytes_of(batch)]
        expected = [row.tobytes() for row in rows[::2, :32]] + [b"one packet", rows[3].tobytes()]
        self.assertEqual(got, expected)
        self.assertEqual(self.left.send(np.empty((0, 60), "u1")), 0)

    def test_a_port_without_frames_to_send_says_so(self):
        left, right = nocopy.Port.memory_pair(frame_count=(64, 0))
        with self.assertRaisesRegex(OSError, "has no frames to send from"):
            left.send(np.zeros((2, 60), "u1"), 10.0)
        left.close(), right.close()

    def test_what_cannot_be_sent_is_refused(self):
        for data, error, expected in [
            ("text", TypeError, "data: has no buffer; it is of type str"),
            (np.zeros((3, 60), "O"), TypeError, "data: holds Python objects"),
            (np.zeros((3, 60), "u1")[:, ::2], ValueError, "data: its rows are not contiguous"),
            (np.zeros((3, 0), "u1"), ValueError, "data: has packets of 0 bytes"),
            (b"", ValueError, "data: has packets of 0 bytes"),
            (np.zeros((3, 10_000), "u1"), nocopy.TooLong, "longer than 1792 bytes"),
        ]:
            with self.subTest(expected), self.assertRaisesRegex(error, expected):
                self.left.send(data)
        self.assertEqual(self.left.stats()["sent"]["moved"], 0)

    def test_more_rows_than_frames_are_sent_in_turn(self):
        left, right = nocopy.Port.memory_pair(frame_count=(2048, 8), ring_sizes=(2048, 8), batch=5)
        self.assertEqual(left.send(np.arange(1000, dtype="u4").reshape(1000, 1)), 1000)
        got = []
        for batch in right:
            self.assertLessEqual(len(batch), 5)
            got += batch.column(0, "u4")[0].tolist()
            if len(got) == 1000:
                break
        self.assertEqual(got, list(range(1000)))
        self.assertTrue(left.balance()["is_balanced"] and right.balance()["is_balanced"])

    def test_packets_without_room_at_the_receiver_are_counted(self):
        left, right = nocopy.Port.memory_pair(frame_count=(16, 8), ring_sizes=(16, 8))
        self.assertEqual(left.send(np.zeros((1000, 60), "u1")), 1000)
        self.assertEqual(right.stats()["received"]["dropped"], 984)
        self.assertEqual(len(right.receive(10)), 16)

    def test_queued_packets_are_sent_with_flush(self):
        self.assertEqual(self.left.send(b"queued", flush=False), 1)
        self.assertIsNone(self.right.try_receive())
        self.assertEqual(self.left.in_flight(), 1)
        self.assertTrue(self.left.flush() and self.left.drain(10))
        self.assertEqual(bytes_of(self.right.try_receive()), [b"queued"])

    def test_column_has_the_field_of_each_packet_and_a_mask(self):
        self.left.send(np.arange(10, dtype=">u4").reshape(10, 1))
        self.left.send(b"ab")
        values, masks = zip(*(batch.column(0, ">u4") for batch in receive_all(self.right, 11)))
        self.assertEqual(np.concatenate(values).tolist(), [*range(10), 0])
        self.assertEqual(np.concatenate(masks).tolist(), [False] * 10 + [True])

    def test_frames_are_held_while_an_array_of_them_lives(self):
        total = self.right.balance()["total"]
        rows = np.arange(256, dtype="u1").reshape(64, 4)
        self.left.send(rows)
        kept = [(batch.data, batch.packets.copy()) for batch in receive_all(self.right, 64)]
        gc.collect()
        self.assertEqual(self.right.balance()["in_use"], 64)
        # Others come and go, in any order.
        order = random.Random(61)
        for _ in range(200):
            self.left.send(np.full((32, 4), 255, "u1"))
            others = receive_all(self.right, 32)
            order.shuffle(others)
            others.clear()
        held = [data[at : at + 4].tobytes() for data, packets in kept for at in packets["offset"]]
        self.assertEqual(held, [row.tobytes() for row in rows])
        kept.clear()
        gc.collect()
        balance = self.right.balance()
        self.assertEqual((balance["in_use"], balance["total"]), (0, total))
        self.assertTrue(balance["is_balanced"])

    def test_arrays_outlive_their_port(self):
        self.left.send(b"stays")
        [batch] = receive_all(self.right, 1)
        data = batch.data
        self.right.close()
        self.left.close()
        del batch
        gc.collect()
        self.assertEqual(data.tobytes(), b"stays")
        self.assertFalse(data.flags.writeable)

    def test_batches_of_any_size_make_the_same_number_of_objects(self):
        def allocated(count):
            least = sys.maxsize
            for _ in range(3):
                self.left.send(np.zeros((count, 60), "u1"))
                gc.collect()
                before = sys.getallocatedblocks()
                batch = self.right.receive(10)
                arrays = (batch.data, batch.packets, *batch.column(12, ">u2"))
                after = sys.getallocatedblocks()
                self.assertEqual((len(batch), len(arrays[1])), (count, count))
                least = min(least, after - before)
                del batch, arrays
            return least

        # The interpreter itself makes or frees one or two now and then.
        self.assertAlmostEqual(allocated(10), allocated(1000), delta=8)

    def test_a_forked_child_reads_but_takes_nothing(self):
        self.left.send(b"parent's")
        [batch] = receive_all(self.right, 1)
        child = os.fork()
        if child == 0:
            data = batch.data.tobytes()
            del batch
            gc.collect()
            try:
                self.right.receive(0)
            except RuntimeError as error:
                os._exit(0 if data == b"parent's" and "forked" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(batch.data.tobytes(), b"parent's")
        del batch
        self.assertEqual(self.right.balance()["in_use"], 0)

    def test_the_descriptor_and_try_receive_do_not_wait(self):
        self.assertIsNone(self.right.try_receive())
        self.assertIsNone(self.right.receive(0))
        self.assertFalse(self.right.arm())
        self.assertGreaterEqual(self.right.fileno(), 0)
        self.left.send(b"packet")
        self.assertTrue(self.right.arm())
        self.assertEqual(bytes_of(self.right.try_receive()), [b"packet"])

    def test_a_closed_port_is_refused(self):
        with self.left:
            pass
        with self.assertRaisesRegex(ValueError, "Port: sending: is closed; open another"):
            self.left.send(b"packet")

    def test_wrong_settings_are_refused(self):
        for settings, expected in [
            ({"mode": "fast"}, "mode: 'fast' is not known; give one of 'xdp zero-copy'"),
            ({"purpose": "none"}, "purpose: 'none' is not known"),
            ({"busy_poll": (-1, 8)}, "busy_poll: -1 s is no time"),
            ({"filter": "1,6 0 0"}, "filter: no program that can be used"),
        ]:
            with self.subTest(settings), self.assertRaisesRegex(ValueError, expected):
                nocopy.Port("nc-none", **settings)
        with self.assertRaisesRegex(nocopy.OpenError, "nc-none: no such interface"):
            nocopy.Port("nc-none")
        with self.assertRaisesRegex(nocopy.OpenError, "batch of 0 packets"):
            nocopy.Port.memory_pair(batch=0)


class InterfacePortTest(PairTest):
    def test_packets_pass_both_ways_in_each_mode(self):
        for mode in MODES:
            with self.subTest(mode), nocopy.Port(Pair.LEFT, mode=mode) as port:
                self.assertEqual(port.mode, mode)
                sent = [packet(bytes([i]) * (50 + i)) for i in range(100)]
                for each in sent:
                    self.raw.send(each)
                batches = receive_all(port, 100)
                self.assertEqual([each for batch in batches for each in bytes_of(batch)], sent)
                copied = port.stats()["received"]["rx_copied_out"]
                self.assertEqual(copied, 100 if mode == "packet ring" else 0)

                other = self.pair.raw_socket(self.pair.right, Pair.RIGHT, 0x88B7)
                rows = np.zeros((100, 60), "u1")
                rows[:, :14] = np.frombuffer(packet(b"", 0x88B7), "u1")
                rows[:, 14] = np.arange(100)
                self.assertEqual(port.send(rows), 100)
                self.assertTrue(port.drain(10))
                self.assertEqual([other.recv(100) for _ in range(100)], [row.tobytes() for row in rows])
                del batches
                self.assertTrue(port.balance()["is_balanced"])

    def test_a_filter_leaves_other_packets_to_the_host(self):
        only_88b5 = "4,40 0 0 12,21 0 1 34997,6 0 0 262144,6 0 0 0"
        host = self.pair.raw_socket(self.pair.left, Pair.LEFT, 0x88B6)
        with nocopy.Port(Pair.LEFT, mode="xdp copy native", filter=only_88b5) as port:
            self.raw.send(packet(b"for the host", 0x88B6))
            self.raw.send(packet(b"for the port"))
            self.assertEqual(bytes_of(receive_all(port, 1)[0]), [packet(b"for the port")])
            self.assertEqual(host.recv(100), packet(b"for the host", 0x88B6))

    def test_times_are_known_in_a_packet_ring(self):
        with nocopy.Port(Pair.LEFT, mode="packet ring") as port:
            self.raw.send(packet(b"timed"))
            [batch] = receive_all(port, 1)
            self.assertGreater(batch.packets["time"][0], 1 << 60)

    def test_a_missing_capability_is_named(self):
        child = os.fork()
        if child == 0:
            os.setgid(65534)
            os.setuid(65534)
            try:
                nocopy.Port(Pair.LEFT)
            except nocopy.Unsupported as error:
                os._exit(0 if error.capability.startswith("CAP_") and error.capability in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


class SocketOverPortTest(PairTest):
    ADDRESS = Pair.ADDRESSES[Pair.LEFT]

    def setUp(self):
        super().setUp()
        with self.pair.inside(self.pair.right):
            self.host = self.enterContext(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.host.bind((Pair.ADDRESSES[Pair.RIGHT], 0))
        self.host.settimeout(10)

    def test_datagrams_bypass_the_network_stack(self):
        for port in [{"interface": Pair.LEFT, "mode": mode} for mode in MODES] + [Pair.LEFT]:
            with self.subTest(port=port), nocopy.UdpSocket((self.ADDRESS, 0), port=port) as udp:
                self.host.sendto(b"to the port", udp.local_addr())
                rows = np.zeros((4, 20), "u1")
                filled = udp.receive_into(rows, 10)
                self.assertEqual(rows[0, : filled.lengths[0]].tobytes(), b"to the port")
                self.assertEqual(filled.source(0), self.host.getsockname())
                udp.send_to(np.full((3, 100), 7, "u1"), self.host.getsockname())
                self.assertEqual([self.host.recv(200) for _ in range(3)], [bytes([7] * 100)] * 3)
                self.assertIn(Pair.LEFT, udp.explain())

    def test_messages_go_over_a_port(self):
        port = {"interface": Pair.LEFT, "mode": "xdp copy native", "frame_count": (4096, 4096)}
        address = (Pair.ADDRESSES[Pair.RIGHT], 0)
        left = nocopy.Endpoint((self.ADDRESS, 0), port=port, streams=False)
        with self.pair.inside(self.pair.right):
            right = nocopy.Endpoint(address)
        for endpoint in left, right:
            self.addCleanup(endpoint.close, 0)
        received = []

        def receive():
            while (message := right.receive(10)) is None:  # the connection's event ended the wait
                right.poll_event()
            received.append(bytes(message))

        receiving = threading.Thread(target=receive)
        receiving.start()
        left.send_to(b"a message", left.connect(right.local_addr(), 10))
        receiving.join()
        self.assertEqual(received, [b"a message"])
        self.assertIn(Pair.LEFT, left.explain())

    def test_what_is_no_port_is_refused(self):
        for port, error, named in [
            (5, TypeError, "port: is a int"),
            ({}, ValueError, "port: 'interface' is missing"),
            ({"interface": Pair.LEFT, "speed": 1}, ValueError, "port: 'speed' is not known"),
            ({"interface": Pair.LEFT, "mode": "fast"}, ValueError, "mode: 'fast'"),
            ({"interface": Pair.LEFT, "queue": -1}, TypeError, "port: 'queue' is -1"),
        ]:
            with self.subTest(port=port), self.assertRaisesRegex(error, named):
                nocopy.UdpSocket((self.ADDRESS, 0), port=port)


if __name__ == "__main__":
    unittest.main()

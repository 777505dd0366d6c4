"""nocopy.Capture: blocks of packets as arrays."""

import errno
import gc
import os
import random
import select
import signal
import sys
import threading
import unittest

import nocopy
import numpy as np
from veth import Pair, PairTest, packet, set_up

# Accepts packets of the type 0x88b5: ldh [12]; jeq; ret.
ONLY_88B5 = "4,40 0 0 12,21 0 1 34997,6 0 0 262144,6 0 0 0"


def bytes_of(block):
    """The packets of a block."""
    data = block.data
    return [data[p["offset"] : p["offset"] + p["length"]].tobytes() for p in block.packets]


class CaptureTest(PairTest):
    def capture(self, **settings):
        settings = {"block_timeout": 0.01, "blocks": (1 << 18, 8)} | settings
        capture = nocopy.Capture(Pair.LEFT, **settings)
        self.addCleanup(capture.close)
        return capture

    def receive(self, capture, count):
        """Packets, from as many blocks as they came in."""
        blocks, got = [], 0
        while got < count:
            block = capture.receive(10)
            self.assertIsNotNone(block, f"{got} of {count} packets")
            blocks.append(block)
            got += len(block)
        return blocks

    def test_packets_are_found_in_the_array_of_their_block(self):
        capture = self.capture()
        sent = [packet(bytes([i]) * i) for i in range(200)]
        for each in sent:
            self.raw.send(each)
        blocks = self.receive(capture, 200)
        self.assertEqual([each for block in blocks for each in bytes_of(block)], sent)
        for block in blocks:
            packets = block.packets
            self.assertEqual(
                packets.dtype.names, ("offset", "length", "original_length", "time", "vlan", "outgoing")
            )
            self.assertTrue((packets["length"] == packets["original_length"]).all())
            self.assertTrue((packets["vlan"] == -1).all() and not packets["outgoing"].any())
            self.assertTrue((np.diff(packets["time"]) >= 0).all())
            self.assertEqual(len(block), len(packets))
        self.assertEqual(capture.stats()["packets"], 200)
        self.assertEqual(capture.stats()["malformed"], 0)
        self.assertEqual(capture.ledger()["datagrams"], 200)
        self.assertIn("packet ring", capture.explain())

    def test_arrays_lie_in_the_memory_of_the_kernels_ring(self):
        capture = self.capture()
        self.raw.send(packet(b"here"))
        [block] = self.receive(capture, 1)
        first = block.data.__array_interface__["data"][0]
        self.assertEqual(first, block.data.__array_interface__["data"][0])
        with open("/proc/self/maps") as maps:
            ranges = [(line.split()[0].split("-"), line) for line in maps]
        [line] = [line for (low, high), line in ranges if int(low, 16) <= first < int(high, 16)]
        self.assertIn("socket:", line)
        self.assertFalse(block.data.flags.writeable or block.packets.flags.writeable)
        with self.assertRaises(ValueError):
            block.data.flags.writeable = True

    def test_column_has_the_field_of_each_packet_and_a_mask(self):
        capture = self.capture()
        values = [1, 0x01020304, 0xFFFFFFFF]
        for value in values:
            self.raw.send(packet(value.to_bytes(4, "big") + b"end"))
            self.raw.send(packet(b"abc"))
        for block in self.receive(capture, 6):
            for dtype, length in (">u4", 4), ("u1", 1), (">u2", 2), ("S6", 6), ("(3,)u1", 3), ("u8", 8):
                for offset in 0, 11, 14, 17, 1000:
                    found, mask = block.column(offset, dtype)
                    expected = [each[offset : offset + length] for each in bytes_of(block)]
                    self.assertEqual(mask.tolist(), [len(each) < length for each in expected])
                    whole = b"".join(e if len(e) == length else bytes(length) for e in expected)
                    self.assertTrue((found == np.frombuffer(whole, dtype)).all())
            found, mask = block.column(14, ">u4")
            self.assertTrue(set(found[~mask]) <= set(values))

    def test_wrong_fields_are_refused(self):
        capture = self.capture()
        self.raw.send(packet(b""))
        [block] = self.receive(capture, 1)
        with self.assertRaisesRegex(ValueError, "-1 is out of range; give an integer from 0"):
            block.column(-1, "u1")
        with self.assertRaisesRegex(TypeError, "dtype: holds Python objects"):
            block.column(0, "O")
        with self.assertRaisesRegex(ValueError, "dtype: has no bytes"):
            block.column(0, "S0")
        self.assertTrue(block.column(sys.maxsize, "u8")[1].all())

    def test_blocks_of_any_size_make_the_same_number_of_objects(self):
        def allocated(capture, count):
            """Objects that a block makes with all its arrays; the least of some blocks."""
            least = sys.maxsize
            for _ in range(3):
                for _ in range(count):
                    self.raw.send(data)
                gc.collect()
                before = sys.getallocatedblocks()
                block = capture.receive(10)
                arrays = (block.data, block.packets, *block.column(12, ">u2"))
                after = sys.getallocatedblocks()
                self.assertEqual(len(arrays[1]), len(block))
                lengths.append(len(block))
                least = min(least, after - before)
                del block, arrays
            return least

        data = packet(b"")
        lengths = []
        of_few = allocated(self.capture(blocks=(4096, 8)), 10)
        self.assertLess(max(lengths), 40)
        lengths.clear()
        # Handed over only when they are full.
        of_many = allocated(self.capture(blocks=(2 << 20, 8), block_timeout=1000), 24_000)
        self.assertGreater(min(lengths), 10_000)
        # The interpreter itself makes or frees one or two now and then.
        self.assertAlmostEqual(of_few, of_many, delta=8)

    def test_blocks_return_to_the_kernel_with_their_last_array(self):
        capture = self.capture(blocks=(4096, 4))
        kept = []
        number = 0
        order = random.Random(61)
        while len(kept) < 4:
            self.raw.send(packet(bytes([number])))
            [block] = self.receive(capture, 1)
            kept.append([block.data, block.packets, block.column(14, "u1")])
            number += 1
        for _ in range(100):
            self.raw.send(packet(b"no block is free"))
        self.assertEqual(capture.stats()["tp_drops"], 100)
        self.assertIsNone(capture.try_receive())
        for values in kept:
            # Arrays of their own keep no block.
            self.assertEqual(values[1]["length"].tolist(), [15])
            order.shuffle(values)
        while kept:
            kept.pop(0).clear()
        self.raw.send(packet(b"again"))
        [block] = self.receive(capture, 1)
        self.assertEqual(bytes_of(block), [packet(b"again")])

    def test_arrays_outlive_their_capture(self):
        capture = self.capture()
        self.raw.send(packet(b"stays"))
        [block] = self.receive(capture, 1)
        data = block.data
        capture.close()
        del block, capture
        gc.collect()
        self.assertEqual(data[-5:].tobytes(), b"stays")

    def test_a_vlan_tag_is_in_its_place(self):
        capture = self.capture()
        tagged = packet(bytes.fromhex("6005 88b5") + b"tagged", 0x8100)
        self.raw.send(tagged)
        [block] = self.receive(capture, 1)
        self.assertEqual(block.packets["vlan"].tolist(), [5])
        self.assertEqual(bytes_of(block), [tagged])
        self.assertEqual(block.column(12, ">u2")[0].tolist(), [0x8100])

    def test_settings_reach_the_kernel(self):
        capture = self.capture(filter=ONLY_88B5, snap=20, outgoing=True)
        own = self.pair.raw_socket(self.pair.left, Pair.LEFT)
        self.raw.send(packet(b"another type", 0x88B6))
        self.raw.send(packet(b"a longer packet"))
        own.send(packet(b"outgoing"))
        packets = np.concatenate([block.packets for block in self.receive(capture, 2)])
        self.assertEqual(packets["length"].tolist(), [20, 20])
        self.assertEqual(packets["original_length"].tolist(), [29, 22])
        self.assertEqual(packets["outgoing"].tolist(), [False, True])
        self.assertEqual(capture.stats()["tp_packets"], 2)

    def test_immediate_has_a_block_for_each_packet(self):
        capture = self.capture(immediate=True)
        self.raw.send(packet(b"one"))
        self.raw.send(packet(b"two"))
        blocks = [bytes_of(capture.receive(10)) for _ in range(2)]
        self.assertEqual(blocks, [[packet(b"one")], [packet(b"two")]])

    def test_packets_can_be_read_one_by_one(self):
        capture = self.capture()
        sent = [packet(bytes([i])) for i in range(50)]
        for each in sent:
            self.raw.send(each)
        got = []
        while len(got) < 50:
            if not capture.arm():
                self.assertTrue(select.select([capture], [], [], 10)[0])
            while (found := capture.next_packet()) is not None:
                data, time_ns, original, outgoing = found
                self.assertEqual((original, outgoing), (len(data), False))
                self.assertGreater(time_ns, 1 << 60)
                got.append(data)
        self.assertEqual(got, sent)

    def test_iteration_gives_blocks(self):
        capture = self.capture()
        for number in range(3):
            self.raw.send(packet(bytes([number])))
        got = []
        for block in capture:
            got += bytes_of(block)
            if len(got) == 3:
                break
        self.assertEqual(got, [packet(bytes([number])) for number in range(3)])

    def test_the_descriptor_becomes_readable(self):
        capture = self.capture()
        self.assertFalse(capture.arm())
        reader = threading.Thread(target=lambda: self.raw.send(packet(b"wake up")))
        reader.start()
        self.assertEqual(select.select([capture], [], [], 10)[0], [capture])
        reader.join()
        self.assertTrue(capture.arm())
        self.assertEqual(bytes_of(capture.try_receive()), [packet(b"wake up")])

    def test_a_signals_handler_ends_a_wait(self):
        class Stop(Exception):
            pass

        def stop(*_):
            raise Stop

        capture = self.capture()
        before = signal.signal(signal.SIGALRM, stop)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with self.assertRaises(Stop):
            capture.receive()

    def test_a_second_thread_is_refused(self):
        capture = self.capture()
        waiting = threading.Thread(target=lambda: capture.receive(10))
        waiting.start()
        refused = None
        while refused is None and waiting.is_alive():
            try:
                capture.try_receive()
            except RuntimeError as error:
                refused = error
        self.raw.send(packet(b"enough"))
        waiting.join()
        self.assertRegex(str(refused), "in use by another thread")

    def test_a_closed_capture_is_refused(self):
        with self.capture() as capture:
            pass
        with self.assertRaisesRegex(ValueError, "Capture: is closed; open another"):
            capture.receive()

    def test_an_interface_that_goes_down_is_an_error(self):
        capture = self.capture()
        set_up(Pair.LEFT, False)
        with self.assertRaisesRegex(nocopy.Error, r"nc0: cannot be captured .*\(ENETDOWN\)") as raised:
            capture.receive(10)
        self.assertEqual(raised.exception.errno, errno.ENETDOWN)
        with self.assertRaisesRegex(nocopy.OpenError, "the interface is down"):
            self.capture()

    def in_child(self, work):
        """Runs that in a forked child, which must return true."""
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if work() else 1)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

    def test_a_forked_child_takes_nothing_from_its_parent(self):
        capture = self.capture(blocks=(4096, 2))
        self.raw.send(packet(b"parent's"))
        held = self.receive(capture, 1)

        def drop_all():
            nonlocal capture
            data = held[0].data[-8:].tobytes()
            held.clear()
            gc.collect()
            try:
                self.assertTrue(select.select([capture], [], [], 10)[0])
            except RuntimeError as error:
                return data == b"parent's" and "forked" in str(error)

        self.in_child(drop_all)
        for _ in range(200):
            self.raw.send(packet(b"overwrites what is free"))
        self.assertEqual(held[0].data[-8:].tobytes(), b"parent's")
        self.assertGreater(capture.stats()["tp_drops"], 0)

    def test_a_missing_capability_is_named(self):
        def refuse():
            os.setgid(65534)
            os.setuid(65534)
            try:
                nocopy.Capture(Pair.LEFT)
            except nocopy.Unsupported as error:
                return error.capability == "CAP_NET_RAW" and "CAP_NET_RAW" in str(error)

        self.in_child(refuse)


class SettingsTest(unittest.TestCase):
    def test_wrong_settings_are_refused(self):
        for settings, expected in [
            ({"filter": "1,6 0 0"}, "filter: no program that can be used"),
            ({"filter": "1,5 0 0 9"}, "filter: no program that can be used"),
            ({"block_timeout": -1}, "block_timeout: -1 s is no time"),
            ({"block_timeout": float("nan")}, "block_timeout: NaN s is no time"),
            ({"wait": "sometimes"}, "wait: not known"),
        ]:
            with self.subTest(settings), self.assertRaisesRegex(ValueError, expected):
                nocopy.Capture("nc-none", **settings)
        with self.assertRaisesRegex(nocopy.OpenError, "nc-none: no such interface"):
            nocopy.Capture("nc-none")
        with self.assertRaisesRegex(nocopy.OpenError, "2 blocks of 3 B: cannot be used"):
            nocopy.Capture("nc-none", blocks=(3, 2))


if __name__ == "__main__":
    unittest.main()

"""Datagrams placed by number, over the loopback."""

import gc
import unittest

import nocopy
import numpy as np

ROWS, ITEMS = 64, 100
DATAGRAM = np.dtype([("number", ">u8"), ("items", ">u2", ITEMS)])


def datagrams(numbers):
    made = np.zeros(len(numbers), DATAGRAM)
    made["number"] = numbers
    made["items"] = np.arange(ITEMS) + np.asarray(numbers, dtype="u8")[:, None] % 1000
    return made


def as_rows(made):
    return made.view("u1").reshape(len(made), DATAGRAM.itemsize)


class PlacedTest(unittest.TestCase):
    def setUp(self):
        self.socket = nocopy.UdpSocket("127.0.0.1:0", receive_buffer=4 << 20)
        self.sender = nocopy.UdpSocket(connect=self.socket.local_addr())
        self.addCleanup(self.socket.close)
        self.addCleanup(self.sender.close)

    def place(self, **settings):
        defaults = dict(number=nocopy.Field(0, ">u8"), shape=(ROWS, ITEMS), dtype=">u2")
        placed = self.socket.place(**{**defaults, **settings})
        self.addCleanup(placed.close)
        return placed

    def send(self, numbers):
        self.sender.send(as_rows(datagrams(numbers)))

    def test_rows_are_where_their_numbers_say(self):
        placed = self.place()
        numbers = np.random.default_rng(1).permutation(ROWS)
        self.send(numbers)
        chunk = placed.receive(10.0)
        self.assertEqual((chunk.first, chunk.filled, chunk.array.dtype), (0, ROWS, np.dtype(">u2")))
        self.assertTrue((chunk.array == datagrams(np.arange(ROWS))["items"]).all())
        self.assertTrue(chunk.present.all() and chunk.present.dtype == bool)
        self.assertFalse(chunk.array.flags.writeable)
        self.assertTrue(chunk.array.flags.c_contiguous)

    def test_missing_rows_are_zeros_and_marked(self):
        placed = self.place()
        self.send([n for n in range(ROWS) if n % 10])
        self.assertIsNone(placed.receive(0.05))
        chunk = placed.finish()
        self.assertEqual(list(chunk.present), [n % 10 != 0 for n in range(ROWS)])
        self.assertFalse(chunk.array[~chunk.present].any())
        self.assertIsNone(placed.finish())
        self.assertEqual(placed.stats()["missing"], ROWS - chunk.filled)

    def test_a_jump_ends_chunks_in_order(self):
        placed = self.place(ring=4)
        self.send([1, ROWS + 1])
        self.send([3 * ROWS])
        firsts = [placed.receive(10.0).first]
        while chunk := placed.receive(0.05) or placed.finish():
            firsts.append(chunk.first)
        self.assertEqual(firsts, [0, ROWS, 3 * ROWS])

    def test_arrays_keep_their_chunk_from_the_ring(self):
        placed = self.place(ring=2)
        kept = []
        with self.assertRaises(nocopy.NoBuffers):
            for chunk in range(3):
                self.send(range(chunk * ROWS, (chunk + 1) * ROWS))
                kept.append(placed.receive(10.0).array)
        first = kept[0].copy()
        self.assertTrue((kept[0] == first).all())
        kept.clear()
        gc.collect()
        self.assertEqual(placed.receive(10.0).first, 2 * ROWS)

    def test_heap_and_offset_make_the_number(self):
        placed = self.place(
            number=(nocopy.Field(0, ">u2"), nocopy.Field(2, ">u6")), rows_per_heap=2, payload=slice(8, None)
        )
        made = datagrams(np.arange(ROWS))
        heaps = (made["number"] // 2).astype("u8") << 48
        made["number"] = heaps | (np.arange(ROWS, dtype="u8") % 2) * (2 * ITEMS)
        self.sender.send(as_rows(made))
        chunk = placed.receive(10.0)
        self.assertTrue((chunk.array == made["items"]).all())

    def test_what_is_no_placing_is_refused(self):
        for settings, error, named in [
            (dict(number=5), TypeError, "number"),
            (dict(number=(nocopy.Field(0, "u1"), nocopy.Field(1, "u1"))), ValueError, "rows_per_heap"),
            (dict(payload=slice(-8, None)), ValueError, "payload"),
            (dict(payload=slice(8, 9)), ValueError, "payload"),
            (dict(shape=()), ValueError, "shape"),
            (dict(shape=(0, ITEMS)), nocopy.OpenError, "rows of a chunk"),
            (dict(dtype=object), TypeError, "dtype"),
            (dict(dtype=("u1", (2,))), TypeError, "dtype: .* has a shape"),
        ]:
            with self.subTest(settings=settings), self.assertRaisesRegex(error, named):
                self.place(**settings)
        for dtype in ["u9", ">i8", "f8", ">u0", ">u9", ""]:
            with self.subTest(dtype=dtype), self.assertRaisesRegex(ValueError, "dtype"):
                nocopy.Field(0, dtype)
        with self.assertRaisesRegex(ValueError, "offset"):
            nocopy.Field(-1, ">u8")
        self.assertEqual(self.socket.receive(0.0), [], "a refused placing closed the socket")

    def test_the_socket_still_sends_but_receives_no_more(self):
        self.place()
        with self.assertRaisesRegex(ValueError, "closed"):
            self.socket.receive(0.0)
        self.socket.send_to(b"answer", self.sender.local_addr())
        self.assertEqual(self.socket.stats()["sent"]["moved"], 1)
        self.assertEqual(self.socket.ledger()["sent"]["bytes"], 6)
        self.assertIn("sent: ", self.socket.explain())

    def test_every_byte_is_in_the_ledger(self):
        placed = self.place()
        self.send(range(ROWS))
        placed.receive(10.0)
        ledger = placed.ledger()
        self.assertEqual(ledger["datagrams"], ROWS)
        self.assertGreaterEqual(ledger["copied (socket call)"], ROWS * 2 * ITEMS)
        self.assertIn("rows", placed.explain())


if __name__ == "__main__":
    unittest.main()

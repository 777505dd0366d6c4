"""UdpSocket over lo: values, addresses of memory, errors."""

import os
import signal
import threading
import unittest
import warnings

import nocopy
import numpy as np

# Longer than any test waits for what was sent; nothing is asserted about time.
LONG = 30.0


def rows_of(count, row_bytes):
    """Rows whose bytes all differ from those of their neighbours."""
    return np.random.default_rng(1).integers(0, 256, (count, row_bytes), dtype="u1")


def address_of(array):
    """Where an array's bytes are."""
    return array.__array_interface__["data"][0]


def receive_bursts(socket, datagrams):
    """Bursts with so many datagrams."""
    bursts = []
    while sum(len(burst) for burst in bursts) < datagrams:
        received = socket.receive(LONG)
        if not received:
            raise AssertionError(f"{sum(len(burst) for burst in bursts)} of {datagrams} datagrams arrived")
        bursts += received
    return bursts


def datagrams_of(bursts):
    """The bytes of each datagram."""
    return [row.tobytes() for burst in bursts for row in burst.data]


def passed_on(what):
    """A test of something that the emulator of a processor, in its user mode, does not pass on to the kernel."""
    return unittest.skipIf("NOCOPY_TEST_EMULATED" in os.environ, f"lacks {what}, which QEMU does not pass on")


class UdpTest(unittest.TestCase):
    host = "127.0.0.1"

    def open(self, address=None, **settings):
        socket = nocopy.UdpSocket((self.host, 0) if address is None else address, **settings)
        self.addCleanup(socket.close)
        return socket

    def pair(self, **settings):
        """A receiver, a sender, and the receiver's address."""
        receiver = self.open(**settings)
        return receiver, self.open(), receiver.local_addr()

    def error_of(self, kind, call, *arguments, **settings):
        """The text of the error that a call raises."""
        with self.assertRaises(kind) as raised:
            call(*arguments, **settings)
        return str(raised.exception)


class ReceivedTest(UdpTest):
    def test_rows_arrive_as_they_were_sent(self):
        receiver, sender, to = self.pair()
        sent = rows_of(40, 1400)
        sender.send_to(sent, to)
        bursts = receive_bursts(receiver, 40)
        self.assertEqual(datagrams_of(bursts), [row.tobytes() for row in sent])
        for burst in bursts:
            self.assertEqual((burst.data.dtype, burst.data.shape[1:]), (np.dtype("u1"), (1400,)))
            self.assertFalse(burst.is_truncated)
            self.assertEqual(burst.source, sender.local_addr())

    def test_data_of_a_burst_is_not_copied_and_read_only(self):
        receiver, sender, to = self.pair()
        sender.send_to(bytes(2000), to, segment=600)
        bursts = receive_bursts(receiver, 4)
        for burst in bursts:
            self.assertEqual(address_of(burst.data), address_of(burst.data))
            self.assertFalse(burst.data.flags.writeable)
            self.assertFalse(burst.data.flags.owndata)
        self.assertEqual(receiver.ledger()["copied into arrays"], 0)
        if len(bursts) == 2:  # they arrived together: the short one follows the others in their memory
            whole, rest = bursts
            self.assertEqual(address_of(whole.data) + whole.data.nbytes, address_of(rest.data))

    def test_arrays_outlive_the_socket(self):
        receiver, sender, to = self.pair()
        sent = rows_of(5, 100)
        sender.send_to(sent, to)
        arrays = [burst.data for burst in receive_bursts(receiver, 5)]
        receiver.close()
        del receiver
        np.testing.assert_array_equal(np.concatenate(arrays), sent)

    def test_a_shorter_last_datagram_is_a_burst_of_its_own(self):
        receiver, sender, to = self.pair()
        sent = rows_of(1, 3000).tobytes()
        sender.send_to(sent, to, segment=1400)
        bursts = receive_bursts(receiver, 3)
        self.assertEqual([len(datagram) for datagram in datagrams_of(bursts)], [1400, 1400, 200])
        self.assertEqual(b"".join(datagrams_of(bursts)), sent)

    def test_an_empty_datagram_is_a_row_without_bytes(self):
        receiver, sender, to = self.pair()
        sender.send_to(b"", to)
        sender.send_to(np.zeros((2, 0), "u1"), to)
        self.assertEqual(datagrams_of(receive_bursts(receiver, 3)), [b"", b"", b""])

    def test_what_an_iteration_leaves_is_received_later(self):
        receiver, sender, to = self.pair()
        sent = [bytes([number] * 100) for number in range(40)]
        for datagram in sent[:20]:
            sender.send_to(datagram, to)
        sender.send_to(b"".join(sent[20:]) + b"short", to, segment=100)
        received = []
        while len(received) < 41:
            for burst in receiver:
                received += datagrams_of([burst])
                break
            received += datagrams_of(receiver.try_receive()) if len(received) % 3 == 0 else []
        self.assertEqual(received, sent + [b"short"])

    def test_a_short_datagram_that_an_iteration_leaves_is_gathered_and_filled(self):
        def gather(receiver):
            array, lengths = receiver.receive(LONG, gather=True)
            return [row[:length].tobytes() for row, length in zip(array, lengths)]

        def fill(receiver):
            array = np.zeros((3, 100), "u1")
            rows = receiver.receive_into(array, LONG)
            self.assertEqual(rows.source(0), sender.local_addr())
            return [row[:length].tobytes() for row, length in zip(array, rows.lengths)]

        for receive in (gather, fill):
            receiver, sender, to = self.pair()
            sent = rows_of(1, 250).tobytes()
            sender.send_to(sent, to, segment=100)
            for burst in receiver:
                break
            found = datagrams_of([burst])
            self.assertTrue(receiver.arm())  # a rest, or what did not arrive together
            while len(found) < 3:
                found += receive(receiver)
            self.assertEqual(b"".join(found), sent)
            self.assertEqual(receiver.ledger()["copied into arrays"] > 0, len(burst) < 3)

    def test_nothing_within_the_timeout_is_an_empty_list(self):
        receiver = self.open()
        self.assertEqual(receiver.receive(0.0), [])
        self.assertEqual(receiver.receive(0.01), [])
        self.assertEqual(receiver.try_receive(), [])

    def test_gathered_datagrams_are_one_array_and_counted(self):
        receiver, sender, to = self.pair()
        sender.send_to(rows_of(1, 1000).tobytes(), to, segment=400)
        # They need not all have arrived yet.
        receiver.arm()
        lengths = []
        while sum(lengths) < 1000:
            array, some = receiver.receive(LONG, gather=True)
            self.assertEqual(array.shape, (len(some), max(some)))
            lengths += some.tolist()
        self.assertEqual(lengths, [400, 400, 200])
        self.assertEqual(receiver.ledger()["copied into arrays"], 1000)

    def test_iteration_goes_through_bursts(self):
        receiver, sender, to = self.pair()
        sender.send_to(b"one", to)
        sender.send_to(b"other", to)
        received = []
        for burst in receiver:
            received += datagrams_of([burst])
            if len(received) == 2:
                break
        self.assertEqual(received, [b"one", b"other"])

    @passed_on("the kernel's times")
    def test_metadata_is_none_unless_requested(self):
        receiver, sender, to = self.pair()
        sender.send_to(b"x", to)
        [burst] = receive_bursts(receiver, 1)
        self.assertEqual((burst.time, burst.destination, burst.interface), (None, None, None))
        receiver, sender, to = self.pair(receive_metadata=True, receive_times=True)
        sender.send_to(b"x", to)
        [burst] = receive_bursts(receiver, 1)
        self.assertEqual((burst.destination, burst.interface), (self.host, 1))
        self.assertGreater(burst.time, 10**18)  # nanoseconds since 1970


class ReceivedIntoTest(UdpTest):
    def receive_rows(self, receiver, array, count):
        """Fills rows of an array until so many are filled."""
        lengths, filled = [], 0
        while filled < count:
            rows = receiver.receive_into(array[filled:], LONG)
            self.assertGreater(len(rows), 0)
            lengths += rows.lengths.tolist()
            filled += len(rows)
        return lengths

    def test_rows_of_the_callers_array_are_filled(self):
        receiver, sender, to = self.pair()
        sent, array = rows_of(20, 1400), np.zeros((32, 1400), "u1")
        before = address_of(array)
        sender.send_to(sent, to)
        self.assertEqual(self.receive_rows(receiver, array, 20), [1400] * 20)
        np.testing.assert_array_equal(array[:20], sent)
        self.assertFalse(array[20:].any())
        self.assertEqual(address_of(array), before)
        # Those that the kernel did not copy straight into their rows.
        self.assertLessEqual(receiver.ledger()["copied into arrays"], 20 * 1400)

    def test_no_more_datagrams_than_rows_are_taken(self):
        receiver, sender, to = self.pair()
        sent, array = rows_of(7, 50), np.zeros((4, 50), "u1")
        sender.send_to(sent, to)
        self.receive_rows(receiver, array, 4)
        np.testing.assert_array_equal(array, sent[:4])
        self.receive_rows(receiver, array, 3)
        np.testing.assert_array_equal(array[:3], sent[4:])

    def test_rows_with_strides_are_filled_and_nothing_between_them(self):
        receiver, sender, to = self.pair()
        sent, whole = rows_of(3, 100), np.full((6, 160), 7, "u1")
        sender.send_to(sent, to)
        self.receive_rows(receiver, whole[::2, :100], 3)
        np.testing.assert_array_equal(whole[::2, :100], sent)
        self.assertTrue((whole[1::2] == 7).all() and (whole[:, 100:] == 7).all())

    def test_numbers_of_several_bytes_are_filled(self):
        receiver, sender, to = self.pair()
        sent, array = np.arange(12, dtype=">u4").reshape(2, 3, 2), np.zeros((2, 3, 2), ">u4")
        sender.send_to(sent, to)
        self.receive_rows(receiver, array, 2)
        np.testing.assert_array_equal(array, sent)

    def test_the_length_of_a_truncated_datagram_is_the_whole_one(self):
        receiver, sender, to = self.pair()
        array = np.zeros((2, 10), "u1")
        sender.send_to(b"0123456789abcdef", to)
        self.assertEqual(self.receive_rows(receiver, array[:1], 1), [16])
        self.assertEqual(array.tobytes(), b"0123456789" + bytes(10))

    @passed_on("the kernel's times")
    def test_sources_and_times_are_arrays(self):
        receiver, sender, to = self.pair(receive_times=True)
        sender.send_to(b"x", to)
        rows = receiver.receive_into(np.zeros((3, 8), "u1"), LONG)
        self.assertEqual((len(rows), rows.lengths.dtype, rows.times.dtype), (1, np.int64, np.uint64))
        self.assertGreater(int(rows.times[0]), 10**18)
        self.assertEqual(rows.source(0), sender.local_addr())
        self.assertEqual(rows.sources["port"][0], sender.local_addr()[1])
        self.assertEqual(rows.sources["address"].shape, (1, 16))
        self.assertIn("1 was not filled; 1 were", self.error_of(IndexError, rows.source, 1))

    def test_nothing_within_the_timeout_fills_no_row(self):
        self.assertEqual(len(self.open().receive_into(np.zeros((2, 8), "u1"), 0.01)), 0)

    def test_an_array_that_cannot_be_filled_is_refused(self):
        receiver = self.open()
        read_only = np.zeros((2, 8), "u1")
        read_only.flags.writeable = False
        refusals = [
            (TypeError, "no array", "array: has no buffer; it is of type str;"),
            (TypeError, np.array([[None]]), "array: holds Python objects (dtype object);"),
            (ValueError, read_only, "array: is read-only;"),
            (ValueError, np.uint64(7), "array: has no dimension; give numpy.atleast_1d of it"),
            (ValueError, np.zeros(8, "u1"), "array: has 1 dimension(s), of shape [8];"),
            (ValueError, np.zeros((2, 8), "u1")[:, ::2], "array: its rows are not contiguous; its strides"),
            (ValueError, np.zeros((2, 8), "u1")[::-1], "its strides are [-8, 1] for the shape [2, 8]"),
            (ValueError, np.zeros((0, 8), "u1"), "array: has no rows;"),
            (ValueError, np.zeros((2, 0), "u1"), "array: has rows of no bytes;"),
        ]
        for kind, array, text in refusals:
            with self.subTest(text):
                self.assertIn(text, self.error_of(kind, receiver.receive_into, array, 0.0))


class SentTest(UdpTest):
    def test_each_row_with_strides_is_a_datagram(self):
        receiver, sender, to = self.pair()
        sent = rows_of(10, 200)[::3, :120]
        sender.send_to(sent, to)
        self.assertEqual(datagrams_of(receive_bursts(receiver, 4)), [row.tobytes() for row in sent])

    def test_many_datagrams_are_sent_in_order(self):
        receiver, sender, to = self.pair()
        sent = rows_of(300, 500)
        for first in range(0, 300, 30):  # no more than the kernel's queue holds
            sender.send_to(sent[first : first + 30], to)
            received = datagrams_of(receive_bursts(receiver, 30))
            self.assertEqual(received, [row.tobytes() for row in sent[first : first + 30]])

    def test_a_connected_socket_sends_without_an_address(self):
        receiver = self.open()
        sender = self.open(connect=receiver.local_addr())
        sender.send(b"hello")
        self.assertEqual(datagrams_of(receive_bursts(receiver, 1)), [b"hello"])

    def test_send_without_a_destination_is_refused(self):
        text = self.error_of(nocopy.NotConnected, self.open().send, b"hello")
        self.assertEqual(text, "it has no destination; connect the socket, or give a destination")
        self.assertTrue(issubclass(nocopy.NotConnected, nocopy.Rejected))
        self.assertTrue(issubclass(nocopy.Rejected, nocopy.Error) and issubclass(nocopy.Error, OSError))

    def test_an_argument_that_cannot_be_sent_is_refused(self):
        _, sender, to = self.pair()
        refusals = [
            (TypeError, "text", {}, "data: has no buffer; it is of type str;"),
            (TypeError, np.array([None]), {}, "data: holds Python objects (dtype object);"),
            (ValueError, np.zeros((2, 70000), "u1"), {}, "data: has rows of 70000 bytes;"),
            (ValueError, np.zeros((2, 8), "u1")[:, ::2], {}, "data: its rows are not contiguous;"),
            (ValueError, np.zeros(8, "u1")[::2], {}, "data: is not contiguous;"),
            (ValueError, np.zeros((2, 8), "u1"), {"segment": 4}, "segment: is for one buffer;"),
            (ValueError, b"data", {"segment": 0}, "segment: is 0;"),
            (nocopy.TooLong, bytes(70000), {}, "it is longer than 65507 bytes"),
        ]
        for kind, data, settings, text in refusals:
            with self.subTest(text):
                self.assertIn(text, self.error_of(kind, sender.send_to, data, to, **settings))

    def test_an_address_that_is_none_is_refused(self):
        sender = self.open()
        refusals = [
            (TypeError, 5, "to: is no address;"),
            (TypeError, (5, 5), "to: its host is no text;"),
            (ValueError, "127.0.0.1", "to: '127.0.0.1' has no port;"),
            (ValueError, ("127.0.0.1", 65536), "to: its port is no number from 0 to 65535"),
        ]
        for kind, to, text in refusals:
            with self.subTest(text):
                self.assertIn(text, self.error_of(kind, sender.send_to, b"x", to))

    def test_a_buffer_is_refused_to_an_array_that_keeps_no_view(self):
        buffer = self.open().buffer()
        with self.assertRaisesRegex(BufferError, "numpy.frombuffer"):
            np.ndarray(len(buffer), "u1", buffer=buffer)
        view = np.frombuffer(buffer, "u1")
        view[:] = 7
        self.assertEqual(bytes(buffer), bytes([7] * len(buffer)))

    def test_a_buffer_that_is_refused_can_be_sent_afterwards(self):
        receiver, sender, to = self.pair()
        buffer = sender.buffer()
        np.frombuffer(buffer, "u1")[:5] = 7
        buffer.resize(5)
        self.error_of(nocopy.NotConnected, sender.send, buffer)
        self.assertEqual(bytes(buffer), bytes([7] * 5))
        sender.send_to(buffer, to)
        self.assertEqual(datagrams_of(receive_bursts(receiver, 1)), [bytes([7] * 5)])
        self.error_of(BufferError, bytes, buffer)

    def test_a_queued_buffer_is_exported_until_it_was_sent(self):
        receiver, sender, to = self.pair()
        data = bytearray(b"x" * 5000)
        sender.send_to(data, to, flush=False)
        with self.assertRaises(BufferError):
            data.append(0)
        self.assertEqual(receiver.receive(0.0), [])
        self.assertTrue(sender.flush(LONG) and sender.drain(LONG))
        sender.reap()
        data.append(0)
        self.assertEqual(datagrams_of(receive_bursts(receiver, 1)), [b"x" * 5000])

    def test_a_buffer_with_views_is_not_sent(self):
        receiver, sender, to = self.pair()
        buffer = sender.buffer()
        view = np.frombuffer(buffer, "u1")
        view[:] = 3
        text = self.error_of(BufferError, sender.send_to, buffer, to, segment=1000)
        self.assertIn("buffer: not sent; 1 array(s) or view(s) of it exist;", text)
        length = len(view)
        del view
        sender.send_to(buffer, to, segment=1000)
        received = b"".join(datagrams_of(receive_bursts(receiver, -(-length // 1000))))
        self.assertEqual(received, b"\3" * length)
        self.assertIn("it was sent", self.error_of(BufferError, np.frombuffer, buffer, "u1"))


class SocketTest(UdpTest):
    def test_text_and_tuples_are_addresses(self):
        self.assertEqual(nocopy.UdpSocket("127.0.0.1:0").local_addr()[0], "127.0.0.1")
        self.assertEqual(nocopy.UdpSocket(("127.0.0.1", 0)).local_addr()[0], "127.0.0.1")

    def test_an_address_of_another_host_has_the_kernels_errno(self):
        with self.assertRaises(nocopy.OpenError) as raised:
            nocopy.UdpSocket("192.0.2.1:0")
        self.assertEqual(raised.exception.errno, 99)
        self.assertIn("192.0.2.1:0: not bound (EADDRNOTAVAIL);", str(raised.exception))

    def test_memory_of_no_bytes_is_refused(self):
        for pool in [(0, 65536), (4, 0)]:
            for argument in ["receive_pool", "send_pool"]:
                text = self.error_of(ValueError, nocopy.UdpSocket, **{argument: pool})
                self.assertIn(f"{argument}: ({pool[0]}, {pool[1]}) is no memory", text)

    def test_settings_that_are_not_known_are_refused(self):
        refusals = [
            ({"method": "pigeon"}, "method: 'pigeon' is not known; give one of '"),
            ({"wait": "long"}, "wait: not known; give 'spin', 'interrupt',"),
            ({"group": "nowhere"}, "group: 'nowhere' is no address;"),
        ]
        for settings, text in refusals:
            with self.subTest(text):
                self.assertIn(text, self.error_of(ValueError, self.open, **settings))

    def test_an_integer_out_of_range_is_refused_by_the_name_of_its_argument(self):
        sender = self.open()
        for highest, call, name, value in [
            (2**64 - 1, self.open, "receive_buffer", -1),
            (2**64 - 1, self.open, "send_buffer", 1 << 64),
            (255, self.open, "hop_limit", 256),
            (2**32 - 1, self.open, "receive_pool", (1 << 32, 1)),
            (255, self.open, "multicast", (1, -1)),
            (2**64 - 1, lambda **segment: sender.send_to(b"x", self.host, **segment), "segment", -5),
            (2**16 - 1, lambda **settings: nocopy.Endpoint("127.0.0.1:0", **settings), "datagram_bytes", 1 << 16),
            (2**32 - 1, lambda **settings: nocopy.Port("lo", **settings), "queue", -1),
            (2**32 - 1, lambda **settings: nocopy.Port.memory_pair(**settings), "batch", 1 << 40),
            (2**32 - 1, lambda **settings: nocopy.Capture("lo", **settings), "snap", -1),
        ]:
            with self.subTest(name=name):
                with self.assertRaisesRegex(ValueError, f"out of range; give an integer from 0 to {highest}$") as raised:
                    call(**{name: value})
                self.assertEqual(raised.exception.__notes__, [f"while processing '{name}'"])

    def test_every_way_of_waiting_receives(self):
        for wait in ["spin", "interrupt", ("adaptive", 0.001), ("coalesced", 10, 0.001)]:
            with self.subTest(wait=wait):
                receiver, sender, to = self.pair(wait=wait)
                sender.send_to(b"x", to)
                self.assertEqual(datagrams_of(receive_bursts(receiver, 1)), [b"x"])

    @passed_on("groups by an interface's index")
    def test_a_group_is_received_from(self):
        receiver = self.open("0.0.0.0:0", group="239.1.2.3", multicast=(1, 1), reuse_address=True)
        sender = self.open(multicast=(1, 1))
        sender.send_to(b"to all", ("239.1.2.3", receiver.local_addr()[1]))
        self.assertEqual(datagrams_of(receive_bursts(receiver, 1)), [b"to all"])

    def test_a_negative_timeout_is_refused(self):
        text = self.error_of(ValueError, self.open().receive, -1.0)
        self.assertEqual(text, "timeout: -1 s is no time; give seconds from 0 on")
        self.assertIn("timeout: NaN", self.error_of(ValueError, self.open().receive, float("nan")))

    def test_a_closed_socket_is_refused(self):
        with self.open() as socket:
            pass
        self.assertIn("is closed", self.error_of(ValueError, socket.receive, 0.0))
        self.assertIn("is closed", self.error_of(ValueError, socket.send_to, b"x", "127.0.0.1:9"))

    def test_the_ledger_has_every_byte(self):
        receiver, sender, to = self.pair()
        sender.send_to(rows_of(10, 1000), to)
        receive_bursts(receiver, 10)
        self.assertTrue(sender.drain(LONG))
        received, sent = receiver.ledger()["received"], sender.ledger()["sent"]
        self.assertEqual((received.pop("datagrams"), received.pop("bytes")), (10, 10_000))
        self.assertEqual((sent.pop("datagrams"), sent.pop("bytes")), (10, 10_000))
        self.assertEqual((sum(received.values()), sum(sent.values())), (10_000, 10_000))
        self.assertEqual(receiver.stats()["received"]["moved"], 10)
        self.assertEqual(sender.stats()["sent"]["moved"], 10)
        self.assertIn("received: UDP socket", receiver.explain())

    @passed_on("the count of a socket's drops")
    def test_what_the_kernel_drops_is_counted(self):
        receiver, sender, to = self.pair(receive_buffer=4096)
        for _ in range(40):
            sender.send_to(bytes(4000), to)
        received = len(receive_bursts(receiver, 1))
        while bursts := receiver.receive(0.1):
            received += len(bursts)
        self.assertLess(received, 40)
        self.assertEqual(receiver.stats()["received"]["sk_drops"], 40 - received)

    def test_the_descriptor_is_readable_when_datagrams_wait(self):
        import selectors

        receiver, sender, to = self.pair()
        with selectors.DefaultSelector() as selector:
            selector.register(receiver.fileno(), selectors.EVENT_READ)
            self.assertFalse(receiver.arm())
            sender.send_to(b"x", to)
            self.assertEqual(len(selector.select(LONG)), 1)
        self.assertEqual(datagrams_of(receiver.try_receive()), [b"x"])

    def test_a_half_is_used_by_one_thread_at_a_time(self):
        receiver, sender, to = self.pair()
        received = []
        thread = threading.Thread(target=lambda: received.extend(receiver.receive(LONG)))
        thread.start()
        while True:  # until the thread waits
            try:
                receiver.in_flight()  # of the other half: never refused
                receiver.fileno()
            except RuntimeError as error:
                self.assertIn("is in use by another thread", str(error))
                break
        sender.send_to(b"x", to)
        thread.join()
        self.assertEqual(datagrams_of(received), [b"x"])

    def test_a_signal_ends_a_wait(self):
        class Interrupted(Exception):
            pass

        def interrupt(*_):
            raise Interrupted

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        receiver, sender, to = self.pair()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with self.assertRaises(Interrupted):
            receiver.receive()
        sender.send_to(b"x", to)
        self.assertEqual(datagrams_of(receive_bursts(receiver, 1)), [b"x"])

    def test_sockets_belong_to_the_process_that_opened_them(self):
        receiver, sender, to = self.pair()
        port, _ = nocopy.Port.memory_pair()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of fork(2) beside threads
            child = os.fork()
        if child == 0:
            try:
                calls = [lambda: receiver.receive(0.0), receiver.local_addr, port.balance]
                texts = [self.error_of(RuntimeError, call) for call in calls]
                is_said = all("belongs to the process that forked this one" in text for text in texts)
                os._exit(0 if is_said else 1)
            finally:
                os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        sender.send_to(b"x", to)
        self.assertEqual(datagrams_of(receive_bursts(receiver, 1)), [b"x"])


class Ipv6Test(UdpTest):
    host = "::1"

    def test_datagrams_are_received_with_their_source(self):
        receiver, sender, to = self.pair(receive_metadata=True)
        self.assertEqual((to[0], to[2:]), ("::1", (0, 0)))
        sent = rows_of(8, 700)
        sender.send_to(sent, to)
        bursts = receive_bursts(receiver, 8)
        self.assertEqual(datagrams_of(bursts), [row.tobytes() for row in sent])
        self.assertEqual((bursts[0].source, bursts[0].destination), (sender.local_addr(), "::1"))
        sender.send_to(b"x", to)
        rows = receiver.receive_into(np.zeros((1, 8), "u1"), LONG)
        self.assertEqual(rows.source(0), sender.local_addr())


if __name__ == "__main__":
    unittest.main()

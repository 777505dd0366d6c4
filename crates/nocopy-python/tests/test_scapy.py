"""nocopy.scapy: scapy's own functions over sockets of ours."""

import threading
import unittest

import nocopy
from veth import Pair, PairTest, packet

try:
    from scapy.config import conf
    from scapy.layers.inet import ICMP, IP
    from scapy.layers.l2 import ARP, Ether
    from scapy.packet import Raw
    from scapy.sendrecv import AsyncSniffer, sendp, sniff, srp
except ImportError:
    conf = None
else:
    import nocopy.scapy


class ScapyTest(PairTest):
    def setUp(self):
        if conf is None:
            self.skipTest("lacks scapy")
        super().setUp()
        before = conf.L2listen, conf.L2socket, conf.iface, conf.verb
        self.addCleanup(self.restore, *before)
        nocopy.scapy.use()
        conf.ifaces.reload()
        conf.route.resync()
        conf.iface, conf.verb = Pair.LEFT, 0
        conf.netcache.flush()

    def restore(self, listen, both, interface, verbosity):
        conf.L2listen, conf.L2socket, conf.iface, conf.verb = listen, both, interface, verbosity

    def send(self, count):
        for number in range(count):
            self.raw.send(packet(number.to_bytes(4, "big")))

    def numbers(self, packets):
        return [int.from_bytes(each[Raw].load[:4], "big") for each in packets]

    def test_sniff_receives_as_many_packets_as_asked_for(self):
        got = sniff(count=20, timeout=10, started_callback=lambda: self.send(30))
        self.assertEqual(self.numbers(got), list(range(20)))
        self.assertTrue(all(isinstance(each, Ether) and each.type == 0x88B5 for each in got))
        self.assertTrue(all(before.time <= after.time for before, after in zip(got, got[1:])))
        self.assertGreater(got[0].time, 1 << 30)

    def test_sniff_ends_after_its_timeout(self):
        self.assertEqual(len(sniff(timeout=0.1)), 0)

    def test_an_asynchronous_sniffer_is_stopped(self):
        started, seen = threading.Event(), threading.Event()
        sniffer = AsyncSniffer(
            started_callback=started.set,
            prn=lambda each: seen.set() if self.numbers([each]) == [9] else None,
        )
        sniffer.start()
        self.assertTrue(started.wait(10))
        self.send(10)
        self.assertTrue(seen.wait(10))
        self.assertEqual(self.numbers(sniffer.stop()), list(range(10)))

    def test_srp_finds_the_answer_to_each_request(self):
        right = Pair.ADDRESSES[Pair.RIGHT]
        answers, missing = srp(
            Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(pdst=right), timeout=10, iface=Pair.LEFT, verbose=0
        )
        self.assertEqual((len(answers), len(missing)), (1, 0))
        self.assertEqual(answers[0].answer[ARP].hwsrc, Pair.MACS[Pair.RIGHT].hex(":"))
        to = Ether(dst=Pair.MACS[Pair.RIGHT].hex(":"))
        echoes = [to / IP(dst=right, src=Pair.ADDRESSES[Pair.LEFT]) / ICMP(seq=i) for i in range(5)]
        answers, missing = srp(echoes, timeout=10, verbose=0)
        self.assertEqual([answer[ICMP].seq for _, answer in answers], [0, 1, 2, 3, 4])
        self.assertEqual(len(missing), 0)

    def test_sendp_sends_whole_packets(self):
        other = self.pair.raw_socket(self.pair.right, Pair.RIGHT, 0x88B7)
        sendp(Ether(packet(b"first" + bytes(60), 0x88B7)), iface=Pair.LEFT)
        sendp([Ether(packet(bytes([i]) * 60, 0x88B7)) for i in range(10)], iface=Pair.LEFT)
        self.assertEqual(other.recv(100), packet(b"first" + bytes(60), 0x88B7))
        self.assertEqual([other.recv(100)[14] for _ in range(10)], list(range(10)))

    def test_a_burst_is_received_without_loss(self):
        listening = conf.L2listen(iface=Pair.LEFT)
        self.addCleanup(listening.close)
        self.send(50_000)
        for number in range(50_000):
            layer, data, _ = listening.recv_raw()
            if int.from_bytes(data[14:18], "big") != number:
                self.fail(f"packet {number} is {data!r}")
        self.assertIs(layer, Ether)
        self.assertEqual(listening.ins.stats()["tp_drops"], 0)

    def test_own_packets_are_only_in_a_listening_socket(self):
        with conf.L2socket(iface=Pair.LEFT) as both, conf.L2listen(iface=Pair.LEFT) as listening:
            both.send(Ether(packet(b"own")))
            self.send(1)
            self.assertEqual(listening.recv_raw()[1], packet(b"own"))
            self.assertEqual(self.numbers([both.recv()]), [0])
            with self.assertRaisesRegex(Exception, "Can't send anything"):
                listening.send(Ether())

    def test_settings_of_scapy_are_followed(self):
        with conf.L2listen(iface=Pair.LEFT, type=0x88B6) as only:
            self.raw.send(packet(b"another type"))
            self.raw.send(packet(b"as asked for", 0x88B6))
            self.assertEqual(only.recv_raw(20)[1], packet(b"as asked for", 0x88B6)[:20])
        with self.assertRaisesRegex(Exception, "monitor: not available"):
            conf.L2listen(iface=Pair.LEFT, monitor=True)
        whole = nocopy.scapy._whole_filter(0x806, "host 10.0.0.1", 1)
        self.assertEqual(whole, "ether proto 2054 and (host 10.0.0.1)")
        conf.except_filter, before = "port 22", conf.except_filter
        self.addCleanup(setattr, conf, "except_filter", before)
        self.assertEqual(nocopy.scapy._whole_filter(3, "udp", 0), "(udp) and not (port 22)")
        self.assertEqual(nocopy.scapy._whole_filter(3, None, 1), None)


if __name__ == "__main__":
    unittest.main()

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nocopy::area::AreaConfig;
use nocopy::{Area, Frame, Mode, Port, Wait};
use nocopy_lab::End;
use serde_json::json;

use crate::guest::patience::ARRIVAL_MAX;
use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "through random operations (sending both ways of writing, receiving, keeping, forwarding, sharing, dropping on \
             other threads, changing how to wait, reopening) every packet arrives once, in order, with its bytes, and every \
             frame is accounted for",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const DURATION: Duration = Duration::from_secs(12);
const SOAK_DURATION: Duration = Duration::from_secs(600);

/// Packets on their way to one end at a time: fewer than a ring holds, so that nothing may be lost.
const WINDOW: usize = 96;
const RING_ENTRIES: u32 = 128;
/// For each half: more than a ring holds and the program keeps.
const FRAMES: u32 = 512;
const KEPT_MAX: usize = 128;
/// The mean number of operations between two reopenings, which take an igb seconds.
const REOPENING_EVERY: u32 = 5000;
/// The length that igb needs for the longest packet.
const FRAME_BYTES: u32 = 4096;
/// The shortest that holds a number and the longest of an MTU of 1500.
const BYTES_MIN: usize = 64;
const BYTES_MAX: usize = 1514;

fn run(guest: &Guest) -> Result<(), Failure> {
    let seed = guest.seed();
    let end = Instant::now() + if guest.is_soak() { SOAK_DURATION } else { DURATION };
    let mut link = PortPair::open(guest, Rng::with_seed(seed))?;
    let mut operations = 0_u64;
    while Instant::now() < end {
        link.run_random_operation()?;
        operations += 1;
    }
    link.finish()?;
    guest.record_measurement(
        &json!({ "seed": seed.to_string(), "operations": operations, "packets": link.sent }),
    );
    Ok(())
}

/// Two ports over one area, the packets in flight between them, and those the program keeps.
struct PortPair<'guest> {
    ends: [&'guest End; 2],
    area: Area,
    ports: Vec<Port>,
    /// Number and length of each packet on its way to an end.
    expected: [VecDeque<(u32, usize)>; 2],
    kept: Vec<Frame>,
    sent: u32,
    random: Rng,
}

impl<'guest> PortPair<'guest> {
    fn open(guest: &'guest Guest, random: Rng) -> Result<Self, Failure> {
        let ends = guest.ends();
        let (area, ports) = open_ports(ends)?;
        Ok(Self { ends, area, ports, expected: Default::default(), kept: Vec::new(), sent: 0, random })
    }

    fn run_random_operation(&mut self) -> Result<(), Failure> {
        let side = self.random.usize(..2);
        match self.random.u32(..REOPENING_EVERY) {
            0 => self.reopen(),
            1..50 => self.check_balance(),
            50..150 => self.change_wait(side),
            150..250 => self.recycle_some(side),
            250..350 => self.share_between_threads(),
            350..500 => self.drop_on_other_thread(),
            number if number % 3 == 0 => self.send_frames(side),
            number if number % 3 == 1 => self.send_drafts(side),
            _ => self.receive(side),
        }
    }

    /// A packet to the far end that may be on its way now: its number and length.
    fn next_packet(&mut self, side: usize) -> Option<(u32, usize)> {
        let expected = &mut self.expected[1 - side];
        if expected.len() >= WINDOW {
            return None;
        }
        let packet = (self.sent, self.random.usize(BYTES_MIN..=BYTES_MAX));
        expected.push_back(packet);
        self.sent += 1;
        Some(packet)
    }

    fn send_frames(&mut self, side: usize) -> Result<(), Failure> {
        for _ in 0..self.random.u32(1..32) {
            // First take a frame: a packet that is expected must be sent.
            let Some(mut frame) = self.ports[side].sender().buffer() else { break };
            let Some((number, bytes)) = self.next_packet(side) else { break };
            frame
                .fill(&traffic::numbered_packet(self.ends[1 - side], number, bytes))
                .expect("a packet fits a frame");
            self.ports[side].sender().send(frame)?;
        }
        Ok(self.ports[side].sender().flush()?)
    }

    fn send_drafts(&mut self, side: usize) -> Result<(), Failure> {
        let (mut count, mut written) = (self.random.usize(1..32), Vec::new());
        count = count.min(WINDOW - self.expected[1 - side].len());
        while written.len() < count {
            written.extend(self.next_packet(side));
        }
        let mut drafts = self.ports[side].sender().drafts(count, BYTES_MAX)?;
        for (number, bytes) in &written {
            let mut draft = drafts.next_draft().expect("more frames and slots than a window");
            draft.truncate(*bytes);
            draft.copy_from_slice(&traffic::numbered_packet(self.ends[1 - side], *number, *bytes));
            draft.queue();
        }
        drop(drafts);
        Ok(self.ports[side].sender().flush()?)
    }

    /// Receives a batch; some of its packets are kept, some sent back in place, most only read.
    fn receive(&mut self, side: usize) -> Result<(), Failure> {
        let patience = Duration::from_millis(self.random.u64(0..5));
        let (mut kept, mut back) = (Vec::new(), Vec::new());
        for packet in self.ports[side].receiver().receive_timeout(patience)? {
            let Some((number, bytes)) = self.expected[side].pop_front() else {
                return Err(Failure(format!("a packet of {} B that nobody sent", packet.len())));
            };
            let wanted = traffic::numbered_packet(self.ends[side], number, bytes);
            assert!(*packet == *wanted, "packet {number} of {bytes} B is not what was sent");
            match self.random.u32(..8) {
                0 if self.kept.len() + kept.len() < KEPT_MAX => kept.push(packet.take()),
                1 => back.push(packet.take()),
                _ => {}
            }
        }
        self.kept.append(&mut kept);
        back.into_iter().try_for_each(|frame| self.send_back(side, frame))?;
        Ok(self.ports[side].sender().flush()?)
    }

    fn send_back(&mut self, side: usize, mut frame: Frame) -> Result<(), Failure> {
        let Some((number, bytes)) = self.next_packet(side) else { return Ok(()) };
        frame.truncate(bytes);
        let missing = bytes - frame.len();
        frame.append(missing).expect("a packet fits a frame");
        frame.copy_from_slice(&traffic::numbered_packet(self.ends[1 - side], number, bytes));
        Ok(self.ports[side].sender().send(frame)?)
    }

    fn take_some_kept_frames(&mut self) -> Vec<Frame> {
        let count = self.random.usize(..=self.kept.len());
        self.kept.drain(..count).collect()
    }

    fn drop_on_other_thread(&mut self) -> Result<(), Failure> {
        let frames = self.take_some_kept_frames();
        thread::spawn(move || drop(frames)).join().expect("dropping does not panic");
        Ok(())
    }

    fn share_between_threads(&mut self) -> Result<(), Failure> {
        for frame in self.take_some_kept_frames() {
            let bytes = frame.len();
            let shared = frame.share();
            for reader in [shared.clone(), shared].map(|frame| thread::spawn(move || frame.len())) {
                assert_eq!(reader.join().expect("reading does not panic"), bytes);
            }
        }
        Ok(())
    }

    fn recycle_some(&mut self, side: usize) -> Result<(), Failure> {
        for frame in self.take_some_kept_frames() {
            self.ports[side].receiver().recycle(frame);
        }
        Ok(())
    }

    fn change_wait(&mut self, side: usize) -> Result<(), Failure> {
        let waits = [
            Wait::Interrupt,
            Wait::Spin,
            Wait::Adaptive { spin: Duration::from_micros(200) },
            Wait::Coalesced { packets: 32, delay: Duration::from_millis(1) },
        ];
        let wait = waits[self.random.usize(..waits.len())];
        self.ports[side].receiver().set_wait(wait);
        Ok(())
    }

    fn check_balance(&mut self) -> Result<(), Failure> {
        // Exact once every half has been asked.
        let balance = self.ports.iter().map(Port::balance).last().expect("two ports");
        assert!(balance.is_balanced(), "{balance}");
        Ok(())
    }

    /// Closes both ports and opens them over another area. Kept packets stay valid, and so does their area.
    fn reopen(&mut self) -> Result<(), Failure> {
        self.close()?;
        (self.area, self.ports) = open_ports(self.ends)?;
        Ok(())
    }

    /// Closes both ports with nothing in flight; every frame that has not come back is kept by the program,
    /// or retired.
    fn close(&mut self) -> Result<(), Failure> {
        self.receive_all()?;
        self.drain()?;
        self.ports.clear();
        let balance = self.area.balance();
        let kept = i64::try_from(self.kept.len()).expect("a few");
        let closed = balance.is_balanced() && (balance.lent_rx, balance.lent_tx) == (0, 0);
        // Some of the kept frames may be of an earlier area.
        assert!(closed && (0..=kept).contains(&balance.in_use), "{balance}, {kept} kept");
        Ok(())
    }

    /// Receives everything that is on its way, both ways.
    fn receive_all(&mut self) -> Result<(), Failure> {
        let give_up = Instant::now() + ARRIVAL_MAX;
        while self.expected.iter().any(|expected| !expected.is_empty()) {
            for side in [0, 1] {
                self.receive(side)?;
            }
            if Instant::now() > give_up {
                return Err(Failure(format!("packets did not arrive: {:?}", self.expected)));
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Failure> {
        for port in &mut self.ports {
            assert!(port.sender().drain(ARRIVAL_MAX)?, "frames stay with the kernel");
            assert_eq!(port.receiver().stats().faults + port.sender().stats().faults, 0);
        }
        Ok(())
    }

    /// Ends with every frame free or posted for receiving.
    fn finish(&mut self) -> Result<(), Failure> {
        self.receive_all()?;
        self.kept.clear();
        self.drain()?;
        self.check_balance()?;
        let balance = self.area.balance();
        assert!(balance.in_use == 0 && balance.lent_tx == 0, "{balance}");
        self.close()
    }
}

fn open_ports(ends: [&End; 2]) -> Result<(Area, Vec<Port>), Failure> {
    let shape = AreaConfig { frame_count: 4 * FRAMES, frame_bytes: FRAME_BYTES, ..AreaConfig::default() };
    let area = Area::new(shape)?;
    let open = |end: &End| {
        let builder = Port::builder(end.interface()).mode(Mode::XdpZeroCopy).area(&area);
        let builder = builder.ring_sizes(RING_ENTRIES, RING_ENTRIES).frame_count(FRAMES, FRAMES);
        end.namespace().run(|| builder.open())
    };
    let ports = ends.into_iter().map(open).collect::<Result<_, _>>()?;
    Ok((area, ports))
}

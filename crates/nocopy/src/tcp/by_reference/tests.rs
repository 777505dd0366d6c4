//! Published data and files are sent to stream sockets by reference, whole and in order, whatever the peers
//! do.

use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use nocopy_lab::patience::uninterrupted;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::*;
use crate::facts::evidence::Cause;
use crate::tcp::PublishError;

const MIB: usize = 1 << 20;

impl RangeTransfer {
    fn range_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn sent_bytes(&self) -> u64 {
        self.at - self.range.start
    }

    fn is_done(&self) -> bool {
        self.remaining() == 0
    }
}

const AT_ONCE: StepOptions = StepOptions { more: false, waits: false };
const WAITING: StepOptions = StepOptions { more: false, waits: true };

fn read_some(mut from: impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    uninterrupted(|| from.read(buffer))
}

fn connected_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let receiver = listener.accept().unwrap().0;
    receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (sender, receiver)
}

fn salted_pattern(bytes: usize, salt: u64) -> Vec<u8> {
    let word = |place: u64| (place + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let words = (0..bytes.div_ceil(8) as u64).flat_map(|place| word(place).to_le_bytes());
    words.take(bytes).collect()
}

fn publish(bytes: &[u8]) -> Published {
    Published::written(bytes.len(), |memory| memory.copy_from_slice(bytes)).unwrap()
}

fn memory_file_with(bytes: &[u8]) -> Arc<File> {
    let mut file = File::from(rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(bytes).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    Arc::new(file)
}

fn wait_until_writable(socket: &TcpStream) {
    let mut polled = [PollFd::new(socket, PollFlags::OUT)];
    let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert!(poll(&mut polled, Some(&patience)).unwrap() > 0, "the peer reads no more");
}

/// Steps until the socket is full and stays full. Acknowledgements that arrive meanwhile make room again, so
/// it pauses and tries again until a step takes nothing.
fn fill_socket(by: &mut ReferenceSender, transfer: &mut RangeTransfer, socket: &TcpStream, now: StepOptions) {
    loop {
        let before = transfer.sent_bytes();
        let mut went = before;
        while by.send_next_piece(transfer, socket.as_fd(), now).unwrap() != StepOutcome::SocketFull {
            assert!(!transfer.is_done(), "{} bytes fit into a socket?", transfer.range_bytes());
            went = transfer.sent_bytes();
        }
        assert_eq!(transfer.sent_bytes(), went, "a step that finds the socket full takes nothing");
        if went == before {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Hands the whole range over; returns the evidence about copies.
fn send_whole_transfer(
    by: &mut ReferenceSender,
    mut transfer: RangeTransfer,
    socket: &TcpStream,
    now: StepOptions,
) -> Result<Vec<(u64, Evidence)>, TransferError> {
    let mut steps = Vec::new();
    loop {
        match by.send_next_piece(&mut transfer, socket.as_fd(), now)? {
            StepOutcome::Sent { bytes, evidence } => steps.push((bytes, evidence)),
            StepOutcome::SocketFull => wait_until_writable(socket),
            StepOutcome::Done => {
                assert!(transfer.is_done() && transfer.sent_bytes() == transfer.range_bytes());
                assert_eq!(steps.iter().map(|(bytes, _)| bytes).sum::<u64>(), transfer.range_bytes());
                return Ok(steps);
            }
        }
    }
}

fn pinned_methods_and_none() -> impl Iterator<Item = Option<PublishedMethod>> {
    PublishedMethod::ALL.into_iter().map(Some).chain([None])
}

#[test]
fn ten_peers_receive_the_same_published_pages() {
    let bytes = salted_pattern(4 * MIB + 123, 1);
    let data = publish(&bytes);
    for pinned in pinned_methods_and_none() {
        let mut peers = Vec::new();
        let mut readers = Vec::new();
        for number in 0..10_usize {
            let (socket, mut receiver) = connected_pair();
            // Some blocking, some not; some with hardly any room.
            socket.set_nonblocking(number % 2 == 0).unwrap();
            if number % 3 == 0 {
                socket2::SockRef::from(&socket).set_send_buffer_size(2048).unwrap();
            }
            let transfer = RangeTransfer::published(&data, 0..data.len() as u64).unwrap();
            let by = ReferenceSender::new(socket.as_fd(), pinned).unwrap();
            peers.push((socket, by, transfer));
            readers.push(thread::spawn(move || {
                let mut all = Vec::new();
                let mut buffer = vec![0; 1000 + 20_000 * number];
                loop {
                    match read_some(&mut receiver, &mut buffer).unwrap() {
                        0 => return all,
                        count => all.extend_from_slice(&buffer[..count]),
                    }
                    if number == 4 && all.len() % 7 == 0 {
                        thread::sleep(Duration::from_millis(1)); // a slow one
                    }
                }
            }));
        }
        send_to_all_peers(&mut peers, pinned);
        drop(peers);
        for (number, reader) in readers.into_iter().enumerate() {
            assert!(reader.join().unwrap() == bytes, "{pinned:?}: peer {number} got something else");
        }
    }
}

fn send_to_all_peers(
    peers: &mut [(TcpStream, ReferenceSender, RangeTransfer)],
    pinned: Option<PublishedMethod>,
) {
    while peers.iter().any(|(_, _, transfer)| !transfer.is_done()) {
        let mut stuck = true;
        for (socket, by, transfer) in peers.iter_mut() {
            match by.send_next_piece(transfer, socket.as_fd(), AT_ONCE).unwrap() {
                StepOutcome::Sent { evidence, .. } => {
                    stuck = false;
                    match pinned {
                        Some(PublishedMethod::Copy) => {
                            assert_eq!(evidence, Evidence::Copied(Cause::SocketCall));
                        }
                        Some(_) => assert_eq!(evidence, Evidence::Unknown),
                        None => assert_ne!(evidence, Evidence::ZeroCopy, "nobody ever says so"),
                    }
                }
                StepOutcome::SocketFull | StepOutcome::Done => {}
            }
        }
        if stuck {
            let waiting = peers.iter().filter(|(_, _, transfer)| !transfer.is_done());
            let mut polled: Vec<_> = waiting.map(|peer| PollFd::new(&peer.0, PollFlags::OUT)).collect();
            poll(&mut polled, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap();
        }
    }
}

#[test]
fn a_transfer_abandoned_on_a_full_socket_sent_only_reported_bytes() {
    for (is_nonblocking, now) in [(true, AT_ONCE), (true, WAITING), (false, AT_ONCE), (false, WAITING)] {
        let (socket, mut receiver) = connected_pair();
        socket.set_nonblocking(is_nonblocking).unwrap();
        let bytes = salted_pattern(16 * MIB, 2);
        let data = publish(&bytes);
        for source in 0..2 {
            let mut by = ReferenceSender::new(socket.as_fd(), None).unwrap();
            let range = 0..bytes.len() as u64;
            let mut transfer = match source {
                0 => RangeTransfer::published(&data, range).unwrap(),
                _ => RangeTransfer::file(memory_file_with(&bytes), range).unwrap(),
            };
            fill_socket(&mut by, &mut transfer, &socket, now); // nothing is read
            let went = transfer.sent_bytes();
            // Given up midway: the bytes that the socket accepted stay, and no others appear.
            drop(transfer);
            let mut received = vec![0; went as usize];
            receiver.read_exact(&mut received).unwrap();
            assert!(received == bytes[..went as usize]);
        }
        drop(socket);
        assert_eq!(read_some(receiver, &mut [0]).unwrap(), 0, "more came than was said to have gone");
    }
}

#[test]
fn an_abandoned_transfer_reaches_no_other_peer() {
    let secret = publish(&[0x55; 8 * MIB]);
    let (full, _stalled) = connected_pair();
    let mut by = ReferenceSender::new(full.as_fd(), Some(PublishedMethod::Vmsplice)).unwrap();
    let mut transfer = RangeTransfer::published(&secret, 0..secret.len() as u64).unwrap();
    while by.send_next_piece(&mut transfer, full.as_fd(), AT_ONCE).unwrap() != StepOutcome::SocketFull {}
    let bytes = salted_pattern(100_000, 3);
    let (socket, mut receiver) = connected_pair();
    let mut by = ReferenceSender::new(socket.as_fd(), Some(PublishedMethod::Vmsplice)).unwrap();
    let data = publish(&bytes);
    send_whole_transfer(&mut by, RangeTransfer::published(&data, 0..100_000).unwrap(), &socket, AT_ONCE)
        .unwrap();
    drop(socket);
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).unwrap();
    assert!(received == bytes);
}

#[test]
fn a_reset_during_a_transfer_is_an_error_not_a_signal() {
    // A handler, because Rust programs ignore the signal by default.
    let raised = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGPIPE, Arc::clone(&raised)).unwrap();
    let bytes = salted_pattern(8 * MIB, 4);
    let data = publish(&bytes);
    let length = bytes.len() as u64;
    let sources: [fn(&Published) -> RangeTransfer; 2] = [
        |data| RangeTransfer::published(data, 0..data.len() as u64).unwrap(),
        |data| RangeTransfer::file(memory_file_with(data), 0..data.len() as u64).unwrap(),
    ];
    for (pinned, source) in
        pinned_methods_and_none().flat_map(|pinned| sources.map(|source| (pinned, source)))
    {
        let (socket, mut receiver) = connected_pair();
        let mut by = ReferenceSender::new(socket.as_fd(), pinned).unwrap();
        let mut transfer = source(&data);
        while by.send_next_piece(&mut transfer, socket.as_fd(), AT_ONCE).unwrap() != StepOutcome::SocketFull {
        }
        receiver.read_exact(&mut [0; 1000]).unwrap();
        socket2::SockRef::from(&receiver).set_linger(Some(Duration::ZERO)).unwrap();
        drop(receiver);
        // The first call returns the reset, later ones that the socket is closed.
        for _ in 0..3 {
            let error = loop {
                match by.send_next_piece(&mut transfer, socket.as_fd(), AT_ONCE) {
                    Ok(StepOutcome::Sent { .. } | StepOutcome::SocketFull) => thread::yield_now(),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => break error,
                }
            };
            let text = error.to_string();
            assert!(
                text.starts_with("connection: nothing more can be sent (")
                    && text.ends_with("; connect again"),
                "{pinned:?}: {text}"
            );
            assert!(transfer.sent_bytes() < length);
        }
        assert!(!raised.load(Relaxed), "{pinned:?}: SIGPIPE");
        // The signal would have been seen, and is not blocked now.
        assert!(rustix::io::write(&socket, &[0]).is_err());
        assert!(raised.swap(false, Relaxed), "{pinned:?}: an ordinary write raises it");
    }
}

struct SignalStorm {
    stop: Arc<AtomicBool>,
    sending: Option<thread::JoinHandle<()>>,
}

impl SignalStorm {
    #[allow(unsafe_code)]
    fn start() -> Self {
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::default()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // SAFETY: always succeeds.
        let here = unsafe { libc::pthread_self() };
        let sending = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                // SAFETY: that thread waits for this one before it ends.
                unsafe { libc::pthread_kill(here, libc::SIGUSR1) };
                thread::sleep(Duration::from_micros(20));
            }
        });
        Self { stop, sending: Some(sending) }
    }
}

impl Drop for SignalStorm {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let ended = self.sending.take().map(thread::JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))));
    }
}

#[test]
fn signals_do_not_interrupt_a_transfer() {
    let bytes = salted_pattern(16 * MIB, 8);
    let data = publish(&bytes);
    let (socket, mut receiver) = connected_pair();
    let reader = thread::spawn(move || {
        let mut received = Vec::new();
        receiver.read_to_end(&mut received).unwrap();
        received
    });
    let signals = SignalStorm::start();
    let mut by = ReferenceSender::new(socket.as_fd(), None).unwrap();
    for round in 0..8 {
        let mut transfer = match round % 2 {
            0 => RangeTransfer::published(&data, 0..data.len() as u64).unwrap(),
            _ => RangeTransfer::file(memory_file_with(&bytes), 0..bytes.len() as u64).unwrap(),
        };
        // Without waiting, so signals interrupt calls that find the socket full.
        while by.send_next_piece(&mut transfer, socket.as_fd(), AT_ONCE).unwrap() != StepOutcome::Done {}
    }
    drop(signals);
    drop(socket);
    assert!(reader.join().unwrap() == bytes.repeat(8));
}

#[test]
fn a_file_truncated_during_a_transfer_is_an_error_and_counted() {
    let (socket, mut receiver) = connected_pair();
    socket.set_nonblocking(true).unwrap();
    let bytes = salted_pattern(16 * MIB, 5);
    let file = memory_file_with(&bytes);
    let mut by = ReferenceSender::new(socket.as_fd(), None).unwrap();
    let mut transfer = RangeTransfer::file(Arc::clone(&file), 0..bytes.len() as u64).unwrap();
    while by.send_next_piece(&mut transfer, socket.as_fd(), AT_ONCE).unwrap() != StepOutcome::SocketFull {}
    let cut = transfer.sent_bytes() + 1000;
    file.set_len(cut).unwrap();
    let reader = thread::spawn(move || {
        let mut received = Vec::new();
        receiver.read_to_end(&mut received).unwrap();
        received
    });
    let error = loop {
        match by.send_next_piece(&mut transfer, socket.as_fd(), AT_ONCE) {
            Ok(StepOutcome::Sent { .. }) => {}
            Ok(StepOutcome::SocketFull) => wait_until_writable(&socket),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    let missing = bytes.len() as u64 - cut;
    assert_eq!(
        error.to_string(),
        format!(
            "source: it ended with {missing} bytes still to be sent; the file became shorter; close the connection, since the peer lacks these bytes"
        )
    );
    assert_eq!((transfer.sent_bytes(), by.ended_early), (cut, 1));
    drop(socket);
    assert_eq!(reader.join().unwrap().len() as u64, cut);
}

#[test]
fn invalid_ranges_are_refused() {
    let data = publish(&[7; 100]);
    let file = memory_file_with(&[7; 100]);
    #[allow(clippy::reversed_empty_ranges)]
    for range in [0..101, 50..49, 101..101, u64::MAX - 1..u64::MAX] {
        let outside = |refused: Result<RangeTransfer, NotSent>| {
            matches!(refused, Err(NotSent::OutOfRange { bytes: 100, .. }))
        };
        assert!(outside(RangeTransfer::published(&data, range.clone())), "{range:?}");
        assert!(outside(RangeTransfer::file(Arc::clone(&file), range.clone())), "{range:?}");
    }
    let (socket, _receiver) = connected_pair();
    let mut by = ReferenceSender::new(socket.as_fd(), None).unwrap();
    let mut nothing = RangeTransfer::published(&data, 100..100).unwrap();
    assert_eq!(by.send_next_piece(&mut nothing, socket.as_fd(), AT_ONCE).unwrap(), StepOutcome::Done);
    // What sendfile(2) cannot read is refused by its step.
    let (socket, _receiver) = connected_pair();
    let write_only = File::options().write(true).open("/dev/null").unwrap();
    let mut transfer = RangeTransfer::file(Arc::new(write_only), 0..1).unwrap();
    let error = by.send_next_piece(&mut transfer, socket.as_fd(), AT_ONCE).unwrap_err();
    assert_eq!(
        error.to_string(),
        "sendfile: refused (EBADF); bad file descriptor; the kernel or a sandbox does not allow it here, or the source cannot be read; send the bytes from a buffer"
    );
}

#[test]
fn published_bytes_cannot_be_changed() {
    let write = |bytes: &mut [u8]| {
        assert!(bytes.iter().all(|&byte| byte == 0));
        bytes.fill(9);
    };
    let data = Published::written(3 * 4096 + 5, write).unwrap();
    let refused = |result: std::io::Result<()>| {
        result.unwrap_err().raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error())
    };
    let descriptor = File::from(data.as_fd().try_clone_to_owned().unwrap());
    // Any process that may read this process's /proc entry can open it again.
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let again = File::options().read(true).write(true).open(path).unwrap();
    for mut file in [descriptor, again] {
        assert!(refused(file.write_all(b"no")));
        assert!(refused(file.set_len(0)) && refused(file.set_len(1 << 20)));
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(refused(rustix::fs::fallocate(&file, hole, 0, 4096).map_err(Into::into)));
        assert!(refused(map_to_write(&file)));
        assert!(refused(rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).map_err(Into::into)));
    }
    assert!(data.len() == 3 * 4096 + 5 && data.iter().all(|&byte| byte == 9));
    assert_eq!(publish(&[]).len(), 0);
}

#[allow(unsafe_code)]
fn map_to_write(file: &File) -> std::io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    // SAFETY: a fresh mapping overlaps nothing, and nobody uses it.
    let mapped = unsafe {
        mmap(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
    };
    mapped.map(drop).map_err(Into::into)
}

#[test]
fn unsealed_files_of_others_are_refused() {
    let bytes = salted_pattern(10_000, 6);
    let with = |seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = rustix::fs::memfd_create("test", flags).unwrap();
        File::from(descriptor.try_clone().unwrap()).write_all(&bytes).unwrap();
        rustix::fs::fcntl_add_seals(&descriptor, seals).unwrap();
        Published::try_from(descriptor)
    };
    assert!(with(SealFlags::WRITE | SealFlags::SHRINK).unwrap()[..] == bytes[..]);
    for (seals, lacks) in [
        (SealFlags::empty(), "F_SEAL_WRITE and F_SEAL_SHRINK"),
        (SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE, "lacks F_SEAL_WRITE;"),
        (SealFlags::WRITE | SealFlags::GROW | SealFlags::SEAL, "lacks F_SEAL_SHRINK;"),
    ] {
        let error = with(seals).unwrap_err();
        assert!(matches!(error, PublishError::UnsealedFile { .. }), "{error}");
        assert!(error.to_string().contains(lacks), "{error}");
    }
    let (socket, _peer) = connected_pair();
    assert!(matches!(Published::try_from(OwnedFd::from(socket)), Err(PublishError::TakesNoSeals(_))));
    let passed = publish(&bytes).as_fd().try_clone_to_owned().unwrap();
    assert!(Published::try_from(passed).unwrap()[..] == bytes[..]);
}

#[test]
fn a_sealed_file_with_holes_is_refused() {
    const BYTES: u64 = 64 << 20;
    let sealed = |make: fn(&File)| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("test", flags).unwrap());
        file.set_len(BYTES).unwrap();
        make(&file);
        rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW).unwrap();
        Published::try_from(OwnedFd::from(file))
    };
    let makers: [fn(&File); 3] = [
        |_| {},
        |mut file| file.write_all(b"a beginning").unwrap(),
        // As many pages as the file is long, behind its end.
        |file| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, BYTES, BYTES).unwrap(),
    ];
    for make in makers {
        let error = sealed(make).unwrap_err();
        assert!(matches!(error, PublishError::Sparse { bytes } if bytes as u64 == BYTES), "{error}");
    }
    let whole = sealed(|mut file| file.write_all(&vec![1; BYTES as usize]).unwrap()).unwrap();
    assert_eq!(whole.len() as u64, BYTES);
    // Written in part, but by this library, which leaves no holes.
    let data = Published::written(3 * 4096 + 1, |_| {}).unwrap();
    let passed = data.as_fd().try_clone_to_owned().unwrap();
    let mut position = File::from(passed.try_clone().unwrap());
    position.seek(SeekFrom::Start(7)).unwrap();
    assert!(Published::try_from(passed).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(position.stream_position().unwrap(), 7, "the passer's position in the file");
}

/// One of several transfers in a row over one connection.
#[derive(Debug, Clone)]
struct PlannedTransfer {
    kind: u8,
    start: usize,
    bytes: usize,
    more: bool,
    waits: bool,
}

fn any_planned_transfer() -> impl Strategy<Value = PlannedTransfer> {
    let bytes = prop_oneof![0..5_usize, 4090..4100_usize, 1..70_000_usize, 200_000..600_000_usize];
    let planned = (0..4_u8, 0..10_000_usize, bytes, any::<bool>(), any::<bool>());
    planned.prop_map(|(kind, start, bytes, more, waits)| PlannedTransfer { kind, start, bytes, more, waits })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    /// What arrives is what was planned, once and in order, for all lengths, methods and buffers.
    #[test]
    fn consecutive_transfers_arrive_in_order(
        plan in proptest::collection::vec(any_planned_transfer(), 1..8),
        send_buffer in prop_oneof![Just(None), (1..300_000_usize).prop_map(Some)],
        is_nonblocking in any::<bool>(),
        read_bytes in 1_000..200_000_usize,
    ) {
        let bytes = salted_pattern(610_000, 7);
        let (data, on_disk) = (publish(&bytes), memory_file_with(&bytes));
        let (socket, mut receiver) = connected_pair();
        socket.set_nonblocking(is_nonblocking).unwrap();
        if let Some(send_buffer) = send_buffer {
            socket2::SockRef::from(&socket).set_send_buffer_size(send_buffer).unwrap();
        }
        let reader = thread::spawn(move || {
            let (mut received, mut buffer) = (Vec::new(), vec![0; read_bytes]);
            loop {
                match read_some(&mut receiver, &mut buffer).unwrap() {
                    0 => return received,
                    count => received.extend_from_slice(&buffer[..count]),
                }
            }
        });
        let mut expected = Vec::new();
        for PlannedTransfer { kind, start, bytes: length, more, waits } in plan {
            let (range, whole) = (start..start + length, start as u64..(start + length) as u64);
            expected.extend_from_slice(&bytes[range]);
            let pinned = PublishedMethod::ALL.get(usize::from(kind)).copied();
            let mut by = ReferenceSender::new(socket.as_fd(), pinned).unwrap();
            let transfer = match kind {
                0..=2 => RangeTransfer::published(&data, whole).unwrap(),
                _ => RangeTransfer::file(Arc::clone(&on_disk), whole).unwrap(),
            };
            send_whole_transfer(&mut by, transfer, &socket, StepOptions { more, waits }).unwrap();
        }
        drop(socket);
        let received = reader.join().unwrap();
        prop_assert!(received.len() == expected.len() && received == expected);
    }
}

//! The XDP programs, instruction by instruction.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nocopy_proto::ebpf::{
    FRAME_POINTER, HelperFunction, Instruction, R0, R1, R2, R3, R4, R5, R6, Register, add, add_register,
    call_helper, copy, exit, load_map, load_u32, load_u64, set, set_u64, skip_if_equal, skip_if_greater,
    skip_if_zero, skip_unless_equal, store_u32, store_u64,
};

use super::{Error, PassHeader};
use crate::facts::features;
use crate::facts::kernel::KernelVersion;
use crate::sys::bpf::{self, MapKind, MapSlotCondition};

const XDP_DROP: i32 = 1;
pub(super) const XDP_PASS: i32 = 2;

/// Offsets of `data`, `data_end` and `data_meta` in `struct xdp_md`.
pub(super) const DATA_BYTES: i16 = 0;
const DATA_END_BYTES: i16 = 4;
pub(super) const DATA_META_BYTES: i16 = 8;

/// Offset of `rx_queue_index` in `struct xdp_md`.
pub(super) const RX_QUEUE_INDEX_BYTES: i16 = 16;

/// A loaded XDP program.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

impl Program {
    fn load(instructions: &[Instruction]) -> Result<Self, Error> {
        Self::load_with_fragments(instructions, false)
    }

    /// Loads a program, possibly for packets of several buffers ([`features::FRAGMENTS`]).
    pub(super) fn load_with_fragments(instructions: &[Instruction], fragments: bool) -> Result<Self, Error> {
        bpf::load_xdp(instructions, fragments, None).map(|fd| Self { fd }).map_err(|(source, log)| {
            if log.is_empty() {
                Error::from_refusal("load an XDP program", source)
            } else {
                Error::Verifier { log, source }
            }
        })
    }

    /// Loads a program bound to an interface of the calling thread's network namespace: it may ask the driver
    /// for metadata, and can be attached only to this interface, in the driver (`BPF_F_XDP_DEV_BOUND_ONLY`,
    /// since Linux 6.3).
    pub(super) fn load_bound_to_interface(
        instructions: &[Instruction],
        fragments: bool,
        interface_index: u32,
    ) -> io::Result<Self> {
        let loaded = bpf::load_xdp(instructions, fragments, Some(interface_index));
        loaded.map(|fd| Self { fd }).map_err(|(source, _)| source)
    }

    /// Lets every packet pass to the host. On veth its presence makes the driver receive by NAPI.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn pass() -> Result<Self, Error> {
        Self::load(&[set(R0, XDP_PASS), exit()])
    }

    /// Drops and counts every packet: a sink for measuring senders.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn counting_drop() -> Result<(Self, Counter), Error> {
        let counter = Counter::new()?;
        let mut instructions = vec![set(R6, 1)];
        instructions.extend(counter.add_instructions(R6));
        instructions.extend([set(R0, XDP_DROP), exit()]);
        // Otherwise drivers refuse it at a large MTU.
        let program = Self::load_with_fragments(
            &instructions,
            KernelVersion::running() >= Some(features::FRAGMENTS.kernel),
        )?;
        Ok((program, counter))
    }

    /// Passes packets that `filter` accepts to the AF_XDP socket of the queue they arrived on; all others,
    /// and those of queues without a socket, go to the host. The header `pass` is removed from packets that
    /// have it, and they go to the host: a generic program sees packets again that the port returned to the
    /// host.
    pub(crate) fn redirect_to(
        sockets: &SocketMap,
        fragments: bool,
        filter: &[Instruction],
        pass: Option<&PassHeader>,
    ) -> Result<Self, Error> {
        let [map_low, map_high] = load_map(R1, descriptor_number(&sockets.map));
        let mut instructions = Self::filter_prologue(filter, pass);
        instructions.extend([
            load_u32(R2, R1, RX_QUEUE_INDEX_BYTES),
            map_low,
            map_high,
            set(R3, XDP_PASS),
            call_helper(HelperFunction::RedirectMap),
            exit(),
        ]);
        Self::load_with_fragments(&instructions, fragments)
    }

    /// The instructions that run before a packet is redirected.
    pub(super) fn filter_prologue(filter: &[Instruction], pass: Option<&PassHeader>) -> Vec<Instruction> {
        [&pass.map(Self::pass_marked_packets).unwrap_or_default(), filter].concat()
    }

    /// Passes packets that begin with the secret of `pass` to the host without it, and falls through for all
    /// others, with the context in its register.
    fn pass_marked_packets(pass: &PassHeader) -> Vec<Instruction> {
        let (first, second) = pass.secret_words();
        let ([first_low, first_high], [second_low, second_high]) = (set_u64(R5, first), set_u64(R5, second));
        vec![
            copy(R6, R1),
            load_u32(R2, R1, DATA_BYTES),
            load_u32(R3, R1, DATA_END_BYTES),
            copy(R4, R2),
            add(R4, PassHeader::BYTES),
            skip_if_greater(R4, R3, 13),
            load_u64(R4, R2, 0),
            first_low,
            first_high,
            skip_unless_equal(R4, R5, 9),
            load_u64(R4, R2, 6),
            second_low,
            second_high,
            skip_unless_equal(R4, R5, 5),
            copy(R1, R6),
            set(R2, PassHeader::BYTES),
            call_helper(HelperFunction::AdjustHead),
            set(R0, XDP_PASS),
            exit(),
            copy(R1, R6),
        ]
    }

    /// Sends packets that carry metadata out of an interface, and lets all others pass: a generator's frames
    /// carry metadata, arriving packets do not.
    pub(super) fn redirect_packets_with_metadata(interface_index: u32) -> Result<Self, Error> {
        Self::load(&[
            load_u32(R2, R1, DATA_META_BYTES),
            load_u32(R3, R1, DATA_BYTES),
            set(R0, XDP_PASS),
            skip_if_equal(R2, R3, 3),
            set(R1, interface_index.cast_signed()),
            set(R2, 0),
            call_helper(HelperFunction::Redirect),
            exit(),
        ])
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) fn descriptor_number(fd: &impl AsFd) -> i32 {
    bpf::descriptor_number(fd).cast_signed()
}

/// Counts packets in the kernel, with one counter per CPU.
#[derive(Debug)]
pub struct Counter {
    map: OwnedFd,
    cpus: usize,
}

impl Counter {
    pub(crate) fn new() -> Result<Self, Error> {
        let cpus =
            bpf::possible_cpus().map_err(|source| Error::System { operation: "count the CPUs", source })?;
        let map = bpf::create_map(MapKind::PerCpuArray, 8, 1)
            .map_err(|source| Error::from_refusal("create a BPF map", source))?;
        Ok(Self { map, cpus })
    }

    /// Adds `amount`, a register preserved over calls; overwrites R0 to R5 and the stack's last word.
    pub(crate) fn add_instructions(&self, amount: Register) -> [Instruction; 11] {
        let [map_low, map_high] = load_map(R1, descriptor_number(&self.map));
        [
            set(R2, 0),
            store_u32(FRAME_POINTER, -4, R2),
            copy(R2, FRAME_POINTER),
            add(R2, -4),
            map_low,
            map_high,
            call_helper(HelperFunction::MapLookup),
            skip_if_zero(R0, 3),
            load_u64(R1, R0, 0),
            add_register(R1, amount),
            store_u64(R0, 0, R1),
        ]
    }

    /// Packets counted since the program was loaded, over all CPUs.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn packets(&self) -> io::Result<u64> {
        let mut counts = vec![0; self.cpus];
        bpf::per_cpu_values(self.map.as_fd(), 0, &mut counts)?;
        Ok(counts.iter().sum())
    }
}

/// The AF_XDP socket of each queue (`BPF_MAP_TYPE_XSKMAP`).
#[derive(Debug)]
pub(crate) struct SocketMap {
    pub(super) map: OwnedFd,
}

impl SocketMap {
    pub(crate) fn new(queues: u32) -> Result<Self, Error> {
        let map = bpf::create_map(MapKind::XskMap, 4, queues)
            .map_err(|source| Error::from_refusal("create a BPF map", source))?;
        Ok(Self { map })
    }

    pub(crate) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        bpf::set_map_descriptor(self.map.as_fd(), queue, socket, MapSlotCondition::Any)
    }

    /// As [`SocketMap::set_socket`], but fails with `EEXIST` if the queue has another socket.
    pub(crate) fn reserve_slot(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        bpf::set_map_descriptor(self.map.as_fd(), queue, socket, MapSlotCondition::Empty)
    }

    pub(crate) fn clear_slot(&self, queue: u32) -> io::Result<()> {
        bpf::clear_map_slot(self.map.as_fd(), queue)
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl From<OwnedFd> for SocketMap {
    fn from(map: OwnedFd) -> Self {
        Self { map }
    }
}

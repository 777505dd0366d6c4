//! Redirecting programs that also note something in front of each packet: metadata from the driver (kernel:
//! Documentation/networking/xdp-rx-metadata.rst), or the time.
//!
//! The kernel's functions for metadata are not helpers with fixed numbers but *kfuncs*: called by their
//! number in the kernel's own type information (BTF), from a program bound to one device, whose driver
//! supplies the implementation.

use std::mem::offset_of;

use aya_obj::btf::{Btf, BtfKind};
use nocopy_proto::ebpf::{
    FRAME_POINTER, HelperFunction, Instruction, R0, R1, R2, R3, R4, R6, R7, add, call_helper,
    call_kernel_function, copy, exit, load_map, load_u8, load_u32, load_u64, negate, set, set_u64,
    skip_if_greater, skip_unless, store_u8, store_u64,
};

use super::program::{DATA_BYTES, DATA_META_BYTES, RX_QUEUE_INDEX_BYTES, XDP_PASS, descriptor_number};
use super::{Error, Program, SocketMap};
use crate::facts::features;
use crate::facts::metadata::Unsupported;
use crate::memory::area::note::{ANSWER_OLD_KERNEL, ArrivalTimeNote, XdpHints};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MetadataNoteSettings {
    pub(crate) hints: bool,
    /// The time, if the driver gives none.
    pub(crate) times: bool,
    pub(crate) mark: u64,
}

const HINTS_BYTES: i32 = size_of::<XdpHints>() as i32;
const _: () = assert!(HINTS_BYTES == 32, "as the program lays them out");

/// BTF numbers of the kernel's functions.
#[derive(Debug, Clone, Copy)]
struct MetadataFunctionIds {
    timestamp: i32,
    hash: i32,
    vlan: Option<i32>,
}

impl MetadataFunctionIds {
    fn find_in_btf() -> Result<Self, Unsupported> {
        let kernel =
            Btf::from_sys_fs().map_err(|_| Unsupported::Kernel(features::RECEIVE_METADATA.kernel))?;
        let number = |name| kernel.id_by_type_name_kind(name, BtfKind::Func).ok().map(u32::cast_signed);
        let needed = |name| number(name).ok_or(Unsupported::Kernel(features::RECEIVE_METADATA.kernel));
        Ok(Self {
            timestamp: needed("bpf_xdp_metadata_rx_timestamp")?,
            hash: needed("bpf_xdp_metadata_rx_hash")?,
            vlan: number("bpf_xdp_metadata_rx_vlan_tag"),
        })
    }
}

impl Program {
    /// Does what [`Program::redirect_to`] does, and notes the driver's metadata in front of each redirected
    /// packet, with a mark. Packets for the host are not changed, because differing notes would prevent GRO
    /// from joining them.
    ///
    /// If there is no room for a note, the packet is redirected without one.
    pub(crate) fn redirect_with_hints(
        sockets: &SocketMap,
        fragments: bool,
        filter: &[Instruction],
        interface_index: u32,
        notes: MetadataNoteSettings,
    ) -> Result<Self, Unsupported> {
        let noting =
            hint_instructions(MetadataFunctionIds::find_in_btf()?, descriptor_number(&sockets.map), notes);
        let instructions = [filter, &noting].concat();
        // Refused by the verifier, or because the device has no such functions.
        Self::load_bound_to_interface(&instructions, fragments, interface_index).map_err(
            |source| match source.raw_os_error() {
                Some(libc::EOPNOTSUPP) => Unsupported::Driver,
                _ => Unsupported::Refused,
            },
        )
    }
}

impl Program {
    /// Does what [`Program::redirect_to`] does, and notes the time in front of each redirected packet,
    /// with a mark. If there is no room for a note, the packet is redirected without one.
    pub(super) fn redirect_with_times(
        sockets: &SocketMap,
        fragments: bool,
        in_front: Vec<Instruction>,
        mark: u64,
    ) -> Result<Self, Error> {
        let mut instructions = in_front;
        instructions.extend(redirect_instructions(descriptor_number(&sockets.map)));
        let [mark_low, mark_high] = set_u64(R4, mark);
        let note = [store_u64(R1, 0, R0), mark_low, mark_high, store_u64(R1, 8, R4)];
        instructions.extend(write_note_instructions(
            TIME_NOTE_BYTES,
            &[call_helper(HelperFunction::MonotonicTime)],
            &note,
        ));
        Self::load_with_fragments(&instructions, fragments)
    }
}

const TIME_NOTE_BYTES: i32 = size_of::<ArrivalTimeNote>() as i32;

/// Redirects; the following instructions run for redirected packets, with the context in R6 and the return
/// value in R7.
fn redirect_instructions(sockets: i32) -> [Instruction; 9] {
    let [map_low, map_high] = load_map(R1, sockets);
    [
        copy(R6, R1),
        load_u32(R2, R1, RX_QUEUE_INDEX_BYTES),
        map_low,
        map_high,
        set(R3, XDP_PASS),
        call_helper(HelperFunction::RedirectMap),
        skip_unless(R0, XDP_PASS, 1),
        exit(),
        copy(R7, R0),
    ]
}

/// Removes metadata that another program wrote in front of a packet, because our note must lie next to the
/// packet. The kernel allows at most 252 bytes, in multiples of four; they are removed piece by piece,
/// because only privileged programs (`CAP_PERFMON`) may compute the length.
fn remove_old_metadata_instructions() -> Vec<Instruction> {
    const PIECES_BYTES: [i32; 6] = [128, 64, 32, 16, 8, 4];
    let has = |bytes: i32, or_skip: usize| {
        [
            load_u32(R1, R6, DATA_META_BYTES),
            load_u32(R2, R6, DATA_BYTES),
            add(R1, bytes),
            skip_if_greater(R1, R2, or_skip as i16),
        ]
    };
    let take = |bytes: i32| [copy(R1, R6), set(R2, bytes), call_helper(HelperFunction::AdjustMeta)];
    let pieces =
        PIECES_BYTES.iter().flat_map(|&bytes| [&has(bytes, take(bytes).len())[..], &take(bytes)].concat());
    let pieces: Vec<_> = pieces.collect();
    // Usually empty.
    [&has(4, pieces.len())[..], &pieces].concat()
}

/// Makes room in front of the packet and, if that succeeds, writes a note: `before` may leave a value in R0
/// for `note`, which also gets the address in R1. Then the program returns.
fn write_note_instructions(bytes: i32, before: &[Instruction], note: &[Instruction]) -> Vec<Instruction> {
    let placing = [
        load_u32(R1, R6, DATA_META_BYTES),
        load_u32(R2, R6, DATA_BYTES),
        copy(R3, R1),
        add(R3, bytes),
        skip_if_greater(R3, R2, note.len() as i16), // for the verifier: there is room
    ];
    let mut program = remove_old_metadata_instructions();
    program.extend([copy(R1, R6), set(R2, -bytes), call_helper(HelperFunction::AdjustMeta)]);
    program.push(skip_unless(R0, 0, (before.len() + placing.len() + note.len()) as i16));
    program.extend_from_slice(before);
    program.extend(placing);
    program.extend_from_slice(note);
    program.extend([copy(R0, R7), exit()]);
    program
}

/// The place of a field in the note on the stack, relative to the frame pointer.
const fn note_field_offset(offset: usize) -> i16 {
    offset as i16 - HINTS_BYTES as i16
}

fn hint_instructions(
    functions: MetadataFunctionIds,
    sockets: i32,
    notes: MetadataNoteSettings,
) -> Vec<Instruction> {
    let mut program = redirect_instructions(sockets).to_vec();
    program.push(set(R1, 0));
    program.extend((0..4).map(|word| store_u64(FRAME_POINTER, note_field_offset(word * 8), R1)));
    let refusals = offset_of!(XdpHints, refusals);
    call_driver_function(
        &mut program,
        Some(functions.timestamp),
        &[offset_of!(XdpHints, timestamp)],
        refusals,
    );
    if notes.times {
        program.extend(kernel_time_if_missing());
    }
    let hash = [offset_of!(XdpHints, hash), offset_of!(XdpHints, hash_kind)];
    call_driver_function(&mut program, Some(functions.hash), &hash, refusals + 1);
    let vlan = [offset_of!(XdpHints, vlan_protocol), offset_of!(XdpHints, vlan_control)];
    call_driver_function(&mut program, functions.vlan, &vlan, refusals + 2);
    program.extend(set_u64(R1, notes.mark));
    program.push(store_u64(FRAME_POINTER, note_field_offset(offset_of!(XdpHints, mark)), R1));
    let note: Vec<_> = (0..4)
        .flat_map(|word| {
            let offset = word * 8;
            [load_u64(R3, FRAME_POINTER, note_field_offset(offset)), store_u64(R1, offset as i16, R3)]
        })
        .collect();
    program.extend(write_note_instructions(HINTS_BYTES, &[], &note));
    program
}

/// The kernel's time, if the driver reported none or 0.
fn kernel_time_if_missing() -> [Instruction; 10] {
    let (refusal, timestamp) = (
        note_field_offset(offset_of!(XdpHints, refusals)),
        note_field_offset(offset_of!(XdpHints, timestamp)),
    );
    [
        load_u8(R2, FRAME_POINTER, refusal),
        skip_unless(R2, 0, 2),
        load_u64(R2, FRAME_POINTER, timestamp),
        skip_unless(R2, 0, 6),
        call_helper(HelperFunction::MonotonicTime),
        store_u64(FRAME_POINTER, timestamp, R0),
        set(R0, 0),
        store_u8(FRAME_POINTER, refusal, R0),
        set(R0, 1),
        store_u8(FRAME_POINTER, note_field_offset(offset_of!(XdpHints, kernel_time)), R0),
    ]
}

/// Calls a driver function about the packet; writes its answer at `into` of the note, its errno at `refusal`.
fn call_driver_function(
    program: &mut Vec<Instruction>,
    function: Option<i32>,
    into: &[usize],
    refusal: usize,
) {
    match function {
        Some(function) => {
            program.push(copy(R1, R6));
            for (register, offset) in [R2, R3].into_iter().zip(into) {
                program.extend([
                    copy(register, FRAME_POINTER),
                    add(register, note_field_offset(*offset).into()),
                ]);
            }
            program.extend([call_kernel_function(function), negate(R0)]);
        }
        None => program.push(set(R0, ANSWER_OLD_KERNEL.into())),
    }
    program.push(store_u8(FRAME_POINTER, note_field_offset(refusal), R0));
}

//! The bpf(2) system call: the few commands the library needs, with their arguments laid out as
//! `union bpf_attr`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nocopy_proto::ebpf::Instruction;

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_TEST_RUN: libc::c_int = 10;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_UPDATE: libc::c_int = 29;

const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
/// Treat the packets of a test run by the program's return values (Linux 5.18).
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const BPF_F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;

/// How often a program is given to the verifier, which stops with `EAGAIN` when a signal arrives
/// (`bpf_check`). libbpf tries five times (`PROG_LOAD_ATTEMPTS`); a profiler's timer can interrupt more
/// often.
const LOAD_ATTEMPTS: u32 = 100;

#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(crate) enum MapKind {
    PerCpuArray = 6,
    XskMap = 17,
}

#[repr(C)]
struct MapCreateArguments {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
}

#[repr(C)]
struct MapElementArguments {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoadArguments {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface_index: u32,
    attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
struct TestRunArguments {
    program: u32,
    returned: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_bytes: u32,
    context_out_bytes: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    padding: u32,
}

/// `struct xdp_md`, the context of a test run.
#[repr(C)]
#[derive(Default)]
struct XdpContext {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_interface: u32,
    rx_queue: u32,
    egress_interface: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreateArguments {
    program: u32,
    interface_index: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 4],
}

#[repr(C)]
struct LinkUpdateArguments {
    link: u32,
    program: u32,
    flags: u32,
    replaced: u32,
}

/// # Safety
/// `argument` has the layout of `command`, and every pointer inside it is valid for the call.
unsafe fn bpf<T>(command: libc::c_int, argument: &mut T) -> io::Result<RawFd> {
    // SAFETY: by contract; the size says how much of the union there is.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(argument), size_of::<T>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(RawFd::try_from(result).expect("descriptors are ints"))
    }
}

/// # Safety
/// As for [`bpf`], with a command that returns a new descriptor.
unsafe fn bpf_fd<T>(command: libc::c_int, argument: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: by contract, the number returned is a new descriptor that nobody else owns.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(command, argument)?)) }
}

pub(crate) fn descriptor_number(fd: &impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd().cast_unsigned()
}

fn object_name(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..name.len().min(15)].copy_from_slice(&name.as_bytes()[..name.len().min(15)]);
    bytes
}

fn length_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("bpf arguments are small")
}

pub(crate) fn create_map(kind: MapKind, value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    let name = object_name("nocopy");
    let mut argument = MapCreateArguments {
        kind: kind as u32,
        key_bytes: 4,
        value_bytes,
        entries,
        flags: 0,
        inner_map: 0,
        numa_node: 0,
        name,
    };
    // SAFETY: laid out as `BPF_MAP_CREATE` wants it, no pointers inside.
    unsafe { bpf_fd(BPF_MAP_CREATE, &mut argument) }
}

#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(crate) enum MapSlotCondition {
    Any = 0,
    Empty = 1,
}

/// Puts a descriptor into slot `key` of a map of descriptors.
pub(crate) fn set_map_descriptor(
    map: BorrowedFd<'_>,
    key: u32,
    value: BorrowedFd<'_>,
    slot: MapSlotCondition,
) -> io::Result<()> {
    let value = descriptor_number(&value);
    let (key, value) = ((&raw const key) as u64, (&raw const value) as u64);
    let mut argument =
        MapElementArguments { map: descriptor_number(&map), padding: 0, key, value, flags: slot as u64 };
    // SAFETY: key and value are four bytes each, as the map was created, and outlive the call.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut argument).map(drop) }
}

pub(crate) fn clear_map_slot(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    let mut argument = MapElementArguments {
        map: descriptor_number(&map),
        padding: 0,
        key: (&raw const key) as u64,
        value: 0,
        flags: 0,
    };
    // SAFETY: the key is four bytes, as the map was created, and outlives the call.
    unsafe { bpf(BPF_MAP_DELETE_ELEM, &mut argument).map(drop) }
}

/// Reads slot `key` of a per-CPU array of `u64`: one value for each possible CPU.
pub(crate) fn per_cpu_values(map: BorrowedFd<'_>, key: u32, values: &mut [u64]) -> io::Result<()> {
    assert!(values.len() >= possible_cpus()?, "one value for each possible CPU");
    let (key, value) = ((&raw const key) as u64, values.as_mut_ptr() as u64);
    let mut argument = MapElementArguments { map: descriptor_number(&map), padding: 0, key, value, flags: 0 };
    // SAFETY: the kernel writes one `u64` for each possible CPU, which `values` holds (asserted).
    unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut argument).map(drop) }
}

/// The most CPUs the kernel can have, which is the size of per-CPU maps.
pub(crate) fn possible_cpus() -> io::Result<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

#[derive(Debug, Clone, Copy)]
enum ProgramKind {
    Xdp { fragments: bool, bound_to: Option<u32> },
    Classifier,
}

/// Loads an XDP program, possibly bound to an interface. On refusal the error carries the last line of the
/// verifier's log.
pub(crate) fn load_xdp(
    instructions: &[Instruction],
    fragments: bool,
    bound_to: Option<u32>,
) -> Result<OwnedFd, (io::Error, String)> {
    load_program(instructions, ProgramKind::Xdp { fragments, bound_to })
}

/// Loads a program that gets packets before the host's stack (tc). Errors as for [`load_xdp`].
pub(crate) fn load_classifier(instructions: &[Instruction]) -> Result<OwnedFd, (io::Error, String)> {
    load_program(instructions, ProgramKind::Classifier)
}

fn load_program(instructions: &[Instruction], kind: ProgramKind) -> Result<OwnedFd, (io::Error, String)> {
    // The verifier also logs valid programs, and refuses those whose log is too long: so a log is requested
    // only after a refusal.
    load_with_log(instructions, kind, &mut []).map_err(|error| {
        let mut log = vec![0_u8; 1 << 16];
        let _refused_again = load_with_log(instructions, kind, &mut log);
        let text = String::from_utf8_lossy(&log);
        let last =
            text.trim_end_matches('\0').lines().rfind(|line| !line.starts_with("processed")).unwrap_or("");
        (error, last.to_owned())
    })
}

fn load_with_log(instructions: &[Instruction], kind: ProgramKind, log: &mut [u8]) -> io::Result<OwnedFd> {
    let (number, attach_type, flags, bound_to) = match kind {
        ProgramKind::Xdp { fragments, bound_to } => {
            let flags = if fragments { BPF_F_XDP_HAS_FRAGS } else { 0 };
            let bound = if bound_to.is_some() { BPF_F_XDP_DEV_BOUND_ONLY } else { 0 };
            (BPF_PROG_TYPE_XDP, BPF_XDP, flags | bound, bound_to)
        }
        ProgramKind::Classifier => (BPF_PROG_TYPE_SCHED_CLS, 0, 0, None),
    };
    let mut argument = ProgramLoadArguments {
        kind: number,
        instruction_count: length_u32(instructions.len()),
        instructions: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_bytes: length_u32(log.len()),
        log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        kernel_version: 0,
        flags,
        name: object_name("nocopy"),
        interface_index: bound_to.unwrap_or(0),
        attach_type,
    };
    // SAFETY: instructions, licence and log are described by pointer and size and outlive the call.
    retry_interrupted_load(|| unsafe { bpf_fd(BPF_PROG_LOAD, &mut argument) })
}

/// Loads again when a signal has stopped the verifier.
fn retry_interrupted_load<T>(mut load: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut attempts_left = LOAD_ATTEMPTS;
    loop {
        attempts_left -= 1;
        match load() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempts_left > 0 => {}
            done => return done,
        }
    }
}

/// Attaches an XDP program by a link: the kernel detaches it when the descriptor is closed.
pub(crate) fn attach_xdp(program: BorrowedFd<'_>, interface_index: u32, flags: u32) -> io::Result<OwnedFd> {
    attach_by_link(program, interface_index, BPF_XDP, flags)
}

/// Attaches a classifier, before others, to packets arriving on an interface (Linux 6.6); by a link, as
/// [`attach_xdp`].
pub(crate) fn attach_tcx_ingress(program: BorrowedFd<'_>, interface_index: u32) -> io::Result<OwnedFd> {
    attach_by_link(program, interface_index, BPF_TCX_INGRESS, BPF_F_BEFORE)
}

fn attach_by_link(
    program: BorrowedFd<'_>,
    interface_index: u32,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let program = descriptor_number(&program);
    let mut argument = LinkCreateArguments {
        program,
        interface_index,
        attach_type,
        flags,
        ..LinkCreateArguments::default()
    };
    // SAFETY: laid out as `BPF_LINK_CREATE` wants it, no pointers inside.
    unsafe { bpf_fd(BPF_LINK_CREATE, &mut argument) }
}

/// Replaces the program of a link, atomically: every packet meets one of the two.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut argument = LinkUpdateArguments {
        link: descriptor_number(&link),
        program: descriptor_number(&program),
        flags: 0,
        replaced: 0,
    };
    // SAFETY: laid out as `BPF_LINK_UPDATE` wants it, no pointers inside.
    unsafe { bpf(BPF_LINK_UPDATE, &mut argument).map(drop) }
}

/// Runs an XDP program `repeat` times over a frame, sending what it returns as real packets. The first
/// `metadata_bytes` of `data` (a multiple of four, at most 32) lie in front of the frame, where the program
/// finds them as metadata.
pub(crate) fn run_live_frames(
    program: BorrowedFd<'_>,
    interface_index: u32,
    data: &[u8],
    metadata_bytes: u32,
    repeat: u32,
    batch: u32,
) -> io::Result<()> {
    let context = XdpContext {
        data: metadata_bytes,
        data_end: length_u32(data.len()),
        ingress_interface: interface_index,
        ..XdpContext::default()
    };
    let mut argument = TestRunArguments {
        program: descriptor_number(&program),
        data_in_bytes: length_u32(data.len()),
        data_in: data.as_ptr() as u64,
        repeat,
        context_in_bytes: length_u32(size_of::<XdpContext>()),
        context_in: (&raw const context) as u64,
        flags: BPF_F_TEST_XDP_LIVE_FRAMES,
        batch,
        ..TestRunArguments::default()
    };
    // SAFETY: data and context are described by pointer and size and outlive the call.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut argument).map(drop) }
}

/// Runs an XDP program over a frame of at least 14 bytes, without sending anything; returns its result. The
/// first `linear_bytes` are the linear part, the rest lies in fragments (Linux 6.18; earlier kernels return
/// `EINVAL` if there are any).
#[cfg(any(feature = "fuzzing", test))]
pub(crate) fn test_run(program: BorrowedFd<'_>, data: &[u8], linear_bytes: usize) -> io::Result<u32> {
    let context = XdpContext { data_end: length_u32(linear_bytes), ..XdpContext::default() };
    let mut argument = TestRunArguments {
        program: descriptor_number(&program),
        data_in_bytes: length_u32(data.len()),
        data_in: data.as_ptr() as u64,
        repeat: 1,
        context_in_bytes: length_u32(size_of::<XdpContext>()),
        context_in: (&raw const context) as u64,
        ..TestRunArguments::default()
    };
    // SAFETY: data and context are described by pointer and size and outlive the call.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut argument) }?;
    Ok(argument.returned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_loads_interrupted_by_signals_are_retried() {
        let (mut attempts, interrupted) = (0, || io::Error::from_raw_os_error(libc::EAGAIN));
        let loaded = retry_interrupted_load(|| {
            attempts += 1;
            if attempts <= 90 { Err(interrupted()) } else { Ok(attempts) }
        });
        assert_eq!(loaded.unwrap(), 91);
        let refused = retry_interrupted_load(|| Err::<(), _>(io::Error::from_raw_os_error(libc::EACCES)));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EACCES));
        let error = retry_interrupted_load(|| Err::<(), _>(interrupted())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "not for ever");
    }
}

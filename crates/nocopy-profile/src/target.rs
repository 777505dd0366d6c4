//! The profiled processes and ports.

use std::fs;

use super::Error;

/// Processes, ports, or both; with both, only the traffic of these processes on these ports.
#[derive(Debug, Clone, Default)]
pub struct ProfileTargets {
    /// Processes with their later children. Empty: all processes whose sockets have the ports.
    pub processes: Vec<u32>,
    /// Local or remote ports of sockets. Empty: all sockets of the processes.
    pub ports: Vec<u16>,
}

impl ProfileTargets {
    /// Checks that the processes exist, and can be identified by their numbers.
    pub(crate) fn check_processes_exist(&self) -> Result<(), Error> {
        if !self.processes.is_empty() && !is_in_initial_pid_namespace() {
            return Err(Error::PidNamespace);
        }
        let gone = self.processes.iter().find(|id| fs::metadata(format!("/proc/{id}")).is_err());
        gone.map_or(Ok(()), |id| Err(Error::NoProcess { id: *id }))
    }
}

pub(crate) fn processes_named(name: &str) -> Result<Vec<u32>, Error> {
    const PATH: &str = "/proc";
    let all = fs::read_dir(PATH).map_err(|source| Error::Proc { path: PATH.into(), source })?;
    let process = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
        (comm.trim_end_matches('\n') == name).then_some(id)
    };
    let processes: Vec<u32> = all.filter_map(|entry| process(entry.ok()?)).collect();
    match processes.is_empty() {
        true => Err(Error::NoName { name: name.into() }),
        false => Ok(processes),
    }
}

/// Whether this process has the number that the kernel's programs see (kernel: include/linux/proc_ns.h,
/// `PROC_PID_INIT_INO`).
fn is_in_initial_pid_namespace() -> bool {
    const FIRST: &str = "pid:[4026531836]";
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == FIRST)
}

//! The machine that produced the figures.

use std::fs;

use super::result::Machine;

/// The model that a board's device tree states.
const BOARD: &str = "/proc/device-tree/model";

pub fn describe_machine(network: String) -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Machine {
        nocopy_version: env!("CARGO_PKG_VERSION").into(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        architecture: std::env::consts::ARCH.into(),
        processor: processor_or_board_name(&cpuinfo, fs::read_to_string(BOARD).ok()),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        virtual_machine: cpuinfo_field(&cpuinfo, "flags")
            .is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
        network,
    }
}

/// The name of the processor, or of its board, because arm64 kernels have no names for processors.
fn processor_or_board_name(cpuinfo: &str, board: Option<String>) -> Option<String> {
    let of_board = || Some(board?.trim_end_matches('\0').to_owned());
    let name = cpuinfo_field(cpuinfo, "model name").map(str::to_owned).filter(|name| !name.is_empty());
    name.or_else(of_board).filter(|name| !name.is_empty())
}

fn cpuinfo_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    Some(line.split_once(':')?.1.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let cpuinfo = "model\t\t: 143\nmodel name\t: Some Processor\nflags\t\t: fpu hypervisor\n";
        assert_eq!(cpuinfo_field(cpuinfo, "model name"), Some("Some Processor"));
        assert_eq!(cpuinfo_field(cpuinfo, "power"), None);
    }

    #[test]
    fn a_processor_without_a_name_is_that_of_its_board() {
        let board = || Some("Raspberry Pi 4 Model B Rev 1.4\0".to_owned());
        let arm64 = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n";
        assert_eq!(
            processor_or_board_name(arm64, board()).as_deref(),
            Some("Raspberry Pi 4 Model B Rev 1.4")
        );
        assert_eq!(
            processor_or_board_name("model name\t: Some Processor\n", board()).as_deref(),
            Some("Some Processor")
        );
        assert_eq!(processor_or_board_name(arm64, None), None);
        let unnamed = "model name\t: \n";
        assert_eq!(
            processor_or_board_name(unnamed, board()).as_deref(),
            Some("Raspberry Pi 4 Model B Rev 1.4")
        );
        assert_eq!(processor_or_board_name(unnamed, Some("\0".into())), None);
    }
}

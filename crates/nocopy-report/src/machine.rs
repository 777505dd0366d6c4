//! Which machine the figures are from.

use std::fs;

use super::result::Machine;

pub fn describe(network: String) -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Machine {
        nocopy_version: env!("CARGO_PKG_VERSION").into(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        architecture: std::env::consts::ARCH.into(),
        processor: field(&cpuinfo, "model name").map(str::to_owned),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        virtual_machine: field(&cpuinfo, "flags")
            .is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
        network,
    }
}

fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    Some(line.split_once(':')?.1.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let cpuinfo = "model\t\t: 143\nmodel name\t: Some Processor\nflags\t\t: fpu hypervisor\n";
        assert_eq!(field(cpuinfo, "model name"), Some("Some Processor"));
        assert_eq!(field(cpuinfo, "power"), None);
    }
}

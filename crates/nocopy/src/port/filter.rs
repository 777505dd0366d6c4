//! Filters: which packets a port receives, decided before they are copied.
//!
//! A filter is a classic BPF program that reads the frame as it is on the wire, including VLAN tags: compiled
//! from an expression of pcap-filter(7) by the system's libpcap or tcpdump, or given as bytecode
//! ([`Program::parse`] reads what `tcpdump -ddd` prints). A port
//! ([`PortBuilder::filter`](crate::port::PortBuilder::filter)) runs
//! it where it costs least:
//!
//! | mode | where | packets that do not match |
//! |---|---|---|
//! | AF_XDP | before the redirect, translated to eBPF | go to the host, unchanged and not copied |
//! | packet ring | at the socket, as classic BPF | are not copied into the ring |
//!
//! AF_XDP gets the frame as the device delivers it: a VLAN tag that the card removes is missing for the
//! filter and for the port ('ethtool -K INTERFACE rxvlan off' keeps it). Before Linux 5.18 an XDP program
//! cannot run filters that use the packet's length, or load relative to X, as filters for ports do; then the
//! port is opened as a packet ring.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let filter = nocopy::filter::compile("udp port 9000 and host 10.0.0.1")?;
//! let mut port = nocopy::Port::builder("eth0").filter(&filter).open()?;
//! for packet in port.receiver().receive()? {
//!     println!("{} bytes", packet.len()); // everything else is still the host's
//! }
//! # Ok(()) }
//! ```

use std::ffi::CString;

use nocopy_proto::distribution::tcpdump_install_command;
use nocopy_proto::filter::InvalidProgram;
pub use nocopy_proto::filter::Program;
use nocopy_proto::filter::{Instruction, ParseError};

use crate::facts::io_error::convert_to_io_error;
use crate::sys::pcap::{self, CompileFailure};
use crate::sys::tcpdump::{self, TcpdumpFailure};

/// Why an expression was not compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// There is no compiler for expressions: neither libpcap nor tcpdump can be used.
    #[error(
        "filter '{expression}': cannot be compiled; neither libpcap nor tcpdump can be used, which compile filters ({reason}); \
         install tcpdump ({}), or give the filter as bytecode (--bytecode FILE)",
        tcpdump_install_command(|path| std::fs::read_to_string(path).ok())
    )]
    NoLibrary {
        /// The expression.
        expression: String,
        /// The reasons, of the loader and of starting tcpdump.
        reason: String,
    },
    /// The expression is not valid.
    #[error("filter '{expression}': cannot be compiled; {reason}; pcap-filter(7) has the syntax")]
    Expression {
        /// The expression.
        expression: String,
        /// libpcap's reason, also if tcpdump reports it.
        reason: String,
    },
    /// It was compiled into a program that the kernel would refuse.
    #[error("filter '{expression}': cannot be used; {source}")]
    Program {
        /// The expression.
        expression: String,
        /// The fault of the program.
        source: InvalidProgram,
    },
}

convert_to_io_error!(CompileError {
    Self::NoLibrary { .. } => std::io::ErrorKind::NotFound,
    _ => std::io::ErrorKind::InvalidInput,
});

/// Compiles an expression of pcap-filter(7) for Ethernet frames, by the system's libpcap, which is loaded at
/// first use. Host names in it are looked up. Where no library can be loaded, as in a statically linked
/// program, `tcpdump -ddd` is started instead, if that is installed.
///
/// # Errors
/// There is neither libpcap nor tcpdump, or the expression is refused.
pub fn compile(expression: &str) -> Result<Program, CompileError> {
    let given = || expression.to_owned();
    let text = CString::new(expression).map_err(|_| CompileError::Expression {
        expression: expression.replace('\0', "\\0"),
        reason: "it contains a zero byte".into(),
    })?;
    let instructions = match pcap::compile(&text) {
        Ok(instructions) => instructions,
        Err(CompileFailure::Expression(reason)) => {
            return Err(CompileError::Expression { expression: given(), reason });
        }
        Err(CompileFailure::NoLibrary(reason)) => compile_by_tcpdump(expression, &reason)?,
    };
    Program::new(instructions).map_err(|source| CompileError::Program { expression: given(), source })
}

/// The way without libpcap, which is missing for this reason.
fn compile_by_tcpdump(expression: &str, no_library: &str) -> Result<Vec<Instruction>, CompileError> {
    let given = || expression.to_owned();
    let no_compiler = |reason: &dyn std::fmt::Display| CompileError::NoLibrary {
        expression: given(),
        reason: format!("{no_library}; {reason}"),
    };
    if asks_for_network_broadcasts(expression) {
        let reason = "netmask not known, so 'ip broadcast' not supported".into();
        return Err(CompileError::Expression { expression: given(), reason });
    }
    let printed = tcpdump::compile(expression).map_err(|failure| match failure {
        TcpdumpFailure::NotUsable(reason) => no_compiler(&reason),
        TcpdumpFailure::Expression(reason) => CompileError::Expression { expression: given(), reason },
    })?;
    match Program::parse(&printed) {
        Ok(program) => Ok(program.instructions().to_vec()),
        Err(ParseError::Invalid(source)) => Err(CompileError::Program { expression: given(), source }),
        Err(error) => Err(no_compiler(&format_args!("tcpdump: {error}"))),
    }
}

/// Whether an expression depends on the network's mask. libpcap is told that it is unknown, and refuses
/// `ip broadcast`; tcpdump without an interface would take it as 0, and match other packets.
fn asks_for_network_broadcasts(expression: &str) -> bool {
    let words = || expression.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words().zip(words().skip(1)).any(|pair| pair == ("ip", "broadcast"))
}

#[cfg(test)]
mod tests {
    use nocopy_lab::Missing;

    use super::*;

    #[test]
    fn expressions_compile_and_invalid_ones_are_one_line_errors() {
        let program = match compile("udp port 9000 and host 10.0.0.1") {
            Err(CompileError::NoLibrary { .. }) => return nocopy_lab::skip(&Missing::Device("libpcap")),
            compiled => compiled.unwrap(),
        };
        assert!(program.instructions().len() > 10);
        for nonsense in ["udp prot 9000", "host", "ip and and tcp", "a\0b", "port 99999"] {
            let message = compile(nonsense).unwrap_err().to_string();
            assert!(message.contains("pcap-filter(7)") && message.lines().count() == 1, "{message}");
        }
    }

    #[test]
    fn tcpdump_compiles_as_libpcap_does() {
        for expression in
            ["", "ip", "udp port 9000 and host 10.0.0.1", "not vlan and len > 100", "ether broadcast"]
        {
            let program = match compile_by_tcpdump(expression, "not asked") {
                Err(CompileError::NoLibrary { .. }) => {
                    return nocopy_lab::skip(&Missing::Device("tcpdump"));
                }
                compiled => compiled.unwrap(),
            };
            assert_eq!(program, compile(expression).unwrap().instructions(), "{expression}");
        }
        for nonsense in ["udp prot 9000", "ip and and tcp", "-w", "ip broadcast"] {
            let by_tcpdump = compile_by_tcpdump(nonsense, "not asked").map(|_| ()).map_err(|e| e.to_string());
            let by_libpcap = compile(nonsense).map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(by_tcpdump, by_libpcap, "{nonsense}");
        }
    }
}

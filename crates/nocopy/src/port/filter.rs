//! Filters: which packets a port receives, decided before they are copied.
//!
//! A filter is a classic BPF program that reads the frame as it is on the wire, including VLAN tags: compiled
//! from an expression of pcap-filter(7) by the system's libpcap, or given as bytecode ([`Program::parse`]
//! reads what `tcpdump -ddd` prints). A port ([`PortBuilder::filter`](crate::port::PortBuilder::filter)) runs
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

use nocopy_proto::distribution::libpcap_install_command;
use nocopy_proto::filter::InvalidProgram;
pub use nocopy_proto::filter::Program;

use crate::facts::io_error::convert_to_io_error;
use crate::sys::pcap::{self, CompileFailure};

/// Why an expression was not compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// libpcap was not found.
    #[error(
        "filter '{expression}': cannot be compiled; libpcap, which compiles filters, cannot be loaded ({reason}); install it ({}), \
         or give the filter as bytecode",
        libpcap_install_command(|path| std::fs::read_to_string(path).ok())
    )]
    NoLibrary {
        /// The expression.
        expression: String,
        /// The loader's reason.
        reason: String,
    },
    /// The expression is not valid.
    #[error("filter '{expression}': cannot be compiled; {reason}; pcap-filter(7) has the syntax")]
    Expression {
        /// The expression.
        expression: String,
        /// libpcap's reason.
        reason: String,
    },
    /// libpcap compiled it into a program that the kernel would refuse.
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
/// first use. Host names in it are looked up.
///
/// # Errors
/// libpcap was not found, or refuses the expression.
pub fn compile(expression: &str) -> Result<Program, CompileError> {
    let given = || expression.to_owned();
    let text = CString::new(expression).map_err(|_| CompileError::Expression {
        expression: expression.replace('\0', "\\0"),
        reason: "it contains a zero byte".into(),
    })?;
    let instructions = pcap::compile(&text).map_err(|refusal| match refusal {
        CompileFailure::NoLibrary(reason) => CompileError::NoLibrary { expression: given(), reason },
        CompileFailure::Expression(reason) => CompileError::Expression { expression: given(), reason },
    })?;
    Program::new(instructions).map_err(|source| CompileError::Program { expression: given(), source })
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
}

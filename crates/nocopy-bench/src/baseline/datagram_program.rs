//! Programs that send datagrams one by one as fast as they can, as they are: processes of their own, which a
//! library may be preloaded into.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{LINKED_STATICALLY, LOADS_LIBRARIES, nuttcp, started};
use crate::Failure;
use crate::child::{ChildKind, ScopedChild, UNDER_WAY};
use crate::cpu;
use nocopy_report::Outcome;

/// Where to, and bytes of a datagram.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct DatagramSendTask {
    to: (Ipv4Addr, u16),
    bytes: usize,
}

/// Datagrams that the process sends before it prints [`UNDER_WAY`].
const FIRST: u32 = 256;

/// A loop in Python, as users write it.
const PYTHON: &str = "
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to, data = (sys.argv[1], int(sys.argv[2])), bytes(int(sys.argv[3]))
for _ in range(256): sender.sendto(data, to)
print('under way', flush=True)
while True: sender.sendto(data, to)
";

const FFMPEG: &str = "ffmpeg";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SenderProgram {
    /// A loop of `sendto`.
    Loop,
    Python,
    Nuttcp,
    /// RTP of video that is not compressed: packets of three sizes in turn.
    Ffmpeg,
}

impl SenderProgram {
    pub(crate) const ALL: [Self; 4] = [Self::Loop, Self::Python, Self::Nuttcp, Self::Ffmpeg];

    pub(crate) fn sends_equal_datagrams(self) -> bool {
        self != Self::Ffmpeg
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loop => "sendto-loop",
            Self::Python => "python-loop",
            Self::Nuttcp => "nuttcp",
            Self::Ffmpeg => "ffmpeg-rtp",
        }
    }

    /// Why it cannot be measured here.
    pub(crate) fn absence(self) -> Option<String> {
        let (is_installed, package) = match self {
            Self::Loop => return (!LOADS_LIBRARIES).then(|| LINKED_STATICALLY.into()),
            Self::Python => (Command::new("python3").arg("--version").output().is_ok(), "python3"),
            Self::Nuttcp => (nuttcp::is_installed(), "nuttcp"),
            Self::Ffmpeg => (Command::new(FFMPEG).arg("-version").output().is_ok(), FFMPEG),
        };
        (!is_installed).then(|| format!("{package} not installed: 'apt install {package}'."))
    }

    fn command(self, to: (Ipv4Addr, u16), bytes: usize) -> io::Result<Command> {
        let arguments = [to.0.to_string(), to.1.to_string(), bytes.to_string()];
        Ok(match self {
            Self::Loop => ChildKind::Sendto.command(&DatagramSendTask { to, bytes })?,
            Self::Python => {
                let mut command = Command::new("python3");
                command.args(["-c", PYTHON]).args(arguments);
                command
            }
            Self::Nuttcp => nuttcp::command(to, bytes),
            Self::Ffmpeg => ffmpeg_command(to, bytes),
        })
    }
}

/// As fast as it can; it ends by itself after an hour of video.
fn ffmpeg_command((address, port): (Ipv4Addr, u16), bytes: usize) -> Command {
    let mut command = Command::new(FFMPEG);
    command.args(["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", "testsrc=size=640x360:rate=25"]);
    command.args(["-t", "3600", "-pix_fmt", "yuv420p", "-c:v", "rawvideo", "-f", "rtp"]);
    command.arg(format!("rtp://{address}:{port}?pkt_size={bytes}"));
    command
}

/// The process, as the bench sees it; killed when dropped.
#[derive(Debug)]
pub(crate) struct RunningSenderProgram {
    child: ScopedChild,
    _server: Option<ScopedChild>,
}

impl RunningSenderProgram {
    /// Starts it in the calling thread's namespace; returns when datagrams were sent.
    pub(crate) fn start(
        program: SenderProgram,
        to: (Ipv4Addr, u16),
        bytes: usize,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let mut command = program.command(to, bytes)?;
        prepare(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        if [SenderProgram::Nuttcp, SenderProgram::Ffmpeg].contains(&program) {
            let _server = (program == SenderProgram::Nuttcp).then(nuttcp::start_server).transpose()?;
            let mut child = ScopedChild(command.stdout(Stdio::null()).spawn()?);
            wait_until_sending(program.name(), &mut child)?;
            return Ok(Self { child, _server });
        }
        let mut child = ScopedChild(command.spawn()?);
        child.wait_for_first_send(program.name())?;
        Ok(Self { child, _server: None })
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn cpu_time(&self) -> io::Result<Duration> {
        cpu::cpu_time_of_process(self.child.id())
    }
}

/// Waits until a program's first datagrams have left: nothing else sends any in the network namespace of this
/// thread.
fn wait_until_sending(name: &str, child: &mut Child) -> io::Result<()> {
    let sent = || started::datagrams_sent("thread-self");
    let before = sent()?;
    let ended = || started::exit_status_text(child);
    started::wait_until(name, ended, || Ok(sent()? >= before + u64::from(FIRST)))
}

/// The main function of the process: sends until it is killed.
pub(crate) fn child_main(DatagramSendTask { to, bytes }: DatagramSendTask) -> Result<Outcome, Failure> {
    let action = "run 'nocopy bench run-udp', which starts this";
    send_forever(to.into(), bytes).map_err(Failure::step("sendto", "send", action))?;
    Ok(Outcome::Positive)
}

fn send_forever(to: SocketAddr, bytes: usize) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let datagram = vec![0x5a; bytes];
    for _ in 0..FIRST {
        socket.send_to(&datagram, to)?;
    }
    writeln!(io::stdout(), "{UNDER_WAY}")?;
    loop {
        socket.send_to(&datagram, to)?;
    }
}

//! Servers that answer one request after the other, each kept busy by a load that its users know: processes
//! of their own, which a library may be preloaded into.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use super::started;
use crate::cpu;
use crate::stage::SitePair;

/// Answers after which a server is under way.
const FIRST: u64 = 256;

/// Ports that need no privileges.
const DNS_PORT: u16 = 5300;
const REDIS_PORT: u16 = 6379;

const QUERIES: &[u8] = b"name.example A\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerProgram {
    Unbound,
    Redis,
}

impl ServerProgram {
    pub(crate) const ALL: [Self; 2] = [Self::Unbound, Self::Redis];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unbound => "unbound",
            Self::Redis => "redis",
        }
    }

    /// The program that keeps it busy.
    pub(crate) fn load_generator_name(self) -> &'static str {
        match self {
            Self::Unbound => "dnsperf",
            Self::Redis => "redis-benchmark",
        }
    }

    pub(crate) fn is_installed(self) -> bool {
        let programs = match self {
            Self::Unbound => [["unbound", "-V"], ["dnsperf", "-h"]],
            Self::Redis => [["redis-server", "--version"], ["redis-benchmark", "--version"]],
        };
        programs.iter().all(|[program, question]| Command::new(program).arg(question).output().is_ok())
    }

    pub(crate) fn packages(self) -> &'static str {
        match self {
            Self::Unbound => "unbound dnsperf",
            Self::Redis => "redis-server redis-tools",
        }
    }

    /// The line of sh(1) that starts it, followed by what it reads.
    fn shell_line_and_input(self, at: Ipv4Addr) -> [String; 2] {
        match self {
            Self::Unbound => {
                let configuration = format!(
                    "server:\n interface: {at}@{DNS_PORT}\n access-control: 0.0.0.0/0 allow\n chroot: \"\"\n username: \"\"\n \
                     pidfile: \"\"\n directory: \"/\"\n use-syslog: no\n do-daemonize: no\n module-config: \"iterator\"\n \
                     local-data: \"name.example. A 192.0.2.1\"\nremote-control:\n control-enable: no\n"
                );
                ["unbound -d -c /dev/stdin".into(), configuration]
            }
            Self::Redis => {
                let options = "--save '' --appendonly no --protected-mode no --daemonize no";
                let line = format!("redis-server --bind 127.0.0.1 {at} --port {REDIS_PORT} {options}");
                [line, String::new()]
            }
        }
    }

    fn is_serving(self, process: u32) -> bool {
        let process = process.to_string();
        match self {
            Self::Unbound => started::is_bound(&process, DNS_PORT),
            Self::Redis => started::is_listening(&process, REDIS_PORT),
        }
    }

    /// The line that keeps it busy until it is killed, as good as for ever. dnsperf reads its file again and
    /// again.
    fn load_generator_line(self, at: Ipv4Addr, queries: &File) -> String {
        let (process, file) = (std::process::id(), queries.as_raw_fd());
        match self {
            Self::Unbound => {
                format!("dnsperf -s {at} -p {DNS_PORT} -d /proc/{process}/fd/{file} -l 600 -c 4 -q 64 -S 0")
            }
            Self::Redis => format!("redis-benchmark -h {at} -p {REDIS_PORT} -t get -c 16 -n 100000000 -q"),
        }
    }
}

/// A process that ends when this is dropped, and when this program ends, however that ends.
#[derive(Debug)]
struct SupervisedProcess {
    shell: Child,
    /// At its end the shell kills the process.
    input: Option<ChildStdin>,
    id: u32,
}

impl SupervisedProcess {
    fn start([line, reads]: [String; 2], prepare: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let script = format!(
            "{line} >/dev/null 2>&1 <<'END' &\n{reads}END\necho $!\nread -r line\nkill -KILL $!\nwait\n"
        );
        let mut command = Command::new("/bin/sh");
        prepare(&mut command);
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut shell = command.spawn()?;
        let input = shell.stdin.take();
        let mut process = Self { shell, input, id: 0 };
        let output = process.shell.stdout.take().ok_or_else(|| io::Error::other("/bin/sh has no output"))?;
        let mut number = String::new();
        BufReader::new(output).read_line(&mut number)?;
        process.id =
            number.trim().parse().map_err(|_| io::Error::other(format!("'{line}' was not started")))?;
        Ok(process)
    }

    /// Whether it has ended by itself; the shell has not asked yet how.
    fn has_ended(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap_or_default();
        status.rsplit(')').next().is_none_or(|fields| fields.is_empty() || fields.starts_with(" Z"))
    }

    fn wait_until(&self, name: &str, is_done: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
        let ended = || Ok(self.has_ended().then(|| "start it by hand for its error".to_owned()));
        started::wait_until(name, ended, is_done)
    }
}

impl Drop for SupervisedProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        // Fails if it has ended.
        let _ = self.shell.wait();
    }
}

/// Where the answers of a server program are counted.
#[derive(Debug)]
pub(crate) enum AnswerCounter {
    /// Datagrams that left its network namespace, of which nothing else sends any; by the number of a process
    /// there.
    Datagrams(u32),
    /// The commands that Redis counts, read over a separate connection.
    Commands(BufReader<TcpStream>),
}

impl AnswerCounter {
    fn open_for_server(server: ServerProgram, process: u32) -> io::Result<Self> {
        match server {
            ServerProgram::Unbound => Ok(Self::Datagrams(process)),
            ServerProgram::Redis => {
                let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, REDIS_PORT))?;
                Ok(Self::Commands(BufReader::new(connection)))
            }
        }
    }

    pub(crate) fn read_count(&mut self) -> io::Result<u64> {
        match self {
            Self::Datagrams(process) => started::datagrams_sent(&process.to_string()),
            Self::Commands(connection) => {
                connection.get_mut().write_all(b"INFO stats\r\n")?;
                parse_command_count(connection)?
                    .ok_or_else(|| io::Error::other("redis-server answered without a count of commands"))
            }
        }
    }
}

/// Parses the number of processed commands from Redis's answer: `$LENGTH`, then lines of that many bytes in
/// total.
fn parse_command_count(answer: &mut impl BufRead) -> io::Result<Option<u64>> {
    let mut line = String::new();
    answer.read_line(&mut line)?;
    let Some(bytes) = line.trim().strip_prefix('$').and_then(|bytes| bytes.parse().ok()) else {
        return Ok(None);
    };
    let mut text = String::new();
    answer.by_ref().take(bytes).read_to_string(&mut text)?;
    answer.read_line(&mut line)?;
    let count = text.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok(count.and_then(|count| count.trim().parse().ok()))
}

/// A server and its load; both end when this is dropped.
#[derive(Debug)]
pub(crate) struct RunningServer {
    server: SupervisedProcess,
    load: SupervisedProcess,
    _queries: File,
}

impl RunningServer {
    /// Starts the server at the sender's side, and its load at the receiver's; returns when answers are
    /// given.
    pub(crate) fn start(
        server: ServerProgram,
        stage: &SitePair,
        prepare: impl FnOnce(&mut Command) + Send,
    ) -> io::Result<(Self, AnswerCounter)> {
        let (at, from) = (&stage.sender, &stage.receiver);
        let queries = File::from(memfd_create("queries", MemfdFlags::empty())?);
        (&queries).write_all(QUERIES)?;
        let process =
            at.run_pinned(|| SupervisedProcess::start(server.shell_line_and_input(at.ipv4), prepare))?;
        process.wait_until(server.name(), || Ok(server.is_serving(process.id)))?;
        let mut counter = at.run(|| AnswerCounter::open_for_server(server, process.id))?;
        let before = counter.read_count()?;
        let load = [server.load_generator_line(at.ipv4, &queries), String::new()];
        let load = from.run_pinned(|| SupervisedProcess::start(load, |_| {}))?;
        load.wait_until(server.load_generator_name(), || Ok(counter.read_count()? >= before + FIRST))?;
        Ok((Self { server: process, load, _queries: queries }, counter))
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.server.id
    }

    pub(crate) fn cpu_time(&self) -> io::Result<Duration> {
        if self.load.has_ended() {
            return Err(io::Error::other("the load ended too early"));
        }
        cpu::cpu_time_of_process(self.server.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_count_is_parsed_from_the_full_reply() {
        let body = "# Stats\r\ntotal_connections_received:18\r\ntotal_commands_processed:15769\r\n";
        let text = format!("${}\r\n{body}\r\n+OK\r\n", body.len());
        let mut answer = text.as_bytes();
        assert_eq!(parse_command_count(&mut answer).unwrap(), Some(15_769));
        assert_eq!(answer, b"+OK\r\n", "nothing of it is left");
        assert_eq!(parse_command_count(&mut &b"-ERR\r\n"[..]).unwrap(), None);
        assert_eq!(parse_command_count(&mut &b""[..]).unwrap(), None);
    }

    #[test]
    fn a_supervised_process_ends_with_its_supervisor() {
        let process = SupervisedProcess::start(["exec sleep 600".into(), String::new()], |_| {}).unwrap();
        assert!(process.id > 0 && !process.has_ended());
        let path = format!("/proc/{}", process.id);
        drop(process);
        assert!(!std::path::Path::new(&path).exists());
    }
}

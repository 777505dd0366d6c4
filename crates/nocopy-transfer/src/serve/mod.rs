//! `nocopy serve`: answers 'nocopy ping' and 'nocopy call'.

mod datagrams;
mod messages;
mod program;
mod stream;
mod summary;

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use nocopy::message::{Endpoint as MessageEndpoint, MESSAGE_BYTES_MAX};
use nocopy::udp;

use crate::arguments::ServeArguments;
use crate::attempts::io_error_from_failure;
use crate::endpoint::{Endpoint, Scheme};
use crate::exchange::message::EndpointSettings;
use crate::failure::CommandError;
use crate::{Failure, exchange};
use nocopy_report::address::{FailedAttempts, is_address_not_local, listen_tcp};
use nocopy_report::{CommandEnd, Interrupt, Outcome, capability, print};
use program::Program;
use summary::{ServiceCounters, Summary};

/// How often to check whether to end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{address}: no address to answer at{cause}; name an address of this host, or leave it out", cause = ErrorCause(.source))]
    Resolve { address: Endpoint, source: io::Error },
    #[error("{service}: cannot answer there{cause}; {}", listen_advice(source), cause = ErrorCause(.source))]
    NoListener { service: Endpoint, source: io::Error },
    #[error(
        "{}://{address}: cannot answer there{cause}; {}",
        scheme.name(),
        listen_advice(source),
        cause = ErrorCause(.source)
    )]
    Listen { scheme: Scheme, address: SocketAddr, source: io::Error },
    #[error("{}://{address}: cannot answer any more{cause}; check that its interface is up, and start it again", scheme.name(), cause = ErrorCause(.source))]
    Answer { scheme: Scheme, address: SocketAddr, source: io::Error },
    #[error(
        "{service}: no address; a port of {interface} answers for one address, which must be given; 'ip address show {interface}' lists them"
    )]
    NoAddress { service: Endpoint, interface: String },
    #[error(
        "{interface}: cannot serve both message:// and xdp://; one port takes all queues of the interface; serve one of them over it, the other without --interface or by another process"
    )]
    TwoPorts { interface: String },
    #[error(
        "--interface: cannot be used here; it needs message:// or xdp://; leave it out, or serve one of them"
    )]
    NeedlessInterface,
    #[error("xdp://: cannot be used alone; it needs --interface; name the interface")]
    NoInterface,
    #[error(
        "--exec: no program; nothing follows the option; write the program's name, and then its arguments"
    )]
    NoProgram,
}

impl CommandError for Error {}

fn listen_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program uses it; name another port",
        io::ErrorKind::AddrNotAvailable => "this host has no such address; 'ip address' lists them",
        io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE; name another",
        _ => "name another address or port",
    }
}

struct OpenService {
    scheme: Scheme,
    address: SocketAddr,
    socket: ServiceSocket,
}

enum ServiceSocket {
    Messages(Box<MessageEndpoint>),
    Datagrams(Box<udp::Socket>),
    Stream(TcpListener),
}

pub fn run(arguments: &ServeArguments) -> Result<Outcome, Failure> {
    let program = arguments.exec.as_deref().map(|words| Program::parse(words, arguments.exec_timeout));
    let program = program.transpose()?;
    check_arguments(arguments)?;
    let interrupt = Interrupt::catch()?;
    let services = arguments.services().map(|service| open_service(service, arguments));
    let services: Vec<_> = services.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    capability::drop_all_but(capability::NONE)?;
    for OpenService { scheme, address, .. } in &services {
        print::print_status(format_args!("nocopy: serving at {}://{address}", scheme.name()));
    }
    let start = Instant::now();
    let (served, ended, failure) = serve_all(arguments, services, program.as_ref(), &interrupt);
    let summary = Summary::from_services(ended, start.elapsed(), served);
    print::print_summary(&summary, arguments.json, failure)
}

fn check_arguments(arguments: &ServeArguments) -> Result<(), Error> {
    let over_port: Vec<_> = arguments.services().filter(|service| can_use_port(service)).collect();
    match (&arguments.interface, over_port.len()) {
        (Some(_), 0) => Err(Error::NeedlessInterface),
        (None, _) if over_port.iter().any(|service| service.scheme() == Scheme::Xdp) => {
            Err(Error::NoInterface)
        }
        (Some(interface), 2..) => Err(Error::TwoPorts { interface: interface.clone() }),
        (Some(interface), _) => match over_port.iter().find(|service| !service.has_host()) {
            Some(service) => {
                Err(Error::NoAddress { service: (*service).clone(), interface: interface.clone() })
            }
            None => Ok(()),
        },
        (None, _) => Ok(()),
    }
}

/// At all addresses of the host that this machine has; over a port at the first, as the port belongs to one
/// socket.
fn open_service(service: &Endpoint, arguments: &ServeArguments) -> Result<Vec<OpenService>, Failure> {
    let scheme = service.scheme();
    let addresses = service.local_addrs();
    let addresses = addresses.map_err(|source| Error::Resolve { address: service.clone(), source })?;
    if let [address] = addresses[..] {
        return Ok(vec![open_service_at(scheme, address, arguments)?]);
    }
    let is_over_port = arguments.interface.is_some() && can_use_port(service);
    let (mut opened, mut failed) = (Vec::new(), FailedAttempts::default());
    for address in addresses {
        match open_service_at(scheme, address, arguments) {
            Ok(service) => opened.push(service),
            Err(failure) => {
                let source = io_error_from_failure(failure);
                if !is_address_not_local(&source) {
                    return Err(Error::Listen { scheme, address, source }.into());
                }
                failed.record(address, source);
            }
        }
        if is_over_port && !opened.is_empty() {
            break;
        }
    }
    match opened.is_empty() {
        true => Err(Error::NoListener { service: service.clone(), source: failed.into_error() }.into()),
        false => Ok(opened),
    }
}

/// Whether the service is one that a port can carry.
fn can_use_port(service: &Endpoint) -> bool {
    matches!(service.scheme(), Scheme::Message | Scheme::Xdp)
}

fn open_service_at(
    scheme: Scheme,
    address: SocketAddr,
    arguments: &ServeArguments,
) -> Result<OpenService, Failure> {
    let refused = |source| Error::Listen { scheme, address, source };
    let waiting = arguments.wait;
    let (socket, address) = match scheme {
        Scheme::Udp => {
            // At the wildcard, answers are sent from the address that was asked.
            let builder = udp::Socket::builder().receive_metadata(address.ip().is_unspecified());
            let socket = builder.method(udp::Method::Socket).wait(waiting.port_wait()).bind(address);
            let socket = socket.map_err(|error| refused(io_error_from_failure(error)))?;
            let address = socket.local_addr().map_err(refused)?;
            (ServiceSocket::Datagrams(Box::new(socket)), address)
        }
        Scheme::Tcp => {
            let listener = listen_tcp(address).map_err(refused)?;
            let address = listener.local_addr().map_err(refused)?;
            (ServiceSocket::Stream(listener), address)
        }
        Scheme::Xdp => {
            let interface = arguments.interface.as_deref().unwrap_or_default();
            let socket = exchange::over_port::open_socket(interface, address, waiting)?;
            let address = socket.local_addr().map_err(refused)?;
            (ServiceSocket::Datagrams(Box::new(socket)), address)
        }
        Scheme::Message => {
            let is_tcp_port =
                |service: &Endpoint| service.scheme() == Scheme::Tcp && service.port() == address.port();
            let setting = EndpointSettings {
                at: address,
                interface: arguments.interface.as_deref(),
                waiting,
                message_bytes_max: MESSAGE_BYTES_MAX as usize,
                datagram_bytes: None,
                accept: true,
                streams: !arguments.services().any(is_tcp_port),
            };
            let endpoint = setting.open()?;
            let address = endpoint.local_addr();
            (ServiceSocket::Messages(Box::new(endpoint)), address)
        }
    };
    Ok(OpenService { scheme, address, socket })
}

/// Runs a thread for each service, until the end is requested, the time is over, or one of them fails.
fn serve_all(
    arguments: &ServeArguments,
    services: Vec<OpenService>,
    program: Option<&Program>,
    interrupt: &Interrupt,
) -> (Vec<ServiceCounters>, CommandEnd, Option<Failure>) {
    let start = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = services
            .into_iter()
            .map(|service| scope.spawn(move || service.serve(arguments, program, interrupt)))
            .collect();
        let is_over = || arguments.duration.is_some_and(|duration| start.elapsed() >= duration);
        while !interrupt.was_interrupted() && !is_over() && !threads.iter().any(|thread| thread.is_finished())
        {
            thread::sleep(POLL_INTERVAL);
        }
        let reason = if interrupt.was_interrupted() { CommandEnd::Interrupted } else { CommandEnd::Duration };
        interrupt.request_end();
        let threads = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let (served, failures): (Vec<_>, Vec<_>) = threads.unzip();
        let failure = failures.into_iter().flatten().next();
        let ended = if failure.is_some() { CommandEnd::Failed } else { reason };
        (served, ended, failure.map(Failure::from))
    })
}

impl OpenService {
    /// Answers until the end is requested; returns its counts, and its error.
    fn serve(
        self,
        arguments: &ServeArguments,
        program: Option<&Program>,
        interrupt: &Interrupt,
    ) -> (ServiceCounters, Option<Error>) {
        let Self { scheme, address, socket } = self;
        let (waiting, idle) = (arguments.wait, arguments.idle);
        let mut served = ServiceCounters::new(scheme, address);
        let done = match socket {
            ServiceSocket::Messages(endpoint) => {
                messages::serve_messages(*endpoint, waiting, program, interrupt, &mut served)
            }
            ServiceSocket::Datagrams(socket) => {
                datagrams::serve_datagrams(*socket, waiting, interrupt, &mut served)
            }
            ServiceSocket::Stream(listener) => {
                stream::serve_streams(&listener, waiting, idle, interrupt, &mut served)
            }
        };
        (served, done.err().map(|source| Error::Answer { scheme, address, source }))
    }
}

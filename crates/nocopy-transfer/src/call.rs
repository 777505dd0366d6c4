//! `nocopy call`: one request, and its response.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nocopy::message::{self, Endpoint as MessageEndpoint, Event, Kind, MESSAGE_BYTES_MAX, Payload, Peer};
use nocopy::{Reason, Rejected};
use nocopy_report::boot_clock::BootInstant;

use crate::arguments::CallArguments;
use crate::attempts::{
    check_port_is_open, io_error_from_failure, io_error_from_message_error, try_addresses_in_turn,
};
use crate::endpoint::Endpoint;
use crate::exchange::{PATIENCE, none_while_interface_down};
use crate::failure::CommandError;
use crate::{Failure, ping};
use nocopy_report::quantity::time_text;
use nocopy_report::{Interrupt, Outcome, capability, input_file, print};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{target}: no response; {source}")]
    Call { target: Endpoint, source: message::Error },
    #[error("{target}: no response; {why}; look at what 'nocopy serve' prints there")]
    Ended { target: Endpoint, why: String },
    #[error("request: not sent; it is longer than {} MiB, which is the most; send it by 'nocopy send tcp://…'", MESSAGE_BYTES_MAX >> 20)]
    TooLong,
}

impl CommandError for Error {}

pub fn run(arguments: &CallArguments) -> Result<Outcome, Failure> {
    let request = read_request(arguments)?;
    let interrupt = Interrupt::catch()?;
    let addresses = ping::resolve_target(&arguments.target)?;
    let start = Instant::now();
    let connected = connect(arguments, &addresses, &interrupt)?;
    capability::drop_all_but(capability::NONE)?;
    let Some((endpoint, peer)) = connected else {
        return Ok(print_interrupted(arguments, start, "not connected yet, nothing was sent"));
    };
    let mut call = PendingCall { arguments, interrupt, endpoint };
    match call.wait_for_response(request, peer)? {
        Some(response) => print_response(&response).map(|()| Outcome::Positive),
        None => Ok(print_interrupted(arguments, start, call.request_state_text(peer))),
    }
}

/// An endpoint, connected to one of the addresses. `None`: interrupted.
fn connect(
    arguments: &CallArguments,
    addresses: &[SocketAddr],
    interrupt: &Interrupt,
) -> Result<Option<(MessageEndpoint, Peer)>, Failure> {
    let interface = arguments.interface.as_deref();
    let open = |to| ping::open_message_endpoint(to, interface, arguments.wait, MESSAGE_BYTES_MAX as usize);
    if let [to] = addresses {
        let endpoint = open(*to)?;
        capability::drop_all_but(capability::NONE)?;
        let connected = connect_to(endpoint, *to, arguments.timeout, interrupt);
        return Ok(connected.map_err(ping::Error::Message)?);
    }
    capability::drop_all_but(ping::needed_capabilities(interface))?;
    let found = try_addresses_in_turn(addresses, arguments.timeout, |to, share| {
        check_port_is_open(to)?;
        connect_to(open(to).map_err(io_error_from_failure)?, to, share, interrupt)
            .map_err(io_error_from_message_error)
    });
    Ok(found.map_err(|failed| ping::Error::Connect {
        target: arguments.target.clone(),
        source: failed.into_error(),
    })?)
}

fn connect_to(
    mut endpoint: MessageEndpoint,
    to: SocketAddr,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<Option<(MessageEndpoint, Peer)>, message::Error> {
    let start = BootInstant::now();
    let peer = endpoint.start_connect(to)?;
    while !interrupt.was_interrupted() {
        none_while_interface_down(endpoint.wait(PATIENCE))?;
        while let Some(event) = endpoint.poll_event() {
            match event {
                Event::Connected(..) => return Ok(Some((endpoint, peer))),
                Event::Lost(_, reason) => return Err(message::Error::NotConnected { address: to, reason }),
                _ => {}
            }
        }
        if start.elapsed() >= timeout {
            return Err(message::Error::ConnectTimedOut { address: to, timeout });
        }
    }
    Ok(None)
}

fn print_interrupted(arguments: &CallArguments, start: Instant, what: &str) -> Outcome {
    let after = time_text(start.elapsed().as_secs_f64());
    print::print_status(format_args!("nocopy: {}: interrupted after {after}: {what}", arguments.target));
    Outcome::Negative
}

/// One call; its waits end early if the user interrupts it.
struct PendingCall<'a> {
    arguments: &'a CallArguments,
    interrupt: Interrupt,
    endpoint: MessageEndpoint,
}

impl PendingCall<'_> {
    /// `None`: interrupted.
    fn wait_for_response(&mut self, request: Vec<u8>, peer: Peer) -> Result<Option<Vec<u8>>, Error> {
        // The user's time limit: it passes while the machine is suspended, too.
        let (start, timeout) = (BootInstant::now(), self.arguments.timeout);
        let (mut request, mut number) = (Some(Payload::from(request)), None);
        while !self.interrupt.was_interrupted() {
            if let Some(unsent) = request.take() {
                match self.endpoint.request(unsent, peer) {
                    Ok(given) => number = Some(given),
                    Err(Rejected { item, reason: Reason::Full }) => request = Some(item),
                    Err(Rejected { reason, .. }) => {
                        return Err(self.no_response_error(message::Error::NotSent(reason)));
                    }
                }
            }
            let message =
                none_while_interface_down(self.endpoint.receive_timeout(PATIENCE)).map(Option::flatten);
            match message.map(|message| message.map(|message| (message.kind(), message.to_vec()))) {
                Ok(Some((Kind::Response(answered), response))) if number == Some(answered) => {
                    return Ok(Some(response));
                }
                Ok(Some(_)) => {} // not for this request
                Ok(None) => self.check_connection()?,
                Err(error) => return Err(self.no_response_error(error.into())),
            }
            if start.elapsed() >= timeout {
                return Err(self.no_response_error(message::Error::TimedOut { timeout }));
            }
        }
        Ok(None)
    }

    /// Whether a response may still arrive, after everything received was read.
    fn check_connection(&mut self) -> Result<(), Error> {
        let why = std::iter::from_fn(|| self.endpoint.poll_event()).find_map(|event| match event {
            Event::Lost(_, reason) => Some(reason.to_string()),
            Event::Finished(_) | Event::Closed(_) => Some("the connection was closed".into()),
            _ => None,
        });
        why.map_or(Ok(()), |why| Err(Error::Ended { target: self.arguments.target.clone(), why }))
    }

    fn no_response_error(&self, source: message::Error) -> Error {
        Error::Call { target: self.arguments.target.clone(), source }
    }

    fn request_state_text(&self, peer: Peer) -> &'static str {
        match self.endpoint.peer_stats(peer) {
            Some(stats) if stats.in_flight + stats.queued == 0 => {
                "the request has arrived, no response has come"
            }
            _ => "the request may have arrived, no response has come",
        }
    }
}

/// Control characters are not printed on a terminal; otherwise the response is printed unchanged.
fn print_response(response: &[u8]) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    if !output.is_terminal() {
        output.write_all(response).and_then(|()| output.flush()).map_err(nocopy_report::Failure::Print)?;
        return Ok(());
    }
    drop(output);
    let words = String::from_utf8_lossy(response);
    print::print_text(&words)?;
    if print::replace_control_characters(&words).as_bytes() != response {
        print::print_status(
            "nocopy: the response has bytes that are not for a terminal, shown as \u{fffd}: send standard output to a file to have them",
        );
    }
    Ok(())
}

/// The request, read before anything is opened.
fn read_request(arguments: &CallArguments) -> Result<Vec<u8>, Failure> {
    let Some(path) = &arguments.file else { return Ok(arguments.request_text().into_bytes()) };
    let request = input_file::read_limited(path, MESSAGE_BYTES_MAX as usize);
    let failed = |source| nocopy_report::Failure::Input { path: input_file::display_name(path), source };
    Ok(request.map_err(failed)?.ok_or(Error::TooLong)?)
}

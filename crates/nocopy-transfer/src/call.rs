//! `nocopy call`: one request, and its response.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};

use nocopy::message::{self, Endpoint as MessageEndpoint, Event, MESSAGE_BYTES_MAX};

use crate::arguments::CallArguments;
use crate::endpoint::Endpoint;
use crate::{Failure, ping};
use nocopy_report::{Outcome, capability, print};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{target}: no response: {source}")]
    Call { target: Endpoint, source: message::Error },
    #[error("{target}: no response: {why}: see what 'nocopy serve' says there")]
    Ended { target: Endpoint, why: String },
    #[error("the request is longer than {} MiB, which is the most: send it by 'nocopy send tcp://…'", MESSAGE_BYTES_MAX >> 20)]
    TooLong,
}

pub fn run(arguments: &CallArguments) -> Result<Outcome, Failure> {
    let request = request(arguments)?;
    let to = ping::resolve(&arguments.target)?;
    let mut endpoint =
        ping::open(to, arguments.interface.as_deref(), arguments.wait, MESSAGE_BYTES_MAX as usize)?;
    capability::drop_all_but(capability::NONE)?;
    let peer = endpoint.connect(to, arguments.timeout).map_err(ping::Error::Message)?;
    let called = endpoint.call(request, peer, arguments.timeout).map(|response| response.to_vec());
    let response = called.map_err(|source| no_response(&arguments.target, source, &mut endpoint))?;
    print_response(&response)?;
    Ok(Outcome::Positive)
}

/// A terminal is not given what would steer it; anything else has the response byte for byte.
fn print_response(response: &[u8]) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    if !output.is_terminal() {
        output.write_all(response).and_then(|()| output.flush()).map_err(nocopy_report::Failure::Print)?;
        return Ok(());
    }
    drop(output);
    let words = String::from_utf8_lossy(response);
    print::text(&words)?;
    if print::printable(&words).as_bytes() != response {
        print::say(
            "nocopy: the response has bytes that are not for a terminal, shown as \u{fffd}: send standard output to a file to have them",
        );
    }
    Ok(())
}

/// Why there is none.
fn no_response(target: &Endpoint, source: message::Error, endpoint: &mut MessageEndpoint) -> Error {
    let target = target.clone();
    if !matches!(source, message::Error::Lost) {
        return Error::Call { target, source };
    }
    let reason = std::iter::from_fn(|| endpoint.poll_event()).find_map(|event| match event {
        Event::Lost(_, reason) => Some(reason.to_string()),
        _ => None,
    });
    Error::Ended { target, why: reason.unwrap_or_else(|| "the connection was closed".into()) }
}

/// What is asked; read before anything is opened.
fn request(arguments: &CallArguments) -> Result<Vec<u8>, Failure> {
    let Some(path) = &arguments.file else { return Ok(arguments.text().into_bytes()) };
    let mut request = Vec::new();
    let input: Result<Box<dyn Read>, _> = match path.as_os_str() == "-" {
        true => Ok(Box::new(io::stdin())),
        false => File::open(path).map(|file| Box::new(file) as Box<dyn Read>),
    };
    let read = input.and_then(|input| input.take(u64::from(MESSAGE_BYTES_MAX) + 1).read_to_end(&mut request));
    let read = read.map_err(|source| nocopy_report::Failure::Input { path: path.clone(), source })?;
    match read > MESSAGE_BYTES_MAX as usize {
        true => Err(Error::TooLong.into()),
        false => Ok(request),
    }
}

//! The options of `nocopy ls`, `cat` and `cp`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use nocopy_report::quantity::{self, parse_digits};

use crate::client::{Url, UrlError};

/// How to reach a server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerOptions {
    /// Connections to the server, among which reads and writes are distributed.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub connections: u16,
    /// How long to wait for a reply before the calls are sent again over a new connection; four times as long
    /// without a reply is an error.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = quantity::parse_duration)]
    pub timeout: Duration,
    /// Wait for the server forever.
    #[arg(long)]
    pub hard: bool,
    /// Act as this user and group (default: those of this process). The server decides whether it accepts
    /// that.
    #[arg(long, value_name = "UID:GID", value_parser = parse_user_option)]
    pub user: Option<(u32, u32)>,
}

#[derive(Debug, Args)]
pub struct LsArguments {
    /// Directories or files: nfs://HOST/PATH or nfs://HOST:PORT/PATH, with ?nfsport=PORT&mountport=PORT if
    /// need be.
    #[arg(required = true, value_name = "URL", value_parser = OsStringValueParser::new().try_map(parse_url))]
    pub urls: Vec<Url>,
    /// With type, permissions, owner, size and time.
    #[arg(short, long)]
    pub long: bool,
    #[command(flatten)]
    pub server: ServerOptions,
    /// Print it as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CatArguments {
    /// Files: nfs://HOST/PATH or nfs://HOST:PORT/PATH, with ?nfsport=PORT&mountport=PORT if need be.
    #[arg(required = true, value_name = "URL", value_parser = OsStringValueParser::new().try_map(parse_url))]
    pub urls: Vec<Url>,
    #[command(flatten)]
    pub server: ServerOptions,
}

#[derive(Debug, Args)]
pub struct CpArguments {
    /// Sources, and as the last one the destination. Either the sources or the destination are at
    /// nfs://HOST/PATH or nfs://HOST:PORT/PATH, with ?nfsport=PORT&mountport=PORT if need be. A source that
    /// is a symbolic link is followed.
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DESTINATION"])]
    pub paths: Vec<OsString>,
    /// Copy directories with everything in them: also symbolic links, FIFOs and sockets, and as root devices.
    /// What cannot be copied is named.
    #[arg(short, long)]
    pub recursive: bool,
    /// Continue files that an earlier copy left unfinished, and skip those that have the same size and are
    /// not older. A file is continued after the bytes that NAME.nocopy-done records as being on the disk;
    /// without that, or if the source has changed, it is copied anew.
    #[arg(long)]
    pub resume: bool,
    /// Read everything again at the end, and compare it.
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub server: ServerOptions,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
}

fn parse_user_option(text: &str) -> Result<(u32, u32), String> {
    let both =
        text.split_once(':').and_then(|(user, group)| Some((parse_digits(user)?, parse_digits(group)?)));
    both.ok_or_else(|| "not two numbers: write it as 1000:1000".into())
}

fn parse_url(word: OsString) -> Result<Url, UrlError> {
    Url::from_os_str(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_options_are_two_numbers() {
        assert_eq!(parse_user_option("1000:100"), Ok((1000, 100)));
        assert!(
            ["1000", "a:b", "1:-1", "+1:1", "1:+1", ":"]
                .iter()
                .all(|text| parse_user_option(text).unwrap_err().contains("1000:1000"))
        );
    }
}

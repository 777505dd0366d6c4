//! The two things `nocopy serve` serves: messages, or a directory.

use clap::{Args, Subcommand};

use nocopy_nfs::command::NfsArguments;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ServeChoice {
    #[command(flatten)]
    messages: Option<nocopy_transfer::arguments::ServeArguments>,
    #[command(subcommand)]
    other: Option<ServeCommand>,
}

#[derive(Debug, Subcommand)]
enum ServeCommand {
    /// Serve a directory by NFS version 3, read-only unless --writable; files are sent without a copy in this
    /// program.
    ///
    /// Clients mount ADDRESS:/ or ADDRESS:DIR with 'vers=3,tcp,port=PORT,mountport=PORT,nolock'. Ends when
    /// interrupted, and prints how much each client read, and how much of it was copied. Every client can
    /// read whatever the user who runs the server can read in DIR; client identities are not verified, and
    /// nothing is encrypted.
    Nfs(NfsArguments),
}

/// Messages, or a directory.
pub(crate) enum ServiceArguments<'a> {
    Messages(&'a nocopy_transfer::arguments::ServeArguments),
    Nfs(&'a NfsArguments),
}

impl ServeChoice {
    pub(crate) fn service_arguments(&self) -> ServiceArguments<'_> {
        match (&self.other, &self.messages) {
            (Some(ServeCommand::Nfs(arguments)), _) => ServiceArguments::Nfs(arguments),
            (None, Some(arguments)) => ServiceArguments::Messages(arguments),
            (None, None) => unreachable!("clap requires one of them"),
        }
    }
}

//! What a process has of a port that another one granted to it, but for the socket.

use std::io;
use std::sync::Arc;

use super::redirect::RedirectProgram;
use crate::port::xdp::Attach;
use crate::sys::interface::PromiscuousGuard;

/// The parts of a port other than its socket.
#[derive(Debug)]
pub(super) struct GrantedPortParts {
    pub(super) redirect: Arc<RedirectProgram>,
    /// The errno of native XDP, if it was refused before generic was used.
    pub(super) native_refused: Option<i32>,
    pub(super) promiscuous: Option<PromiscuousGuard>,
}

impl GrantedPortParts {
    pub(super) fn redirect_at(&self, at: Attach) -> Result<Arc<RedirectProgram>, io::Error> {
        if self.redirect.recipe.at == at {
            return Ok(Arc::clone(&self.redirect));
        }
        Err(match (at, self.native_refused) {
            (Attach::Native, Some(errno)) => io::Error::from_raw_os_error(errno),
            _ => io::Error::new(
                io::ErrorKind::Unsupported,
                "the port was granted for another mode; ask for this mode in the process that grants it",
            ),
        })
    }
}

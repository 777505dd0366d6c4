//! The parts of a redirecting program besides its filter and its map: enough to make a replacement.

use nocopy_proto::ebpf::Instruction;

use super::{Attach, Error, MetadataNoteSettings, PassHeader, Program, SocketMap};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedirectRecipe {
    pub(crate) at: Attach,
    pub(crate) fragments: bool,
    /// The header of packets returned to the host, if the program sees those too; unknown for a granted
    /// program.
    pub(crate) pass: Option<PassHeader>,
    pub(crate) notes: MetadataNoteSettings,
}

impl RedirectRecipe {
    /// Loads a program with the instructions of a filter, none for all packets. One that asks the driver is
    /// bound to the interface, which must be in the calling thread's network namespace.
    pub(crate) fn load_program(
        &self,
        sockets: &SocketMap,
        filter: &[Instruction],
        interface_index: u32,
    ) -> Result<Program, Error> {
        let Self { fragments, notes, ref pass, .. } = *self;
        if notes.hints {
            let program = Program::redirect_with_hints(sockets, fragments, filter, interface_index, notes);
            program.map_err(|source| Error::Hints { source })
        } else if notes.times {
            let in_front = Program::filter_prologue(filter, pass.as_ref());
            Program::redirect_with_times(sockets, fragments, in_front, notes.mark)
        } else {
            Program::redirect_to(sockets, fragments, filter, pass.as_ref())
        }
    }
}

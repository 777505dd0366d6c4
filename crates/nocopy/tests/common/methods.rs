//! Methods of sending, of which some are not available on every machine.

use nocopy::{Cause, tcp, udp};

pub(crate) trait NeedsIoUring {
    fn needs_io_uring(&self) -> bool;
}

impl NeedsIoUring for udp::Method {
    fn needs_io_uring(&self) -> bool {
        matches!(self, Self::UringZeroCopy | Self::UringZeroCopyGso)
    }
}

impl NeedsIoUring for tcp::Method {
    fn needs_io_uring(&self) -> bool {
        matches!(self, Self::UringZeroCopy)
    }
}

/// `None`: the choice among the methods.
impl<M: NeedsIoUring> NeedsIoUring for Option<M> {
    fn needs_io_uring(&self) -> bool {
        self.as_ref().is_some_and(M::needs_io_uring)
    }
}

impl<M: NeedsIoUring> NeedsIoUring for (M, Cause) {
    fn needs_io_uring(&self) -> bool {
        self.0.needs_io_uring()
    }
}

/// These methods, without those that this machine lacks. A skip is printed after the last of them.
pub(crate) fn available_methods<M: NeedsIoUring>(
    methods: impl IntoIterator<Item = M>,
) -> impl Iterator<Item = M> {
    nocopy_lab::without_refused_io_uring(methods, M::needs_io_uring)
}

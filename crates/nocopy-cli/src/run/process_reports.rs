//! Reports of the command's processes about their handles.

use nocopy_proto::run::{ClosedHandle, FilterLocation, OpenedHandle};

/// The most handles in a report: a script may start programs for ever.
const HANDLES_MAX: usize = 4096;

/// All reported handles, in the order in which they were opened.
#[derive(Debug, Default)]
pub(super) struct ProcessReports {
    pub(super) handles: Vec<CaptureHandle>,
    /// Handles beyond [`HANDLES_MAX`].
    pub(super) handles_left_out: u64,
    /// Datagrams that were not valid messages.
    pub(super) malformed: u64,
    pub(super) first_malformed: Option<String>,
}

/// Whose handles these are: the process, by the kernel's number, and its own number for its channel. The
/// number of a process may be used again, and a process may join again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChannelId {
    pub(super) process: u32,
    pub(super) channel: u64,
}

#[derive(Debug, Clone)]
pub(super) struct ReportingProcess {
    pub(super) id: u32,
    pub(super) program: String,
}

#[derive(Debug, Clone)]
pub(super) struct CaptureHandle {
    /// Which channel it is of: handles of different processes have the same numbers.
    channel: ChannelId,
    pub(super) process: ReportingProcess,
    pub(super) opened: OpenedHandle,
    pub(super) filter: Option<FilterLocation>,
    pub(super) state: HandleState,
}

#[derive(Debug, Clone)]
pub(super) enum HandleState {
    /// Still open when the command ended.
    Open,
    Closed(ClosedHandle),
    /// Its process has ended without closing it, so its counts are unknown.
    ProcessEnded,
}

impl ProcessReports {
    pub(super) fn on_handle_opened(
        &mut self,
        channel: ChannelId,
        process: &ReportingProcess,
        opened: OpenedHandle,
    ) {
        if self.handles.len() < HANDLES_MAX {
            let process = process.clone();
            self.handles.push(CaptureHandle {
                channel,
                process,
                opened,
                filter: None,
                state: HandleState::Open,
            });
        } else {
            self.handles_left_out += 1;
        }
    }

    pub(super) fn on_filter_location(
        &mut self,
        channel: ChannelId,
        handle: u64,
        place: Option<FilterLocation>,
    ) {
        if let Some(handle) = self.find_open_handle(channel, handle) {
            handle.filter = place;
        }
    }

    pub(super) fn on_handle_closed(&mut self, channel: ChannelId, closed: ClosedHandle) {
        if let Some(handle) = self.find_open_handle(channel, closed.handle) {
            handle.state = HandleState::Closed(closed);
        }
    }

    /// A handle is another process's now: the one that has opened it, by that channel, has ended.
    pub(super) fn on_handle_inherited(
        &mut self,
        channel: ChannelId,
        process: &ReportingProcess,
        handle: u64,
        from: u64,
    ) {
        let mut all = self.handles.iter_mut().rev();
        let is_same_handle = |known: &&mut CaptureHandle| {
            known.channel.channel == from
                && known.opened.handle == handle
                && !matches!(known.state, HandleState::Closed(_))
        };
        if let Some(known) = all.find(is_same_handle) {
            (known.channel, known.process, known.state) = (channel, process.clone(), HandleState::Open);
        }
    }

    /// A process that joins again has lost its channel, and not its handles.
    pub(super) fn on_process_joined(&mut self, channel: ChannelId) {
        for handle in self.handles.iter_mut().filter(|handle| handle.channel == channel) {
            if matches!(handle.state, HandleState::ProcessEnded) {
                handle.state = HandleState::Open;
            }
        }
    }

    pub(super) fn on_process_ended(&mut self, channel: ChannelId) {
        for handle in self.handles.iter_mut().filter(|handle| handle.channel == channel) {
            if matches!(handle.state, HandleState::Open) {
                handle.state = HandleState::ProcessEnded;
            }
        }
    }

    pub(super) fn count_malformed(&mut self, why: impl ToString) {
        self.malformed += 1;
        self.first_malformed.get_or_insert_with(|| why.to_string());
    }

    /// The latest open handle with that number.
    fn find_open_handle(&mut self, channel: ChannelId, handle: u64) -> Option<&mut CaptureHandle> {
        let mut all = self.handles.iter_mut().rev();
        all.find(|known| {
            known.channel == channel
                && known.opened.handle == handle
                && matches!(known.state, HandleState::Open)
        })
    }
}

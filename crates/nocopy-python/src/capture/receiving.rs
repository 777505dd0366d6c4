//! The capture.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use nocopy::Capture as OpenCapture;
use nocopy::capture::{Block as OwnedBlock, Captured, OpenError};
use nocopy::integration::BlockReader;
use nocopy_proto::errno::ErrorCause;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use super::block::{Block, ReadBlock};
use crate::account::{ledger_dict, stats_dict};
use crate::half::{Half, timeout, wait};
use crate::number::{self, Int, pair};
use crate::{error, filter, settings};

/// A passive capture of an interface, in blocks of packets that are arrays. The host keeps its traffic.
///
/// `for block in capture` goes on until the capture is closed or an error is raised. One thread at a time may
/// use a capture.
#[pyclass(frozen, subclass, module = "nocopy")]
pub(crate) struct Capture(Half<Receiving>);

/// The text of an error of a capture; the kernel's errno is its source.
#[derive(Debug, thiserror::Error)]
#[error("{interface}: cannot be captured from any more{cause}; {advice}", cause = ErrorCause(.source))]
struct CaptureError {
    interface: String,
    advice: &'static str,
    source: io::Error,
}

struct Receiving {
    interface: String,
    capture: OpenCapture,
    /// A block that is read packet by packet, and has packets left.
    reader: Option<BlockReader>,
    /// Packets lost because the kernel's headers contradict themselves.
    malformed: u64,
}

impl Receiving {
    /// An error of the capture, with the name of its interface.
    fn name_interface(&self, source: io::Error) -> io::Error {
        let advice = match source.kind() {
            io::ErrorKind::NetworkDown => "bring the interface up",
            io::ErrorKind::NotConnected => "the interface was removed; capture another one",
            _ => "capture it again",
        };
        io::Error::new(source.kind(), CaptureError { interface: self.interface.clone(), advice, source })
    }

    fn read_block(&mut self, time: Option<Duration>) -> io::Result<Option<ReadBlock>> {
        let block = match time {
            Some(time) => self.capture.receive_timeout(time),
            None => self.capture.try_receive(),
        };
        let block = block.map_err(|error| self.name_interface(error))?;
        let block = block.map(ReadBlock::new);
        self.malformed += block.as_ref().map_or(0, |block| u64::from(block.malformed_count()));
        Ok(block)
    }

    /// Calls `read` with the next packet, if there is one; does not wait.
    fn read_packet<R>(&mut self, read: impl FnOnce(Captured<'_>) -> R) -> io::Result<Option<R>> {
        loop {
            if self.reader.is_none() {
                let block = self.capture.try_receive().map_err(|error| self.name_interface(error))?;
                self.reader = block.map(OwnedBlock::into_reader);
            }
            let Some(reader) = &mut self.reader else { return Ok(None) };
            let packet = reader.next_packet();
            if packet.is_none() {
                // Behind a header that contradicts itself there are no packets.
                self.malformed += u64::from(reader.malformed_count());
                self.reader = None;
                continue;
            }
            let packet = packet.map(read);
            // At once: while a block is held that the kernel needs, it drops packets.
            self.reader.take_if(|reader| reader.packets_left() == 0);
            return Ok(packet);
        }
    }
}

#[pymethods]
impl Capture {
    /// Opens a capture of an interface of this thread's network namespace. `filter` is an expression of
    /// pcap-filter(7), or a program as `tcpdump -ddd` prints it; `blocks` the bytes of a block and their
    /// number; `block_timeout` seconds for which a packet may wait in a block that is not full (at least
    /// 0.001); `snap` the bytes kept of a packet; `immediate` a block for each packet, at once.
    ///
    /// Raises Unsupported if the capability CAP_NET_RAW is missing, OpenError for other refusals, ValueError
    /// for a filter that is not understood.
    #[new]
    #[pyo3(signature = (
        interface, *, filter = None, blocks = None, block_timeout = None, snap = None, promiscuous = false,
        outgoing = false, immediate = false, wait = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword, as each is a method of the builder")]
    fn new(
        py: Python<'_>,
        interface: &str,
        filter: Option<&str>,
        blocks: Option<(Int<u32>, Int<u32>)>,
        block_timeout: Option<f64>,
        snap: Option<Int<u32>>,
        promiscuous: bool,
        outgoing: bool,
        immediate: bool,
        wait: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let program = filter::program(py, filter)?;
        let mut builder = OpenCapture::builder(interface)
            .filter(program.as_ref())
            .promiscuous(promiscuous)
            .outgoing(outgoing)
            .immediate(immediate);
        if let Some((bytes, count)) = blocks.map(pair) {
            builder = builder.blocks(bytes, count);
        }
        if let Some(seconds) = block_timeout {
            builder = builder.block_timeout(number::duration("block_timeout", seconds)?);
        }
        if let Some(Int(bytes)) = snap {
            builder = builder.snap(bytes);
        }
        if let Some(wait) = wait {
            builder = builder.wait(settings::wait(wait)?);
        }
        let capture = py.detach(|| builder.open()).map_err(|error| from_open(py, &error))?;
        Ok(Self(Half::new(
            "Capture",
            Receiving { interface: interface.to_owned(), capture, reader: None, malformed: 0 },
        )))
    }

    /// Waits for the next block; None if there was none within `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Block>> {
        let timeout = self::timeout(timeout)?;
        let receiving = &mut *self.0.get(py)?;
        let block = wait(py, timeout, |time| receiving.read_block(Some(time)))?;
        block.map(|block| Block::new(py, block)).transpose()
    }

    /// The next block if there is one, otherwise None; does not wait.
    fn try_receive(&self, py: Python<'_>) -> PyResult<Option<Block>> {
        let receiving = &mut *self.0.get(py)?;
        let block = py.detach(|| receiving.read_block(None)).map_err(error::from_io)?;
        block.map(|block| Block::new(py, block)).transpose()
    }

    /// The next packet alone, copied: `(bytes, time, original_length, outgoing)`, or None if there is none;
    /// does not wait. For programs that look at packets one by one anyway; blocks are faster by far. Packets
    /// of a block that was begun do not come with `receive`.
    fn next_packet<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let receiving = &mut *self.0.get(py)?;
        let packet = receiving.read_packet(|packet| {
            let bytes = PyBytes::new(py, packet.bytes);
            (bytes, packet.time_ns, packet.original_bytes, packet.outgoing).into_pyobject(py)
        });
        packet.map_err(error::from_io)?.transpose()
    }

    /// Closes the capture. Blocks and arrays that the program has stay as they are.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let receiving = self.0.take()?;
        py.detach(|| drop(receiving));
        Ok(())
    }

    /// Bytes of the received blocks by their evidence: the kernel copied all of them into the ring, once.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        ledger_dict(py, self.0.get(py)?.capture.ledger())
    }

    /// All counters: `moved` and `bytes` count blocks; `packets` those in them; `tp_packets` what matched the
    /// filter, also if it was then dropped; `tp_drops` what was dropped because no block was free.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let receiving = &*self.0.get(py)?;
        let dict = stats_dict(py, &receiving.capture.stats())?;
        dict.set_item("malformed", receiving.malformed)?;
        Ok(dict)
    }

    /// How packets are received, in words.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.capture.explain().to_string())
    }

    /// A descriptor that becomes readable when there is a block; only to wait on, after `arm`. It is readable
    /// all the time while the program has the block that was received last.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        Ok(self.0.get(py)?.capture.as_fd().as_raw_fd())
    }

    /// Prepares for a wait on `fileno`; True if there is a block already, and no wait is needed.
    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        let receiving = &mut *self.0.get(py)?;
        // A reader that is kept has packets left.
        if receiving.reader.is_some() {
            return Ok(true);
        }
        let is_ready = receiving.capture.arm().map_err(|error| receiving.name_interface(error));
        is_ready.map_err(error::from_io)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Block>> {
        self.receive(py, None)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}

fn from_open(py: Python<'_>, refused: &OpenError) -> PyErr {
    let capability = matches!(refused, OpenError::Capability { .. }).then_some("CAP_NET_RAW");
    error::from_open(py, refused, capability)
}

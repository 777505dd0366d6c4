//! The payload of datagrams: a pattern, or a stream, written into the memory that is sent.

use std::io::{self, IoSliceMut, Read};

use crate::send::input::Input;
use crate::send::pattern::PayloadPattern;

/// The layout of datagrams: all of one length but the last, with room for a header in front of each.
#[derive(Debug, Clone, Copy)]
pub(super) struct DatagramLayout {
    pub header_bytes: usize,
    pub datagram_bytes: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum FillResult {
    /// Datagrams of this many bytes, including the room for headers; the last may be shorter.
    Bytes(usize),
    /// The input has nothing yet.
    Nothing,
    /// The input has ended.
    End,
}

#[derive(Debug)]
pub(super) enum PayloadSource {
    Pattern(PayloadPattern),
    Stream(Input),
}

impl PayloadSource {
    /// Fills `places`, each as long as a datagram, with the payload of the next datagrams; the first one has
    /// `number`.
    pub(super) fn fill<'p>(
        &mut self,
        buffers: impl Iterator<Item = &'p mut [u8]>,
        shape: DatagramLayout,
        number: u64,
    ) -> io::Result<FillResult> {
        match self {
            Self::Pattern(pattern) => {
                let mut bytes = 0;
                for (number, datagram) in (number..).zip(buffers) {
                    bytes += datagram.len();
                    pattern.write(&mut datagram[shape.header_bytes..], number);
                }
                Ok(FillResult::Bytes(bytes))
            }
            Self::Stream(input) => match read_payloads(input, buffers, shape) {
                Ok(0) => Ok(FillResult::End),
                Ok(bytes) => Ok(FillResult::Bytes(shape.datagram_bytes_for(bytes))),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
                {
                    Ok(FillResult::Nothing)
                }
                Err(error) => Err(error),
            },
        }
    }
}

/// Fills the payload areas of all datagrams by one vectored read; their header areas stay untouched.
fn read_payloads<'p>(
    input: &mut impl Read,
    buffers: impl Iterator<Item = &'p mut [u8]>,
    shape: DatagramLayout,
) -> io::Result<usize> {
    let mut slices: Vec<_> =
        buffers.map(|datagram| IoSliceMut::new(&mut datagram[shape.header_bytes..])).collect();
    input.read_vectored(&mut slices)
}

impl DatagramLayout {
    /// The length of datagrams with that many bytes of payload.
    fn datagram_bytes_for(self, bytes: usize) -> usize {
        let payload_bytes = self.datagram_bytes - self.header_bytes;
        let rest = match bytes % payload_bytes {
            0 => 0,
            rest => self.header_bytes + rest,
        };
        bytes / payload_bytes * self.datagram_bytes + rest
    }

    pub(super) fn datagram_lengths(self, bytes: usize) -> impl Iterator<Item = usize> {
        (0..bytes).step_by(self.datagram_bytes).map(move |at| self.datagram_bytes.min(bytes - at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: DatagramLayout = DatagramLayout { header_bytes: 2, datagram_bytes: 5 };

    #[test]
    fn a_stream_is_split_into_datagrams_behind_headers() {
        for (stream, expected) in [
            (&b"abcdefg"[..], &b"--abc--def--g"[..]),
            (b"abcdef", b"--abc--def"),
            (b"a", b"--a"),
            (b"abcdefghijkl", b"--abc--def--ghi"),
        ] {
            let mut buffer = *b"---------------";
            let bytes = read_payloads(&mut &stream[..], buffer.chunks_mut(5), SHAPE).unwrap();
            let bytes = SHAPE.datagram_bytes_for(bytes);
            assert_eq!(&buffer[..bytes], expected);
            let lengths: Vec<_> = expected.chunks(5).map(<[u8]>::len).collect();
            assert_eq!(SHAPE.datagram_lengths(bytes).collect::<Vec<_>>(), lengths);
        }
        assert_eq!(DatagramLayout { header_bytes: 0, datagram_bytes: 5 }.datagram_bytes_for(11), 11);
    }

    #[test]
    fn payload_patterns_depend_on_the_datagram_number() {
        let mut payload = PayloadSource::Pattern(PayloadPattern::new(3));
        let mut fill = |number| {
            let mut buffer = [0; 10];
            assert_eq!(payload.fill(buffer.chunks_mut(5), SHAPE, number).unwrap(), FillResult::Bytes(10));
            buffer
        };
        let (first, second) = (fill(7), fill(8));
        assert_eq!(first[5..], second[..5]);
        assert_ne!(first[2..5], first[7..]);
        assert_eq!(fill(7), first);
        assert_eq!(
            (first[..2].to_vec(), first[5..7].to_vec()),
            (vec![0; 2], vec![0; 2]),
            "headers are left alone"
        );
    }
}

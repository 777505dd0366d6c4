//! Queueing disciplines, as rtnetlink(7) lists them, and which of them do more than queue packets.
//!
//! Nothing here allocates: the list is read in the buffer that received it, also in a signal handler.

/// Disciplines that only queue, as every interface has by default, and disciplines for arriving packets.
const HARMLESS: [&[u8]; 8] =
    [b"noqueue", b"pfifo_fast", b"pfifo", b"bfifo", b"mq", b"fq", b"fq_codel", b"ingress"];

/// `RTM_GETQDISC`, and the flags `NLM_F_REQUEST | NLM_F_DUMP`.
const GET_DISCIPLINES: u16 = 38;
const REQUEST_DUMP: u16 = 0x1 | 0x300;

/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Lengths of `struct nlmsghdr` and `struct tcmsg`, and offsets in them.
const HEADER_BYTES: usize = 16;
const BODY_BYTES: usize = 20;
const TYPE_AT: usize = 4;
const INDEX_AT: usize = HEADER_BYTES + 4;

/// `TCA_KIND`
const KIND: u16 = 1;

/// The request for the disciplines of all interfaces of a network namespace.
pub fn dump_request() -> [u8; HEADER_BYTES + BODY_BYTES] {
    let mut request = [0; HEADER_BYTES + BODY_BYTES];
    let bytes = request.len() as u32;
    request[..4].copy_from_slice(&bytes.to_ne_bytes());
    request[TYPE_AT..][..2].copy_from_slice(&GET_DISCIPLINES.to_ne_bytes());
    request[TYPE_AT + 2..][..2].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    request
}

/// One message of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpEntry<'a> {
    /// The discipline of an interface does more than queue.
    Meddles {
        /// The interface's number.
        index: u32,
        /// The name of the discipline's kind.
        kind: &'a [u8],
    },
    /// A discipline that only queues, or none.
    Harmless,
    /// The list is complete.
    Done,
    /// The kernel refuses.
    Refused,
}

/// The complete messages in a datagram of the answer.
pub fn dump_entries(mut answer: &[u8]) -> impl Iterator<Item = DumpEntry<'_>> {
    std::iter::from_fn(move || {
        let bytes = u32::from_ne_bytes(*answer.first_chunk()?) as usize;
        let message = answer.get(..bytes).filter(|message| message.len() >= HEADER_BYTES)?;
        answer = answer.get(bytes.next_multiple_of(4)..).unwrap_or_default();
        Some(match u16::from_ne_bytes([message[TYPE_AT], message[TYPE_AT + 1]]) {
            DONE => DumpEntry::Done,
            ERROR => DumpEntry::Refused,
            _ => parse_discipline_entry(message).unwrap_or(DumpEntry::Harmless),
        })
    })
}

/// The discipline in a message, if it does more than queue.
fn parse_discipline_entry(message: &[u8]) -> Option<DumpEntry<'_>> {
    let index = u32::from_ne_bytes(*message.get(INDEX_AT..)?.first_chunk()?);
    let mut attributes = message.get(HEADER_BYTES + BODY_BYTES..)?;
    loop {
        let [bytes_low, bytes_high, kind_low, kind_high] = *attributes.first_chunk()?;
        let bytes = usize::from(u16::from_ne_bytes([bytes_low, bytes_high]));
        let value = attributes.get(4..bytes)?;
        if u16::from_ne_bytes([kind_low, kind_high]) == KIND {
            let kind = value.strip_suffix(&[0]).unwrap_or(value);
            return (!HARMLESS.contains(&kind)).then_some(DumpEntry::Meddles { index, kind });
        }
        attributes = attributes.get(bytes.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discipline_message(index: u32, kind: &str) -> Vec<u8> {
        let mut message = vec![0; HEADER_BYTES + BODY_BYTES];
        message[INDEX_AT..][..4].copy_from_slice(&index.to_ne_bytes());
        message.extend([8, 0, 0xff, 0, 1, 2, 3, 4]); // another attribute
        message.extend(((5 + kind.len()) as u16).to_ne_bytes());
        message.extend(KIND.to_ne_bytes());
        message.extend(kind.bytes().chain([0]));
        let bytes = message.len() as u32;
        message[..4].copy_from_slice(&bytes.to_ne_bytes());
        message
    }

    fn first_entry(message: &[u8]) -> Option<DumpEntry<'_>> {
        dump_entries(message).next()
    }

    #[test]
    fn queueing_disciplines_that_only_queue_are_harmless() {
        assert_eq!(first_entry(&discipline_message(4, "fq_codel")), Some(DumpEntry::Harmless));
        assert_eq!(
            first_entry(&discipline_message(4, "netem")),
            Some(DumpEntry::Meddles { index: 4, kind: b"netem" })
        );
        let whole = discipline_message(4, "clsact");
        for end in 0..whole.len() {
            assert_eq!(first_entry(&whole[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn netlink_replies_are_split_into_entries() {
        let (one, mut answer) = (discipline_message(4, "tbf"), discipline_message(5, "tbf"));
        answer.resize(answer.len().next_multiple_of(4), 0);
        answer.extend(&one);
        let indices: Vec<_> = dump_entries(&answer)
            .map(|entry| match entry {
                DumpEntry::Meddles { index, .. } => index,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(indices, [5, 4]);
        assert_eq!(dump_entries(&answer[..one.len() - 1]).count(), 0);
        assert_eq!(dump_entries(&[0; 64]).count(), 0, "no message is that short");
    }
}

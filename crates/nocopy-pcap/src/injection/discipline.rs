//! What traffic control does with frames that are sent: by AF_XDP they go past it, so where it does more than queue, they do not.
//!
//! Asked of rtnetlink(7): `RTM_GETQDISC`. Programs that are attached without a queueing discipline (tcx, netfilter's egress) it does not tell
//! of.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Those that only queue, as every interface has one unless told, and those that see what arrives.
const HARMLESS: [&str; 8] = ["noqueue", "pfifo_fast", "pfifo", "bfifo", "mq", "fq", "fq_codel", "ingress"];

/// `struct nlmsghdr` and `struct tcmsg`, in bytes, and where in them things are.
const HEADER_BYTES: usize = 16;
const BODY_BYTES: usize = 20;
const TYPE_AT: usize = 4;
const INDEX_AT: usize = HEADER_BYTES + 4;

const BUFFER_BYTES: usize = 64 << 10;

/// The kind of a queueing discipline of the interface, in the thread's network namespace, that would do something to frames.
///
/// # Errors
/// The kernel's.
pub(super) fn find(index: u32) -> io::Result<Option<String>> {
    let socket = super::interface::open(libc::AF_NETLINK, libc::SOCK_RAW)?; // its protocol is 0: NETLINK_ROUTE
    let mut request = [0_u8; HEADER_BYTES + BODY_BYTES];
    let bytes = request.len() as u32;
    request[..4].copy_from_slice(&bytes.to_ne_bytes());
    request[TYPE_AT..][..2].copy_from_slice(&libc::RTM_GETQDISC.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request[TYPE_AT + 2..][..2].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the pointer and length are the request's.
    check(unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) })?;
    let (mut buffer, mut found) = (vec![0; BUFFER_BYTES], None);
    loop {
        let answer = receive(&socket, &mut buffer)?;
        for message in messages(answer) {
            match i32::from(u16::from_ne_bytes([message[TYPE_AT], message[TYPE_AT + 1]])) {
                libc::NLMSG_DONE => return Ok(found),
                libc::NLMSG_ERROR => return Err(io::ErrorKind::Unsupported.into()),
                _ => found = found.or_else(|| objection(message, index)),
            }
        }
    }
}

fn receive<'a>(socket: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    // SAFETY: the pointer and length are the buffer's.
    let bytes = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    match check(bytes)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        bytes => Ok(&buffer[..bytes]),
    }
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// The messages of an answer, as far as they are whole.
fn messages(mut answer: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let bytes = u32::from_ne_bytes(*answer.first_chunk()?) as usize;
        let message = answer.get(..bytes).filter(|message| message.len() >= HEADER_BYTES)?;
        answer = answer.get(bytes.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The kind of the discipline that a message tells of, if it is the interface's and does more than queue.
fn objection(message: &[u8], index: u32) -> Option<String> {
    let of = u32::from_ne_bytes(*message.get(INDEX_AT..)?.first_chunk()?);
    let mut attributes = message.get(HEADER_BYTES + BODY_BYTES..).filter(|_| of == index)?;
    loop {
        let [bytes_low, bytes_high, kind_low, kind_high] = *attributes.first_chunk()?;
        let bytes = usize::from(u16::from_ne_bytes([bytes_low, bytes_high]));
        let value = attributes.get(4..bytes)?;
        if u16::from_ne_bytes([kind_low, kind_high]) == libc::TCA_KIND {
            let kind = String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value));
            return (!HARMLESS.contains(&&*kind)).then(|| kind.into_owned());
        }
        attributes = attributes.get(bytes.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(index: u32, kind: &str) -> Vec<u8> {
        let mut message = vec![0; HEADER_BYTES + BODY_BYTES];
        message[INDEX_AT..][..4].copy_from_slice(&index.to_ne_bytes());
        message.extend([8, 0, 0xff, 0, 1, 2, 3, 4]); // another attribute
        message.extend(((5 + kind.len()) as u16).to_ne_bytes());
        message.extend(libc::TCA_KIND.to_ne_bytes());
        message.extend(kind.bytes().chain([0]));
        let bytes = message.len() as u32;
        message[..4].copy_from_slice(&bytes.to_ne_bytes());
        message
    }

    #[test]
    fn what_only_queues_is_no_objection() {
        assert_eq!(objection(&message(4, "fq_codel"), 4), None);
        assert_eq!(objection(&message(4, "netem"), 4).as_deref(), Some("netem"));
        assert_eq!(objection(&message(4, "netem"), 5), None);
        let whole = message(4, "clsact");
        for end in 0..whole.len() {
            assert_eq!(objection(&whole[..end], 4), None, "cut at {end}");
        }
    }

    #[test]
    fn answers_are_taken_apart() {
        let (one, mut answer) = (message(4, "tbf"), message(4, "tbf"));
        answer.resize(answer.len().next_multiple_of(4), 0);
        answer.extend(&one);
        assert_eq!(messages(&answer).collect::<Vec<_>>(), [&one, &one]);
        assert_eq!(messages(&answer[..one.len() - 1]).count(), 0);
        assert_eq!(messages(&[0; 64]).count(), 0, "no message is that short");
    }

    #[test]
    fn the_kernel_answers() {
        assert_eq!(find(u32::MAX).expect("an answer"), None);
    }
}

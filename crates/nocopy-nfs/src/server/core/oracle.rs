//! Properties of every call: shared by the tests and the fuzz target.

pub mod clients;

use std::net::{Ipv4Addr, SocketAddr};

use super::{Answer, Core};
use crate::wire::record::RecordAssembler;
use crate::wire::rpc::{Call, Credential, Reply};
use crate::wire::xdr::{Reader, Xdr, padding};
use crate::wire::{mount, nfs3, portmap};

const XID: u32 = 0x7e57;

/// Longer than any reply without bytes of a file.
const REPLY_BYTES_MAX: usize = 256 << 10;

/// The first bytes of the input choose program, procedure, and whether the arguments begin with the root's
/// handle; the rest are arguments. The whole input is also used as a record.
///
/// # Panics
/// The call is not answered by one whole record.
pub fn check_server_core(core: &Core, input: &[u8]) {
    let client = SocketAddr::from((Ipv4Addr::LOCALHOST, 1023));
    let _ = core.answer(input, client);
    let Some(([program, procedure, begin], rest)) = input.split_first_chunk() else { return };
    let (program, version) = match program % 3 {
        0 => (mount::PROGRAM, mount::VERSION),
        1 => (portmap::PROGRAM, portmap::VERSION),
        _ => (nfs3::PROGRAM, nfs3::VERSION),
    };
    let mut arguments = Vec::new();
    if begin % 2 == 0 {
        core.export().root_handle().encode(&mut arguments);
    }
    arguments.extend_from_slice(rest);
    let procedure = u32::from(procedure % 24);
    let call =
        Call { xid: XID, program, version, procedure, credential: Credential::NONE, arguments: &arguments };
    let mut record = Vec::new();
    call.encode(&mut record);
    core.is_answered_without_waiting(&record);
    if let Some((call, data_at)) = core.parse_long_write(&record, record.len(), client) {
        assert_eq!(data_at + call.data_bytes() + padding(call.data_bytes()), record.len());
    }
    match core.answer(&record, client).expect("it is a call") {
        Answer::Reply(reply) | Answer::Written(reply, _) => check_reply(&reply),
        Answer::List(call) => check_reply(&core.answer_list(&call)),
        Answer::Read(call) => {
            if let Err(reply) = core.open_for_read(&call) {
                check_reply(&reply);
            }
        }
        Answer::InProgress { .. } | Answer::Repeated { .. } => unreachable!("there is one connection"),
    }
}

fn check_reply(reply: &[u8]) {
    let mut records = RecordAssembler::new(REPLY_BYTES_MAX);
    records.push(reply);
    let record = records.take().expect("not too long").expect("all of it");
    let (xid, _) = Reply::decode(&mut Reader::new(&record)).expect("a reply");
    assert_eq!(xid, XID);
    assert!(records.take() == Ok(None) && records.buffered_bytes() == 0, "one record");
}

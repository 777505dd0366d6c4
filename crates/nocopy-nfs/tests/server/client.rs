//! A client that makes one call at a time, or writes arbitrary bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nocopy_nfs::wire::mount::{self, MountReply, Text};
use nocopy_nfs::wire::nfs3::{
    self, Attributes, DirectoryPage, FileHandle, FullDirectoryEntry, LookupArguments, LookupResult,
    NfsResult, Procedure, ReadArguments, ReadDirPlusArguments, ReadHead, Status,
};
use nocopy_nfs::wire::record::{self, RecordAssembler};
use nocopy_nfs::wire::rpc::{AUTH_SYS, Call, Credential, Reply, SystemCredential};
use nocopy_nfs::wire::xdr::{self, Reader, Xdr, padding};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    records: RecordAssembler,
    xid: u32,
    /// The user that it claims.
    user: Option<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReadReply {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_end: bool,
    pub(crate) attributes: Attributes,
}

pub(crate) fn encode_xdr<'a>(value: &impl Xdr<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// A call as a record, without a user.
pub(crate) fn call_record(xid: u32, program: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    call_record_with_credential(Credential::NONE, xid, program, procedure, arguments)
}

fn call_record_with_credential(
    credential: Credential<'_>,
    xid: u32,
    program: u32,
    procedure: u32,
    arguments: &[u8],
) -> Vec<u8> {
    let mut out = record::begin();
    Call { xid, program, version: 3, procedure, credential, arguments }.encode(&mut out);
    record::end(&mut out, 0);
    out
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::from_stream(TcpStream::connect(address).unwrap())
    }

    /// From a port that only root can use; `None` if this process may not.
    pub(crate) fn connect_from_low_port(address: SocketAddr) -> Option<Self> {
        let connected = |port| {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            bind(&socket, &SocketAddr::from(([127, 0, 0, 1], port)))?;
            connect(&socket, &address)?;
            Ok(TcpStream::from(socket))
        };
        let tried = (512..1024).rev().map(connected);
        let mut tried =
            tried.skip_while(|tried| matches!(tried, Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL)));
        match tried.next().expect("a free port") {
            Ok(stream) => Some(Self::from_stream(stream)),
            Err(Errno::ACCESS) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Connects from 127.0.0.`last`.
    pub(crate) fn connect_from_loopback(last: u8, address: SocketAddr) -> Self {
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&stream, &SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        connect(&stream, &address).unwrap();
        Self::from_stream(stream.into())
    }

    fn from_stream(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, records: RecordAssembler::new(4 << 20), xid: 0, user: None }
    }

    /// Makes the next calls as this user, with a main group and others.
    pub(crate) fn act_as(&mut self, user: u32, group: u32, groups: &[u32]) {
        self.user =
            Some(encode_xdr(&SystemCredential { machine: b"test", user, group, groups: groups.into() }));
    }

    pub(crate) fn receive_record(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(record) = self.records.take().unwrap() {
                return Some(record.to_vec());
            }
            let count = nocopy_lab::patience::uninterrupted(|| self.stream.read(&mut buffer)).unwrap_or(0);
            if count == 0 {
                return None;
            }
            self.records.push(&buffer[..count]);
        }
    }

    /// The next reply received: the number of its call, and its results.
    pub(crate) fn receive_reply(&mut self) -> (u32, Result<Vec<u8>, Reply>) {
        let record = self.receive_record().expect("a reply");
        let mut input = Reader::new(&record);
        let (xid, reply) = Reply::decode(&mut input).unwrap();
        let results = if reply == Reply::Success { Ok(input.rest().to_vec()) } else { Err(reply) };
        (xid, results)
    }

    pub(crate) fn call(&mut self, program: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
        self.xid += 1;
        let credential =
            self.user.as_ref().map_or(Credential::NONE, |body| Credential { flavor: AUTH_SYS, body });
        let sent = call_record_with_credential(credential, self.xid, program, procedure, arguments);
        self.stream.write_all(&sent).unwrap();
        let (xid, results) = self.receive_reply();
        assert_eq!(xid, self.xid);
        results.unwrap()
    }

    pub(crate) fn call_nfs<'a>(&mut self, procedure: Procedure, arguments: &impl Xdr<'a>) -> Vec<u8> {
        self.call(nfs3::PROGRAM, procedure as u32, &encode_xdr(arguments))
    }

    pub(crate) fn mount(&mut self, path: &str) -> MountReply {
        let path: mount::Path<'_> = Text(path.as_bytes());
        xdr::parse(&self.call(mount::PROGRAM, 1, &encode_xdr(&path))).unwrap()
    }

    pub(crate) fn look_up_path(&mut self, path: &str) -> FileHandle {
        let mut at = self.mount("/").unwrap().handle;
        for name in path.split('/') {
            let asked = LookupArguments { directory: at, name: Text(name.as_bytes()) };
            let reply = self.call_nfs(Procedure::Lookup, &asked);
            let found: NfsResult<LookupResult, Option<Attributes>> = xdr::parse(&reply).unwrap();
            at = found.unwrap().file;
        }
        at
    }

    pub(crate) fn get_attributes(&mut self, file: FileHandle) -> Result<Attributes, Status> {
        let reply = self.call_nfs(Procedure::GetAttr, &file);
        xdr::parse::<NfsResult<Attributes, ()>>(&reply).unwrap().map_err(|refusal| refusal.status)
    }

    pub(crate) fn read(&mut self, file: FileHandle, offset: u64, bytes: u32) -> Result<ReadReply, Status> {
        let reply = self.call_nfs(Procedure::Read, &ReadArguments { file, offset, bytes });
        parse_read_reply(&reply)
    }

    pub(crate) fn read_all(&mut self, file: FileHandle, bytes: u32) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let read = self.read(file, all.len() as u64, bytes).unwrap();
            assert!(read.is_end || !read.bytes.is_empty());
            all.extend(read.bytes);
            if read.is_end {
                return all;
            }
        }
    }

    pub(crate) fn list_directory(
        &mut self,
        directory: FileHandle,
        bytes_max: u32,
    ) -> Vec<(String, Option<FileHandle>)> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let names_bytes_max = bytes_max;
            let asked =
                ReadDirPlusArguments { directory, cookie, verifier: [0; 8], names_bytes_max, bytes_max };
            let reply = self.call_nfs(Procedure::ReadDirPlus, &asked);
            let page: NfsResult<DirectoryPage<FullDirectoryEntry<'_>>, Option<Attributes>> =
                xdr::parse(&reply).unwrap();
            let page = page.unwrap();
            let name = |entry: &FullDirectoryEntry<'_>| String::from_utf8(entry.name.0.to_vec()).unwrap();
            all.extend(page.entries.iter().map(|entry| (name(entry), entry.file)));
            match page.entries.last() {
                Some(last) if !page.is_end => cookie = last.cookie,
                _ => return all,
            }
        }
    }
}

pub(crate) fn parse_read_reply(results: &[u8]) -> Result<ReadReply, Status> {
    let mut input = Reader::new(results);
    let head: NfsResult<ReadHead, Option<Attributes>> = input.read().unwrap();
    let head = head.map_err(|refusal| refusal.status)?;
    assert_eq!(head.count, head.data_bytes);
    let count = head.count as usize;
    let bytes = input.bytes(count).unwrap().to_vec();
    assert_eq!(input.rest(), &[0; 3][..padding(count)]);
    Ok(ReadReply { bytes, is_end: head.is_end, attributes: head.attributes.unwrap() })
}

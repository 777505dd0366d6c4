//! Attributes of files.

use crate::wire::xdr::{xdr_enum, xdr_struct};

xdr_enum! {
    FileType, "a type of file" {
        Regular = 1,
        Directory = 2,
        BlockDevice = 3,
        CharacterDevice = 4,
        SymbolicLink = 5,
        Socket = 6,
        Fifo = 7,
    }
}

xdr_struct! {
    /// Since 1970.
    Time {
        seconds: u32,
        nanoseconds: u32,
    }
}

xdr_struct! {
    /// fattr3 of the RFC.
    Attributes {
        file_type: FileType,
        /// Permissions.
        mode: u32,
        links: u32,
        user: u32,
        group: u32,
        size: u64,
        /// Bytes on the disk.
        used: u64,
        device_major: u32,
        device_minor: u32,
        file_system: u64,
        /// Its number on that file system.
        file_id: u64,
        accessed: Time,
        modified: Time,
        changed: Time,
    }
}

impl Attributes {
    /// The length of its representation.
    pub const BYTES: usize = 84;

    pub fn size_and_times(&self) -> SizeAndTimes {
        SizeAndTimes { size: self.size, modified: self.modified, changed: self.changed }
    }
}

xdr_struct! {
    /// wcc_attr of the RFC: the attributes by which a client checks its cache.
    SizeAndTimes {
        size: u64,
        modified: Time,
        changed: Time,
    }
}

xdr_struct! {
    /// wcc_data of the RFC: attributes before and after a call that changes a file.
    WeakCacheConsistency {
        before: Option<SizeAndTimes>,
        after: Option<Attributes>,
    }
}

impl WeakCacheConsistency {
    /// The attributes of a call that changed nothing.
    pub fn unchanged(attributes: Option<Attributes>) -> Self {
        Self { before: attributes.as_ref().map(Attributes::size_and_times), after: attributes }
    }
}

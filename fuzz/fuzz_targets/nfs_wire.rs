//! Any bytes as a stream of records, a call, a reply, and every argument and result of NFS and MOUNT: no
//! panic, and the same again.

#![cfg_attr(fuzzing, no_main)]

use nocopy_nfs::wire::oracle;

nocopy_fuzz::target!(|bytes: &[u8]| oracle::check_wire_formats(bytes));

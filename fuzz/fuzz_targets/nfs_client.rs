//! Any replies to a client of NFS, right, nearly right and hostile: no panic, no byte outside of what was
//! posted, and every call and buffer comes back once.

#![cfg_attr(fuzzing, no_main)]

use nocopy_nfs::client::core::oracle;

nocopy_fuzz::target!(|bytes: &[u8]| oracle::check_client_core(bytes));

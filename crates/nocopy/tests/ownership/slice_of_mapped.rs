//! Mapped pages may change: they are no slice, and making them one needs `unsafe`. They cannot outlive their
//! chunk.
use nocopy::tcp::{Chunk, MappedBytes, Stream};

fn main() {
    let mut socket = Stream::connect("127.0.0.1:9").unwrap();
    let chunk = socket.receiver().receive().unwrap().unwrap();
    let mapped = chunk.mapped();
    drop(chunk); //~ E0505
    println!("{}", mapped.len());
}

fn convert_to_slice(mapped: MappedBytes<'_>) -> &[u8] {
    mapped //~ E0308
}

fn dereference_to_slice<'a>(mapped: &'a MappedBytes<'_>) -> &'a [u8] {
    mapped //~ E0308
}

fn call_as_ref(mapped: &MappedBytes<'_>) -> usize {
    AsRef::<[u8]>::as_ref(mapped).len() //~ E0277
}

fn index_and_borrow(chunk: &Chunk) -> &u8 {
    &chunk.mapped()[0] //~ E0608
}

fn as_slice_without_unsafe(chunk: &Chunk) -> &[u8] {
    chunk.mapped().as_slice() //~ E0133
}

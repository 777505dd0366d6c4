use std::io::Write;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::facts::rejected::TooLong;
use crate::memory::pieces::Buffers;
use crate::sys::fork::tests::in_forked_child;

#[test]
fn every_buffer_returns_to_its_pool() {
    let pool = Pool::new(2, 5000).unwrap();
    assert_eq!((pool.total(), pool.buffer_bytes()), (2, 8192));
    let (mut one, two) = (pool.take().unwrap(), pool.take().unwrap());
    assert!(pool.take().is_none());
    one.fill(b"bytes").unwrap();
    assert_eq!(&*one, b"bytes");
    std::thread::spawn(move || drop(two)).join().unwrap();
    drop(one);
    assert_eq!(pool.available(), 2);
    assert!(pool.take().unwrap().is_empty(), "a buffer comes empty");
}

#[test]
fn memory_that_does_not_exist_is_an_error() {
    for (count, bytes) in [(1, usize::MAX), (u32::MAX, usize::MAX / 2), (1, 1 << 60)] {
        let error = Pool::new(count, bytes).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory, "{count} of {bytes}: {error}");
    }
}

#[test]
fn buffers_may_have_more_than_4_gib() {
    const BYTES: usize = 5 << 30;
    // Pages that are not touched take no memory, unless the machine counts them (vm.overcommit_memory).
    match Pool::new(1, BYTES) {
        Ok(pool) => {
            let mut buffer = pool.take().unwrap();
            buffer.resize(BYTES);
            buffer[BYTES - 1] = 7;
            assert_eq!((buffer.len(), buffer.capacity(), buffer[BYTES - 1]), (BYTES, BYTES, 7));
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory),
    }
}

#[test]
fn a_forked_child_gets_no_buffer_and_never_blocks() {
    let pool = Pool::new(2, 4096).unwrap();
    let mut cache = BufferCache::new(pool.clone());
    let (kept, _held) = (cache.take().unwrap(), cache.take().unwrap());
    cache.put(kept.into());
    let registration = ManuallyDrop::new(pool.register());
    let (free, registered) = (pool.lock_free_list(), pool.lock_registered_rings());
    let mut parents = ManuallyDrop::new((cache, _held));
    in_forked_child(|| {
        assert!(pool.take().is_none() && parents.0.take().is_none());
        assert_eq!(pool.available(), 0);
        // SAFETY: the child ends without using it again.
        unsafe { ManuallyDrop::drop(&mut parents) };
        drop(ManuallyDrop::into_inner(registration));
    });
    drop((free, registered));
}

#[test]
fn abandoned_buffers_of_mlocked_pages_are_replaced() {
    let pool = Pool::new(1, 4096).unwrap();
    let (first, bytes) = pool.memory_range();
    // SAFETY: memory of the pool, whose contents do not change.
    assert_eq!(unsafe { libc::mlock(first.as_ptr().cast(), bytes) }, 0);
    for is_registered in [false, true] {
        let registration = is_registered.then(|| pool.register());
        let mut buffer = pool.take().expect("at home");
        buffer.fill(&[7; 4096]).unwrap();
        assert_eq!(buffer.freeze().abandon(), 0);
        drop(registration);
        let mut buffer = pool.take().expect("at home");
        buffer.resize(4096);
        assert_eq!(*buffer, [0; 4096], "new pages");
    }
}

#[test]
fn buffers_that_share_pages_do_not_overlap() {
    let pool = Pool::with_shared_pages(5, 1500).unwrap();
    assert_eq!((pool.total(), pool.buffer_bytes()), (5, 1536));
    let mut all: Vec<BufferMut> = (0..5).map(|_| pool.take().unwrap()).collect();
    for (number, buffer) in all.iter_mut().enumerate() {
        buffer.fill(&[number as u8; 1536]).unwrap();
    }
    assert!(all.iter().enumerate().all(|(number, buffer)| **buffer == [number as u8; 1536]));
    assert_eq!(all.remove(0).freeze().abandon(), 1536, "its pages are others', too: it is lost");
    assert!(all.iter().zip(1..).all(|(buffer, number)| **buffer == [number; 1536]));
}

#[test]
fn a_buffer_outlives_its_pool() {
    let mut buffer = Pool::new(1, 4096).unwrap().take().unwrap();
    buffer.fill(&[7; 4096]).unwrap();
    assert_eq!(*buffer, [7; 4096]);
}

#[test]
fn buffers_of_whole_pages_do_not_overlap() {
    let pool = Pool::new(3, 4096).unwrap();
    let mut all: Vec<BufferMut> = std::iter::from_fn(|| pool.take()).collect();
    for (number, buffer) in all.iter_mut().enumerate() {
        buffer.fill(&[number as u8; 4096]).unwrap();
    }
    assert!(all.iter().enumerate().all(|(number, buffer)| **buffer == [number as u8; 4096]));
}

#[test]
fn into_owner_returns_the_same_value() {
    let bytes: Arc<[u8]> = Arc::from(&b"shared"[..]);
    let buffer = Buffer::from_owner(Arc::clone(&bytes));
    assert_eq!(&*buffer, b"shared");
    let buffer = buffer.into_owner::<Vec<u8>>().unwrap_err();
    let back: Arc<[u8]> = buffer.into_owner().unwrap();
    assert!(Arc::ptr_eq(&bytes, &back));
    drop(back);
    drop(Buffer::from_owner(Arc::clone(&bytes)));
    assert_eq!(Arc::strong_count(&bytes), 1, "dropped with its buffer");
}

#[test]
fn bytes_inside_the_owner_do_not_move() {
    let buffer = Buffer::from_owner([1_u8, 2, 3]);
    let moved = Box::new(buffer);
    assert_eq!(**moved, [1, 2, 3]);
    assert_eq!(moved.into_owner::<[u8; 3]>().unwrap(), [1, 2, 3]);
}

#[test]
fn buffers_of_program_memory_cannot_be_written() {
    static BYTES: [u8; 3] = [1, 2, 3];
    let shared = Buffer::from_shared(Arc::new(vec![1, 2, 3]), |bytes| bytes);
    for buffer in [vec![1, 2, 3].into(), shared, Buffer::from(&BYTES[..])] {
        let (address, capacity) = (buffer.as_ptr(), buffer.capacity());
        let buffer = buffer.try_into_mut().unwrap_err();
        assert_eq!((buffer.as_ptr(), capacity, &buffer[..]), (address, 3, &BYTES[..]));
    }
    assert_eq!(Buffer::from(&BYTES[..]).as_ptr(), BYTES.as_ptr());
    assert_eq!(Buffer::from(&BYTES[..]).abandon(), 0, "it is not lost");
}

#[test]
fn freezing_and_writing_again_keep_the_address_and_the_bytes() {
    let pool = Pool::new(1, 4096).unwrap();
    let mut room = pool.take().unwrap();
    room.fill(b"bytes").unwrap();
    let address = room.as_ptr();
    let frozen = room.freeze();
    assert_eq!((frozen.as_ptr(), &frozen[..]), (address, &b"bytes"[..]));
    let mut room = frozen.try_into_mut().unwrap();
    room[0] = b'B';
    assert_eq!((room.as_ptr(), &room[..], pool.available()), (address, &b"Bytes"[..], 0));
    drop(room);
    assert_eq!(pool.available(), 1);
}

/// Memory that counts how often it was dropped.
struct CountedMemory(Vec<u8>, Arc<AtomicUsize>);

impl AsMut<[u8]> for CountedMemory {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for CountedMemory {
    fn drop(&mut self) {
        self.1.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_pool_of_program_memory_is_cut_into_buffers_and_dropped_with_the_last() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let memory = CountedMemory(vec![0; 1000], Arc::clone(&dropped));
    let first_byte = memory.0.as_ptr();
    let pool = Pool::of(memory, 300).unwrap();
    let mut buffers: Vec<BufferMut> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!((buffers.len(), pool.total(), buffers[0].as_ptr()), (3, 3, first_byte));
    for (number, buffer) in buffers.iter_mut().enumerate() {
        buffer.fill(&[number as u8; 300]).unwrap();
    }
    assert!(buffers.iter().enumerate().all(|(number, buffer)| **buffer == [number as u8; 300]));
    drop(pool);
    let last = buffers.pop();
    drop(buffers);
    assert_eq!(dropped.load(Relaxed), 0);
    drop(last);
    assert_eq!(dropped.load(Relaxed), 1);
}

#[test]
fn abandoned_program_memory_is_never_dropped() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let pool = Pool::of(CountedMemory(vec![0; 100], Arc::clone(&dropped)), 100).unwrap();
    assert_eq!(pool.take().unwrap().freeze().abandon(), 100);
    assert!(pool.take().is_none(), "the kernel may still read it");
    drop(pool);
    assert_eq!(dropped.load(Relaxed), 0);
}

/// A buffer of memory that something else has allocated, and how often its owner was dropped.
fn raw_buffer(bytes: usize) -> (NonNull<u8>, BufferMut, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut owner = CountedMemory(vec![0; bytes], Arc::clone(&dropped));
    let first = NonNull::new(owner.0.as_mut_ptr()).unwrap();
    // SAFETY: memory of the owner, which is not used otherwise, but between calls.
    (first, unsafe { BufferMut::from_raw(first, bytes, owner) }, dropped)
}

#[test]
fn raw_memory_is_written_and_read_in_place() {
    let (first, mut buffer, dropped) = raw_buffer(100);
    assert_eq!((buffer.as_ptr(), buffer.len(), buffer.capacity()), (first.as_ptr().cast_const(), 100, 100));
    buffer.fill(b"bytes").unwrap();
    assert_eq!(buffer.fill(&[0; 101]).unwrap_err(), TooLong { bytes: 101, capacity: 100 });
    // SAFETY: within the memory, and no call runs.
    unsafe { first.write(b'B') };
    let frozen = buffer.freeze();
    assert_eq!((&frozen[..], frozen.capacity()), (&b"Bytes"[..], 100));
    let mut buffer = frozen.try_into_mut().expect("one owner");
    buffer.resize(100);
    assert_eq!((buffer.as_ptr(), buffer[99]), (first.as_ptr().cast_const(), 0));
    drop(buffer);
    assert_eq!(dropped.load(Relaxed), 1);
}

#[test]
fn raw_memory_is_given_back_or_never_freed() {
    let (_, buffer, dropped) = raw_buffer(100);
    let buffer = buffer.freeze().into_owner::<Vec<u8>>().unwrap_err();
    assert!(buffer.owner_as::<CountedMemory>().is_none(), "its bytes are not those of the value");
    let owner = buffer.into_owner::<CountedMemory>().unwrap();
    assert_eq!((owner.0.len(), dropped.load(Relaxed)), (100, 0));
    let (_, mut buffer, dropped) = raw_buffer(100);
    buffer.resize(10);
    assert_eq!(buffer.freeze().abandon(), 10);
    assert_eq!(dropped.load(Relaxed), 0, "the kernel may still read it");
}

#[test]
fn a_pool_of_raw_memory_has_no_reference_to_it() {
    let (first, buffer, dropped) = raw_buffer(300);
    let pool = Pool::of(buffer, 150).unwrap();
    let (mut one, other) = (pool.take().unwrap(), pool.take().unwrap());
    one.fill(&[1; 150]).unwrap();
    // SAFETY: within the memory, and no call runs. (Miri sees whether a reference ends here.)
    unsafe {
        assert_eq!(first.add(149).read(), 1);
        first.write(2);
    }
    assert_eq!((one[0], one[149], other.as_ptr()), (2, 1, first.as_ptr().wrapping_add(150).cast_const()));
    drop((pool, one));
    assert_eq!(dropped.load(Relaxed), 0);
    drop(other);
    assert_eq!(dropped.load(Relaxed), 1);
}

#[test]
fn memory_too_short_for_a_buffer_is_refused_with_both_numbers() {
    let error = Pool::of(vec![0; 299], 300).unwrap_err().to_string();
    assert!(error.contains("299") && error.contains("300"), "{error}");
}

#[test]
fn a_forked_child_gets_no_buffer_of_program_memory() {
    let pool = Pool::of(vec![0; 100], 100).unwrap();
    in_forked_child(|| assert!(pool.take().is_none() && pool.available() == 0));
    assert!(pool.take().is_some());
}

#[test]
fn writing_ends_at_the_capacity() {
    let mut room = Pool::new(1, 4096).unwrap().take().unwrap();
    assert_eq!(room.fill(&[1; 4097]).unwrap_err(), TooLong { bytes: 4097, capacity: 4096 });
    assert!(room.is_empty(), "nothing was changed");
    assert_eq!(room.write(&[1; 4000]).unwrap(), 4000);
    assert_eq!((room.write(&[2; 4000]).unwrap(), room.len()), (96, 4096));
    assert_eq!((room[3999], room[4000]), (1, 2));
    assert_eq!(room.write_all(&[3]).unwrap_err().kind(), std::io::ErrorKind::WriteZero);
}

#[test]
fn abandoned_buffers_of_a_pool_are_new_pages() {
    let pool = Pool::new(1, 4096).unwrap();
    let mut buffer = pool.take().unwrap();
    buffer.fill(&[7; 4096]).unwrap();
    assert_eq!(buffer.freeze().abandon(), 0);
    let mut again = pool.take().unwrap();
    again.resize(4096);
    assert_eq!(*again, [0; 4096]);
    assert_eq!(Buffer::from(vec![0; 100]).abandon(), 100);
}

#[test]
fn abandoned_registered_buffers_return_with_the_last_ring() {
    let pool = Pool::new(2, 4096).unwrap();
    let registrations = [pool.register(), pool.register()];
    for _ in 0..2 {
        let mut buffer = pool.take().unwrap();
        buffer.fill(&[7; 4096]).unwrap();
        assert_eq!(buffer.freeze().abandon(), 0);
    }
    for registration in registrations {
        assert!(pool.take().is_none(), "no page is replaced while a ring may read it");
        drop(registration);
    }
    assert_eq!(pool.available(), 2);
    for mut buffer in [pool.take().unwrap(), pool.take().unwrap()] {
        buffer.resize(4096);
        assert_eq!(*buffer, [0; 4096], "new pages");
    }
}

#[test]
fn an_owner_whose_as_ref_panics_is_dropped() {
    struct PanicsOnAsRef(#[expect(dead_code, reason = "counts")] Arc<()>);
    impl AsRef<[u8]> for PanicsOnAsRef {
        fn as_ref(&self) -> &[u8] {
            panic!("on purpose")
        }
    }
    let alive = Arc::new(());
    let owner = PanicsOnAsRef(Arc::clone(&alive));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Buffer::from_owner(owner))).is_err());
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// Counts its drops, and panics at each, with a value that also panics when dropped.
struct PanicsWhenDropped(Arc<AtomicUsize>);

impl AsRef<[u8]> for PanicsWhenDropped {
    fn as_ref(&self) -> &[u8] {
        b"bytes"
    }
}

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
        std::panic::panic_any(Self(Arc::clone(&self.0)));
    }
}

#[test]
fn a_panic_in_an_owners_drop_is_caught_for_each_buffer() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let owner = || PanicsWhenDropped(Arc::clone(&dropped));
    let buffer = || Buffer::from_owner(owner());
    // SAFETY: no byte.
    let raw = unsafe { BufferMut::from_raw(NonNull::dangling(), 0, owner()) };
    drop(vec![buffer(), raw.freeze(), buffer()]);
    assert_eq!(dropped.load(Relaxed), 3);
    // Also while the thread already unwinds, where a second panic would end the process.
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _held = buffer();
        panic!("on purpose");
    }));
    assert!(unwound.is_err());
    assert_eq!(dropped.load(Relaxed), 4);
}

#[test]
fn a_message_drops_all_of_its_owners_though_each_panics() {
    for count in 0..5 {
        let dropped = Arc::new(AtomicUsize::new(0));
        let buffer = |_| Buffer::from_owner(PanicsWhenDropped(Arc::clone(&dropped)));
        let buffers = || (0..count).map(buffer).collect::<Buffers>();
        drop(buffers());
        buffers().into_iter().for_each(drop);
        let mut pieces = buffers().into_iter();
        drop((pieces.next(), pieces));
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _held = buffers();
            panic!("on purpose");
        }));
        assert!(unwound.is_err());
        assert_eq!(dropped.load(Relaxed), 4 * count);
    }
}

#[test]
fn a_cache_accepts_only_buffers_of_its_pool() {
    let (pool, other) = (Pool::new(1, 4096).unwrap(), Pool::new(1, 4096).unwrap());
    let mut cache = BufferCache::new(pool.clone());
    let mine = cache.take().unwrap();
    cache.put(other.take().unwrap().into());
    assert_eq!((other.available(), cache.available()), (1, 0));
    cache.put(mine.into());
    assert_eq!((pool.available(), cache.available()), (0, 1));
    drop(cache);
    assert_eq!(pool.available(), 1);
}

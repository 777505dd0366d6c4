//! Where a field lies in a header, said once and used by both the view and `emit`.

/// The `N` bytes at byte `AT` of a header.
///
/// The header's length is part of its type, so a field that would reach outside does not compile, and reading
/// or writing one has no failure to handle.
pub(crate) struct Field<const AT: usize, const N: usize>;

impl<const AT: usize, const N: usize> Field<AT, N> {
    #[inline]
    pub(crate) fn get<const HEADER: usize>(header: &[u8; HEADER]) -> [u8; N] {
        const { assert!(AT + N <= HEADER, "the field lies outside the header") };
        std::array::from_fn(|index| header[AT + index])
    }

    #[inline]
    pub(crate) fn put<const HEADER: usize>(header: &mut [u8; HEADER], bytes: [u8; N]) {
        const { assert!(AT + N <= HEADER, "the field lies outside the header") };
        header[AT..AT + N].copy_from_slice(&bytes);
    }
}

impl<const AT: usize> Field<AT, 2> {
    #[inline]
    pub(crate) fn number<const HEADER: usize>(header: &[u8; HEADER]) -> u16 {
        u16::from_be_bytes(Self::get(header))
    }

    #[inline]
    pub(crate) fn put_number<const HEADER: usize>(header: &mut [u8; HEADER], value: u16) {
        Self::put(header, value.to_be_bytes());
    }
}

#[cfg(feature = "message")] // only its headers have such numbers
impl<const AT: usize> Field<AT, 4> {
    #[inline]
    pub(crate) fn number<const HEADER: usize>(header: &[u8; HEADER]) -> u32 {
        u32::from_be_bytes(Self::get(header))
    }

    #[inline]
    pub(crate) fn put_number<const HEADER: usize>(header: &mut [u8; HEADER], value: u32) {
        Self::put(header, value.to_be_bytes());
    }
}

#[cfg(feature = "message")] // only its headers have such numbers
impl<const AT: usize> Field<AT, 8> {
    #[inline]
    pub(crate) fn number<const HEADER: usize>(header: &[u8; HEADER]) -> u64 {
        u64::from_be_bytes(Self::get(header))
    }

    #[inline]
    pub(crate) fn put_number<const HEADER: usize>(header: &mut [u8; HEADER], value: u64) {
        Self::put(header, value.to_be_bytes());
    }
}

//! External data representation (RFC 4506): big-endian words, everything padded to a multiple of four bytes.

/// Why bytes cannot be decoded, as a cause within an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum XdrError {
    #[error("the message ends {missing} bytes too early")]
    TooShort { missing: usize },
    #[error("{bytes} bytes follow the end of the message")]
    TooLong { bytes: usize },
    #[error("a field has {bytes} bytes, and at most {max} are allowed")]
    AboveLimit { bytes: usize, max: usize },
    #[error("{value} is not a valid value of {what}")]
    Value { what: &'static str, value: u32 },
}

pub trait Xdr<'a>: Sized {
    fn encode(&self, out: &mut Vec<u8>);

    /// # Errors
    /// The bytes do not encode such a value.
    fn decode(input: &mut Reader<'a>) -> Result<Self, XdrError>;
}

/// Reads a message from front to back.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that were not read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// # Errors
    /// As [`Xdr::decode`].
    pub fn read<T: Xdr<'a>>(&mut self) -> Result<T, XdrError> {
        T::decode(self)
    }

    /// `count` bytes without their padding.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], XdrError> {
        let missing = count.saturating_sub(self.rest.len());
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(XdrError::TooShort { missing })?;
        self.rest = rest;
        Ok(taken)
    }

    /// Bytes with their length in front.
    ///
    /// # Errors
    /// The length is above `max`, or more than the bytes that are left.
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8], XdrError> {
        let bytes = self.read::<u32>()? as usize;
        if bytes > max {
            return Err(XdrError::AboveLimit { bytes, max });
        }
        let taken = self.bytes(bytes)?;
        self.bytes(padding(bytes))?;
        Ok(taken)
    }

    /// # Errors
    /// Bytes are left.
    pub fn finish(self) -> Result<(), XdrError> {
        if self.rest.is_empty() { Ok(()) } else { Err(XdrError::TooLong { bytes: self.rest.len() }) }
    }
}

/// A whole message of one value.
///
/// # Errors
/// The bytes are not one such value.
pub fn parse<'a, T: Xdr<'a>>(bytes: &'a [u8]) -> Result<T, XdrError> {
    let mut reader = Reader::new(bytes);
    let value = reader.read()?;
    reader.finish()?;
    Ok(value)
}

pub const fn padding(bytes: usize) -> usize {
    bytes.wrapping_neg() & 3
}

/// Bytes with their length in front.
///
/// # Panics
/// They are 4 GiB or more.
pub fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    u32::try_from(bytes.len()).expect("messages are far shorter than 4 GiB").encode(out);
    out.extend_from_slice(bytes);
    out.resize(out.len() + padding(bytes.len()), 0);
}

impl Xdr<'_> for u32 {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, XdrError> {
        input.read::<[u8; 4]>().map(Self::from_be_bytes)
    }
}

impl Xdr<'_> for u64 {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, XdrError> {
        input.read::<[u8; 8]>().map(Self::from_be_bytes)
    }
}

impl Xdr<'_> for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        u32::from(*self).encode(out);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, XdrError> {
        match input.read()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(XdrError::Value { what: "a truth value", value }),
        }
    }
}

impl Xdr<'_> for () {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Reader<'_>) -> Result<Self, XdrError> {
        Ok(())
    }
}

impl<'a, A: Xdr<'a>, B: Xdr<'a>> Xdr<'a> for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok((input.read()?, input.read()?))
    }
}

/// Bytes of a fixed number, a multiple of four.
impl<const N: usize> Xdr<'_> for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, XdrError> {
        const { assert!(N.is_multiple_of(4)) };
        let bytes = input.bytes(N)?;
        Ok(bytes.try_into().expect("so many were read"))
    }
}

impl<'a, T: Xdr<'a>> Xdr<'a> for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, XdrError> {
        input.read::<bool>()?.then(|| input.read()).transpose()
    }
}

/// A list: each element after a `true`, and a final `false`.
impl<'a, T: Xdr<'a>> Xdr<'a> for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        for element in self {
            true.encode(out);
            element.encode(out);
        }
        false.encode(out);
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, XdrError> {
        let mut all = Self::new();
        while input.read::<bool>()? {
            all.push(input.read()?);
        }
        Ok(all)
    }
}

/// Encodes a structure as these fields, in order.
macro_rules! xdr_fields {
    (<$life:lifetime $(, $element:ident)?> $type:ty { $($field:ident,)* }) => {
        impl<$life $(, $element: $crate::wire::xdr::Xdr<$life>)?> $crate::wire::xdr::Xdr<$life> for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                $($crate::wire::xdr::Xdr::encode(&self.$field, out);)*
            }

            fn decode(
                input: &mut $crate::wire::xdr::Reader<$life>,
            ) -> Result<Self, $crate::wire::xdr::XdrError> {
                Ok(Self { $($field: input.read()?,)* })
            }
        }
    };
}

/// Defines a structure that is encoded as its fields, in order. If it borrows from the message, its lifetime
/// is `'a`.
macro_rules! xdr_struct {
    ($(#[$about:meta])* $name:ident $(<$life:lifetime>)? { $($(#[$doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name $(<$life>)? { $($(#[$doc])* pub $field: $type,)* }

        $crate::wire::xdr::xdr_fields!(<'a> $name $(<$life>)? { $($field,)* });
    };
}

/// Defines an enumeration that is encoded as its number.
macro_rules! xdr_enum {
    ($(#[$about:meta])* $name:ident, $what:literal { $($(#[$doc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$doc])* $variant = $value,)* }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            pub fn from_number(value: u32) -> Option<Self> {
                match value {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl $crate::wire::xdr::Xdr<'_> for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                (*self as u32).encode(out);
            }

            fn decode(
                input: &mut $crate::wire::xdr::Reader<'_>,
            ) -> Result<Self, $crate::wire::xdr::XdrError> {
                let value = input.read()?;
                Self::from_number(value)
                    .ok_or($crate::wire::xdr::XdrError::Value { what: $what, value })
            }
        }
    };
}

pub(crate) use {xdr_enum, xdr_fields, xdr_struct};

//! Remote procedure calls (RFC 5531): headers of calls and replies.

use super::xdr::{Reader, Xdr, XdrError, put_opaque, xdr_enum};

const RPC_VERSION: u32 = 2;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;

/// The longest credential (RFC 5531, section 8.2).
const CREDENTIAL_BYTES_MAX: usize = 400;

/// The longest machine name, and the most further groups.
pub const MACHINE_BYTES_MAX: usize = 255;
pub const GROUPS_MAX: usize = 16;

pub const AUTH_NONE: u32 = 0;
pub const AUTH_SYS: u32 = 1;

xdr_enum! {
    AuthError, "an authentication error" {
        BadCredential = 1,
        TooWeak = 5,
    }
}

/// A call, with its arguments as received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// Chosen by the client; the reply repeats it.
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    pub credential: Credential<'a>,
    pub arguments: &'a [u8],
}

/// The user that a client claims. Nothing proves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credential<'a> {
    pub flavor: u32,
    pub body: &'a [u8],
}

impl Credential<'_> {
    pub const NONE: Self = Credential { flavor: AUTH_NONE, body: &[] };
}

impl<'a> Xdr<'a> for Credential<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.flavor.encode(out);
        put_opaque(out, self.body);
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(Self { flavor: input.read()?, body: input.opaque(CREDENTIAL_BYTES_MAX)? })
    }
}

/// The contents of a credential of [`AUTH_SYS`] (RFC 5531, appendix A).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemCredential<'a> {
    pub machine: &'a [u8],
    pub user: u32,
    pub group: u32,
    pub groups: Vec<u32>,
}

impl<'a> Xdr<'a> for SystemCredential<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        0_u32.encode(out); // when it was made, of which nothing depends
        put_opaque(out, self.machine);
        [self.user, self.group, self.groups.len() as u32].iter().for_each(|word| word.encode(out));
        self.groups.iter().for_each(|group| group.encode(out));
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, XdrError> {
        input.read::<u32>()?;
        let (machine, user, group) = (input.opaque(MACHINE_BYTES_MAX)?, input.read()?, input.read()?);
        let count = input.read()?;
        if count as usize > GROUPS_MAX {
            return Err(XdrError::Value { what: "a number of groups", value: count });
        }
        let groups = (0..count).map(|_| input.read()).collect::<Result<_, _>>()?;
        Ok(Self { machine, user, group, groups })
    }
}

/// A message that is not a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallParseError {
    /// The message cannot be decoded, so there is no number to reply to.
    #[error("the message is not a call ({0})")]
    Malformed(#[from] XdrError),
    /// To be answered by [`Reply::Mismatch`].
    #[error("the call is of another version of RPC")]
    Version { xid: u32 },
}

impl<'a> Call<'a> {
    /// Parses a record.
    ///
    /// # Errors
    /// The message is not a call.
    pub fn parse(record: &'a [u8]) -> Result<Self, CallParseError> {
        let mut input = Reader::new(record);
        let xid = input.read()?;
        let kind = input.read()?;
        if kind != CALL {
            return Err(XdrError::Value { what: "a call", value: kind }.into());
        }
        if input.read::<u32>()? != RPC_VERSION {
            return Err(CallParseError::Version { xid });
        }
        let (program, version, procedure) = (input.read()?, input.read()?, input.read()?);
        let credential = input.read()?;
        input.read::<Credential<'_>>()?; // the verifier, which proves nothing in these flavors
        Ok(Self { xid, program, version, procedure, credential, arguments: input.rest() })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        for word in [self.xid, CALL, RPC_VERSION, self.program, self.version, self.procedure] {
            word.encode(out);
        }
        self.credential.encode(out);
        Credential::NONE.encode(out);
        out.extend_from_slice(self.arguments);
    }
}

/// The kind of a reply. Results follow a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Success,
    ProgramUnavailable,
    /// Only these versions of the program are served.
    ProgramMismatch {
        low: u32,
        high: u32,
    },
    ProcedureUnavailable,
    GarbageArguments,
    SystemError,
    /// The call has another version of RPC.
    Mismatch {
        low: u32,
        high: u32,
    },
    Denied(AuthError),
}

impl Reply {
    /// To a [`CallParseError::Version`].
    pub const MISMATCH: Self = Self::Mismatch { low: RPC_VERSION, high: RPC_VERSION };

    /// Writes the header before the results.
    pub fn encode(self, xid: u32, out: &mut Vec<u8>) {
        let accepted = |status: u32, out: &mut Vec<u8>| {
            ACCEPTED.encode(out);
            Credential::NONE.encode(out);
            status.encode(out);
        };
        [xid, REPLY].iter().for_each(|word| word.encode(out));
        match self {
            Self::Success => accepted(0, out),
            Self::ProgramUnavailable => accepted(1, out),
            Self::ProgramMismatch { low, high } => {
                accepted(2, out);
                [low, high].iter().for_each(|word| word.encode(out));
            }
            Self::ProcedureUnavailable => accepted(3, out),
            Self::GarbageArguments => accepted(4, out),
            Self::SystemError => accepted(5, out),
            Self::Mismatch { low, high } => {
                [DENIED, RPC_MISMATCH, low, high].iter().for_each(|word| word.encode(out));
            }
            Self::Denied(error) => {
                [DENIED, AUTH_ERROR, error as u32].iter().for_each(|word| word.encode(out))
            }
        }
    }

    /// The call that a record answers; its results are left in `input`.
    ///
    /// # Errors
    /// The message is not a reply.
    pub fn decode(input: &mut Reader<'_>) -> Result<(u32, Self), XdrError> {
        let xid = input.read()?;
        match input.read()? {
            REPLY => {}
            value => return Err(XdrError::Value { what: "a reply", value }),
        }
        let reply = match input.read()? {
            ACCEPTED => Self::decode_accepted(input)?,
            DENIED => match input.read()? {
                RPC_MISMATCH => Self::Mismatch { low: input.read()?, high: input.read()? },
                AUTH_ERROR => Self::Denied(input.read()?),
                value => return Err(XdrError::Value { what: "a refusal", value }),
            },
            value => return Err(XdrError::Value { what: "a kind of reply", value }),
        };
        Ok((xid, reply))
    }

    fn decode_accepted(input: &mut Reader<'_>) -> Result<Self, XdrError> {
        input.read::<Credential<'_>>()?;
        Ok(match input.read()? {
            0 => Self::Success,
            1 => Self::ProgramUnavailable,
            2 => Self::ProgramMismatch { low: input.read()?, high: input.read()? },
            3 => Self::ProcedureUnavailable,
            4 => Self::GarbageArguments,
            5 => Self::SystemError,
            value => return Err(XdrError::Value { what: "a status of a reply", value }),
        })
    }
}

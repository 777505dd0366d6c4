//! A filter run in user space, exactly as the kernel runs it.

use super::Program;
use super::ancillary::{AncillaryData, HeaderLocation};
use super::instruction::{
    Arithmetic, Condition, Extension, LoadTarget, LoadWidth, Operand, Operation, Register,
};
use super::invalid::SLOTS;

/// Bytes of Ethernet's header, where in it the type is, and bytes of a VLAN tag.
pub(super) const ETHERNET_BYTES: u32 = 14;
pub(super) const TYPE_OFFSET: u32 = 12;
pub(super) const TAG_BYTES: u32 = 4;

/// Types of VLAN tags that the kernel removes (`eth_type_vlan`).
pub(super) const VLAN_TYPES: [u16; 2] = [0x8100, 0x88a8];

/// `ARPHRD_ETHER`
pub(super) const ETHERNET_HARDWARE: u32 = 1;

struct ReturnValue(u32);

impl Program {
    /// Runs the filter over a packet in one or several pieces: how many bytes of it to keep, 0 if it does not
    /// match. May be more than the packet has.
    ///
    /// As in the kernel, a fault at run time ends it with 0: a load beyond the packet, or a division by
    /// X = 0. So does a question that user space cannot answer: check [`Program::check_answerable`] first.
    pub fn run(&self, pieces: &[&[u8]], ancillary: &AncillaryData) -> u32 {
        let mut machine = FilterMachine { a: 0, x: 0, scratch: [0; SLOTS as usize], pieces, ancillary };
        let mut index = 0;
        loop {
            // Jumps go forward only, and the last instruction returns: both are checked.
            let Some(&operation) = self.operations.get(index) else { return 0 };
            match machine.execute(operation) {
                Ok(skipped) => index += 1 + skipped as usize,
                Err(ReturnValue(value)) => return value,
            }
        }
    }
}

struct FilterMachine<'a> {
    a: u32,
    x: u32,
    scratch: [u32; SLOTS as usize],
    pieces: &'a [&'a [u8]],
    ancillary: &'a AncillaryData,
}

impl FilterMachine<'_> {
    /// Executes one instruction, and returns how many to skip after it.
    fn execute(&mut self, operation: Operation) -> Result<u32, ReturnValue> {
        match operation {
            Operation::Load(width, offset) => self.a = self.load(width, offset)?,
            Operation::LoadIndirect(width, offset) => {
                self.a = self.load(width, self.x.wrapping_add(offset))?
            }
            Operation::LoadHeader(offset) => self.x = (self.load(LoadWidth::Byte, offset)? & 0xf) << 2,
            Operation::LoadExtension(extension) => self.a = self.load_extension(extension)?,
            Operation::LoadConstant(to, value) => *self.register_mut(to) = value,
            Operation::LoadScratch(to, slot) => *self.register_mut(to) = self.scratch[slot as usize],
            Operation::LoadLength(to) => *self.register_mut(to) = self.packet_length(),
            Operation::Store(from, slot) => self.scratch[slot as usize] = *self.register_mut(from),
            Operation::Arithmetic(arithmetic, operand) => {
                self.a = compute(arithmetic, self.a, self.operand_value(operand))?;
            }
            Operation::Negate => self.a = self.a.wrapping_neg(),
            Operation::MoveTo(Register::A) => self.a = self.x,
            Operation::MoveTo(Register::X) => self.x = self.a,
            Operation::Jump(distance) => return Ok(distance),
            Operation::Branch { condition, operand, jump_true, jump_false } => {
                let holds = condition_holds(condition, self.a, self.operand_value(operand));
                return Ok(if holds { jump_true } else { jump_false }.into());
            }
            Operation::ReturnConstant(value) => return Err(ReturnValue(value)),
            Operation::ReturnA => return Err(ReturnValue(self.a)),
        }
        Ok(0)
    }

    const fn register_mut(&mut self, register: Register) -> &mut u32 {
        match register {
            Register::A => &mut self.a,
            Register::X => &mut self.x,
        }
    }

    const fn operand_value(&self, operand: Operand) -> u32 {
        match operand {
            Operand::Constant(value) => value,
            Operand::X => self.x,
        }
    }

    fn packet_length(&self) -> u32 {
        if let Some(bytes) = self.ancillary.original_bytes {
            return bytes;
        }
        let bytes: usize = self.pieces.iter().map(|piece| piece.len()).sum();
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    fn load(&self, width: LoadWidth, offset: u32) -> Result<u32, ReturnValue> {
        let bytes = width as u32;
        let offset = match (LoadTarget::from_offset(offset), self.ancillary.headers) {
            (LoadTarget::Frame(offset), _) | (LoadTarget::Link(offset), HeaderLocation::Ethernet) => {
                Some(offset)
            }
            (LoadTarget::Network(offset), HeaderLocation::Ethernet) => {
                self.network_header_offset()?.checked_add(offset)
            }
            (LoadTarget::Network(offset), HeaderLocation::Datagram { linear_bytes }) => {
                Some(offset).filter(|offset| offset + bytes <= linear_bytes)
            }
            (LoadTarget::Link(_), HeaderLocation::Datagram { .. }) | (LoadTarget::Nowhere, _) => None,
        };
        offset.and_then(|offset| self.read_value(width, offset as usize)).ok_or(ReturnValue(0))
    }

    fn read_value(&self, width: LoadWidth, offset: usize) -> Option<u32> {
        self.read_first_piece(width, offset).or_else(|| self.read_across_pieces(width, offset))
    }

    /// Loads from the first piece.
    fn read_first_piece(&self, width: LoadWidth, offset: usize) -> Option<u32> {
        let bytes = self.pieces.first()?.get(offset..)?;
        Some(match width {
            LoadWidth::Byte => u32::from(*bytes.first()?),
            LoadWidth::Half => u32::from(u16::from_be_bytes(*bytes.first_chunk()?)),
            LoadWidth::Word => u32::from_be_bytes(*bytes.first_chunk()?),
        })
    }

    /// Loads byte by byte, from whichever piece has each byte.
    fn read_across_pieces(&self, width: LoadWidth, offset: usize) -> Option<u32> {
        (offset..offset + width as usize).try_fold(0, |value, offset| {
            let byte = self.pieces.iter().try_fold(offset, |rest, piece| match piece.get(rest) {
                Some(&byte) => Err(byte),
                None => Ok(rest - piece.len()),
            });
            Some(value << 8 | u32::from(byte.err()?))
        })
    }

    /// The offset of the network header of a frame: after a tag, if there is one.
    fn network_header_offset(&self) -> Result<u32, ReturnValue> {
        if self.ancillary.vlan.is_some() {
            return Ok(ETHERNET_BYTES);
        }
        let announced = self.read_value(LoadWidth::Half, TYPE_OFFSET as usize).ok_or(ReturnValue(0))?;
        let tagged = VLAN_TYPES.map(u32::from).contains(&announced);
        Ok(if tagged { ETHERNET_BYTES + TAG_BYTES } else { ETHERNET_BYTES })
    }

    fn load_extension(&self, extension: Extension) -> Result<u32, ReturnValue> {
        let AncillaryData { interface_index, vlan, .. } = *self.ancillary;
        Ok(match extension {
            Extension::InterfaceIndex => interface_index.ok_or(ReturnValue(self.a))?,
            Extension::HardwareType => {
                interface_index.map(|_| ETHERNET_HARDWARE).ok_or(ReturnValue(self.a))?
            }
            Extension::Mark => self.ancillary.mark,
            Extension::Queue => self.ancillary.queue.into(),
            Extension::Cpu => self.ancillary.cpu,
            Extension::Random => self.ancillary.random,
            Extension::XorX => self.a ^ self.x,
            Extension::VlanTag => vlan.map_or(0, |tag| tag.control.into()),
            Extension::VlanTagPresent => vlan.is_some().into(),
            Extension::VlanProtocol => vlan.map_or(0, |tag| tag.protocol.into()),
            Extension::Protocol
            | Extension::PacketType
            | Extension::NetlinkAttribute
            | Extension::NestedNetlinkAttribute
            | Extension::ReceiveHash
            | Extension::PayloadOffset => return Err(ReturnValue(0)),
        })
    }
}

fn compute(arithmetic: Arithmetic, a: u32, operand: u32) -> Result<u32, ReturnValue> {
    Ok(match arithmetic {
        Arithmetic::Add => a.wrapping_add(operand),
        Arithmetic::Subtract => a.wrapping_sub(operand),
        Arithmetic::Multiply => a.wrapping_mul(operand),
        Arithmetic::Divide => a.checked_div(operand).ok_or(ReturnValue(0))?,
        Arithmetic::Remainder => a.checked_rem(operand).ok_or(ReturnValue(0))?,
        Arithmetic::Or => a | operand,
        Arithmetic::And => a & operand,
        Arithmetic::Xor => a ^ operand,
        // Only the lowest 5 bits of the distance count, as in the kernel's 32-bit shifts.
        Arithmetic::ShiftLeft => a.wrapping_shl(operand),
        Arithmetic::ShiftRight => a.wrapping_shr(operand),
    })
}

const fn condition_holds(condition: Condition, a: u32, operand: u32) -> bool {
    match condition {
        Condition::Equal => a == operand,
        Condition::Greater => a > operand,
        Condition::GreaterOrEqual => a >= operand,
        Condition::AnyBit => a & operand != 0,
    }
}

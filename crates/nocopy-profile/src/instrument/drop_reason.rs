//! The kernel's names of its reasons to drop packets (`enum skb_drop_reason`, from its type information).

use std::collections::HashMap;
use std::fs;

const PATH: &str = "/sys/kernel/btf/vmlinux";
const ENUM: &str = "skb_drop_reason";

/// Names by number; empty if the kernel has none.
#[derive(Debug, Default)]
pub(super) struct DropReasonNames(HashMap<u32, String>);

impl DropReasonNames {
    pub(super) fn read() -> Self {
        let types = fs::read(PATH).unwrap_or_default();
        let values = enum_values(&types, ENUM).unwrap_or_default();
        Self(values.into_iter().map(|(name, value)| (value, name)).collect())
    }

    /// The name without the common prefix, or the number if there is none.
    pub(super) fn reason_name(&self, reason: u32) -> String {
        match self.0.get(&reason) {
            Some(name) => name.trim_start_matches("SKB_DROP_REASON_").into(),
            None => reason.to_string(),
        }
    }
}

/// Little-endian words of the file (kernel: Documentation/bpf/btf.rst).
struct BtfWords<'a>(&'a [u8]);

impl BtfWords<'_> {
    fn word_at(&self, offset: usize) -> Option<u32> {
        let bytes = self.0.get(offset..offset + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }
}

fn enum_values(file: &[u8], enumeration: &str) -> Option<Vec<(String, u32)>> {
    const HEADER_LENGTH: usize = 4;
    let words = BtfWords(file);
    let word = |offset| words.word_at(offset).and_then(|word| usize::try_from(word).ok());
    let header = word(HEADER_LENGTH)?;
    let [types, types_bytes, strings] = [header + word(8)?, word(12)?, header + word(16)?];
    let name = |offset: usize| {
        let text = file.get(strings + offset..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&text[..end]).ok()
    };
    let mut offset = types;
    while offset < types + types_bytes {
        let (info, body) = (words.word_at(offset + 4)?, offset + 12);
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        if kind == KIND_ENUM && name(word(offset)?)? == enumeration {
            let value = |index| {
                Some((name(word(body + 8 * index)?)?.to_owned(), words.word_at(body + 8 * index + 4)?))
            };
            return (0..count).map(value).collect();
        }
        offset = body + type_body_bytes(kind, count)?;
    }
    None
}

const KIND_ENUM: u32 = 6;

/// The length of a type's data after the three words that every type has.
fn type_body_bytes(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        1 | 14 | 17 => 4,              // integer, variable, declaration tag
        3 => 12,                       // array
        4 | 5 | 15 | 19 => 12 * count, // structure, union, section, enumeration of 64 bits
        KIND_ENUM | 13 => 8 * count,   // and function prototype
        2 | 7..=12 | 16 | 18 => 0, // pointer, forward, type definition, qualifiers, function, float, type tag
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_reasons_without_a_name_are_shown_as_numbers() {
        let names = DropReasonNames(HashMap::from([(3, "SKB_DROP_REASON_NO_SOCKET".to_owned())]));
        assert_eq!([3, 70_000].map(|reason| names.reason_name(reason)), ["NO_SOCKET", "70000"]);
    }

    #[test]
    fn an_enumeration_is_found_among_other_types() {
        let strings = b"\0int\0skb_drop_reason\0ONE\0TWO\0";
        let mut types: Vec<u32> = vec![1, 1 << 24, 4, 32]; // int
        types.extend([5, 6 << 24 | 2, 4, 21, 7, 25, 9]);
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let lengths = [24, 0, types.len(), types.len(), strings.len()].map(|word| word as u32);
        let mut file = 0x0001_eb9f_u32.to_ne_bytes().to_vec();
        file.extend(lengths.iter().flat_map(|word| word.to_ne_bytes()));
        file.extend(types);
        file.extend(strings);
        let found = enum_values(&file, ENUM).unwrap();
        assert_eq!(found, [("ONE".to_owned(), 7), ("TWO".to_owned(), 9)]);
        for end in 0..file.len() - 10 {
            let _ = enum_values(&file[..end], ENUM); // cut: nothing, and no panic
        }
    }
}

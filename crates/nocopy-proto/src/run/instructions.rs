//! Instructions as arrays of their four numbers, as `tcpdump -ddd` has them in lines: with the names of the
//! fields the longest filter would be three times as long.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::filter::Instruction;

type Numbers = (u16, u8, u8, u32);

pub(super) fn serialize<S: Serializer>(
    instructions: &Option<Vec<Instruction>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let numbers = |one: &Instruction| -> Numbers { (one.code, one.jump_true, one.jump_false, one.constant) };
    let all: Option<Vec<Numbers>> = instructions.as_ref().map(|all| all.iter().map(numbers).collect());
    all.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<Instruction>>, D::Error> {
    let all: Option<Vec<Numbers>> = Deserialize::deserialize(deserializer)?;
    let instruction =
        |(code, jump_true, jump_false, constant)| Instruction { code, jump_true, jump_false, constant };
    Ok(all.map(|all| all.into_iter().map(instruction).collect()))
}

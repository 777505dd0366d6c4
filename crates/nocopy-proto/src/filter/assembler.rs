//! Classic BPF with jumps to labels, whose distances may exceed 8 bits.

use super::Instruction;
use super::instruction::{Operation, code};

#[derive(Debug, Clone, Copy)]
pub(super) struct Label(usize);

#[derive(Debug, Clone, Copy)]
enum AssemblyItem {
    Plain(Instruction),
    Jump(Label),
    /// `wide`: the condition skips one of two jumps.
    Branch {
        test: Instruction,
        if_true: Label,
        if_false: Label,
        wide: bool,
    },
}

impl AssemblyItem {
    const fn instruction_count(&self) -> usize {
        match self {
            Self::Branch { wide: true, .. } => 3,
            _ => 1,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Assembler {
    items: Vec<AssemblyItem>,
    /// For each label, the index of the item after it.
    labels: Vec<usize>,
}

impl Assembler {
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(usize::MAX);
        Label(self.labels.len() - 1)
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.labels[label.0] = self.items.len();
    }

    pub(super) fn push(&mut self, code: u16, constant: u32) {
        self.items.push(AssemblyItem::Plain(Instruction::non_branching(code, constant)));
    }

    pub(super) fn extend(&mut self, instructions: &[Instruction]) {
        self.items.extend(instructions.iter().copied().map(AssemblyItem::Plain));
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.items.push(AssemblyItem::Jump(to));
    }

    pub(super) fn branch(&mut self, test: Instruction, if_true: Label, if_false: Label) {
        self.items.push(AssemblyItem::Branch { test, if_true, if_false, wide: false });
    }

    /// Adds the jumps of an instruction of another program, whose following instructions begin at `labels`.
    pub(super) fn push_jumps_of(&mut self, operation: Operation, instruction: Instruction, labels: &[Label]) {
        match operation {
            Operation::Jump(distance) => self.jump(labels[distance as usize]),
            Operation::Branch { jump_true, jump_false, .. } => {
                self.branch(instruction, labels[usize::from(jump_true)], labels[usize::from(jump_false)]);
            }
            _ => {}
        }
    }

    pub(super) fn finish(mut self) -> Vec<Instruction> {
        let positions = loop {
            let positions = self.item_positions();
            if !self.widen_long_branches(&positions) {
                break positions;
            }
        };
        let mut instructions = Vec::new();
        for item in &self.items {
            let here = instructions.len();
            let distance = |label: &Label, from: usize| positions[self.labels[label.0]] - from - 1;
            let jump = |label, from| Instruction::non_branching(code::JUMP, distance(label, from) as u32);
            match item {
                AssemblyItem::Plain(instruction) => instructions.push(*instruction),
                AssemblyItem::Jump(to) => instructions.push(jump(to, here)),
                AssemblyItem::Branch { test, if_true, if_false, wide: false } => {
                    instructions.push(Instruction {
                        jump_true: distance(if_true, here) as u8,
                        jump_false: distance(if_false, here) as u8,
                        ..*test
                    })
                }
                AssemblyItem::Branch { test, if_true, if_false, wide: true } => {
                    instructions.push(Instruction { jump_true: 0, jump_false: 1, ..*test });
                    instructions.extend([jump(if_true, here + 1), jump(if_false, here + 2)]);
                }
            }
        }
        instructions
    }

    /// The position of each item, and the end.
    fn item_positions(&self) -> Vec<usize> {
        let mut at = 0;
        let mut positions: Vec<usize> = self
            .items
            .iter()
            .map(|item| {
                at += item.instruction_count();
                at - item.instruction_count()
            })
            .collect();
        positions.push(at);
        positions
    }

    /// Makes branches wide that are too long; returns whether there were any.
    fn widen_long_branches(&mut self, positions: &[usize]) -> bool {
        let mut widened = false;
        for (index, item) in self.items.iter_mut().enumerate() {
            if let AssemblyItem::Branch { if_true, if_false, wide: wide @ false, .. } = item {
                let fits =
                    |label: &Label| positions[self.labels[label.0]] - positions[index] - 1 <= u8::MAX.into();
                *wide = !(fits(if_true) && fits(if_false));
                widened |= *wide;
            }
        }
        widened
    }
}

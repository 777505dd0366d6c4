//! eBPF with jumps to positions that are not known yet.

use crate::ebpf::{Instruction, skip};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A jump spans more instructions than its 16 bits can hold.
#[derive(Debug)]
pub(super) struct JumpTooFar;

#[derive(Debug, Default)]
pub(super) struct XdpAssembler {
    instructions: Vec<Instruction>,
    /// The position of each label, once it is bound.
    positions: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl XdpAssembler {
    pub(super) fn label(&mut self) -> Label {
        self.positions.push(None);
        Label(self.positions.len() - 1)
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.positions[label.0] = Some(self.instructions.len());
    }

    pub(super) fn push(&mut self, instruction: Instruction) {
        self.instructions.push(instruction);
    }

    pub(super) fn extend<const COUNT: usize>(&mut self, instructions: [Instruction; COUNT]) {
        self.instructions.extend(instructions);
    }

    /// Jumps on the condition of `instruction`, whose offset is filled in later.
    pub(super) fn branch(&mut self, instruction: Instruction, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(instruction);
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.branch(skip(0), to);
    }

    pub(super) fn len(&self) -> usize {
        self.instructions.len()
    }

    pub(super) fn is_jump_target(&self, label: Label) -> bool {
        self.jumps.iter().any(|&(_, to)| to == label)
    }

    pub(super) fn finish(mut self) -> Result<Vec<Instruction>, JumpTooFar> {
        for (from, label) in self.jumps {
            let to = self.positions[label.0].expect("every label is bound");
            // The positions are small, so no difference overflows.
            let distance = to as isize - from as isize - 1;
            self.instructions[from].offset = i16::try_from(distance).map_err(|_| JumpTooFar)?;
        }
        Ok(self.instructions)
    }
}

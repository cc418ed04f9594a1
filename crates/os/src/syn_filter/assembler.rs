//! A small eBPF assembler: instructions by name, and jumps to labels.
//!
//! A jump counts the instructions that it skips. Counted by hand, each count has to be changed with
//! every instruction in between, so the program names its targets, and the counts are filled in
//! when it is finished.
//!
//! Source: `Documentation/bpf/standardization/instruction-set.rst`.

use rustix::fd::RawFd;

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// The source in the upper half, the destination in the lower one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// One of the registers R0 to R9.
pub(super) type Register = u8;

/// The register in which loads from the packet and calls return.
pub(super) const RESULT: Register = 0;

/// An operation with two operands, of which the first gets the result.
#[derive(Clone, Copy)]
pub(super) enum Operation {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    ExclusiveOr = 0xa0,
    Move = 0xb0,
}

/// A comparison of two operands, unsigned.
#[derive(Clone, Copy)]
pub(super) enum Comparison {
    Above = 0x20,
    NotEqual = 0x50,
    Below = 0xa0,
}

/// Of how many bits of the operands an instruction is.
#[derive(Clone, Copy)]
pub(super) enum Width {
    Bits32,
    Bits64,
}

/// An operand: a register or a number.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    Register(Register),
    Immediate(i32),
}

/// A size in memory.
#[derive(Clone, Copy)]
pub(super) enum Size {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// Functions of the kernel (`enum bpf_func_id`).
#[derive(Clone, Copy)]
pub(super) enum Function {
    KtimeGetNs = 5,
    GetPrandomU32 = 7,
}

/// The target of jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

// Classes, modes and operations with a single use.
const CLASS_LOAD: u8 = 0x00;
const CLASS_LOAD_REGISTER: u8 = 0x01;
const CLASS_STORE_REGISTER: u8 = 0x03;
const CLASS_ARITHMETIC_32: u8 = 0x04;
const CLASS_JUMP_64: u8 = 0x05;
const CLASS_JUMP_32: u8 = 0x06;
const CLASS_ARITHMETIC_64: u8 = 0x07;
const MODE_PACKET: u8 = 0x20;
const MODE_MEMORY: u8 = 0x60;
const OPERAND_REGISTER: u8 = 0x08;
const LOAD_IMMEDIATE: u8 = 0x18;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Source register of a load whose immediate is a map's descriptor: the map's value.
const MAP_VALUE: u8 = 2;

/// A program in the making.
#[derive(Default)]
pub(super) struct Assembler {
    instructions: Vec<Instruction>,
    /// By label: the instruction that follows it, once that is known.
    targets: Vec<Option<usize>>,
    /// Jumps, and where they lead.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// A label that is not placed yet.
    pub(super) fn label(&mut self) -> Label {
        self.targets.push(None);
        Label(self.targets.len() - 1)
    }

    /// Places a label before the next instruction.
    ///
    /// # Panics
    /// If it is placed already.
    pub(super) fn bind(&mut self, label: Label) {
        let target = self.targets[label.0].replace(self.instructions.len());
        assert!(target.is_none(), "{label:?} is placed twice");
    }

    /// Loads from the packet into [`RESULT`], in the byte order of this machine.
    pub(super) fn load_packet(&mut self, size: Size, offset: u32) {
        let code = CLASS_LOAD | MODE_PACKET | size as u8;
        self.push(code, 0, 0, 0, offset as i32);
    }

    /// Loads from memory.
    pub(super) fn load(&mut self, size: Size, to: Register, base: Register, offset: i16) {
        let code = CLASS_LOAD_REGISTER | MODE_MEMORY | size as u8;
        self.push(code, to, base, offset, 0);
    }

    /// Stores to memory.
    pub(super) fn store(&mut self, size: Size, base: Register, offset: i16, from: Register) {
        let code = CLASS_STORE_REGISTER | MODE_MEMORY | size as u8;
        self.push(code, base, from, offset, 0);
    }

    /// Loads the address of a map's value, which takes two instructions.
    pub(super) fn load_map_value(&mut self, to: Register, map: RawFd) {
        self.push(LOAD_IMMEDIATE, to, MAP_VALUE, 0, map);
        self.push(0, 0, 0, 0, 0);
    }

    /// Computes `to = to OPERATION operand`, or `to = operand` for a move.
    pub(super) fn compute(
        &mut self,
        operation: Operation,
        width: Width,
        to: Register,
        operand: Operand,
    ) {
        let class = match width {
            Width::Bits32 => CLASS_ARITHMETIC_32,
            Width::Bits64 => CLASS_ARITHMETIC_64,
        };
        self.push_with_operand(class | operation as u8, to, operand);
    }

    /// Copies a register.
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        let from = Operand::Register(from);
        self.compute(Operation::Move, Width::Bits64, to, from);
    }

    /// Calls a function of the kernel, which changes the registers R0 to R5.
    pub(super) fn call(&mut self, function: Function) {
        self.push(CALL, 0, 0, 0, function as i32);
    }

    /// Returns a number.
    pub(super) fn exit(&mut self, value: i32) {
        let value = Operand::Immediate(value);
        self.compute(Operation::Move, Width::Bits32, RESULT, value);
        self.push(EXIT, 0, 0, 0, 0);
    }

    /// Jumps to a label if a comparison is true.
    pub(super) fn jump_if(
        &mut self,
        comparison: Comparison,
        width: Width,
        left: Register,
        right: Operand,
        label: Label,
    ) {
        self.jumps.push((self.instructions.len(), label));
        let class = match width {
            Width::Bits32 => CLASS_JUMP_32,
            Width::Bits64 => CLASS_JUMP_64,
        };
        self.push_with_operand(class | comparison as u8, left, right);
    }

    /// The program, with the distances of its jumps.
    ///
    /// # Panics
    /// If a jump leads to a label that is not placed, or farther than 32,767 instructions: a mistake
    /// in the program.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (jump, label) in self.jumps {
            let target = self.targets[label.0].expect("a label that a jump leads to is not placed");
            // Counted from the instruction after the jump.
            let distance = target as isize - (jump as isize + 1);
            self.instructions[jump].offset = distance.try_into().expect("a jump is too far");
        }
        self.instructions
    }

    fn push_with_operand(&mut self, code: u8, to: Register, operand: Operand) {
        match operand {
            Operand::Register(from) => self.push(code | OPERAND_REGISTER, to, from, 0, 0),
            Operand::Immediate(value) => self.push(code, to, 0, 0, value),
        }
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.instructions.push(Instruction {
            code,
            registers: from << 4 | to,
            offset,
            immediate,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jumps to a label if a register is not 0.
    fn jump(assembler: &mut Assembler, label: Label) {
        let zero = Operand::Immediate(0);
        assembler.jump_if(Comparison::NotEqual, Width::Bits64, 1, zero, label);
    }

    fn offsets(assembler: Assembler) -> Vec<i16> {
        let instructions = assembler.finish();
        instructions.iter().map(|found| found.offset).collect()
    }

    #[test]
    fn jumps_skip_the_instructions_before_their_label() {
        let mut assembler = Assembler::default();
        let (loops, end) = (assembler.label(), assembler.label());
        jump(&mut assembler, end);
        assembler.bind(loops);
        assembler.copy(2, 3);
        // Two instructions.
        assembler.load_map_value(4, 9);
        jump(&mut assembler, loops);
        jump(&mut assembler, end);
        assembler.bind(end);
        assembler.exit(0);
        assert_eq!(offsets(assembler), [5, 0, 0, 0, -4, 0, 0, 0]);
    }

    #[test]
    fn one_label_is_the_target_of_several_jumps_when_nothing_is_between() {
        let mut assembler = Assembler::default();
        let (first, second) = (assembler.label(), assembler.label());
        jump(&mut assembler, first);
        jump(&mut assembler, first);
        jump(&mut assembler, second);
        assembler.bind(first);
        assembler.bind(second);
        assembler.exit(0);
        assert_eq!(offsets(assembler), [2, 1, 0, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "not placed")]
    fn jump_to_a_label_without_a_place_is_rejected() {
        let mut assembler = Assembler::default();
        let label = assembler.label();
        jump(&mut assembler, label);
        assembler.finish();
    }

    #[test]
    #[should_panic(expected = "placed twice")]
    fn label_with_two_places_is_rejected() {
        let mut assembler = Assembler::default();
        let label = assembler.label();
        assembler.bind(label);
        assembler.bind(label);
    }

    #[test]
    fn instructions_have_the_codes_of_the_instruction_set() {
        let mut assembler = Assembler::default();
        let register = Operand::Register(7);
        assembler.load_packet(Size::Half, 2);
        assembler.load(Size::Double, 3, 2, 8);
        assembler.store(Size::Word, 1, -4, 9);
        assembler.load_map_value(1, 5);
        assembler.compute(Operation::Subtract, Width::Bits32, 3, register);
        assembler.compute(
            Operation::ShiftRight,
            Width::Bits64,
            3,
            Operand::Immediate(20),
        );
        assembler.call(Function::GetPrandomU32);
        assembler.exit(-1);
        let codes = assembler.finish().into_iter().map(|found| {
            let Instruction {
                code,
                registers,
                offset,
                immediate,
            } = found;
            (code, registers, offset, immediate)
        });
        let expected = [
            (0x28, 0x00, 0, 2),
            (0x79, 0x23, 8, 0),
            (0x63, 0x91, -4, 0),
            (0x18, 0x21, 0, 5),
            (0, 0, 0, 0),
            (0x1c, 0x73, 0, 0),
            (0x77, 0x03, 0, 20),
            (0x85, 0x00, 0, 7),
            (0xb4, 0x00, 0, -1),
            (0x95, 0x00, 0, 0),
        ];
        assert_eq!(codes.collect::<Vec<_>>(), expected);
    }
}

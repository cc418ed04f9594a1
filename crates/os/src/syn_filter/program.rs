//! The eBPF program of the stateful SYN filter.
//!
//! The kernel runs it for each segment of a listener, from the TCP header on.

use rustix::fd::RawFd;

use super::assembler::Comparison::{Above, Below, NotEqual};
use super::assembler::Operand::{Immediate, Register as InRegister};
use super::assembler::Operation::{
    Add, And, ExclusiveOr, Multiply, ShiftLeft, ShiftRight, Subtract,
};
use super::assembler::Width::{Bits32, Bits64};
use super::assembler::{Assembler, Function, Instruction, RESULT, Register, Size};
use super::stateless::{FLAGS, HASH_FACTOR, SEQUENCE, SYN, SYN_ACK};
use super::{HEAD_BYTES, MEMORY_TICKS, SLOTS, TICK_SHIFT};

// The registers. Calls keep R6 to R9.
const CONTEXT: Register = 1;
const SLOT: Register = 1;
const HEAD: Register = 2;
const SCRATCH: Register = 3;
/// Loads from the packet need it here.
const PACKET: Register = 6;
/// A random number, instead of the packet once that has been read.
const RANDOM: Register = 6;
const HASH: Register = 7;
const PORT: Register = 8;
/// The number that is compared with the limit, instead of the port.
const SAMPLE: Register = 8;
const NOW: Register = 9;

/// Fields of a slot, from the beginning of the table.
const SLOT_HASH: i16 = HEAD_BYTES as i16;
const SLOT_TICKS: i16 = HEAD_BYTES as i16 + 4;
/// Size of a slot in bytes is two to this power.
const SLOT_SHIFT: i32 = super::SLOT_BYTES.trailing_zeros() as i32;

/// What the program returns: the number of bytes of the segment to keep.
const WHOLE: i32 = -1;
const NOTHING: i32 = 0;

/// Builds the program for the table with this file descriptor.
pub(super) fn drop_rejected_syns(table: RawFd) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    let [admit, decide, reject, drop] = std::array::from_fn(|_| asm.label());

    // Everything but a SYN passes.
    asm.copy(PACKET, CONTEXT);
    asm.load_packet(Size::Byte, FLAGS);
    asm.compute(And, Bits64, RESULT, Immediate(SYN_ACK as i32));
    asm.jump_if(NotEqual, Bits64, RESULT, Immediate(SYN as i32), admit);

    read_packet(&mut asm);
    read_time_and_random(&mut asm);
    find_slot(&mut asm, table);

    // A SYN that was rejected recently is dropped. If it was rejected long ago, the random number
    // is the sample.
    asm.load(Size::Word, SCRATCH, SLOT, SLOT_HASH);
    asm.jump_if(NotEqual, Bits32, SCRATCH, InRegister(HASH), decide);
    asm.copy(RESULT, NOW);
    asm.load(Size::Word, SCRATCH, SLOT, SLOT_TICKS);
    asm.compute(Subtract, Bits32, RESULT, InRegister(SCRATCH));
    asm.jump_if(Below, Bits32, RESULT, Immediate(MEMORY_TICKS), drop);
    asm.copy(SAMPLE, RANDOM);

    asm.bind(decide);
    asm.load(Size::Double, SCRATCH, HEAD, 0);
    asm.jump_if(Above, Bits64, SAMPLE, InRegister(SCRATCH), reject);

    asm.bind(admit);
    asm.exit(WHOLE);

    // The slot remembers the client.
    asm.bind(reject);
    asm.store(Size::Word, SLOT, SLOT_HASH, HASH);
    asm.store(Size::Word, SLOT, SLOT_TICKS, NOW);

    asm.bind(drop);
    asm.exit(NOTHING);
    asm.finish()
}

/// Reads the sequence number, which is hashed, and the port.
fn read_packet(asm: &mut Assembler) {
    asm.load_packet(Size::Word, SEQUENCE);
    asm.copy(HASH, RESULT);
    asm.compute(Multiply, Bits32, HASH, Immediate(HASH_FACTOR as i32));
    asm.load_packet(Size::Half, 0);
    asm.copy(PORT, RESULT);
}

fn read_time_and_random(asm: &mut Assembler) {
    asm.call(Function::KtimeGetNs);
    asm.compute(ShiftRight, Bits64, RESULT, Immediate(TICK_SHIFT as i32));
    asm.copy(NOW, RESULT);
    asm.call(Function::GetPrandomU32);
    asm.copy(RANDOM, RESULT);
}

/// Finds the slot by the hash's upper bits and the port. Unless the slot says otherwise, the hash
/// is the sample.
fn find_slot(asm: &mut Assembler, table: RawFd) {
    const LAST_SLOT: i32 = (SLOTS - 1) as i32;
    asm.copy(SCRATCH, HASH);
    asm.compute(ShiftRight, Bits64, SCRATCH, Immediate(12));
    asm.compute(ExclusiveOr, Bits64, SCRATCH, InRegister(PORT));
    asm.compute(And, Bits64, SCRATCH, Immediate(LAST_SLOT));
    asm.compute(ShiftLeft, Bits64, SCRATCH, Immediate(SLOT_SHIFT));
    asm.copy(SAMPLE, HASH);
    asm.load_map_value(SLOT, table);
    asm.load_map_value(HEAD, table);
    asm.compute(Add, Bits64, SLOT, InRegister(SCRATCH));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_can_be_built_without_the_privilege_to_load_it() {
        let built = drop_rejected_syns(5);
        assert_ne!(built, drop_rejected_syns(6), "it names its table");
    }
}

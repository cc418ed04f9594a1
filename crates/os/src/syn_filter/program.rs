//! The eBPF program of the stateful SYN filter, as the instructions that the kernel loads.
//!
//! The kernel runs it for each segment of a listener, from the TCP header on. Its parts follow one
//! another; a jump skips the rest of its own part and whole parts after it.

use rustix::fd::RawFd;

use super::stateless::{FLAGS, HASH_FACTOR, SEQUENCE, SYN, SYN_ACK};
use super::{HEAD_BYTES, MEMORY_TICKS, SLOTS, TICK_SHIFT};

/// `struct bpf_insn`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// The source in the upper half, the destination in the lower one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const LOAD_PACKET_BYTE: u8 = 0x30;
const LOAD_PACKET_HALF: u8 = 0x28;
const LOAD_PACKET_WORD: u8 = 0x20;
const LOAD_WORD: u8 = 0x61;
const LOAD_DOUBLE: u8 = 0x79;
const STORE_WORD: u8 = 0x63;
const LOAD_IMMEDIATE: u8 = 0x18;
const MOVE: u8 = 0xbf;
const MOVE_IMMEDIATE_32: u8 = 0xb4;
const MULTIPLY_IMMEDIATE_32: u8 = 0x24;
const SUBTRACT_32: u8 = 0x1c;
const ADD: u8 = 0x0f;
const AND_IMMEDIATE: u8 = 0x57;
const LEFT_IMMEDIATE: u8 = 0x67;
const RIGHT_IMMEDIATE: u8 = 0x77;
const EXCLUSIVE_OR: u8 = 0xaf;
const IF_NOT_EQUAL_IMMEDIATE: u8 = 0x55;
const IF_NOT_EQUAL_32: u8 = 0x5e;
const IF_ABOVE: u8 = 0x2d;
const IF_BELOW_IMMEDIATE_32: u8 = 0xa6;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Source register of a load whose immediate is a map's file descriptor: the map's value.
const MAP_VALUE: u8 = 2;
const KTIME_GET_NS: i32 = 5;
const GET_PRANDOM_U32: i32 = 7;

// The registers.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const SLOT: u8 = 1;
const HEAD: u8 = 2;
const SCRATCH: u8 = 3;
const PACKET: u8 = 6;
/// A random number, instead of the packet once that has been read.
const RANDOM: u8 = 6;
const HASH: u8 = 7;
const PORT: u8 = 8;
/// The number that is compared with the limit, instead of the port.
const SAMPLE: u8 = 8;
const NOW: u8 = 9;

/// Fields of a slot, from the beginning of the table.
const SLOT_HASH: i16 = HEAD_BYTES as i16;
const SLOT_TICKS: i16 = HEAD_BYTES as i16 + 4;

/// Builds the program for the table with this file descriptor.
pub(super) fn drop_rejected_syns(table: RawFd) -> Vec<Instruction> {
    let admit = [
        code(MOVE_IMMEDIATE_32, RESULT, 0, 0, -1),
        code(EXIT, 0, 0, 0, 0),
    ];
    let remember = [
        code(STORE_WORD, SLOT, HASH, SLOT_HASH, 0),
        code(STORE_WORD, SLOT, NOW, SLOT_TICKS, 0),
    ];
    let drop = [
        code(MOVE_IMMEDIATE_32, RESULT, 0, 0, 0),
        code(EXIT, 0, 0, 0, 0),
    ];
    let decide = decide(admit.len());
    let recall = recall(decide.len() + admit.len() + remember.len());
    let find_slot = find_slot(table);
    let read = [read_packet(), read_time_and_random()].concat();
    let pass_others = pass_others(read.len() + find_slot.len() + recall.len() + decide.len());
    [
        &pass_others[..],
        &read,
        &find_slot,
        &recall,
        &decide,
        &admit,
        &remember,
        &drop,
    ]
    .concat()
}

fn code(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers: source << 4 | destination,
        offset,
        immediate,
    }
}

/// Lets everything but a SYN pass: jumps over `to_admit` instructions.
fn pass_others(to_admit: usize) -> Vec<Instruction> {
    vec![
        code(MOVE, PACKET, CONTEXT, 0, 0),
        code(LOAD_PACKET_BYTE, 0, 0, 0, FLAGS as i32),
        code(AND_IMMEDIATE, RESULT, 0, 0, SYN_ACK as i32),
        code(
            IF_NOT_EQUAL_IMMEDIATE,
            RESULT,
            0,
            to_admit as i16,
            SYN as i32,
        ),
    ]
}

/// Reads the sequence number, which is hashed, and the port.
fn read_packet() -> Vec<Instruction> {
    vec![
        code(LOAD_PACKET_WORD, 0, 0, 0, SEQUENCE as i32),
        code(MOVE, HASH, RESULT, 0, 0),
        code(MULTIPLY_IMMEDIATE_32, HASH, 0, 0, HASH_FACTOR as i32),
        code(LOAD_PACKET_HALF, 0, 0, 0, 0),
        code(MOVE, PORT, RESULT, 0, 0),
    ]
}

fn read_time_and_random() -> Vec<Instruction> {
    vec![
        code(CALL, 0, 0, 0, KTIME_GET_NS),
        code(RIGHT_IMMEDIATE, RESULT, 0, 0, TICK_SHIFT as i32),
        code(MOVE, NOW, RESULT, 0, 0),
        code(CALL, 0, 0, 0, GET_PRANDOM_U32),
        code(MOVE, RANDOM, RESULT, 0, 0),
    ]
}

/// Finds the slot by the hash's upper bits and the port. Unless the slot says otherwise, the hash
/// is the sample.
fn find_slot(table: RawFd) -> Vec<Instruction> {
    const LAST_SLOT: i32 = (SLOTS - 1) as i32;
    vec![
        code(MOVE, SCRATCH, HASH, 0, 0),
        code(RIGHT_IMMEDIATE, SCRATCH, 0, 0, 12),
        code(EXCLUSIVE_OR, SCRATCH, PORT, 0, 0),
        code(AND_IMMEDIATE, SCRATCH, 0, 0, LAST_SLOT),
        code(LEFT_IMMEDIATE, SCRATCH, 0, 0, 3),
        code(MOVE, SAMPLE, HASH, 0, 0),
        // A load of a map's address takes two instructions.
        code(LOAD_IMMEDIATE, SLOT, MAP_VALUE, 0, table),
        code(0, 0, 0, 0, 0),
        code(LOAD_IMMEDIATE, HEAD, MAP_VALUE, 0, table),
        code(0, 0, 0, 0, 0),
        code(ADD, SLOT, SCRATCH, 0, 0),
    ]
}

/// Drops a SYN that was rejected recently: jumps over the rest and `to_drop` instructions. If it
/// was rejected long ago, the random number is the sample.
fn recall(to_drop: usize) -> Vec<Instruction> {
    vec![
        code(LOAD_WORD, SCRATCH, SLOT, SLOT_HASH, 0),
        code(IF_NOT_EQUAL_32, SCRATCH, HASH, 5, 0),
        code(MOVE, RESULT, NOW, 0, 0),
        code(LOAD_WORD, SCRATCH, SLOT, SLOT_TICKS, 0),
        code(SUBTRACT_32, RESULT, SCRATCH, 0, 0),
        code(
            IF_BELOW_IMMEDIATE_32,
            RESULT,
            0,
            1 + to_drop as i16,
            MEMORY_TICKS,
        ),
        code(MOVE, SAMPLE, RANDOM, 0, 0),
    ]
}

/// Compares the sample with the limit: jumps over `to_reject` instructions if it is above.
fn decide(to_reject: usize) -> Vec<Instruction> {
    vec![
        code(LOAD_DOUBLE, SCRATCH, HEAD, 0, 0),
        code(IF_ABOVE, SAMPLE, SCRATCH, to_reject as i16, 0),
    ]
}

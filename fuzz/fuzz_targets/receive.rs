//! Receives arbitrary frames as TUN, TAP, packet and XDP sockets do, with and without an offload header:
//! each is delivered or counted as dropped.
#![no_main]

use fullsend_device::FrameHeader;
use fullsend_device::fuzzing::receive_frames;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, Vec<Vec<u8>>)| {
    let (kind, max, frames) = input;
    let header = match kind % 2 {
        0 => FrameHeader::None,
        _ => FrameHeader::Vnet,
    };
    receive_frames(header, &frames, max.into());
});

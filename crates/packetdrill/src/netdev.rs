//! Packets to and from the stack.

use std::ffi::{c_int, c_longlong, c_void};
use std::slice;
use std::thread;
use std::time::Duration;

use fullsend_blocking::Errno;
use fullsend_blocking::c::c_return;
use fullsend_offload::{Checksum, Packet, Slice, segment};
use fullsend_wire::{Instant, Nanos};

use crate::checksum::{BadChecksum, verify};
use crate::instance::{Instance, current};

/// Real time to wait for a packet when no timer is set: another thread may be about to send one.
const MAX_REAL_WAIT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Limit of the virtual time that passes while waiting for one packet.
const MAX_VIRTUAL_WAIT: Nanos = Nanos::from_secs(3600);

pub(crate) unsafe extern "C" fn netdev_send(
    _: *mut c_void,
    packet: *const c_void,
    len: usize,
) -> c_int {
    c_return(|| {
        let instance = current()?;
        if packet.is_null() {
            return Err(Errno::EFAULT);
        }
        instance.refresh();
        // SAFETY: not null, and packetdrill passes `len` bytes.
        let packet = unsafe { slice::from_raw_parts(packet.cast::<u8>(), len) };
        let packet = Packet::from_frame(Slice::copied_from(packet));
        instance.stack.input(&mut vec![packet]);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn netdev_receive(
    _: *mut c_void,
    buffer: *mut c_void,
    count: *mut usize,
    time_usecs: *mut c_longlong,
) -> c_int {
    let mut received = None;
    let ret = c_return(|| {
        let instance = current()?;
        if buffer.is_null() || count.is_null() || time_usecs.is_null() {
            return Err(Errno::EFAULT);
        }
        instance.refresh();
        received = next_packet(&instance);
        Ok(())
    });
    if ret == 0 {
        let (at, bytes) = received.unwrap_or_default();
        // SAFETY: none is null, and packetdrill's buffer has `count` bytes.
        unsafe {
            let room = count.read();
            count.write(0);
            time_usecs.write(Instance::micros(at) as c_longlong);
            if bytes.len() <= room {
                buffer.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
                count.write(bytes.len());
            }
        }
    }
    ret
}

/// Returns the next packet and its time of departure. Returns `None` if there is none or it is
/// invalid, which packetdrill treats as a failure of the test.
fn next_packet(instance: &Instance) -> Option<(Instant, Vec<u8>)> {
    let has_packets = || !instance.outbox.is_empty();
    let horizon = instance.now() + MAX_VIRTUAL_WAIT;
    let mut waited = Duration::ZERO;
    while !has_packets() {
        let before = instance.now();
        match instance.stack.deadline() {
            Some(next) if next <= horizon => instance.advance_until(next.max(before), has_packets),
            _ => {}
        }
        if instance.now() > before || has_packets() {
            continue;
        }
        if waited >= MAX_REAL_WAIT {
            eprintln!(
                "fullsend: the stack has no packet to send, and no timer is pending; check the \
                 script"
            );
            return None;
        }
        thread::sleep(POLL_INTERVAL);
        waited += POLL_INTERVAL;
    }
    let (at, packet) = instance.outbox.take()?;
    match verified_bytes(packet) {
        Ok(bytes) => Some((at, bytes)),
        Err((bytes, bad_checksum)) => {
            eprintln!(
                "fullsend: the stack sent an invalid packet, as {bad_checksum}: {bytes:02x?}"
            );
            None
        }
    }
}

/// Returns the packet as one, with its checksum completed. Verifies it, and each of the packets
/// into which a device would segment it.
pub(crate) fn verified_bytes(packet: Packet) -> Result<Vec<u8>, (Vec<u8>, BadChecksum)> {
    let mut whole = packet.to_bytes();
    if packet.offload.checksum == Checksum::Partial {
        complete_checksum(&mut whole, &packet);
    }
    let mut wire_packets = Vec::new();
    segment(packet, &mut wire_packets);
    let pieces = wire_packets.iter().map(Packet::to_bytes);
    for piece in pieces.chain([whole.clone()]) {
        if let Err(bad_checksum) = verify(&piece) {
            return Err((piece, bad_checksum));
        }
    }
    Ok(whole)
}

/// Completes a checksum as a network card does: the field contains the sum of the pseudo-header.
fn complete_checksum(bytes: &mut [u8], packet: &Packet) {
    let at = usize::from(packet.layers.transport);
    let field = match packet.layers.protocol {
        6 => at + 16,
        17 => at + 6,
        _ => return,
    };
    let checksum = fullsend_wire::checksum::sum(&bytes[at..]).checksum();
    if let Some(checksum_field) = bytes.get_mut(field..field + 2) {
        checksum_field.copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use fullsend_offload::{Packet, Slice};

    use super::verified_bytes;
    use crate::BadChecksum;

    #[test]
    fn a_packet_with_a_wrong_checksum_is_rejected() {
        let mut icmp = [
            0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 8, 0, 0xf7, 0xff, 0,
            0, 0, 0,
        ];
        icmp[10..12].copy_from_slice(&[0x66, 0xdf]);
        let packet = |bytes: &[u8]| Packet::from_frame(Slice::copied_from(bytes));
        assert_eq!(verified_bytes(packet(&icmp)).unwrap(), icmp);
        icmp[27] ^= 1;
        let (_, bad_checksum) = verified_bytes(packet(&icmp)).unwrap_err();
        assert_eq!(bad_checksum, BadChecksum::Transport(1));
    }
}

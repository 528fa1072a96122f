//! Rules of the rings: notifications by index, positions, and flags of the header.

use fullsend_offload::{Checksum, Offload};

use super::*;

const EVENT_IDX: u64 = 1 << 29;
const GUEST_CSUM: u64 = 1 << 1;

fn small_packets(count: usize) -> VecDeque<Packet> {
    let packet = Packet::from_frame(Slice::copied_from(&[0; 60]));
    vec![packet; count].into()
}

/// Virtio 1.2, 2.7.7.2: the driver writes behind its available ring the index of the used entry of which it
/// wants to be notified.
#[test]
fn the_driver_is_notified_of_the_used_entry_that_it_names() {
    let mut guest = Guest::running(FEATURES);
    assert_ne!(FEATURES & EVENT_IDX, 0);
    for index in 0..SIZE {
        let at = GUEST + DATA + 0x1000 * u64::from(index);
        guest.descriptor(0, index, (at, 400, WRITE, 0));
        guest.post(0, index);
    }
    let used_event = AVAILABLE + 4 + 2 * u64::from(SIZE);
    guest.write(used_event, &3_u16.to_le_bytes());
    let before = guest.stats().notifications;
    // Entries 0, 1, 2, 3 and 4, one at a time.
    for notifications in [0, 0, 0, 1, 1] {
        guest.device.transmit(&mut small_packets(1)).unwrap();
        assert_eq!(guest.stats().notifications - before, notifications);
    }
    // An entry within a batch, and the last of one.
    for (event, count) in [(6_u16, 4), (10, 2)] {
        guest.write(used_event, &event.to_le_bytes());
        let before = guest.stats().notifications;
        guest.device.transmit(&mut small_packets(count)).unwrap();
        assert_eq!(guest.stats().notifications, before + 1, "{event}");
    }
    // The one behind the batch.
    guest.write(used_event, &13_u16.to_le_bytes());
    let before = guest.stats().notifications;
    guest.device.transmit(&mut small_packets(2)).unwrap();
    assert_eq!((guest.used(0), guest.stats().notifications), (13, before));
}

/// A driver goes on where an earlier process, or the guest's earlier host, has stopped.
#[test]
fn a_ring_continues_at_the_base_that_the_monitor_sets() {
    let mut guest = Guest::new();
    guest.send(2, &words(&[FEATURES]), &[]);
    guest.set_memory(GUEST, MONITOR);
    guest.posted[1] = 5;
    for index in [AVAILABLE, USED] {
        guest.write(RING + index + 2, &5_u16.to_le_bytes());
    }
    guest.start_at(1, 5);
    assert!(guest.receive().is_empty());
    guest.write(DATA, &[0; 12]);
    guest.descriptor(1, 0, (GUEST + DATA, 12 + 60, 0, 0));
    guest.post(1, 0);
    assert_eq!(guest.receive().len(), 1);
    assert_eq!(guest.used(1), 6);
    // GET_VRING_BASE stops the ring and returns the next one.
    guest.send(11, &words(&[pair(1, 0)]), &[]);
    guest.receive();
    let mut reply = [0; 20];
    guest.socket.read_exact(&mut reply).unwrap();
    assert_eq!(*reply.last_chunk().unwrap(), pair(1, 6).to_ne_bytes());
    assert_eq!(guest.stats().protocol_errors, 0);
}

/// Virtio 1.2, 5.1.6.4.1: a driver without `GUEST_CSUM` gets no flag.
#[test]
fn a_verified_checksum_is_reported_to_drivers_that_accept_partial_ones() {
    for (features, flags) in [(FEATURES, 2), (FEATURES & !GUEST_CSUM, 0)] {
        let mut guest = Guest::running(features);
        guest.descriptor(0, 0, (GUEST + DATA, 400, WRITE, 0));
        guest.post(0, 0);
        guest.write(DATA, &[0xff; 12]);
        let mut batch = small_packets(1);
        batch[0].offload = Offload {
            checksum: Checksum::Valid,
            ..Offload::default()
        };
        guest.device.transmit(&mut batch).unwrap();
        assert_eq!(guest.used(0), 1);
        assert_eq!(guest.word(DATA) & 0xff, flags);
    }
}

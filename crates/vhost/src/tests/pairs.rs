//! A card with several pairs of queues.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use fullsend_offload::{Checksum, GsoKind, Link};

use super::*;
use crate::pair::Pairs;

const MQ: u64 = 1 << 22;

impl Guest {
    /// Returns a guest whose monitor has started the first `started` of `pairs` pairs, and whose driver
    /// uses the first `used` of them.
    fn running_pairs(pairs: usize, started: u32, used: u32) -> Self {
        let mut guest = Self::with_pairs(pairs);
        guest.send(2, &words(&[FEATURES | MQ]), &[]);
        guest.set_memory(GUEST, MONITOR);
        for ring in 0..2 * started {
            guest.start(ring);
            guest.enable(ring, ring < 2 * used);
        }
        guest.receive();
        assert_eq!(guest.stats().protocol_errors, 0);
        guest
    }

    fn enable(&self, ring: u32, enable: bool) {
        self.send(18, &words(&[pair(ring, enable.into())]), &[]);
    }

    /// Makes a frame of 60 bytes available in a transmit ring.
    fn post_frame(&mut self, ring: u64) {
        self.descriptor(ring, 0, (GUEST + DATA, 72, 0, 0));
        self.post(ring, 0);
    }

    /// Makes a buffer available in a receive ring.
    fn post_buffer(&mut self, ring: u64) {
        self.descriptor(ring, 0, (GUEST + DATA, 400, WRITE, 0));
        self.post(ring, 0);
    }

    /// Requests the value of a message without a body.
    fn request(&mut self, request: u32) -> u64 {
        self.send(request, &[], &[]);
        assert!(self.alive());
        let mut reply = [0; 20];
        self.socket.read_exact(&mut reply).unwrap();
        u64::from_ne_bytes(*reply.last_chunk().unwrap())
    }
}

fn received(device: &mut VhostUser) -> usize {
    let mut batch = Vec::new();
    device.receive(&mut batch, 64).unwrap();
    batch.len()
}

/// Sends a packet. Returns whether the device has accepted it.
fn transmit(device: &mut VhostUser) -> bool {
    let packet = Packet::from_frame(Slice::copied_from(&[0; 60]));
    let mut batch = VecDeque::from([packet]);
    device.transmit(&mut batch).unwrap();
    batch.is_empty()
}

fn is_readable(device: &VhostUser) -> bool {
    let file = device.fd().unwrap();
    let now = Duration::ZERO.try_into().unwrap();
    poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&now)).unwrap() != 0
}

#[test]
fn the_pairs_of_the_card_are_advertised() {
    for (pairs, mq) in [(1, 0), (2, MQ), (3, MQ)] {
        let mut guest = Guest::with_pairs(pairs);
        assert_eq!(guest.request(1) & MQ, mq);
        assert_eq!(guest.request(15) & 1, 1, "the protocol's feature MQ");
        guest.send(16, &words(&[1]), &[]);
        assert_eq!(guest.request(17), pairs as u64);
    }
    // A feature that was not offered.
    let mut guest = Guest::new();
    guest.send(2, &words(&[FEATURES | MQ]), &[]);
    assert!(!guest.alive());
    let (_, other) = UnixStream::pair().unwrap();
    for pairs in [0, 65] {
        let other = other.try_clone().unwrap();
        let error = VhostUser::from_socket(other.into()).open_queues(pairs);
        assert!(error.err().unwrap().to_string().contains("1 to 64"));
    }
}

#[test]
fn each_device_serves_its_pair() {
    let mut guest = Guest::running_pairs(2, 2, 2);
    guest.post_frame(3);
    guest.post_buffer(2);
    assert_eq!(received(&mut guest.device), 0);
    assert_eq!(received(&mut guest.others[0]), 1);
    assert!(transmit(&mut guest.others[0]));
    assert_eq!([0, 1, 2, 3].map(|ring| guest.used(ring)), [0, 0, 1, 1]);
    assert!(!transmit(&mut guest.device), "no buffers");
    guest.post_frame(1);
    guest.post_buffer(0);
    assert_eq!(received(&mut guest.device), 1);
    assert!(transmit(&mut guest.device));
    assert_eq!([0, 1, 2, 3].map(|ring| guest.used(ring)), [1; 4]);
    let stats = guest.others[0].stats();
    assert_eq!(
        (stats.rx_packets, stats.tx_packets, stats.connections),
        (1, 1, 0)
    );
}

#[test]
fn numbers_of_rings_that_do_not_exist_end_the_connection() {
    for (request, body) in [
        (8, pair(4, 16)),
        (10, pair(4, 0)),
        (18, pair(4, 1)),
        (11, pair(u32::MAX, 0)),
    ] {
        let mut guest = Guest::running_pairs(2, 2, 2);
        guest.send(request, &words(&[body]), &[]);
        assert!(!guest.alive(), "{request}");
    }
    let mut guest = Guest::running_pairs(2, 2, 2);
    guest.send(12, &words(&[4]), &[guest.call.as_fd()]);
    assert!(!guest.alive());
}

/// A monitor starts the pairs that the card has, and the driver uses some of them.
#[test]
fn a_device_without_a_pair_in_use_sends_by_another() {
    for (started, used) in [(1, 1), (2, 1)] {
        let mut guest = Guest::running_pairs(2, started, used);
        guest.post_buffer(0);
        assert!(transmit(&mut guest.others[0]));
        assert_eq!((guest.used(0), guest.others[0].stats().tx_packets), (1, 1));
        assert_eq!(received(&mut guest.others[0]), 0);
        // Without buffers it waits, and is woken when the first device is notified of new ones.
        assert!(!transmit(&mut guest.others[0]));
        assert_eq!(guest.others[0].stats().tx_full, 1);
        assert!(!is_readable(&guest.others[0]));
        guest.post_buffer(0);
        received(&mut guest.device);
        assert!(is_readable(&guest.others[0]));
        assert_eq!(received(&mut guest.others[0]), 0);
        assert!(!is_readable(&guest.others[0]));
        assert!(transmit(&mut guest.others[0]));
        assert_eq!(guest.used(0), 2);
    }
}

#[test]
fn a_driver_changes_the_number_of_pairs() {
    let mut guest = Guest::running_pairs(2, 2, 1);
    guest.post_buffer(2);
    guest.post_frame(3);
    received(&mut guest.others[0]);
    assert_eq!(guest.others[0].stats().rx_disabled, 1);
    guest.enable(2, true);
    guest.enable(3, true);
    guest.receive();
    assert!(is_readable(&guest.others[0]), "its pair has changed");
    assert!(transmit(&mut guest.others[0]));
    assert_eq!((guest.used(0), guest.used(2)), (0, 1));
    // Half of a pair: it is used in this direction only.
    guest.enable(2, false);
    guest.receive();
    guest.post_buffer(0);
    assert!(transmit(&mut guest.others[0]));
    assert_eq!((guest.used(0), guest.used(2)), (1, 1));
    guest.post_frame(3);
    assert_eq!(received(&mut guest.others[0]), 1);
}

/// Returns a guest of two pairs whose device accepts further monitors at a path.
fn listening(name: &str) -> (Guest, PathBuf) {
    let name = format!("fullsend-vhost-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    let mut guest = Guest::with_pairs(2);
    let mut devices = VhostUser::listen(&path).open_queues(2).unwrap();
    guest.socket = UnixStream::connect(&path).unwrap();
    (guest.others, guest.device) = (vec![devices.remove(1)], devices.remove(0));
    guest.receive();
    (guest, path)
}

impl Guest {
    /// Starts the guest of a new connection.
    fn boot(&mut self, features: u64) {
        self.posted = [0; 4];
        self.write(0, &vec![0; 4 * RING as usize]);
        self.send(2, &words(&[features | MQ]), &[]);
        self.set_memory(GUEST, MONITOR);
        (0..4).for_each(|ring| self.start(ring));
        self.receive();
    }

    /// Replaces the monitor. The first device handles the end of the connection, and then the new one.
    fn reconnect(&mut self, path: &Path) {
        self.socket = UnixStream::connect(path).unwrap();
        self.receive();
        self.receive();
    }
}

#[test]
fn the_end_of_the_connection_ends_all_pairs() {
    let (mut guest, path) = listening("ends");
    for connections in 1..=2 {
        guest.boot(FEATURES);
        guest.post_buffer(2);
        assert!(transmit(&mut guest.others[0]));
        assert_eq!(guest.used(2), 1);
        assert_eq!(guest.stats().connections, connections);
        guest.reconnect(&path);
        assert!(transmit(&mut guest.others[0]), "dropped");
        assert_eq!(guest.others[0].stats().tx_no_guest, connections);
    }
}

/// Sends a super-segment of three segments, and returns whether the device has accepted it.
fn transmit_super_segment(device: &mut VhostUser) -> bool {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 1, 84, 0, 0, 0, 0, 64, 6, 0x51, 0x7d]);
    frame.extend([10; 8]);
    frame.extend([
        0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0,
    ]);
    frame.resize(frame.len() + 300, 7);
    let mut packet = Packet::from_frame(Slice::copied_from(&frame));
    packet.parse(Link::Ethernet).unwrap();
    packet.offload.kind = GsoKind::TcpV4;
    packet.offload.gso_size = 100;
    packet.offload.checksum = Checksum::Partial;
    let mut batch = VecDeque::from([packet]);
    device.transmit(&mut batch).unwrap();
    batch.is_empty()
}

/// The second device is called when the next guest runs already.
#[test]
fn the_next_guest_does_not_receive_the_rest_of_a_super_segment() {
    const GUEST_TSO4: u64 = 1 << 7;
    let (mut guest, path) = listening("rest");
    guest.boot(FEATURES & !GUEST_TSO4);
    guest.post_buffer(2);
    assert!(transmit_super_segment(&mut guest.others[0]));
    let stats = guest.others[0].stats();
    assert_eq!((guest.used(2), stats.tx_software, stats.tx_full), (1, 1, 1));
    guest.reconnect(&path);
    guest.boot(FEATURES & !GUEST_TSO4);
    for _ in 0..3 {
        guest.post_buffer(2);
    }
    received(&mut guest.others[0]);
    assert_eq!((guest.used(2), guest.others[0].stats().tx_no_guest), (0, 2));
    // Its own packets arrive.
    assert!(transmit(&mut guest.others[0]));
    assert_eq!(guest.used(2), 1);
}

/// A reset waits for a pair that a device uses. Until then the device sees the number of the guest that it
/// sends to, although another pair has been reset.
#[test]
fn each_pair_counts_its_resets_with_its_state() {
    let pairs = Pairs::new(2).unwrap();
    let [first, second] = [0, 1].map(|index| pairs.at(index));
    let held = second.lock();
    thread::scope(|scope| {
        scope.spawn(|| pairs.reset());
        while first.lock().resets() == 0 {
            thread::yield_now();
        }
        assert_eq!(held.resets(), 0);
        drop(held);
    });
    assert_eq!(second.lock().resets(), 1);
}

/// A pair in use is used by its device, also if the monitor has enabled it before the first one.
#[test]
fn pairs_are_enabled_in_any_order() {
    let mut guest = Guest::running_pairs(2, 2, 0);
    assert!(transmit(&mut guest.device), "dropped");
    assert_eq!(guest.stats().tx_no_guest, 1);
    guest.enable(2, true);
    guest.receive();
    for _ in 0..2 {
        guest.post_buffer(2);
    }
    assert!(transmit(&mut guest.others[0]));
    assert!(transmit(&mut guest.device));
    assert_eq!((guest.used(0), guest.used(2)), (0, 2));
    // The first device waits for buffers of the second pair, and is woken by its device.
    assert!(!transmit(&mut guest.device));
    assert!(!is_readable(&guest.device));
    guest.post_buffer(2);
    received(&mut guest.others[0]);
    assert!(is_readable(&guest.device));
}

#[test]
fn a_device_whose_ring_is_invalid_sends_by_another() {
    let mut guest = Guest::running_pairs(2, 2, 2);
    // A buffer that the device may not write to.
    guest.descriptor(2, 0, (GUEST + DATA, 400, 0, 0));
    guest.post(2, 0);
    assert!(transmit(&mut guest.others[0]), "dropped");
    assert_eq!(guest.others[0].stats().ring_errors, 1);
    guest.post_buffer(0);
    assert!(transmit(&mut guest.others[0]));
    assert_eq!((guest.used(0), guest.used(2)), (1, 0));
}

#[test]
fn no_device_uses_the_memory_of_a_guest_without_the_first_device() {
    let mut guest = Guest::running_pairs(2, 2, 2);
    guest.post_buffer(2);
    guest.post_frame(3);
    drop(guest.device);
    let other = &mut guest.others[0];
    assert!(transmit(other), "dropped");
    assert_eq!((received(other), other.stats().tx_no_guest), (0, 1));
    let mut used = [0; 2];
    let index = RING * 2 + USED + 2;
    guest.memory.read_exact_at(&mut used, index).unwrap();
    assert_eq!(used, [0; 2]);
}

/// A device moves packets on one thread, while on another the monitor replaces the memory and ends.
#[test]
fn the_memory_is_replaced_while_a_device_uses_it() {
    let (mut guest, path) = listening("replaced");
    let mut other = guest.others.remove(0);
    thread::scope(|scope| {
        let uses = scope.spawn(move || {
            for _ in 0..20_000 {
                received(&mut other);
                transmit(&mut other);
            }
            assert_eq!(other.stats().ring_errors, 0);
        });
        while !uses.is_finished() {
            guest.boot(FEATURES);
            guest.post_buffer(2);
            guest.post_frame(3);
            guest.set_memory(GUEST, MONITOR);
            guest.receive();
            guest.reconnect(&path);
        }
    });
    assert_eq!(guest.stats().protocol_errors, 0);
}

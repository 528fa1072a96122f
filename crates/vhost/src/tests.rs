//! A monitor and a driver that the tests play: messages on a socket, and rings in a memfd.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use fullsend_device::Device;
use fullsend_offload::{Packet, Pool, Slice};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use crate::memory::{Memory, check_file_system, has_remote_pages};
use crate::ring::event_file;
use crate::{VhostUser, VhostUserBuilder, VhostUserStats};

mod connections;
mod memory_faults;
mod pairs;
mod rings;

const GUEST: u64 = 0x4000_0000;
const MONITOR: u64 = 0x7f12_0000_0000;
const MEMORY: u64 = 1 << 20;
const SIZE: u16 = 16;
/// Offsets of each ring's parts, and of the data.
const RING: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const DATA: u64 = 0x1_0000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// All features but indirect descriptors, which the tests do not use.
const FEATURES: u64 = 1 << 32 | 1 << 29 | 1 << 15 | 1 << 30 | 0x3983 | 7 << 54;

struct Guest {
    /// The device of the first pair.
    device: VhostUser,
    /// Those of the other pairs.
    others: Vec<VhostUser>,
    socket: UnixStream,
    memory: File,
    call: OwnedFd,
    posted: [u16; 4],
}

fn words(values: &[u64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn pair(a: u32, b: u32) -> u64 {
    u64::from(a) | u64::from(b) << 32
}

impl Guest {
    fn new() -> Self {
        Self::with_pairs(1)
    }

    fn with_pairs(pairs: usize) -> Self {
        Self::built(pairs, |builder| builder)
    }

    fn built(pairs: usize, build: impl FnOnce(VhostUserBuilder) -> VhostUserBuilder) -> Self {
        let (socket, other) = UnixStream::pair().unwrap();
        let memory = File::from(memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap());
        memory.set_len(MEMORY).unwrap();
        let builder = build(VhostUser::from_socket(other.into()));
        let mut devices = builder.open_queues(pairs).unwrap();
        Self {
            device: devices.remove(0),
            others: devices,
            socket,
            memory,
            call: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
            posted: [0; 4],
        }
    }

    /// Returns a guest whose driver runs.
    fn running(features: u64) -> Self {
        let mut guest = Self::new();
        guest.send(2, &words(&[features]), &[]);
        guest.set_memory(GUEST, MONITOR);
        for ring in 0..2 {
            guest.start(ring);
        }
        guest.receive();
        assert_eq!(guest.stats().protocol_errors, 0);
        guest
    }

    fn set_memory(&self, guest: u64, monitor: u64) {
        let table = words(&[1, guest, MEMORY, monitor, 0]);
        self.send(5, &table, &[self.memory.as_fd()]);
    }

    fn start(&self, ring: u32) {
        self.start_at(ring, 0);
    }

    /// Starts a ring whose next available chain has the index `base`.
    fn start_at(&self, ring: u32, base: u32) {
        let at = MONITOR + RING * u64::from(ring);
        self.send(8, &words(&[pair(ring, u32::from(SIZE))]), &[]);
        self.send(10, &words(&[pair(ring, base)]), &[]);
        let addresses = [pair(ring, 0), at, at + USED, at + AVAILABLE, 0];
        self.send(9, &words(&addresses), &[]);
        self.send(13, &words(&[u64::from(ring)]), &[self.call.as_fd()]);
        let kick = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        self.send(12, &words(&[u64::from(ring)]), &[kick.as_fd()]);
        self.send(18, &words(&[pair(ring, 1)]), &[]);
    }

    fn send(&self, request: u32, body: &[u8], files: &[BorrowedFd<'_>]) {
        self.send_with(request, 1, body, files);
    }

    fn send_with(&self, request: u32, flags: u32, body: &[u8], files: &[BorrowedFd<'_>]) {
        let mut message = Vec::new();
        for word in [request, flags, body.len() as u32] {
            message.extend(word.to_ne_bytes());
        }
        message.extend(body);
        self.send_bytes(&message, files);
    }

    fn send_bytes(&self, message: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); 128];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let parts = [IoSlice::new(message)];
        // The device may have closed the connection.
        let _ = sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    fn word(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        u16::from_le_bytes(bytes)
    }

    fn descriptor(&self, ring: u64, index: u16, fields: (u64, u32, u16, u16)) {
        let (address, len, flags, next) = fields;
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        let at = RING * ring + 16 * u64::from(index);
        self.write(at, &words(&[address, rest]));
    }

    /// Makes the chain that begins at `head` available.
    fn post(&mut self, ring: u64, head: u16) {
        let posted = &mut self.posted[ring as usize];
        let entry = RING * ring + AVAILABLE + 4 + 2 * u64::from(*posted % SIZE);
        *posted += 1;
        let index = *posted;
        self.write(entry, &head.to_le_bytes());
        self.write(RING * ring + AVAILABLE + 2, &index.to_le_bytes());
    }

    fn used(&self, ring: u64) -> u16 {
        self.word(RING * ring + USED + 2)
    }

    fn receive(&mut self) -> Vec<Packet> {
        let mut batch = Vec::new();
        self.device.receive(&mut batch, 64).unwrap();
        batch
    }

    fn stats(&self) -> VhostUserStats {
        self.device.stats()
    }

    fn alive(&mut self) -> bool {
        self.device.receive(&mut Vec::new(), 64).is_ok()
    }
}

#[test]
fn a_chain_becomes_a_frame() {
    let mut guest = Guest::running(FEATURES);
    let frame: Vec<u8> = (0..100).collect();
    guest.write(DATA, &[0; 12]);
    guest.write(DATA + 12, &frame[..30]);
    guest.write(DATA + 0x1000, &frame[30..]);
    guest.descriptor(1, 3, (GUEST + DATA, 42, NEXT, 7));
    guest.descriptor(1, 7, (GUEST + DATA + 0x1000, 70, 0, 0));
    guest.post(1, 3);
    let received = guest.receive();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].to_bytes(), frame);
    assert_eq!((guest.used(1), guest.stats().rx_packets), (1, 1));
}

/// Makes `count` frames of `len` bytes available, the first from entry 0 of the table.
fn post_frames(guest: &mut Guest, count: u16, len: u32) {
    guest.write(DATA, &[0; 12]);
    for index in 0..count {
        guest.descriptor(1, index, (GUEST + DATA, 12 + len, 0, 0));
        guest.post(1, index);
    }
}

#[test]
fn a_read_that_received_reports_that_there_may_be_more() {
    let mut guest = Guest::running(FEATURES);
    assert!(!guest.device.has_received());
    post_frames(&mut guest, 10, 60);
    let mut batch = Vec::new();
    for (max, received, more) in [(0, 0, true), (4, 4, true), (60, 60, true), (6, 0, false)] {
        assert_eq!(guest.device.receive(&mut batch, max).unwrap(), received);
        assert_eq!(guest.device.has_received(), more);
    }
    assert_eq!(batch.len(), 10);
    // A ring that is stopped has no more.
    post_frames(&mut guest, 2, 60);
    guest.device.receive(&mut batch, 1).unwrap();
    assert!(guest.device.has_received());
    guest.send(11, &words(&[pair(1, 0)]), &[]);
    for _ in 0..2 {
        // The first call may serve the ring before the message.
        guest.device.receive(&mut batch, 1).unwrap();
    }
    assert!(!guest.device.has_received());
}

#[test]
fn limited_memory_ends_a_call_after_its_bytes() {
    let mut guest = Guest::running(FEATURES);
    let pool = Pool::new(1 << 20);
    guest.device.limit_memory(&pool, 250);
    post_frames(&mut guest, 10, 100);
    for (count, more) in [(3, true), (3, true), (3, true), (1, true), (0, false)] {
        let mut batch = Vec::new();
        let received = guest.device.receive(&mut batch, 64).unwrap();
        assert_eq!((batch.len(), guest.device.has_received()), (count, more));
        assert_eq!(received, if more { 64 } else { count });
    }
    assert_ne!(pool.stats().kept_bytes, 0);
    // At least one frame.
    guest.device.limit_memory(&pool, 0);
    post_frames(&mut guest, 2, 100);
    assert_eq!(guest.receive().len(), 1);
}

#[test]
fn a_packet_is_merged_into_several_buffers() {
    let mut guest = Guest::running(FEATURES);
    let frame: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let packet = Packet::from_frame(Slice::copied_from(&frame));
    let mut batch = VecDeque::from([packet]);
    guest.device.transmit(&mut batch).unwrap();
    assert_eq!(
        (batch.len(), guest.stats().tx_full),
        (1, 1),
        "no buffers yet"
    );
    for index in 0..3 {
        let at = GUEST + DATA + 0x1000 * u64::from(index);
        guest.descriptor(0, index, (at, 400, WRITE, 0));
        guest.post(0, index);
    }
    guest.device.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!(guest.used(0), 3);
    assert_eq!(guest.word(DATA + 10), 3, "num_buffers");
    let mut copy = vec![0; 1012];
    for (index, part) in copy.chunks_mut(400).enumerate() {
        let at = DATA + 0x1000 * index as u64;
        guest.memory.read_exact_at(part, at).unwrap();
    }
    assert_eq!(copy[12..], frame);
}

#[test]
fn the_packets_of_a_call_cause_one_notification() {
    // A driver that wants a notification of each used chain.
    let mut guest = Guest::running(FEATURES & !(1 << 29));
    for index in 0..SIZE {
        let at = GUEST + DATA + 0x1000 * u64::from(index);
        guest.descriptor(0, index, (at, 400, WRITE, 0));
        guest.post(0, index);
    }
    let before = guest.stats().notifications;
    let packet = || Packet::from_frame(Slice::copied_from(&[0; 60]));
    let mut batch: VecDeque<_> = (0..10).map(|_| packet()).collect();
    guest.device.transmit(&mut batch).unwrap();
    assert_eq!((batch.len(), guest.used(0)), (0, 10));
    assert_eq!(guest.stats().notifications, before + 1);
    // Also those for which there is no buffer any more.
    batch.extend((0..10).map(|_| packet()));
    guest.device.transmit(&mut batch).unwrap();
    assert_eq!((batch.len(), guest.used(0)), (4, 16));
    assert_eq!(guest.stats().notifications, before + 2);
    guest.device.transmit(&mut batch).unwrap();
    assert_eq!(guest.stats().notifications, before + 2);
}

#[test]
fn malformed_chains_are_dropped_and_returned() {
    let mut guest = Guest::running(FEATURES);
    let chains = [
        // A loop, an index outside of the table, an address outside of the memory, an address that
        // overflows, a buffer to write to, and too few and too many bytes.
        (GUEST + DATA, 50, NEXT, 0),
        (GUEST + DATA, 50, NEXT, SIZE),
        (GUEST + MEMORY - 10, 50, 0, 0),
        (u64::MAX - 10, 50, 0, 0),
        (GUEST + DATA, 50, WRITE, 0),
        (GUEST + DATA, 13, 0, 0),
        (GUEST, 200_000, 0, 0),
    ];
    for (count, fields) in (1..).zip(chains) {
        guest.descriptor(1, 0, fields);
        guest.post(1, 0);
        assert!(guest.receive().is_empty(), "{fields:x?}");
        assert_eq!(
            (guest.stats().rx_malformed, guest.used(1)),
            (count, count as u16)
        );
    }
    assert_eq!(guest.stats().ring_errors, 0);
}

#[test]
fn an_invalid_ring_is_stopped_until_it_is_set_up_again() {
    let mut guest = Guest::running(FEATURES);
    guest.write(RING + AVAILABLE + 2, &1000u16.to_le_bytes());
    assert!(guest.receive().is_empty());
    assert_eq!(guest.stats().ring_errors, 1);
    assert!(guest.receive().is_empty());
    assert_eq!(guest.stats().ring_errors, 1, "it is not read any more");
    guest.descriptor(0, 0, (GUEST + MEMORY, 400, WRITE, 0));
    guest.post(0, 0);
    let packet = Packet::from_frame(Slice::copied_from(&[0; 60]));
    guest
        .device
        .transmit(&mut VecDeque::from([packet]))
        .unwrap();
    assert_eq!(
        (guest.stats().ring_errors, guest.stats().tx_no_guest),
        (2, 1)
    );
}

#[test]
fn memory_may_be_in_files_of_local_file_systems() {
    let path = std::env::temp_dir().join(format!("fullsend-vhost-memory-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    assert!(check_file_system(&file).is_ok());
    let memfd = File::from(memfd_create("guest", MemfdFlags::empty()).unwrap());
    assert!(check_file_system(&memfd).is_ok());
    for (file_system, is_remote) in [
        (0x6573_5546, true),  // FUSE
        (0x6969, true),       // NFS
        (0x0102_1994, false), // tmpfs
        (0xef53, false),      // ext4
    ] {
        assert_eq!(has_remote_pages(file_system), is_remote);
    }
}

#[test]
fn a_guest_has_a_part_of_the_address_space() {
    // The files have holes: their sizes cost nothing.
    let file = || {
        let file = File::from(memfd_create("guest", MemfdFlags::empty()).unwrap());
        file.set_len(1 << 41).unwrap();
        file
    };
    let whole = VhostUserMemoryRegion::new(0, 1 << 40, MONITOR, 0);
    assert!(Memory::map(&[whole], vec![file()], true).is_ok());
    let more = VhostUserMemoryRegion::new(1 << 40, 4096, MONITOR << 1, 0);
    let error = Memory::map(&[whole, more], vec![file(), file()], true)
        .err()
        .unwrap();
    assert!(error.to_string().contains("more than 1024 GiB"), "{error}");
    let overflow = VhostUserMemoryRegion::new(0, u64::MAX, MONITOR, 0);
    assert!(Memory::map(&[overflow, overflow], vec![file(), file()], true).is_err());
}

#[test]
fn received_descriptors_are_closed_on_exec() {
    let is_closed = |file: &File| fcntl_getfd(file).unwrap().contains(FdFlags::CLOEXEC);
    let file = File::from(memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap());
    file.set_len(MEMORY).unwrap();
    assert!(!is_closed(&file));
    let region = VhostUserMemoryRegion::new(GUEST, MEMORY, MONITOR, 0);
    let memory = Memory::map(&[region], vec![file], false).unwrap();
    let region = memory.guest().iter().next().unwrap();
    assert!(is_closed(region.file_offset().unwrap().file()));

    let event = File::from(eventfd(0, EventfdFlags::empty()).unwrap());
    assert!(!is_closed(&event));
    assert!(is_closed(&event_file(event).unwrap()));
}

#[test]
fn a_disabled_transmit_ring_is_drained() {
    let mut guest = Guest::running(FEATURES);
    guest.send(18, &words(&[pair(1, 0)]), &[]);
    assert!(guest.receive().is_empty());
    post_frames(&mut guest, 3, 60);
    assert!(guest.receive().is_empty());
    assert_eq!((guest.used(1), guest.stats().rx_disabled), (3, 3));
    guest.send(18, &words(&[pair(1, 1)]), &[]);
    assert!(guest.receive().is_empty());
    post_frames(&mut guest, 1, 60);
    assert_eq!(guest.receive().len(), 1);
    assert_eq!((guest.used(1), guest.stats().rx_disabled), (4, 3));
    // A ring that is stopped is not.
    guest.send(18, &words(&[pair(1, 0)]), &[]);
    guest.send(11, &words(&[pair(1, 0)]), &[]);
    assert!(guest.receive().is_empty());
    post_frames(&mut guest, 1, 60);
    guest.receive();
    assert_eq!(guest.used(1), 4);
}

#[test]
fn the_reset_of_the_owner_only_disables_the_rings() {
    let mut guest = Guest::running(FEATURES);
    guest.send(4, &[], &[]);
    guest.receive();
    let packet = Packet::from_frame(Slice::copied_from(&[0; 60]));
    guest
        .device
        .transmit(&mut VecDeque::from([packet]))
        .unwrap();
    assert_eq!(guest.stats().tx_no_guest, 1);
    for ring in 0..2 {
        guest.send(18, &words(&[pair(ring, 1)]), &[]);
    }
    guest.receive();
    post_frames(&mut guest, 1, 60);
    assert_eq!(guest.receive().len(), 1, "memory and rings are there");
}

/// Arbitrary bytes in the rings, between calls of the device: no panic and no endless call.
#[test]
fn random_rings() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let rounds = std::env::var("FULLSEND_ROUNDS").ok();
    let rounds = rounds.and_then(|n| n.parse().ok()).unwrap_or(200);
    for _ in 0..rounds {
        let mut guest = Guest::running(FEATURES | (random() & 1) << 28);
        for _ in 0..50 {
            for _ in 0..random() % 8 {
                let ring = RING * (random() % 2);
                let part = [0, AVAILABLE, USED][(random() % 3) as usize];
                let address = match random() % 4 {
                    0 => random(),
                    1 => GUEST + MEMORY - random() % 64,
                    _ => GUEST + DATA + random() % 0x8000,
                };
                let rest = random() & 0x000f_0007_0001_ffff;
                let at = ring + part + random() % 16 * 16;
                guest.write(at, &words(&[address, rest]));
            }
            for ring in 0..2 {
                let flags = if ring == 0 { WRITE } else { 0 };
                let head = (random() % 16) as u16;
                let len = (random() % 3000) as u32;
                guest.descriptor(
                    ring,
                    head,
                    (GUEST + DATA, len, flags | random() as u16 & 1, 5),
                );
                guest.post(ring, head);
            }
            for packet in guest.receive() {
                let mut packet = packet;
                if packet.parse(fullsend_offload::Link::Ethernet).is_ok() {
                    fullsend_offload::segment(packet, &mut Vec::new());
                }
            }
            let packet = Packet::from_frame(Slice::copied_from(&[1; 1000]));
            guest
                .device
                .transmit(&mut VecDeque::from([packet]))
                .unwrap();
            if guest.stats().ring_errors > 1 {
                break;
            }
        }
    }
}

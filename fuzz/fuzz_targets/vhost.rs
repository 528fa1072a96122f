//! Serves a vhost-user device to an arbitrary monitor and guest: messages of any content, in pieces and
//! with descriptors, rings and descriptors of any content, and ends in the middle. The card has two pairs of
//! queues, of which the monitor starts and enables any. No panic, no endless call, no fault of memory, each
//! frame has a possible length, and the next monitor is served.
#![no_main]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use arbitrary::Arbitrary;
use fullsend_offload::{Checksum, GsoKind, Link, Packet, Slice, segment};
use fullsend_vhost::{Device, VhostUser};
use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// The guest's memory: its addresses in the guest and in the monitor, and its length.
const GUEST: u64 = 0x4000_0000;
const MONITOR: u64 = 0x7f12_0000_0000;
const MEMORY: u64 = 1 << 18;
/// Pairs of queues of the card, and their rings.
const PAIRS: usize = 2;
const RINGS: u8 = 2 * PAIRS as u8;
/// The rings of a regular driver: entries, and offsets in the memory.
const ENTRIES: u16 = 16;
const RING: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const DATA: u64 = 0x1_0000;

/// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// What the peers of the device do.
#[derive(Arbitrary, Debug)]
enum Step {
    /// The monitor sets up memory and rings as it should, with some of the features.
    SetUp { features: u64 },
    /// It sends a message.
    Message {
        request: u8,
        flags: u8,
        body: Vec<Word>,
        files: Vec<Descriptor>,
    },
    /// It sends any bytes.
    Bytes(Vec<u8>),
    /// It ends, and the next one connects.
    End,
    /// The file of the memory gets another length.
    Resize(u32),
    /// The driver writes a descriptor.
    Describe {
        ring: u8,
        index: u8,
        address: Word,
        len: u32,
        flags: u16,
        next: u8,
    },
    /// It makes a regular chain available.
    Chain {
        ring: u8,
        parts: u8,
        len: u16,
        header: [u8; 12],
    },
    /// It makes a chain available.
    Post { ring: u8, head: u16 },
    /// It writes anywhere.
    Write { at: u16, bytes: [u8; 8] },
    /// It uses another number of pairs, or half of one.
    Enable { ring: u8, enable: bool },
    /// The stack receives.
    Receive { device: bool, max: u8 },
    /// The stack sends.
    Transmit {
        device: bool,
        len: u16,
        gso_size: u16,
        kind: u8,
    },
}

/// A number in a message or descriptor.
#[derive(Arbitrary, Debug)]
enum Word {
    Any(u64),
    Small(u8),
    Guest(u32),
    Monitor(u32),
}

impl Word {
    fn value(&self) -> u64 {
        match *self {
            Self::Any(value) => value,
            Self::Small(value) => value.into(),
            Self::Guest(offset) => GUEST + u64::from(offset) % (2 * MEMORY),
            Self::Monitor(offset) => MONITOR + u64::from(offset) % (2 * MEMORY),
        }
    }
}

/// A descriptor in a message.
#[derive(Arbitrary, Debug)]
enum Descriptor {
    Memory,
    Event,
    Socket,
}

fuzz_target!(|steps: Vec<Step>| {
    let mut peers = Peers::new();
    for step in steps.iter().take(64) {
        peers.take(step);
        let received = peers.devices.iter().map(|device| device.stats().rx_packets);
        assert_eq!(received.sum::<u64>(), peers.received);
    }
    // Whatever has happened, the next monitor and guest are served.
    peers.memory = memory();
    peers.end();
    peers.set_up(u64::MAX);
    for (device, rings) in [(0, [0, 1]), (1, [2, 3])] {
        peers.receive(device, 64);
        peers.chain(rings[1], 2, 100, &[0; 12]);
        let before = peers.received;
        peers.receive(device, 64);
        let stats = peers.devices[device].stats();
        assert_eq!(peers.received, before + 1, "{stats:?}");
        peers.chain(rings[0], 1, 2000, &[0; 12]);
        peers.transmit(device, (60, 0, 0));
        let used = peers.word(RING * u64::from(rings[0]) + USED + 2);
        assert_eq!(used, 1, "{stats:?}");
    }
});

fn memory() -> File {
    let memory = File::from(memfd_create("guest", MemfdFlags::ALLOW_SEALING).expect("a memfd"));
    memory.set_len(MEMORY).expect("an empty file");
    memory
}

/// The devices of the pairs, and their peers.
struct Peers {
    devices: Vec<VhostUser>,
    address: SocketAddr,
    monitor: UnixStream,
    memory: File,
    /// Chains that the driver has made available.
    posted: [u16; RINGS as usize],
    /// Frames received.
    received: u64,
}

impl Peers {
    fn new() -> Self {
        let name = format!("fullsend-fuzz-vhost-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("a short name");
        let listener = UnixListener::bind_addr(&address).expect("the name is free");
        let monitor = connect(&address);
        Self {
            devices: VhostUser::from_listener(listener)
                .open_queues(PAIRS)
                .expect("two devices"),
            address,
            monitor,
            memory: memory(),
            posted: [0; RINGS as usize],
            received: 0,
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::SetUp { features } => self.set_up(*features),
            Step::Message {
                request,
                flags,
                body,
                files,
            } => {
                let body: Vec<_> = body.iter().take(40).map(Word::value).collect();
                self.send_with(u32::from(*request), u32::from(*flags), &body, files);
            }
            // Fails if the device has closed the connection.
            Step::Bytes(bytes) => drop(self.monitor.write(bytes)),
            Step::End => self.end(),
            // Fails if the device has sealed the file.
            Step::Resize(len) => drop(self.memory.set_len(u64::from(*len) % (2 * MEMORY))),
            Step::Describe {
                ring,
                index,
                address,
                len,
                flags,
                next,
            } => {
                let fields = (address.value(), *len, *flags, u16::from(*next));
                self.describe(*ring, u16::from(*index), fields);
            }
            Step::Chain {
                ring,
                parts,
                len,
                header,
            } => self.chain(*ring, *parts, *len, header),
            Step::Post { ring, head } => self.post(*ring, *head),
            Step::Write { at, bytes } => self.write(u64::from(*at), bytes),
            Step::Enable { ring, enable } => {
                let body = u64::from(*ring % (RINGS + 2)) | u64::from(*enable) << 32;
                self.send(18, &[body], &[]);
            }
            Step::Receive { device, max } => {
                self.receive(usize::from(*device), usize::from(*max));
            }
            Step::Transmit {
                device,
                len,
                gso_size,
                kind,
            } => self.transmit(usize::from(*device), (*len, *gso_size, *kind)),
        }
        // Replies, so that the device can send more.
        let _ = self.monitor.read(&mut [0; 4096]);
    }

    /// Replaces the monitor.
    fn end(&mut self) {
        let before = self.devices[0].stats().connections;
        self.monitor = connect(&self.address);
        // Each call handles a bounded number of the last monitor's messages.
        for _ in 0..1 << 12 {
            if self.devices[0].stats().connections > before {
                return;
            }
            self.receive(0, 0);
        }
        // Half a message with the monitor's own socket keeps the connection open for a second.
        let time = Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        while self.devices[0].stats().connections == before {
            let file = self.devices[0].fd().expect("a file");
            let ready = poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&time));
            if ready.expect("a count") == 0 {
                break;
            }
            self.receive(0, 0);
        }
        if self.devices[0].stats().connections > before {
            return;
        }
        panic!("the next monitor is not served");
    }

    fn set_up(&mut self, features: u64) {
        const OFFERED: u64 = 1 << 32 | 3 << 28 | 1 << 22 | 1 << 15 | 1 << 30 | 0x3b8b | 7 << 54;
        self.posted = [0; RINGS as usize];
        self.write(0, &vec![0; RINGS as usize * RING as usize]);
        let features = (features | 1 << 30) & OFFERED;
        self.send(2, &[features], &[]);
        self.send(5, &[1, GUEST, MEMORY, MONITOR, 0], &[Descriptor::Memory]);
        for ring in 0..u64::from(RINGS) {
            let at = MONITOR + RING * ring;
            let with = |value: u64| ring | value << 32;
            self.send(8, &[with(ENTRIES.into())], &[]);
            self.send(10, &[with(0)], &[]);
            self.send(9, &[ring, at, at + USED, at + AVAILABLE, 0], &[]);
            self.send(13, &[ring], &[Descriptor::Event]);
            self.send(12, &[ring], &[Descriptor::Event]);
            self.send(18, &[with(1)], &[]);
        }
        let _ = self.devices[0].receive(&mut Vec::new(), 0);
    }

    fn send(&mut self, request: u32, body: &[u64], files: &[Descriptor]) {
        self.send_with(request, 1, body, files);
    }

    fn send_with(&mut self, request: u32, flags: u32, body: &[u64], files: &[Descriptor]) {
        let mut message = Vec::new();
        for word in [request, flags, 8 * body.len() as u32] {
            message.extend(word.to_ne_bytes());
        }
        message.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        let event = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        let files: Vec<BorrowedFd<'_>> = files
            .iter()
            .take(8)
            .map(|file| match file {
                Descriptor::Memory => self.memory.as_fd(),
                Descriptor::Event => event.as_fd(),
                Descriptor::Socket => self.monitor.as_fd(),
            })
            .collect();
        let mut space = [MaybeUninit::uninit(); 128];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        }
        // Fails if the device has closed the connection.
        let parts = [IoSlice::new(&message)];
        let _ = sendmsg(&self.monitor, &parts, &mut control, SendFlags::NOSIGNAL);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory
            .write_all_at(bytes, at)
            .expect("a memfd can be written");
    }

    fn word(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.memory
            .read_exact_at(&mut bytes, at)
            .expect("the file has its length");
        u16::from_le_bytes(bytes)
    }

    fn describe(&self, ring: u8, index: u16, (address, len, flags, next): (u64, u32, u16, u16)) {
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        let at = RING * u64::from(ring % RINGS) + 16 * u64::from(index);
        self.write(at, &[address, rest].map(u64::to_le_bytes).concat());
    }

    fn post(&mut self, ring: u8, head: u16) {
        let ring = ring % RINGS;
        let posted = &mut self.posted[usize::from(ring)];
        let at = RING * u64::from(ring) + AVAILABLE;
        let entry = at + 4 + 2 * u64::from(*posted % ENTRIES);
        *posted = posted.wrapping_add(1);
        let index = *posted;
        self.write(entry, &head.to_le_bytes());
        self.write(at + 2, &index.to_le_bytes());
    }

    /// Makes a chain of one to four parts available, with a header at its beginning.
    fn chain(&mut self, ring: u8, parts: u8, len: u16, header: &[u8; 12]) {
        let is_transmit = ring % 2 == 1;
        let direction = if is_transmit { 0 } else { WRITE };
        let parts = u16::from(parts) % 4 + 1;
        for part in 0..parts {
            let next = if part + 1 < parts { NEXT } else { 0 };
            let at = GUEST + DATA + 0x4000 * u64::from(part);
            let len = u32::from(len) % 0x4000;
            self.describe(ring, part, (at, len, direction | next, part + 1));
        }
        if is_transmit {
            self.write(DATA, header);
        }
        self.post(ring, 0);
    }

    fn receive(&mut self, device: usize, max: usize) {
        let mut frames = Vec::new();
        let received = self.devices[device]
            .receive(&mut frames, max)
            .expect("it does not end");
        assert!(received <= max && frames.len() <= received);
        self.received += frames.len() as u64;
        for mut frame in frames {
            assert!((14..=65_593).contains(&frame.len()));
            if frame.parse(Link::Ethernet).is_ok() {
                segment(frame, &mut Vec::new());
            }
        }
    }

    fn transmit(&mut self, device: usize, (len, gso_size, kind): (u16, u16, u8)) {
        let frame = frame(usize::from(len), kind & 1 != 0);
        let mut packet = Packet::from_frame(Slice::copied_from(&frame));
        packet.parse(Link::Ethernet).expect("a whole header");
        packet.offload.gso_size = gso_size;
        packet.offload.kind = match kind % 4 {
            _ if gso_size == 0 => GsoKind::None,
            1 | 3 => GsoKind::TcpV6,
            _ => GsoKind::TcpV4,
        };
        if kind & 4 != 0 {
            packet.offload.checksum = Checksum::Partial;
        }
        // Packets may wait for receive buffers.
        let mut batch = VecDeque::from([packet]);
        self.devices[device]
            .transmit(&mut batch)
            .expect("it does not end");
    }
}

/// Returns a frame with a TCP segment of `len` bytes, over IPv4 or IPv6.
fn frame(len: usize, v6: bool) -> Vec<u8> {
    let mut frame = vec![2; 12];
    if v6 {
        let length = (20 + len.min(65_000)) as u16;
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([6, 64]);
        frame.extend([0xfd; 32]);
    } else {
        let length = (40 + len.min(65_000)) as u16;
        frame.extend([8, 0, 0x45, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        frame.extend([10; 8]);
        let words = frame[14..]
            .chunks(2)
            .map(|b| u32::from(u16::from_be_bytes([b[0], b[1]])));
        let sum: u32 = words.sum();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
    frame.extend([
        0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0,
    ]);
    frame.resize(frame.len() + len.min(65_000), 7);
    frame
}

fn connect(address: &SocketAddr) -> UnixStream {
    let socket = UnixStream::connect_addr(address).expect("the device listens");
    socket.set_nonblocking(true).expect("the socket is open");
    socket
}

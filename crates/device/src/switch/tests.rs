use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use fullsend_offload::{Checksum, GsoKind, Offload, Slice};
use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::tcp::TcpRepr;
use parking_lot::Mutex;

use super::*;
use crate::{PairConfig, PairEnd, pair, test_packet};

const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GATEWAY_IP: [u8; 4] = [10, 0, 2, 2];

/// A guest's end, which has a file, and whose offloads are chosen.
struct GuestDevice {
    end: PairEnd,
    caps: Caps,
    wake: Arc<std::os::fd::OwnedFd>,
    /// Packets that it accepts.
    room: Arc<Mutex<usize>>,
    /// Calls of `transmit`.
    calls: Arc<AtomicUsize>,
}

impl Device for GuestDevice {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut room = self.room.lock();
        let count = batch.len().min(*room);
        *room -= count;
        let mut accepted = batch.drain(..count).collect();
        self.end.transmit(&mut accepted)
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        self.end.receive(batch, max)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }
}

/// The guest: what it sends and has received.
struct Guest {
    end: PairEnd,
    wake: Arc<std::os::fd::OwnedFd>,
    room: Arc<Mutex<usize>>,
    calls: Arc<AtomicUsize>,
    port: PortId,
    mac: [u8; 6],
    ip: [u8; 4],
}

impl Guest {
    fn send(&mut self, packet: Packet) {
        self.end.transmit(&mut VecDeque::from([packet])).unwrap();
        crate::frames::wake(self.wake.as_fd());
    }

    /// Reports an event of its device, e.g. room.
    fn wake(&self) {
        crate::frames::wake(self.wake.as_fd());
    }

    fn received(&mut self) -> Vec<Packet> {
        let mut all = Vec::new();
        while self.end.receive(&mut all, 64).unwrap() > 0 {}
        all
    }

    /// Sends a datagram from its own addresses.
    fn send_to(&mut self, dst: [u8; 6], ip: [u8; 4]) {
        self.send(datagram((self.mac, dst), (self.ip, ip)));
    }
}

fn datagram((src, dst): ([u8; 6], [u8; 6]), (from, to): ([u8; 4], [u8; 4])) -> Packet {
    let udp = [0, 9, 0, 9, 0, 12, 0, 0, 1, 2, 3, 4];
    let mut ip = [
        0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    ip[12..16].copy_from_slice(&from);
    ip[16..].copy_from_slice(&to);
    let checksum = sum(&ip).checksum();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let frame = [&dst[..], &src, &[8, 0], &ip, &udp].concat();
    Packet::from_frame(Slice::copied_from(&frame))
}

/// The packet as the stack sends it.
fn sent(mut packet: Packet) -> Packet {
    packet.parse(Link::Ethernet).unwrap();
    packet
}

struct Rig {
    switch: Switch,
    handle: SwitchHandle,
    events: Arc<Mutex<Vec<PortEvent>>>,
}

impl Rig {
    fn new(is_joined: bool) -> Self {
        let events = Arc::<Mutex<Vec<_>>>::default();
        let reported = events.clone();
        let config = SwitchConfig {
            mtu: 1500,
            is_joined,
            mac: GATEWAY,
            addresses: BTreeSet::from([IpAddr::from(GATEWAY_IP)]),
        };
        let switch = Switch::new(config).unwrap();
        Self {
            handle: switch.handle(),
            switch: switch.on_port(move |event| reported.lock().push(event)),
            events,
        }
    }

    fn guest_with(&mut self, n: u8, caps: Caps) -> Guest {
        let mut guest = self.silent_guest_with(n, caps);
        guest.send_to(GATEWAY, GATEWAY_IP);
        assert_eq!(self.receive().len(), 1);
        guest
    }

    /// Adds a guest that has sent nothing.
    fn silent_guest_with(&mut self, n: u8, caps: Caps) -> Guest {
        let (end, other) = pair(PairConfig {
            link: Link::Ethernet,
            queue: 100_000,
            ..PairConfig::default()
        });
        let wake = Arc::new(crate::frames::wake_file().unwrap());
        let room = Arc::new(Mutex::new(usize::MAX));
        let calls = Arc::<AtomicUsize>::default();
        let device = GuestDevice {
            end: other,
            caps,
            wake: wake.clone(),
            room: room.clone(),
            calls: calls.clone(),
        };
        let port = self.handle.attach(Box::new(device)).unwrap();
        Guest {
            end,
            wake,
            room,
            calls,
            port,
            mac: [2, 0, 0, 0, 1, n],
            ip: [10, 0, 2, 10 + n],
        }
    }

    fn guest(&mut self, n: u8) -> Guest {
        self.guest_with(n, Caps::offloading(Link::Ethernet, 1500))
    }

    /// Returns what the stack receives.
    fn receive(&mut self) -> Vec<Packet> {
        let mut all = Vec::new();
        while self.switch.receive(&mut all, 64).unwrap() >= 64 {}
        all
    }

    fn transmit(&mut self, packet: Packet) {
        let mut batch = VecDeque::from([sent(packet)]);
        self.switch.transmit(&mut batch).unwrap();
        assert!(batch.is_empty());
    }
}

#[test]
fn joined_guests_reach_each_other_and_known_addresses_one_port_alone() {
    let mut rig = Rig::new(true);
    let (mut one, mut two, mut three) = (rig.guest(1), rig.guest(2), rig.guest(3));
    one.send_to(two.mac, two.ip);
    assert!(rig.receive().is_empty());
    assert_eq!(two.received()[0].to_bytes().len(), 46);
    assert!(one.received().is_empty() && three.received().is_empty());
    // To all, and to an address that none has.
    one.send_to([0xff; 6], [10, 0, 2, 255]);
    assert_eq!(rig.receive().len(), 1);
    one.send_to([2, 0, 0, 0, 9, 9], [10, 0, 2, 99]);
    assert!(rig.receive().is_empty());
    assert_eq!((one.received().len(), two.received().len()), (0, 2));
    assert_eq!(three.received().len(), 2);
    // A bridge keeps frames to the group of its link.
    one.send_to([0x01, 0x80, 0xc2, 0, 0, 0x0e], [10, 0, 2, 255]);
    rig.receive();
    assert!(two.received().is_empty());
    let stats = rig.handle.stats();
    assert_eq!((stats.forwarded, stats.flooded, stats.refused), (5, 1, 0));
    // The stack's packets.
    rig.transmit(datagram((GATEWAY, one.mac), (GATEWAY_IP, one.ip)));
    assert_eq!((one.received().len(), two.received().len()), (1, 0));
    rig.transmit(datagram((GATEWAY, [0xff; 6]), (GATEWAY_IP, [255; 4])));
    for guest in [&mut one, &mut two, &mut three] {
        assert_eq!(guest.received().len(), 1);
    }
}

#[test]
fn guests_that_are_not_joined_reach_the_stack_alone() {
    let mut rig = Rig::new(false);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    one.send_to(two.mac, two.ip);
    one.send_to([2, 0, 0, 0, 9, 9], two.ip);
    assert!(rig.receive().is_empty());
    one.send_to([0xff; 6], two.ip);
    assert_eq!(rig.receive().len(), 1);
    assert!(two.received().is_empty());
    assert_eq!(rig.handle.stats().unreachable, 2);
    // A packet to an unknown guest goes to none.
    rig.transmit(datagram(
        (GATEWAY, [2, 0, 0, 0, 9, 9]),
        (GATEWAY_IP, one.ip),
    ));
    rig.transmit(datagram((GATEWAY, two.mac), (GATEWAY_IP, two.ip)));
    assert_eq!((one.received().len(), two.received().len()), (0, 1));
}

#[test]
fn a_guest_that_claims_the_addresses_of_others_is_refused() {
    let mut rig = Rig::new(true);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    let gateway_ip = IpAddr::from(Ipv4Addr::from(GATEWAY_IP));
    for (mac, ip) in [
        (GATEWAY, one.ip),
        (two.mac, one.ip),
        (one.mac, GATEWAY_IP),
        (one.mac, two.ip),
        ([3; 6], one.ip),
    ] {
        one.send(datagram((mac, [0xff; 6]), (ip, [255; 4])));
    }
    assert!(rig.receive().is_empty() && two.received().is_empty());
    assert_eq!(rig.handle.stats().refused, 5);
    assert_eq!(rig.handle.port_of_mac(two.mac), Some(two.port));
    assert_eq!(rig.handle.port_of_address(gateway_ip), None);
    // A flood of other addresses moves neither the neighbour's nor the gateway's.
    for n in 0..10_000_u32 {
        let [_, a, b, c] = n.to_be_bytes();
        one.send(datagram(
            ([6, 0, 0, a, b, c], GATEWAY),
            ([11, a, b, c], GATEWAY_IP),
        ));
        if n % 1000 == 0 {
            rig.receive();
        }
    }
    rig.receive();
    two.send_to(one.mac, one.ip);
    rig.receive();
    assert_eq!(one.received().len(), 1);
    rig.transmit(datagram((GATEWAY, two.mac), (GATEWAY_IP, two.ip)));
    assert_eq!((one.received().len(), two.received().len()), (0, 1));
}

#[test]
fn a_slow_guest_loses_its_own_packets() {
    let mut rig = Rig::new(true);
    let (mut one, mut two, mut slow) = (rig.guest(1), rig.guest(2), rig.guest(3));
    *slow.room.lock() = 10;
    for _ in 0..5000 {
        one.send_to(slow.mac, slow.ip);
        one.send_to(two.mac, two.ip);
    }
    rig.receive();
    assert_eq!(two.received().len(), 5000);
    assert_eq!(slow.received().len(), 10);
    let dropped = rig.handle.stats().dropped;
    assert!((2900..=2950).contains(&dropped), "{dropped}");
    // It goes on when it has room.
    *slow.room.lock() = usize::MAX;
    crate::frames::wake(slow.wake.as_fd());
    rig.receive();
    assert_eq!(slow.received().len() as u64, 4990 - dropped);
}

#[test]
fn a_device_without_room_is_left_alone_until_it_reports_room() {
    let mut rig = Rig::new(true);
    let (mut one, mut slow) = (rig.guest(1), rig.guest(2));
    *slow.room.lock() = 0;
    one.send_to(slow.mac, slow.ip);
    rig.receive();
    let (begin, before) = (now(), slow.calls.load(Ordering::Relaxed));
    for _ in 0..1000 {
        one.send_to(GATEWAY, GATEWAY_IP);
        rig.receive();
    }
    let calls = slow.calls.load(Ordering::Relaxed) - before;
    let periods = begin.elapsed().as_millis() / Duration::from_millis(5).as_millis();
    // The file is writable when its events of room are switched on, which is one more.
    assert!(calls as u128 <= periods + 2, "{calls} calls in {periods}");
    *slow.room.lock() = 1;
    crate::frames::wake(slow.wake.as_fd());
    rig.receive();
    assert_eq!(slow.received().len(), 1);
}

#[test]
fn a_probed_address_stays_that_of_the_guest_that_asks_for_it() {
    let mut rig = Rig::new(true);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    let arp = |guest: &Guest, sender: [u8; 4], target: [u8; 4]| {
        let mut frame = [&[0xff; 6][..], &guest.mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame.extend(guest.mac);
        frame.extend(sender);
        frame.extend([0; 6]);
        frame.extend(target);
        Packet::from_frame(Slice::copied_from(&frame))
    };
    let wanted = [10, 0, 2, 77];
    one.send(arp(&one, [0; 4], wanted));
    rig.receive();
    assert_eq!(two.received().len(), 1);
    // The other guest neither has the address nor asks for it, so that the first one takes it.
    two.send(arp(&two, wanted, one.ip));
    two.send(arp(&two, [0; 4], wanted));
    rig.receive();
    assert!(one.received().is_empty());
    assert_eq!(rig.handle.port_of_address(wanted.into()), Some(one.port));
    assert_eq!(rig.handle.stats().refused, 2);
    // The gateway receives a probe for its own address, which it answers.
    two.send(arp(&two, [0; 4], GATEWAY_IP));
    assert_eq!(rig.receive().len(), 1);
}

#[test]
fn frames_that_the_link_does_not_allow_reach_no_guest() {
    let mut rig = Rig::new(true);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    // Declared as TCP over IPv6.
    let mut packet = super_segment(&one, &two, Checksum::Valid);
    packet.offload.kind = GsoKind::TcpV6;
    one.send(packet);
    let mut packet = super_segment(&one, &two, Checksum::Valid);
    packet.offload.kind = GsoKind::Udp;
    one.send(packet);
    // Longer than the MTU.
    let mut packet = super_segment(&one, &two, Checksum::Valid);
    packet.offload.kind = GsoKind::None;
    one.send(packet);
    let long = [&two.mac[..], &one.mac, &[0x88, 0xcc], &[0; 1501]].concat();
    one.send(Packet::from_frame(Slice::copied_from(&long)));
    rig.receive();
    assert!(two.received().is_empty());
    assert_eq!(rig.handle.stats().malformed, 4);
    let fits = &long[..long.len() - 1];
    one.send(Packet::from_frame(Slice::copied_from(fits)));
    // Segments are made shorter.
    let mut packet = super_segment(&one, &two, Checksum::Valid);
    packet.offload.gso_size = 1480;
    one.send(packet);
    rig.receive();
    let received = two.received();
    assert_eq!(received.len(), 2);
    assert_eq!(received[1].offload.gso_size, 1460);
}

#[test]
fn a_flooded_super_segment_has_the_form_that_each_guest_accepts() {
    let mut rig = Rig::new(true);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    let plain = Caps::plain(Link::Ethernet, 1500);
    let mut others = [rig.guest_with(3, plain), rig.guest_with(4, plain)];
    let unknown = Guest {
        mac: [2, 0, 0, 0, 9, 9],
        ..rig.guest(5)
    };
    let packet = super_segment(&one, &unknown, Checksum::Partial);
    one.send(packet);
    rig.receive();
    assert_eq!(two.received()[0].payload.len(), 3000);
    for other in &mut others {
        let segments = other.received();
        let payloads: Vec<_> = segments.iter().map(|packet| packet.payload.len()).collect();
        assert_eq!(payloads, [1000; 3]);
    }
    assert_eq!(rig.handle.stats().dropped, 0);
}

#[test]
fn a_guest_is_known_by_its_first_address_also_if_its_first_frame_was_refused() {
    let mut rig = Rig::new(true);
    let mut guest = rig.guest(1);
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    let link = crate::FrameLink::connected(here.into(), crate::Framing::Qemu, 1500).unwrap();
    let port = rig.handle.attach(Box::new(link)).unwrap();
    let mut peer = crate::FrameLink::connected(there.into(), crate::Framing::Qemu, 1500).unwrap();
    let mut send = |peer: &mut crate::FrameLink, mac, ip| {
        let frame = sent(datagram((mac, GATEWAY), (ip, GATEWAY_IP)));
        peer.transmit(&mut VecDeque::from([frame])).unwrap();
        rig.receive();
    };
    let (first, second) = ([2, 0, 0, 0, 1, 9], [2, 0, 0, 0, 1, 10]);
    send(&mut peer, first, guest.ip);
    send(&mut peer, second, [10, 0, 2, 9]);
    drop(peer);
    rig.receive();
    let mac = first;
    let ended = PortEvent::Disconnected {
        port,
        mac: Some(mac),
    };
    assert_eq!(
        rig.events.lock()[1..],
        [PortEvent::Connected { port, mac }, ended]
    );
    guest.received();
}

#[test]
fn packets_to_the_only_guest_wait_in_the_stack() {
    let mut rig = Rig::new(true);
    let mut guest = rig.guest(1);
    *guest.room.lock() = 10;
    let packet = sent(datagram((GATEWAY, guest.mac), (GATEWAY_IP, guest.ip)));
    let mut batch: VecDeque<_> = vec![packet; 1000].into();
    rig.switch.transmit(&mut batch).unwrap();
    assert!((900..990).contains(&batch.len()), "{}", batch.len());
    *guest.room.lock() = usize::MAX;
    rig.switch.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!(guest.received().len(), 1000);
    assert_eq!(rig.handle.stats().dropped, 0);
}

/// Returns a super-segment of 3000 bytes in the form that a device receives.
fn super_segment(from: &Guest, to: &Guest, checksum: Checksum) -> Packet {
    let addresses = (IpAddr::from(from.ip), IpAddr::from(to.ip));
    let packet = test_packet::tcp(addresses, &TcpRepr::default(), &[7; 3000], 1000);
    let mut frame = [&to.mac[..], &from.mac, &[8, 0]].concat();
    packet.append_to(&mut frame);
    let mut packet = Packet::from_frame(Slice::copied_from(&frame));
    packet.offload = Offload {
        kind: GsoKind::TcpV4,
        gso_size: 1000,
        checksum,
        ..Offload::default()
    };
    packet
}

#[test]
fn super_segments_pass_whole_where_the_receiver_accepts_them() {
    for checksum in [Checksum::Partial, Checksum::Valid] {
        let mut rig = Rig::new(true);
        let (mut one, mut two) = (rig.guest(1), rig.guest(2));
        let mut plain = rig.guest_with(3, Caps::plain(Link::Ethernet, 1500));
        let packet = super_segment(&one, &two, checksum);
        one.send(packet);
        let packet = super_segment(&one, &plain, checksum);
        one.send(packet);
        rig.receive();
        let whole = two.received();
        assert_eq!(whole.len(), 1);
        let (offload, payload) = (whole[0].offload, whole[0].payload.len());
        assert_eq!(
            (offload.kind, offload.gso_size, payload),
            (GsoKind::TcpV4, 1000, 3000)
        );
        assert_eq!(offload.checksum, Checksum::Partial);
        let segments = plain.received();
        assert_eq!(segments.len(), 3);
        for segment in &segments {
            let tcp = segment.to_bytes()[34..].to_vec();
            let (src, dst) = (one.ip.into(), plain.ip.into());
            let pseudo = Sum::pseudo_v4(src, dst, 6, tcp.len() as u32);
            assert!((pseudo + sum(&tcp)).is_valid());
            assert_eq!(segment.payload.len(), 1000);
        }
    }
}

#[test]
fn the_queues_of_guests_that_do_not_read_share_the_memory() {
    let mut rig = Rig::new(true);
    let mut guests: Vec<_> = (1..=9).map(|n| rig.guest(n)).collect();
    rig.switch.limit_memory(&Pool::new(0), 2 << 20);
    for guest in &guests {
        *guest.room.lock() = 0;
    }
    let packet = |guest: &Guest| {
        let addresses = (IpAddr::from(GATEWAY_IP), IpAddr::from(guest.ip));
        let packet = test_packet::tcp(addresses, &TcpRepr::default(), &vec![7; 30_000], 1000);
        let mut frame = [&guest.mac[..], &GATEWAY, &[8, 0]].concat();
        packet.append_to(&mut frame);
        let mut packet = Packet::from_frame(Slice::copied_from(&frame));
        packet.offload = Offload {
            kind: GsoKind::TcpV4,
            gso_size: 1000,
            checksum: Checksum::Partial,
            ..Offload::default()
        };
        packet
    };
    for _ in 0..100 {
        for guest in &guests {
            rig.transmit(packet(guest));
        }
    }
    // A tenth of the half for each: 3 packets.
    assert_eq!(rig.handle.stats().dropped, 9 * 97);
    // One that reads gets more than its queue holds, also in a batch.
    *guests[0].room.lock() = usize::MAX;
    guests[0].wake();
    assert!(rig.receive().is_empty());
    assert_eq!(guests[0].received().len(), 3);
    let mut batch: VecDeque<_> = (0..100).map(|_| sent(packet(&guests[0]))).collect();
    rig.switch.transmit(&mut batch).unwrap();
    assert_eq!(guests[0].received().len(), 100);
    assert_eq!(rig.handle.stats().dropped, 9 * 97);
    // A share below the size of a packet holds one.
    rig.switch.limit_memory(&Pool::new(0), 1 << 10);
    *guests[0].room.lock() = 0;
    for _ in 0..2 {
        rig.transmit(packet(&guests[0]));
    }
    assert_eq!(rig.handle.stats().dropped, 9 * 97 + 1);
}

#[test]
fn packets_of_the_only_guest_wait_in_the_stack_also_with_a_small_queue() {
    let mut rig = Rig::new(true);
    let mut guest = rig.guest(1);
    rig.switch.limit_memory(&Pool::new(0), 4 << 10);
    *guest.room.lock() = 3;
    let packet = datagram((GATEWAY, guest.mac), (GATEWAY_IP, guest.ip));
    let mut batch: VecDeque<_> = (0..10).map(|_| sent(packet.clone())).collect();
    rig.switch.transmit(&mut batch).unwrap();
    assert_eq!((guest.received().len(), rig.handle.stats().dropped), (3, 0));
    assert!(!batch.is_empty());
    *guest.room.lock() = usize::MAX;
    rig.switch.transmit(&mut batch).unwrap();
    assert_eq!((guest.received().len(), rig.handle.stats().dropped), (7, 0));
}

#[test]
fn no_other_guest_continues_the_connections_of_one_that_has_ended() {
    let mut rig = Rig::new(true);
    let mut attacker = rig.guest(2);
    let mac = [2, 0, 0, 0, 1, 9];
    let ip = [10, 0, 2, 19];
    let connect = |rig: &mut Rig| {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let ends = [here, there].map(|end| {
            crate::FrameLink::connected(end.into(), crate::Framing::Qemu, 1500).unwrap()
        });
        let [link, mut peer] = ends;
        rig.handle.attach(Box::new(link)).unwrap();
        let frame = sent(datagram((mac, GATEWAY), (ip, GATEWAY_IP)));
        peer.transmit(&mut VecDeque::from([frame])).unwrap();
        assert_eq!(rig.receive().len(), 1);
        peer
    };
    drop(connect(&mut rig));
    assert!(rig.receive().is_empty());
    // The gateway's packets of its connections, and those of other guests, go to no other guest.
    rig.transmit(datagram((GATEWAY, mac), (GATEWAY_IP, ip)));
    assert!(attacker.received().is_empty());
    let mut other = rig.guest(3);
    other.send_to(mac, ip);
    assert!(rig.receive().is_empty() && attacker.received().is_empty());
    // A guest that has sent nothing may be the same one.
    let mut silent = rig.silent_guest_with(4, Caps::offloading(Link::Ethernet, 1500));
    assert!(rig.receive().is_empty());
    rig.transmit(datagram((GATEWAY, mac), (GATEWAY_IP, ip)));
    assert_eq!((silent.received().len(), attacker.received().len()), (1, 0));
    // Another guest has neither address.
    for (mac, ip) in [(mac, attacker.ip), (attacker.mac, ip)] {
        attacker.send(datagram((mac, GATEWAY), (ip, GATEWAY_IP)));
        assert!(rig.receive().is_empty());
    }
    assert_eq!(rig.handle.stats().refused, 2);
    // The guest returns, and has both.
    let mut peer = connect(&mut rig);
    rig.transmit(datagram((GATEWAY, mac), (GATEWAY_IP, ip)));
    let mut received = Vec::new();
    peer.receive(&mut received, 64).unwrap();
    assert_eq!((received.len(), attacker.received().len()), (1, 0));
}

#[test]
fn a_port_ends_with_its_device_and_is_reported() {
    let mut rig = Rig::new(true);
    let guest = rig.guest(1);
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    let link = crate::FrameLink::connected(here.into(), crate::Framing::Qemu, 1500).unwrap();
    let port = rig.handle.attach(Box::new(link)).unwrap();
    let mut peer = crate::FrameLink::connected(there.into(), crate::Framing::Qemu, 1500).unwrap();
    let mac = [2, 0, 0, 0, 1, 9];
    let frame = sent(datagram((mac, guest.mac), ([10, 0, 2, 9], guest.ip)));
    peer.transmit(&mut VecDeque::from([frame])).unwrap();
    rig.receive();
    assert_eq!(rig.handle.ports(), 2);
    drop(peer);
    rig.receive();
    assert_eq!(rig.handle.ports(), 1);
    assert_eq!(rig.handle.port_of_mac(mac), None);
    let events = rig.events.lock();
    let expected = [
        PortEvent::Connected {
            port: guest.port,
            mac: guest.mac,
        },
        PortEvent::Connected { port, mac },
        PortEvent::Disconnected {
            port,
            mac: Some(mac),
        },
    ];
    assert_eq!(*events, expected);
}

#[test]
fn the_number_of_ports_is_bounded_and_unsuitable_devices_are_refused() {
    let mut rig = Rig::new(false);
    let device = || {
        let (end, _) = pair(PairConfig {
            link: Link::Ethernet,
            ..PairConfig::default()
        });
        Box::new(end)
    };
    for _ in 0..PORTS_MAX {
        rig.handle.attach(device()).unwrap();
    }
    let error = rig.handle.attach(device()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    // A pair wakes no driver.
    rig.receive();
    assert_eq!(rig.handle.ports(), 0);
    drop(rig.switch);
    assert!(rig.handle.attach(device()).is_err());
}

/// The program of a virtual machine is started again and binds another socket: its first frames arrive before
/// the end of the earlier connection was noticed, and behind the frames of that one.
#[test]
fn a_client_that_is_started_again_loses_no_frame() {
    let mut rig = Rig::new(true);
    let path = |name: &str| {
        let id = std::process::id();
        std::env::temp_dir().join(format!("fullsend-switch-{id}-{name}"))
    };
    let paths = ["vm", "1", "2"].map(path);
    for path in &paths {
        let _ = std::fs::remove_file(path);
    }
    let bind = |n: usize| std::os::unix::net::UnixDatagram::bind(&paths[n]).unwrap();
    let mut listener = crate::DatagramListener::new(bind(0).into(), 1500).unwrap();
    let frame = datagram(([2, 0, 0, 0, 1, 1], GATEWAY), ([10, 0, 2, 11], GATEWAY_IP));
    let frame = frame.to_bytes();
    let mut accept = || {
        let next = std::iter::from_fn(|| listener.accept().ok());
        next.flatten().next()
    };
    let first = bind(1);
    first.send_to(&frame, &paths[0]).unwrap();
    rig.handle.attach(Box::new(accept().unwrap())).unwrap();
    assert_eq!(rig.receive().len(), 1);
    // More than one call of the switch serves.
    for _ in 0..3 * QUANTUM {
        first.send_to(&frame, &paths[0]).unwrap();
        assert!(accept().is_none());
    }
    drop(first);
    let second = bind(2);
    second.send_to(b"VFKT", &paths[0]).unwrap();
    rig.handle.attach(Box::new(accept().unwrap())).unwrap();
    second.send_to(&frame, &paths[0]).unwrap();
    second.send_to(&frame, &paths[0]).unwrap();
    assert!(accept().is_none());
    assert_eq!(rig.receive().len(), 3 * QUANTUM + 2);
    assert_eq!((rig.handle.stats().refused, rig.handle.ports()), (0, 1));
    for path in &paths {
        std::fs::remove_file(path).unwrap();
    }
}

/// A guest that uses the addresses of a busy one waits a limited number of times, and is refused.
#[test]
fn a_guest_with_the_addresses_of_a_busy_one_waits_no_longer_than_needed() {
    let mut rig = Rig::new(true);
    let mut one = rig.guest(1);
    let caps = Caps::offloading(Link::Ethernet, 1500);
    let mut spoofing = rig.silent_guest_with(2, caps);
    spoofing.mac = one.mac;
    spoofing.send_to(GATEWAY, GATEWAY_IP);
    let mut batch = Vec::new();
    for _ in 0..100 {
        for _ in 0..QUANTUM {
            one.send_to(GATEWAY, GATEWAY_IP);
        }
        rig.switch.receive(&mut batch, 1 << 20).unwrap();
    }
    assert_eq!(batch.len(), 100 * QUANTUM);
    assert_eq!(rig.handle.stats().refused, 1);
}

/// A station behind a guest, whose frames have the guest's address, asks for an address of its own.
#[test]
fn a_dhcp_client_with_another_ethernet_address_belongs_to_its_guest() {
    let mut rig = Rig::new(true);
    let (mut one, two) = (rig.guest(1), rig.guest(2));
    let request = |client: [u8; 6]| {
        let mut packet = vec![0; 20 + 8 + 240];
        packet[..4].copy_from_slice(&[0x45, 0, 1, 12]);
        packet[9] = 17;
        packet[16..20].fill(255);
        packet[20..26].copy_from_slice(&[0, 68, 0, 67, 0, 248]);
        packet[56..62].copy_from_slice(&client);
        let checksum = sum(&packet[..20]).checksum();
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 1, 1], &[8, 0], &packet].concat();
        Packet::from_frame(Slice::copied_from(&frame))
    };
    let station = [2, 0, 0, 0, 7, 7];
    one.send(request(station));
    assert_eq!(rig.receive().len(), 1);
    assert_eq!(rig.handle.port_of_mac(station), Some(one.port));
    rig.transmit(datagram((GATEWAY, station), (GATEWAY_IP, [10, 0, 2, 99])));
    assert_eq!(one.received().len(), 1);
    // The addresses of another guest and of the gateway are not its.
    for mac in [two.mac, GATEWAY] {
        one.send(request(mac));
        assert!(rig.receive().is_empty());
    }
    assert_eq!(rig.handle.port_of_mac(two.mac), Some(two.port));
    assert_eq!(rig.handle.stats().refused, 2);
}

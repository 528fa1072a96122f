use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::Waker;

use fullsend_offload::{Chain, Loan, Slice};
use fullsend_tcp::{IpSettings, MtuDiscover, TcpError};
use fullsend_wire::{Rng, Seed};

use super::socket::RCVBUF;
use super::{DestinationClass, SentFlows, Udp, UdpDelivery, UdpMemLimits};
use crate::siphash::SipKey;
use crate::{IfaceId, StackError, UdpDatagram, UdpError, UdpId, UdpSharing, Waiter};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Returns the data of a single datagram, and its size.
fn one(data: Slice) -> (Chain, usize) {
    let size = data.len();
    (data.into(), size)
}

const EPHEMERAL: RangeInclusive<u16> = 40_000..=40_099;

struct Rig {
    udp: Udp,
    rng: Rng,
    limits: UdpMemLimits,
    wakers: Vec<Waker>,
}

impl Rig {
    fn new() -> Self {
        Self {
            udp: Udp::new(SipKey(1, 2)),
            rng: Rng::new(Seed::from_u64(1)),
            limits: UdpMemLimits {
                all_bytes: 1 << 20,
                min_bytes: 4096,
            },
            wakers: Vec::new(),
        }
    }

    fn bind(&mut self, local: &str) -> UdpId {
        self.share(local, UdpSharing::default()).unwrap()
    }

    fn share(&mut self, local: &str, sharing: UdpSharing) -> Result<UdpId, StackError> {
        self.udp
            .bind(at(local), sharing, (EPHEMERAL, &mut self.rng))
    }

    fn input(&mut self, to: &str, data: &[u8]) -> UdpDelivery {
        let from = if to.starts_with('[') {
            "[fd00::9]:9"
        } else {
            "10.0.0.9:9"
        };
        self.input_from(from, to, data)
    }

    fn input_from(&mut self, from: &str, to: &str, data: &[u8]) -> UdpDelivery {
        let datagram = UdpDatagram {
            payload: Slice::copied_from(data).into(),
            segment_size: data.len(),
            from: at(from),
            to: at(to),
            tos: 0,
            ttl: 64,
            iface: IfaceId(0),
        };
        let class = if at(to).ip().is_multicast() {
            DestinationClass::Group
        } else {
            DestinationClass::Local
        };
        self.udp
            .input(&datagram, class, self.limits, &mut self.wakers)
    }

    fn received(&mut self, id: UdpId) -> Option<Vec<u8>> {
        let payload = self.udp.recv(id).unwrap()?.payload;
        let mut data = vec![0; payload.len()];
        payload.copy_to(&mut data);
        Some(data)
    }
}

#[test]
fn the_most_specific_socket_receives() {
    let mut rig = Rig::new();
    let all = rig.bind("[::]:53");
    let one = rig.share("10.0.0.1:53", UdpSharing::default());
    assert_eq!(one, Err(StackError::AddressInUse(at("10.0.0.1:53"))));
    rig.udp.close(all, &mut rig.wakers);
    let one = rig.bind("10.0.0.1:53");
    let two = rig.bind("10.0.0.2:53");
    let six = rig.bind("[fd00::1]:53");
    assert_eq!(rig.input("10.0.0.2:53", b"b"), UdpDelivery::Done);
    assert_eq!(rig.input("10.0.0.1:53", b"a"), UdpDelivery::Done);
    assert_eq!(rig.input("[fd00::1]:53", b"c"), UdpDelivery::Done);
    assert_eq!(rig.input("10.0.0.3:53", b"d"), UdpDelivery::NoPort);
    assert_eq!(rig.received(one), Some(b"a".to_vec()));
    assert_eq!(rig.received(two), Some(b"b".to_vec()));
    assert_eq!(rig.received(six), Some(b"c".to_vec()));
    assert_eq!((rig.udp.v4.in_datagrams, rig.udp.v4.no_ports), (2, 1));
    assert_eq!(rig.udp.v6.in_datagrams, 1);
}

#[test]
fn a_queue_holds_thousands_of_short_datagrams_that_came_in_large_buffers() {
    let mut rig = Rig::new();
    rig.limits.all_bytes = 64 << 20;
    let id = rig.udp.bind_any().unwrap();
    rig.udp.socket_mut(id).unwrap().set_rcvbuf(4 << 20);
    let class = DestinationClass::Foreign;
    for n in 0..6000_u16 {
        let mut buffer = vec![0; 1664];
        buffer[..2].copy_from_slice(&n.to_be_bytes());
        let payload = Slice::copied_from(&buffer).slice(0..32);
        let datagram = UdpDatagram {
            segment_size: payload.len(),
            payload: payload.into(),
            from: at("10.0.0.9:9"),
            to: at("192.0.2.1:9"),
            tos: 0,
            ttl: 64,
            iface: IfaceId(0),
        };
        rig.udp.input(&datagram, class, rig.limits, &mut rig.wakers);
    }
    assert_eq!(rig.udp.v4.rcvbuf_errors, 0);
    for n in 0..6000_u16 {
        assert_eq!(rig.received(id).unwrap()[..2], n.to_be_bytes());
    }
    assert_eq!(rig.udp.bytes(), 0);
}

#[test]
fn every_counter_counts_datagrams() {
    let mut rig = Rig::new();
    let train = |to: &str, from: &str| UdpDatagram {
        payload: Slice::copied_from(&[7; 2500]).into(),
        segment_size: 1000,
        from: at(from),
        to: at(to),
        tos: 0,
        ttl: 64,
        iface: IfaceId(0),
    };
    let v4 = train("10.0.0.1:53", "10.0.0.9:9");
    let v6 = train("[fd00::1]:53", "[fd00::9]:9");
    let input = |rig: &mut Rig, datagram: &UdpDatagram| {
        let local = DestinationClass::Local;
        rig.udp.input(datagram, local, rig.limits, &mut rig.wakers)
    };
    assert_eq!(input(&mut rig, &v4), UdpDelivery::NoPort);
    assert_eq!(rig.udp.v4.no_ports, 3);
    let id = rig.bind("[::]:53");
    for gro in [true, false] {
        rig.udp.socket_mut(id).unwrap().gro = gro;
        assert_eq!(input(&mut rig, &v4), UdpDelivery::Done);
    }
    assert_eq!(rig.udp.v4.in_datagrams, 6);
    // No room in the socket's queue, and then none in that of all.
    rig.udp.socket_mut(id).unwrap().gro = true;
    rig.udp.socket_mut(id).unwrap().rcvbuf = 0;
    input(&mut rig, &v6);
    assert_eq!((rig.udp.v6.rcvbuf_errors, rig.udp.v6.in_errors), (3, 3));
    rig.udp.socket_mut(id).unwrap().rcvbuf = RCVBUF;
    (rig.limits.all_bytes, rig.limits.min_bytes) = (0, 0);
    input(&mut rig, &v6);
    assert_eq!((rig.udp.v6.mem_errors, rig.udp.v6.in_errors), (3, 6));
    rig.udp.count_bad_checksum(true, 4);
    assert_eq!((rig.udp.v6.in_csum_errors, rig.udp.v6.in_errors), (4, 10));
    assert_eq!((rig.udp.v6.in_datagrams, rig.udp.v4.in_errors), (0, 0));
}

#[test]
fn a_wildcard_address_receives_its_family_or_both() {
    let mut rig = Rig::new();
    let v4 = rig.bind("0.0.0.0:1");
    let both = rig.bind("[::]:2");
    assert_eq!(rig.input("[fd00::1]:1", b"x"), UdpDelivery::NoPort);
    assert_eq!(rig.input("10.0.0.1:1", b"x"), UdpDelivery::Done);
    assert_eq!(rig.input("10.0.0.1:2", b"y"), UdpDelivery::Done);
    assert_eq!(rig.input("[fd00::1]:2", b"z"), UdpDelivery::Done);
    let received = rig.udp.recv(v4).unwrap().unwrap();
    assert_eq!(
        (received.from, received.to),
        (at("10.0.0.9:9"), at("10.0.0.1:1"))
    );
    assert_eq!(rig.received(both), Some(b"y".to_vec()));
    assert_eq!(rig.received(both), Some(b"z".to_vec()));
    assert_eq!(rig.received(both), None);
}

#[test]
fn address_sharing_and_delivery() {
    let mut rig = Rig::new();
    let addr = UdpSharing {
        reuse_addr: true,
        reuse_port: false,
    };
    let first = rig.share("10.0.0.1:5", addr).unwrap();
    let taken = Err(StackError::AddressInUse(at("0.0.0.0:5")));
    assert_eq!(rig.share("0.0.0.0:5", UdpSharing::default()), taken);
    let second = rig.share("10.0.0.1:5", addr).unwrap();
    let any = rig.share("0.0.0.0:5", addr).unwrap();
    // A unicast datagram is delivered to the last socket of the highest rank, a multicast one to
    // all.
    rig.input("10.0.0.1:5", b"one");
    assert_eq!(rig.received(second), Some(b"one".to_vec()));
    assert_eq!((rig.received(first), rig.received(any)), (None, None));
    let group = rig.share("224.0.0.7:5", addr).unwrap();
    rig.input("224.0.0.7:5", b"all");
    assert_eq!(rig.received(group), Some(b"all".to_vec()));
    assert_eq!(rig.received(any), Some(b"all".to_vec()));
    assert_eq!(rig.received(second), None);
}

#[test]
fn flows_are_distributed_over_sockets_that_share_a_port() {
    let mut rig = Rig::new();
    let port = UdpSharing {
        reuse_addr: false,
        reuse_port: true,
    };
    let ids: Vec<UdpId> = (0..4)
        .map(|_| rig.share("0.0.0.0:5", port).unwrap())
        .collect();
    let mut counts = [0; 4];
    for client in 1..=400 {
        let from = alloc::format!("10.0.0.9:{client}");
        for _ in 0..2 {
            rig.input_from(&from, "10.0.0.1:5", b"flow");
        }
        let received = ids
            .iter()
            .map(|&id| core::iter::from_fn(|| rig.received(id)).count());
        let received: Vec<usize> = received.collect();
        // Both datagrams of a flow are delivered to the same socket.
        let owner = received.iter().position(|&n| n == 2).expect("one has both");
        counts[owner] += 1;
    }
    assert!(counts.iter().all(|n| (60..140).contains(n)), "{counts:?}");
}

#[test]
fn errors_are_queued_when_enabled_and_reported_once() {
    let mut rig = Rig::new();
    let error_about = |to: &str| UdpError {
        error: TcpError::ConnectionRefused,
        is_local: false,
        kind: (3, 3),
        mtu: 0,
        offender: at(to).ip(),
        to: at(to),
        payload: vec![7; 3],
    };
    let id = rig.bind("10.0.0.1:5");
    rig.udp.icmp(
        at("10.0.0.1:5"),
        &error_about("10.0.0.8:1"),
        &mut rig.wakers,
    );
    assert!(!rig.udp.socket_mut(id).unwrap().has_error());
    rig.udp.socket_mut(id).unwrap().keep_errors(true);
    for to in ["10.0.0.8:1", "10.0.0.9:2"] {
        rig.udp
            .icmp(at("10.0.0.1:5"), &error_about(to), &mut rig.wakers);
    }
    let socket = rig.udp.socket_mut(id).unwrap();
    for to in ["10.0.0.8:1", "10.0.0.9:2"] {
        assert!(socket.has_error());
        assert_eq!(socket.take_kept_error(), Some(error_about(to)));
    }
    assert!(!socket.has_error() && socket.take_kept_error().is_none());
    // A connected socket reports only errors about its peer.
    socket.connect(Some((at("10.0.0.1:5").ip(), at("10.0.0.8:1"))));
    rig.udp.icmp(
        at("10.0.0.1:5"),
        &error_about("10.0.0.9:2"),
        &mut rig.wakers,
    );
    assert!(!rig.udp.socket_mut(id).unwrap().has_kept_errors());
}

/// RFC 5927 4: a "too big" must be about a datagram that was sent.
#[test]
fn too_big_is_accepted_only_for_sent_datagrams() {
    let mut rig = Rig::new();
    let (local, peer) = (at("10.0.0.1:5"), at("10.0.0.8:1"));
    let id = rig.bind("10.0.0.1:5");
    let about = UdpError {
        error: TcpError::MessageTooLong,
        is_local: false,
        kind: (3, 4),
        mtu: 1000,
        offender: at("10.0.0.9:0").ip(),
        to: peer,
        payload: Vec::new(),
    };
    let send = |rig: &mut Rig, to, len| {
        let data = Slice::copied_from(&vec![0; len]);
        rig.udp.output(id, local, to, one(data)).unwrap();
    };
    let believed = |rig: &mut Rig| rig.udp.icmp(local, &about, &mut rig.wakers);
    rig.udp
        .socket_mut(id)
        .unwrap()
        .connect(Some((local.ip(), peer)));
    assert!(!believed(&mut rig));
    // A datagram to another peer, and one that fits every path.
    send(&mut rig, at("10.0.0.9:1"), 1400);
    send(&mut rig, peer, 524);
    assert!(!believed(&mut rig));
    send(&mut rig, peer, 525);
    assert!(believed(&mut rig));
    // The datagram of a connected socket still counts after other flows have replaced its flow in
    // the table.
    rig.udp.sent = SentFlows::default();
    assert!(believed(&mut rig));
    rig.udp.socket_mut(id).unwrap().connect(None);
    assert!(!believed(&mut rig));
}

/// As on Linux: without path MTU discovery a socket does not learn that a datagram was too big, except
/// for an IPv6 socket that keeps errors.
#[test]
fn too_big_is_not_reported_without_path_mtu_discovery() {
    let (v4, v6) = (("10.0.0.1:5", "10.0.0.8:1"), ("[fd00::1]:5", "[fd00::8]:1"));
    for ((local, peer), keeps, mtu_discover, is_reported) in [
        (v4, false, MtuDiscover::Want, true),
        (v4, false, MtuDiscover::Dont, false),
        (v4, true, MtuDiscover::Dont, false),
        (v6, false, MtuDiscover::Want, true),
        (v6, false, MtuDiscover::Dont, false),
        (v6, true, MtuDiscover::Dont, true),
    ] {
        let mut rig = Rig::new();
        let id = rig.bind(local);
        let (local, peer) = (at(local), at(peer));
        let socket = rig.udp.socket_mut(id).unwrap();
        socket.connect(Some((local.ip(), peer)));
        socket.keep_errors(keeps);
        socket.set_ip(IpSettings {
            mtu_discover,
            ..socket.ip()
        });
        socket.set_v6_mtu_discover(mtu_discover);
        let data = Slice::copied_from(&[0; 4000]);
        rig.udp.output(id, local, peer, one(data)).unwrap();
        let about = UdpError {
            error: TcpError::MessageTooLong,
            is_local: false,
            kind: (3, 4),
            mtu: 1300,
            offender: peer.ip(),
            to: peer,
            payload: Vec::new(),
        };
        rig.udp.icmp(local, &about, &mut rig.wakers);
        let socket = rig.udp.socket_mut(id).unwrap();
        assert_eq!(socket.has_error(), is_reported, "{peer} {mtu_discover:?}");
    }
}

#[test]
fn ephemeral_ports_are_used_until_exhausted() {
    let mut rig = Rig::new();
    for _ in EPHEMERAL {
        let id = rig.bind("0.0.0.0:0");
        assert!(EPHEMERAL.contains(&rig.udp.socket(id).unwrap().local().port()));
    }
    let more = rig.share("0.0.0.0:0", UdpSharing::default());
    assert_eq!(more, Err(StackError::NoPorts));
}

#[test]
fn the_queue_is_bounded_in_bytes() {
    let mut rig = Rig::new();
    let id = rig.bind("0.0.0.0:1");
    let mut taken = 0;
    while rig.udp.v4.rcvbuf_errors == 0 {
        rig.input("10.0.0.1:1", &[1; 1000]);
        taken += 1;
        assert!(taken < 1000);
    }
    assert!((RCVBUF / 2000..=RCVBUF / 1000).contains(&taken), "{taken}");
    while rig.received(id).is_some() {}
    assert_eq!(rig.udp.sockets.peek(id.0).unwrap().bytes, 0);
    assert_eq!(rig.input("10.0.0.1:1", b"again"), UdpDelivery::Done);
    assert_eq!(rig.received(id), Some(b"again".to_vec()));
}

/// Memory that counts how often it is read.
struct CountedLoan(Vec<u8>, AtomicUsize);

impl Loan for CountedLoan {
    fn bytes(&self) -> &[u8] {
        self.1.fetch_add(1, Ordering::Relaxed);
        &self.0
    }

    fn on_copied(&self) {}
}

/// A flood at a full socket must cost no copies.
#[test]
fn a_datagram_without_room_is_not_copied() {
    let mut rig = Rig::new();
    let ids = [rig.bind("10.0.0.1:1"), rig.bind("10.0.0.1:2")];
    let loan = Arc::new(CountedLoan(vec![7; 60_000], AtomicUsize::new(0)));
    let lent = Slice::lend(loan.clone());
    let reads = |rig: &mut Rig, port| {
        loan.1.store(0, Ordering::Relaxed);
        let datagram = UdpDatagram {
            payload: lent.slice(0..2000).into(),
            segment_size: 2000,
            from: at("10.0.0.9:9"),
            to: SocketAddr::new([10, 0, 0, 1].into(), port),
            tos: 0,
            ttl: 64,
            iface: IfaceId(0),
        };
        let class = DestinationClass::Local;
        rig.udp.input(&datagram, class, rig.limits, &mut rig.wakers);
        loan.1.load(Ordering::Relaxed)
    };
    assert_ne!(reads(&mut rig, 1), 0);
    while rig.udp.v4.rcvbuf_errors == 0 {
        rig.input("10.0.0.1:1", &[1; 1000]);
    }
    assert_eq!(reads(&mut rig, 1), 0);
    assert_eq!(rig.udp.v4.rcvbuf_errors, 2);
    // Nor where all sockets together have too much.
    rig.limits.all_bytes = rig.udp.bytes;
    rig.limits.min_bytes = 2000;
    assert_eq!(reads(&mut rig, 2), 0);
    assert_eq!(rig.udp.v4.mem_errors, 1);
    assert_eq!(rig.received(ids[1]), None);
}

#[test]
fn the_datagrams_of_one_packet_are_limited_one_by_one() {
    for (gro, queued, dropped) in [(false, 2, 3), (true, 0, 5)] {
        let mut rig = Rig::new();
        let id = rig.bind("0.0.0.0:1");
        let socket = rig.udp.socket_mut(id).unwrap();
        socket.set_gro(gro);
        socket.set_rcvbuf(3000);
        let packet = UdpDatagram {
            payload: Slice::copied_from(&[1; 4500]).into(),
            segment_size: 1000,
            from: at("10.0.0.9:9"),
            to: at("10.0.0.1:1"),
            tos: 0,
            ttl: 64,
            iface: IfaceId(0),
        };
        let class = DestinationClass::Local;
        let done = rig.udp.input(&packet, class, rig.limits, &mut rig.wakers);
        assert_eq!(done, UdpDelivery::Done);
        let queue = &rig.udp.sockets.peek(id.0).unwrap().queue;
        assert_eq!((queue.len(), rig.udp.v4.rcvbuf_errors), (queued, dropped));
    }
}

#[test]
fn all_queues_together_are_bounded_in_bytes() {
    let mut rig = Rig::new();
    let ids: Vec<_> = (1..=20)
        .map(|port| rig.bind(&alloc::format!("0.0.0.0:{port}")))
        .collect();
    let fill = |rig: &mut Rig, port: usize| {
        for _ in 0..300 {
            rig.input(&alloc::format!("10.0.0.1:{port}"), &[1; 1000]);
        }
    };
    (1..20).for_each(|port| fill(&mut rig, port));
    let limit = rig.limits.all_bytes;
    assert!(rig.udp.v4.mem_errors > 0);
    assert!((limit..limit + 20 * 4096).contains(&(rig.udp.bytes + 4096)));
    // A socket gets its minimum even then.
    fill(&mut rig, 20);
    let last = rig.udp.sockets.peek(ids[19].0).unwrap().bytes;
    assert!((2000..=4096).contains(&last), "{last} bytes");
    // Memory of datagrams that were read, or whose socket was closed, is available to others.
    rig.udp.close(ids[0], &mut Vec::new());
    while rig.received(ids[1]).is_some() {}
    let errors = rig.udp.v4.mem_errors;
    rig.input("10.0.0.1:3", &[1; 1000]);
    rig.input("10.0.0.1:20", &[1; 1000]);
    assert_eq!(rig.udp.v4.mem_errors, errors);
    for id in &ids[1..] {
        rig.udp.close(*id, &mut Vec::new());
    }
    assert_eq!(rig.udp.bytes, 0);
}

struct Count(AtomicUsize);

impl alloc::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn readers_are_woken_once_and_by_close() {
    let mut rig = Rig::new();
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    let id = rig.bind("0.0.0.0:1");
    let readable = |rig: &mut Rig| {
        let mut replaced_wakers = Vec::new();
        rig.udp
            .readable(id, Waiter::polled(&waker), &mut replaced_wakers)
    };
    assert_eq!(readable(&mut rig), Ok(false));
    assert_eq!(readable(&mut rig), Ok(false));
    rig.input("10.0.0.1:1", b"1");
    rig.input("10.0.0.1:1", b"2");
    rig.wakers.drain(..).for_each(Waker::wake);
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert_eq!(readable(&mut rig), Ok(true));
    rig.received(id);
    rig.received(id);
    assert_eq!(readable(&mut rig), Ok(false));
    rig.udp.close(id, &mut rig.wakers);
    assert_eq!(rig.wakers.len(), 1);
    assert_eq!(readable(&mut rig), Err(StackError::NoSuchSocket));
    assert_eq!(rig.input("10.0.0.1:1", b"1"), UdpDelivery::NoPort);
}

#[test]
fn a_completed_checksum_is_correct() {
    let mut rig = Rig::new();
    let id = rig.bind("[::]:7");
    let mut udp = rig.udp;
    for (from, to) in [("10.0.0.1:7", "10.0.0.2:8"), ("[fd00::1]:7", "[fd00::2]:8")] {
        let data = Slice::copied_from(b"hello");
        let mut packet = udp.output(id, at(from), at(to), one(data)).unwrap();
        packet.layers.protocol = 17;
        packet.complete_checksum();
        let bytes = packet.to_bytes();
        assert_eq!(bytes[..6], [0, 7, 0, 8, 0, 13]);
        let pseudo = fullsend_wire::checksum::Sum::pseudo(at(from).ip(), at(to).ip(), 17, 13);
        assert!((pseudo + fullsend_wire::checksum::sum(&bytes)).is_valid());
    }
    let long = Slice::copied_from(&vec![0; 65_508]);
    let error = udp.output(id, at("10.0.0.1:7"), at("10.0.0.2:8"), one(long));
    assert_eq!(
        error.unwrap_err(),
        StackError::MessageTooLong {
            len: 65_508,
            max: 65_507
        }
    );
}

//! Sends frames of unauthenticated peers to a host with a TUN-like and an Ethernet interface, a TCP
//! listener, UDP sockets and connections being established: no panic, and the packets that the host
//! sends can be parsed and have correct checksums.
#![no_main]

use arbitrary::Arbitrary;
use fullsend_offload::{Caps, Checksum, GsoKind, Link, Packet, Slice, segment};
use fullsend_stack::{Cidr, Host, HostConfig, IfaceConfig, IfaceId, ListenConfig, Mac, PingId};
use fullsend_tcp::Sysctl;
use fullsend_wire::checksum::sum;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::{Instant, Nanos, Seed, icmpv4, icmpv6, ipv4, ipv6};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Op {
    /// Delivers an arbitrary frame.
    Raw { tap: bool, frame: Vec<u8> },
    /// Delivers an IP packet with plausible addresses and correct lengths and checksums.
    Ip {
        tap: bool,
        v6: bool,
        /// Selects one of a few protocols; `to` selects the destination, `fragment` the fragment
        /// fields.
        kind: u8,
        to: u8,
        fragment: u16,
        ident: u8,
        body: Vec<u8>,
    },
    /// Advances the time, in milliseconds.
    Wait(u16),
    /// Advances the time to the next deadline.
    Timeout,
    /// Sends a datagram.
    Send { v6: bool, tap: bool, len: u16 },
}

const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn iface(link: Link) -> IfaceConfig {
    IfaceConfig::new(Caps::plain(link, 1500), OUR_MAC)
}

/// Returns the address 10.`net`.0.`last` or fd00:`net`::`last`.
fn addr(net: u8, last: u8, v6: bool) -> std::net::IpAddr {
    if v6 {
        std::net::Ipv6Addr::new(0xfd00, net.into(), 0, 0, 0, 0, 0, last.into()).into()
    } else {
        [10, net, 0, last].into()
    }
}

struct Bench {
    host: Host,
    now: Instant,
    ifaces: [IfaceId; 2],
    ping: PingId,
    out: Vec<Packet>,
}

impl Bench {
    fn new() -> Self {
        let mut host = Host::new(HostConfig {
            seed: Seed::from_u64(7),
            sysctl: Sysctl::default(),
            pool_bytes: 1 << 20,
        });
        let ifaces = [Link::Ip, Link::Ethernet].map(|link| host.add_interface(iface(link)));
        let now = Instant::from_nanos(1);
        for net in 0..2 {
            for (v6, prefix) in [(false, 24), (true, 64)] {
                let addr = addr(net, 1, v6);
                let on = ifaces[usize::from(net)];
                host.add_address(now, on, Cidr { addr, prefix }).unwrap();
            }
        }
        let config = ListenConfig {
            backlog: 4,
            defer_syn_ack: false,
            any_destination: false,
        };
        host.tcp_listen("[::]:80".parse().unwrap(), config).unwrap();
        host.udp_bind("[::]:53".parse().unwrap()).unwrap();
        let ping = host.ping_open().unwrap();
        for net in 0..2 {
            let remote = (addr(net, 2, false), 256).into();
            host.tcp_connect(now, None, remote).unwrap();
        }
        let mut bench = Self {
            host,
            now,
            ifaces,
            ping,
            out: Vec::new(),
        };
        bench.wait(Nanos::from_secs(2));
        bench
    }

    fn receive(&mut self, tap: bool, frame: &[u8]) {
        let iface = self.ifaces[usize::from(tap)];
        let mut frames = vec![Packet::from_frame(Slice::copied_from(frame))];
        self.host.receive(self.now, iface, &mut frames);
        self.transmit();
    }

    fn wait(&mut self, time: Nanos) {
        self.now += time;
        self.host.poll(self.now);
        self.transmit();
    }

    fn transmit(&mut self) {
        for (iface, link) in self.ifaces.into_iter().zip([Link::Ip, Link::Ethernet]) {
            self.host.transmit(self.now, iface, &mut self.out, 64);
            for packet in self.out.drain(..) {
                self.host.complete(self.now, packet.tx);
                check(packet, link);
            }
        }
        let mut wakers = Vec::new();
        self.host.take_wakers(&mut wakers);
    }
}

/// Asserts that a transmitted packet is well formed.
fn check(packet: Packet, link: Link) {
    assert_eq!(packet.offload.kind, GsoKind::None);
    assert_ne!(packet.offload.checksum, Checksum::Partial);
    let bytes = packet.to_bytes();
    let mut parsed = Packet::from_frame(Slice::copied_from(&bytes));
    parsed.parse(link).expect("what we send parses");
    let header = parsed.network_header();
    match parsed.layers.ethertype {
        ethertype::IPV4 => {
            let view = ipv4::Ipv4View::new(header).expect("IPv4");
            if view.protocol() == protocol::ICMP && !view.is_fragment() {
                assert!(icmpv4::checksum_ok(
                    &bytes[bytes.len() - parsed.payload.len()..]
                ));
            }
        }
        ethertype::IPV6 => {
            let view = ipv6::Ipv6View::new(header).expect("IPv6");
            if view.next_header() == protocol::ICMPV6 {
                let message = &bytes[bytes.len() - parsed.payload.len()..];
                assert!(icmpv6::checksum_ok(view.src(), view.dst(), message));
            }
        }
        other => assert_eq!((other, link), (ethertype::ARP, Link::Ethernet)),
    }
    let mut out = Vec::new();
    segment(parsed, &mut out);
    assert_eq!(out.len(), 1);
}

/// Returns an IP packet to the host, a broadcast or a multicast address, with correct lengths and
/// checksums around `body`.
fn ip_packet(
    tap: bool,
    v6: bool,
    kind: u8,
    to: u8,
    fragment: u16,
    ident: u8,
    body: &[u8],
) -> Vec<u8> {
    let protocols = [
        protocol::TCP,
        protocol::UDP,
        if v6 { protocol::ICMPV6 } else { protocol::ICMP },
        protocol::DESTINATION,
        protocol::FRAGMENT,
        protocol::HOP_BY_HOP,
        protocol::ROUTING,
        kind,
    ];
    let protocol = protocols[usize::from(kind) % protocols.len()];
    let net = u8::from(tap);
    let src = addr(net, 2, v6);
    let dst = match (to % 4, v6) {
        (0..=2, _) => addr(net, 1, v6),
        (_, false) => [10, net, 0, 255].into(),
        (_, true) => "ff02::1".parse().unwrap(),
    };
    let mut body = body.to_vec();
    fix_checksum(protocol, src, dst, &mut body);
    let payload_len = body.len() as u16;
    let mut packet = match (src, dst) {
        (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => {
            let repr = ipv4::Ipv4Repr {
                tos: to,
                ident: ident.into(),
                dont_fragment: false,
                more_fragments: fragment & 1 != 0,
                fragment_offset: fragment & 0x78,
                ..ipv4::Ipv4Repr::new(src, dst, protocol, payload_len)
            };
            let mut bytes = vec![0; ipv4::HEADER_LEN];
            repr.emit(&mut bytes);
            bytes
        }
        (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => {
            let repr = ipv6::Ipv6Repr {
                traffic_class: to,
                hop_limit: 255,
                ..ipv6::Ipv6Repr::new(src, dst, protocol, payload_len)
            };
            let mut bytes = vec![0; ipv6::HEADER_LEN];
            repr.emit(&mut bytes);
            bytes
        }
        _ => unreachable!(),
    };
    packet.extend(body);
    packet
}

fn fix_checksum(protocol: u8, src: std::net::IpAddr, dst: std::net::IpAddr, body: &mut [u8]) {
    let at = match protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        protocol::ICMP | protocol::ICMPV6 => 2,
        _ => return,
    };
    if body.len() < at + 2 {
        return;
    }
    body[at..at + 2].fill(0);
    if protocol == protocol::UDP {
        let len = body.len() as u16;
        body[4..6].copy_from_slice(&len.to_be_bytes());
    }
    let mut total = sum(body);
    if protocol != protocol::ICMP {
        total += fullsend_wire::checksum::Sum::pseudo(src, dst, protocol, body.len() as u32);
    }
    body[at..at + 2].copy_from_slice(&total.checksum().to_be_bytes());
}

fuzz_target!(|ops: Vec<Op>| {
    let mut bench = Bench::new();
    for op in ops {
        match op {
            Op::Raw { tap, frame } => bench.receive(tap, &frame),
            Op::Ip {
                tap,
                v6,
                kind,
                to,
                fragment,
                ident,
                body,
            } => {
                let packet = ip_packet(tap, v6, kind, to, fragment, ident, &body);
                let mut frame = Vec::new();
                if tap {
                    frame.extend(OUR_MAC.0);
                    frame.extend([2, 0, 0, 0, 0, 2]);
                    frame.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
                }
                frame.extend(packet);
                bench.receive(tap, &frame);
            }
            Op::Wait(ms) => bench.wait(Nanos::from_millis(ms.into())),
            Op::Timeout => {
                if let Some(at) = bench.host.poll_deadline() {
                    bench.wait(at.since(bench.now));
                }
            }
            Op::Send { v6, tap, len } => {
                let id = bench.host.udp_bind("[::]:0".parse().unwrap()).unwrap();
                let ip = addr(u8::from(tap), 3, v6);
                let to = (ip, 9).into();
                let data = Slice::copied_from(&vec![1; usize::from(len)]);
                // The only error is that the datagram is too long, which is rejected.
                let _ = bench.host.udp(id).send_to(bench.now, data, to, None);
                bench.host.udp(id).close(bench.now);
                // Replies and errors about a request may follow.
                let ping = bench.ping;
                let _ = bench.host.ping(ping).send_to(bench.now, ip, 1, &[1]);
                while let Ok(Some(_)) = bench.host.ping(ping).recv() {}
                bench.transmit();
            }
        }
    }
});

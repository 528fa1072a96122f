//! Tests against this machine's kernel, each in its own network namespace.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use fullsend_offload::{Checksum, GsoKind, Link, Packet, Pool, Slice, segment};
use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::ipv6::Ipv6View;
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{SeqNum, WireWindow};

use super::receive::FrameReader;
use super::{OpenError, Tun, TunStats};
use crate::sys::testing::{in_own_network, set_udp_segment, unshare_network, wait_readable};
use crate::{Device, OffloadSet, test_packet};

/// Each switch alone, all together, and none.
const SETS: [&str; 7] = ["all", "none", "vnet_hdr", "csum", "tso4", "tso6", "uso"];

/// The kernel's address and this stack's, for IPv4 and IPv6.
fn both_families() -> [(IpAddr, IpAddr); 2] {
    [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")]
        .map(|(k, o)| (k.parse().unwrap(), o.parse().unwrap()))
}

fn open(offload: &str) -> Tun {
    let set: OffloadSet = offload.parse().unwrap();
    let mut builder = Tun::tun("fs%d").offload(set);
    for (kernel, _) in both_families() {
        let prefix = if kernel.is_ipv4() { 24 } else { 64 };
        builder = builder.kernel_address(kernel, prefix);
    }
    let mut tun = builder.open().unwrap();
    assert_eq!((tun.warnings(), tun.offload()), (&[][..], set));
    // The kernel installs the route of its own IPv6 address a moment later.
    let [_, (kernel, ours)] = both_families();
    assert!((0..100).any(|_| answers_ping(&mut tun, ours, kernel)));
    tun
}

fn answers_ping(tun: &mut Tun, ours: IpAddr, kernel: IpAddr) -> bool {
    send(tun, test_packet::ping((ours, kernel), b"are you there"));
    let mut batch = Vec::new();
    while wait_readable(tun.fd().unwrap(), 20) {
        tun.receive(&mut batch, 100).unwrap();
        let answer = |p: &Packet| p.to_bytes().ends_with(b"\0\x07\0\x01are you there");
        if batch.iter().any(answer) {
            return true;
        }
    }
    false
}

/// Returns the next packet that `wanted` accepts, parsed; skips others (IPv6 background traffic).
fn expect(tun: &mut Tun, wanted: impl Fn(&Packet) -> bool) -> Packet {
    let link = tun.caps().link;
    let mut batch = Vec::new();
    loop {
        assert!(wait_readable(tun.fd().unwrap(), 2000), "nothing came");
        tun.receive(&mut batch, 1).unwrap();
        let mut packet = batch.pop().expect("readable means there is a packet");
        packet.parse(link).unwrap();
        if wanted(&packet) {
            return packet;
        }
    }
}

fn expect_protocol(tun: &mut Tun, number: u8) -> Packet {
    expect(tun, |p| p.layers.protocol == number)
}

/// Sends like a host: segments and completes checksums in software unless the device does it.
fn send(tun: &mut Tun, packet: Packet) {
    let caps = tun.caps();
    let whole = match packet.offload.kind {
        GsoKind::None => true,
        GsoKind::TcpV4 => caps.tso4,
        GsoKind::TcpV6 => caps.tso6,
        GsoKind::Udp => caps.uso,
    };
    let mut batch = Vec::new();
    if whole && (caps.tx_checksum || packet.layers.ethertype == 0) {
        batch.push(packet);
    } else {
        segment(packet, &mut batch);
    }
    let mut batch = VecDeque::from(batch);
    let (sent, dropped) = (
        tun.stats().tx_packets + batch.len() as u64,
        tun.stats().tx_dropped,
    );
    tun.transmit(&mut batch).unwrap();
    assert_eq!(
        (tun.stats().tx_packets, tun.stats().tx_dropped),
        (sent, dropped)
    );
}

/// Returns whether the packet's transport checksum is correct.
fn checksum_is_correct(packet: &Packet) -> bool {
    let bytes = packet.to_bytes();
    let transport = &bytes[packet.layers.transport as usize..];
    let len = transport.len() as u32;
    let pseudo = if packet.layers.ethertype == ethertype::IPV4 {
        let view = Ipv4View::new(packet.network_header()).unwrap();
        Sum::pseudo_v4(view.src(), view.dst(), view.protocol(), len)
    } else {
        let view = Ipv6View::new(packet.network_header()).unwrap();
        Sum::pseudo_v6(view.src(), view.dst(), view.next_header(), len)
    };
    (pseudo + sum(transport)).is_valid()
}

fn assert_checksum(tun: &Tun, packet: &Packet) {
    if tun.offload().csum {
        assert_eq!(packet.offload.checksum, Checksum::Partial);
    } else {
        assert_eq!(packet.offload.checksum, Checksum::Unverified);
        assert!(checksum_is_correct(packet));
    }
}

#[test]
fn the_kernel_sends_a_datagram() {
    in_own_network(|| {
        for set in SETS {
            let mut tun = open(set);
            for (kernel, ours) in both_families() {
                let socket = UdpSocket::bind((kernel, 0)).unwrap();
                socket.send_to(b"out of the kernel", (ours, 7)).unwrap();
                let packet = expect_protocol(&mut tun, protocol::UDP);
                assert_eq!(packet.payload.slices()[0].as_slice(), b"out of the kernel");
                assert_checksum(&tun, &packet);
            }
        }
    });
}

#[test]
fn the_kernel_sends_a_udp_super_segment() {
    in_own_network(|| {
        for set in SETS {
            let mut tun = open(set);
            for (kernel, ours) in both_families() {
                let socket = UdpSocket::bind((kernel, 0)).unwrap();
                set_udp_segment(socket.as_fd(), 1000).unwrap();
                socket.send_to(&[3; 9500], (ours, 7)).unwrap();
                let packet = expect_protocol(&mut tun, protocol::UDP);
                assert_checksum(&tun, &packet);
                let offload = packet.offload;
                if tun.offload().uso {
                    assert_eq!((offload.kind, offload.gso_size), (GsoKind::Udp, 1000));
                    assert_eq!(packet.payload.len(), 9500);
                } else {
                    assert_eq!((offload.kind, offload.gso_size), (GsoKind::None, 0));
                    let mut left = 9500 - packet.payload.len();
                    while left > 0 {
                        left -= expect_protocol(&mut tun, protocol::UDP).payload.len();
                    }
                }
            }
        }
    });
}

#[test]
fn the_kernel_connects() {
    in_own_network(|| {
        let mut tun = open("all");
        for (_, ours) in both_families() {
            let remote = SocketAddr::new(ours, 80);
            let connect = move || TcpStream::connect_timeout(&remote, Duration::from_millis(50));
            let client = std::thread::spawn(connect);
            let packet = expect_protocol(&mut tun, protocol::TCP);
            let (repr, _) = TcpRepr::parse(packet.transport_header()).unwrap();
            assert_eq!((repr.flags, repr.dst_port), (TcpFlags::SYN, 80));
            assert_checksum(&tun, &packet);
            assert!(client.join().unwrap().is_err());
        }
    });
}

#[test]
fn the_kernel_answers_a_ping() {
    in_own_network(|| {
        for set in ["all", "none"] {
            let mut tun = open(set);
            for (kernel, ours) in both_families() {
                send(
                    &mut tun,
                    test_packet::ping((ours, kernel), b"are you there"),
                );
                let answer = expect(&mut tun, |p| p.to_bytes().ends_with(b"are you there"));
                let kind = answer.to_bytes()[answer.layers.transport as usize];
                assert_eq!(kind, if kernel.is_ipv4() { 0 } else { 129 });
            }
        }
    });
}

#[test]
fn the_kernel_receives_datagrams_and_udp_super_segments() {
    in_own_network(|| {
        for set in SETS {
            let mut tun = open(set);
            for (kernel, ours) in both_families() {
                let socket = UdpSocket::bind((kernel, 0)).unwrap();
                socket
                    .set_read_timeout(Some(Duration::from_secs(2)))
                    .unwrap();
                let ports = (9, socket.local_addr().unwrap().port());
                let data: Vec<u8> = (0..9500u32).map(|i| (i / 1000) as u8).collect();
                send(
                    &mut tun,
                    test_packet::udp((ours, kernel), ports, &data[..600], 0),
                );
                send(
                    &mut tun,
                    test_packet::udp((ours, kernel), ports, &data, 1000),
                );
                let mut datagram = [0; 2000];
                assert_eq!(socket.recv(&mut datagram).unwrap(), 600);
                for n in 0..10 {
                    let len = socket.recv(&mut datagram).unwrap();
                    assert_eq!(len, if n == 9 { 500 } else { 1000 }, "{set} {kernel}");
                    assert!(datagram[..len].iter().all(|&b| b == n));
                }
            }
        }
    });
}

/// Performs a handshake with raw packets, then sends one super-segment.
#[test]
fn the_kernel_receives_a_tcp_super_segment() {
    in_own_network(|| {
        for set in SETS {
            let mut tun = open(set);
            for (kernel, ours) in both_families() {
                let listener = TcpListener::bind((kernel, 0)).unwrap();
                let mut repr = TcpRepr {
                    src_port: 4000,
                    dst_port: listener.local_addr().unwrap().port(),
                    seq: SeqNum::new(1000),
                    flags: TcpFlags::SYN,
                    window: WireWindow(60_000),
                    ..TcpRepr::default()
                };
                repr.options.mss = Some(1400);
                send(&mut tun, test_packet::tcp((ours, kernel), &repr, &[], 0));
                let to_us = |p: &TcpRepr| p.src_port == repr.dst_port;
                let answer = expect(&mut tun, |p| {
                    TcpRepr::parse(p.transport_header()).is_ok_and(|(p, _)| to_us(&p))
                });
                let (answer, _) = TcpRepr::parse(answer.transport_header()).unwrap();
                assert_eq!(answer.flags, TcpFlags::SYN.union(TcpFlags::ACK));

                repr.options.mss = None;
                repr.flags = TcpFlags::ACK.union(TcpFlags::PSH);
                repr.seq = SeqNum::new(1001);
                repr.ack = SeqNum::new(answer.seq.raw().wrapping_add(1));
                let data: Vec<u8> = (0..28_100u32).map(|i| (i % 251) as u8).collect();
                send(
                    &mut tun,
                    test_packet::tcp((ours, kernel), &repr, &data, 1400),
                );
                let (mut stream, _) = listener.accept().unwrap();
                stream
                    .set_read_timeout(Some(Duration::from_secs(2)))
                    .unwrap();
                let mut got = vec![0; data.len()];
                stream.read_exact(&mut got).unwrap();
                assert!(got == data, "{set} {kernel}");
            }
        }
    });
}

#[test]
fn a_tap_answers_arp() {
    in_own_network(|| {
        for set in ["all", "none"] {
            let kernel = "10.8.0.1".parse().unwrap();
            let builder = Tun::tap("fst%d").offload(set.parse().unwrap());
            let mut tap = builder.kernel_address(kernel, 24).open().unwrap();
            assert_eq!(tap.caps().link, Link::Ethernet);
            let me = [2, 0, 0, 0, 0, 9];
            let mut frame = [&[0xff; 6][..], &me, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &me].concat();
            frame.extend([10, 8, 0, 2, 0, 0, 0, 0, 0, 0, 10, 8, 0, 1]);
            let request = Packet::from_frame(Slice::copied_from(&frame));
            tap.transmit(&mut [request].into()).unwrap();
            let answer = expect(&mut tap, |p| p.layers.ethertype == ethertype::ARP);
            let answer = answer.to_bytes();
            assert_eq!(answer[..6], me);
            assert_eq!(answer[20..22], [0, 2]);
            assert_eq!(answer[28..32], [10, 8, 0, 1]);
        }
    });
}

#[test]
fn interface_settings() {
    in_own_network(|| {
        let tun = Tun::tun("fs%d").mtu(9000).open().unwrap();
        assert_eq!((tun.name(), tun.caps().mtu), ("fs0", 9000));
        let refused = Tun::tun("fs%d").mtu(20).open().map(drop).unwrap_err();
        assert!(refused.to_string().contains("mtu 20"), "{refused}");
        // An interface that exists keeps its settings, and adding an address twice is no error.
        for command in ["tuntap add dev fs7 mode tun", "link set dev fs7 mtu 1300"] {
            let status = Command::new("ip").args(command.split(' ')).status();
            assert!(status.unwrap().success(), "{command}");
        }
        let address = "10.7.0.1".parse().unwrap();
        let tun = Tun::tun("fs7")
            .kernel_address(address, 24)
            .kernel_address(address, 24);
        assert_eq!(tun.open().unwrap().caps().mtu, 1300);
    });
}

#[test]
fn the_queue_is_longer_than_the_drivers_default() {
    in_own_network(|| {
        let (kernel, ours) = both_families()[0];
        let room = 4096;
        for set in ["none", "all"] {
            let builder = Tun::tun("fs%d").offload(set.parse().unwrap());
            let mut tun = builder.kernel_address(kernel, 24).open().unwrap();
            let socket = UdpSocket::bind((kernel, 0)).unwrap();
            for _ in 0..5000 {
                // If the device has no room, the result is an error (ENOBUFS) or success.
                let _ = socket.send_to(b"x", (ours, 7));
            }
            let mut batch = Vec::new();
            let got = tun.receive(&mut batch, 5000).unwrap();
            assert!((room - 10..=room).contains(&got), "{set}: {got}");
        }
    });
}

#[test]
fn queues_share_an_interface() {
    in_own_network(|| {
        let (kernel, ours) = both_families()[0];
        let builder = Tun::tun("fsq").kernel_address(kernel, 24);
        let pools = [0; 3].map(Pool::new);
        let mut queues = builder.open_queues(&pools).unwrap();
        assert_eq!(queues.len(), 3);
        let socket = UdpSocket::bind((kernel, 0)).unwrap();
        for port in 1000..1100 {
            socket.send_to(b"x", (ours, port)).unwrap();
        }
        let mut batch = Vec::new();
        for queue in &mut queues {
            queue.receive(&mut batch, 1000).unwrap();
        }
        let mut udp = 0;
        for mut packet in batch {
            packet.parse(Link::Ip).unwrap();
            udp += usize::from(packet.layers.protocol == protocol::UDP);
        }
        assert_eq!(udp, 100);
    });
}

#[test]
fn errors_have_instructions() {
    let error = |builder: super::TunBuilder| builder.open().map(drop).unwrap_err();
    for name in ["a-name-of-16-byte", "a/b", "a b", ".."] {
        let open_error = error(Tun::tun(name));
        assert!(
            matches!(open_error, OpenError::BadName { .. }),
            "{open_error}"
        );
        assert!(open_error.to_string().contains(name), "{open_error}");
        // The text that a `main` that returns `io::Result` prints.
        let shown = format!("{:?}", std::io::Error::from(open_error));
        assert!(
            shown.contains("is not an interface name; use 1 to 15"),
            "{shown}"
        );
    }
    in_own_network(move || {
        let _tun = Tun::tun("taken").open().unwrap();
        assert!(matches!(error(Tun::tun("taken")), OpenError::Busy { .. }));
        assert!(matches!(
            error(Tun::tap("taken")),
            OpenError::WrongKind { .. }
        ));
        assert!(matches!(error(Tun::tun("lo")), OpenError::WrongKind { .. }));
    });
}

#[test]
fn a_small_poll_reuses_the_read_buffer() {
    in_own_network(|| {
        let mut tun = open("all");
        let (kernel, ours) = both_families()[0];
        let socket = UdpSocket::bind((kernel, 0)).unwrap();
        socket.send_to(&[1; 100], (ours, 7)).unwrap();
        let packet = expect_protocol(&mut tun, protocol::UDP);
        assert!(
            packet.payload.pinned() <= 512,
            "{}",
            packet.payload.pinned()
        );
    });
}

#[test]
fn many_frames_fill_several_buffers_in_order() {
    in_own_network(|| {
        let mut tun = open("all");
        let (kernel, ours) = both_families()[0];
        let socket = UdpSocket::bind((kernel, 0)).unwrap();
        for n in 0..40u8 {
            socket.send_to(&[n; 1400], (ours, 7)).unwrap();
            set_udp_segment(socket.as_fd(), 1400).unwrap();
            socket.send_to(&vec![n; 28_000], (ours, 7)).unwrap();
            set_udp_segment(socket.as_fd(), 0).unwrap();
        }
        let mut batch = Vec::new();
        tun.receive(&mut batch, 1000).unwrap();
        let mut received = Vec::new();
        for mut packet in batch {
            packet.parse(Link::Ip).unwrap();
            if packet.layers.protocol == protocol::UDP {
                received.push((packet.payload.slices()[0][0], packet.payload.len()));
            }
        }
        let want: Vec<_> = (0..40u8).flat_map(|n| [(n, 1400), (n, 28_000)]).collect();
        assert_eq!(received, want);
    });
}

#[test]
fn frames_without_memory_are_counted_and_reads_stay_bounded() {
    for has_memory in [false, true] {
        let (kernel, ours) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let file = File::from(OwnedFd::from(ours));
        let pool = Pool::new(1 << 20);
        let mut receiver = FrameReader::new(pool.clone(), false);
        let (mut stats, mut batch) = (TunStats::default(), Vec::new());
        if has_memory {
            kernel.send(&[1; 100]).unwrap();
            assert_eq!(
                receiver
                    .receive(
                        |buf: &mut [u8]| (&file).read(buf),
                        &mut batch,
                        3,
                        &mut stats
                    )
                    .unwrap(),
                1
            );
            assert_eq!(batch.drain(..).len(), 1);
        }
        pool.set_reserve(usize::MAX);
        let stock = std::iter::from_fn(|| pool.try_alloc_from_reserve(256 << 10));
        let _stock: Vec<_> = stock.collect();
        for _ in 0..8 {
            kernel.send(&[2; 100]).unwrap();
        }
        let mut receive = || {
            receiver
                .receive(
                    |buf: &mut [u8]| (&file).read(buf),
                    &mut batch,
                    3,
                    &mut stats,
                )
                .unwrap()
        };
        assert_eq!([(); 4].map(|()| receive()), [3, 3, 2, 0]);
        assert!(batch.is_empty());
        assert_eq!(stats.rx_dropped, 8);
    }
}

#[test]
fn adopts_a_file_from_another_network_namespace() {
    in_own_network(|| {
        let builder = || Tun::tap("fs0").offload("csum,tso".parse().unwrap());
        // Another thread enters the namespace of the interface; this one stays outside.
        let open = std::thread::spawn(move || {
            unshare_network().unwrap();
            builder().open_file().unwrap()
        });
        let (file, name) = open.join().unwrap();
        assert_eq!(name, "fs0");
        assert!(matches!(
            Tun::tun("fs0").adopt(file.try_clone().unwrap()),
            Err(OpenError::WrongKind { .. })
        ));
        let mut tap = builder().mtu(9000).adopt(file).unwrap();
        assert_eq!((tap.name(), tap.caps().mtu), ("fs0", 9000));
        assert_eq!(tap.offload().to_string(), "vnet_hdr,csum,tso4,tso6");
        assert_eq!(tap.receive(&mut Vec::new(), 1).unwrap(), 0, "non-blocking");
    });
}

#[test]
fn adopting_a_file_without_a_header_turns_offloads_off() {
    in_own_network(|| {
        let builder = || {
            let [(kernel, _), _] = both_families();
            Tun::tun("fs0").kernel_address(kernel, 24)
        };
        let none = || builder().offload("none".parse().unwrap());
        let (file, _) = none().open_file().unwrap();
        // Another program has left the offload of checksums on.
        crate::sys::tun_set_offload(file.as_fd(), libc::TUN_F_CSUM).unwrap();
        let mut tun = none().adopt(file).unwrap();
        let status = Command::new("ip")
            .args("addr add 10.9.0.1/24 dev fs0".split(' '))
            .status();
        assert!(status.unwrap().success());
        let status = Command::new("ip")
            .args("link set fs0 up".split(' '))
            .status();
        assert!(status.unwrap().success());
        let (kernel, ours) = both_families()[0];
        let socket = UdpSocket::bind((kernel, 0)).unwrap();
        socket.send_to(&[1; 100], (ours, 7)).unwrap();
        let packet = expect_protocol(&mut tun, protocol::UDP);
        let (IpAddr::V4(kernel), IpAddr::V4(ours)) = (kernel, ours) else {
            unreachable!();
        };
        let datagram = packet.to_bytes().split_off(20);
        let len = datagram.len() as u32;
        let pseudo = Sum::pseudo(kernel.into(), ours.into(), protocol::UDP, len);
        assert_eq!(
            (pseudo + sum(&datagram)).checksum(),
            0,
            "a partial checksum"
        );
    });
}

#[test]
fn refuses_to_adopt_another_file() {
    let file = OwnedFd::from(File::open("/dev/null").unwrap());
    assert!(Tun::tap("fs0").adopt(file).is_err());
}

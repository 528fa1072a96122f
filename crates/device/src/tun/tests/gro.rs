//! GRO between two kernels: one sends a stream with no offload at all, we coalesce what it sends,
//! cut it again, and the other must read the very stream.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use fullsend_offload::{Encap, Gro, GroConfig, Link, Packet, Tunnels, segment};
use fullsend_units::Instant;

use super::*;
use crate::sys::testing::set_destination_options;

/// Bytes of the stream.
const LEN: usize = 8 << 20;

/// How the stream travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    V4,
    V6,
    /// Destination options on every packet (RFC 3542).
    V6Options,
    /// VXLAN over IPv4, with a checksum in the outer UDP header or without.
    Vxlan {
        summed: bool,
    },
}

impl Way {
    /// The address of end 1 or 2.
    fn address(self, end: u8) -> IpAddr {
        let text = match self {
            Self::V4 => format!("10.9.0.{end}"),
            Self::V6 | Self::V6Options => format!("fd09::{end}"),
            Self::Vxlan { .. } => format!("10.8.0.{end}"),
        };
        text.parse().unwrap()
    }

    /// The kernel's side of a TUN without any offload, and what lies above it.
    fn open(self, end: u8) -> Tun {
        let mut builder = Tun::tun("fs%d").offload("none".parse().unwrap());
        for (address, prefix) in [(format!("10.9.0.{end}"), 24), (format!("fd09::{end}"), 64)] {
            builder = builder.kernel_address(address.parse().unwrap(), prefix);
        }
        let tun = builder.open().unwrap();
        if let Self::Vxlan { summed } = self {
            let checksum = if summed { "udpcsum" } else { "noudpcsum" };
            let other = 3 - end;
            ip(&format!(
                "link add vx0 type vxlan id 42 local 10.9.0.{end} remote 10.9.0.{other} \
                 dstport 4789 {checksum}"
            ));
            ip(&format!("addr add 10.8.0.{end}/24 dev vx0"));
            ip("link set vx0 up");
        }
        tun
    }
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split_whitespace()).status();
    assert!(status.unwrap().success(), "ip {words}");
}

fn stream() -> Vec<u8> {
    (0..LEN as u32)
        .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8)
        .collect()
}

/// The kernel that sends: hands its TUN out, waits for the other, writes.
fn sender(way: Way, tun: &Sender<Tun>, port: &Receiver<u16>) {
    tun.send(way.open(1)).unwrap();
    let to = (way.address(2), port.recv().unwrap());
    // The route of a new IPv6 address may take a moment.
    let connect = |_| TcpStream::connect(to).map_err(|_| thread::sleep(Duration::from_millis(20)));
    let mut socket = (0..100)
        .find_map(|n| connect(n).ok())
        .expect("a connection");
    if way == Way::V6Options {
        set_destination_options(socket.as_fd(), &[0, 0, 1, 4, 0, 0, 0, 0]).unwrap();
    }
    socket.write_all(&stream()).unwrap();
}

/// The kernel that receives.
fn receiver(way: Way, tun: &Sender<Tun>, port: &Sender<u16>) -> Vec<u8> {
    tun.send(way.open(2)).unwrap();
    let bind = |_| {
        TcpListener::bind((way.address(2), 0)).map_err(|_| thread::sleep(Duration::from_millis(20)))
    };
    let listener = (0..100).find_map(|n| bind(n).ok()).expect("an address");
    port.send(listener.local_addr().unwrap().port()).unwrap();
    let mut got = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
    got
}

/// What was forwarded from the sender.
#[derive(Default, Debug)]
struct Seen {
    packets: u32,
    super_segments: u32,
    largest: u32,
    tunnelled: bool,
    extended: bool,
}

/// Carries packets until the receiver is through.
fn forward(from: &mut Tun, to: &mut Tun, done: impl Fn() -> bool) -> Seen {
    let mut gro = Gro::new(GroConfig {
        tunnels: Tunnels::STANDARD,
        ..GroConfig::new(Link::Ip)
    });
    let (mut seen, mut frames) = (Seen::default(), Vec::new());
    while !done() {
        // A pause lets what is sent in one go arrive in one go.
        thread::sleep(Duration::from_millis(2));
        from.receive(&mut frames, 1000).unwrap();
        let (mut joined, mut cut) = (Vec::new(), Vec::new());
        gro.receive_batch(Instant::ZERO, &mut frames);
        gro.flush(&mut joined);
        for packet in joined {
            seen.count(&packet);
            segment(packet, &mut cut);
        }
        let mut batch = VecDeque::from(cut);
        to.transmit(&mut batch).unwrap();
        to.receive(&mut frames, 1000).unwrap();
        from.transmit(&mut frames.drain(..).collect()).unwrap();
    }
    seen
}

impl Seen {
    fn count(&mut self, packet: &Packet) {
        let layers = &packet.layers;
        self.packets += packet.segments();
        self.super_segments += 1;
        self.largest = self.largest.max(packet.segments());
        let many = packet.segments() > 1;
        self.tunnelled |= many && layers.encap == Encap::Udp;
        let is_extended = layers.ethertype == ethertype::IPV6 && layers.transport > 40;
        self.extended |= many && is_extended;
    }
}

fn run(way: Way) {
    in_own_network(move || {
        let ((tun, tuns), (port, ports)) = (channel(), channel());
        let other = tun.clone();
        let sends = thread::spawn(move || in_this_network(|| sender(way, &tun, &ports)));
        let mut from = tuns.recv().unwrap();
        let receives = thread::spawn(move || in_this_network(|| receiver(way, &other, &port)));
        let mut to = tuns.recv().unwrap();
        let seen = forward(&mut from, &mut to, || receives.is_finished());
        assert!(receives.join().unwrap() == stream(), "{way:?}");
        sends.join().unwrap();
        println!("{way:?}: {seen:?}");
        // As full as 64 KiB allow at an MTU of 1500; VXLAN takes 50 bytes more of each packet.
        assert!(seen.largest >= 44, "{way:?} {seen:?}");
        assert_eq!(seen.tunnelled, matches!(way, Way::Vxlan { .. }));
        assert_eq!(seen.extended, way == Way::V6Options);
    });
}

/// In a network namespace of this thread's own.
fn in_this_network<T>(what: impl FnOnce() -> T) -> T {
    crate::sys::testing::enter_own_network().unwrap();
    what()
}

#[test]
fn a_kernels_stream_is_coalesced_and_cut_again() {
    run(Way::V4);
    run(Way::V6);
}

#[test]
fn extension_headers_of_a_kernels_socket_do_not_hinder() {
    run(Way::V6Options);
}

#[test]
fn a_kernels_vxlan_is_coalesced_through() {
    run(Way::Vxlan { summed: false });
    run(Way::Vxlan { summed: true });
}

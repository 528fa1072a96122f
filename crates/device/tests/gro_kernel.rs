//! GRO and GSO between two kernels: each in a network namespace of its own, with all packets
//! between them forwarded by the gateway example. Needs root.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fullsend_device::{Caps, Device, OffloadSet, Tun};
use fullsend_offload::{Link, Packet};

#[path = "../examples/gro_gateway/forward.rs"]
mod forward;
use forward::{ForwardStats, Forwarder};

/// Bytes from the client to the server, and back.
const CLIENT_BYTES: usize = 6 << 20;
const SERVER_BYTES: usize = 1 << 20;
const PORT: u16 = 7000;
/// Timeout of sockets: a longer wait means that bytes were lost.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The configuration of the path between the two kernels.
#[derive(Clone, Copy)]
struct PathConfig {
    link: Link,
    v6: bool,
    /// Offloads of the second kernel's device; the first has none.
    second: &'static str,
    /// Extension headers on every packet with data: option and bytes (RFC 3542 6).
    sticky: &'static [(libc::c_int, &'static [u8])],
    /// Arguments for `ip link add type vxlan`, and whether the outer packets are IPv6.
    vxlan: Option<(&'static str, bool)>,
}

const PLAIN: PathConfig = PathConfig {
    link: Link::Ethernet,
    v6: false,
    second: "none",
    sticky: &[],
    vxlan: None,
};

const PLAIN_V6: PathConfig = PathConfig { v6: true, ..PLAIN };

/// Eight bytes of one padding option; the kernel fills in the next header.
const PADDED: &[u8] = &[0, 0, 1, 4, 0, 0, 0, 0];
/// A header of 16 bytes with two padding options; the kernel fills in the next header.
const PADDED_16: &[u8] = &[0, 1, 1, 4, 0, 0, 0, 0, 0x1e, 6, 1, 2, 3, 4, 5, 6];
const HOP_BY_HOP: (libc::c_int, &[u8]) = (libc::IPV6_HOPOPTS, PADDED);
const DESTINATION: (libc::c_int, &[u8]) = (libc::IPV6_DSTOPTS, PADDED_16);
/// A segment routing header (RFC 8754) with no segments left, at its last segment: the server.
/// Of the other types, Linux refuses 0 (RFC 5095), and 2 unless it is built with Mobile IPv6.
const ROUTING: (libc::c_int, &[u8]) = (libc::IPV6_RTHDR, ROUTED);
const ROUTED: &[u8] = &[
    0, 2, 4, 0, 0, 0, 0, 0, 0xfd, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
];

impl PathConfig {
    /// Returns the host's address on the underlay, or inside the VXLAN.
    fn address(&self, host: u8, inner: bool) -> IpAddr {
        let net = if inner { 8 } else { 7 };
        let v6 = match self.vxlan {
            Some((_, outer_v6)) if !inner => outer_v6,
            _ => self.v6,
        };
        let text = if v6 {
            format!("fd0{net}::{host}")
        } else {
            format!("10.{net}.0.{host}")
        };
        text.parse().unwrap()
    }

    /// Returns the address of the host's program.
    fn socket(&self, host: u8) -> SocketAddr {
        (self.address(host, self.vxlan.is_some()), PORT).into()
    }

    /// Opens the device of a host and configures the kernel's side.
    fn open(&self, host: u8) -> Tun {
        let builder = match self.link {
            Link::Ip => Tun::tun("gro"),
            Link::Ethernet => Tun::tap("gro"),
        };
        let offload: OffloadSet = if host == 1 { "none" } else { self.second }
            .parse()
            .unwrap();
        let underlay = self.address(host, false);
        let tun = builder
            .offload(offload)
            .kernel_address(underlay, bits(underlay))
            .open()
            .unwrap();
        assert_eq!((tun.warnings(), tun.offload()), (&[][..], offload));
        if let Some((words, _)) = self.vxlan {
            let (remote, inner) = (self.address(3 - host, false), self.address(host, true));
            let bits = bits(inner);
            ip(&format!(
                "link add vx type vxlan id 42 local {underlay} remote {remote} dstport 4789 \
                 nolearning {words}"
            ));
            let nodad = if inner.is_ipv6() { " nodad" } else { "" };
            ip(&format!("address add {inner}/{bits} dev vx{nodad}"));
            ip("link set vx up");
        }
        tun
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split_whitespace()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
}

/// Returns pseudorandom bytes, so that a displaced byte is detected anywhere.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Starts a kernel: runs `program` on a thread in a new network namespace, after it has opened its
/// device and passed it to `devices`.
fn host(
    case: PathConfig,
    number: u8,
    devices: &Sender<Tun>,
    program: fn(&PathConfig),
) -> JoinHandle<()> {
    let devices = devices.clone();
    thread::spawn(move || {
        // SAFETY: changes kernel-side state of this thread only.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        ip("link set lo up");
        let device = case.open(number);
        if case.sticky.contains(&ROUTING) {
            // Linux drops segment routing headers unless it is configured to accept them.
            for name in ["all", "gro"] {
                let path = format!("/proc/sys/net/ipv6/conf/{name}/seg6_enabled");
                std::fs::write(path, "1").unwrap();
            }
        }
        devices.send(device).unwrap();
        program(&case);
    })
}

/// A device with a summary of all frames that passed it: their number, and a sum that does not
/// depend on their order, as packets of different flows may be reordered.
struct RecordingDevice {
    tun: Tun,
    received: FrameDigest,
    sent: FrameDigest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct FrameDigest {
    count: u64,
    sum: u64,
    /// IPv6 packets with extension headers.
    extended: u64,
}

impl FrameDigest {
    fn add(&mut self, packet: &Packet, link: Link) {
        let bytes = packet.to_bytes();
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        let network = if link == Link::Ip {
            &bytes
        } else {
            &bytes[14..]
        };
        let extended = network[0] >> 4 == 6 && matches!(network[6], 0 | 43 | 60);
        self.extended += u64::from(extended);
        self.count += 1;
        self.sum = self.sum.wrapping_add(hasher.finish());
    }
}

impl RecordingDevice {
    fn new(tun: Tun) -> Self {
        Self {
            tun,
            received: FrameDigest::default(),
            sent: FrameDigest::default(),
        }
    }
}

impl Device for RecordingDevice {
    fn caps(&self) -> Caps {
        self.tun.caps()
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let (packets, link) = (batch.clone(), self.caps().link);
        self.tun.transmit(batch)?;
        let taken = packets.len() - batch.len();
        packets
            .iter()
            .take(taken)
            .for_each(|p| self.sent.add(p, link));
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let (before, link) = (batch.len(), self.caps().link);
        let got = self.tun.receive(batch, max)?;
        let new = batch[before..].iter();
        new.for_each(|p| self.received.add(p, link));
        Ok(got)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.tun.fd()
    }
}

/// Waits up to 20 ms until one of the devices is readable.
fn wait(devices: [&RecordingDevice; 2]) {
    let mut poll = devices.map(|device| libc::pollfd {
        fd: device.fd().unwrap().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: the pointer and length are those of a live array.
    unsafe { libc::poll(poll.as_mut_ptr(), 2, 20) };
}

/// Runs `client` on the first kernel and `server` on the second until both are done; returns the
/// counters of the direction from the first to the second. `None` without root.
fn run_between(
    case: PathConfig,
    client: fn(&PathConfig),
    server: fn(&PathConfig),
) -> Option<ForwardStats> {
    // SAFETY: only reads the process's user id.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: needs root, for network namespaces and TUN devices");
        return None;
    }
    let (devices, opened) = channel();
    // The server's kernel starts first. Until it listens, the client tries again.
    let mut hosts = vec![host(case, 2, &devices, server)];
    let second = opened.recv_timeout(TIMEOUT).expect("the second host is up");
    hosts.push(host(case, 1, &devices, client));
    let first = opened.recv_timeout(TIMEOUT).expect("the first host is up");
    let (mut first, mut second) = (RecordingDevice::new(first), RecordingDevice::new(second));
    let (mut there, mut back) = (Forwarder::new(case.link), Forwarder::new(case.link));
    while hosts.iter().any(|host| !host.is_finished()) {
        wait([&first, &second]);
        // Like a network card's interrupt moderation: packets that arrive in a burst are read
        // together.
        thread::sleep(Duration::from_micros(300));
        there.poll(&mut first, &mut second).unwrap();
        back.poll(&mut second, &mut first).unwrap();
    }
    for host in hosts {
        host.join().unwrap();
    }
    for device in [&first, &second] {
        let stats = device.tun.stats();
        assert_eq!((stats.rx_dropped, stats.tx_dropped), (0, 0));
    }
    // GRO followed by GSO restores every packet.
    if case.second == "none" {
        assert_eq!(first.received, second.sent);
        assert_eq!(second.received, first.sent);
    }
    // The packets carried the extension headers that the socket was set to send with its data.
    let outside = !case.sticky.is_empty() && case.vxlan.is_none();
    let all_data = first.received.extended >= there.stats.segments.saturating_sub(100);
    assert!(all_data || !outside, "{:?}", first.received);
    println!(
        "there {:.1} segments per super-segment, {:?}",
        there.stats.mean(),
        there.stats
    );
    Some(there.stats)
}

fn set_sticky(stream: &TcpStream, options: &[(libc::c_int, &[u8])]) {
    for (name, bytes) in options {
        // SAFETY: the pointer and length are those of a live slice.
        let result = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_IPV6,
                *name,
                bytes.as_ptr().cast(),
                bytes.len() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0, "{name}: {}", io::Error::last_os_error());
    }
}

/// Retries `attempt`: the kernel installs the routes of an address a moment after the address.
fn retry<T>(mut attempt: impl FnMut() -> io::Result<T>) -> T {
    for _ in 0..100 {
        match attempt() {
            Ok(value) => return value,
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
    attempt().unwrap()
}

/// Sends a stream and reads one back.
fn tcp_client(case: &PathConfig) {
    let mut stream = retry(|| TcpStream::connect(case.socket(2)));
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    set_sticky(&stream, case.sticky);
    stream.write_all(&pattern(CLIENT_BYTES, 1)).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got == pattern(SERVER_BYTES, 2), "the answer differs");
}

/// Reads a stream, then sends one back.
fn tcp_server(case: &PathConfig) {
    let listener = retry(|| TcpListener::bind(case.socket(2)));
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got == pattern(CLIENT_BYTES, 1), "the stream differs");
    stream.write_all(&pattern(SERVER_BYTES, 2)).unwrap();
}

/// Checks that a stream arrives intact, and most of its packets in large super-segments.
fn assert_coalesced(case: PathConfig) {
    let Some(stats) = run_between(case, tcp_client, tcp_server) else {
        return;
    };
    assert!(stats.bytes >= CLIENT_BYTES as u64, "{stats:?}");
    assert!(stats.mean() > 5.0, "{stats:?}");
    // As full as 64 KiB allow at an MTU of 1500; packets in a tunnel are shorter.
    assert!(
        stats.max_len > 60_000 && stats.max_segments >= 44,
        "{stats:?}"
    );
    assert_eq!(stats.tunnelled > 0, case.vxlan.is_some(), "{stats:?}");
    let extended = !case.sticky.is_empty() && case.vxlan.is_none();
    assert_eq!(stats.extended > 0, extended, "{stats:?}");
}

/// Checks that a stream passes a VXLAN of one family, with inner packets of each family.
fn check_vxlan_coalescing(words: &'static str, outer_v6: bool) {
    for case in [PLAIN, PLAIN_V6] {
        assert_coalesced(PathConfig {
            vxlan: Some((words, outer_v6)),
            ..case
        });
    }
}

/// Number of datagrams that one call sends, and their size in bytes.
const DATAGRAMS: usize = 24;
const DATAGRAM: usize = 1200;
const CALLS: u64 = 100;
/// Sent until it is answered: then all routes are installed.
const HELLO: &[u8] = b"hello";

/// Sends datagrams in bursts, and waits for an acknowledgement of each burst.
fn udp_client(case: &PathConfig) {
    let socket = retry(|| UdpSocket::bind((case.address(1, false), 0)));
    retry(|| socket.connect(case.socket(2)));
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let size = DATAGRAM as libc::c_int;
    // SAFETY: the option reads one int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const size).cast(),
            size_of_val(&size) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "UDP_SEGMENT");
    let mut buf = [0; 8];
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    retry(|| socket.send(HELLO).and_then(|_| socket.recv(&mut buf)));
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    for call in 0..CALLS {
        let data = pattern(DATAGRAMS * DATAGRAM, call);
        assert_eq!(socket.send(&data).unwrap(), data.len());
        // More than one hello may have been answered.
        while buf != call.to_be_bytes() {
            socket.recv(&mut buf).unwrap();
        }
    }
}

fn udp_server(case: &PathConfig) {
    let socket = retry(|| UdpSocket::bind(case.socket(2)));
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut buf = [0; 2000];
    for call in 0..CALLS {
        let mut from = None;
        for datagram in pattern(DATAGRAMS * DATAGRAM, call).chunks(DATAGRAM) {
            let (mut len, mut client) = socket.recv_from(&mut buf).unwrap();
            while buf[..len] == *HELLO {
                socket.send_to(&u64::MAX.to_be_bytes(), client).unwrap();
                (len, client) = socket.recv_from(&mut buf).unwrap();
            }
            assert!(buf[..len] == *datagram, "call {call}: a datagram differs");
            from = Some(client);
        }
        socket.send_to(&call.to_be_bytes(), from.unwrap()).unwrap();
    }
}

#[test]
fn vxlan_is_coalesced() {
    check_vxlan_coalescing("noudpcsum", false);
    check_vxlan_coalescing("udpcsum", false);
    check_vxlan_coalescing("udp6zerocsumtx udp6zerocsumrx", true);
    check_vxlan_coalescing("noudp6zerocsumtx noudp6zerocsumrx", true);
    assert_coalesced(PathConfig {
        vxlan: Some(("noudpcsum", false)),
        sticky: &[HOP_BY_HOP, DESTINATION],
        ..PLAIN_V6
    });
}

#[test]
fn datagrams_of_equal_size_are_coalesced() {
    for case in [PLAIN, PLAIN_V6] {
        for (link, second) in [(Link::Ethernet, "none"), (Link::Ip, "all")] {
            let case = PathConfig {
                link,
                second,
                ..case
            };
            let Some(stats) = run_between(case, udp_client, udp_server) else {
                return;
            };
            assert!(stats.mean() > 5.0, "{stats:?}");
        }
    }
}

#[test]
fn tap_packets_are_coalesced() {
    assert_coalesced(PLAIN);
    assert_coalesced(PLAIN_V6);
}

#[test]
fn tun_packets_are_coalesced() {
    let tun = PathConfig {
        link: Link::Ip,
        ..PLAIN
    };
    assert_coalesced(tun);
    assert_coalesced(PathConfig { v6: true, ..tun });
}

#[test]
fn super_segments_are_not_segmented_for_a_device_with_tso() {
    let whole = PathConfig {
        second: "all",
        ..PLAIN
    };
    assert_coalesced(whole);
    assert_coalesced(PathConfig { v6: true, ..whole });
}

#[test]
fn packets_with_extension_headers_are_coalesced() {
    let option_sets: [&'static [_]; 5] = [
        &[DESTINATION],
        &[HOP_BY_HOP],
        &[ROUTING],
        &[HOP_BY_HOP, DESTINATION],
        &[HOP_BY_HOP, ROUTING, DESTINATION],
    ];
    for sticky in option_sets {
        assert_coalesced(PathConfig { sticky, ..PLAIN_V6 });
    }
    assert_coalesced(PathConfig {
        link: Link::Ip,
        second: "all",
        sticky: &[DESTINATION],
        ..PLAIN_V6
    });
}

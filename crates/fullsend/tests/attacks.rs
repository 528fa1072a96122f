//! An attacker beside a peer: its packets reset no connection, change no byte, and are answered at a
//! bounded rate, with one shard and with four. `crates/stack/tests/attacks` measures throughput and
//! memory as well, with one host.

#![allow(clippy::unnecessary_wraps, reason = "the attacks have one signature")]

mod common;
#[path = "../../stack/tests/common/forge.rs"]
#[allow(dead_code, reason = "shared with the tests of another crate")]
mod forge;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::{carry, counter, pattern, paused};
use fullsend::{
    Device, Packet, PacketReceiver, PacketSender, Slice, Stack, TcpListener, TcpStream,
    UserDeviceConfig,
};
use fullsend_device::user_device;
use fullsend_wire::icmpv4::Icmpv4Repr;
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::ipv4::Ipv4Repr;
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{Rng, Seed, SeqNum};
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// Packets of each attack, and how long it takes in milliseconds.
const PACKETS: usize = 20_000;
const SPAN_MS: usize = 1000;
/// Bytes that each connection carries in each direction.
const BYTES: usize = 400_000;
/// The limit of RSTs of a stack, of all its shards together.
const RSTS_PER_SECOND: u64 = 1000;
/// The listener's backlog.
const BACKLOG: usize = 64;

const VICTIM: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
];
const PEER: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
];

/// The last segment from each sender to each receiver, as an observer sees it.
type Directions = BTreeMap<(SocketAddr, SocketAddr), TcpRepr>;

/// The inputs of an attack: random numbers and the flows, whose 4-tuples it knows.
struct Attacker {
    rng: Rng,
    directions: Arc<Mutex<Directions>>,
}

impl Attacker {
    fn seq(&mut self) -> SeqNum {
        SeqNum::new(self.rng.next_u32())
    }

    fn is_v6(&mut self) -> usize {
        usize::from(self.rng.chance(0.5))
    }

    /// Returns a random address that belongs to neither host.
    fn source(&mut self, is_v6: usize) -> SocketAddr {
        let port = 1 + self.rng.below(65_000) as u16;
        let [.., a, b, c] = self.rng.next_u32().to_be_bytes();
        let ip: IpAddr = match is_v6 {
            0 => Ipv4Addr::new(11, a, b, c).into(),
            _ => Ipv6Addr::from_bits(0xfd01 << 112 | u128::from(self.rng.next_u64())).into(),
        };
        SocketAddr::new(ip, port)
    }

    /// Returns a flow's direction towards the victim, with its last segment.
    fn flow_to_victim(&mut self) -> Option<(SocketAddr, SocketAddr, TcpRepr)> {
        let directions = self.directions.lock();
        let all = directions.iter().filter(|((_, to), _)| to.port() == 80);
        let all: Vec<_> = all.collect();
        let (&(from, to), &repr) = *all.get(self.rng.below(all.len().max(1) as u64) as usize)?;
        Some((from, to, repr))
    }
}

/// Returns a packet of an attack; `None` if it needs a flow and has observed none yet.
type Attack = fn(&mut Attacker) -> Option<Packet>;

fn syn_to(attacker: &mut Attacker, port: u16) -> Packet {
    let is_v6 = attacker.is_v6();
    let from = attacker.source(is_v6);
    let repr = forge::syn(&mut attacker.rng);
    forge::tcp(from, SocketAddr::new(VICTIM[is_v6], port), repr, b"")
}

/// Returns a segment with the 4-tuple of a flow.
fn spoof(
    attacker: &mut Attacker,
    flags: TcpFlags,
    seq_and_ack: impl FnOnce(&TcpRepr, &mut Rng) -> (SeqNum, SeqNum),
) -> Option<Packet> {
    let (from, to, last) = attacker.flow_to_victim()?;
    let (seq, ack) = seq_and_ack(&last, &mut attacker.rng);
    let repr = TcpRepr {
        flags,
        seq,
        ack,
        ..last
    };
    Some(forge::tcp(from, to, repr, b""))
}

fn syns_to_a_listener(attacker: &mut Attacker) -> Option<Packet> {
    Some(syn_to(attacker, 80))
}

fn syns_to_a_closed_port(attacker: &mut Attacker) -> Option<Packet> {
    Some(syn_to(attacker, 81))
}

fn guessed_resets(attacker: &mut Attacker) -> Option<Packet> {
    spoof(attacker, TcpFlags::RST, |last, rng| {
        (SeqNum::new(rng.next_u32()), last.ack)
    })
}

fn syns_in_connections(attacker: &mut Attacker) -> Option<Packet> {
    spoof(attacker, TcpFlags::SYN, |last, rng| {
        (SeqNum::new(rng.next_u32()), last.ack)
    })
}

fn acks_of_unsent_data(attacker: &mut Attacker) -> Option<Packet> {
    spoof(attacker, TcpFlags::ACK, |last, rng| {
        (last.seq, last.ack + 100_000_000 + rng.next_u32() / 4)
    })
}

fn segments_of_no_connection(attacker: &mut Attacker) -> Option<Packet> {
    let is_v6 = attacker.is_v6();
    let from = attacker.source(is_v6);
    let to = SocketAddr::new(VICTIM[is_v6], attacker.rng.next_u32() as u16);
    let repr = TcpRepr {
        flags: TcpFlags(attacker.rng.below(0x200) as u16),
        seq: attacker.seq(),
        ack: attacker.seq(),
        ..TcpRepr::default()
    };
    Some(forge::tcp(from, to, repr, b"hello"))
}

/// TCP fragments: the first shard reassembles them, and passes whole segments on.
fn fragments(attacker: &mut Attacker) -> Option<Packet> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (attacker.source(0).ip(), VICTIM[0]) else {
        return None;
    };
    let len = 8 * (1 + attacker.rng.below(180) as usize);
    let repr = Ipv4Repr {
        ident: attacker.rng.next_u32() as u16,
        dont_fragment: false,
        more_fragments: attacker.rng.chance(0.9),
        fragment_offset: 8 * attacker.rng.below(8000) as u16,
        ..Ipv4Repr::new(from, to, protocol::TCP, len as u16)
    };
    let mut bytes = vec![0xee; 20 + len];
    repr.emit(&mut bytes);
    Some(Packet::from_frame(Slice::copied_from(&bytes)))
}

fn datagrams_to_closed_ports(attacker: &mut Attacker) -> Option<Packet> {
    let from = attacker.source(0).ip();
    let port = attacker.rng.next_u32().to_be_bytes();
    let datagram = [0, 9, port[0], port[1], 0, 8, 0, 0];
    Some(forge::ip(from, VICTIM[0], protocol::UDP, &datagram))
}

/// ICMP "port unreachable" of a router about a segment that the victim has never sent.
fn unreachables(attacker: &mut Attacker) -> Option<Packet> {
    let (from, to, _) = attacker.flow_to_victim()?;
    let mut tcp = [0; 20];
    tcp[..2].copy_from_slice(&to.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&from.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&attacker.rng.next_u32().to_be_bytes());
    tcp[12] = 0x50;
    let quote = &forge::ip_bytes(to.ip(), from.ip(), protocol::TCP, &tcp);
    let router = attacker.source(usize::from(from.is_ipv6())).ip();
    Some(match (router, to.ip()) {
        (IpAddr::V6(router), IpAddr::V6(victim)) => {
            let repr = Icmpv6Repr::Unreachable { code: 4, quote };
            let mut bytes = vec![0; repr.len()];
            repr.emit(router, victim, &mut bytes);
            forge::ip(router.into(), victim.into(), protocol::ICMPV6, &bytes)
        }
        (router, victim) => {
            let (code, mtu) = (3, 0);
            let repr = Icmpv4Repr::Unreachable { code, mtu, quote };
            let mut bytes = vec![0; repr.len()];
            repr.emit(&mut bytes);
            forge::ip(router, victim, protocol::ICMP, &bytes)
        }
    })
}

fn random_bytes(attacker: &mut Attacker) -> Option<Packet> {
    let len = 1 + attacker.rng.below(200) as usize;
    let mut bytes: Vec<u8> = (0..len).map(|_| attacker.rng.next_u32() as u8).collect();
    bytes[0] = if bytes[0] & 1 == 0 { 0x45 } else { 0x60 };
    Some(Packet::from_frame(Slice::copied_from(&bytes)))
}

/// Returns the ends of a TCP segment and its header.
fn parse(packet: &[u8]) -> Option<((SocketAddr, SocketAddr), TcpRepr)> {
    let ip = |bytes: &[u8]| -> Option<IpAddr> {
        match bytes.len() {
            4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
            _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        }
    };
    let (src, dst, header_len, protocol) = match packet.first()? >> 4 {
        4 => (packet.get(12..16)?, packet.get(16..20)?, 20, packet[9]),
        _ => (packet.get(8..24)?, packet.get(24..40)?, 40, packet[6]),
    };
    let (src, dst) = (ip(src)?, ip(dst)?);
    if protocol != protocol::TCP || !(PEER.contains(&dst) || VICTIM.contains(&dst)) {
        return None;
    }
    let (repr, _) = TcpRepr::parse(&packet[header_len..]).ok()?;
    let ends = (
        SocketAddr::new(src, repr.src_port),
        SocketAddr::new(dst, repr.dst_port),
    );
    Some((ends, repr))
}

/// Observes packets of a stack and passes them on, except those to the attacker's addresses.
async fn observe(
    mut from: PacketReceiver,
    to: mpsc::Sender<Packet>,
    directions: Arc<Mutex<Directions>>,
) {
    while let Some(packet) = from.recv_packet().await {
        let bytes = packet.to_bytes();
        let control = TcpFlags::SYN.union(TcpFlags::RST);
        match parse(&bytes) {
            Some((ends, repr)) if !repr.flags.intersects(control) => {
                directions.lock().insert(ends, repr);
            }
            Some(_) => {}
            None => continue,
        }
        if to.send(packet).await.is_err() {
            return;
        }
    }
}

/// Passes packets to the queues of a device in turn, as a device does that does not classify flows.
async fn inject(mut from: mpsc::Receiver<Packet>, mut queues: Vec<PacketSender>) {
    let mut next = 0;
    while let Some(packet) = from.recv().await {
        next = (next + 1) % queues.len();
        if queues[next].send_packet(packet).await.is_err() {
            return;
        }
    }
}

/// The two stacks, whose link the attacker shares.
struct Network {
    victim: Stack,
    peer: Stack,
    listener: TcpListener,
    to_victim: mpsc::Sender<Packet>,
    directions: Arc<Mutex<Directions>>,
}

impl Network {
    fn new(shards: usize) -> Self {
        let directions: Arc<Mutex<Directions>> = Arc::default();
        let build = |addresses: [IpAddr; 2], shards: usize| {
            let (mut devices, mut receivers, mut senders) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..shards {
                let (device, port) = user_device(UserDeviceConfig::ip(1500));
                devices.push(Box::new(device) as Box<dyn Device>);
                receivers.push(port.receiver);
                senders.push(port.sender);
            }
            let builder = Stack::builder().device_queues(devices).shards(shards);
            let builder = addresses.iter().fold(builder, |builder, address| {
                let bits = if address.is_ipv4() { 24 } else { 64 };
                builder.address(&format!("{address}/{bits}"))
            });
            // Answers to the attacker leave through the link.
            let builder = builder.gateway(Ipv4Addr::new(10, 0, 0, 254));
            let builder = builder.sysctl("tcp_rst_msgs_per_sec", &RSTS_PER_SECOND.to_string());
            let stack = builder.seed(Seed::from_u64(7)).build().unwrap();
            (stack, receivers, senders)
        };
        let (victim, victim_receivers, victim_senders) = build(VICTIM, shards);
        let (peer, peer_receivers, peer_senders) = build(PEER, 1);
        let (to_victim, victim_queue) = mpsc::channel(64);
        let (to_peer, peer_queue) = mpsc::channel(64);
        tokio::spawn(inject(victim_queue, victim_senders));
        tokio::spawn(inject(peer_queue, peer_senders));
        let paths = [(victim_receivers, &to_peer), (peer_receivers, &to_victim)];
        for (receivers, to) in paths {
            for receiver in receivers {
                tokio::spawn(observe(receiver, to.clone(), directions.clone()));
            }
        }
        let listener = TcpListener::bind_with(&victim, "[::]:80", BACKLOG).unwrap();
        Self {
            victim,
            peer,
            listener,
            to_victim,
            directions,
        }
    }

    /// Returns both ends of a new connection.
    async fn connect(&self, n: usize) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(&self.peer, SocketAddr::new(VICTIM[n % 2], 80));
        let (client, server) = tokio::join!(client, self.listener.accept());
        (client.unwrap(), server.unwrap().0)
    }
}

/// Carries data both ways in parts, the last one after the attack, and compares every byte.
async fn flow((client, server): (TcpStream, TcpStream), n: usize) {
    let (there, back) = (pattern(BYTES, n as u64), pattern(BYTES, 100 + n as u64));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let slow = async |mut to: fullsend::OwnedWriteHalf, data: &[u8]| {
        use tokio::io::AsyncWriteExt;
        for part in data.chunks(BYTES / 40) {
            to.write_all(part).await.unwrap();
            let pause = Duration::from_millis(SPAN_MS as u64 / 35);
            tokio::time::sleep(pause).await;
        }
        to.shutdown().await.unwrap();
    };
    let all = async |mut from: fullsend::OwnedReadHalf| {
        use tokio::io::AsyncReadExt;
        let mut got = Vec::new();
        from.read_to_end(&mut got).await.unwrap();
        got
    };
    let ((), (), got_there, got_back) = tokio::join!(
        slow(client_write, &there),
        slow(server_write, &back),
        all(server_read),
        all(client_read)
    );
    assert!(got_there == there && got_back == back, "flow {n}");
}

/// Runs an attack, which must increase the counter `effect` of the victim by at least `least`.
async fn run(shards: usize, (name, attack, effect, least): (&str, Attack, &str, u64)) {
    let network = Network::new(shards);
    let mut flows = tokio::task::JoinSet::new();
    for n in 0..8 {
        flows.spawn(flow(network.connect(n).await, n));
    }
    let mut attacker = Attacker {
        rng: Rng::new(Seed::from_u64(11)),
        directions: network.directions.clone(),
    };
    // Some attacks need flows to have been observed.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = counter(&network.victim, effect);
    for _ in 0..SPAN_MS {
        for _ in 0..PACKETS / SPAN_MS {
            let packet = attack(&mut attacker).unwrap();
            network.to_victim.send(packet).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let inuse = network.victim.sockstat().inuse;
    // The flows, a listener on each shard, and its half-open connections.
    assert!(inuse <= 8 + shards * (BACKLOG + 2), "{name}: {inuse}");
    // The peer gets in, whatever the queues hold.
    let (client, server) = network.connect(0).await;
    let data = pattern(10_000, 3);
    assert!(carry(client, server, &data).await == data, "{name}");
    while let Some(done) = flows.join_next().await {
        done.unwrap();
    }
    for stack in [&network.victim, &network.peer] {
        assert_eq!(counter(stack, "TcpEstabResets"), 0, "{name}");
    }
    // About two seconds, and the bursts: the limits are those of one stack.
    let limits = [
        ("TcpOutRsts", 4 * RSTS_PER_SECOND),
        ("IcmpOutDestUnreachs", 4500),
    ];
    for (counter_name, most) in limits {
        let sent = counter(&network.victim, counter_name);
        assert!(sent <= most, "{name}: {counter_name} {sent}");
    }
    let increase = counter(&network.victim, effect) - before;
    assert!(increase >= least, "{name}: {effect} {increase}");
    let answers = counter(&network.victim, "TcpExtTCPChallengeACK");
    // One for each flow in half a second (`tcp_invalid_ratelimit`).
    assert!(answers <= 9 * 2 * 3, "{name}: {answers} challenge ACKs");
}

fn run_all(shards: usize) {
    let attacks: [(&str, Attack, &str, u64); 10] = [
        (
            "SYNs to a listener",
            syns_to_a_listener,
            "TcpExtSyncookiesSent",
            5000,
        ),
        (
            "SYNs to a closed port",
            syns_to_a_closed_port,
            "TcpExtFullsendOutRstsLimited",
            5000,
        ),
        ("guessed RSTs", guessed_resets, "TcpInSegs", PACKETS as u64),
        (
            "SYNs in connections",
            syns_in_connections,
            "TcpExtTCPChallengeACK",
            8,
        ),
        (
            "ACKs of unsent data",
            acks_of_unsent_data,
            "TcpExtTCPChallengeACK",
            8,
        ),
        (
            "segments of no connection",
            segments_of_no_connection,
            "TcpExtFullsendOutRstsLimited",
            5000,
        ),
        ("fragments", fragments, "IpReasmFails", 5000),
        (
            "datagrams to closed ports",
            datagrams_to_closed_ports,
            "IcmpOutDestUnreachs",
            500,
        ),
        ("unreachables", unreachables, "TcpExtOutOfWindowIcmps", 5000),
        ("random bytes", random_bytes, "GroMalformed", 5000),
    ];
    for attack in attacks {
        paused(run(shards, attack));
    }
}

#[test]
fn attacks_on_one_shard() {
    run_all(1);
}

#[test]
fn attacks_on_four_shards() {
    run_all(4);
}

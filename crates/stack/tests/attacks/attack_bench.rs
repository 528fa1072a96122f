//! The test bed: bulk flows in both directions over both families, an attacker, and the checks
//! afterwards.
#![allow(dead_code, reason = "tests and the benchmark use different parts")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use fullsend_offload::{Link, Packet};
use fullsend_stack::TcpId;
use fullsend_tcp::State;
use fullsend_wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
use fullsend_wire::{Nanos, Rng, Seed, SeqNum, WireWindow};

use crate::common::{IFACE, Net, Nic, V4, V6, forge};
use crate::heap;

/// Interval at which applications use their sockets and the attacker sends.
const STEP: Nanos = Nanos::from_micros(200);

/// A prime, so that a misplaced byte is detected.
const PATTERN: usize = 65_521;

/// The share of their throughput that the flows must keep.
const MIN_THROUGHPUT: f64 = 0.9;

/// Returns the number of packets of an attack.
pub(crate) fn packets() -> usize {
    match std::env::var("FULLSEND_ATTACK_PACKETS") {
        Ok(text) => text.parse().expect("FULLSEND_ATTACK_PACKETS is a number"),
        Err(_) if cfg!(debug_assertions) => 20_000,
        Err(_) => 1_000_000,
    }
}

/// A bulk flow from one host's socket to the other's.
struct Flow {
    from: (usize, TcpId),
    to: (usize, TcpId),
    sent: usize,
    got: usize,
}

/// The state of one direction of a flow, as an on-path observer sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowDirection {
    /// The sending host.
    pub(crate) host: usize,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// The last header sent.
    pub(crate) repr: TcpRepr,
    /// The sequence number after the last segment.
    pub(crate) end: SeqNum,
}

#[derive(Default)]
struct Observer {
    directions: BTreeMap<(SocketAddr, SocketAddr), FlowDirection>,
    /// The last header sent to each address of a rogue, and the sequence number after its segment.
    rogue_answers: BTreeMap<SocketAddr, (TcpRepr, SeqNum)>,
}

pub(crate) struct AttackBench {
    pub(crate) net: Net,
    pub(crate) rng: Rng,
    pub(crate) listener: fullsend_stack::ListenerId,
    flows: Vec<Flow>,
    pattern: Vec<u8>,
    observer: Rc<RefCell<Observer>>,
    /// Sockets to which the application writes without end, whether the peer reads or not.
    pub(crate) endless: Vec<TcpId>,
}

/// The inputs of an attack: random numbers and the observed flows.
pub(crate) struct Attacker<'a> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) directions: &'a [FlowDirection],
    /// Number of packets sent before.
    pub(crate) number: usize,
}

impl Attacker<'_> {
    /// Returns a random direction of a random flow.
    pub(crate) fn direction(&mut self) -> FlowDirection {
        self.directions[self.rng.below(self.directions.len() as u64) as usize]
    }

    /// Returns a random sequence number.
    pub(crate) fn seq(&mut self) -> SeqNum {
        SeqNum::new(self.rng.next_u32())
    }

    /// Returns a random address and port that belong to neither host.
    pub(crate) fn random_source(&mut self, v4: bool) -> SocketAddr {
        let port = 1 + self.rng.below(65_000) as u16;
        if v4 {
            let [.., a, b, c] = self.rng.next_u32().to_be_bytes();
            SocketAddr::from(([11, a, b, c], port))
        } else {
            let low = self.rng.next_u64();
            let ip = std::net::Ipv6Addr::from_bits(0xfd01 << 112 | u128::from(low));
            SocketAddr::from((ip, port))
        }
    }
}

/// The address of peers that violate the protocol.
pub(crate) const ROGUE: IpAddr = IpAddr::V4(ROGUE_V4);
const ROGUE_V4: Ipv4Addr = Ipv4Addr::new(11, 66, 66, 66);

/// A peer with an established connection, which it misuses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rogue {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// Its next sequence number, and the victim's first one.
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    /// The victim's socket.
    pub(crate) victim: TcpId,
}

impl Rogue {
    /// Returns a segment with sequence number `seq`.
    pub(crate) fn segment(&self, seq: SeqNum, options: TcpOptions, payload: &[u8]) -> Packet {
        let repr = TcpRepr {
            flags: TcpFlags::ACK,
            seq,
            ack: self.ack,
            window: WireWindow(65_535),
            options,
            ..TcpRepr::default()
        };
        forge::tcp(self.from, self.to, repr, payload)
    }
}

/// Returns a segment spoofed to come from the sender of `direction`.
pub(crate) fn spoof(
    direction: &FlowDirection,
    flags: TcpFlags,
    seq: SeqNum,
    ack: SeqNum,
    payload: &[u8],
) -> Packet {
    let repr = TcpRepr {
        flags,
        seq,
        ack,
        options: direction.repr.options,
        window: direction.repr.window,
        ..TcpRepr::default()
    };
    forge::tcp(direction.from, direction.to, repr, payload)
}

impl AttackBench {
    /// Starts four flows at full speed.
    pub(crate) fn new() -> Self {
        let mut net = Net::new(Link::Ip, Nic::Tso);
        net.delay = Nanos::from_millis(5);
        for host in &mut net.hosts {
            host.sysctl_mut().tcp_rmem = [4096, 131_072, 131_072];
        }
        for host in 0..2 {
            let networks = [("11.0.0.0", 8), ("fd01::", 16)];
            for (addr, prefix) in networks {
                let addr = addr.parse().unwrap();
                let to = fullsend_stack::Cidr { addr, prefix };
                net.hosts[host].add_route(to, None, IFACE).unwrap();
            }
        }
        let shared_observer = Rc::new(RefCell::new(Observer::default()));
        let observer = shared_observer.clone();
        let mut flows = Vec::new();
        let listener = net.listen_with(1, "[::]:80", 64);
        for to in [format!("{}:80", V4[1]), format!("[{}]:80", V6[1])] {
            for down in [false, true] {
                let client = net.hosts[0]
                    .tcp_connect(net.now, None, to.parse().unwrap())
                    .unwrap();
                net.run_for(Nanos::from_millis(30));
                let server = net.hosts[1]
                    .listener(listener)
                    .accept()
                    .unwrap()
                    .unwrap()
                    .id;
                let (from, to) = ((0, client), (1, server));
                let (from, to) = if down { (to, from) } else { (from, to) };
                flows.push(Flow {
                    from,
                    to,
                    sent: 0,
                    got: 0,
                });
            }
        }
        net.filter = Some(Box::new(move |host, packet| {
            // Packets to other addresses are lost.
            !observe(&mut observer.borrow_mut(), host, packet)
        }));
        let mut attack_bench = Self {
            net,
            rng: Rng::new(Seed::from_u64(7)),
            listener,
            flows,
            pattern: crate::common::bytes(PATTERN).repeat(2),
            observer: shared_observer,
            endless: Vec::new(),
        };
        attack_bench.run(Nanos::from_millis(200), 0, |_| unreachable!("no attack"));
        attack_bench
    }

    /// Returns how long an attack takes.
    pub(crate) fn span() -> Nanos {
        Nanos::from_millis(1000.max(packets() as u64 / 100))
    }

    /// Runs the flows during `attack`, which returns each packet with the host to send it to.
    /// Checks that they keep their throughput compared with the same time without an attack, that
    /// nothing is reset, and that memory use grows by at most `bound` bytes.
    pub(crate) fn run_attack(
        &mut self,
        bound: isize,
        mut attack: impl FnMut(&mut Attacker<'_>) -> (usize, Packet),
    ) {
        let span = Self::span();
        let baseline = Self::new().run(span, 0, |_| unreachable!("no attack"));
        let before = heap::allocated();
        heap::take_peak();
        let under_attack = self.run(span, packets(), &mut attack);
        let grown = heap::take_peak() - before;
        let throughput_ratio = under_attack as f64 / baseline as f64;
        println!("{throughput_ratio:.3} of the throughput kept, {grown} bytes more at most");
        assert!(throughput_ratio >= MIN_THROUGHPUT, "{throughput_ratio}");
        assert!(grown <= bound, "{grown} bytes more at most");
        for flow in &self.flows {
            for (host, id) in [flow.from, flow.to] {
                assert_eq!(self.net.hosts[host].tcp(id).state(), Ok(State::Established));
            }
        }
        for host in 0..2 {
            assert_eq!(self.net.counter(host, "TcpEstabResets"), 0, "host {host}");
        }
    }

    /// Establishes a rogue's connection from this port, with these options in its SYN.
    pub(crate) fn rogue(&mut self, port: u16, window: u16, options: TcpOptions) -> Rogue {
        let from = SocketAddr::new(ROGUE, port);
        let to = SocketAddr::new(V4[1].parse().unwrap(), 80);
        let syn = TcpRepr {
            flags: TcpFlags::SYN,
            seq: SeqNum::new(1000),
            window: WireWindow(window),
            options,
            ..TcpRepr::default()
        };
        self.deliver(forge::tcp(from, to, syn, b""));
        let (answer, _) = self.last_answer_to(from).expect("a SYN-ACK");
        let mut rogue = Rogue {
            from,
            to,
            seq: syn.seq + 1,
            ack: answer.seq + 1,
            victim: TcpId(0),
        };
        let ack = TcpRepr {
            flags: TcpFlags::ACK,
            seq: rogue.seq,
            ack: rogue.ack,
            options: TcpOptions::default(),
            ..syn
        };
        self.deliver(forge::tcp(from, to, ack, b""));
        let accepted = self.net.hosts[1].listener(self.listener).accept().unwrap();
        rogue.victim = accepted.expect("a connection").id;
        rogue
    }

    /// Delivers one packet to the victim immediately.
    pub(crate) fn deliver(&mut self, packet: Packet) {
        let now = self.net.now;
        self.net.hosts[1].receive(now, IFACE, &mut vec![packet]);
        self.net.run_for(Nanos::from_micros(10));
    }

    pub(crate) fn clear_rogue_answers(&mut self) {
        self.observer.borrow_mut().rogue_answers.clear();
    }

    /// Builds attack packets for later use.
    pub(crate) fn forge(
        &mut self,
        packets: usize,
        attack: impl Fn(&mut Attacker<'_>) -> Packet,
    ) -> Vec<Packet> {
        let directions: Vec<FlowDirection> = self
            .observer
            .borrow()
            .directions
            .values()
            .copied()
            .collect();
        let mut attacker = Attacker {
            rng: &mut self.rng,
            directions: &directions,
            number: 0,
        };
        (0..packets).map(|_| attack(&mut attacker)).collect()
    }

    /// Returns the last header that the rogue at this address received, and the sequence number
    /// after its segment.
    pub(crate) fn last_answer_to(&self, rogue: SocketAddr) -> Option<(TcpRepr, SeqNum)> {
        self.observer.borrow().rogue_answers.get(&rogue).copied()
    }

    /// Returns a function that reads the end of the data that this rogue has received, for use
    /// during the attack.
    pub(crate) fn watch(&self, rogue: SocketAddr) -> impl Fn() -> SeqNum + use<> {
        let observer = self.observer.clone();
        move || {
            let observer = observer.borrow();
            observer
                .rogue_answers
                .get(&rogue)
                .expect("it got an answer")
                .1
        }
    }

    /// Returns `tcpi_snd_mss` of the flows' senders.
    pub(crate) fn segment_sizes(&mut self) -> Vec<u32> {
        let now = self.net.now;
        let senders: Vec<_> = self.flows.iter().map(|flow| flow.from).collect();
        let mut info = |(host, id): (usize, TcpId)| self.net.hosts[host].tcp(id).info(now);
        let sizes = senders.into_iter().map(|sender| info(sender).unwrap());
        sizes.map(|info| info.tcpi_snd_mss).collect()
    }

    /// Runs the flows while this number of attack packets arrive. Returns the number of bytes read.
    pub(crate) fn run(
        &mut self,
        span: Nanos,
        packets: usize,
        mut attack: impl FnMut(&mut Attacker<'_>) -> (usize, Packet),
    ) -> usize {
        let before: usize = self.flows.iter().map(|f| f.got).sum();
        let (start, end) = (self.net.now, self.net.now + span);
        let mut number = 0;
        while self.net.now < end {
            let passed = self.net.now.since(start).as_nanos() as usize + STEP.as_nanos() as usize;
            let due = (packets * passed / span.as_nanos() as usize).min(packets);
            let directions: Vec<FlowDirection> = {
                let observer = self.observer.borrow();
                observer.directions.values().copied().collect()
            };
            let mut frames = [Vec::new(), Vec::new()];
            while number < due {
                let mut attacker = Attacker {
                    rng: &mut self.rng,
                    directions: &directions,
                    number,
                };
                let (to, packet) = attack(&mut attacker);
                frames[to].push(packet);
                number += 1;
            }
            for (host, frames) in self.net.hosts.iter_mut().zip(&mut frames) {
                host.receive(self.net.now, IFACE, frames);
            }
            self.poll_applications();
            self.net.run_for(STEP);
        }
        self.flows.iter().map(|f| f.got).sum::<usize>() - before
    }

    /// Applications write what they can, read what is available, and check every byte.
    fn poll_applications(&mut self) {
        let mut buf = vec![0; PATTERN];
        let now = self.net.now;
        for &id in &self.endless {
            while self.net.hosts[1].tcp(id).write(now, &buf, false).is_ok() {}
        }
        for flow in &mut self.flows {
            let (host, id) = flow.from;
            loop {
                let data = &self.pattern[flow.sent % PATTERN..][..32_768];
                match self.net.hosts[host].tcp(id).write(now, data, false) {
                    Ok(n) => flow.sent += n,
                    Err(_) => break,
                }
            }
            let (host, id) = flow.to;
            while let Ok(n) = self.net.hosts[host].tcp(id).read(now, &mut buf) {
                assert!(n > 0, "the stream ended");
                let expected = &self.pattern[flow.got % PATTERN..][..n];
                assert!(buf[..n] == *expected, "corrupted near byte {}", flow.got);
                flow.got += n;
            }
        }
    }
}

/// Records a packet. Returns whether it is for an address of neither host.
fn observe(observer: &mut Observer, host: usize, packet: &Packet) -> bool {
    let Ok((repr, len)) = TcpRepr::parse(packet.transport_header()) else {
        return false;
    };
    let header = packet.network_header();
    let v4 = header[0] >> 4 == 4;
    let payload_len = packet.transport_header().len() - len + packet.payload.len();
    let end = repr.seq + payload_len as u32;
    // The first bytes of the two hosts' addresses.
    let to_us = if v4 {
        header[16] == 10
    } else {
        header[24..26] == [0xfd, 0]
    };
    if !to_us {
        // Answers to spoofed addresses are not recorded.
        if v4 && header[16..20] == ROGUE_V4.octets() {
            let to = SocketAddr::new(ROGUE, repr.dst_port);
            observer.rogue_answers.insert(to, (repr, end));
        }
        return true;
    }
    let control = TcpFlags::SYN.union(TcpFlags::RST);
    if repr.flags.intersects(control) || (repr.src_port != 80 && repr.dst_port != 80) {
        return false;
    }
    let [from, to] = [(host, repr.src_port), (1 - host, repr.dst_port)].map(|(host, port)| {
        let ip = if v4 { V4[host] } else { V6[host] };
        SocketAddr::new(ip.parse().unwrap(), port)
    });
    let direction = FlowDirection {
        host,
        from,
        to,
        repr,
        end,
    };
    observer.directions.insert((from, to), direction);
    false
}

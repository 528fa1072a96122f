//! The interface and the outcome of events that both sides share.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use fullsend_posix::Errno;
use fullsend_script::tcp_option::TcpOption;
use fullsend_script::{IpPacket, WireSegment, segment_text};
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp;

use crate::event::{ACK, FuzzEvent, InjectedSegment, RST, SYN, SocketCall, SocketIndex};

/// The port of the side under test.
pub(crate) const LOCAL_PORT: u16 = 8080;

/// Offsets in `struct tcp_info`.
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;

/// The addresses of a sequence, used by no other sequence of this run, and the peer's ISN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowAddresses {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) remote_isn: u32,
}

impl FlowAddresses {
    pub(crate) fn is_v6(&self) -> bool {
        self.local.is_ipv6()
    }
}

/// The result of a call: a count or a negative errno, and the bytes received.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct CallResult {
    pub(crate) value: i64,
    pub(crate) data: Vec<u8>,
}

impl CallResult {
    pub(crate) fn from_value(value: i64) -> Self {
        let data = Vec::new();
        Self { value, data }
    }
}

/// A TCP with sockets over one link: the kernel's or ours.
pub(crate) trait TcpSide {
    /// Advances manual time to the kernel's clock, in nanoseconds. Does nothing by default.
    fn advance_to(&mut self, _clock: u64) {}
    /// Makes a call.
    fn call(&mut self, call: &SocketCall) -> CallResult;
    /// Returns the poll bits of a socket, or `None` if it is closed.
    fn poll(&mut self, fd: SocketIndex) -> Option<i32>;
    /// Returns the bytes of `TCP_INFO`.
    fn info(&mut self, fd: SocketIndex) -> Option<Vec<u8>>;
    /// Returns the number of sockets opened so far.
    fn socket_count(&self) -> usize;
    /// Delivers a packet, from the IP header on.
    fn deliver(&mut self, packet: &[u8]);
    /// Waits until the side is idle and returns the packets sent since the last call.
    fn sent(&mut self) -> Vec<Vec<u8>>;
}

/// The observable result of one event on one side.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct EventOutcome {
    /// The result of the call; `None` for an injected segment.
    pub(crate) returned: Option<CallResult>,
    /// Segments of the connection, with relative sequence numbers and TSval 100.
    pub(crate) segments: Vec<WireSegment>,
    /// Other packets between the connection's addresses, as text.
    pub(crate) others: Vec<String>,
    /// Poll bits of each open socket.
    pub(crate) polls: Vec<(usize, i32)>,
    /// `tcpi_state` of each open socket.
    pub(crate) states: Vec<(usize, u8)>,
    /// `tcpi_bytes_acked` and `tcpi_bytes_received` of each open socket.
    pub(crate) counts: Vec<(usize, u64, u64)>,
}

/// Runs a sequence on one side.
pub(crate) struct SideRunner<'a> {
    side: &'a mut dyn TcpSide,
    addresses: FlowAddresses,
    local_isn: Option<u32>,
    latest_tsval: u32,
}

impl<'a> SideRunner<'a> {
    pub(crate) fn new(side: &'a mut dyn TcpSide, addresses: FlowAddresses) -> Self {
        Self {
            side,
            addresses,
            local_isn: None,
            latest_tsval: 0,
        }
    }

    /// Runs an event at the time `clock` of the kernel's clock, in nanoseconds, and returns its
    /// outcome.
    pub(crate) fn step_at(&mut self, clock: u64, event: &FuzzEvent) -> EventOutcome {
        self.side.advance_to(clock);
        self.step(event)
    }

    /// Runs an event and returns its outcome.
    pub(crate) fn step(&mut self, event: &FuzzEvent) -> EventOutcome {
        let mut outcome = EventOutcome::default();
        match event {
            FuzzEvent::Call(call) => outcome.returned = Some(self.side.call(call)),
            FuzzEvent::Inject(inject) => {
                let packet = self.packet(inject);
                self.side.deliver(&packet);
            }
        }
        for packet in self.side.sent() {
            self.record(&packet, &mut outcome);
        }
        for index in 0..self.side.socket_count() {
            if let Some(bits) = self.side.poll(SocketIndex(index)) {
                outcome.polls.push((index, bits));
            }
            if let Some(info) = self.side.info(SocketIndex(index)) {
                let word = |at| u64::from_ne_bytes(std::array::from_fn(|i| info[at + i]));
                outcome.states.push((index, info[0]));
                let (acked, received) = (word(BYTES_ACKED), word(BYTES_RECEIVED));
                outcome.counts.push((index, acked, received));
            }
        }
        outcome
    }

    fn packet(&self, inject: &InjectedSegment) -> Vec<u8> {
        let isn = self.local_isn.unwrap_or(0);
        let mut segment = inject.to_wire(self.addresses.remote_isn, isn, self.latest_tsval);
        segment.src_port = self.addresses.remote.port();
        segment.dst_port = self.addresses.local.port();
        let mut datagram = IpPacket {
            src: self.addresses.remote.ip(),
            dst: self.addresses.local.ip(),
            protocol: protocol::TCP,
            tos: 0,
            ttl: 64,
            flow_label: 0,
            payload: segment.emit(),
        };
        datagram.fill_checksum(tcp::CHECKSUM_OFFSET);
        datagram.emit()
    }

    /// Adds a packet to the outcome, unless it belongs to another sequence.
    fn record(&mut self, packet: &[u8], outcome: &mut EventOutcome) {
        let datagram = match IpPacket::parse(packet) {
            Ok(datagram) => datagram,
            Err(error) => return outcome.others.push(error),
        };
        if datagram.dst != self.addresses.remote.ip() {
            return;
        }
        if datagram.protocol != protocol::TCP {
            let kind = datagram.payload.first().copied().unwrap_or(0);
            let text = format!("protocol {} type {kind}", datagram.protocol);
            return outcome.others.push(text);
        }
        let Some(segment) = WireSegment::parse(&datagram.payload) else {
            return outcome.others.push("a broken TCP header".to_owned());
        };
        if segment.dst_port != self.addresses.remote.port() {
            return;
        }
        if !datagram.checksum_ok() || datagram.ttl != 64 || datagram.tos != 0 {
            let (ttl, tos) = (datagram.ttl, datagram.tos);
            let valid = datagram.checksum_ok();
            let text = format!("TTL {ttl}, TOS {tos}, checksum valid: {valid}");
            outcome.others.push(text);
        }
        outcome.segments.push(self.relative_segment(segment));
    }

    /// Records the ISN and TSval of a segment and makes its sequence numbers relative.
    fn relative_segment(&mut self, mut segment: WireSegment) -> WireSegment {
        if segment.flags & SYN != 0 {
            self.local_isn = Some(segment.seq);
        }
        (segment.src_port, segment.dst_port) = (0, 0);
        // A RST in response to a segment without ACK has sequence number 0.
        if segment.flags & (RST | ACK) != RST | ACK || segment.seq != 0 {
            segment.seq = segment.seq.wrapping_sub(self.local_isn.unwrap_or(0));
        }
        if segment.flags & ACK != 0 {
            segment.ack = segment.ack.wrapping_sub(self.addresses.remote_isn);
        }
        for option in &mut segment.options {
            match option {
                TcpOption::Sack(blocks) => blocks.iter_mut().for_each(|(left, right)| {
                    *left = left.wrapping_sub(self.addresses.remote_isn);
                    *right = right.wrapping_sub(self.addresses.remote_isn);
                }),
                TcpOption::Timestamps { val, .. } => {
                    self.latest_tsval = *val;
                    // The sides' clocks differ; in scripts the number is a placeholder.
                    *val = 100;
                }
                _ => {}
            }
        }
        segment
    }
}

fn value_text(returned: &CallResult) -> String {
    if returned.value >= 0 {
        return returned.value.to_string();
    }
    let errno = Errno(-returned.value as i32);
    format!("-1 {}", errno.name().unwrap_or("?"))
}

impl EventOutcome {
    /// Returns the event and its outcome in the syntax of scripts, line by line.
    pub(crate) fn lines(&self, event: &FuzzEvent) -> Vec<String> {
        let mut lines = match (event, &self.returned) {
            (FuzzEvent::Call(SocketCall::Get(..) | SocketCall::Ioctl(..)), Some(returned))
                if returned.value >= 0 =>
            {
                let shown = event
                    .to_string()
                    .replace("[...]", &format!("[{}]", returned.value));
                vec![format!("+.0001 {shown} = 0")]
            }
            (_, Some(returned)) => vec![format!("+.0001 {event} = {}", value_text(returned))],
            _ => vec![format!("+.0001 {event}")],
        };
        for segment in &self.segments {
            lines.push(format!("+0 > {}", segment_text(segment)));
        }
        for other in &self.others {
            lines.push(format!("// > {other}"));
        }
        let word =
            |(index, bits): &(usize, i32)| format!("{}:{}", SocketIndex(*index), poll_text(*bits));
        let polls: Vec<String> = self.polls.iter().map(word).collect();
        let states: Vec<String> = self
            .states
            .iter()
            .zip(&self.counts)
            .map(|((index, state), (_, acked, received))| {
                format!(
                    "{}:{} acked {acked} received {received}",
                    SocketIndex(*index),
                    state_text(*state)
                )
            })
            .collect();
        lines.push(format!("// {} {}", polls.join(" "), states.join(" ")));
        lines
    }
}

fn poll_text(bits: i32) -> String {
    let names = [
        (libc::POLLIN, "IN"),
        (libc::POLLPRI, "PRI"),
        (libc::POLLOUT, "OUT"),
        (libc::POLLERR, "ERR"),
        (libc::POLLHUP, "HUP"),
        (libc::POLLRDHUP, "RDHUP"),
    ];
    let set: Vec<&str> = names
        .iter()
        .filter(|(bit, _)| bits & i32::from(*bit) != 0)
        .map(|(_, name)| *name)
        .collect();
    set.join("|")
}

/// Returns the name of a `tcpi_state`.
fn state_text(state: u8) -> &'static str {
    const NAMES: [&str; 13] = [
        "?",
        "ESTABLISHED",
        "SYN_SENT",
        "SYN_RECV",
        "FIN_WAIT1",
        "FIN_WAIT2",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "LISTEN",
        "CLOSING",
        "NEW_SYN_RECV",
    ];
    NAMES.get(usize::from(state)).unwrap_or(&"?")
}

impl fmt::Display for FlowAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.local.ip() {
            IpAddr::V4(_) => "ipv4",
            IpAddr::V6(_) => "ipv6",
        };
        f.write_str(version)
    }
}

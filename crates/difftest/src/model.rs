//! The peer's view of the connection, from which the next packet is chosen.

use fullsend_script::WireSegment;
use fullsend_script::tcp_option::TcpOption;

use crate::event::{ACK, FIN, FuzzEvent, InjectedSegment, RST, SYN, SocketCall, after};
use crate::side::EventOutcome;

/// A socket of the side under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketKind {
    Fresh,
    Listener,
    Stream,
    Closed,
}

/// The peer's view of the connection; sequence numbers are relative to the ISNs.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerModel {
    pub(crate) sockets: Vec<SocketKind>,
    /// Whether the side under test has sent its SYN.
    pub(crate) has_isn: bool,
    /// Highest sequence number that the side under test has sent.
    pub(crate) snd_max: u32,
    /// Highest acknowledgement number injected, at most `snd_max`.
    pub(crate) acked: u32,
    /// Latest acknowledgement number received.
    pub(crate) rcv_nxt: u32,
    /// Latest window received, in bytes.
    pub(crate) rcv_wnd: u32,
    /// Highest sequence number injected.
    pub(crate) peer_max: u32,
    /// Ends of the segments that the side under test has sent.
    pub(crate) edges: Vec<u32>,
    /// Whether both SYNs have timestamps.
    pub(crate) timestamps: bool,
    /// Whether both SYNs permit SACK.
    pub(crate) sack: bool,
    /// The latest TSval injected.
    pub(crate) timestamp: u32,
    /// Whether the side under test has sent a RST.
    pub(crate) reset: bool,
    scale: u8,
    injected_syn: Option<Vec<TcpOption>>,
    local_syn: Option<Vec<TcpOption>>,
}

fn has_timestamps(options: &[TcpOption]) -> bool {
    let is = |option: &TcpOption| matches!(option, TcpOption::Timestamps { .. });
    options.iter().any(is)
}

impl PeerModel {
    pub(crate) fn new() -> Self {
        Self {
            timestamp: 1000,
            ..Self::default()
        }
    }

    /// Updates the model with an event and the response of the side under test.
    pub(crate) fn update(&mut self, event: &FuzzEvent, outcome: &EventOutcome) {
        match event {
            FuzzEvent::Call(call) => self.on_call(call, outcome),
            FuzzEvent::Inject(inject) => self.on_inject(inject),
        }
        for segment in &outcome.segments {
            self.on_segment(segment);
        }
    }

    fn on_call(&mut self, call: &SocketCall, outcome: &EventOutcome) {
        let value = outcome.returned.as_ref().map_or(0, |r| r.value);
        match call {
            SocketCall::Socket => self.sockets.push(SocketKind::Fresh),
            SocketCall::Accept(_) if value >= 0 => self.sockets.push(SocketKind::Stream),
            SocketCall::Listen(fd, _) if value == 0 => self.sockets[fd.0] = SocketKind::Listener,
            SocketCall::Connect(fd) if self.sockets[fd.0] == SocketKind::Fresh => {
                self.sockets[fd.0] = SocketKind::Stream;
            }
            SocketCall::Close(fd) => self.sockets[fd.0] = SocketKind::Closed,
            _ => {}
        }
    }

    fn on_inject(&mut self, inject: &InjectedSegment) {
        if after(inject.end(), self.peer_max) {
            self.peer_max = inject.end();
        }
        let ack = inject.ack;
        if inject.flags & ACK != 0 && after(ack, self.acked) && !after(ack, self.snd_max) {
            self.acked = ack;
        }
        if inject.flags & SYN != 0 {
            let mut options = inject.options.clone();
            if inject.timestamp.is_some() {
                options.push(TcpOption::Timestamps { val: 0, ecr: 0 });
            }
            self.injected_syn.get_or_insert(options);
            self.negotiate();
        }
        if let Some((val, _)) = inject.timestamp
            && after(val, self.timestamp)
            && val.wrapping_sub(self.timestamp) < 1000
        {
            self.timestamp = val;
        }
    }

    fn on_segment(&mut self, segment: &WireSegment) {
        let flag = |bit| u32::from(segment.flags & bit != 0);
        let len = segment.data.len() as u32 + flag(SYN) + flag(FIN);
        if segment.flags & RST != 0 {
            self.reset = true;
            return;
        }
        if segment.flags & SYN != 0 {
            self.has_isn = true;
            self.local_syn = Some(segment.options.clone());
            let scale = segment.options.iter().find_map(|option| match option {
                TcpOption::WindowScale(shift) => Some(*shift),
                _ => None,
            });
            self.scale = scale.unwrap_or(0);
            self.negotiate();
        }
        let end = segment.seq.wrapping_add(len);
        if after(end, self.snd_max) {
            self.snd_max = end;
            self.edges.push(end);
        }
        if segment.flags & ACK != 0 {
            self.rcv_nxt = segment.ack;
            let scale = if segment.flags & SYN == 0 {
                self.scale
            } else {
                0
            };
            self.rcv_wnd = u32::from(segment.window) << scale;
        }
    }

    fn negotiate(&mut self) {
        if let (Some(theirs), Some(ours)) = (&self.injected_syn, &self.local_syn) {
            self.timestamps = has_timestamps(theirs) && has_timestamps(ours);
            let permits = |options: &[TcpOption]| options.contains(&TcpOption::SackPermitted);
            self.sack = permits(theirs) && permits(ours);
            let scales = |options: &[TcpOption]| {
                let is = |option: &TcpOption| matches!(option, TcpOption::WindowScale(_));
                options.iter().any(is)
            };
            if !scales(theirs) {
                self.scale = 0;
            }
        }
    }
}

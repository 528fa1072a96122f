//! Expected TCP segments.

use fullsend_wire::numbers::protocol;

use super::flow::{flag_text, segment_text};
use super::inject::{first_byte, pattern_bytes};
use super::target::SentPacket;
use super::wire::{IpPacket, WireSegment};
use super::{LATE_PACKET_TIMEOUT, ScriptRunner, TimeWindow};
use crate::error::{Pos, ScriptError};
use crate::script::{Body, EcnSpec, IpSpec, Nanos, Packet, Seconds, Segment};
use crate::tcp_option::TcpOption;

const FIN: u16 = 0x01;
const SYN: u16 = 0x02;
const PSH: u16 = 0x08;
const ACK: u16 = 0x10;
const CWR: u16 = 0x80;

/// A packet that the stack sent on the flow under test.
struct ObservedSegment {
    at: Nanos,
    ip: IpPacket,
    /// The segment with relative numbers.
    segment: WireSegment,
}

impl ScriptRunner<'_> {
    /// Checks that the next packet is this one; returns the time when it was sent.
    pub(super) fn expect(
        &mut self,
        pos: Pos,
        packet: &Packet,
        window: TimeWindow,
    ) -> Result<Nanos, ScriptError> {
        let Body::Tcp(spec) = &packet.body else {
            return self.expect_datagram(pos, packet, window);
        };
        let Some(mut observed) = self.next_segment(window.to + window.tolerance)? else {
            return self.missing(pos, window);
        };
        let first = observed.at;
        if !self.settings.strict_segments {
            self.aggregate(&mut observed, spec.len as usize, window)?;
        }
        self.log_at(first, &format!("> {}", segment_text(&observed.segment)));
        check_time(pos, window, first)?;
        check_time(pos, window, observed.at)?;
        self.record_script_isn(spec, &mut observed.segment);
        let differs = self.compare(packet.ip, spec, &observed);
        if let Err(what) = differs {
            let message = format!("{what}\n  actual: > {}", segment_text(&observed.segment));
            return Err(ScriptError::new(pos, message));
        }
        Ok(first)
    }

    /// Records the script's sequence number of the stack's first SYN, which stands for the stack's
    /// ISN.
    fn record_script_isn(&mut self, spec: &Segment, actual: &mut WireSegment) {
        if actual.flags & spec.flags & SYN == 0 {
            return;
        }
        if let Some(flow) = self.under_test.map(|index| &mut self.flows[index])
            && flow.script_isn.is_none()
        {
            flow.script_isn = Some(spec.seq);
            actual.seq = spec.seq;
        }
    }

    fn missing(&mut self, pos: Pos, window: TimeWindow) -> Result<Nanos, ScriptError> {
        let late = self.next_segment(window.to + LATE_PACKET_TIMEOUT)?;
        let message = match late {
            None => format!(
                "no packet was sent, expected one at {}",
                Seconds(window.from)
            ),
            Some(observed) => format!(
                "sent at {}, expected at {}\n  actual: > {}",
                Seconds(observed.at),
                Seconds(window.from),
                segment_text(&observed.segment)
            ),
        };
        Err(ScriptError::new(pos, message))
    }

    /// Appends the following segments to `observed`, up to `want` bytes: a script may expect
    /// several segments as one.
    fn aggregate(
        &mut self,
        observed: &mut ObservedSegment,
        want: usize,
        window: TimeWindow,
    ) -> Result<(), ScriptError> {
        let size = observed.segment.data.len();
        while size > 0 && observed.segment.data.len() < want {
            let Some(next) = self.next_segment(window.to + window.tolerance)? else {
                break;
            };
            let end = observed
                .segment
                .seq
                .wrapping_add(observed.segment.data.len() as u32);
            let same = PSH | FIN | CWR;
            let fits = next.segment.seq == end
                && (1..=size).contains(&next.segment.data.len())
                && next.segment.flags & !same == observed.segment.flags & !same
                && next.segment.ack == observed.segment.ack
                && next.segment.options == observed.segment.options;
            if !fits {
                self.put_back(&next);
                break;
            }
            let last = next.segment.data.len() < size;
            // Of a run of segments, only the first has CWR, and only the last has PSH and FIN.
            observed.segment.flags = next.segment.flags | observed.segment.flags & CWR;
            observed.segment.data.extend(&next.segment.data);
            observed.at = next.at;
            if last {
                break;
            }
        }
        Ok(())
    }

    /// Puts back a packet that was taken too early.
    fn put_back(&mut self, observed: &ObservedSegment) {
        let bytes = observed.ip.emit();
        self.target.sent().push_front(SentPacket {
            at: observed.at,
            bytes,
        });
    }

    /// Returns the next packet of the flow under test, sent by `until`.
    fn next_segment(&mut self, until: Nanos) -> Result<Option<ObservedSegment>, ScriptError> {
        while let Some(sent) = self.next_sent(until)? {
            if let Some(observed) = self.parse_sent(&sent)? {
                return Ok(Some(observed));
            }
        }
        Ok(None)
    }

    /// Returns the next packet sent by `until`.
    pub(super) fn next_sent(&mut self, until: Nanos) -> Result<Option<SentPacket>, ScriptError> {
        loop {
            if let Some(sent) = self.target.sent().pop_front() {
                return Ok(Some(sent));
            }
            if self.target.now() >= until {
                return Ok(None);
            }
            if self.target.step_to_packet(until) {
                self.retry()?;
            }
            self.expire_pending()?;
        }
    }

    /// Parses a packet; `None` if it belongs to another flow.
    fn parse_sent(&mut self, sent: &SentPacket) -> Result<Option<ObservedSegment>, ScriptError> {
        let broken = |what: String| {
            ScriptError::new(
                Pos::default(),
                format!("the stack sent an invalid packet: {what}"),
            )
        };
        let ip = IpPacket::parse(&sent.bytes).map_err(broken)?;
        let live = match ip.protocol {
            protocol::TCP => WireSegment::parse(&ip.payload),
            _ => None,
        };
        let Some(live) = live else {
            self.log_at(
                sent.at,
                &format!("> protocol {} (not compared)", ip.protocol),
            );
            return Ok(None);
        };
        if !ip.checksum_ok() {
            return Err(broken("the TCP checksum is wrong".to_owned()));
        }
        let Some(flow) = self.under_test.map(|index| &mut self.flows[index]) else {
            return Ok(None);
        };
        // The port of a connection is known from its SYN.
        if flow.local_port == 0 && live.flags & (SYN | ACK) == SYN {
            flow.local_port = live.src_port;
        }
        if (live.src_port, live.dst_port) != (flow.local_port, flow.remote_port) {
            let text = segment_text(&live);
            self.log_at(sent.at, &format!("> {text} (of another connection)"));
            return Ok(None);
        }
        flow.record_isn(&live);
        let segment = flow.relative_segment(live);
        Ok(Some(ObservedSegment {
            at: sent.at,
            ip,
            segment,
        }))
    }

    pub(super) fn log_at(&mut self, at: Nanos, text: &str) {
        self.report.trace.push(format!("{} {text}", Seconds(at)));
    }

    /// Adds packets that were sent but not expected to the trace.
    pub(super) fn log_unexpected(&mut self) {
        while let Some(sent) = self.target.sent().pop_front() {
            let at = sent.at;
            if let Ok(Some(observed)) = self.parse_sent(&sent) {
                self.log_at(
                    at,
                    &format!("> {} (not expected)", segment_text(&observed.segment)),
                );
            }
        }
    }

    /// Compares a packet with the script's; the error names the difference.
    fn compare(
        &mut self,
        ip: IpSpec,
        spec: &Segment,
        observed: &ObservedSegment,
    ) -> Result<(), String> {
        let actual = &observed.segment;
        if actual.flags != spec.flags {
            let (is, want) = (flag_text(actual.flags), flag_text(spec.flags));
            return Err(format!("flags are {is}, expected {want}"));
        }
        same("sequence number", actual.seq, spec.seq)?;
        same("payload", actual.data.len() as u32, spec.len)?;
        if let Some(ack) = spec.ack {
            same("ack", actual.ack, ack)?;
        } else if actual.flags & ACK != 0 {
            same("ack", actual.ack, 0)?;
        }
        if let Some(window) = spec.window {
            same("window", actual.window.into(), window.into())?;
        }
        if let Some(urgent) = spec.urgent {
            same("urgent pointer", actual.urgent.into(), urgent.into())?;
        }
        compare_ip(ip, &observed.ip)?;
        if let Some(options) = &spec.options {
            self.compare_options(options, observed)?;
        }
        let expected = pattern_bytes(first_byte(actual.seq, actual.flags), actual.data.len());
        if !self.skip_payload_check && actual.data != expected {
            return Err(
                "the payload differs from the data that the application wrote at this offset"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn compare_options(
        &mut self,
        spec: &[TcpOption],
        observed: &ObservedSegment,
    ) -> Result<(), String> {
        let mut actual = observed.segment.options.clone();
        let mut ticks = true;
        for (option, want) in actual.iter_mut().zip(spec) {
            let (TcpOption::Timestamps { val, .. }, TcpOption::Timestamps { val: script, .. }) =
                (option, want)
            else {
                continue;
            };
            let Some(index) = self.under_test else {
                continue;
            };
            let (tick, tolerance) = (self.settings.ts_tick, self.settings.tolerance);
            ticks = self.flows[index].record_tsval(*script, *val, tick, tolerance);
            if ticks {
                *val = *script;
            } else if let Some(offset) = self.flows[index].tsval_offset {
                *val = val.wrapping_sub(offset);
            }
        }
        if actual == spec && ticks {
            return Ok(());
        }
        let show = |list: &[TcpOption]| {
            let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
            format!("<{}>", texts.join(","))
        };
        Err(format!(
            "options are {}, expected {}",
            show(&actual),
            show(spec)
        ))
    }
}

/// Checks that a packet was sent within its time window.
pub(super) fn check_time(pos: Pos, window: TimeWindow, at: Nanos) -> Result<(), ScriptError> {
    let early = at < window.from - window.tolerance;
    let late = at > window.to + window.tolerance;
    if window.any || !(early || late) {
        return Ok(());
    }
    let message = format!(
        "sent at {}, expected at {}",
        Seconds(at),
        Seconds(window.from)
    );
    Err(ScriptError::new(pos, message))
}

pub(super) fn same(what: &str, actual: u32, expected: u32) -> Result<(), String> {
    if actual == expected {
        return Ok(());
    }
    Err(format!("{what} is {actual}, expected {expected}"))
}

pub(super) fn compare_ip(spec: IpSpec, actual: &IpPacket) -> Result<(), String> {
    let ecn = actual.tos & 3;
    match spec.ecn {
        Some(EcnSpec::Is(want)) => same("the ECN field", ecn.into(), want.into())?,
        Some(EcnSpec::Ect01) if !matches!(ecn, 1 | 2) => {
            return Err(format!("the ECN field is {ecn}, expected 1 or 2"));
        }
        _ => {}
    }
    if let Some(tos) = spec.tos {
        same("the type of service", actual.tos.into(), tos.into())?;
    }
    if let Some(ttl) = spec.ttl {
        same("the TTL", actual.ttl.into(), ttl.into())?;
    }
    if let Some(label) = spec.flow_label {
        same("the flow label", actual.flow_label, label)?;
    }
    Ok(())
}

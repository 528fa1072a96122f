//! Expected TCP segments.

use fullsend_wire::numbers::protocol;

use super::flow::{flag_text, segment_text};
use super::inject::{first_byte, pattern_bytes};
use super::live::{Datagram, LiveSegment};
use super::target::Sent;
use super::{LOOK_AHEAD, Runner, Window};
use crate::error::{Pos, ScriptError};
use crate::script::{Body, EcnSpec, IpSpec, Nanos, Packet, Seconds, Segment};
use crate::tcp_option::TcpOption;

const FIN: u16 = 0x01;
const SYN: u16 = 0x02;
const PSH: u16 = 0x08;
const ACK: u16 = 0x10;
const CWR: u16 = 0x80;

/// A packet that the stack sent on the flow under test.
struct Seen {
    at: Nanos,
    ip: Datagram,
    /// The segment with relative numbers.
    segment: LiveSegment,
}

impl Runner<'_> {
    /// Checks that the next packet is this one; returns the time when it was sent.
    pub(super) fn expect(
        &mut self,
        pos: Pos,
        packet: &Packet,
        window: Window,
    ) -> Result<Nanos, ScriptError> {
        let Body::Tcp(spec) = &packet.body else {
            return self.expect_datagram(pos, packet, window);
        };
        let Some(mut seen) = self.next_seen(window.to + window.tolerance)? else {
            return self.missing(pos, window);
        };
        let first = seen.at;
        if !self.settings.strict_segments {
            self.aggregate(&mut seen, spec.len as usize, window)?;
        }
        self.log_at(first, &format!("> {}", segment_text(&seen.segment)));
        check_time(pos, window, first)?;
        check_time(pos, window, seen.at)?;
        self.name_isn(spec, &mut seen.segment);
        let differs = self.compare(packet.ip, spec, &seen);
        if let Err(what) = differs {
            let message = format!("{what}\n  actual: > {}", segment_text(&seen.segment));
            return Err(ScriptError::new(pos, message));
        }
        Ok(first)
    }

    /// Records the script's sequence number of the stack's first SYN, which stands for the stack's ISN.
    fn name_isn(&mut self, spec: &Segment, actual: &mut LiveSegment) {
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

    fn missing(&mut self, pos: Pos, window: Window) -> Result<Nanos, ScriptError> {
        let late = self.next_seen(window.to + LOOK_AHEAD)?;
        let message = match late {
            None => format!(
                "no packet was sent, expected one at {}",
                Seconds(window.from)
            ),
            Some(seen) => format!(
                "sent at {}, expected at {}\n  actual: > {}",
                Seconds(seen.at),
                Seconds(window.from),
                segment_text(&seen.segment)
            ),
        };
        Err(ScriptError::new(pos, message))
    }

    /// Appends the following segments to `seen`, up to `want` bytes: a script may expect several
    /// segments as one.
    fn aggregate(
        &mut self,
        seen: &mut Seen,
        want: usize,
        window: Window,
    ) -> Result<(), ScriptError> {
        let size = seen.segment.data.len();
        while size > 0 && seen.segment.data.len() < want {
            let Some(next) = self.next_seen(window.to + window.tolerance)? else {
                break;
            };
            let end = seen
                .segment
                .seq
                .wrapping_add(seen.segment.data.len() as u32);
            let same = PSH | FIN | CWR;
            let fits = next.segment.seq == end
                && (1..=size).contains(&next.segment.data.len())
                && next.segment.flags & !same == seen.segment.flags & !same
                && next.segment.ack == seen.segment.ack
                && next.segment.options == seen.segment.options;
            if !fits {
                self.unsee(&next);
                break;
            }
            let last = next.segment.data.len() < size;
            // Of a run of segments, only the first has CWR, and only the last has PSH and FIN.
            seen.segment.flags = next.segment.flags | seen.segment.flags & CWR;
            seen.segment.data.extend(&next.segment.data);
            seen.at = next.at;
            if last {
                break;
            }
        }
        Ok(())
    }

    /// Puts back a packet that was taken too early.
    fn unsee(&mut self, seen: &Seen) {
        let bytes = seen.ip.emit();
        self.target.sent().push_front(Sent { at: seen.at, bytes });
    }

    /// Returns the next packet of the flow under test, sent by `until`.
    fn next_seen(&mut self, until: Nanos) -> Result<Option<Seen>, ScriptError> {
        while let Some(sent) = self.next_sent(until)? {
            if let Some(seen) = self.about(&sent)? {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }

    /// Returns the next packet sent by `until`.
    pub(super) fn next_sent(&mut self, until: Nanos) -> Result<Option<Sent>, ScriptError> {
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
            self.give_up_pending()?;
        }
    }

    /// Parses a packet; `None` if it belongs to another flow.
    fn about(&mut self, sent: &Sent) -> Result<Option<Seen>, ScriptError> {
        let broken = |what: String| {
            ScriptError::new(
                Pos::default(),
                format!("the stack sent an invalid packet: {what}"),
            )
        };
        let ip = Datagram::parse(&sent.bytes).map_err(broken)?;
        let live = match ip.protocol {
            protocol::TCP => LiveSegment::parse(&ip.payload),
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
        flow.learn(&live);
        let segment = flow.relative(live);
        Ok(Some(Seen {
            at: sent.at,
            ip,
            segment,
        }))
    }

    pub(super) fn log_at(&mut self, at: Nanos, text: &str) {
        self.report.trace.push(format!("{} {text}", Seconds(at)));
    }

    /// Adds packets that were sent but not expected to the trace.
    pub(super) fn note_unseen(&mut self) {
        while let Some(sent) = self.target.sent().pop_front() {
            let at = sent.at;
            if let Ok(Some(seen)) = self.about(&sent) {
                self.log_at(
                    at,
                    &format!("> {} (not expected)", segment_text(&seen.segment)),
                );
            }
        }
    }

    /// Compares a packet with the script's; the error names the difference.
    fn compare(&mut self, ip: IpSpec, spec: &Segment, seen: &Seen) -> Result<(), String> {
        let actual = &seen.segment;
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
        compare_ip(ip, &seen.ip)?;
        if let Some(options) = &spec.options {
            self.compare_options(options, seen)?;
        }
        let expected = pattern_bytes(first_byte(actual.seq, actual.flags), actual.data.len());
        if !self.odd_data && actual.data != expected {
            return Err(
                "the payload differs from the data that the application wrote at this offset"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn compare_options(&mut self, spec: &[TcpOption], seen: &Seen) -> Result<(), String> {
        let mut actual = seen.segment.options.clone();
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
            ticks = self.flows[index].stamp(*script, *val, tick, tolerance);
            if ticks {
                *val = *script;
            } else if let Some(offset) = self.flows[index].stamp_offset {
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
pub(super) fn check_time(pos: Pos, window: Window, at: Nanos) -> Result<(), ScriptError> {
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

pub(super) fn compare_ip(spec: IpSpec, actual: &Datagram) -> Result<(), String> {
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

//! One connection: conversion between the script's relative numbers and those on the wire.

use std::collections::BTreeMap;

use crate::parse::FLAG_LETTERS;
use crate::script::Nanos;
use crate::tcp_option::TcpOption;

use super::wire::WireSegment;

const SYN: u16 = 0x02;
const ACK: u16 = 0x10;
const URG: u16 = 0x20;

/// The connection between a port of the stack and a port of the remote end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    /// The stack's initial sequence number, once sent.
    pub(crate) local_isn: Option<u32>,
    /// The script's sequence number of the stack's SYN.
    pub(crate) script_isn: Option<u32>,
    /// The remote end's initial sequence number, once sent.
    pub(crate) remote_isn: Option<u32>,
    /// The script's descriptor of the socket, once there is one.
    pub(crate) fd: Option<i64>,
    /// The script has closed the socket, or the connection was reset.
    pub(crate) is_closed: bool,
    /// The stack's TSval for each TSval of the script.
    pub(crate) tsvals: BTreeMap<u32, u32>,
    /// The stack's first TSval minus the script's, if ticks are compared.
    pub(crate) tsval_offset: Option<u32>,
}

impl Flow {
    /// Converts a segment of the remote end from the script's numbers to those on the wire.
    pub(crate) fn wire_segment(&mut self, mut segment: WireSegment) -> WireSegment {
        segment.src_port = self.remote_port;
        segment.dst_port = self.local_port;
        if segment.flags & SYN != 0 {
            self.remote_isn.get_or_insert(segment.seq);
        } else {
            segment.seq = segment.seq.wrapping_add(self.remote_isn.unwrap_or(0));
        }
        let local = self.local_isn.unwrap_or(0);
        if segment.flags & ACK != 0 || segment.ack != 0 {
            let named = if segment.flags & SYN != 0 {
                self.script_isn.unwrap_or(0)
            } else {
                0
            };
            segment.ack = segment.ack.wrapping_add(local).wrapping_sub(named);
        }
        for option in &mut segment.options {
            match option {
                TcpOption::Sack(blocks) => blocks.iter_mut().for_each(|(left, right)| {
                    *left = left.wrapping_add(local);
                    *right = right.wrapping_add(local);
                }),
                TcpOption::Timestamps { ecr, .. } => *ecr = self.wire_tsval(*ecr),
                _ => {}
            }
        }
        segment
    }

    fn wire_tsval(&self, script: u32) -> u32 {
        if let Some(live) = self.tsvals.get(&script) {
            return *live;
        }
        match self.tsval_offset {
            Some(offset) if script != 0 => script.wrapping_add(offset),
            _ => script,
        }
    }

    /// Converts a segment of the stack to relative numbers.
    pub(crate) fn relative_segment(&self, mut segment: WireSegment) -> WireSegment {
        let is_syn = segment.flags & SYN != 0;
        segment.seq = segment.seq.wrapping_sub(self.local_isn.unwrap_or(0));
        let remote = self.remote_isn.unwrap_or(0);
        if is_syn {
            // The sequence number of a SYN is absolute: a script may choose any ISN.
            segment.seq = segment.seq.wrapping_add(self.script_isn.unwrap_or(0));
        } else if segment.flags & ACK != 0 {
            segment.ack = segment.ack.wrapping_sub(remote);
        }
        for option in &mut segment.options {
            if let TcpOption::Sack(blocks) = option {
                for (left, right) in blocks {
                    *left = left.wrapping_sub(remote);
                    *right = right.wrapping_sub(remote);
                }
            }
        }
        segment
    }

    /// Records the stack's initial sequence number from its SYN.
    pub(crate) fn record_isn(&mut self, segment: &WireSegment) {
        if segment.flags & SYN != 0 {
            self.local_isn = Some(segment.seq);
        }
    }

    /// Records the stack's TSval `live` for the script's TSval `script`. Returns whether the clock
    /// advanced as in the script, within `tolerance`, if `tick` is not 0 but the length of a tick.
    pub(crate) fn record_tsval(
        &mut self,
        script: u32,
        live: u32,
        tick: Nanos,
        tolerance: Nanos,
    ) -> bool {
        self.tsvals.insert(script, live);
        if tick == 0 {
            return true;
        }
        let offset = *self.tsval_offset.get_or_insert(live.wrapping_sub(script));
        let expected = script.wrapping_add(offset);
        let off = Nanos::from(live.wrapping_sub(expected) as i32).abs();
        off <= tolerance / tick + 1
    }
}

/// Formats flags in the syntax of scripts.
pub(crate) fn flag_text(flags: u16) -> String {
    let order = ['F', 'S', 'R', 'P', 'U', 'E', 'W', 'A', '.'];
    let bit = |c| {
        FLAG_LETTERS
            .iter()
            .find(|(l, _)| *l == c)
            .map_or(0, |(_, b)| *b)
    };
    let set: String = order.into_iter().filter(|&c| flags & bit(c) != 0).collect();
    if set.is_empty() { "-".to_owned() } else { set }
}

/// Formats a segment with relative numbers in the syntax of scripts.
pub fn segment_text(segment: &WireSegment) -> String {
    let len = segment.data.len() as u32;
    let end = segment.seq.wrapping_add(len);
    let flags = flag_text(segment.flags);
    let mut parts = vec![format!("{flags} {}:{end}({len})", segment.seq)];
    if segment.flags & ACK != 0 {
        parts.push(format!("ack {}", segment.ack));
    }
    parts.push(format!("win {}", segment.window));
    if segment.flags & URG != 0 {
        parts.push(format!("urg {}", segment.urgent));
    }
    if !segment.options.is_empty() {
        let options: Vec<String> = segment.options.iter().map(ToString::to_string).collect();
        parts.push(format!("<{}>", options.join(",")));
    }
    parts.join(" ")
}

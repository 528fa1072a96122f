//! One connection: how the script's relative numbers and the wire's belong together.

use std::collections::BTreeMap;

use crate::parse::FLAG_LETTERS;
use crate::script::Nanos;
use crate::tcp_option::TcpOption;

use super::live::LiveSegment;

const SYN: u16 = 0x02;
const ACK: u16 = 0x10;
const URG: u16 = 0x20;

/// The connection between one of our ports and one of the remote end's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    /// Our initial sequence number, once we sent it.
    pub(crate) local_isn: Option<u32>,
    /// What the script calls it on our SYN.
    pub(crate) script_isn: Option<u32>,
    /// The remote end's, once the script sent it.
    pub(crate) remote_isn: Option<u32>,
    /// The script's name for the socket, once there is one.
    pub(crate) fd: Option<i64>,
    /// The script has closed the socket, or the connection was reset.
    pub(crate) over: bool,
    /// The script's TSval and ours.
    pub(crate) stamps: BTreeMap<u32, u32>,
    /// Our first TSval less the script's, where ticks are compared.
    pub(crate) stamp_offset: Option<u32>,
}

impl Flow {
    /// The script's segment that comes from the remote end, with absolute numbers.
    pub(crate) fn live(&mut self, mut segment: LiveSegment) -> LiveSegment {
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
                TcpOption::Timestamps { ecr, .. } => *ecr = self.live_stamp(*ecr),
                _ => {}
            }
        }
        segment
    }

    fn live_stamp(&self, script: u32) -> u32 {
        if let Some(live) = self.stamps.get(&script) {
            return *live;
        }
        match self.stamp_offset {
            Some(offset) if script != 0 => script.wrapping_add(offset),
            _ => script,
        }
    }

    /// A segment of the stack's, with relative numbers.
    pub(crate) fn relative(&self, mut segment: LiveSegment) -> LiveSegment {
        let is_syn = segment.flags & SYN != 0;
        segment.seq = segment.seq.wrapping_sub(self.local_isn.unwrap_or(0));
        let remote = self.remote_isn.unwrap_or(0);
        if is_syn {
            // Absolute on both ends' SYNs: a script may call an ISN what it likes.
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

    /// Our SYN tells our initial sequence number.
    pub(crate) fn learn(&mut self, segment: &LiveSegment) {
        if segment.flags & SYN != 0 {
            self.local_isn = Some(segment.seq);
        }
    }

    /// The script calls our TSval `live` by the name of `script`. Whether the clock has gone as
    /// the script says, if `tick` is the length of one of its steps and `tolerance` allowed.
    pub(crate) fn stamp(&mut self, script: u32, live: u32, tick: Nanos, tolerance: Nanos) -> bool {
        self.stamps.insert(script, live);
        if tick == 0 {
            return true;
        }
        let offset = *self.stamp_offset.get_or_insert(live.wrapping_sub(script));
        let expected = script.wrapping_add(offset);
        let off = Nanos::from(live.wrapping_sub(expected) as i32).abs();
        off <= tolerance / tick + 1
    }
}

/// The flags as a script writes them.
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

/// Writes a segment with relative numbers in the syntax of scripts.
pub fn segment_text(segment: &LiveSegment) -> String {
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

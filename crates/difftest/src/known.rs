//! The list of differences that are intended, or not worth a change, each with its reason.

mod borders;
mod broad;
mod closing;
mod cwnd;
mod duplicates;
mod losses;
mod opening;
mod receiving;
mod sacks;
mod sending;
mod windows;

use fullsend_script::WireSegment;
use fullsend_script::tcp_option::TcpOption;

use crate::compare::Difference;
use crate::event::{ACK, FIN, FuzzEvent, InjectedSegment, RST, SYN, SocketCall, after};
use crate::history::Range;
use crate::segment::{is_pure_ack, scale_of};

// Values of `tcpi_state`.
pub(crate) const ESTABLISHED: u8 = 1;
pub(crate) const SYN_SENT: u8 = 2;
pub(crate) const SYN_RECEIVED: u8 = 3;
const FIN_WAIT_1: u8 = 4;
pub(crate) const CLOSE: u8 = 7;
pub(crate) const CLOSE_WAIT: u8 = 8;
pub(crate) const LAST_ACK: u8 = 9;
pub(crate) const LISTEN: u8 = 10;
pub(crate) const CLOSING: u8 = 11;

/// An explained difference.
pub(crate) struct KnownDifference {
    pub(crate) name: &'static str,
    pub(crate) reason: &'static str,
    /// Whether both sides agree afterwards, so that the sequence can continue.
    pub(crate) continues: bool,
    /// Returns whether a difference is of this kind.
    pub(crate) matches: fn(&[FuzzEvent], &Difference) -> bool,
}

/// The properties that [`compare`](crate::compare) does not compare, with the reasons.
pub(crate) const TOLERATED: &[(&str, &str)] = &[
    (
        "the size of windows",
        "the size of a window depends on the memory of the kernel's driver buffers; only whether \
         it is zero is compared",
    ),
    (
        "the time of an acknowledgement of new data",
        "each side chooses the delay, and on a busy machine the kernel's timer may send it at any \
         event; received bytes are compared by TCP_INFO",
    ),
    (
        "PSH on data",
        "it marks the end of a super-segment, whose size depends on the pacing rate and thus on \
         time",
    ),
    (
        "FIN in SACK blocks",
        "the kernel's blocks include it, ours do not (docs/rfc-exceptions.md)",
    ),
    (
        "DSACK blocks",
        "the kernel discards a DSACK block if more data arrives before the next ACK, we send it \
         (RFC 2883); we always report overlap with out-of-order data, the kernel does not",
    ),
    (
        "SACK blocks on segments with data or FIN",
        "the kernel adds them to such segments, we send them on ACKs (docs/rfc-exceptions.md)",
    ),
    (
        "options of the SYN-ACK in a simultaneous open",
        "the kernel repeats the options of its SYN, we reply to those of the peer's SYN",
    ),
    (
        "SYN and FIN in tcpi_bytes_acked and tcpi_bytes_received",
        "the kernel counts SYN and FIN, we count only bytes",
    ),
    (
        "the sequence number of an ACK or RST after the peer shrank its window",
        "ours is inside the window; the kernel's may be beyond it by less than one unit of its \
         window scale",
    ),
    (
        "a SYN that is retransmitted without a request, after a RST to a half-open peer",
        "both send it after 2 ms; only the kernel's time advances by itself",
    ),
    (
        "POLLPRI after a segment with URG",
        "the kernel reports an urgent byte that arrives out of order, we report it once it can be \
         read",
    ),
];

fn injected<'a>(events: &'a [FuzzEvent], difference: &Difference) -> Option<&'a InjectedSegment> {
    match &events[difference.step] {
        FuzzEvent::Inject(inject) => Some(inject),
        FuzzEvent::Call(_) => None,
    }
}

/// Returns whether the outcomes differ in segments, and in nothing else.
fn only_segments(difference: &Difference) -> bool {
    let (kernel, ours) = (&difference.kernel, &difference.ours);
    let differ = !difference.kernel_only.is_empty() || !difference.ours_only.is_empty();
    differ
        && difference.same_counts
        && kernel.returned == ours.returned
        && same_polls_without(0, difference)
        && kernel.states == ours.states
        && kernel.others == ours.others
}

/// Returns whether the poll bits are equal without those of `except`, and without `POLLPRI` once
/// urgent data was injected.
fn same_polls_without(except: i16, difference: &Difference) -> bool {
    let urgent = if difference.urgent { libc::POLLPRI } else { 0 };
    let except = i32::from(except | urgent);
    let mask = |polls: &[(usize, i32)]| -> Vec<_> {
        let masked = polls.iter().map(|(fd, bits)| (*fd, bits & !except));
        masked.collect()
    };
    mask(&difference.kernel.polls) == mask(&difference.ours.polls)
}

fn all_pure(segments: &[WireSegment]) -> bool {
    segments.iter().all(is_pure_ack)
}

fn carries_data(segment: &WireSegment) -> bool {
    !segment.data.is_empty()
}

fn is_reset(segment: &WireSegment) -> bool {
    segment.flags & RST != 0
}

fn has_fin(segment: &WireSegment) -> bool {
    segment.flags & FIN != 0
}

/// The segments that one side sends in response to an event beyond the data and FINs that both send.
struct Excess {
    is_kernels: bool,
    /// The segments with data or FIN that both sides send.
    common: Vec<Range>,
    /// The segments that one side sends after them.
    extra: Vec<Range>,
}

/// Returns the sequence numbers of the segments with data or FIN.
fn spans(segments: &[WireSegment]) -> Vec<Range> {
    let segments = segments.iter().filter(|s| carries_data(s) || has_fin(s));
    let end = |s: &WireSegment| s.data.len() as u32 + u32::from(has_fin(s));
    segments
        .map(|s| (s.seq, s.seq.wrapping_add(end(s))))
        .collect()
}

/// Returns what one side sends in addition, if the other sends the beginning of it.
fn excess(difference: &Difference) -> Option<Excess> {
    let kernel = spans(&difference.kernel.segments);
    let ours = spans(&difference.ours.segments);
    let is_kernels = kernel.len() > ours.len();
    let (common, mut more) = if is_kernels {
        (ours, kernel)
    } else {
        (kernel, ours)
    };
    let is_excess = more.len() > common.len() && more.starts_with(&common);
    is_excess.then(|| Excess {
        is_kernels,
        extra: more.split_off(common.len()),
        common,
    })
}

/// Returns the number of segments that the kernel sent again before the event.
fn count_retransmitted(difference: &Difference) -> usize {
    let sent = &difference.history.sent.0;
    let is_again = |at: &usize| {
        let mut earlier = sent[..*at].iter();
        earlier.any(|(_, end)| after(*end, sent[*at].0))
    };
    (0..sent.len()).filter(is_again).count()
}

/// Returns whether a segment with data begins before the end of what our side has sent.
fn is_retransmission(difference: &Difference, segment: &WireSegment) -> bool {
    carries_data(segment) && after(difference.before.1.sent, segment.seq)
}

/// Returns the first acknowledgement number that is higher than those before and within a segment
/// that the kernel has sent, and the highest one before it.
fn ack_within_segment(difference: &Difference) -> Option<(u32, u32)> {
    let sent = &difference.history.sent.0;
    let splits = |at: u32| (sent.iter()).any(|(start, end)| after(at, *start) && after(*end, at));
    let mut una = 1;
    for ack in &difference.acks {
        if after(ack.ack, una) {
            if splits(ack.ack) {
                return Some((una, ack.ack));
            }
            una = ack.ack;
        }
    }
    None
}

/// Returns whether a socket is in SYN-RECEIVED, and any other one is in CLOSE.
fn waits_in_syn_received(states: &[(usize, u8)]) -> bool {
    let is = |expected: u8| move |(_, state): &(usize, u8)| *state == expected;
    states.iter().any(is(SYN_RECEIVED))
        && states
            .iter()
            .all(|state| is(SYN_RECEIVED)(state) || is(CLOSE)(state))
}

/// Returns whether the kernel's connection and ours are in SYN-RECEIVED, given the states of their
/// sockets.
fn both_in_syn_received(kernel: &[(usize, u8)], ours: &[(usize, u8)]) -> bool {
    kernel == ours && waits_in_syn_received(ours)
}

/// Returns whether the connection is in SYN-RECEIVED of a simultaneous open after the event.
fn in_syn_received(difference: &Difference) -> bool {
    both_in_syn_received(&difference.kernel.states, &difference.ours.states)
}

/// Returns whether the connection was in SYN-RECEIVED of a simultaneous open before the event.
fn was_in_syn_received(events: &[FuzzEvent], difference: &Difference) -> bool {
    let connects = |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Connect(_)));
    let syn = |event: &FuzzEvent| matches!(event, FuzzEvent::Inject(i) if i.flags & (SYN | ACK | RST) == SYN);
    let (kernel, ours) = &difference.history.states;
    let before = &events[..difference.step];
    before.iter().any(connects) && before.iter().any(syn) && both_in_syn_received(kernel, ours)
}

/// Returns whether the application has closed its only connection.
fn is_closed(events: &[FuzzEvent], difference: &Difference) -> bool {
    let closes = |event: &FuzzEvent| matches!(event, FuzzEvent::Call(SocketCall::Close(_)));
    let listens = |states: &[(usize, u8)]| {
        let none = |(_, state): &(usize, u8)| matches!(*state, LISTEN | CLOSE);
        states.iter().all(none)
    };
    let connects = |event: &FuzzEvent| {
        matches!(
            event,
            FuzzEvent::Call(SocketCall::Connect(_) | SocketCall::Accept(_))
        )
    };
    events[..difference.step].iter().any(closes)
        && (difference.before.1.sent > 1 || events[..difference.step].iter().any(connects))
        && listens(&difference.kernel.states)
        && listens(&difference.ours.states)
}

/// Returns whether the connection is in SYN-RECEIVED, or in a listener before the end of the
/// handshake.
fn is_opening(difference: &Difference) -> bool {
    let opens = |states: &[(usize, u8)]| {
        let ok = |(_, s): &(usize, u8)| matches!(*s, LISTEN | SYN_RECEIVED | CLOSE);
        states.iter().all(ok)
    };
    opens(&difference.kernel.states) && opens(&difference.ours.states)
}

/// Returns whether the peer's first SYN permits SACK. A SYN-ACK that follows it, in a simultaneous
/// open, does not count.
fn permits_sack(events: &[FuzzEvent]) -> bool {
    let syn = |event: &FuzzEvent| match event {
        FuzzEvent::Inject(i) if i.flags & SYN != 0 => {
            Some(i.options.contains(&TcpOption::SackPermitted))
        }
        _ => None,
    };
    events.iter().find_map(syn) == Some(true)
}

/// Returns the window of an injected segment in bytes, for the window scale of each SYN that was
/// injected.
fn windows_of(events: &[FuzzEvent], inject: &InjectedSegment) -> impl Iterator<Item = u32> {
    let shifts = events.iter().filter_map(|event| match event {
        FuzzEvent::Inject(syn) if syn.flags & SYN != 0 => {
            Some(syn.options.iter().find_map(scale_of).unwrap_or(0))
        }
        _ => None,
    });
    let is_syn = inject.flags & SYN != 0;
    shifts.map(move |shift| u32::from(inject.window) << if is_syn { 0 } else { shift })
}

/// Returns the explained differences, the narrow ones first. The first that matches counts.
pub(crate) fn known() -> impl Iterator<Item = &'static KnownDifference> {
    let kinds = [
        opening::KNOWN,
        closing::KNOWN,
        sending::KNOWN,
        cwnd::KNOWN,
        duplicates::KNOWN,
        windows::KNOWN,
        borders::KNOWN,
        losses::KNOWN,
        sacks::KNOWN,
        receiving::KNOWN,
        broad::KNOWN,
    ];
    kinds.into_iter().flatten()
}

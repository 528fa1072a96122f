//! Where a transmit unit of several segments is cut, and whether it is worth waiting for more of
//! it.

use fullsend_units::{Mss, Nanos};

use super::Nagle;

/// How many of `len` bytes to send at once. `window` admits one segment at least, and `len` is
/// more than one segment. `tail`: nothing is queued behind.
pub(crate) fn split_point(
    len: u32,
    window: u32,
    mss: Mss,
    max_segs: u32,
    tail: bool,
    nagle: Nagle,
) -> u32 {
    let max_len = mss.bytes() * max_segs;
    if max_len <= window && !tail {
        return max_len;
    }
    let needed = len.min(window);
    if max_len <= needed {
        return max_len;
    }
    // Nagle is asked here, so that a whole write leaves at once when nothing small is in flight.
    let partial = needed % mss.bytes();
    if nagle.holds(partial != 0) {
        needed - partial
    } else {
        needed
    }
}

/// What [`defers`] looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeferInput {
    /// Bytes of the transmit unit.
    pub(crate) len: u32,
    /// Nothing is queued behind it.
    pub(crate) tail: bool,
    /// A FIN or a record's end follows it: it will not grow.
    pub(crate) ends: bool,
    pub(crate) mss: Mss,
    pub(crate) max_segs: u32,
    /// Bytes that the peer's window still admits.
    pub(crate) send_win: u32,
    /// Bytes that cwnd still admits.
    pub(crate) cong_win: u32,
    /// The peer's whole window, bytes.
    pub(crate) snd_wnd: u32,
    /// The whole congestion window, bytes.
    pub(crate) cwnd_bytes: u32,
    /// `tcp_tso_win_divisor`.
    pub(crate) win_divisor: u32,
    /// Since something was last sent.
    pub(crate) since_last: Nanos,
    /// Since the oldest unit in flight was sent; `None` when nothing is in flight.
    pub(crate) head_age: Option<Nanos>,
    pub(crate) srtt: Nanos,
}

/// A unit of several segments waits for the window to admit more of it: fewer, larger units, as
/// long as an ACK will come soon.
pub(crate) fn defers(at: &DeferInput) -> bool {
    // Idle for a while: the ACK clock has stopped.
    if at.since_last > Nanos::from_millis(1) {
        return false;
    }
    let limit = at.send_win.min(at.cong_win);
    if limit >= at.max_segs * at.mss.bytes() || (!at.tail && limit >= at.len) {
        return false;
    }
    // A worthwhile part of the whole window is there.
    let whole = at.snd_wnd.min(at.cwnd_bytes);
    if at.win_divisor != 0 && limit >= whole / at.win_divisor {
        return false;
    }
    match at.head_age {
        None => return false,
        // The next ACK is still too far off.
        Some(age) if age < at.srtt / 2 => return false,
        Some(_) => {}
    }
    // Where the application is the limit only the application could make the unit larger. Where
    // the window or cwnd is, waiting lets more of the unit leave together.
    let app_limited = limit > at.len;
    !(at.ends && app_limited)
}

#[cfg(test)]
mod tests;

//! Where a super-segment is cut, and whether it waits to become larger.

use fullsend_wire::{Mss, Nanos};

use super::Nagle;

/// Returns how many of `len` bytes to send at once. `window` admits at least one segment, and `len`
/// is more than one segment. `tail`: no data is queued after these.
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
    // Nagle decides about the partial segment at the end here, so that a whole write leaves at once
    // while no small segment is in flight.
    let partial = needed % mss.bytes();
    if nagle.holds(partial != 0) {
        needed - partial
    } else {
        needed
    }
}

/// The inputs of [`should_defer`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeferInput {
    /// Bytes of the super-segment.
    pub(crate) len: u32,
    /// No data is queued after it.
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
    /// Time since data was last sent.
    pub(crate) since_last: Nanos,
    /// Time since the oldest data in flight was sent; `None` if nothing is in flight.
    pub(crate) head_age: Option<Nanos>,
    pub(crate) srtt: Nanos,
}

/// Returns whether a super-segment waits for the window to admit more of it, which makes fewer and
/// larger ones, while an ACK will come soon.
pub(crate) fn should_defer(input: &DeferInput) -> bool {
    // Idle for a while: the ACK clock has stopped.
    if input.since_last > Nanos::from_millis(1) {
        return false;
    }
    let limit = input.send_win.min(input.cong_win);
    if limit >= input.max_segs * input.mss.bytes() || (!input.tail && limit >= input.len) {
        return false;
    }
    // A large part of the whole window is available.
    let whole = input.snd_wnd.min(input.cwnd_bytes);
    if input.win_divisor != 0 && limit >= whole / input.win_divisor {
        return false;
    }
    match input.head_age {
        None => return false,
        // The next ACK will not come soon.
        Some(age) if age < input.srtt / 2 => return false,
        Some(_) => {}
    }
    // If the application is the limit, only it can make the super-segment larger. If the window or
    // cwnd is the limit, the super-segment grows while it waits.
    let app_limited = limit > input.len;
    !(input.ends && app_limited)
}

#[cfg(test)]
mod tests;

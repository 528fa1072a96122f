//! The congestion control of a program: the trait that it implements, and what the trait reports.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

use fullsend_wire::{Instant, Nanos, Rate};

use super::CongestionEvent;

/// A congestion control that a program brings along, for one connection.
///
/// The stack detects loss, retransmits, and keeps to the window; the control decides how large the
/// window is, also during recovery. After each call of a method that begins with `on_`, the stack
/// reads [`window_bytes`](Self::window_bytes), [`ssthresh_bytes`](Self::ssthresh_bytes) and
/// [`pacing_rate`](Self::pacing_rate). Sizes are bytes of payload, times nanoseconds.
///
/// The stack counts in segments: a size is rounded down to full segments, and a segment that is
/// shorter counts as a full one.
///
/// Any value of the window is safe for the stack: a smaller one than a segment means one segment, and
/// the send buffer limits the data in flight in any case. An implementation is called while the
/// stack's lock is held, so it must neither call the stack nor block. A panic ends the stack.
///
/// ```
/// use fullsend_tcp::congestion::{Ack, CongestionControl, CongestionEvent};
/// use fullsend_wire::Instant;
///
/// /// One segment more for each round trip, half of the window after congestion.
/// #[derive(Debug, Default)]
/// struct Aimd {
///     mss: u64,
///     window: u64,
/// }
///
/// impl CongestionControl for Aimd {
///     fn name(&self) -> &'static str {
///         "aimd"
///     }
///
///     fn window_bytes(&self) -> u64 {
///         self.window
///     }
///
///     fn on_mss(&mut self, mss_bytes: u32) {
///         self.mss = mss_bytes.into();
///         self.window = self.window.max(10 * self.mss);
///     }
///
///     fn on_ack(&mut self, ack: &Ack) {
///         if ack.window_used && !ack.in_recovery {
///             self.window += self.mss * ack.delivered_bytes / self.window;
///         }
///     }
///
///     fn on_congestion(&mut self, event: CongestionEvent, _: Instant) {
///         self.window = match event {
///             CongestionEvent::Rto => self.mss,
///             _ => (self.window / 2).max(2 * self.mss),
///         };
///     }
/// }
/// ```
pub trait CongestionControl: Send + fmt::Debug {
    /// Returns the name that `TCP_CONGESTION` shows, of at most 15 bytes.
    fn name(&self) -> &'static str;

    /// Returns the congestion window: the most payload bytes in flight. After a retransmission
    /// timeout the stack sends one segment whatever this returns, until the next ACK.
    fn window_bytes(&self) -> u64;

    /// Returns the window at which slow start ends, in bytes of payload; `None` if the control has
    /// no such threshold. It is shown as `tcpi_snd_ssthresh`, and in slow start
    /// [`Ack::window_used`] is true already if half of the window was used.
    fn ssthresh_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the rate at which data is sent, in bytes per second with headers; `None` if the
    /// control does not pace. It is at least one segment per second. `SO_MAX_PACING_RATE` may limit
    /// it further.
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    /// Sets the payload bytes of a full segment. It is called before all other methods that begin
    /// with `on_`, and again when the size changes.
    fn on_mss(&mut self, mss_bytes: u32);

    /// Processes an ACK.
    fn on_ack(&mut self, ack: &Ack);

    /// Processes congestion, at most once for each window of data.
    fn on_congestion(&mut self, event: CongestionEvent, now: Instant);

    /// Processes the loss of data: before [`on_ack`](Self::on_ack) if an ACK revealed it, but a timer
    /// or a full queue of the host may reveal it as well. The window is read again afterwards.
    /// Most controls reduce the window in [`on_congestion`](Self::on_congestion) instead.
    fn on_lost(&mut self, loss: &Loss) {
        let _ = loss;
    }

    /// Processes the discovery that nothing was lost at the last [`CongestionEvent::Loss`] or
    /// [`CongestionEvent::Rto`] (RFC 3522, RFC 3708): the reduction may be undone.
    fn on_spurious(&mut self, now: Instant) {
        let _ = now;
    }

    /// Processes that sending begins again with nothing in flight, after the application had no
    /// data to send (RFC 7661).
    fn on_restart(&mut self, now: Instant) {
        let _ = now;
    }
}

/// An ACK, as a [`CongestionControl`] receives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Ack {
    /// The time at which the ACK arrived, on the stack's clock.
    pub now: Instant,
    /// Payload bytes that the ACK newly reports as delivered, cumulatively or selectively.
    pub delivered_bytes: u64,
    /// Payload bytes in flight after the ACK.
    pub in_flight_bytes: u64,
    /// Round-trip time of the newest data that the ACK reports, if the ACK shows it.
    pub rtt: Option<Nanos>,
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Nanos,
    /// Rate at which the path delivered the last flight, in payload bytes per second; `None` if the
    /// ACK gives no reliable sample (draft-ietf-ccwg-bbr 4.1).
    pub delivery_rate: Option<Rate>,
    /// Whether `delivery_rate` was limited by the application rather than by the path.
    pub app_limited: bool,
    /// Whether the window was used so far that it may grow (RFC 7661).
    pub window_used: bool,
    /// Whether lost data is being retransmitted.
    pub in_recovery: bool,
    /// Whether a round trip begins: the data that was sent when the last one began is delivered.
    pub starts_round: bool,
}

impl Ack {
    /// Returns an ACK of `delivered_bytes` that arrives at `now` and has no other property, for the
    /// tests of a [`CongestionControl`].
    pub const fn new(now: Instant, delivered_bytes: u64) -> Self {
        Self {
            now,
            delivered_bytes,
            in_flight_bytes: 0,
            rtt: None,
            srtt: Nanos::ZERO,
            delivery_rate: None,
            app_limited: false,
            window_used: true,
            in_recovery: false,
            starts_round: false,
        }
    }
}

/// Lost data, as a [`CongestionControl`] receives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Loss {
    /// The time at which the loss was detected, on the stack's clock.
    pub now: Instant,
    /// Payload bytes lost.
    pub lost_bytes: u64,
    /// Payload bytes in flight right after this data was sent.
    pub in_flight_bytes: u64,
}

impl Loss {
    /// Returns a loss of `lost_bytes` of `in_flight_bytes` at `now`, for the tests of a
    /// [`CongestionControl`].
    pub const fn new(now: Instant, lost_bytes: u64, in_flight_bytes: u64) -> Self {
        Self {
            now,
            lost_bytes,
            in_flight_bytes,
        }
    }
}

/// A function that creates a [`CongestionControl`] for each new connection of a listener or a host.
///
/// It is called while the stack's lock is held, like the controls that it creates, and only for
/// connections that are kept: a flood of SYNs does not call it.
#[derive(Clone)]
pub struct CongestionFactory(Arc<dyn Fn() -> Box<dyn CongestionControl> + Send + Sync>);

impl CongestionFactory {
    /// Creates a factory from a function that returns a new control.
    pub fn new<C, F>(create: F) -> Self
    where
        C: CongestionControl + 'static,
        F: Fn() -> C + Send + Sync + 'static,
    {
        Self(Arc::new(move || Box::new(create())))
    }

    /// Returns the control of a new connection.
    pub fn create(&self) -> Box<dyn CongestionControl> {
        (self.0)()
    }
}

impl fmt::Debug for CongestionFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CongestionFactory")
    }
}

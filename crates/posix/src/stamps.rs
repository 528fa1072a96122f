//! `SO_TIMESTAMP`, `SO_TIMESTAMPNS`, `SO_TIMESTAMPING`: what a socket wants to know of the times
//! of its bytes, and how it is told.

use fullsend_stack::Host;
use fullsend_tcp::{SocketOption, State, TxStage, TxStages};
use fullsend_units::{Instant, Nanos};

use crate::abi::{
    SO_TIMESTAMP_NEW, SO_TIMESTAMP_OLD, SO_TIMESTAMPING_NEW, SO_TIMESTAMPING_OLD,
    SO_TIMESTAMPNS_NEW, SO_TIMESTAMPNS_OLD, SOF_TIMESTAMPING_OPT_CMSG, SOF_TIMESTAMPING_OPT_ID,
    SOF_TIMESTAMPING_OPT_ID_TCP, SOF_TIMESTAMPING_OPT_TSONLY, SOF_TIMESTAMPING_RX_SOFTWARE,
    SOF_TIMESTAMPING_SOFTWARE, SOF_TIMESTAMPING_TX_ACK, SOF_TIMESTAMPING_TX_SCHED,
    SOF_TIMESTAMPING_TX_SOFTWARE, SOL_SOCKET,
};
use crate::cmsg::{Message, Writer};
use crate::errno::{Errno, Result};
use crate::sockopt::{Value, int};
use crate::stream::{Core, Stream};

/// The flags of `SO_TIMESTAMPING` that ask for a time of what is sent.
const TX: u32 = SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_ACK;
/// All that are known here. Without `OPT_TSONLY` the packet that a time is of would come with it:
/// it is not kept, and comes cut short to nothing (`MSG_TRUNC`).
const KNOWN: u32 = TX
    | SOF_TIMESTAMPING_RX_SOFTWARE
    | SOF_TIMESTAMPING_SOFTWARE
    | SOF_TIMESTAMPING_OPT_ID
    | SOF_TIMESTAMPING_OPT_ID_TCP
    | SOF_TIMESTAMPING_OPT_CMSG
    | SOF_TIMESTAMPING_OPT_TSONLY;

/// The host's time and the world's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) now: Instant,
    /// What the world's clock (nanoseconds since 1970) shows at the host's zero.
    pub(crate) epoch: Nanos,
}

impl Clock {
    /// `struct timespec`.
    pub(crate) fn timespec(self, at: Instant) -> [u8; 16] {
        self.split(at, 1)
    }

    /// `struct timeval`.
    fn timeval(self, at: Instant) -> [u8; 16] {
        self.split(at, 1000)
    }

    /// Seconds, and what is left in units of `unit` nanoseconds.
    fn split(self, at: Instant, unit: u64) -> [u8; 16] {
        let ns = self.epoch.as_nanos().saturating_add(at.as_nanos());
        let mut out = [0; 16];
        out[..8].copy_from_slice(&(ns / 1_000_000_000).to_ne_bytes());
        out[8..].copy_from_slice(&(ns % 1_000_000_000 / unit).to_ne_bytes());
        out
    }
}

/// Whether `SO_TIMESTAMP` or `SO_TIMESTAMPNS` is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Micros,
    Nanos,
}

/// What a socket asked for.
#[derive(Clone, Debug)]
pub(crate) struct Stamps {
    /// The time of arrival is told in this.
    received: Option<Unit>,
    /// `SOF_TIMESTAMPING_*`.
    flags: u32,
    /// The last option set had its new number: times are told under new numbers.
    new: bool,
}

/// The option's unit, and whether its number is the new one; `None` for other options.
const fn unit_of(name: i32) -> Option<(Unit, bool)> {
    match name {
        SO_TIMESTAMP_OLD => Some((Unit::Micros, false)),
        SO_TIMESTAMP_NEW => Some((Unit::Micros, true)),
        SO_TIMESTAMPNS_OLD => Some((Unit::Nanos, false)),
        SO_TIMESTAMPNS_NEW => Some((Unit::Nanos, true)),
        _ => None,
    }
}

impl Stamps {
    pub(crate) const fn new() -> Self {
        Self {
            received: None,
            flags: 0,
            new: false,
        }
    }

    pub(crate) fn get(&self, name: i32) -> Option<Value> {
        if let Some((unit, new)) = unit_of(name) {
            return Some((self.received == Some(unit) && self.new == new).into());
        }
        match name {
            SO_TIMESTAMPING_OLD | SO_TIMESTAMPING_NEW => {
                let shown = name == SO_TIMESTAMPING_OLD || self.new;
                let flags = if shown { self.flags } else { 0 };
                // `struct so_timestamping`: the flags, and a clock.
                let bytes = [flags.to_ne_bytes(), [0; 4]].concat();
                Some(Value::Bytes(bytes))
            }
            _ => None,
        }
    }

    /// Sets one of them; `None` when it is none of them.
    fn set(&mut self, name: i32, value: &[u8]) -> Result<Option<()>> {
        if let Some((unit, new)) = unit_of(name) {
            let on = int(value)? != 0;
            self.received = on.then_some(unit);
            if on {
                self.new = new;
            }
            return Ok(Some(()));
        }
        match name {
            SO_TIMESTAMPING_OLD | SO_TIMESTAMPING_NEW => {
                self.flags = flags(int(value)? as u32)?;
                self.new = name == SO_TIMESTAMPING_NEW;
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    pub(crate) const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// The time of arrival of what is received is wanted.
    pub(crate) const fn wants_received(&self) -> bool {
        self.received.is_some() || self.has(SOF_TIMESTAMPING_RX_SOFTWARE)
    }

    /// The stages that a write is to be told of: those of the socket, or of the call's own
    /// `SO_TIMESTAMPING` message.
    pub(crate) fn stages(&self, own: Option<u32>) -> TxStages {
        let flags = own.map_or(self.flags, |own| self.flags & !TX | own);
        let pairs = [
            (SOF_TIMESTAMPING_TX_SCHED, TxStage::Scheduled),
            (SOF_TIMESTAMPING_TX_SOFTWARE, TxStage::Sent),
            (SOF_TIMESTAMPING_TX_ACK, TxStage::Acked),
        ];
        let wanted = pairs.iter().filter(|(flag, _)| flags & flag != 0);
        wanted.fold(TxStages::NONE, |all, &(_, stage)| all.with(stage))
    }

    /// Tells when something arrived.
    pub(crate) fn tell_received(&self, clock: Clock, at: Instant, out: &mut Writer<'_>) {
        self.tell_plain(clock, at, out);
        if self.has(SOF_TIMESTAMPING_RX_SOFTWARE) {
            self.tell_stamping(clock, at, out);
        }
    }

    /// Tells when something was sent.
    pub(crate) fn tell_sent(&self, clock: Clock, at: Instant, out: &mut Writer<'_>) {
        self.tell_plain(clock, at, out);
        self.tell_stamping(clock, at, out);
    }

    /// `SCM_TIMESTAMP` or `SCM_TIMESTAMPNS`.
    fn tell_plain(&self, clock: Clock, at: Instant, out: &mut Writer<'_>) {
        match (self.received, self.new) {
            (Some(Unit::Micros), new) => {
                let kind = if new {
                    SO_TIMESTAMP_NEW
                } else {
                    SO_TIMESTAMP_OLD
                };
                out.put(SOL_SOCKET, kind, &clock.timeval(at));
            }
            (Some(Unit::Nanos), new) => {
                let kind = if new {
                    SO_TIMESTAMPNS_NEW
                } else {
                    SO_TIMESTAMPNS_OLD
                };
                out.put(SOL_SOCKET, kind, &clock.timespec(at));
            }
            (None, _) => {}
        }
    }

    /// `SCM_TIMESTAMPING`: the software's time, and two of the hardware that stay empty.
    fn tell_stamping(&self, clock: Clock, at: Instant, out: &mut Writer<'_>) {
        if !self.has(SOF_TIMESTAMPING_SOFTWARE) {
            return;
        }
        let mut stamps = [0; 48];
        stamps[..16].copy_from_slice(&clock.timespec(at));
        let kind = if self.new {
            SO_TIMESTAMPING_NEW
        } else {
            SO_TIMESTAMPING_OLD
        };
        out.put(SOL_SOCKET, kind, &stamps);
    }
}

/// `SOF_TIMESTAMPING_*` that make sense together. EINVAL for those of hardware and others that
/// are not known here.
fn flags(value: u32) -> Result<u32> {
    let alone = value & SOF_TIMESTAMPING_OPT_ID_TCP != 0 && value & SOF_TIMESTAMPING_OPT_ID == 0;
    if value & !KNOWN != 0 || alone {
        return Err(Errno::EINVAL);
    }
    Ok(value)
}

/// What a call's control messages ask for: `SO_TIMESTAMPING`'s stages. EINVAL for what is not
/// known here.
pub(crate) fn asked_for(message: &Message<'_>) -> Result<u32> {
    match (message.level, message.kind) {
        (SOL_SOCKET, SO_TIMESTAMPING_OLD | SO_TIMESTAMPING_NEW) if message.data.len() == 4 => {
            let flags = int(message.data)? as u32;
            (flags & !TX == 0).then_some(flags).ok_or(Errno::EINVAL)
        }
        _ => Err(Errno::EINVAL),
    }
}

impl Stream {
    /// Sets one of the options of this file; `None` when it is none of them.
    pub(crate) fn set_stamps(
        &mut self,
        host: &mut Host,
        now: Instant,
        name: i32,
        value: &[u8],
    ) -> Result<Option<()>> {
        let mut stamps = self.common.stamps.clone();
        if stamps.set(name, value)?.is_none() {
            return Ok(None);
        }
        let (old, new) = (self.common.stamps.flags, stamps.flags);
        if new & !old & SOF_TIMESTAMPING_OPT_ID != 0 {
            self.count_keys(host, new & SOF_TIMESTAMPING_OPT_ID_TCP != 0)?;
        }
        self.common.stamps = stamps;
        let wanted = self.common.stamps.wants_received();
        let kept = self.has_set(|o| *o == SocketOption::SoTimestampRx(true));
        if wanted != kept {
            self.set_option(host, now, SocketOption::SoTimestampRx(wanted))?;
        }
        Ok(Some(()))
    }

    /// `OPT_ID`: bytes are counted from here: from the first not written yet, or, as it used to
    /// be, from the first not acknowledged.
    fn count_keys(&mut self, host: &mut Host, from_written: bool) -> Result<()> {
        let Core::Connection(id) = self.core else {
            return Err(Errno::EINVAL);
        };
        if self.state(host) == State::Closed {
            return Err(Errno::EINVAL);
        }
        let written = host.tcp_written(id)?;
        let unacked = host.tcp_queues(id)?.unacked as u64;
        self.key_base = if from_written {
            written
        } else {
            written - unacked
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fullsend_units::{Instant, Nanos};

    use super::{Clock, flags};
    use crate::errno::Errno;

    #[test]
    fn times_are_the_worlds() {
        let clock = Clock {
            now: Instant::ZERO,
            epoch: Nanos::from_secs(1_700_000_000),
        };
        let at = Instant::ZERO + Nanos::from_nanos(2_000_001_500);
        let seconds = 1_700_000_002_u64.to_ne_bytes();
        assert_eq!(
            clock.timespec(at),
            *[seconds, 1500_u64.to_ne_bytes()].concat()
        );
        assert_eq!(clock.timeval(at), *[seconds, 1_u64.to_ne_bytes()].concat());
    }

    #[test]
    fn flags_that_are_not_known_are_refused() {
        assert_eq!(flags(0b11010 | 1 << 7), Ok(0b11010 | 1 << 7));
        // Hardware's; OPT_ID_TCP without OPT_ID; one that is none.
        for bad in [1, 1 << 2, 1 << 6, 1 << 16, 1 << 30] {
            assert_eq!(flags(bad), Err(Errno::EINVAL), "{bad:#x}");
        }
    }
}

//! Timestamps: `SO_TIMESTAMP`, `SO_TIMESTAMPNS` and `SO_TIMESTAMPING`.

use fullsend_stack::Host;
use fullsend_tcp::{SocketOption, State, TxStage, TxStages};
use fullsend_wire::{Instant, Nanos};

use crate::abi::{
    SO_TIMESTAMP_NEW, SO_TIMESTAMP_OLD, SO_TIMESTAMPING_NEW, SO_TIMESTAMPING_OLD,
    SO_TIMESTAMPNS_NEW, SO_TIMESTAMPNS_OLD, SOF_TIMESTAMPING_OPT_CMSG, SOF_TIMESTAMPING_OPT_ID,
    SOF_TIMESTAMPING_OPT_ID_TCP, SOF_TIMESTAMPING_OPT_TSONLY, SOF_TIMESTAMPING_RX_SOFTWARE,
    SOF_TIMESTAMPING_SOFTWARE, SOF_TIMESTAMPING_TX_ACK, SOF_TIMESTAMPING_TX_SCHED,
    SOF_TIMESTAMPING_TX_SOFTWARE, SOL_SOCKET,
};
use crate::cmsg::{Cmsg, CmsgWriter};
use crate::errno::{Errno, Result};
use crate::sockopt::{OptionValue, int};
use crate::stream::{HostSocket, Stream};

/// The flags of `SO_TIMESTAMPING` that request transmit timestamps.
const TX_FLAGS: u32 =
    SOF_TIMESTAMPING_TX_SCHED | SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_ACK;
/// All supported flags. Without `OPT_TSONLY` a timestamp comes with its packet: as packets are not kept,
/// the packet is truncated to zero bytes (`MSG_TRUNC`).
const SUPPORTED_FLAGS: u32 = TX_FLAGS
    | SOF_TIMESTAMPING_RX_SOFTWARE
    | SOF_TIMESTAMPING_SOFTWARE
    | SOF_TIMESTAMPING_OPT_ID
    | SOF_TIMESTAMPING_OPT_ID_TCP
    | SOF_TIMESTAMPING_OPT_CMSG
    | SOF_TIMESTAMPING_OPT_TSONLY;

/// The host's time, with its relation to the time of day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochClock {
    pub(crate) now: Instant,
    /// The time since the Unix epoch at which the host's clock was zero.
    pub(crate) epoch: Nanos,
}

impl EpochClock {
    /// Returns `at` as `struct timespec`.
    pub(crate) fn timespec(self, at: Instant) -> [u8; 16] {
        self.split(at, 1)
    }

    /// Returns `at` as `struct timeval`.
    fn timeval(self, at: Instant) -> [u8; 16] {
        self.split(at, 1000)
    }

    /// Returns the seconds of `at`, and the rest in units of `unit` nanoseconds.
    fn split(self, at: Instant, unit: u64) -> [u8; 16] {
        let ns = self.epoch.as_nanos().saturating_add(at.as_nanos());
        let mut out = [0; 16];
        out[..8].copy_from_slice(&(ns / 1_000_000_000).to_ne_bytes());
        out[8..].copy_from_slice(&(ns % 1_000_000_000 / unit).to_ne_bytes());
        out
    }
}

/// The unit of received timestamps: `SO_TIMESTAMP` or `SO_TIMESTAMPNS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TimestampUnit {
    Micros,
    Nanos,
}

/// The timestamp options of a socket.
#[derive(Clone, Debug)]
pub(crate) struct TimestampOptions {
    /// The unit of received timestamps, if enabled.
    received: Option<TimestampUnit>,
    /// `SOF_TIMESTAMPING_*`.
    flags: u32,
    /// Whether the last option was set by its new number: messages then have the new numbers, too.
    new: bool,
}

/// Returns the unit of an option and whether its number is the new one, or `None` for other
/// options.
const fn timestamp_unit(name: i32) -> Option<(TimestampUnit, bool)> {
    match name {
        SO_TIMESTAMP_OLD => Some((TimestampUnit::Micros, false)),
        SO_TIMESTAMP_NEW => Some((TimestampUnit::Micros, true)),
        SO_TIMESTAMPNS_OLD => Some((TimestampUnit::Nanos, false)),
        SO_TIMESTAMPNS_NEW => Some((TimestampUnit::Nanos, true)),
        _ => None,
    }
}

impl TimestampOptions {
    pub(crate) const fn new() -> Self {
        Self {
            received: None,
            flags: 0,
            new: false,
        }
    }

    pub(crate) fn get(&self, name: i32) -> Option<OptionValue> {
        if let Some((unit, new)) = timestamp_unit(name) {
            return Some((self.received == Some(unit) && self.new == new).into());
        }
        match name {
            SO_TIMESTAMPING_OLD | SO_TIMESTAMPING_NEW => {
                let shown = name == SO_TIMESTAMPING_OLD || self.new;
                let flags = if shown { self.flags } else { 0 };
                // `struct so_timestamping`: the flags and a clock.
                let bytes = [flags.to_ne_bytes(), [0; 4]].concat();
                Some(OptionValue::Bytes(bytes))
            }
            _ => None,
        }
    }

    /// Sets a timestamp option. Returns `None` for other options.
    fn set(&mut self, name: i32, value: &[u8]) -> Result<Option<()>> {
        if let Some((unit, new)) = timestamp_unit(name) {
            let on = int(value)? != 0;
            self.received = on.then_some(unit);
            if on {
                self.new = new;
            }
            return Ok(Some(()));
        }
        match name {
            SO_TIMESTAMPING_OLD | SO_TIMESTAMPING_NEW => {
                self.flags = check_flags(int(value)? as u32)?;
                self.new = name == SO_TIMESTAMPING_NEW;
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    pub(crate) const fn has_flag(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether timestamps of received data are enabled.
    pub(crate) const fn is_rx_enabled(&self) -> bool {
        self.received.is_some() || self.has_flag(SOF_TIMESTAMPING_RX_SOFTWARE)
    }

    /// Returns the stages of a write to report: the socket's, or the stages that the call's own
    /// `SO_TIMESTAMPING` message requests.
    pub(crate) fn stages(&self, own: Option<u32>) -> TxStages {
        let flags = own.map_or(self.flags, |own| self.flags & !TX_FLAGS | own);
        let pairs = [
            (SOF_TIMESTAMPING_TX_SCHED, TxStage::Scheduled),
            (SOF_TIMESTAMPING_TX_SOFTWARE, TxStage::Sent),
            (SOF_TIMESTAMPING_TX_ACK, TxStage::Acked),
        ];
        let wanted = pairs.iter().filter(|(flag, _)| flags & flag != 0);
        wanted.fold(TxStages::NONE, |all, &(_, stage)| all.with(stage))
    }

    /// Writes the timestamps of received data.
    pub(crate) fn put_rx_timestamps(
        &self,
        clock: EpochClock,
        at: Instant,
        out: &mut CmsgWriter<'_>,
    ) {
        self.put_timestamp(clock, at, out);
        if self.has_flag(SOF_TIMESTAMPING_RX_SOFTWARE) {
            self.put_timestamping(clock, at, out);
        }
    }

    /// Writes the timestamps of sent data.
    pub(crate) fn put_tx_timestamps(
        &self,
        clock: EpochClock,
        at: Instant,
        out: &mut CmsgWriter<'_>,
    ) {
        self.put_timestamp(clock, at, out);
        self.put_timestamping(clock, at, out);
    }

    /// Writes `SCM_TIMESTAMP` or `SCM_TIMESTAMPNS`.
    fn put_timestamp(&self, clock: EpochClock, at: Instant, out: &mut CmsgWriter<'_>) {
        match (self.received, self.new) {
            (Some(TimestampUnit::Micros), new) => {
                let kind = if new {
                    SO_TIMESTAMP_NEW
                } else {
                    SO_TIMESTAMP_OLD
                };
                out.put(SOL_SOCKET, kind, &clock.timeval(at));
            }
            (Some(TimestampUnit::Nanos), new) => {
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

    /// Writes `SCM_TIMESTAMPING`: the software timestamp, and two hardware timestamps, which are
    /// zero.
    fn put_timestamping(&self, clock: EpochClock, at: Instant, out: &mut CmsgWriter<'_>) {
        if !self.has_flag(SOF_TIMESTAMPING_SOFTWARE) {
            return;
        }
        let mut timestamps = [0; 48];
        timestamps[..16].copy_from_slice(&clock.timespec(at));
        let kind = if self.new {
            SO_TIMESTAMPING_NEW
        } else {
            SO_TIMESTAMPING_OLD
        };
        out.put(SOL_SOCKET, kind, &timestamps);
    }
}

/// Checks the flags of `SO_TIMESTAMPING`. Returns EINVAL for unsupported flags, such as those of
/// hardware timestamps, and for invalid combinations.
fn check_flags(value: u32) -> Result<u32> {
    let alone = value & SOF_TIMESTAMPING_OPT_ID_TCP != 0 && value & SOF_TIMESTAMPING_OPT_ID == 0;
    if value & !SUPPORTED_FLAGS != 0 || alone {
        return Err(Errno::EINVAL);
    }
    Ok(value)
}

/// Returns the transmit stages that a control message requests. Returns EINVAL for unsupported
/// messages.
pub(crate) fn requested_tx_flags(message: &Cmsg<'_>) -> Result<u32> {
    match (message.level, message.kind) {
        (SOL_SOCKET, SO_TIMESTAMPING_OLD | SO_TIMESTAMPING_NEW) if message.data.len() == 4 => {
            let flags = int(message.data)? as u32;
            (flags & !TX_FLAGS == 0)
                .then_some(flags)
                .ok_or(Errno::EINVAL)
        }
        _ => Err(Errno::EINVAL),
    }
}

impl Stream {
    /// Sets a timestamp option. Returns `None` for other options.
    pub(crate) fn set_timestamp_option(
        &mut self,
        host: &mut Host,
        now: Instant,
        name: i32,
        value: &[u8],
    ) -> Result<Option<()>> {
        let mut timestamps = self.common.timestamps.clone();
        if timestamps.set(name, value)?.is_none() {
            return Ok(None);
        }
        let (old, new) = (self.common.timestamps.flags, timestamps.flags);
        if new & !old & SOF_TIMESTAMPING_OPT_ID != 0 {
            self.start_key_count(host, new & SOF_TIMESTAMPING_OPT_ID_TCP != 0)?;
        }
        self.common.timestamps = timestamps;
        let wanted = self.common.timestamps.is_rx_enabled();
        let kept = self.has_option(|o| *o == SocketOption::SoTimestampRx(true));
        if wanted != kept {
            self.set_option(host, now, SocketOption::SoTimestampRx(wanted))?;
        }
        Ok(Some(()))
    }

    /// Starts to count the keys of `OPT_ID` from the first byte not written (`OPT_ID_TCP`), or from
    /// the first byte not acknowledged.
    fn start_key_count(&mut self, host: &mut Host, from_written: bool) -> Result<()> {
        let HostSocket::Connection(id) = self.host_socket else {
            return Err(Errno::EINVAL);
        };
        if self.state(host) == State::Closed {
            return Err(Errno::EINVAL);
        }
        let written = host.tcp(id).written()?;
        let unacked = host.tcp(id).queues()?.unacked as u64;
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
    use fullsend_wire::{Instant, Nanos};

    use super::{EpochClock, check_flags};
    use crate::errno::Errno;

    #[test]
    fn timestamps_are_relative_to_the_epoch() {
        let clock = EpochClock {
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
    fn unsupported_flags_are_rejected() {
        assert_eq!(check_flags(0b11010 | 1 << 7), Ok(0b11010 | 1 << 7));
        // A hardware flag; OPT_ID_TCP without OPT_ID; an unknown flag.
        for bad in [1, 1 << 2, 1 << 6, 1 << 16, 1 << 30] {
            assert_eq!(check_flags(bad), Err(Errno::EINVAL), "{bad:#x}");
        }
    }
}

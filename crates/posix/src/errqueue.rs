//! The error queue (`MSG_ERRQUEUE`): completions of `MSG_ZEROCOPY`, transmit timestamps, ICMP
//! errors. Each entry is a `struct sock_extended_err`, followed by the address that reported the
//! error.

use alloc::collections::VecDeque;

use fullsend_wire::Instant;

use crate::Received;
use crate::abi::{
    AF_INET6, IP_RECVERR, IPPROTO_IP, IPPROTO_IPV6, IPV6_RECVERR, MSG_ERRQUEUE, MSG_TRUNC,
    SO_EE_CODE_ZEROCOPY_COPIED, SO_EE_ORIGIN_TIMESTAMPING, SO_EE_ORIGIN_ZEROCOPY,
    SOF_TIMESTAMPING_OPT_ID, SOF_TIMESTAMPING_OPT_TSONLY,
};
use crate::addr::{SOCKADDR_IN_LEN, SOCKADDR_IN6_LEN};
use crate::cmsg::CmsgWriter;
use crate::errno::{Errno, Result};
use crate::timestamps::{EpochClock, TimestampOptions};

/// Most entries of one socket; beyond it, new timestamps are dropped.
const MAX_ENTRIES: usize = 1024;
/// `ENOMSG`: the errno of timestamp entries.
const ENOMSG: u32 = 42;
/// Length of `struct sock_extended_err`, in bytes.
pub(crate) const EXTENDED_ERR_LEN: usize = 16;

/// An entry of the error queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ErrQueueEntry {
    /// The calls with `MSG_ZEROCOPY` from `first` to `last` no longer use the caller's memory; with
    /// `copied`, they have copied it.
    Zerocopy { first: u32, last: u32, copied: bool },
    /// The byte with number `key` reached a stage (`SCM_TSTAMP_*`).
    Timestamp { stage: u32, key: u32, at: Instant },
}

impl ErrQueueEntry {
    /// Returns the entry as `struct sock_extended_err`.
    fn extended_err(self, timestamps: &TimestampOptions) -> [u8; EXTENDED_ERR_LEN] {
        let (errno, origin, code, info, data) = match self {
            Self::Zerocopy {
                first,
                last,
                copied,
            } => {
                let code = if copied {
                    SO_EE_CODE_ZEROCOPY_COPIED
                } else {
                    0
                };
                (0, SO_EE_ORIGIN_ZEROCOPY, code, first, last)
            }
            Self::Timestamp { stage, key, .. } => {
                let key = if timestamps.has_flag(SOF_TIMESTAMPING_OPT_ID) {
                    key
                } else {
                    0
                };
                (ENOMSG, SO_EE_ORIGIN_TIMESTAMPING, 0, stage, key)
            }
        };
        let mut out = [0; EXTENDED_ERR_LEN];
        out[..4].copy_from_slice(&errno.to_ne_bytes());
        out[4] = origin;
        out[6] = code;
        out[8..12].copy_from_slice(&info.to_ne_bytes());
        out[12..].copy_from_slice(&data.to_ne_bytes());
        out
    }
}

/// The entries that wait to be read.
#[derive(Debug)]
pub(crate) struct ErrQueue {
    entries: VecDeque<ErrQueueEntry>,
    completions: usize,
    /// Number of entries ever queued, to detect changes.
    pub(crate) count: u64,
}

impl ErrQueue {
    pub(crate) const fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            completions: 0,
            count: 0,
        }
    }

    /// Returns the number of completions that wait, after coalescing.
    pub(crate) fn completions(&self) -> usize {
        self.completions
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appends an entry. Completions of consecutive calls are coalesced.
    pub(crate) fn push(&mut self, entry: ErrQueueEntry) {
        self.count += 1;
        if let (
            Some(ErrQueueEntry::Zerocopy {
                last, copied: same, ..
            }),
            ErrQueueEntry::Zerocopy {
                first,
                last: end,
                copied,
            },
        ) = (self.entries.back_mut(), entry)
            && *same == copied
            && last.wrapping_add(1) == first
        {
            *last = end;
            return;
        }
        // The number of completions is bounded by the number of outstanding calls; timestamps are bounded
        // here.
        let completes = matches!(entry, ErrQueueEntry::Zerocopy { .. });
        self.completions += usize::from(completes);
        if completes || self.entries.len() < MAX_ENTRIES {
            self.entries.push_back(entry);
        }
    }

    /// Takes the first entry as control messages of a socket of `domain`, or returns EAGAIN.
    pub(crate) fn receive(
        &mut self,
        domain: i32,
        timestamps: &TimestampOptions,
        clock: EpochClock,
        control: &mut [u8],
    ) -> Result<Received> {
        let entry = self.entries.pop_front().ok_or(Errno::EAGAIN)?;
        self.completions -= usize::from(matches!(entry, ErrQueueEntry::Zerocopy { .. }));
        let mut out = CmsgWriter::new(control);
        if let ErrQueueEntry::Timestamp { at, .. } = entry {
            timestamps.put_tx_timestamps(clock, at, &mut out);
            // The packet is not kept, so it is returned truncated to zero bytes.
            if !timestamps.has_flag(SOF_TIMESTAMPING_OPT_TSONLY) {
                out.flags |= MSG_TRUNC;
            }
        }
        let mut error = [0; EXTENDED_ERR_LEN + SOCKADDR_IN6_LEN];
        error[..EXTENDED_ERR_LEN].copy_from_slice(&entry.extended_err(timestamps));
        if domain == AF_INET6 {
            out.put(IPPROTO_IPV6, IPV6_RECVERR, &error);
        } else {
            let len = EXTENDED_ERR_LEN + SOCKADDR_IN_LEN;
            out.put(IPPROTO_IP, IP_RECVERR, &error[..len]);
        }
        Ok(Received {
            flags: MSG_ERRQUEUE | out.flags,
            control_len: out.used(),
            ..Received::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos};

    use super::{ErrQueue, ErrQueueEntry};
    use crate::abi::{AF_INET, AF_INET6, MSG_ERRQUEUE};
    use crate::errno::Errno;
    use crate::timestamps::{EpochClock, TimestampOptions};

    const CLOCK: EpochClock = EpochClock {
        now: Instant::ZERO,
        epoch: Nanos::ZERO,
    };

    fn completed(first: u32, last: u32, copied: bool) -> ErrQueueEntry {
        ErrQueueEntry::Zerocopy {
            first,
            last,
            copied,
        }
    }

    #[test]
    fn completions_coalesce_in_the_kernels_layout() {
        let mut queue = ErrQueue::new();
        for entry in [
            completed(0, 0, false),
            completed(1, 1, false),
            completed(2, 2, true),
            completed(4, 4, true),
        ] {
            queue.push(entry);
        }
        let mut control = [0; 128];
        let mut next = |domain| {
            let got = queue.receive(domain, &TimestampOptions::new(), CLOCK, &mut control)?;
            assert_eq!((got.len, got.flags), (0, MSG_ERRQUEUE));
            Ok((got.control_len, control))
        };
        let (len, control) = next(AF_INET).unwrap();
        // Header; errno, origin, type, code; first; last; no address.
        assert_eq!(len, 16 + 32);
        assert_eq!(control[..8], 48_u64.to_ne_bytes());
        assert_eq!(control[8..16], [0, 0, 0, 0, 11, 0, 0, 0]);
        assert_eq!(
            control[16..32],
            [0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
        );
        let (len, control) = next(AF_INET6).unwrap();
        assert_eq!(len, 16 + 48);
        assert_eq!(control[8..16], [41, 0, 0, 0, 25, 0, 0, 0]);
        assert_eq!(control[16..24], [0, 0, 0, 0, 5, 0, 1, 0]);
        assert!(next(AF_INET).is_ok());
        assert_eq!(next(AF_INET), Err(Errno::EAGAIN));
    }
}

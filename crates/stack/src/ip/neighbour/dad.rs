//! Duplicate address detection (RFC 4862 5.4): one solicitation, one second of silence.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use fullsend_units::Instant;

use super::{Outcome, RETRANS};

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DadResult {
    /// The address is ours.
    Unique,
    /// Somebody else has it.
    Duplicate,
}

/// Addresses that may turn out to be somebody else's.
#[derive(Debug)]
pub(super) struct Tentative {
    addresses: Vec<(Ipv6Addr, Instant)>,
}

impl Tentative {
    pub(super) const fn new() -> Self {
        Self {
            addresses: Vec::new(),
        }
    }

    pub(super) fn is_tentative(&self, address: Ipv6Addr) -> bool {
        self.addresses.iter().any(|&(one, _)| one == address)
    }

    /// Waits for objections; until when.
    pub(super) fn start(&mut self, now: Instant, address: Ipv6Addr) -> Instant {
        let due = now + RETRANS;
        self.addresses.push((address, due));
        due
    }

    /// Somebody has `address`.
    pub(super) fn fail(&mut self, address: Ipv6Addr, out: &mut Outcome) {
        if let Some(at) = self.addresses.iter().position(|&(one, _)| one == address) {
            self.addresses.swap_remove(at);
            out.dad.push((address, DadResult::Duplicate));
        }
    }

    /// Addresses nobody objected to are ours; when the next will be.
    pub(super) fn poll(&mut self, now: Instant, out: &mut Outcome) -> Option<Instant> {
        self.addresses.retain(|&(address, due)| {
            let waiting = now < due;
            if !waiting {
                out.dad.push((address, DadResult::Unique));
            }
            waiting
        });
        self.addresses.iter().map(|&(_, due)| due).min()
    }
}

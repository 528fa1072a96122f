//! Duplicate address detection (RFC 4862 5.4): one solicitation, then one second without an
//! objection. A nonce distinguishes the host's own solicitation, looped back by the link, from
//! another host's (RFC 7527).

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use fullsend_wire::Instant;
use fullsend_wire::ndp::Nonce;

use super::{NeighbourActions, RETRANS};

/// The result of duplicate address detection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DadResult {
    /// No other host has the address.
    Unique,
    /// Another host has the address, or tries to configure it, too.
    Duplicate,
}

/// An address in duplicate address detection.
#[derive(Debug)]
struct Candidate {
    address: Ipv6Addr,
    /// The nonce of the solicitation that was sent for the address.
    nonce: Nonce,
    due: Instant,
}

/// Addresses in duplicate address detection.
#[derive(Debug)]
pub(super) struct DadTable {
    addresses: Vec<Candidate>,
}

impl DadTable {
    pub(super) const fn new() -> Self {
        Self {
            addresses: Vec::new(),
        }
    }

    pub(super) fn is_tentative(&self, address: Ipv6Addr) -> bool {
        self.addresses
            .iter()
            .any(|candidate| candidate.address == address)
    }

    /// Starts to wait for objections to `address`, and returns when the wait ends.
    pub(super) fn start(&mut self, now: Instant, address: Ipv6Addr, nonce: Nonce) -> Instant {
        let due = now + RETRANS;
        self.addresses.push(Candidate {
            address,
            nonce,
            due,
        });
        due
    }

    /// Processes a solicitation for `address` in duplicate address detection: either the host's
    /// own, looped back, or that of another host which tries to configure the address, too (RFC
    /// 4862 5.4.3, RFC 7527 4.3).
    pub(super) fn on_solicit(
        &mut self,
        address: Ipv6Addr,
        nonce: Option<Nonce>,
        out: &mut NeighbourActions,
    ) {
        let is_ours =
            |candidate: &Candidate| candidate.address == address && Some(candidate.nonce) == nonce;
        if self.addresses.iter().any(is_ours) {
            out.looped_back += 1;
        } else {
            self.fail(address, out);
        }
    }

    /// Ends the detection of `address`, which another host has.
    pub(super) fn fail(&mut self, address: Ipv6Addr, out: &mut NeighbourActions) {
        if let Some(at) = self
            .addresses
            .iter()
            .position(|candidate| candidate.address == address)
        {
            self.addresses.swap_remove(at);
            out.dad.push((address, DadResult::Duplicate));
        }
    }

    /// Reports the addresses without objections as unique. Returns when the next wait ends.
    pub(super) fn poll(&mut self, now: Instant, out: &mut NeighbourActions) -> Option<Instant> {
        self.addresses.retain(|candidate| {
            let pending = now < candidate.due;
            if !pending {
                out.dad.push((candidate.address, DadResult::Unique));
            }
            pending
        });
        self.addresses.iter().map(|candidate| candidate.due).min()
    }
}

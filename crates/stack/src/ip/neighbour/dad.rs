//! Duplicate address detection (RFC 4862 5.4): one solicitation, one second of silence. A nonce
//! tells that solicitation from another host's where the link sends it back (RFC 7527).

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use fullsend_units::Instant;
use fullsend_wire::ndp::Nonce;

use super::{Outcome, RETRANS};

/// How duplicate address detection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DadResult {
    /// The address is ours.
    Unique,
    /// Another host has it, or wants it, too.
    Duplicate,
}

/// An address in duplicate address detection.
#[derive(Debug)]
struct Candidate {
    address: Ipv6Addr,
    /// Of the solicitation that was sent for it.
    nonce: Nonce,
    due: Instant,
}

/// Addresses that may turn out to be somebody else's.
#[derive(Debug)]
pub(super) struct Tentative {
    addresses: Vec<Candidate>,
}

impl Tentative {
    pub(super) const fn new() -> Self {
        Self {
            addresses: Vec::new(),
        }
    }

    pub(super) fn is_tentative(&self, address: Ipv6Addr) -> bool {
        self.addresses.iter().any(|one| one.address == address)
    }

    /// Waits for objections to `address`, and returns until when.
    pub(super) fn start(&mut self, now: Instant, address: Ipv6Addr, nonce: Nonce) -> Instant {
        let due = now + RETRANS;
        self.addresses.push(Candidate {
            address,
            nonce,
            due,
        });
        due
    }

    /// A solicitation for `address` in duplicate address detection: our own that was looped back, or
    /// that of another host, which wants the address, too (RFC 4862 5.4.3, RFC 7527 4.3).
    pub(super) fn on_solicit(
        &mut self,
        address: Ipv6Addr,
        nonce: Option<Nonce>,
        out: &mut Outcome,
    ) {
        let is_ours = |one: &Candidate| one.address == address && Some(one.nonce) == nonce;
        if self.addresses.iter().any(is_ours) {
            out.looped_back += 1;
        } else {
            self.fail(address, out);
        }
    }

    /// Another host has `address`.
    pub(super) fn fail(&mut self, address: Ipv6Addr, out: &mut Outcome) {
        if let Some(at) = self.addresses.iter().position(|one| one.address == address) {
            self.addresses.swap_remove(at);
            out.dad.push((address, DadResult::Duplicate));
        }
    }

    /// Addresses nobody objected to are ours; when the next will be.
    pub(super) fn poll(&mut self, now: Instant, out: &mut Outcome) -> Option<Instant> {
        self.addresses.retain(|one| {
            let waiting = now < one.due;
            if !waiting {
                out.dad.push((one.address, DadResult::Unique));
            }
            waiting
        });
        self.addresses.iter().map(|one| one.due).min()
    }
}

//! The fields of a fragment's headers, and the faults for which it is dropped.

use alloc::vec;
use core::net::IpAddr;

use fullsend_offload::{Chain, Packet};
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::ipv6::{self, Ipv6View};
use fullsend_wire::numbers::ethertype;
use fullsend_wire::{cold_path, extension};

use super::ReassemblyKey;
use crate::ip::icmp::Problem;

/// Offset of the payload length field in IPv6's fixed header.
const PAYLOAD_LENGTH_AT: usize = 4;
/// Longest part of a first fragment that is inspected for its headers, bytes. Eight extension headers
/// of the usual lengths fit.
const MAX_INSPECTED: usize = 2048;

/// The fields of a fragment's headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FragmentInfo {
    pub(super) key: ReassemblyKey,
    pub(super) offset: usize,
    pub(super) more: bool,
    /// The transport protocol of the whole packet.
    pub(super) protocol: u8,
    /// Whether the fragment is marked Congestion Experienced (RFC 3168).
    pub(super) ce: bool,
    /// Length of the header that the whole packet keeps, bytes.
    pub(super) header_len: usize,
    /// Offset of IPv6's fragment header from the start of the fixed header, bytes.
    fragment_at: usize,
}

impl FragmentInfo {
    /// Reads the headers of a parsed fragment.
    pub(super) fn parse(packet: &Packet) -> Option<Self> {
        let header = packet.network_header();
        if packet.layers.ethertype == ethertype::IPV4 {
            let view = Ipv4View::new(header).ok()?;
            return Some(Self {
                key: ReassemblyKey {
                    src: view.src().into(),
                    dst: view.dst().into(),
                    ident: view.ident().into(),
                    protocol: view.protocol(),
                },
                offset: view.fragment_offset(),
                more: view.more_fragments(),
                protocol: view.protocol(),
                ce: view.tos() & 3 == 3,
                header_len: view.header_len(),
                fragment_at: 0,
            });
        }
        let view = Ipv6View::new(header).ok()?;
        let upper =
            extension::parse_headers(view.next_header(), &header[ipv6::HEADER_LEN..]).ok()?;
        let header = upper.fragment?;
        Some(Self {
            key: ReassemblyKey {
                src: view.src().into(),
                dst: view.dst().into(),
                ident: header.ident,
                protocol: 0,
            },
            offset: header.offset.into(),
            more: header.more,
            protocol: header.next_header,
            ce: view.traffic_class() & 3 == 3,
            // The extension headers before the fragment header have been processed and are left
            // out.
            header_len: ipv6::HEADER_LEN,
            fragment_at: ipv6::HEADER_LEN + upper.offset - extension::FRAGMENT_LEN,
        })
    }

    /// Checks the fragment with this payload.
    ///
    /// # Errors
    /// The problem to report, or `None` if the fragment is dropped silently, as all are over IPv4.
    pub(super) fn check(&self, payload: &Chain) -> Result<(), Option<Problem>> {
        let problem = |code, at: usize| {
            let problem = Problem::Header {
                code,
                pointer: at as u32,
                even_multicast: false,
            };
            Err(self.key.src.is_ipv6().then_some(problem))
        };
        // RFC 791, RFC 8200 4.5: the length of all fragments but the last is a multiple of 8 bytes.
        // None may be empty, and the whole packet must not exceed the maximum length.
        if self.more && !payload.len().is_multiple_of(8) {
            problem(0, PAYLOAD_LENGTH_AT)
        } else if self.offset + payload.len() > self.max_payload() {
            problem(0, self.fragment_at + 2)
        } else if self.key.src.is_ipv6() && self.offset == 0 && !self.has_whole_headers(payload) {
            problem(3, 0)
        } else if payload.is_empty() {
            Err(None)
        } else {
            Ok(())
        }
    }

    /// Returns whether a first fragment has all headers (RFC 7112 5).
    fn has_whole_headers(&self, payload: &Chain) -> bool {
        // Usual headers are short: for these nothing is allocated.
        let mut start = [0; 64];
        let len = payload.len().min(start.len());
        payload.copy_to(&mut start[..len]);
        if extension::has_whole_headers(self.protocol, &start[..len]) {
            return true;
        }
        cold_path();
        let mut head = vec![0; payload.len().min(MAX_INSPECTED)];
        payload.copy_to(&mut head);
        extension::has_whole_headers(self.protocol, &head) || payload.len() > MAX_INSPECTED
    }

    /// Returns the maximum length of the whole packet behind its fixed header, bytes. IPv4's length
    /// field counts the header (RFC 791 3.1), IPv6's does not (RFC 8200 3).
    const fn max_payload(&self) -> usize {
        let counted = match self.key.src {
            IpAddr::V4(_) => self.header_len,
            IpAddr::V6(_) => 0,
        };
        u16::MAX as usize - counted
    }
}

//! DHCPv6 messages (RFC 8415).

use std::net::Ipv6Addr;

/// Length of the type and the transaction's identifier.
const HEADER_LEN: usize = 4;
/// Longest identifier of a client (RFC 8415 11.1).
const MAX_DUID: usize = 130;
/// Largest number of associations that are answered.
const MAX_ASSOCIATIONS: usize = 4;

mod option {
    pub(super) const CLIENT_ID: u16 = 1;
    pub(super) const SERVER_ID: u16 = 2;
    pub(super) const IA_NA: u16 = 3;
    pub(super) const IA_ADDRESS: u16 = 5;
    pub(super) const STATUS: u16 = 13;
    pub(super) const RAPID_COMMIT: u16 = 14;
    pub(super) const DNS: u16 = 23;
    pub(super) const DOMAIN_LIST: u16 = 24;
    pub(super) const CLIENT_FQDN: u16 = 39;
}

/// The type of a client's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageType {
    /// Sent by a client that searches for servers.
    Solicit = 1,
    /// Sent by a client that requests addresses.
    Request = 3,
    /// Sent by a client that checks whether its addresses fit the link.
    Confirm = 4,
    /// Sent by a client to extend the lifetime of its addresses.
    Renew = 5,
    /// Sent by a client to extend the lifetime of its addresses with any server.
    Rebind = 6,
    /// Sent by a client that returns addresses.
    Release = 8,
    /// Sent by a client that has found an address in use.
    Decline = 9,
    /// Sent by a client that requests the other settings.
    InformationRequest = 11,
}

/// Types of a server's messages.
const ADVERTISE: u8 = 2;
const REPLY: u8 = 7;

/// Status codes.
mod status {
    pub(super) const SUCCESS: u16 = 0;
    pub(super) const NO_ADDRESSES: u16 = 2;
    pub(super) const NOT_ON_LINK: u16 = 4;
}

impl MessageType {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Solicit,
            3 => Self::Request,
            4 => Self::Confirm,
            5 => Self::Renew,
            6 => Self::Rebind,
            8 => Self::Release,
            9 => Self::Decline,
            11 => Self::InformationRequest,
            _ => return None,
        })
    }
}

/// A client's message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientMessage<'a> {
    /// The type of the client's message.
    pub message_type: MessageType,
    transaction: [u8; 3],
    client_id: Option<&'a [u8]>,
    server_id: Option<&'a [u8]>,
    /// The identifiers of the client's associations.
    associations: Vec<[u8; 4]>,
    /// The addresses that the client has or requests.
    addresses: Vec<Ipv6Addr>,
    rapid_commit: bool,
    has_fqdn: bool,
}

/// The settings of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The server's Ethernet address, from which its identifier is made.
    pub mac: [u8; 6],
    /// The client's address.
    pub address: Option<Ipv6Addr>,
    /// Addresses of the resolvers.
    pub dns: Vec<Ipv6Addr>,
    /// Domains to search.
    pub search: Vec<String>,
    /// The client's name.
    pub fqdn: Option<String>,
    /// Lifetime of the address, seconds.
    pub lifetime_s: u32,
}

impl Settings {
    /// Returns the server's identifier: DUID-LL (RFC 8415 11.4) for Ethernet.
    fn server_id(&self) -> Vec<u8> {
        [&[0, 3, 0, 1], &self.mac[..]].concat()
    }
}

impl<'a> ClientMessage<'a> {
    /// Parses a client's message. Returns `None` for any other message.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let (&[kind, a, b, c], options) = message.split_first_chunk::<HEADER_LEN>()?;
        let mut parsed = Self {
            message_type: MessageType::from_byte(kind)?,
            transaction: [a, b, c],
            client_id: None,
            server_id: None,
            associations: Vec::new(),
            addresses: Vec::new(),
            rapid_commit: false,
            has_fqdn: false,
        };
        each_option(options, |code, data| parsed.read_option(code, data));
        Some(parsed)
    }

    fn read_option(&mut self, code: u16, data: &'a [u8]) {
        match code {
            option::CLIENT_ID if data.len() <= MAX_DUID => self.client_id = Some(data),
            option::SERVER_ID => self.server_id = Some(data),
            option::IA_NA if self.associations.len() < MAX_ASSOCIATIONS => {
                // The option has an identifier, T1 and T2, and then options.
                let Some((fixed, options)) = data.split_first_chunk::<12>() else {
                    return;
                };
                self.associations
                    .push([fixed[0], fixed[1], fixed[2], fixed[3]]);
                each_option(options, |code, data| {
                    if code == option::IA_ADDRESS
                        && self.addresses.len() < MAX_ASSOCIATIONS
                        && let Some(address) = data.first_chunk::<16>()
                    {
                        self.addresses.push(Ipv6Addr::from(*address));
                    }
                });
            }
            option::RAPID_COMMIT => self.rapid_commit = true,
            option::CLIENT_FQDN => self.has_fqdn = true,
            _ => {}
        }
    }

    /// Builds the answer, or returns `None` if there is none: the message is for another server,
    /// lacks an identifier (RFC 8415 16), or is a Confirm without addresses (RFC 8415 18.3.3).
    pub fn answer(&self, settings: &Settings) -> Option<Vec<u8>> {
        use MessageType::{
            Confirm, Decline, InformationRequest, Rebind, Release, Renew, Request, Solicit,
        };
        let server_id = settings.server_id();
        let for_us = self.server_id.map(|id| id == server_id);
        let valid = match self.message_type {
            // These messages are addressed to all servers.
            Solicit | Rebind => self.client_id.is_some() && for_us.is_none(),
            Confirm => {
                let has_addresses = !self.addresses.is_empty();
                self.client_id.is_some() && for_us.is_none() && has_addresses
            }
            Request | Renew | Release | Decline => self.client_id.is_some() && for_us == Some(true),
            InformationRequest => for_us != Some(false),
        };
        if !valid {
            return None;
        }
        let rapid = self.message_type == Solicit && self.rapid_commit;
        let kind = if self.message_type == Solicit && !rapid {
            ADVERTISE
        } else {
            REPLY
        };
        let [a, b, c] = self.transaction;
        let mut out = vec![kind, a, b, c];
        push(&mut out, option::SERVER_ID, &server_id);
        if let Some(client_id) = self.client_id {
            push(&mut out, option::CLIENT_ID, client_id);
        }
        if rapid {
            push(&mut out, option::RAPID_COMMIT, &[]);
        }
        match self.message_type {
            Solicit | Request | Renew | Rebind => self.push_associations(&mut out, settings),
            Confirm => {
                let fits = self.addresses.iter().all(|a| settings.address == Some(*a));
                let code = if fits {
                    status::SUCCESS
                } else {
                    status::NOT_ON_LINK
                };
                push(&mut out, option::STATUS, &code.to_be_bytes());
            }
            Release | Decline => {
                push(&mut out, option::STATUS, &status::SUCCESS.to_be_bytes());
            }
            InformationRequest => {}
        }
        self.push_settings(&mut out, settings);
        Some(out)
    }

    fn push_associations(&self, out: &mut Vec<u8>, settings: &Settings) {
        for (n, id) in self.associations.iter().enumerate() {
            let lifetime = settings.lifetime_s;
            let mut data = id.to_vec();
            for seconds in [lifetime / 2, lifetime / 5 * 4] {
                data.extend(seconds.to_be_bytes());
            }
            // The only address goes to the first association.
            let address = settings.address.filter(|_| n == 0);
            if let Some(address) = address {
                let mut entry = address.octets().to_vec();
                entry.extend(lifetime.to_be_bytes());
                entry.extend(lifetime.to_be_bytes());
                push(&mut data, option::IA_ADDRESS, &entry);
            } else {
                let code = status::NO_ADDRESSES.to_be_bytes();
                push(&mut data, option::STATUS, &code);
            }
            push(out, option::IA_NA, &data);
        }
    }

    fn push_settings(&self, out: &mut Vec<u8>, settings: &Settings) {
        let dns: Vec<_> = settings.dns.iter().flat_map(Ipv6Addr::octets).collect();
        if !dns.is_empty() {
            push(out, option::DNS, &dns);
        }
        let search = super::names(&settings.search, 1024);
        if !search.is_empty() {
            push(out, option::DOMAIN_LIST, &search);
        }
        if let (true, Some(name)) = (self.has_fqdn, &settings.fqdn) {
            // RFC 4704 4.1: the server updates no DNS (N).
            let mut data = vec![4];
            if super::push_name(&mut data, name) {
                push(out, option::CLIENT_FQDN, &data);
            }
        }
    }
}

/// Appends an option.
fn push(out: &mut Vec<u8>, code: u16, data: &[u8]) {
    out.extend(code.to_be_bytes());
    out.extend((data.len() as u16).to_be_bytes());
    out.extend(data);
}

/// Calls `found` for each option. Stops at the first malformed one.
fn each_option<'a>(mut rest: &'a [u8], mut found: impl FnMut(u16, &'a [u8])) {
    while let Some((&[a, b, c, d], tail)) = rest.split_first_chunk::<4>() {
        let len = u16::from_be_bytes([c, d]);
        let Some((data, tail)) = tail.split_at_checked(len.into()) else {
            return;
        };
        found(u16::from_be_bytes([a, b]), data);
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            mac: [2, 0, 0, 0, 0, 1],
            address: Some("fd00::64".parse().unwrap()),
            dns: vec!["fd00::3".parse().unwrap()],
            search: vec!["example.com".into()],
            fqdn: None,
            lifetime_s: 3600,
        }
    }

    fn message(kind: u8, options: &[(u16, &[u8])]) -> Vec<u8> {
        let mut out = vec![kind, 7, 8, 9];
        for (code, data) in options {
            push(&mut out, *code, data);
        }
        out
    }

    fn options(message: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let mut found = Vec::new();
        each_option(&message[HEADER_LEN..], |code, data| {
            found.push((code, data.to_vec()));
        });
        found
    }

    const IA: [u8; 12] = [0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn a_solicit_is_answered_with_the_address_and_the_settings() {
        for (rapid, kind) in [(false, ADVERTISE), (true, REPLY)] {
            let mut sent: Vec<(u16, &[u8])> = vec![(1, b"client"), (3, &IA)];
            if rapid {
                sent.push((14, &[]));
            }
            let message = message(1, &sent);
            let answer = ClientMessage::parse(&message).unwrap().answer(&settings());
            let answer = answer.unwrap();
            assert_eq!(answer[..4], [kind, 7, 8, 9]);
            let found = options(&answer);
            let get = |code| found.iter().find(|(c, _)| *c == code).map(|(_, d)| &d[..]);
            assert_eq!(get(1), Some(&b"client"[..]));
            assert_eq!(get(2), Some(&settings().server_id()[..]));
            assert_eq!(get(14).is_some(), rapid);
            assert_eq!(get(23).unwrap(), settings().dns[0].octets());
            assert_eq!(get(24).unwrap(), b"\x07example\x03com\0");
            let association = get(3).unwrap();
            assert_eq!(association[..4], [0, 0, 0, 5]);
            assert_eq!(association[12..16], [0, 5, 0, 24]);
            assert_eq!(association[16..32], settings().address.unwrap().octets());
        }
    }

    #[test]
    fn a_status_reports_that_there_is_no_address() {
        let none = Settings {
            address: None,
            ..settings()
        };
        let message = message(1, &[(1, b"client"), (3, &IA)]);
        let answer = ClientMessage::parse(&message)
            .unwrap()
            .answer(&none)
            .unwrap();
        let found = options(&answer);
        let (_, association) = found.iter().find(|(code, _)| *code == 3).unwrap();
        assert_eq!(association[12..], [0, 13, 0, 2, 0, 2]);
    }

    #[test]
    fn messages_for_other_servers_or_without_an_identifier_get_no_answer() {
        let ours = settings().server_id();
        let mut with_address = IA.to_vec();
        let mut address = settings().address.unwrap().octets().to_vec();
        address.extend([0; 8]);
        push(&mut with_address, option::IA_ADDRESS, &address);
        for (kind, sent, answered) in [
            (4, vec![(1, &b"c"[..]), (3, &IA[..])], false),
            (4, vec![(1, &b"c"[..]), (3, &with_address[..])], true),
            (3, vec![(1, &b"c"[..]), (2, &ours[..])], true),
            (3, vec![(1, &b"c"[..]), (2, &b"other"[..])], false),
            (3, vec![(1, &b"c"[..])], false),
            (3, vec![(2, &ours[..])], false),
            (1, vec![(1, &b"c"[..]), (2, &ours[..])], false),
            (1, vec![], false),
            (11, vec![], true),
            (11, vec![(2, &b"other"[..])], false),
        ] {
            let message = message(kind, &sent);
            let answer = ClientMessage::parse(&message).unwrap().answer(&settings());
            assert_eq!(answer.is_some(), answered, "{kind} {sent:?}");
        }
    }

    #[test]
    fn truncated_messages_are_harmless() {
        let good = message(1, &[(1, b"client"), (3, &IA), (14, &[])]);
        for len in 0..good.len() {
            let parsed = ClientMessage::parse(&good[..len]);
            assert_eq!(parsed.is_some(), len >= HEADER_LEN, "{len}");
        }
        // A server's message.
        assert_eq!(ClientMessage::parse(&message(7, &[])), None);
    }
}

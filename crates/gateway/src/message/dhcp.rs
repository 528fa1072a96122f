//! DHCPv4 messages (RFC 2131, RFC 2132).

use std::net::Ipv4Addr;

/// Length of the fixed fields, without the magic cookie.
const FIXED_LEN: usize = 236;
const COOKIE: [u8; 4] = [0x63, 0x82, 0x53, 0x63];
/// Length to which answers are padded, because some clients drop shorter ones (BOOTP, RFC 951 3).
const MIN_LEN: usize = 300;
const BOOT_REQUEST: u8 = 1;
const BOOT_REPLY: u8 = 2;
const ETHERNET: u8 = 1;
const MAC_LEN: u8 = 6;
/// Longest stored client identifier, bytes; longer ones are truncated.
const MAX_CLIENT_ID: usize = 64;

mod option {
    pub(super) const PAD: u8 = 0;
    pub(super) const SUBNET_MASK: u8 = 1;
    pub(super) const ROUTER: u8 = 3;
    pub(super) const DNS: u8 = 6;
    pub(super) const HOST_NAME: u8 = 12;
    pub(super) const DOMAIN: u8 = 15;
    pub(super) const MTU: u8 = 26;
    pub(super) const REQUESTED_ADDRESS: u8 = 50;
    pub(super) const LEASE_TIME: u8 = 51;
    pub(super) const MESSAGE_TYPE: u8 = 53;
    pub(super) const SERVER_ID: u8 = 54;
    pub(super) const CLIENT_ID: u8 = 61;
    pub(super) const CLIENT_FQDN: u8 = 81;
    pub(super) const DOMAIN_SEARCH: u8 = 119;
    pub(super) const CLASSLESS_ROUTES: u8 = 121;
    pub(super) const END: u8 = 255;
}

/// The type of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageType {
    /// Sent by a client that searches for servers.
    Discover = 1,
    /// Sent by a server that offers an address.
    Offer = 2,
    /// Sent by a client that requests an address.
    Request = 3,
    /// Sent by a client that has found its address in use.
    Decline = 4,
    /// Sent by the server to confirm an address.
    Ack = 5,
    /// Sent by the server to reject an address.
    Nak = 6,
    /// Sent by a client that returns its address.
    Release = 7,
    /// Sent by a client with an address that requests the other settings.
    Inform = 8,
}

impl MessageType {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Discover,
            2 => Self::Offer,
            3 => Self::Request,
            4 => Self::Decline,
            5 => Self::Ack,
            6 => Self::Nak,
            7 => Self::Release,
            8 => Self::Inform,
            _ => return None,
        })
    }
}

/// A client's message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientMessage {
    /// The type of the client's message.
    pub message_type: MessageType,
    /// The transaction's identifier.
    pub xid: u32,
    flags: u16,
    /// The address that the client uses.
    pub client_address: Option<Ipv4Addr>,
    /// The client's Ethernet address.
    pub mac: [u8; 6],
    /// The requested address (option 50).
    pub requested: Option<Ipv4Addr>,
    /// The server that the client has chosen (option 54).
    pub server: Option<Ipv4Addr>,
    /// The client's identifier: option 61, at most 64 bytes, or the Ethernet address.
    pub client_id: Vec<u8>,
    /// Whether the client has sent its name (option 81).
    pub has_fqdn: bool,
}

/// The settings of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The server's address.
    pub server: Ipv4Addr,
    /// Length of the network prefix, bits.
    pub prefix: u8,
    /// The default route.
    pub router: Ipv4Addr,
    /// Addresses of the resolvers.
    pub dns: Vec<Ipv4Addr>,
    /// MTU of the link, bytes.
    pub mtu: u16,
    /// The lease's duration, seconds.
    pub lease_s: u32,
    /// The client's host name.
    pub host_name: Option<String>,
    /// The client's domain.
    pub domain: Option<String>,
    /// Domains to search.
    pub search: Vec<String>,
}

/// Returns the IPv4 address at `at`, unless it is 0.0.0.0.
fn address(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets)).filter(|address| !address.is_unspecified())
}

impl ClientMessage {
    /// Parses a message of a client on Ethernet, without a relay agent. Returns `None` for any other
    /// message.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let (fixed, rest) = message.split_at_checked(FIXED_LEN)?;
        let relayed = address(fixed, 24).is_some();
        if fixed[..3] != [BOOT_REQUEST, ETHERNET, MAC_LEN] || relayed {
            return None;
        }
        let mac = fixed[28..34].try_into().ok()?;
        let mut parsed = Self {
            message_type: MessageType::Discover,
            xid: u32::from_be_bytes(fixed[4..8].try_into().ok()?),
            flags: u16::from_be_bytes([fixed[10], fixed[11]]),
            client_address: address(fixed, 12),
            mac,
            requested: None,
            server: None,
            client_id: mac.to_vec(),
            has_fqdn: false,
        };
        let mut message_type = None;
        let options = rest.strip_prefix(&COOKIE)?;
        each_option(options, |code, data| match code {
            option::MESSAGE_TYPE => {
                message_type = data.first().copied().and_then(MessageType::from_byte);
            }
            option::REQUESTED_ADDRESS => parsed.requested = address(data, 0),
            option::SERVER_ID => parsed.server = address(data, 0),
            option::CLIENT_ID if !data.is_empty() => {
                parsed.client_id = data[..data.len().min(MAX_CLIENT_ID)].to_vec();
            }
            option::CLIENT_FQDN => parsed.has_fqdn = true,
            _ => {}
        });
        // A message without a type is one of BOOTP.
        parsed.message_type = message_type?;
        Some(parsed)
    }

    /// Builds an answer. `yours` is the client's address; `None` in a [`MessageType::Nak`] and in
    /// the answer to [`MessageType::Inform`].
    pub fn answer(
        &self,
        message_type: MessageType,
        yours: Option<Ipv4Addr>,
        settings: &Settings,
    ) -> Vec<u8> {
        let mut out = vec![0; FIXED_LEN];
        out[..3].copy_from_slice(&[BOOT_REPLY, ETHERNET, MAC_LEN]);
        out[4..8].copy_from_slice(&self.xid.to_be_bytes());
        out[10..12].copy_from_slice(&self.flags.to_be_bytes());
        if message_type != MessageType::Nak {
            let client_address = self.client_address.unwrap_or(Ipv4Addr::UNSPECIFIED);
            out[12..16].copy_from_slice(&client_address.octets());
        }
        let yours_or_none = yours.unwrap_or(Ipv4Addr::UNSPECIFIED);
        out[16..20].copy_from_slice(&yours_or_none.octets());
        out[28..34].copy_from_slice(&self.mac);
        out.extend(COOKIE);
        push(&mut out, option::MESSAGE_TYPE, &[message_type as u8]);
        push(&mut out, option::SERVER_ID, &settings.server.octets());
        if message_type != MessageType::Nak {
            if yours.is_some() {
                push(
                    &mut out,
                    option::LEASE_TIME,
                    &settings.lease_s.to_be_bytes(),
                );
            }
            self.push_settings(&mut out, yours, settings);
        }
        out.push(option::END);
        out.resize(out.len().max(MIN_LEN), option::PAD);
        out
    }

    fn push_settings(&self, out: &mut Vec<u8>, yours: Option<Ipv4Addr>, settings: &Settings) {
        let prefix = settings.prefix.min(32);
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        push(out, option::SUBNET_MASK, &mask.to_be_bytes());
        push(out, option::ROUTER, &settings.router.octets());
        // In the answer to an INFORM, the client has already chosen its address.
        let own = yours.or(self.client_address);
        let own = own.unwrap_or(settings.server);
        let on_link = (settings.router.to_bits() ^ own.to_bits()) & mask == 0;
        if !on_link || prefix == 32 {
            // RFC 3442: an on-link route to the router, and the default route.
            let mut routes = vec![32];
            routes.extend(settings.router.octets());
            routes.extend([0; 4]);
            routes.push(0);
            routes.extend(settings.router.octets());
            push(out, option::CLASSLESS_ROUTES, &routes);
        }
        let dns: Vec<_> = settings.dns.iter().flat_map(Ipv4Addr::octets).collect();
        push(out, option::DNS, &dns);
        push(out, option::MTU, &settings.mtu.to_be_bytes());
        let text = |text: &Option<String>| text.clone().unwrap_or_default().into_bytes();
        push(out, option::HOST_NAME, &text(&settings.host_name));
        push(out, option::DOMAIN, &text(&settings.domain));
        let search = super::names(&settings.search, 255);
        push(out, option::DOMAIN_SEARCH, &search);
        if let (true, Some(name)) = (self.has_fqdn, settings.fqdn()) {
            // RFC 4702 2.1: the name is in wire format (E), and the server updates no DNS (N).
            let mut data = vec![0x0c, 255, 255];
            if super::push_name(&mut data, &name) {
                push(out, option::CLIENT_FQDN, &data);
            }
        }
    }
}

impl Settings {
    fn fqdn(&self) -> Option<String> {
        let host = self.host_name.as_ref()?;
        Some(match &self.domain {
            Some(domain) => format!("{host}.{domain}"),
            None => host.clone(),
        })
    }
}

/// Appends an option unless it is empty, truncated to 255 bytes.
fn push(out: &mut Vec<u8>, code: u8, data: &[u8]) {
    let data = &data[..data.len().min(255)];
    if !data.is_empty() {
        out.extend([code, data.len() as u8]);
        out.extend(data);
    }
}

/// Calls `found` for each option. Stops at the end or at the first malformed one.
fn each_option(mut rest: &[u8], mut found: impl FnMut(u8, &[u8])) {
    while let Some((&code, tail)) = rest.split_first() {
        if code == option::END {
            return;
        }
        if code == option::PAD {
            rest = tail;
            continue;
        }
        let Some((&len, tail)) = tail.split_first() else {
            return;
        };
        let Some((data, tail)) = tail.split_at_checked(len.into()) else {
            return;
        };
        found(code, data);
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            server: Ipv4Addr::new(10, 0, 2, 2),
            prefix: 24,
            router: Ipv4Addr::new(10, 0, 2, 2),
            dns: vec![Ipv4Addr::new(10, 0, 2, 3)],
            mtu: 1500,
            lease_s: 3600,
            host_name: Some("guest".into()),
            domain: Some("example.com".into()),
            search: vec!["example.net".into()],
        }
    }

    fn request(options: &[u8]) -> Vec<u8> {
        let mut message = vec![0; FIXED_LEN];
        message[..8].copy_from_slice(&[1, 1, 6, 0, 1, 2, 3, 4]);
        message[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        message.extend(COOKIE);
        message.extend(options);
        message
    }

    fn options(message: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut found = Vec::new();
        each_option(&message[FIXED_LEN + 4..], |code, data| {
            found.push((code, data.to_vec()));
        });
        found
    }

    #[test]
    fn a_clients_message_is_parsed() {
        let options = [
            53, 1, 3, 0, 50, 4, 10, 0, 2, 100, 54, 4, 10, 0, 2, 2, 61, 2, 7, 8, 81, 0, 255, 53, 1,
            1,
        ];
        let parsed = ClientMessage::parse(&request(&options)).unwrap();
        assert_eq!(parsed.message_type, MessageType::Request);
        assert_eq!(parsed.xid, 0x0102_0304);
        assert_eq!(parsed.mac, [2, 0, 0, 0, 0, 9]);
        assert_eq!(parsed.requested, Some(Ipv4Addr::new(10, 0, 2, 100)));
        assert_eq!(parsed.server, Some(Ipv4Addr::new(10, 0, 2, 2)));
        assert_eq!(parsed.client_id, [7, 8]);
        assert!(parsed.has_fqdn && parsed.client_address.is_none());
    }

    #[test]
    fn other_messages_are_ignored() {
        let good = request(&[53, 1, 1, 255]);
        for len in 0..FIXED_LEN + 7 {
            assert_eq!(ClientMessage::parse(&good[..len]), None, "{len}");
        }
        assert_eq!(ClientMessage::parse(&request(&[255])), None, "BOOTP");
        assert_eq!(ClientMessage::parse(&request(&[53, 1, 99, 255])), None);
        for (at, value) in [(0, 2), (1, 6), (2, 16), (24, 10), (FIXED_LEN, 0)] {
            let mut message = good.clone();
            message[at] = value;
            assert_eq!(ClientMessage::parse(&message), None, "byte {at}");
        }
    }

    #[test]
    fn an_answer_has_the_settings() {
        let parsed = ClientMessage::parse(&request(&[53, 1, 1, 81, 0, 255])).unwrap();
        let yours = Ipv4Addr::new(10, 0, 2, 100);
        let answer = parsed.answer(MessageType::Offer, Some(yours), &settings());
        assert!(answer.len() >= MIN_LEN);
        assert_eq!(answer[4..8], [1, 2, 3, 4]);
        assert_eq!(answer[16..20], yours.octets());
        let found = options(&answer);
        for (code, data) in [
            (53, vec![2]),
            (54, vec![10, 0, 2, 2]),
            (51, 3600_u32.to_be_bytes().to_vec()),
            (1, vec![255, 255, 255, 0]),
            (3, vec![10, 0, 2, 2]),
            (6, vec![10, 0, 2, 3]),
            (26, 1500_u16.to_be_bytes().to_vec()),
            (12, b"guest".to_vec()),
            (15, b"example.com".to_vec()),
            (119, b"\x07example\x03net\0".to_vec()),
            (81, b"\x0c\xff\xff\x05guest\x07example\x03com\0".to_vec()),
        ] {
            assert!(found.contains(&(code, data)), "option {code} of {found:?}");
        }
        assert!(found.iter().all(|(code, _)| *code != 121));
    }

    #[test]
    fn a_router_off_the_link_is_reached_by_a_route() {
        let parsed = ClientMessage::parse(&request(&[53, 1, 1, 255])).unwrap();
        let settings = Settings {
            router: Ipv4Addr::new(192, 0, 2, 1),
            ..settings()
        };
        let found = options(&parsed.answer(MessageType::Ack, None, &settings));
        let routes = (121, vec![32, 192, 0, 2, 1, 0, 0, 0, 0, 0, 192, 0, 2, 1]);
        assert!(found.contains(&routes), "{found:?}");
        // The server is the router, and the client elsewhere.
        let settings = Settings {
            server: settings.router,
            ..settings
        };
        let yours = Ipv4Addr::new(10, 0, 2, 100);
        let found = options(&parsed.answer(MessageType::Ack, Some(yours), &settings));
        assert!(found.contains(&routes), "{found:?}");
        // An INFORM, whose sender has chosen its address.
        let mut inform = request(&[53, 1, 8, 255]);
        inform[12..16].copy_from_slice(&yours.octets());
        let inform = ClientMessage::parse(&inform).unwrap();
        let found = options(&inform.answer(MessageType::Ack, None, &settings));
        assert!(found.contains(&routes), "{found:?}");
    }

    #[test]
    fn a_rejection_has_no_settings() {
        let parsed = ClientMessage::parse(&request(&[53, 1, 3, 255])).unwrap();
        let found = options(&parsed.answer(MessageType::Nak, None, &settings()));
        let codes: Vec<_> = found.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, [53, 54]);
    }
}

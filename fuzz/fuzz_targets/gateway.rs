//! The messages of the guest that the gateway parses: DNS, DHCP and DHCPv6; answers of resolvers; the port
//! specifications of its command line; the files of the host's resolvers and of policies; and requests
//! for its metrics. No input may cause a panic, an answer must be parsed again where the parser accepts
//! answers, and answers are bounded.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fullsend_gateway::message::dns::{Query, ResponseCode};
use fullsend_gateway::message::dns_answer::Answer;
use fullsend_gateway::message::{dhcp, dhcpv6, resolv_conf};
use fullsend_gateway::metrics::{MAX_REQUEST, Parsed, parse};
use fullsend_gateway::{Config, PolicyFile, PortSpec};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, message) = input;
    match kind % 8 {
        0 => dns(message),
        1 => dhcp(message),
        2 => dhcpv6(message),
        3 => ports(message),
        4 => resolvers(message),
        5 => answer(message),
        6 => policy(message),
        _ => metrics(message),
    }
});

fn dns(message: &[u8]) {
    let Some(query) = Query::parse(message) else {
        return;
    };
    // 255 bytes of a name, each written as `\ddd`.
    assert!(query.name.len() <= 4 * 255);
    let addresses = [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::from(Ipv6Addr::LOCALHOST),
    ];
    for code in [
        ResponseCode::NoError,
        ResponseCode::ServerFailure,
        ResponseCode::NameError,
    ] {
        let answer = query.respond_with(code, &addresses);
        assert!(query.is_answered_by(query.id, &answer));
        assert!(Query::parse(&answer).is_none(), "a response is no query");
        assert!(answer.len() <= message.len() + 28);
    }
    let _ = query.is_answered_by(query.id, message);
}

/// Parses a message as the answer to a query whose question it has.
fn answer(message: &[u8]) {
    let question_len = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0)? + 5;
        bytes.get(..end).map(<[u8]>::len)
    };
    let Some(len) = message.get(12..).and_then(question_len) else {
        return;
    };
    let mut question = message[..12 + len].to_vec();
    question[2] &= 0x7f;
    question[4..12].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    let Some(query) = Query::parse(&question) else {
        return;
    };
    let Some(answer) = Answer::parse(&query, message) else {
        return;
    };
    // A record has a name of one byte, ten bytes before its data, and an address of four.
    assert!(15 * answer.addresses.len() <= message.len());
    for address in &answer.addresses {
        assert!(address.ttl.is_none_or(|ttl| ttl <= i32::MAX as u32));
    }
    let exists = message[3] & 0xf == 0;
    assert!(exists || answer.addresses.iter().all(|a| a.ttl.is_none()));
    assert!(!answer.is_truncated || answer.addresses.is_empty());
    assert!(answer.aliases.len() <= 16);
}

/// Parses a policy: its errors have one line.
fn policy(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    match PolicyFile::parse(text, "fuzz.toml") {
        Ok(file) => {
            let mut config = Config::default();
            file.apply(&mut config);
            let _ = config.policy.dns("www.example.org", 1);
            let _ = config.policy.allows_alias("www.example.org", "example.net");
            let _ = config
                .policy
                .allows_address("www.example.org", [127, 0, 0, 1].into(), true);
        }
        Err(error) => {
            let error = error.to_string();
            assert!(
                error.starts_with("fuzz.toml:") && !error.contains('\n'),
                "{error}"
            );
        }
    }
}

fn dhcp(message: &[u8]) {
    let Some(parsed) = dhcp::ClientMessage::parse(message) else {
        return;
    };
    assert!((1..=64).contains(&parsed.client_id.len()));
    let settings = dhcp::Settings {
        server: Ipv4Addr::new(10, 0, 2, 2),
        prefix: 24,
        router: Ipv4Addr::new(10, 0, 3, 2),
        dns: vec![Ipv4Addr::new(10, 0, 2, 3)],
        mtu: 65_520,
        lease_s: 3600,
        host_name: Some("guest".into()),
        domain: Some("example.com".into()),
        search: vec!["example.net".into()],
    };
    for kind in [
        dhcp::MessageType::Offer,
        dhcp::MessageType::Ack,
        dhcp::MessageType::Nak,
    ] {
        let answer = parsed.answer(kind, parsed.requested, &settings);
        assert!((300..=576).contains(&answer.len()));
        assert_eq!(dhcp::ClientMessage::parse(&answer), None);
    }
}

fn dhcpv6(message: &[u8]) {
    let Some(parsed) = dhcpv6::ClientMessage::parse(message) else {
        return;
    };
    let settings = dhcpv6::Settings {
        mac: [2, 0, 0, 0, 0, 1],
        address: Some(Ipv6Addr::LOCALHOST),
        dns: vec![Ipv6Addr::LOCALHOST],
        search: vec!["example.com".into()],
        fqdn: Some("guest.example.com".into()),
        lifetime_s: 3600,
    };
    if let Some(answer) = parsed.answer(&settings) {
        assert!(answer.len() <= 600);
        assert!(dhcpv6::ClientMessage::parse(&answer).is_none());
    }
}

fn ports(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let Ok(spec) = text.parse::<PortSpec>() else {
        return;
    };
    assert_eq!(spec.to_string().parse(), Ok(spec.clone()), "{spec}");
    if let PortSpec::List(list) = spec {
        let forwards = list.forwards(&(32_768..=60_999));
        assert!(forwards.len() <= usize::from(u16::MAX));
        assert!(forwards.iter().all(|f| f.port != 0 && f.to_port != 0));
    }
}

fn resolvers(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let list = resolv_conf::parse(text);
    assert!((1..=resolv_conf::MAX_RESOLVERS).contains(&list.len()));
    assert!(list.iter().all(|resolver| resolver.port() == 53));
    // A file with these resolvers is the same list.
    let lines = list.iter().map(|resolver| match resolver {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => {
            format!("nameserver {}%{}\n", v6.ip(), v6.scope_id())
        }
        resolver => format!("nameserver {}\n", resolver.ip()),
    });
    assert_eq!(resolv_conf::parse(&lines.collect::<String>()), list);
}

fn metrics(request: &[u8]) {
    let request = &request[..request.len().min(MAX_REQUEST)];
    let parsed = parse(request);
    // The result of the first bytes that suffice is that of all.
    let first = (0..request.len())
        .step_by(61)
        .map(|len| parse(&request[..len]))
        .find(|part| *part != Parsed::Incomplete);
    assert_eq!(first.unwrap_or(parsed), parsed);
}

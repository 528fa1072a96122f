//! Tests of port specifications.

use super::{PortForward, PortList, PortRange, PortSpec};

fn list(text: &str) -> PortList {
    match text.parse() {
        Ok(PortSpec::List(list)) => list,
        other => panic!("{text}: {other:?}"),
    }
}

fn range(first: u16, last: u16, to: Option<&str>, to_first: u16) -> PortRange {
    PortRange {
        first,
        last,
        to: to.map(|to| to.parse().unwrap()),
        to_first,
    }
}

#[test]
fn words_are_specifications_of_their_own() {
    assert_eq!("none".parse(), Ok(PortSpec::None));
    assert_eq!("auto".parse(), Ok(PortSpec::Auto));
    assert!(list("all").all);
}

#[test]
fn ranges_lead_to_the_same_or_to_other_ports() {
    let rows = [
        ("22", range(22, 22, None, 22)),
        ("22-25", range(22, 25, None, 22)),
        ("8080:80", range(8080, 8080, None, 80)),
        ("5000-5010:6000-6010", range(5000, 5010, None, 6000)),
        ("5000-5010:6000", range(5000, 5010, None, 6000)),
        ("80:192.0.2.1/8080", range(80, 80, Some("192.0.2.1"), 8080)),
        (
            "80:[2001:db8::1]/8080",
            range(80, 80, Some("2001:db8::1"), 8080),
        ),
    ];
    for (text, want) in rows {
        let list = list(text);
        assert_eq!(
            (&list.ranges[..], list.address),
            (&[want][..], None),
            "{text}"
        );
    }
    assert_eq!(list("1,3-4,8:9").ranges.len(), 3);
}

#[test]
fn an_address_and_an_interface_may_precede() {
    let rows = [
        ("127.0.0.1/22", Some("127.0.0.1"), None),
        ("127.0.0.1%eth0/22", Some("127.0.0.1"), Some("eth0")),
        ("%eth0/22", None, Some("eth0")),
        ("::1/22", Some("::1"), None),
        ("[::1]/22", Some("::1"), None),
        ("fe80::1%eth0/22", Some("fe80::1"), Some("eth0")),
        ("[::1]%lo/22", Some("::1"), Some("lo")),
    ];
    for (text, address, interface) in rows {
        let list = list(text);
        assert_eq!(list.address, address.map(|a| a.parse().unwrap()), "{text}");
        assert_eq!(list.interface.as_deref(), interface, "{text}");
        assert_eq!(list.ranges, [range(22, 22, None, 22)], "{text}");
    }
    let both = list("127.0.0.1/80:10.0.0.1/8080");
    assert_eq!(both.ranges, [range(80, 80, Some("10.0.0.1"), 8080)]);
}

#[test]
fn exclusions_apply_to_ranges_and_to_all_ports() {
    let ports = |text: &str| -> Vec<(u16, u16)> {
        let forwards = list(text).forwards(&(32_768..=60_999));
        forwards.iter().map(|f| (f.port, f.to_port)).collect()
    };
    assert_eq!(ports("20-24:120,~21-22"), [(20, 120), (23, 123), (24, 124)]);
    assert_eq!(ports("~1-32767,~61000-65534"), [(65_535, 65_535)]);
    assert_eq!(ports("127.0.0.1/~1-65535"), []);
    let all = list("all,8080:80").forwards(&(32_768..=60_999));
    let named = PortForward {
        port: 8080,
        to: None,
        to_port: 80,
        optional: false,
    };
    assert_eq!(all[0], named);
    assert_eq!(all.len(), 65_535 - (60_999 - 32_768 + 1));
    assert!(all[1..].iter().all(|f| f.optional && f.port != 8080));
}

#[test]
fn errors_name_the_specification_and_the_reason() {
    let rows = [
        ("", "not between 1 and 65535"),
        ("0", "not between 1 and 65535"),
        ("65536", "not between 1 and 65535"),
        ("+1", "not between 1 and 65535"),
        ("22,", "not between 1 and 65535"),
        ("22:", "not between 1 and 65535"),
        ("5-3", "above its last port"),
        ("1-3:1-2", "same number of ports"),
        ("1-3:65534", "beyond 65535"),
        ("1-3,2", "named twice"),
        ("1.2.3/22", "not an address"),
        ("[127.0.0.1]/22", "not an address"),
        ("[::1/22", "not an address"),
        ("%/22", "interface"),
        ("%a-name-of-16-byt/22", "interface"),
        ("22:x/22", "not an address"),
        ("none,22", "not between 1 and 65535"),
    ];
    for (text, reason) in rows {
        let error = text.parse::<PortSpec>().unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
        assert!(error.contains(&format!("`{text}`")), "{text}: {error}");
    }
}

#[test]
fn the_text_of_a_specification_is_parsed_again_to_the_same() {
    for text in [
        "none",
        "auto",
        "all",
        "~22",
        "all,~1-9,22:23",
        "1,2-4:9,[::1]",
        "80:[::1]/81",
        "[fe80::1]%eth0/1-9:[::2]/11-19,~3",
        "10.0.0.1/~5",
    ] {
        let Ok(spec) = text.parse::<PortSpec>() else {
            continue;
        };
        assert_eq!(spec.to_string().parse(), Ok(spec), "{text}");
    }
}

//! The messages of the protocols that the gateway itself serves, and the file of the host's
//! resolvers. All parsers accept any bytes.

pub mod dhcp;
pub mod dhcpv6;
pub mod dns;
pub mod dns_answer;
pub mod resolv_conf;
pub mod router_advert;

/// Appends a domain name in the wire format of RFC 1035 3.1. Returns `false`, and appends nothing,
/// if it is not a valid name.
pub(crate) fn push_name(out: &mut Vec<u8>, name: &str) -> bool {
    let name = name.trim_end_matches('.');
    let valid = |label: &str| (1..=63).contains(&label.len()) && label.is_ascii();
    if name.len() > 253 || !name.split('.').all(valid) {
        return false;
    }
    for label in name.split('.') {
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.push(0);
    true
}

/// Returns the names in wire format, one after another, without those that are not valid, at most
/// `max` bytes.
pub(crate) fn names(names: &[String], max: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for name in names {
        let before = out.len();
        if push_name(&mut out, name) && out.len() > max {
            out.truncate(before);
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_as_labels() {
        let list = ["example.com", "", "a..b", "x."].map(String::from);
        assert_eq!(names(&list, 100), b"\x07example\x03com\0\x01x\0");
        assert_eq!(names(&list, 13), b"\x07example\x03com\0");
        assert_eq!(names(&["a".repeat(64)], 100), b"");
    }
}

//! Socket options by their Linux names, with values in Linux's units.

use fullsend_tcp::{Linger, SocketOption as O};
use fullsend_wire::Nanos;

/// A setting of a connection.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ConnectionSetting {
    Option(O),
    /// `TCP_CONGESTION`: the name of a congestion control.
    Congestion(String),
}

/// Parser of an option's value.
type ParseFn = fn(&str) -> Option<O>;

/// The name, the description of valid values and the parser of each option.
const OPTIONS: &[(&str, &str, ParseFn)] = &[
    ("TCP_NODELAY", SWITCH, |v| {
        Some(O::TcpNodelay(parse_switch(v)?))
    }),
    ("TCP_CORK", SWITCH, |v| Some(O::TcpCork(parse_switch(v)?))),
    ("TCP_QUICKACK", SWITCH, |v| {
        Some(O::TcpQuickack(parse_switch(v)?))
    }),
    ("TCP_MAXSEG", "a number of bytes", |v| {
        Some(O::TcpMaxseg(v.parse().ok()?))
    }),
    (
        "TCP_USER_TIMEOUT",
        "a number of milliseconds, or 0 for no timeout",
        |v| {
            let ms: u32 = v.parse().ok()?;
            Some(O::TcpUserTimeout(Nanos::from_millis(ms.into())))
        },
    ),
    ("TCP_SYNCNT", "a number", |v| {
        Some(O::TcpSyncnt(v.parse().ok()?))
    }),
    ("TCP_KEEPIDLE", "a number of seconds", |v| {
        Some(O::TcpKeepidle(parse_seconds(v)?))
    }),
    ("TCP_KEEPINTVL", "a number of seconds", |v| {
        Some(O::TcpKeepintvl(parse_seconds(v)?))
    }),
    ("TCP_KEEPCNT", "a number", |v| {
        Some(O::TcpKeepcnt(v.parse().ok()?))
    }),
    (
        "TCP_NOTSENT_LOWAT",
        "a number of bytes, or 4294967295 for the value of tcp_notsent_lowat",
        |v| Some(O::TcpNotsentLowat(v.parse().ok()?)),
    ),
    ("SO_KEEPALIVE", SWITCH, |v| {
        Some(O::SoKeepalive(parse_switch(v)?))
    }),
    ("SO_LINGER", "a number of seconds, or off", |v| {
        Some(O::SoLinger(if v == "off" {
            Linger::Background
        } else {
            Linger::For(parse_seconds(v)?)
        }))
    }),
    ("SO_SNDBUF", "a number of bytes", |v| {
        Some(O::SoSndbuf(v.parse().ok()?))
    }),
    ("SO_RCVBUF", "a number of bytes", |v| {
        Some(O::SoRcvbuf(v.parse().ok()?))
    }),
    ("SO_RCVLOWAT", "a number of bytes", |v| {
        Some(O::SoRcvlowat(v.parse().ok()?))
    }),
    (
        "SO_MAX_PACING_RATE",
        "a number of bytes per second, or max",
        |v| {
            Some(O::SoMaxPacingRate(if v == "max" {
                u64::MAX
            } else {
                v.parse().ok()?
            }))
        },
    ),
];

const SWITCH: &str = "0 (off) or 1 (on)";

fn parse_switch(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn parse_seconds(value: &str) -> Option<Nanos> {
    let seconds: u32 = value.parse().ok()?;
    Some(Nanos::from_secs(seconds.into()))
}

/// Parses a setting. The error lists the valid names or values.
pub(crate) fn parse(name: &str, value: &str) -> Result<ConnectionSetting, String> {
    if name.eq_ignore_ascii_case("TCP_CONGESTION") {
        return Ok(ConnectionSetting::Congestion(value.to_owned()));
    }
    let Some((known, expected, parse)) = OPTIONS.iter().find(|o| name.eq_ignore_ascii_case(o.0))
    else {
        let names: Vec<_> = OPTIONS.iter().map(|option| option.0).collect();
        return Err(format!(
            "{name:?} is not a socket option that can be set here; write one of TCP_CONGESTION, {}",
            names.join(", ")
        ));
    };
    parse(value)
        .map(ConnectionSetting::Option)
        .ok_or_else(|| format!("{known} does not accept {value:?}; write {expected}"))
}

#[cfg(test)]
mod tests {
    use fullsend_tcp::{Linger, SocketOption};
    use fullsend_wire::Nanos;

    use super::{ConnectionSetting, OPTIONS, parse};

    #[test]
    fn options_by_name_in_linux_units() {
        let option = |name, value| match parse(name, value) {
            Ok(ConnectionSetting::Option(option)) => option,
            other => panic!("{other:?}"),
        };
        assert_eq!(option("TCP_NODELAY", "1"), SocketOption::TcpNodelay(true));
        assert_eq!(
            option("tcp_user_timeout", "1500"),
            SocketOption::TcpUserTimeout(Nanos::from_millis(1500))
        );
        assert_eq!(
            option("SO_LINGER", "off"),
            SocketOption::SoLinger(Linger::Background)
        );
        assert_eq!(
            option("SO_MAX_PACING_RATE", "max"),
            SocketOption::SoMaxPacingRate(u64::MAX)
        );
        assert_eq!(
            parse("TCP_CONGESTION", "reno"),
            Ok(ConnectionSetting::Congestion("reno".into()))
        );
    }

    #[test]
    fn errors_name_the_value_and_what_to_write() {
        for (name, expected, _) in OPTIONS {
            let error = parse(name, "blue").unwrap_err();
            assert!(
                error.contains("\"blue\"") && error.contains(expected),
                "{error}"
            );
        }
        let error = parse("TCP_NODELY", "1").unwrap_err();
        assert!(error.contains("TCP_NODELY") && error.contains("TCP_NODELAY"));
    }
}

use alloc::format;
use alloc::string::ToString;

use fullsend_wire::{Nanos, Rate};
use proptest::prelude::*;

use super::{FqConfig, QdiscConfig, TbfConfig};

fn parse(text: &str) -> QdiscConfig {
    text.parse().unwrap()
}

#[test]
fn parses_tc_syntax() {
    assert_eq!(parse("noqueue"), QdiscConfig::NoQueue);
    assert_eq!(parse("pfifo"), QdiscConfig::Pfifo { limit: 1000 });
    assert_eq!(parse("pfifo limit 20p"), QdiscConfig::Pfifo { limit: 20 });
    assert_eq!(parse("fq"), QdiscConfig::Fq(FqConfig::default()));
    let fq = FqConfig {
        limit: 5,
        flow_limit: 4,
        quantum: 3000,
        initial_quantum: 15 << 10,
        horizon: Nanos::from_secs(2),
        horizon_drop: false,
        ce_threshold: Some(Nanos::from_micros(2500)),
        maxrate: Some(Rate(12_500_000)),
    };
    let text = "fq limit 5 flow_limit 4p quantum 3000b initial_quantum 15kb horizon 2s \
                horizon_cap ce_threshold 2.5ms maxrate 0.1gbit";
    assert_eq!(parse(text), QdiscConfig::Fq(fq));
    let tbf = |limit| {
        QdiscConfig::Tbf(TbfConfig {
            rate: Rate(125_000_000),
            burst: 65_536,
            limit,
        })
    };
    assert_eq!(
        parse("tbf rate 1gbit burst 64kb latency 10ms"),
        tbf(1_250_000 + 65_536)
    );
    assert_eq!(parse("tbf burst 64k rate 125MBps limit 1mb"), tbf(1 << 20));
    let default = TbfConfig::new(Rate(125_000_000), 65_536);
    assert_eq!(
        parse("tbf rate 1gbit burst 64kb"),
        QdiscConfig::Tbf(default)
    );
    assert_eq!(default.limit, 6_250_000 + 65_536);
}

#[test]
fn units_match_tc() {
    let rate = |text: &str| match parse(&format!("fq maxrate {text}")) {
        QdiscConfig::Fq(config) => config.maxrate.unwrap().0 * 8,
        other => panic!("{other:?}"),
    };
    for (text, bits) in [
        ("8bit", 8),
        ("8kbit", 8_000),
        ("8mbit", 8_000_000),
        ("8gbit", 8_000_000_000),
        ("8tbit", 8_000_000_000_000),
        ("8kibit", 8 << 10),
        ("8mibit", 8 << 20),
        ("8gibit", 8 << 30),
        ("8tibit", 8 << 40),
        ("3kibps", 24 << 10),
        ("8.000008mbit", 8_000_008),
    ] {
        assert_eq!(rate(text), bits, "{text}");
    }
    for too_fine in ["8.0000008mbit", "8.00000008mbit"] {
        let error = format!("fq maxrate {too_fine}").parse::<QdiscConfig>();
        assert!(error.is_err(), "{too_fine}");
    }
}

#[test]
fn sizes_are_shown_in_the_largest_unit_that_divides_them() {
    for (limit, shown) in [
        ("512", "512b"),
        ("3kb", "3kb"),
        ("1536kb", "1536kb"),
        ("5mb", "5mb"),
        ("2gb", "2gb"),
    ] {
        let text = parse(&format!("tbf rate 1mbit burst 64kb limit {limit}")).to_string();
        assert!(text.ends_with(&format!("limit {shown}")), "{text}");
    }
}

#[test]
fn errors_have_the_value_and_a_hint() {
    for (text, value, hint) in [
        ("", "``", "noqueue, pfifo, fq or tbf"),
        ("codel", "`codel`", "noqueue, pfifo, fq or tbf"),
        ("noqueue limit 3", "`limit`", "remove it"),
        ("pfifo limit", "`limit`", "has no value"),
        ("pfifo limit many", "`many`", "number of packets"),
        ("pfifo limit 0", "`limit`", "1 or more"),
        ("pfifo rate 1gbit", "`rate`", "write limit"),
        ("fq quantum 5gb", "`5gb`", "below 4gb"),
        ("fq quantum 1", "`quantum`", "256 or more"),
        ("fq horizon 10", "`10`", "10s"),
        ("fq maxrate 1g", "`1g`", "100mbit"),
        ("fq maxrate 7bit", "`7bit`", "8bit"),
        ("fq rate 1gbit", "`rate`", "maxrate"),
        ("tbf rate 1gbit", "`tbf`", "burst 64kb"),
        ("tbf rate 1gbit burst 0", "`burst`", "1 or more"),
        (
            "tbf rate 1gbit burst 64kb limit 1mb latency 1ms",
            "`latency`",
            "one of them",
        ),
        ("tbf rate 1..5gbit burst 64kb", "`1..5gbit`", "100mbit"),
        (
            "tbf rate 99999999999999999999gbit burst 1",
            "gbit`",
            "100mbit",
        ),
    ] {
        let error = text.parse::<QdiscConfig>().unwrap_err().to_string();
        assert!(
            error.contains(value) && error.contains(hint),
            "{text}: {error}"
        );
    }
}

fn nanos() -> impl Strategy<Value = Nanos> {
    prop_oneof![
        (0..=u64::from(u32::MAX)).prop_map(Nanos::from_micros),
        any::<u64>().prop_map(Nanos::from_nanos)
    ]
}

fn config() -> impl Strategy<Value = QdiscConfig> {
    let fq = (
        (1..=u32::MAX, 1..=u32::MAX, 256..=u32::MAX, 256..=u32::MAX),
        nanos(),
        any::<bool>(),
        proptest::option::of(nanos()),
        proptest::option::of((1..=u64::MAX / 8).prop_map(Rate)),
    )
        .prop_map(
            |(numbers, horizon, horizon_drop, ce_threshold, maxrate)| FqConfig {
                limit: numbers.0,
                flow_limit: numbers.1,
                quantum: numbers.2,
                initial_quantum: numbers.3,
                horizon,
                horizon_drop,
                ce_threshold,
                maxrate,
            },
        );
    let tbf =
        (1..=u64::MAX / 8, 1..=u32::MAX, 1..=u64::MAX).prop_map(|(rate, burst, limit)| TbfConfig {
            rate: Rate(rate),
            burst,
            limit,
        });
    prop_oneof![
        Just(QdiscConfig::NoQueue),
        (1..=u32::MAX).prop_map(|limit| QdiscConfig::Pfifo { limit }),
        fq.prop_map(QdiscConfig::Fq),
        tbf.prop_map(QdiscConfig::Tbf),
    ]
}

proptest! {
    #[test]
    fn display_then_parse_is_identity(config in config()) {
        prop_assert_eq!(config.to_string().parse(), Ok(config));
    }

    #[test]
    fn random_text_does_not_panic(text in "(pfifo|fq|tbf) ([a-z_]{1,9} [0-9.]{0,25}[a-z]{0,5} ?){0,4}") {
        let _ = text.parse::<QdiscConfig>();
    }
}

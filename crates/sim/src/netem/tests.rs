use fullsend_wire::{Nanos, Rate};

use super::{Netem, RandomLoss};

fn parse(text: &str) -> Netem {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn options_in_any_order() {
    let netem = parse(
        "loss 0.1% rate 100mbit 24 limit 50 delay 20ms 2ms reorder 1% gap 5 duplicate 2 ecn \
         corrupt 0.5% mtu 1400 icmp ce_threshold 1ms",
    );
    assert_eq!(
        netem,
        Netem {
            delay: Nanos::from_millis(20),
            jitter: Nanos::from_millis(2),
            rate: Rate(12_500_000),
            overhead: 24,
            limit: 50,
            loss: RandomLoss::Even(0.001),
            duplicate: 0.02,
            corrupt: 0.005,
            reorder: 0.01,
            gap: 5,
            ecn: true,
            ce_threshold: Nanos::from_millis(1),
            mtu: 1400,
            reports_mtu: true,
        }
    );
    assert_eq!(parse(""), Netem::default());
}

#[test]
fn units_are_those_of_tc() {
    for (text, ns) in [
        ("1s", 1_000_000_000),
        ("1.5ms", 1_500_000),
        ("7", 7_000),
        ("9ns", 9),
    ] {
        assert_eq!(
            parse(&format!("delay {text}")).delay.as_nanos(),
            ns,
            "{text}"
        );
    }
    for (text, bytes) in [
        ("8kbit", 1_000),
        ("1Mbit", 125_000),
        ("2.5gbit", 312_500_000),
        ("1mbps", 1_000_000),
        ("8kibit", 1_024),
        ("800", 100),
    ] {
        assert_eq!(parse(&format!("rate {text}")).rate, Rate(bytes), "{text}");
    }
}

#[test]
fn bursty_loss_has_the_defaults_of_netem() {
    let bursty = |text: &str| parse(text).loss;
    assert_eq!(
        bursty("loss gemodel 1% 10% 70% 0.1%"),
        RandomLoss::Bursty {
            p: 0.01,
            r: 0.1,
            bad: 0.7,
            good: 0.001
        }
    );
    assert_eq!(
        bursty("loss gemodel 1%"),
        RandomLoss::Bursty {
            p: 0.01,
            r: 0.99,
            bad: 1.0,
            good: 0.0
        }
    );
    assert_eq!(bursty("loss random 3%"), RandomLoss::Even(0.03));
}

#[test]
fn errors_name_the_option() {
    for (text, word) in [
        ("delay 20parsecs", "20parsecs"),
        ("delay", "delay"),
        ("rate fast", "fast"),
        ("rate 0bit", "0bit"),
        ("loss 101%", "101%"),
        ("loss 1% 25%", "25%"),
        ("limit 0", "0"),
        ("limit -1", "-1"),
        ("delay 1ms 2ms", "delay"),
        ("reorder 1%", "reorder"),
        ("dealy 1ms", "dealy"),
        ("delay 1ms rate", "rate"),
        ("loss gemodel", "gemodel"),
        ("rate 1mbit 99999", "99999"),
    ] {
        let error = text.parse::<Netem>().unwrap_err().to_string();
        assert!(error.contains(&format!("\"{word}\"")), "{text}: {error}");
    }
}

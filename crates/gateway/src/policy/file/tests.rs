use std::fs;
use std::net::SocketAddr;

use super::super::{DnsVerdict, Flow, FlowProtocol, Policy, Verdict};
use super::*;

const FULL: &str = r#"
# What the guest may reach.
default = "deny"
denied_names = "nxdomain"

[[rules]]
action = "deny"
networks = ["local", "192.0.2.128/25"]

[[rules]]
action = "allow"
domains = ["example.org", "*.example.org"]
protocols = ["tcp", "udp"]
ports = [80, 443, "8000-8099"]

[[rules]]
action = "redirect"
networks = "198.51.100.0/24"
ports = "53"
to = "127.0.0.1:5353"

[[rules]]
action = "allow"
protocols = "icmp"
networks = "192.0.2.0/24"

[names]
"db.internal" = "192.0.2.7"
gateway = ["10.0.2.2", "fd00::2"]

[dns]
grace_seconds = 3_600

[limits]
bytes_per_second = 12_500_000
tcp_connections = 200
udp_flows = 0x40
"#;

fn verdict(policy: &EgressPolicy, protocol: FlowProtocol, to: &str, name: &str) -> Verdict {
    let destination: SocketAddr = to.parse().unwrap();
    policy.flow(&Flow {
        protocol,
        guest: "10.0.2.100:4000".parse().unwrap(),
        destination,
        names: &[name.into()],
        aliases: &[],
        is_dns_relay: false,
        is_local: super::super::is_special(destination.ip()),
    })
}

#[test]
fn a_file_sets_rules_names_and_limits() {
    let file = PolicyFile::parse(FULL, "full.toml").unwrap();
    let policy = file.policy();
    let tcp = |to, name| verdict(policy, FlowProtocol::Tcp, to, name);
    for to in ["192.0.2.1:80", "192.0.2.1:443", "192.0.2.1:8050"] {
        assert_eq!(tcp(to, "www.example.org"), Verdict::Allow, "{to}");
        assert_eq!(tcp(to, "other.test"), Verdict::Reject, "{to}");
    }
    assert_eq!(tcp("192.0.2.1:81", "example.org"), Verdict::Reject);
    assert_eq!(tcp("192.0.2.129:80", "example.org"), Verdict::Reject);
    assert_eq!(tcp("10.0.2.2:80", "example.org"), Verdict::Reject);
    let to = "127.0.0.1:5353".parse().unwrap();
    assert_eq!(tcp("198.51.100.1:53", "x"), Verdict::Redirect(to));
    let ping = |to| verdict(policy, FlowProtocol::Ping, to, "x");
    assert_eq!(ping("192.0.2.1:0"), Verdict::Allow);
    assert_eq!(ping("192.0.3.1:0"), Verdict::Reject);
    assert_eq!(policy.dns("example.org", 1), DnsVerdict::Allow);
    assert_eq!(policy.dns("other.test", 1), DnsVerdict::Deny);
    let addresses = vec!["10.0.2.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    assert_eq!(policy.dns("gateway", 1), DnsVerdict::Redirect(addresses));
    let reason = policy.explain_dns("other.test", 1).unwrap();
    assert_eq!(reason, "no rule allows it");

    let mut config = Config::default();
    file.apply(&mut config);
    assert_eq!(config.limits.rate, Some(12_500_000));
    assert_eq!(config.limits.tcp_connections, 200);
    assert_eq!(config.limits.udp_flows, 64);
    assert_eq!(config.dns.address_grace, Duration::from_secs(3600));
}

#[test]
fn without_keys_each_flow_is_denied_and_the_limits_stay() {
    let mut config = Config::default();
    let before = config.clone();
    PolicyFile::parse("", "empty.toml")
        .unwrap()
        .apply(&mut config);
    assert_eq!(config.limits, before.limits);
    assert_eq!(config.dns, before.dns);
    assert_eq!(config.policy.dns("example.org", 1), DnsVerdict::Refuse);
}

#[test]
fn a_refusal_names_the_line_of_its_rule() {
    let text = "default = \"allow\"\n\n[[rules]]\naction = \"deny\"\ndomains = \"a.test\"\n";
    let file = PolicyFile::parse(text, "p.toml").unwrap();
    let reason = file.policy().explain_dns("a.test", 1).unwrap();
    assert_eq!(reason, "the rule at p.toml:3 denies it");
}

#[test]
fn errors_name_the_file_the_line_the_value_and_the_fix() {
    let rule = |line: &str| format!("[[rules]]\naction = \"allow\"\n{line}\n");
    for (text, error) in [
        ("default = \"deny", "p.toml:1: invalid basic string"),
        ("\n\n= 1", "p.toml:3: "),
        (
            "default = 1",
            "p.toml:1: default = 1 is none of the values; write \"deny\" or \"allow\"",
        ),
        (
            "[[rule]]\naction = \"allow\"",
            "p.toml:1: there is no key \"rule\" here; write default, denied_names,",
        ),
        (
            "rules = 1",
            "p.toml:1: rules = 1 is not a list of tables; write [[rules]]",
        ),
        (
            "[rules]",
            "p.toml:1: rules = [rules] is not a list of tables",
        ),
        (
            "\n[[rules]]\nports = 1",
            "p.toml:2: a rule has no action; add",
        ),
        (
            "[[rules]]\naction = \"reject\"",
            "p.toml:2: action = \"reject\" is none of the values; write \"allow\", \"deny\" or \
             \"redirect\"",
        ),
        (
            "[[rules]]\naction = \"redirect\"",
            "p.toml:1: a rule redirects nowhere; add",
        ),
        (
            "[[rules]]\naction = \"redirect\"\nto = \"127.0.0.1\"",
            "p.toml:3: to = \"127.0.0.1\" is not an address with a port; write",
        ),
        (
            &rule("to = \"127.0.0.1:1\""),
            "p.toml:3: to = \"127.0.0.1:1\" belongs to action",
        ),
        (
            &rule("domain = \"x\""),
            "p.toml:3: there is no key \"domain\" here; write action, domains",
        ),
        (
            &rule("domains = [\"a.test\",\n  \"b*.test\"]"),
            "p.toml:4: domains: `b*.test` is not a domain; write e.g. example.org",
        ),
        (
            &rule("domains = []"),
            "p.toml:3: domains = [] is empty; remove",
        ),
        (
            &rule("domains = 7"),
            "p.toml:3: domains = 7 is not a text; write",
        ),
        (
            &rule("networks = \"10.0.0.1/8\""),
            "p.toml:3: networks: `10.0.0.1/8` has bits after its prefix; write 10.0.0.0/8",
        ),
        (
            &rule("ports = 65536"),
            "p.toml:3: ports = 65536 is not a port from 0 to 65535; write",
        ),
        (
            &rule("ports = \"9-8\""),
            "p.toml:3: ports = \"9-8\" is not a port",
        ),
        (&rule("ports = -1"), "p.toml:3: ports = -1 is not a port"),
        (
            &rule("protocols = \"sctp\""),
            "p.toml:3: protocols = \"sctp\" is none of the values; write \"tcp\", \"udp\" or",
        ),
        (
            &rule("protocols = \"icmp\"\nports = 1"),
            "p.toml:1: a rule has ports or redirects to one, and its only protocol has none;",
        ),
        (
            "[[rules]]\naction = \"redirect\"\nto = \"127.0.0.1:1\"\nprotocols = [\"icmp\"]",
            "p.toml:1: a rule has ports or redirects to one, and its only protocol has none;",
        ),
        (
            "[names]\n\"a b\" = \"192.0.2.1\"",
            "p.toml:2: \"a b\": `a b` is not a name; write e.g. db.internal",
        ),
        (
            "[names]\n\"a.test\" = \"b.test\"",
            "p.toml:2: \"a.test\" = \"b.test\" is not an address; write",
        ),
        (
            "names = 1",
            "p.toml:1: names = 1 is not a table; write [names]",
        ),
        (
            "[limits]\nbytes_per_second = \"1M\"",
            "p.toml:2: bytes_per_second = \"1M\" is not a number of at least 1",
        ),
        (
            "[limits]\ntcp_connections = 0",
            "p.toml:2: tcp_connections = 0 is not a number between 1 and 4294967295",
        ),
        (
            "[limits]\nrate = 1",
            "p.toml:2: there is no key \"rate\" here; write bytes_per_second",
        ),
        (
            "[dns]\nx = 1",
            "p.toml:2: there is no key \"x\" here; write grace_seconds",
        ),
    ] {
        let found = PolicyFile::parse(text, "p.toml").unwrap_err().to_string();
        assert!(found.starts_with(error), "{text}\n{found}\n{error}");
        assert!(!found.contains('\n'), "{found}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = PolicyFile::read("/nonexistent/p.toml".as_ref()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("cannot read the policy /nonexistent/p.toml: "),
        "{text}"
    );
    let large = std::env::temp_dir().join(format!("fullsend-policy-{}.toml", std::process::id()));
    let file = File::create(&large).unwrap();
    file.set_len(MAX_LEN + 1).unwrap();
    let text = PolicyFile::read(&large).unwrap_err().to_string();
    fs::remove_file(&large).unwrap();
    let expected = "it has 4194305 bytes, and a policy at most 4194304; ";
    assert!(text.contains(expected), "{text}");
}

//! Tests of the command line and of the guest's network.

use std::ffi::OsString;

use fullsend_gateway::namespace::{HostNetwork, HostRoute};
use fullsend_gateway::{LoopbackClients, Protocol, Side, Target};

use super::network::Plan;
use super::options::{Command, Destination, Options, Program, parse};

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn options(line: &str) -> Options {
    match parse(Program::Pasta, words(line)) {
        Ok(Command::Serve(options)) => *options,
        other => panic!("{line}: {other:?}"),
    }
}

fn host4() -> HostNetwork {
    let ip = |text: &str| text.parse().unwrap();
    HostNetwork {
        interface: "eth0".into(),
        mtu: 1500,
        mac: None,
        addresses: vec![(ip("192.0.2.7"), 24)],
        routes: vec![
            HostRoute {
                destination: (ip("192.0.2.0"), 24),
                gateway: None,
                on_link: false,
                source: None,
            },
            HostRoute {
                destination: (ip("0.0.0.0"), 0),
                gateway: Some(ip("192.0.2.1")),
                on_link: false,
                source: None,
            },
        ],
    }
}

fn plan(line: &str) -> Plan {
    Plan::of(&options(line), Some(host4()), None).unwrap()
}

#[test]
fn podmans_command_line() {
    let plan = plan(
        "--config-net -t 8080-8081:80-81 --dns-forward 169.254.1.1 -u none -T none -U none \
         --no-map-gw --quiet --netns /run/netns/x --map-guest-addr 169.254.1.2 -c /run/c",
    );
    assert_eq!(plan.interface_name, "eth0");
    assert_eq!(plan.setup.addresses, host4().addresses);
    assert_eq!(
        plan.setup.gateways,
        ["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]
    );
    assert_eq!(plan.setup.mtu, Some(65_520));
    let v4 = plan.config.ipv4.as_ref().unwrap();
    assert_eq!(v4.dns, Some([169, 254, 1, 1].into()));
    assert!(plan.config.ipv6.is_none());
    let [mapping] = &plan.config.mappings[..] else {
        panic!("{:?}", plan.config.mappings);
    };
    assert_eq!(
        mapping.guest,
        "169.254.1.2".parse::<std::net::IpAddr>().unwrap()
    );
    assert_eq!(mapping.target, Target::Address(host4().addresses[0].0));
    let ports: Vec<_> = plan
        .config
        .forwards
        .iter()
        .map(|f| (f.host.port(), f.guest.port()))
        .collect();
    assert_eq!(ports, [(8080, 80), (8081, 81)]);
    assert!(
        plan.config
            .forwards
            .iter()
            .all(|f| f.protocol == Protocol::Tcp)
    );
    assert!(plan.auto.is_empty());
}

#[test]
fn rootlesskits_command_line() {
    let line = "--stderr --ns-ifname=tap0 --mtu=65520 --config-net --address=10.0.2.100 \
                --netmask=24 --gateway=10.0.2.2 --dns-forward=10.0.2.3 --no-map-gw --ipv4-only \
                --tcp-ports=auto --udp-ports=none --host-lo-to-ns-lo 4711";
    assert_eq!(options(line).destination, Some(Destination::Process(4711)));
    let plan = plan(line);
    assert_eq!(plan.interface_name, "tap0");
    assert_eq!(plan.setup.addresses, [("10.0.2.100".parse().unwrap(), 24)]);
    assert!(plan.setup.routes.is_empty());
    assert!(plan.config.mappings.is_empty());
    let (host, guest) = (Side::Host, Side::Guest);
    let auto = [
        (host, Protocol::Tcp),
        (guest, Protocol::Tcp),
        (guest, Protocol::Udp),
    ];
    assert_eq!(plan.auto, auto.into());
}

#[test]
fn a_host_without_a_default_route_gives_link_local_addresses() {
    let plan = Plan::of(&options("--config-net -t none -u none true x"), None, None).unwrap();
    let v4 = plan.config.ipv4.unwrap();
    assert_eq!(
        (v4.guest, v4.gateway),
        ([169, 254, 2, 1].into(), [169, 254, 2, 2].into())
    );
    assert_eq!(plan.interface_name, "tap0");
    assert!(plan.config.ipv6.is_some());
}

#[test]
fn the_copy_of_the_hosts_network_can_be_restricted() {
    let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let mut host = host4();
    host.addresses.push((ip("198.51.100.7"), 24));
    let counts = |line: &str| {
        let plan = Plan::of(&options(line), Some(host.clone()), None).unwrap();
        let setup = plan.setup;
        (
            setup.addresses.len(),
            setup.routes.len(),
            setup.gateways.len(),
        )
    };
    assert_eq!(counts("--config-net sh"), (2, 1, 1));
    assert_eq!(counts("--config-net --no-copy-routes sh"), (2, 0, 1));
    assert_eq!(counts("--config-net --no-copy-addrs sh"), (1, 0, 1));
}

#[test]
fn a_full_name_is_a_host_name_and_a_domain() {
    let names = |line: &str| {
        let dns = plan(line).config.dns;
        (dns.host_name.unwrap_or_default(), dns.domain)
    };
    let domain = Some("example.com".to_owned());
    assert_eq!(
        names("--fqdn guest.example.com. sh"),
        ("guest".into(), domain.clone())
    );
    assert_eq!(
        names("--fqdn guest.example.com --hostname guest sh"),
        ("guest".into(), domain)
    );
    assert_eq!(names("--fqdn guest sh"), ("guest".into(), None));
}

#[test]
fn the_last_value_wins_and_versions_end_the_parsing() {
    assert_eq!(options("-m 1500 --mtu 9000 x y").mtu, Some(9000));
    for line in ["--version", "--host-lo-to-ns-lo --version"] {
        assert!(
            matches!(parse(Program::Pasta, words(line)), Ok(Command::Version)),
            "{line}"
        );
    }
}

#[test]
fn the_first_word_that_is_no_option_begins_the_command() {
    let command = |words: &[&str]| {
        let words = words.iter().map(OsString::from).collect();
        Some(Destination::Command(words))
    };
    assert_eq!(
        options("-4 sh -c ls").destination,
        command(&["sh", "-c", "ls"])
    );
    assert_eq!(options("--config-net").destination, command(&[]));
    assert_eq!(options("sh").destination, command(&["sh"]));
    assert_eq!(
        options("/proc/self/ns/net").destination,
        Some(Destination::Path("/proc/self/ns/net".into()))
    );
    assert_eq!(
        options("--netns /run/netns/x").destination,
        Some(Destination::Path("/run/netns/x".into()))
    );
    assert_eq!(
        options("--netns x").destination,
        Some(Destination::Path("/run/netns/x".into()))
    );
}

#[test]
fn errors_name_the_option_and_the_value() {
    let rows = [
        ("--x", "unrecognized option '--x'"),
        (
            "--map-guest-addr",
            "option '--map-guest-addr' requires an argument",
        ),
        ("-t 0 sh", "invalid port specification `0`"),
        ("-m 65521 sh", "MTU `65521`"),
        ("-a x sh", "`x` is not an address"),
        ("-a 10.0.0.1/33 sh", "`10.0.0.1/33`"),
        ("-n 255.0.255.0 sh", "netmask `255.0.255.0`"),
        ("-4 -6 sh", "exclude each other"),
        ("--netns /x sh", "exclude each other"),
        ("--netns-only --userns /x sh", "exclude each other"),
        ("-t auto -t none sh", "--tcp-ports none excludes"),
        ("-t none -t 80 sh", "--tcp-ports none excludes"),
        ("-u none -u auto sh", "--udp-ports none excludes"),
        ("-T 80 -T none sh", "--tcp-ns none excludes"),
        ("-t auto -t all sh", "--tcp-ports auto and --tcp-ports all"),
        ("-u ~22 -u auto sh", "--udp-ports auto and --udp-ports all"),
        ("-a 0.0.0.0 sh", "`0.0.0.0` is not an address that a host"),
        (
            "-a 127.0.0.1/8 sh",
            "`127.0.0.1` is not an address that a host",
        ),
        ("-a 192.0.2.1/+24 sh", "`192.0.2.1/+24`"),
        (
            "-g 224.0.0.1 sh",
            "`224.0.0.1` is not an address that a host",
        ),
        (
            "--dns-forward ::1 sh",
            "`::1` is not an address that a host",
        ),
        (
            "--map-guest-addr ff02::1 sh",
            "`ff02::1` is not an address that a host",
        ),
        ("-M +2:00:00:00:00:00 sh", "MAC address"),
        ("-m +1500 sh", "MTU `+1500`"),
        ("-n +24 sh", "netmask `+24`"),
        (
            "--hostname a --fqdn b.example sh",
            "--fqdn b.example is not a name of --hostname a",
        ),
        ("-T %lo/5000 sh", "--tcp-ns %lo/5000 names an interface"),
        ("-U %lo/5000 sh", "--udp-ns %lo/5000 names an interface"),
        ("-l /tmp/log sh", "--log-file /tmp/log is not supported"),
    ];
    for (line, text) in rows {
        let error = format!("{:#}", parse(Program::Pasta, words(line)).unwrap_err());
        assert!(error.contains(text), "{line}: {error}");
    }
}

#[test]
fn ports_are_bound_for_each_family_or_for_the_given_address() {
    let hosts = |line: &str| -> Vec<String> {
        let plan = plan(line);
        plan.config
            .forwards
            .iter()
            .map(|f| format!("{}>{}", f.host, f.guest))
            .collect()
    };
    assert_eq!(hosts("-t 80 -u none sh"), ["0.0.0.0:80>192.0.2.7:80"]);
    assert_eq!(
        hosts("-t 127.0.0.1/80:81 -u none sh"),
        ["127.0.0.1:80>192.0.2.7:81"]
    );
    assert_eq!(hosts("-u [::1]/80 -t none sh"), ["[::1]:80>192.0.2.7:80"]);
}

#[test]
fn ports_that_are_not_named_may_be_in_use() {
    let plan = plan("-t 127.0.0.1/all,80:8080,~22 -u none sh");
    let ports = |forwards: &[fullsend_gateway::Forward]| -> Vec<u16> {
        forwards.iter().map(|f| f.host.port()).collect()
    };
    assert_eq!(ports(&plan.config.forwards), [80]);
    let optional = ports(&plan.optional_forwards);
    assert!(optional.contains(&443) && !optional.contains(&80) && !optional.contains(&22));
}

#[test]
fn ports_of_the_guest_lead_from_its_loopback_to_the_hosts() {
    let plan = plan("-t none -u none -T 5000:5001 -T [::1]/6000 -T 127.0.0.2/7000:192.0.2.9/80 sh");
    let shown = |f: &fullsend_gateway::Forward| {
        assert_eq!((f.from, f.protocol), (Side::Guest, Protocol::Tcp));
        format!("{}>{}", f.guest, f.host)
    };
    let forwards: Vec<_> = plan.config.forwards.iter().map(shown).collect();
    // This guest has no IPv6 address.
    let expected = [
        "127.0.0.1:5000>127.0.0.1:5001",
        "[::1]:6000>[::1]:6000",
        "127.0.0.2:7000>192.0.2.9:80",
    ];
    assert_eq!(forwards, expected);
    assert_eq!(plan.auto, [(Side::Guest, Protocol::Udp)].into());
}

#[test]
fn the_guests_sockets_are_used_for_what_needs_them() {
    let rows = [
        // What follows the host's ports, and what is spliced.
        ("sh", true),
        ("-t none -u none -T auto -U none sh", true),
        ("-t none -u none -T 80 -U none sh", true),
        ("-t none -u none -T none -U auto sh", true),
        ("-t none -u none -T none -U 80 sh", true),
        ("-t 80 -u none -T none -U none sh", true),
        ("-t none -u auto -T none -U none sh", true),
        ("-t 80 -u 80 -T none -U none --no-splice sh", false),
        ("-t none -u 80 -T none -U none sh", true),
        ("-t none -u none -T none -U none sh", false),
        ("-t 80 -u none -U none --no-tcp sh", false),
        ("-u 80 -t none -T none --no-udp sh", false),
    ];
    for (line, expected) in rows {
        assert_eq!(plan(line).needs_guest_sockets(), expected, "{line}");
    }
    let clients = |line| plan(line).config.loopback_clients;
    assert_eq!(clients("sh"), LoopbackClients::GuestAddress);
    assert_eq!(clients("--no-splice sh"), LoopbackClients::Link);
    let line = "--host-lo-to-ns-lo sh";
    assert_eq!(clients(line), LoopbackClients::GuestLoopback);
}

#[test]
fn ports_that_lead_to_each_other_are_refused() {
    let error = |line: &str| {
        let plan = Plan::of(&options(line), Some(host4()), None);
        plan.err().map(|error| error.to_string())
    };
    for line in [
        "-t 5000 -T 5000 --host-lo-to-ns-lo sh",
        "-t 5000:6000 -T 6000:5000 --host-lo-to-ns-lo sh",
        "-t 5000:6000 -T 0.0.0.0/6000:5000 sh",
    ] {
        let error = error(line).unwrap_or_default();
        assert!(
            error.starts_with("--tcp-ports 5000 and --tcp-ns"),
            "{line}: {error}"
        );
    }
    for line in [
        // The guest's loopback leads to the guest's address.
        "-t 5000 -T 5000 sh",
        "-t 5000 -T 5001 --host-lo-to-ns-lo sh",
        "-t 5000:6000 -T 5000 --host-lo-to-ns-lo sh",
    ] {
        assert_eq!(error(line), None, "{line}");
    }
}

//! Tests of the command line and the API.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;

use fullsend_gateway::Forward;
use serde_json::{Value, json};

use super::api::{Forwards, answer};
use super::options::{Command, Destination, Options, parse};
use super::{api_defaults, config, help};

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

fn options(line: &str) -> Options {
    match parse(words(line)) {
        Ok(Command::Serve(options)) => *options,
        other => panic!("{line}: {other:?}"),
    }
}

fn error(line: &str) -> String {
    format!("{:#}", parse(words(line)).unwrap_err())
}

#[test]
fn podmans_command_line() {
    let line = "--disable-host-loopback --mtu=65520 --enable-sandbox --enable-seccomp \
                --enable-ipv6 -c -r 3 -e 4 --api-socket /run/s --netns-type=path /run/netns/x tap0";
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let options = options(&line);
    assert!(options.configure && options.sandbox && options.seccomp && options.ipv6);
    assert_eq!((options.ready_fd, options.exit_fd), (Some(3), Some(4)));
    assert_eq!(options.mtu, 65_520);
    assert_eq!(options.api_socket, Some("/run/s".into()));
    assert_eq!(
        options.destination,
        Destination::Path("/run/netns/x".into())
    );
    let config = config(&options).unwrap();
    let gateway = config.ipv4.unwrap().gateway;
    let target = config.mappings.iter().find(|m| m.guest == gateway);
    assert_eq!(
        target.unwrap().target,
        fullsend_gateway::Target::Unreachable
    );
}

#[test]
fn rootlesskits_command_line() {
    let options = options("--mtu 65520 -r 3 --cidr 10.9.0.0/16 42 tap1");
    assert!(!options.configure && !options.sandbox && !options.ipv6);
    assert_eq!(options.destination, Destination::Process(42));
    assert_eq!(options.tap_name, "tap1");
    let config = config(&options).unwrap();
    let v4 = config.ipv4.unwrap();
    assert_eq!(v4.gateway, Ipv4Addr::new(10, 9, 0, 2));
    assert_eq!(v4.dns, Some(Ipv4Addr::new(10, 9, 0, 3)));
    assert_eq!(options.network.guest(), Ipv4Addr::new(10, 9, 0, 100));
    let first_lease = Ipv4Addr::new(10, 9, 0, 15);
    assert_eq!(v4.guest, first_lease);
    assert!(config.ipv6.is_none());
}

#[test]
fn options_may_follow_positionals_and_the_last_value_wins() {
    let options = options("42 tap0 -m 1400 -c --mtu=1300");
    assert!(options.configure);
    assert_eq!(options.mtu, 1300);
}

#[test]
fn errors_have_the_texts_that_callers_search() {
    let rows = [
        ("--cidr=24 1", "invalid CIDR"),
        ("--cidr=foo/24 1", "invalid CIDR"),
        ("--cidr=10.0.2.0 1", "invalid CIDR"),
        (
            "--cidr=10.0.2.100/24 1",
            "CIDR needs to be a network address like 10.0.2.0/24, not like 10.0.2.100/24",
        ),
        ("--cidr=10.0.2.0/26 1", "prefix length needs to be 1-25"),
        ("--cidr=0.0.0.0/0 1", "prefix length needs to be 1-25"),
        ("--cidr=10.0.2.0/+24 1", "invalid CIDR"),
        ("--cidr=127.0.0.0/24 1", "invalid CIDR: \"127.0.0.0/24\": "),
        ("--cidr=224.0.0.0/24 1", "invalid CIDR: \"224.0.0.0/24\": "),
        ("--cidr=0.0.0.0/8 1", "invalid CIDR: \"0.0.0.0/8\": "),
        (
            "--cidr=255.255.255.0/24 1",
            "invalid CIDR: \"255.255.255.0/24\": ",
        ),
        ("--ready-fd=+3 1", "--ready-fd +3 is not a descriptor"),
        ("-c --macaddress=+2:00:00:00:00:00 1", "MAC address"),
        ("--what 1", "unrecognized option '--what'"),
        ("-c", "no PID, PATH or FD"),
        ("-m 65522 1", "MTU 65522 is not between"),
        ("-r x 1", "--ready-fd x is not a descriptor"),
        ("/run/netns/x", "--netns-type=path"),
        ("--netns-type=x 1", "write path, pid or tapfd"),
        ("-c --macaddress=01:00:00:00:00:00 1", "MAC address"),
        ("--macaddress=02:00:00:00:00:00 1", "needs --configure"),
    ];
    for (line, text) in rows {
        let error = error(line);
        assert!(error.contains(text), "{line}: {error}");
    }
}

#[test]
fn help_lists_every_option() {
    for option in [
        "--netns-type",
        "--disable-host-loopback",
        "--enable-sandbox",
        "--enable-seccomp",
        "--enable-ipv6",
        "--api-socket",
        "--cidr",
        "--outbound-addr",
        "--outbound-addr6",
        "--disable-dns",
        "--macaddress",
        "--target-type",
        "--userns-path",
        "--mtu",
        "--configure",
        "--exit-fd",
        "--ready-fd",
        "--version",
    ] {
        assert!(help::text().contains(option), "{option}");
    }
    let version = help::version();
    assert!(version.starts_with("slirp4netns version "));
    assert!(version.contains("\nSLIRP_CONFIG_VERSION_MAX: 4\n"));
}

/// The forwards of a gateway, without the gateway.
#[derive(Default)]
struct Recorded {
    entries: RefCell<Vec<(u64, Forward)>>,
}

impl Forwards for Recorded {
    fn add(&self, forward: Forward) -> io::Result<u64> {
        let id = self.entries.borrow().len() as u64 + 1;
        self.entries.borrow_mut().push((id, forward));
        Ok(id)
    }

    fn list(&self) -> Vec<(u64, Forward)> {
        self.entries.borrow().clone()
    }

    fn remove(&self, id: u64) -> io::Result<()> {
        let before = self.entries.borrow().len();
        self.entries.borrow_mut().retain(|(known, _)| *known != id);
        if self.entries.borrow().len() == before {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(())
    }
}

fn ask(forwards: &Recorded, request: &str) -> Value {
    let defaults = api_defaults(&options("4711 tap0"));
    answer(request.as_bytes(), forwards, defaults)
}

#[test]
fn forwards_are_added_listed_and_removed() {
    let forwards = Recorded::default();
    let add = r#"{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_port":8080,"guest_addr":"","guest_port":80}}"#;
    assert_eq!(ask(&forwards, add), json!({"return": {"id": 1}}));
    let add = r#"{"execute":"add_hostfwd","arguments":{"proto":"udp","host_addr":"127.0.0.1",
        "host_port":53,"guest_addr":"10.0.2.15","guest_port":5353}}"#;
    assert_eq!(ask(&forwards, add), json!({"return": {"id": 2}}));
    let first = json!({"id": 1, "proto": "tcp", "host_addr": "0.0.0.0", "host_port": 8080,
        "guest_addr": "10.0.2.100", "guest_port": 80});
    let second = json!({"id": 2, "proto": "udp", "host_addr": "127.0.0.1", "host_port": 53,
        "guest_addr": "10.0.2.15", "guest_port": 5353});
    let list = r#"{"execute": "list_hostfwd"}"#;
    let entries = json!([first, second]);
    assert_eq!(
        ask(&forwards, list),
        json!({"return": {"entries": entries}, "entries": entries})
    );
    let remove = r#"{"execute":"remove_hostfwd","arguments":{"id":1}}"#;
    assert_eq!(ask(&forwards, remove), json!({"return": {}}));
    assert_eq!(ask(&forwards, list)["entries"], json!([second]));
}

#[test]
fn bad_requests_have_the_texts_that_callers_search() {
    let long = format!("\"{}\"", "x".repeat(4096));
    let add = r#"{"execute":"add_hostfwd","arguments":"#;
    let rows = [
        ("{", "bad request: cannot parse JSON"),
        ("", "bad request: cannot parse JSON"),
        ("{}", "bad request: no execute found"),
        (r#"{"execute":"x"}"#, "bad request: unknown execute"),
        (
            &format!("{add}{{}}}}"),
            "bad request: add_hostfwd: bad arguments.proto",
        ),
        (
            &format!("{add}{{\"proto\":\"sctp\"}}}}"),
            "bad request: add_hostfwd: bad arguments.proto",
        ),
        (
            &format!("{add}{{\"proto\":\"tcp\",\"host_port\":70000,\"guest_port\":1}}}}"),
            "bad request: add_hostfwd: bad arguments.host_port",
        ),
        (
            &format!("{add}{{\"proto\":\"tcp\",\"host_addr\":\"x\",\"host_port\":1}}}}"),
            "bad request: add_hostfwd: bad arguments.host_addr",
        ),
        (
            r#"{"execute":"remove_hostfwd","arguments":{"id":7}}"#,
            "bad request: remove_hostfwd: bad arguments.id",
        ),
        (&long, "bad request: too large message"),
    ];
    for (request, text) in rows {
        let answer = ask(&Recorded::default(), request);
        assert_eq!(answer, json!({"error": {"desc": text}}), "{request}");
    }
}

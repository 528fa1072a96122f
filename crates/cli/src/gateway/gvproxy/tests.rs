//! Tests of the command line.

use std::ffi::OsString;
use std::net::Ipv4Addr;

use super::options::{Command, Options, parse};

fn options(line: &str) -> Options {
    match parse(line.split_whitespace().map(OsString::from)) {
        Ok(Command::Serve(options)) => *options,
        other => panic!("{line}: {other:?}"),
    }
}

fn error(line: &str) -> String {
    let parsed = parse(line.split_whitespace().map(OsString::from));
    format!("{:#}", parsed.unwrap_err())
}

#[test]
fn podmans_command_line() {
    let options = options(
        "-mtu 1500 -ssh-port 39867 -listen-qemu unix:///run/user/1000/podman/qmp.sock \
         -pid-file /run/user/1000/podman/gvproxy.pid -listen unix:///run/user/1000/podman/api.sock",
    );
    assert_eq!(options.listen.len(), 1);
    assert_eq!(options.config.mtu, 1500);
    let forwards = options.forwards();
    assert_eq!(forwards[0].local, "127.0.0.1:39867");
    assert_eq!(forwards[0].remote, "192.168.127.2:22");
    let v4 = options.config.ipv4.unwrap();
    let range = v4.dhcp.unwrap();
    let last = [v4.gateway, v4.guest, range.first, range.last].map(|ip| ip.octets()[3]);
    assert_eq!(last, [1, 2, 2, 253]);
    assert_eq!(options.config.mac[5], 0xdd);
    assert_eq!(
        options.config.mappings[0].guest,
        Ipv4Addr::new(192, 168, 127, 254)
    );
    let zones = &options.config.dns.zones;
    assert_eq!(
        (zones[0].name.as_str(), zones[0].records.len()),
        ("containers.internal", 2)
    );
}

#[test]
fn the_network_and_its_addresses_can_be_chosen() {
    let options = options(
        "-listen-vfkit=unixgram:///tmp/x --subnet=10.1.0.0/16 -deviceIP 10.1.2.3 -ssh-port=-1",
    );
    let network = options.network;
    assert_eq!(network.gateway, Ipv4Addr::new(10, 1, 0, 1));
    assert_eq!(network.guest, Ipv4Addr::new(10, 1, 2, 3));
    assert_eq!(network.host, Ipv4Addr::new(10, 1, 255, 254));
    assert!(options.forwards().is_empty());
}

#[test]
fn link_local_addresses_are_opened_by_a_flag() {
    let is_open = |line: &str| options(line).config.link_local_destinations;
    assert!(!is_open("-listen unix:///x"));
    assert!(is_open("-listen unix:///x -ec2-metadata-access"));
    assert!(!is_open("-listen unix:///x -ec2-metadata-access=false"));
}

#[test]
fn errors_name_the_value_and_the_remedy() {
    for (line, text) in [
        ("", "-listen-qemu"),
        ("-listen vsock://:1024", "vsock are not supported"),
        ("-listen-qemu unixgram:///x", "-listen-qemu needs a stream"),
        ("-listen-vfkit unix:///x", "write unixgram:///PATH"),
        ("-listen-vhost-user tcp://127.0.0.1:1", "write unix:///PATH"),
        ("-listen-bess unix:///x", "write unixpacket:///PATH"),
        ("-listen unix://", "it has no path"),
        ("-listen x", "it is not a URL"),
        ("-listen-stdio accept -listen-qemu unix:///x", "give one"),
        ("-listen unix:///x -forward-sock /y", "need SSH"),
        ("-listen unix:///x -ssh-port 80", "between 1024 and 65535"),
        (
            "-listen unix:///x -subnet 10.0.0.0/31",
            "write e.g. 192.168.127.0/24",
        ),
        (
            "-listen unix:///x -gatewayIP 10.0.0.1",
            "10.0.0.1 is not in the network",
        ),
        (
            "-listen unix:///x -hostIP 192.168.127.2",
            "the address of two hosts",
        ),
        ("-listen unix:///x -mtu 10", "-mtu 10"),
        (
            "-listen unix:///x -notification tcp://127.0.0.1:1",
            "write unix:///PATH",
        ),
        ("-x", "flag provided but not defined: -x"),
    ] {
        let error = error(line);
        assert!(error.contains(text), "{line}: {error}");
    }
}

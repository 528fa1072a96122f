//! The texts of `--help` and `--version`, in which callers search for options.

pub(super) const USAGE: &str = "usage: slirp4netns [OPTION]... PID|PATH|FD [TAPNAME]";

/// The version of slirp4netns whose command line and API this program implements.
const VERSION: &str = "1.3.2";

const OPTIONS: &[(&str, &str)] = &[
    (
        "-c, --configure",
        "set up the interface: address, route, MTU",
    ),
    ("-e, --exit-fd=FD", "end when FD hangs up"),
    ("-r, --ready-fd=FD", "write 1 to FD when ready"),
    (
        "-m, --mtu=MTU",
        "size of the largest packet, at most 65521 [1500]",
    ),
    ("-6, --enable-ipv6", "serve IPv6, too: fd00::/64"),
    (
        "-a, --api-socket=PATH",
        "serve the JSON API on this Unix socket",
    ),
    ("--cidr=CIDR", "the guest's IPv4 network [10.0.2.0/24]"),
    (
        "--disable-host-loopback",
        "no access to 127.0.0.1 of the host",
    ),
    (
        "--netns-type=TYPE",
        "the argument is a path, a pid or a tapfd [pid]",
    ),
    ("--userns-path=PATH", "the user namespace to enter"),
    ("--enable-sandbox", "own mount namespace, no capabilities"),
    ("--enable-seccomp", "restrict the system calls"),
    (
        "--outbound-addr=IPv4",
        "source address or interface of IPv4 sockets",
    ),
    (
        "--outbound-addr6=IPv6",
        "source address or interface of IPv6 sockets",
    ),
    ("--disable-dns", "no DNS at address 3 of the network"),
    ("--macaddress=MAC", "the guest's Ethernet address, with -c"),
    (
        "--target-type=TYPE",
        "netns, or bess: a SOCK_SEQPACKET socket [netns]",
    ),
    (
        "--memory=SIZE",
        "memory of the gateway, e.g. 64M [256M, or a quarter of all]",
    ),
    ("-h, --help", "print this text"),
    ("-v, --version", "print the version"),
];

/// Returns the help text.
pub(super) fn text() -> String {
    let mut text = format!("{USAGE}\nNetwork of a namespace through sockets of the host.\n\n");
    for (option, meaning) in OPTIONS {
        let indent = if option.starts_with("--") { "    " } else { "" };
        text += &line(indent, option, meaning);
    }
    text
}

fn line(indent: &str, option: &str, meaning: &str) -> String {
    let option = format!("{indent}{option}");
    format!("{option:30} {meaning}\n")
}

/// Returns the version text.
pub(super) fn version() -> String {
    format!(
        "slirp4netns version {VERSION}\n\
         commit: fullsend {}\n\
         libslirp: none (fullsend)\n\
         SLIRP_CONFIG_VERSION_MAX: 4\n\
         libseccomp: none (seccompiler)\n",
        env!("CARGO_PKG_VERSION")
    )
}

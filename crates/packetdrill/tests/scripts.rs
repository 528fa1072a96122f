//! Runs the project's own scripts through the library, as packetdrill does.

mod common;

use std::fs;
use std::path::Path;

use fullsend_script::{Library, families, parse, run_through};

/// Scripts with each kind of call and timer, including calls that wait.
const SCRIPTS: [&str; 16] = [
    "ack/dsack.pkt",
    "calls/blocking.pkt",
    "calls/inq.pkt",
    "calls/peek_and_trunc.pkt",
    "close/linger_zero.pkt",
    "ecn/negotiated.pkt",
    "handshake/client.pkt",
    "handshake/syncnt.pkt",
    "hostile/too_big_before_first_ack.pkt",
    "nagle/msg_more.pkt",
    "options/user_timeout.pkt",
    "path/fragmentation_needed.pkt",
    "recovery/prr.pkt",
    "timers/keepalive.pkt",
    "udp/closed_port.pkt",
    "udp/connected.pkt",
];

fn play(library: &Library, text: &str, name: &str) {
    let script = parse(text).unwrap_or_else(|error| panic!("{name}:{error}"));
    for family in families(&script).unwrap() {
        match run_through(library, &script, family) {
            Ok(report) => assert!(report.skipped.is_empty(), "{name}: {:?}", report.skipped),
            Err(failure) => panic!("{name}:{failure}"),
        }
    }
}

#[test]
fn scripts_pass_through_the_library() {
    let _guard = common::lock_library();
    let library = Library::open(&common::library(), None).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../script/scripts");
    for name in SCRIPTS {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        play(&library, &text, name);
    }
}

/// The last call waits for a timer while nothing in the script lets time pass. So do the call
/// before the next one, and a call without an end.
const WAITS: &str = "\
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 poll([{fd=3, events=POLLIN, revents=0}], 1, 300) = 0
+.3...1.3 poll([{fd=3, events=POLLIN, revents=0}], 1, 1000) = 0
+1.1 setsockopt(3, SOL_SOCKET, SO_RCVTIMEO, {tv_sec=2, tv_usec=0}, 16) = 0
+0...2 accept(3, ..., ...) = -1 EAGAIN (Resource temporarily unavailable)
";

#[test]
fn time_advances_while_packetdrill_waits_for_a_call() {
    let _guard = common::lock_library();
    let library = Library::open(&common::library(), None).unwrap();
    play(&library, WAITS, "a script that waits");
}

/// The kernel reports copies in the error queue; with offloads off, segments are single.
const LINK: &str = "\
`ethtool -K tun0 tso off gso off`
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_SOCKET, SO_ZEROCOPY, [1], 4) = 0
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000,nop,wscale 7>
+0 > S. 0:0(0) ack 1 <...>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
+0 send(4, ..., 2000, MSG_ZEROCOPY) = 2000
+0 > . 1:1001(1000) ack 1
+0 > P. 1001:2001(1000) ack 1
+.1 < . 1:1(0) ack 2001 win 257
+0 recvmsg(4, {msg_name(...)=..., msg_iov(1)=[{...,0}], msg_flags=MSG_ERRQUEUE,
    msg_control=[{cmsg_level=CMSG_LEVEL_IP, cmsg_type=CMSG_TYPE_RECVERR,
      cmsg_data={ee_errno=0, ee_origin=SO_EE_ORIGIN_ZEROCOPY, ee_type=0,
        ee_code=SO_EE_CODE_ZEROCOPY_COPIED, ee_info=0, ee_data=0}}]}, MSG_ERRQUEUE) = 0
";

#[test]
fn the_link_can_be_switched_and_sends_are_copied() {
    let _guard = common::lock_library();
    let library = Library::open(&common::library(), None).unwrap();
    play(&library, LINK, "a script about the link");
}

#[test]
fn an_invalid_library_is_rejected() {
    let error = |path: &Path| Library::open(path, None).err().unwrap();
    assert!(error(Path::new("/nowhere.so")).contains("/nowhere.so"));
    let libc = error(Path::new("libc.so.6"));
    assert!(libc.contains("packetdrill_interface_init"), "{libc}");
}

//! A gateway without a descriptor for a connection, in virtual time. The limit is that of the process, so
//! that this file has one test.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fullsend::{Stack, TcpStream};
use fullsend_device::{FrameLink, Framing};
use fullsend_gateway::{Config, Gateway};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_syn_without_a_descriptor_is_repeated_and_succeeds_later() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 512, hard).unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    let link = |socket: UnixStream| FrameLink::connected(socket.into(), Framing::Qemu, 1500);
    let guest = Stack::builder()
        .device(Box::new(link(here).unwrap()))
        .mac([2, 0, 0, 0, 0, 9])
        .address("10.0.2.100/24")
        .route("0.0.0.0/0", Some([10, 0, 2, 2].into()))
        .build()
        .unwrap();
    let config = Config {
        mtu: 1500,
        ..Config::default()
    };
    let gateway = Gateway::new(config, Box::new(link(there).unwrap())).unwrap();
    let handle = gateway.handle();
    tokio::spawn(gateway.run());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();

    let mut used_up = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        used_up.push(file);
    }
    let connecting = tokio::spawn(async move {
        let stream = TcpStream::connect(&guest, ([10, 0, 2, 2], port)).await;
        stream.map(|stream| (stream, guest))
    });
    let dropped = async {
        while handle.counters().tcp_dropped < 2 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LIMIT, dropped)
        .await
        .expect("both SYNs are dropped");
    assert!(!connecting.is_finished(), "the guest got an answer");
    drop(used_up);
    let connected = timeout(LIMIT, connecting).await.expect("a further SYN");
    connected.unwrap().unwrap();
    let counters = handle.counters();
    assert_eq!((counters.tcp_refused, counters.tcp_unreachable), (0, 0));
}

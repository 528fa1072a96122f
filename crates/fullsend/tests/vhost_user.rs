//! A Linux guest in QEMU exchanges data with a stack over vhost-user.

mod common;

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fullsend::{Stack, StatsHandle, TcpListener, VhostUser, VhostUserBuilder, VhostUserStats};
use fullsend_testvm::{GuestImage, VmBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

/// Bytes of each transfer.
const LEN: usize = 4 << 20;

/// Sends `LEN` bytes to each connection.
const DOWNLOAD: u16 = 7000;
/// Receives `LEN` bytes from each connection.
const UPLOAD: u16 = 7001;

/// Options of a socket: QEMU connects, and again after an end; or it listens.
const RECONNECTS: &str = "reconnect=1";
const LISTENS: &str = "server=on,wait=off";

/// The card and its addresses. Busybox has no option for an address without duplicate address detection.
const CONFIGURE: &str = "\
echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set eth0 up
ip addr add 10.9.0.1/24 dev eth0
ip addr add fd09::1/64 dev eth0
";

/// Bytes that do not repeat within a super-segment.
fn data() -> Vec<u8> {
    let words = (0..LEN as u32 / 4).map(|i| i.wrapping_mul(2_654_435_761).rotate_left(7));
    words.flat_map(u32::to_le_bytes).collect()
}

fn sha256(data: &[u8]) -> String {
    let mut process = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum runs");
    let mut input = process.stdin.take().expect("a pipe");
    input.write_all(data).expect("sha256sum reads");
    drop(input);
    let output = process.wait_with_output().expect("sha256sum ends").stdout;
    let text = String::from_utf8(output).expect("text");
    text.split_whitespace().next().expect("a sum").to_owned()
}

fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("fullsend-{name}-{}.sock", std::process::id()))
}

/// Returns QEMU's arguments for a card whose socket has these options.
fn qemu_args(path: &Path, options: &str) -> [String; 6] {
    // QEMU 7.2 crashes with MSI-X if it emulates the processor.
    qemu_args_with(path, options, ("", "vectors=0"))
}

/// Returns QEMU's arguments for a card whose socket, network back end and card have these options.
fn qemu_args_with(path: &Path, options: &str, (netdev, card): (&str, &str)) -> [String; 6] {
    let path = path.display();
    [
        "-chardev".to_owned(),
        format!("socket,id=vm0,path={path},{options}"),
        "-netdev".to_owned(),
        format!("vhost-user,id=net0,chardev=vm0{netdev}"),
        "-device".to_owned(),
        format!("virtio-net-pci,netdev=net0,{card}"),
    ]
}

/// A stack that serves a guest, and the sums of what it received.
struct Server {
    stack: Stack,
    /// Those of the device of each shard.
    counters: Vec<StatsHandle>,
    received: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Must be called within a runtime.
    fn start(device: VhostUserBuilder, shards: usize) -> Self {
        let devices = device.open_queues(shards).expect("a device");
        let counters = devices.iter().map(VhostUser::stats_handle).collect();
        let queues = devices.into_iter().map(|device| Box::new(device) as _);
        let stack = Stack::builder()
            .device_queues(queues.collect())
            .shards(shards)
            .router(false)
            .address("10.9.0.2/24")
            .address("fd09::2/64")
            .build()
            .expect("a stack");
        let server = Self {
            stack,
            counters,
            received: Arc::default(),
        };
        for address in ["10.9.0.2", "[fd09::2]"] {
            server.serve(address);
        }
        server
    }

    fn serve(&self, address: &str) {
        let bind = |port| TcpListener::bind(&self.stack, format!("{address}:{port}"));
        let (download, upload) = (bind(DOWNLOAD), bind(UPLOAD));
        let (download, upload) = (download.expect("a listener"), upload.expect("a listener"));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = download.accept().await {
                tokio::spawn(async move {
                    stream.write_all(&data()).await?;
                    stream.shutdown().await?;
                    stream.read_to_end(&mut Vec::new()).await
                });
            }
        });
        let received = self.received.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = upload.accept().await {
                let mut data = vec![0; LEN];
                if stream.read_exact(&mut data).await.is_ok() {
                    received.lock().expect("no panic").push(sha256(&data));
                }
            }
        });
    }
}

/// Boots a guest, waits for its lines and ends it; all of them block.
async fn with_vm<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_transfers_data_both_ways() {
    let image = match GuestImage::find() {
        Ok(image) => Arc::new(image),
        Err(missing) => return println!("skipped: {missing}"),
    };
    let path = socket_path("vhost");
    let server = Server::start(VhostUser::listen(&path), 1);
    let (received, counters) = (server.received.clone(), server.counters[0].clone());
    with_vm(move || {
        let mut script = CONFIGURE.to_owned();
        for address in ["10.9.0.2", "fd09::2"] {
            let _ = write!(
                script,
                "ping -c 3 {address} > /tmp/ping; echo @@ ping $(grep -c ttl= /tmp/ping)
                nc {address} {DOWNLOAD} < /dev/console > /tmp/got
                echo @@ down $(sha256sum < /tmp/got)
                dd if=/dev/urandom of=/tmp/sent bs=65536 count={} 2> /dev/null
                nc {address} {UPLOAD} < /tmp/sent
                echo @@ up $(sha256sum < /tmp/sent)
                ",
                LEN / 65536
            );
        }
        let mut vm = VmBuilder::new(&image)
            .qemu_args(qemu_args(&path, RECONNECTS))
            .script(&script)
            .boot()
            .expect("QEMU starts");
        let expected = sha256(&data());
        let mut next = |marker: &str| {
            let line = vm.wait_for(marker);
            line.unwrap_or_else(|error| panic!("{error}\n{:?}", counters.get()))
        };
        for round in 0..2 {
            assert_eq!(next("@@ ping"), "@@ ping 3");
            assert_eq!(next("@@ down"), format!("@@ down {expected} -"));
            let sent = next("@@ up");
            let received = received.lock().expect("no panic");
            assert_eq!(sent, format!("@@ up {} -", received[round]));
        }
        drop(vm);
        // The next guest is served by the same device and the same listeners.
        let script = format!(
            "{CONFIGURE} nc 10.9.0.2 {DOWNLOAD} < /dev/console > /tmp/got
            echo @@ down $(sha256sum < /tmp/got)"
        );
        let mut vm = VmBuilder::new(&image)
            .qemu_args(qemu_args(&path, RECONNECTS))
            .script(&script)
            .boot()
            .expect("QEMU starts");
        let down = vm.wait_for("@@ down");
        let down = down.unwrap_or_else(|error| panic!("{error}\n{:?}", counters.get()));
        assert_eq!(down, format!("@@ down {expected} -"));
        let counters = counters.get();
        assert_eq!(counters.connections, 2);
        let faults = counters.rx_malformed + counters.ring_errors + counters.protocol_errors;
        assert_eq!(faults, 0, "{counters:?}");
        // Super-segments: fewer packets than MTUs.
        assert!(
            counters.tx_packets < 3 * (LEN / 1500) as u64,
            "{counters:?}"
        );
    })
    .await;
}

/// The device connects to QEMU, and the device of the next stack connects to the same QEMU.
#[test]
fn a_guest_whose_monitor_listens_is_served_by_one_stack_after_another() {
    let image = match GuestImage::find() {
        Ok(image) => image,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let path = socket_path("vhost-client");
    let script = format!(
        "{CONFIGURE} for address in 10.9.0.2 fd09::2; do
            until ping -c 1 $address > /tmp/ping; do true; done
            nc $address {DOWNLOAD} < /dev/null > /tmp/got
            echo @@ down $(sha256sum < /tmp/got)
            read -r line
        done"
    );
    let mut vm = VmBuilder::new(&image)
        .qemu_args(qemu_args(&path, LISTENS))
        .script(&script)
        .boot()
        .expect("QEMU starts");
    let expected = format!("@@ down {} -", sha256(&data()));
    for _ in 0..2 {
        let runtime = Runtime::new().expect("a runtime");
        let context = runtime.enter();
        let server = Server::start(VhostUser::connect_to(&path), 1);
        let down = vm.wait_for("@@ down");
        let counters = server.counters[0].get();
        assert_eq!(
            down.unwrap_or_else(|error| panic!("{error}\n{counters:?}")),
            expected
        );
        assert_eq!((counters.connections, counters.protocol_errors), (1, 0));
        drop(context);
        // Ends the device.
        drop(runtime);
        vm.send_line("next").expect("QEMU runs");
    }
    let _ = std::fs::remove_file(path);
}

/// A guest with two processors uses both pairs of queues, and one whose card has a single pair reaches both
/// shards through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_uses_a_pair_of_queues_for_each_shard() {
    let image = match GuestImage::find() {
        Ok(image) => Arc::new(image),
        Err(missing) => return println!("skipped: {missing}"),
    };
    let path = socket_path("vhost-pairs");
    let server = Server::start(VhostUser::listen(&path), 2);
    let (received, counters) = (server.received.clone(), server.counters.clone());
    let stack = server.stack.clone();
    with_vm(move || {
        // Four connections in each direction from each processor, which has a transmit queue of its own.
        let script = format!(
            "{CONFIGURE}
            echo @@ queues $(ls /sys/class/net/eth0/queues | wc -l)
            dd if=/dev/urandom of=/tmp/sent bs=65536 count={} 2> /dev/null
            for address in 10.9.0.2 fd09::2; do
                for mask in 1 2 1 2; do
                    (taskset $mask nc $address {DOWNLOAD} < /dev/console | sha256sum >> /tmp/sums) &
                    taskset $mask nc $address {UPLOAD} < /tmp/sent &
                done
                wait
            done
            echo @@ down $(sort /tmp/sums | uniq -c)
            echo @@ up $(sha256sum < /tmp/sent)",
            LEN / 65536
        );
        let all = |get: fn(&VhostUserStats) -> u64| -> Vec<u64> {
            counters
                .iter()
                .map(|counters| get(&counters.get()))
                .collect()
        };
        for (netdev, card, queues) in [
            (",queues=2", "mq=on,vectors=0", "@@ queues 4"),
            ("", "vectors=0", "@@ queues 2"),
        ] {
            received.lock().expect("no panic").clear();
            let before = [all(|stats| stats.rx_packets), all(|stats| stats.tx_packets)];
            let mut vm = VmBuilder::new(&image)
                .cpus(2)
                .qemu_args(qemu_args_with(&path, RECONNECTS, (netdev, card)))
                .script(&script)
                .boot()
                .expect("QEMU starts");
            let mut next = |marker: &str| {
                let line = vm.wait_for(marker);
                line.unwrap_or_else(|error| panic!("{error}\n{counters:?}"))
            };
            assert_eq!(next("@@ queues"), queues);
            let expected = format!("@@ down 8 {} -", sha256(&data()));
            assert_eq!(next("@@ down"), expected);
            let sum = next("@@ up").replace("@@ up ", "").replace(" -", "");
            // The server may still compute the sum of the last one.
            for _ in 0..6000 {
                if received.lock().expect("no panic").len() == 8 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(*received.lock().expect("no panic"), vec![sum; 8]);
            drop(vm);
            let after = [all(|stats| stats.rx_packets), all(|stats| stats.tx_packets)];
            let counts = [0, 1].map(|n| [0, 1].map(|shard| after[n][shard] - before[n][shard]));
            let [[_, rx], tx] = counts;
            // The second device receives from a queue of its own only.
            assert_eq!(rx > 100, !netdev.is_empty(), "{counts:?}");
            // The hash of a connection selects its shard. A shard has none of the 16 in one of 32,768 runs. For
            // one it sends a SYN-ACK, an ACK and a FIN at least.
            assert!(tx.iter().all(|&tx| tx >= 3), "{counts:?}");
        }
        let faults = |stats: &VhostUserStats| {
            stats.rx_malformed + stats.rx_disabled + stats.ring_errors + stats.protocol_errors
        };
        assert_eq!(all(faults), [0, 0], "{counters:?}");
        assert!(common::counter(&stack, "SoftnetReceivedRps") > 0);
    })
    .await;
}

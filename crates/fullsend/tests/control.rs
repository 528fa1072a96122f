//! Tests of the control socket: its replies, and the limits on faulty clients.

mod common;

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{connected, pair, threads};
use fullsend::control::{CaptureRequest, MAX_CLIENTS, MAX_LINE, Reply, Request, SocketView};
use fullsend::{Pair, Stack, TcpStream};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// A directory that is removed when the test ends.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let name = format!("fullsend-control-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    async fn to(path: &Path) -> Self {
        loop {
            match UnixStream::connect(path).await {
                Ok(stream) => return Self(BufReader::new(stream)),
                // The backlog is full: the server has not run yet.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Returns the next reply, or `None` at the end of the connection.
    async fn reply(&mut self) -> Option<Reply> {
        let mut line = Vec::new();
        let n = self.0.read_until(b'\n', &mut line).await.unwrap_or(0);
        (n > 0).then(|| Reply::parse(&line).unwrap())
    }

    async fn send_request(&mut self, request: Request) -> Reply {
        self.write(request.to_line().as_bytes()).await;
        self.reply().await.expect("a reply")
    }

    async fn ok(&mut self, request: Request) -> Value {
        match self.send_request(request).await {
            Reply::Ok(value) => value,
            other => panic!("{other:?}"),
        }
    }

    async fn error(&mut self, request: Request) -> String {
        match self.send_request(request).await {
            Reply::Error(text) => text,
            other => panic!("{other:?}"),
        }
    }

    async fn sockets(&mut self) -> Vec<SocketView> {
        self.write(Request::Sockets.to_line().as_bytes()).await;
        let mut out = Vec::new();
        loop {
            match self.reply().await.unwrap() {
                Reply::Item(item) => out.push(serde_json::from_value(item).unwrap()),
                Reply::End(count) => {
                    assert_eq!(count, json!(out.len()));
                    return out;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn sysctl(key: &str, value: Option<&str>) -> Request {
    Request::Sysctl {
        key: Some(key.into()),
        value: value.map(str::to_owned),
    }
}

async fn scene(dir: &Dir) -> (Stack, Stack, TcpStream, TcpStream, Client) {
    let (a, b) = pair();
    a.control_socket(dir.path("a")).unwrap();
    let (client, server) = connected(&a, &b).await;
    let control = Client::to(&dir.path("a")).await;
    (a, b, client, server, control)
}

#[test]
fn counters_sockets_links_tunables_and_totals() {
    threads(async {
        let dir = Dir::new("look");
        let (a, _b, mut client, _server, mut control) = scene(&dir).await;
        client.write_all(&[7; 1000]).await.unwrap();
        client.flushed().await.unwrap();

        let counters = control.ok(Request::Counters).await;
        let of = |name: &str| {
            let list = counters["counters"].as_array().unwrap();
            list.iter().find(|c| c[0] == name).map(|c| c[1].as_u64())
        };
        for (name, value) in a.counters() {
            if name == "TcpActiveOpens" {
                assert_eq!((value, of(name)), (1, Some(Some(1))));
            }
        }
        let sockets = control.sockets().await;
        assert_eq!(sockets.len(), 1);
        let socket = &sockets[0];
        assert_eq!((&*socket.state, &*socket.owner), ("ESTAB", "user"));
        assert_eq!((socket.recv_q, socket.send_q), (0, 0));
        let info = socket.tcp_info.as_ref().unwrap();
        assert_eq!(info["tcpi_bytes_acked"], json!(1000));
        let why = socket.why.as_ref().unwrap();
        assert_eq!(why.send_size, [(512, 1)]);

        assert_eq!(control.ok(Request::Sockstat).await["inuse"], json!(1));
        let links = control.ok(Request::Links).await;
        assert!(links[0]["tx_bytes"].as_u64().unwrap() > 1000);
        let addresses = control.ok(Request::Addresses).await;
        let states: Vec<_> = addresses.as_array().unwrap().iter().collect();
        let shown =
            |address: &str| json!({"link": "link0", "address": address, "state": "preferred"});
        assert_eq!(states, [&shown("10.0.0.1/24"), &shown("fd00::1/64")]);
        let qdisc = control.ok(Request::Qdisc).await;
        assert!(
            qdisc[0]["text"]
                .as_str()
                .unwrap()
                .starts_with("qdisc noqueue")
        );

        let all = control
            .ok(Request::Sysctl {
                key: None,
                value: None,
            })
            .await;
        assert!(all.as_array().unwrap().len() > 20);
        let set = control.ok(sysctl("tcp_autocorking", Some("0"))).await;
        assert_eq!(set, json!([["tcp_autocorking", "0"]]));
        assert_eq!(a.sysctl("net.ipv4.tcp_autocorking").unwrap(), "0");
        let error = control
            .error(sysctl("tcp_autocorking", Some("maybe")))
            .await;
        assert!(
            error.contains("maybe") && error.contains("0 (off)"),
            "{error}"
        );
        let error = control.error(sysctl("tcp_sax", None)).await;
        assert!(error.contains("tcp_sack"), "{error}");
    });
}

#[test]
fn options_of_a_live_flow_by_id_and_by_addresses() {
    threads(async {
        let dir = Dir::new("set");
        let (_a, _b, client, _server, mut control) = scene(&dir).await;
        let id = control.sockets().await[0].id.clone();
        let addresses = format!(
            "{}-{}",
            client.local_addr().unwrap(),
            client.peer_addr().unwrap()
        );
        let set = |flow: &str, option: &str, value: &str| Request::Set {
            flow: flow.into(),
            option: option.into(),
            value: value.into(),
        };
        control.ok(set(&id, "TCP_NODELAY", "1")).await;
        control
            .ok(set(&format!("sk:{id}"), "TCP_CONGESTION", "reno"))
            .await;
        control
            .ok(set(&addresses, "SO_MAX_PACING_RATE", "125000"))
            .await;
        let socket = &control.sockets().await[0];
        assert!(socket.nodelay);
        assert_eq!(socket.congestion.as_deref(), Some("reno"));
        assert_eq!(
            socket.tcp_info.as_ref().unwrap()["tcpi_max_pacing_rate"],
            json!(125_000)
        );

        for (request, texts) in [
            (
                set("here", "TCP_NODELAY", "1"),
                ["here", "LOCAL:PORT-PEER:PORT"],
            ),
            (set("ff000000", "TCP_NODELAY", "1"), ["ff000000", "ss"]),
            (
                set("10.0.0.1:1-10.0.0.2:2", "TCP_CORK", "1"),
                ["10.0.0.2:2", "ss"],
            ),
            (
                set("10.0.0.1:1-10.0.0.2", "TCP_CORK", "1"),
                ["10.0.0.2", "with a port"],
            ),
            (set(&id, "TCP_NODELAI", "1"), ["TCP_NODELAI", "TCP_NODELAY"]),
            (set(&id, "TCP_SYNCNT", "0"), ["TCP_SYNCNT", "0"]),
            (
                set(&id, "TCP_CONGESTION", "vegas"),
                ["vegas", "TCP_CONGESTION"],
            ),
        ] {
            let error = control.error(request).await;
            assert!(texts.iter().all(|text| error.contains(text)), "{error}");
        }
    });
}

#[test]
fn malformed_requests_are_answered_and_long_ones_end_the_connection() {
    threads(async {
        let dir = Dir::new("bad");
        let (_a, _b, _client, _server, mut control) = scene(&dir).await;
        for line in [
            "\n",
            "null\n",
            "{\"v\":9}\n",
            "\u{0}\n",
            "{\"v\":1,\"cmd\":7}\n",
        ] {
            control.write(line.as_bytes()).await;
            assert!(
                matches!(control.reply().await, Some(Reply::Error(_))),
                "{line:?}"
            );
        }
        control.write(&[0xff, 0xfe, b'\n']).await;
        assert!(matches!(control.reply().await, Some(Reply::Error(_))));
        // Two requests at once, then one in pieces.
        let two = Request::Counters.to_line().repeat(2);
        control.write(two.as_bytes()).await;
        for byte in Request::Sockstat.to_line().bytes() {
            control.write(&[byte]).await;
        }
        for _ in 0..3 {
            assert!(matches!(control.reply().await, Some(Reply::Ok(_))));
        }
        let error = control.error(Request::Stop).await;
        assert!(error.contains("no capture"), "{error}");
        control.write(&vec![b'x'; MAX_LINE + 1]).await;
        assert!(matches!(control.reply().await, Some(Reply::Error(text)) if text.contains("4096")));
        assert_eq!(control.reply().await, None);
    });
}

#[test]
fn one_client_too_many_gets_an_error() {
    threads(async {
        let dir = Dir::new("many");
        let (_a, _b, _client, _server, first) = scene(&dir).await;
        let mut clients = vec![first];
        while clients.len() < MAX_CLIENTS {
            clients.push(Client::to(&dir.path("a")).await);
        }
        for client in &mut clients {
            client.ok(Request::Sockstat).await;
        }
        let mut late = Client::to(&dir.path("a")).await;
        assert!(matches!(late.reply().await, Some(Reply::Error(text)) if text.contains("64")));
        drop(clients.pop());
        // The server notices the disconnection later.
        loop {
            let mut next = Client::to(&dir.path("a")).await;
            let _ = next
                .0
                .write_all(Request::Sockstat.to_line().as_bytes())
                .await;
            if let Some(Reply::Ok(_)) = next.reply().await {
                break;
            }
        }
    });
}

#[test]
fn a_client_that_stops_reading_does_not_block_other_clients() {
    threads(async {
        let dir = Dir::new("stuck");
        let (_a, _b, mut client, mut server, mut control) = scene(&dir).await;
        // Its replies fill the socket, and the server waits for it.
        let mut stuck = Client::to(&dir.path("a")).await;
        let flood = Request::Counters.to_line().repeat(2000);
        let _ = tokio::time::timeout(
            Duration::from_millis(200),
            stuck.0.write_all(flood.as_bytes()),
        )
        .await;
        let data = common::pattern(1 << 20, 3);
        let (sent, mut got) = (data.clone(), vec![0; data.len()]);
        let write = tokio::spawn(async move { client.write_all(&sent).await.map(|()| client) });
        server.read_exact(&mut got).await.unwrap();
        assert!(got == data);
        drop(write.await.unwrap().unwrap());
        control.ok(Request::Counters).await;
    });
}

#[test]
fn the_socket_is_private_and_removed_with_its_stack() {
    threads(async {
        let dir = Dir::new("path");
        let (a, b) = pair();
        let (path, other) = (dir.path("a"), dir.path("b"));
        a.control_socket(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A socket in use is not replaced, nor is a file of another kind.
        let error = b.control_socket(&path).unwrap_err().to_string();
        assert!(error.contains("another stack listens"), "{error}");
        std::fs::write(dir.path("file"), "mine").unwrap();
        let error = b.control_socket(dir.path("file")).unwrap_err().to_string();
        assert!(error.contains("not a socket"), "{error}");
        let error = b
            .control_socket(dir.path("no/where"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no/where") && error.contains("directory"),
            "{error}"
        );
        // A stale socket is replaced; each of the two stacks of this process has its own.
        drop(std::os::unix::net::UnixListener::bind(&other).unwrap());
        assert!(other.exists());
        b.control_socket(&other).unwrap();
        assert!(Client::to(&path).await.sockets().await.is_empty());
        assert!(Client::to(&other).await.sockets().await.is_empty());

        a.shutdown().await.unwrap();
        assert!(!path.exists());
        assert!(other.exists());
        let mut late = Client::to(&other).await;
        drop((a, b));
        while late.reply().await.is_some() {}
        assert!(!other.exists());
    });
}

#[test]
fn a_capture_starts_stops_and_counts_packets() {
    threads(async {
        let dir = Dir::new("capture");
        let (_a, _b, mut client, _server, mut control) = scene(&dir).await;
        let start = Request::Capture(CaptureRequest {
            count: Some(4),
            snaplen: Some(60),
            ..CaptureRequest::default()
        });
        control.write(start.to_line().as_bytes()).await;
        let mut bytes = Vec::new();
        let mut writes = 0;
        let end = loop {
            match control.reply().await.unwrap() {
                Reply::Data(len) => {
                    let at = bytes.len();
                    bytes.resize(at + len as usize, 0);
                    control.0.read_exact(&mut bytes[at..]).await.unwrap();
                    if writes == 0 {
                        let mut second = Client::to(&dir.path("a")).await;
                        let error = second.error(start.clone()).await;
                        assert!(error.contains("is running"), "{error}");
                    }
                    if writes < 4 {
                        writes += 1;
                        client.write_all(&[1; 100]).await.unwrap();
                        client.flushed().await.unwrap();
                    }
                }
                Reply::End(end) => break end,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end, json!({"packets": 4, "dropped": 0}));
        // Blocks: section header, interface, four packets of up to 60 bytes, statistics.
        let mut kinds = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let word = |i: usize| u32::from_le_bytes(bytes[i..i + 4].try_into().unwrap());
            kinds.push(word(at));
            if word(at) == 6 {
                assert!(word(at + 20) <= 60 && word(at + 24) >= word(at + 20));
            }
            at += word(at + 4) as usize;
        }
        assert_eq!(kinds, [0x0a0d_0d0a, 1, 6, 6, 6, 6, 5]);

        // After a capture has ended the next one may start, and it ends with its client.
        control
            .write(
                Request::Capture(CaptureRequest::default())
                    .to_line()
                    .as_bytes(),
            )
            .await;
        assert!(matches!(control.reply().await, Some(Reply::Data(_))));
        drop(control);
        loop {
            let mut next = Client::to(&dir.path("a")).await;
            if let Reply::Data(_) = next.send_request(start.clone()).await {
                break;
            }
        }
    });
}

/// The ids of connections on several shards begin with the shard; counters, tunables and captures
/// are those of the whole stack.
#[test]
fn a_stack_of_several_shards_is_inspected_as_a_whole() {
    threads(async {
        let dir = Dir::new("shards");
        let config = Pair {
            shards: 3,
            ..Pair::default()
        };
        let (a, b) = Stack::pair(&config).unwrap();
        a.control_socket(dir.path("a")).unwrap();
        let mut connections = Vec::new();
        for _ in 0..6 {
            connections.push(connected(&a, &b).await);
        }
        let mut control = Client::to(&dir.path("a")).await;
        let sockets = control.sockets().await;
        assert_eq!(sockets.len(), 6);
        for (client, _) in &connections {
            let local = client.local_addr().unwrap().to_string();
            let socket = sockets.iter().find(|socket| socket.local == local).unwrap();
            assert!(socket.id.starts_with(&format!("{}.", client.shard())));
            let set = |flow: &str| Request::Set {
                flow: flow.to_owned(),
                option: "TCP_NODELAY".to_owned(),
                value: "1".to_owned(),
            };
            control.ok(set(&format!("sk:{}", socket.id))).await;
            assert!(client.nodelay().unwrap());
            let without_shard = socket.id.split_once('.').unwrap().1;
            let error = control.error(set(without_shard)).await;
            assert!(error.contains("has no shard"), "{error}");
            let error = control.error(set(&format!("7.{without_shard}"))).await;
            assert!(error.contains("not a connection"), "{error}");
        }
        let limit = sysctl("tcp_max_orphans", Some("100"));
        assert_eq!(control.ok(limit).await, json!([["tcp_max_orphans", "100"]]));
        let sockstat = control.ok(Request::Sockstat).await;
        assert_eq!(sockstat["inuse"], json!(6));
        assert_eq!(
            control.ok(Request::Qdisc).await.as_array().unwrap().len(),
            3
        );
    });
}

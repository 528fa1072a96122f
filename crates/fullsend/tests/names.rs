//! Names as addresses: resolvers, and DNS over the stack.

mod common;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{pair, paused};
use fullsend::{DnsResolver, Stack, TcpListener, TcpStream, UdpSocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::AbortHandle;

/// Returns the response to a query with the given flags and answers (type and data), which belong to
/// the name in question.
fn response(query: &[u8], flags: u16, answers: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2..4].copy_from_slice(&(0x8000 | flags).to_be_bytes());
    message[6..8].copy_from_slice(&(answers.len() as u16).to_be_bytes());
    for (kind, data) in answers {
        message.extend([0xc0, 12]);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1, 0, 0, 0, 60]);
        message.extend((data.len() as u16).to_be_bytes());
        message.extend(*data);
    }
    message
}

/// Returns the type of records that a query is for.
fn kind_of(query: &[u8]) -> u16 {
    let [.., high, low, _, _] = query else {
        panic!("{query:?}");
    };
    u16::from_be_bytes([*high, *low])
}

/// Answers queries with what `answers` returns for each, until it is aborted.
fn serve(
    stack: &Stack,
    mut answers: impl FnMut(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
) -> AbortHandle {
    let socket = UdpSocket::bind(stack, "[::]:53").unwrap();
    let server = async move {
        let mut buf = [0; 512];
        loop {
            let (len, from) = socket.recv_from(&mut buf).await.unwrap();
            for answer in answers(&buf[..len]) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    };
    tokio::spawn(server).abort_handle()
}

fn resolver() -> DnsResolver {
    DnsResolver::new(["10.0.0.2".parse().unwrap()])
}

async fn lookup(stack: &Stack, name: &str) -> std::io::Result<Vec<SocketAddr>> {
    Ok(stack.lookup_host((name, 7)).await?.collect())
}

const V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

#[test]
fn found_addresses_outlive_the_stack() {
    paused(async {
        let found = {
            let (stack, _peer) = pair();
            stack.lookup_host("localhost:7").await.unwrap()
        };
        assert!(found.eq(["127.0.0.1:7", "[::1]:7"].map(|addr| addr.parse().unwrap())));
    });
}

#[test]
fn names_are_resolved_over_the_stack_for_both_families() {
    paused(async {
        let (a, b) = pair();
        let server = serve(&b, |query| {
            vec![match kind_of(query) {
                1 => response(query, 0, &[(1, &[10, 0, 0, 2]), (1, &[10, 0, 0, 3])]),
                28 => response(query, 0, &[(28, &V6)]),
                kind => panic!("a query of type {kind}"),
            }]
        });
        a.set_resolver(resolver());
        let expected = ["[fd00::2]:7", "10.0.0.2:7", "10.0.0.3:7"];
        let expected: Vec<SocketAddr> = expected.iter().map(|addr| addr.parse().unwrap()).collect();
        assert_eq!(lookup(&a, "host.test").await.unwrap(), expected);
        // Only the second address has a listener.
        let listener = TcpListener::bind(&b, "10.0.0.2:7").unwrap();
        let stream = TcpStream::connect(&a, "host.test:7").await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), expected[1]);
        listener.accept().await.unwrap();
        let socket = UdpSocket::bind(&a, "[::]:0").unwrap();
        socket.connect(("host.test", 9)).await.unwrap();
        assert_eq!(socket.peer_addr().unwrap().ip(), expected[0].ip());
        server.abort();
    });
}

#[test]
fn literal_addresses_and_localhost_are_not_queried() {
    paused(async {
        let (a, b) = pair();
        let server = serve(&b, |_| panic!("a query"));
        a.set_resolver(resolver());
        let literal = lookup(&a, "fd00::9").await.unwrap();
        assert_eq!(literal, ["[fd00::9]:7".parse().unwrap()]);
        let _listener = TcpListener::bind(&a, "127.0.0.1:7").unwrap();
        for name in ["localhost", "localhost.", "app.localhost", "a.b.LocalHost."] {
            TcpStream::connect(&a, (name, 7)).await.unwrap();
        }
        let error = lookup(&a, "no..name").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        server.abort();
    });
}

#[test]
fn a_truncated_answer_is_fetched_over_tcp() {
    paused(async {
        let (a, b) = pair();
        let server = serve(&b, |query| vec![response(query, 0x0200, &[])]);
        let listener = TcpListener::bind(&b, "10.0.0.2:53").unwrap();
        let tcp = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut query = vec![0; stream.read_u16().await.unwrap().into()];
                stream.read_exact(&mut query).await.unwrap();
                let answers: Vec<(u16, &[u8])> = match kind_of(&query) {
                    1 => vec![(1, &[10, 9, 8, 7][..]); 100],
                    _ => Vec::new(),
                };
                let answer = response(&query, 0, &answers);
                stream.write_u16(answer.len() as u16).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        a.set_resolver(resolver());
        let found = lookup(&a, "many.test").await.unwrap();
        // The number of addresses is bounded.
        assert_eq!(found, vec!["10.9.8.7:7".parse().unwrap(); 64]);
        server.abort();
        tcp.abort();
    });
}

#[test]
fn answers_to_other_questions_are_ignored() {
    paused(async {
        let (a, b) = pair();
        let server = serve(&b, |query| {
            let address: &[u8] = if kind_of(query) == 1 {
                &[10, 6, 6, 6]
            } else {
                &V6
            };
            let forged = |change: fn(&mut Vec<u8>)| {
                let mut message = response(query, 0, &[(kind_of(query), address)]);
                change(&mut message);
                message
            };
            let mut all = vec![
                forged(|message| message[1] ^= 1),
                forged(|message| message[2] &= 0x7f),
                forged(|message| message[13] ^= 1),
                forged(|message| message.truncate(5)),
                forged(|message| message[5] = 2),
            ];
            // The name points to itself, so it is not the one in question.
            let mut looped = response(query, 0, &[(kind_of(query), address)]);
            let at = query.len();
            looped[at..at + 2].copy_from_slice(&[0xc0, at as u8]);
            all.push(looped);
            all
        });
        a.set_resolver(resolver());
        let error = lookup(&a, "host.test").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("host.test"), "{error}");
        server.abort();
    });
}

#[test]
fn the_next_server_is_queried_if_one_fails_and_a_name_that_does_not_exist_is_final() {
    paused(async {
        let (a, b) = pair();
        let queries = Arc::new(AtomicUsize::new(0));
        let counted = queries.clone();
        let server = serve(&b, move |query| {
            counted.fetch_add(1, Ordering::Relaxed);
            let exists = query[13] == b'h';
            vec![match (exists, kind_of(query)) {
                (false, _) => response(query, 3, &[]),
                (true, 1) => response(query, 0, &[(1, &[10, 0, 0, 9])]),
                (true, _) => response(query, 2, &[]),
            }]
        });
        // No host answers at the first server, no socket at the second.
        let servers = ["10.0.0.77:53", "10.0.0.2:54", "10.0.0.2:53"];
        let servers = servers.map(|server| server.parse::<SocketAddr>().unwrap());
        let resolver = DnsResolver::with_ports(servers)
            .timeout(Duration::from_secs(1))
            .attempts(1);
        a.set_resolver(resolver);
        let found = lookup(&a, "host.test").await.unwrap();
        assert_eq!(found[0].ip(), "10.0.0.9".parse::<IpAddr>().unwrap());
        assert_eq!(queries.swap(0, Ordering::Relaxed), 2);
        let error = lookup(&a, "none.test").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(queries.load(Ordering::Relaxed), 2);
        server.abort();
    });
}

/// Counts the warnings of this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Returns the addresses of a name that getaddrinfo knows without a query.
async fn lookup_with_the_system(stack: &Stack) -> Vec<SocketAddr> {
    lookup(stack, "127.1").await.unwrap()
}

#[test]
fn names_that_leave_the_stack_are_warned_of_unless_that_was_chosen() {
    let warnings = Warnings::default();
    let guard = tracing::subscriber::set_default(warnings.clone());
    let count = || warnings.0.load(Ordering::Relaxed);
    paused(async {
        let (a, _b) = pair();
        let localhost = ["127.0.0.1:7", "[::1]:7"].map(|addr| addr.parse().unwrap());
        assert_eq!(lookup(&a, "localhost").await.unwrap(), localhost);
        assert_eq!(lookup(&a, "10.0.0.9").await.unwrap().len(), 1);
        assert_eq!(count(), 0, "no resolver was needed");
        assert_eq!(lookup_with_the_system(&a).await, localhost[..1]);
        assert_eq!(lookup_with_the_system(&a).await, localhost[..1]);
        assert_eq!(count(), 1, "once for each stack");
        a.set_resolver(fullsend::SystemResolver);
        let (builder, _port) = Stack::builder().user_device(fullsend::UserDeviceConfig::ip(1500));
        let chosen = builder.resolver(fullsend::SystemResolver).build().unwrap();
        for stack in [&a, &chosen] {
            assert_eq!(lookup_with_the_system(stack).await, localhost[..1]);
        }
        assert_eq!(count(), 1);
    });
    drop(guard);
}

#[test]
fn the_dns_servers_of_the_builder_are_queried_over_the_stack() {
    paused(async {
        let (builder, mut port) =
            Stack::builder().user_device(fullsend::UserDeviceConfig::ip(1500));
        let stack = builder
            .address("10.9.0.2/24")
            .dns_server([10, 9, 0, 1])
            .build()
            .unwrap();
        let query = tokio::spawn(async move { lookup(&stack, "host.test").await });
        let mut buf = [0; 1500];
        let len = port.recv(&mut buf).await.unwrap();
        query.abort();
        let packet = &buf[..len];
        // UDP to port 53 of the server, with the name in its question.
        assert_eq!(packet[9], 17);
        assert_eq!(packet[16..20], [10, 9, 0, 1]);
        assert_eq!(packet[22..24], 53u16.to_be_bytes());
        assert!(packet.windows(6).any(|part| part == b"\x04host\x04"));
    });
}

#[test]
fn binding_accepts_names_where_it_may_wait_for_them() {
    paused(async {
        let (a, b) = pair();
        let server = serve(&a, |query| {
            vec![match kind_of(query) {
                1 => response(query, 0, &[(1, &[10, 9, 9, 9]), (1, &[10, 0, 0, 2])]),
                _ => response(query, 0, &[]),
            }]
        });
        b.set_resolver(DnsResolver::new(["10.0.0.1".parse().unwrap()]));
        let error = TcpListener::bind(&b, "host.test:80").unwrap_err();
        assert!(error.to_string().contains("bind_resolved"), "{error}");
        // The first address is not the stack's.
        let expected: SocketAddr = "10.0.0.2:80".parse().unwrap();
        let listener = TcpListener::bind_resolved(&b, "host.test:80").await;
        assert_eq!(listener.unwrap().local_addr().unwrap(), expected);
        let socket = UdpSocket::bind_resolved(&b, ("host.test", 80)).await;
        assert_eq!(socket.unwrap().local_addr().unwrap(), expected);
        server.abort();
    });
}

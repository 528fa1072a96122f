//! mini-redis: its server and its client, each with the sockets of its side.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{client_redis, run, server, server_redis};

/// A running server, which ends when `stop` is dropped and its clients have left.
struct Server {
    at: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(net: &server::Net) -> Self {
        let listener = net.listen((net.ips()[0], 0).into()).await.unwrap();
        let at = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            server_redis::server::run(listener, stopped).await.unwrap();
        });
        Self { at, stop, task }
    }

    async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap();
    }
}

#[test]
fn values_are_set_read_and_expire() {
    run(async |client, server| {
        let server = Server::start(&server).await;
        let mut redis = client_redis::connect(&client, server.at).await;
        assert_eq!(redis.get("hello").await.unwrap(), None);
        redis.set("hello", "world".into()).await.unwrap();
        assert_eq!(redis.get("hello").await.unwrap().unwrap(), "world");
        let large = Bytes::from(vec![b'x'; 3_000_000]);
        redis.set("large", large.clone()).await.unwrap();
        assert!(redis.get("large").await.unwrap().unwrap() == large);
        let expires = redis.set_expires("short", "x".into(), Duration::from_millis(1));
        expires.await.unwrap();
        while redis.get("short").await.unwrap().is_some() {}
        drop(redis);
        server.stop().await;
    });
}

#[test]
fn subscribers_receive_what_is_published() {
    run(async |client, server| {
        let server = Server::start(&server).await;
        let mut publisher = client_redis::connect(&client, server.at).await;
        assert_eq!(publisher.publish("news", "lost".into()).await.unwrap(), 0);
        let redis = client_redis::connect(&client, server.at).await;
        let mut one = redis.subscribe(vec!["news".into()]).await.unwrap();
        let redis = client_redis::connect(&client, server.at).await;
        let channels = vec!["news".into(), "more".into()];
        let mut both = redis.subscribe(channels).await.unwrap();
        assert_eq!(publisher.publish("news", "1".into()).await.unwrap(), 2);
        assert_eq!(publisher.publish("more", "2".into()).await.unwrap(), 1);
        let message = one.next_message().await.unwrap().unwrap();
        assert_eq!(
            (message.channel.as_str(), &message.content[..]),
            ("news", &b"1"[..])
        );
        for (channel, content) in [("news", "1"), ("more", "2")] {
            let message = both.next_message().await.unwrap().unwrap();
            assert_eq!(
                (&*message.channel, &*message.content),
                (channel, content.as_bytes())
            );
        }
        both.unsubscribe(&[]).await.unwrap();
        assert_eq!(both.get_subscribed().len(), 0);
        drop((publisher, one, both));
        server.stop().await;
    });
}

#[test]
fn many_clients_are_served_at_once() {
    run(async |client, server| {
        let server = Server::start(&server).await;
        let mut clients = Vec::new();
        for n in 0..20_u8 {
            let mut redis = client_redis::connect(&client, server.at).await;
            clients.push(tokio::spawn(async move {
                for round in 0..20 {
                    let key = format!("{n}/{round}");
                    let value = Bytes::from(vec![n; 1000]);
                    redis.set(&key, value.clone()).await.unwrap();
                    assert_eq!(redis.get(&key).await.unwrap().unwrap(), value);
                }
            }));
        }
        for client in clients {
            client.await.unwrap();
        }
        server.stop().await;
    });
}

#[test]
fn the_server_reads_pipelined_commands_and_closes_its_connections_at_the_end() {
    run(async |client, server| {
        let server = Server::start(&server).await;
        let mut stream = client.connect(server.at).await.unwrap();
        let commands = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        // The commands end in the middle of segments.
        for part in commands.chunks(7) {
            stream.write_all(part).await.unwrap();
            stream.flush().await.unwrap();
        }
        let mut answers = [0; 12];
        stream.read_exact(&mut answers).await.unwrap();
        assert_eq!(&answers, b"+OK\r\n$1\r\nv\r\n");
        server.stop().await;
        assert_eq!(stream.read(&mut answers).await.unwrap(), 0);
    });
}

//! Dropped futures leave no waker behind, and all tasks that wait for an event are woken. The tests
//! poll the futures themselves to control each step.

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use common::{pair, paused};
use fullsend::{TcpListener, TcpStream, UdpSocket};
use tokio::io::AsyncWriteExt;

/// A task that counts how often it was woken.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Task {
    fn woken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Polls a future once as a task of its own, drops it, and checks that nothing refers to the task.
macro_rules! leaves_nothing {
    ($future:expr) => {{
        let task = Arc::<Task>::default();
        {
            let mut future = pin!($future);
            let waker = Waker::from(task.clone());
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending(), stringify!($future));
            assert!(Arc::strong_count(&task) > 2, stringify!($future));
        }
        assert_eq!(Arc::strong_count(&task), 1, stringify!($future));
        assert_eq!(task.woken(), 0);
    }};
}

#[test]
fn dropping_a_future_releases_its_waker() {
    paused(async {
        let (here, there) = pair();
        let listener = TcpListener::bind(&there, "10.0.0.2:80").unwrap();
        for _ in 0..3 {
            leaves_nothing!(listener.accept());
        }
        leaves_nothing!(TcpStream::connect(&here, "10.0.0.77:80"));
        let mut client = TcpStream::connect(&here, "10.0.0.2:80").await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let udp = UdpSocket::bind(&here, "10.0.0.1:53").unwrap();
        let mut buf = [0; 10];
        for _ in 0..3 {
            leaves_nothing!(client.readable());
            leaves_nothing!(client.read_chunk(10));
            leaves_nothing!(client.peek(&mut buf));
            leaves_nothing!(udp.recv_from(&mut buf));
            leaves_nothing!(udp.readable());
        }
        while client.try_write(&[7; 10_000]).is_ok() {}
        let bytes = bytes::Bytes::from_static(&[1; 10_000]);
        for _ in 0..3 {
            leaves_nothing!(client.writable());
            leaves_nothing!(client.write_more(b"more"));
            leaves_nothing!(client.write_bytes(bytes.clone()));
            leaves_nothing!(client.flushed());
            leaves_nothing!(here.shutdown());
        }
        // One task for each future: dropping some futures must not affect the others.
        let tasks: Vec<Arc<Task>> = (0..100).map(|_| Arc::default()).collect();
        let mut accepts: Vec<_> = tasks
            .iter()
            .map(|task| {
                let mut accept = Box::pin(listener.accept());
                let waker = Waker::from(task.clone());
                let mut cx = Context::from_waker(&waker);
                assert!(accept.as_mut().poll(&mut cx).is_pending());
                Some(accept)
            })
            .collect();
        for accept in accepts.iter_mut().step_by(2) {
            *accept = None;
        }
        let again = TcpStream::connect(&here, "10.0.0.2:80").await.unwrap();
        for (i, task) in tasks.iter().enumerate() {
            assert_eq!(task.woken(), i % 2, "task {i}");
        }
        drop((accepts, again));
        assert!(tasks.iter().all(|task| Arc::strong_count(task) == 1));
        client.shutdown().await.unwrap();
        drop(server);
    });
}

#[test]
fn every_shutdown_waiter_is_woken() {
    paused(async {
        let (here, there) = pair();
        let listener = TcpListener::bind(&there, "10.0.0.2:80").unwrap();
        let client = TcpStream::connect(&here, "10.0.0.2:80").await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let mut sent = 0;
        while let Ok(n) = client.try_write(&[7; 10_000]) {
            sent += n;
        }
        let tasks: [Arc<Task>; 3] = Default::default();
        let wakers = tasks.clone().map(Waker::from);
        let mut waiting = tasks.clone().map(|_| Box::pin(here.shutdown()));
        for (future, waker) in waiting.iter_mut().zip(&wakers) {
            let mut cx = Context::from_waker(waker);
            assert!(future.as_mut().poll(&mut cx).is_pending());
        }
        while sent > 0 {
            sent -= server.read_chunk(sent).await.unwrap().unwrap().len();
        }
        while tasks[0].woken() == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert!(tasks.iter().all(|task| task.woken() == 1));
        for (future, waker) in waiting.iter_mut().zip(&wakers) {
            let mut cx = Context::from_waker(waker);
            assert!(matches!(future.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
        }
        // The stack has stopped, so there is nothing to shut down.
        assert!(here.shutdown().await.is_err());
    });
}

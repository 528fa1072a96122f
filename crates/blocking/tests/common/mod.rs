//! Helpers of the tests.
#![allow(dead_code, reason = "each test file uses only some items")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;

use fullsend_blocking::abi::{AF_INET, SOCK_STREAM};
use fullsend_blocking::{Clock, Config, Handle, SockAddr, Stack, UserDrivenOptions};
use fullsend_offload::{Packet, Slice};

pub(crate) fn addr(text: &str) -> SockAddr {
    text.parse::<std::net::SocketAddr>().unwrap().into()
}

pub(crate) fn stack(settings: &str, clock: &Clock) -> Arc<Stack> {
    let config = Config::parse(settings).unwrap();
    Arc::new(Stack::user_driven(&config, clock.clone(), UserDrivenOptions::default()).unwrap())
}

/// Carries the packets of `from` to `to`, on the threads that make `from` send.
fn forward_packets(from: &Arc<Stack>, to: &Arc<Stack>) {
    let to: Weak<Stack> = Arc::downgrade(to);
    from.on_output(move |packet| {
        if let Some(to) = to.upgrade() {
            to.input(&mut vec![Packet::from_frame(Slice::copied_from(
                &packet.to_bytes(),
            ))]);
        }
    });
}

/// Returns two stacks, 10.0.0.1 and 10.0.0.2, with a wire between them.
pub(crate) fn pair(clock: &Clock) -> (Arc<Stack>, Arc<Stack>) {
    let a = stack("address=10.0.0.1/24,address=fd00::1/64,seed=1", clock);
    let b = stack("address=10.0.0.2/24,address=fd00::2/64,seed=2", clock);
    forward_packets(&a, &b);
    forward_packets(&b, &a);
    (a, b)
}

/// Returns two such stacks on the system's clock, with a thread that runs their timers.
pub(crate) fn live_pair() -> (Arc<Stack>, Arc<Stack>) {
    let (a, b) = pair(&Clock::real());
    let both = [Arc::downgrade(&a), Arc::downgrade(&b)];
    thread::spawn(move || {
        while let [Some(a), Some(b)] = both.each_ref().map(Weak::upgrade) {
            a.run_timers();
            b.run_timers();
            drop((a, b));
            thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    (a, b)
}

/// Returns a connection: the client's end on `a`, the server's end on `b`.
pub(crate) fn connected(a: &Arc<Stack>, b: &Arc<Stack>) -> (Handle, Handle) {
    let listener = b.socket(AF_INET, SOCK_STREAM, 0).unwrap();
    b.bind(listener, addr("10.0.0.2:80")).unwrap();
    b.listen(listener, 8).unwrap();
    let client = a.socket(AF_INET, SOCK_STREAM, 0).unwrap();
    a.connect(client, addr("10.0.0.2:80")).unwrap();
    let (server, _) = b.accept4(listener, 0).unwrap();
    b.close(listener).unwrap();
    (client, server)
}

/// Runs `call` in a thread, and `then` once that thread waits in the call.
pub(crate) fn while_asleep<R: Send>(call: impl FnOnce() -> R + Send, then: impl FnOnce()) -> R {
    thread::scope(|scope| {
        let (started, on_start) = std::sync::mpsc::channel();
        let thread = scope.spawn(move || {
            started
                .send(std::fs::read_link("/proc/thread-self").unwrap())
                .unwrap();
            call()
        });
        let task = on_start.recv().unwrap();
        let stat = std::path::Path::new("/proc").join(task).join("stat");
        let asleep = || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('S')
        };
        while !asleep() {
            thread::yield_now();
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(then)) {
            eprintln!("the other thread would sleep for ever: {panic:?}");
            std::process::exit(101);
        }
        thread.join().unwrap()
    })
}

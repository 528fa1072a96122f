//! Properties that must hold in every interleaving; `tests/loom.rs` runs each model.

use std::future::poll_fn;
use std::task::Poll;

use fullsend_posix::{Handle, Posix};
use fullsend_stack::{Host, HostConfig};
use fullsend_tcp::Sysctl;
use fullsend_wire::Seed;
use loom::thread;

use crate::Pool;
use crate::async_driver_waker::DriverWaker as AsyncDriverWaker;
use crate::driver_waker::DriverWaker;
use crate::shard::Shard;
use crate::sync::{Arc, Mutex};
use crate::wait::{self, WaitFor};

/// Two threads drop references to a block at once while a third allocates: the thread that writes
/// to memory has the only reference, and no block is in the free list twice.
///
/// # Panics
/// If two threads can write to one block, or the block is in the free list twice.
pub fn a_block_returns_to_the_pool_once() {
    let pool = Pool::new(1 << 20);
    let mut buf = pool.alloc(512);
    buf.write(b"shared");
    let slice = buf.freeze();
    let other = slice.clone();
    let reader = thread::spawn(move || {
        assert_eq!(&*other, b"shared");
        drop(other);
    });
    let writer = thread::spawn({
        let pool = pool.clone();
        move || {
            let mut buf = pool.alloc(512);
            // The buffer is empty if another reference to the block exists.
            assert_eq!(buf.spare_mut().len(), 512);
            buf.write(b"writer");
            assert_eq!(&*buf.freeze(), b"writer");
        }
    });
    drop(slice);
    reader.join().unwrap();
    writer.join().unwrap();
    let before = pool.stats().kept_bytes;
    assert!(before <= 2 * 512, "{before}");
    let (mut first, mut second) = (pool.alloc(512), pool.alloc(512));
    assert_eq!(pool.stats().kept_bytes, 0);
    assert_eq!(first.spare_mut().len(), 512);
    assert_eq!(second.spare_mut().len(), 512);
}

/// The pool is dropped while a block returns to it; loom detects a leak.
///
/// # Panics
/// If the thread that has the block panics.
pub fn a_pool_may_be_dropped_before_its_memory() {
    let pool = Pool::new(1 << 20);
    let slice = pool.alloc(512).freeze();
    let holder = thread::spawn(move || drop(slice));
    drop(pool);
    holder.join().unwrap();
}

/// Two callers queue work under the lock and notify; the driver's task only ends when it has seen
/// both. A lost wake-up is a deadlock, which loom reports.
///
/// # Panics
/// If a caller's thread panics.
pub fn the_driver_task_sees_queued_work() {
    let driver_waker = Arc::new(AsyncDriverWaker::default());
    let work = Arc::new(Mutex::new(0));
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let (driver_waker, work) = (driver_waker.clone(), work.clone());
            thread::spawn(move || {
                *work.lock() += 1;
                driver_waker.wake();
            })
        })
        .collect();
    loom::future::block_on(poll_fn(|cx| {
        driver_waker.begin_poll(cx.waker());
        let seen = *work.lock();
        if seen == 2 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }));
    for caller in callers {
        caller.join().unwrap();
    }
}

/// The driver's thread waits for its eventfd after each batch, sees all queued work, and never
/// spins (loom bounds the steps).
///
/// # Panics
/// If a caller's thread panics.
pub fn the_driver_thread_sees_queued_work() {
    let driver_waker = Arc::new(DriverWaker::new().unwrap());
    let work = Arc::new(Mutex::new(0));
    // With three notifications, one may come between the other two's signal and the driver's check.
    let callers: Vec<_> = [1, 2]
        .into_iter()
        .map(|wakes| {
            let (driver_waker, work) = (driver_waker.clone(), work.clone());
            thread::spawn(move || {
                for _ in 0..wakes {
                    *work.lock() += 1;
                    driver_waker.wake();
                }
            })
        })
        .collect();
    loop {
        driver_waker.begin_batch();
        if *work.lock() == 3 {
            break;
        }
        driver_waker.file().wait();
        driver_waker.take_signal();
    }
    for caller in callers {
        caller.join().unwrap();
    }
}

/// Returns a socket of a host, made on another thread as loom's threads have small stacks.
fn handle() -> Handle {
    let make = || {
        let config = HostConfig {
            seed: Seed([1; 4]),
            sysctl: Sysctl::default(),
            pool_bytes: 0,
        };
        let mut posix = Posix::new(Host::new(config));
        posix.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap()
    };
    std::thread::spawn(make).join().unwrap()
}

/// A thread sleeps until another makes a socket ready: before, while or after it goes to sleep. It
/// sleeps twice, so that the condition variable is reused.
///
/// # Panics
/// If a thread that was woken remains registered.
pub fn a_sleeper_wakes() {
    let handle = handle();
    let shard = Arc::new(Mutex::new(Shard::default()));
    for _ in 0..2 {
        let other = thread::spawn({
            let shard = shard.clone();
            move || shard.lock().make_ready(handle)
        });
        let mut guard = shard.lock();
        while !guard.ready {
            wait::sleep(&mut guard, WaitFor::Handles(&[handle]), None, None);
        }
        guard.ready = false;
        assert!(!guard.sleepers.has_sleepers());
        drop(guard);
        other.join().unwrap();
    }
}

/// Two threads sleep for one socket, and both are woken.
///
/// # Panics
/// If a thread that was woken remains registered.
pub fn all_sleepers_wake() {
    let handle = handle();
    let shard = Arc::new(Mutex::new(Shard::default()));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let shard = shard.clone();
            thread::spawn(move || {
                let mut guard = shard.lock();
                while !guard.ready {
                    wait::sleep(&mut guard, WaitFor::Handles(&[handle]), None, None);
                }
            })
        })
        .collect();
    shard.lock().make_ready(handle);
    for sleeper in threads {
        sleeper.join().unwrap();
    }
    assert!(!shard.lock().sleepers.has_sleepers());
}

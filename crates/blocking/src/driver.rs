//! The thread of a stack with a device. It receives, runs timers, and transmits packets that no call has
//! transmitted.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use fullsend_device::LogLimit;
use fullsend_driver::RX_BATCH;
use fullsend_posix::Errno;
use fullsend_wire::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use rustix::thread::set_current_timer_slack;

pub(crate) use crate::driver_waker::DriverWaker;
use crate::signals;
use crate::stack::Shared;

/// The limit of the log lines about events that peers cause.
static NOTICES: LogLimit = LogLimit::new();

/// The driver's next action after a poll.
enum DriverAction {
    /// Poll again at once.
    Again,
    /// Poll when the device is readable, or writable if `blocked`, or at `deadline`.
    Sleep {
        blocked: bool,
        deadline: Option<Instant>,
    },
    /// The stack has ended.
    End,
}

/// Starts the thread. `device` is a duplicate of the device's file descriptor, to wait on.
pub(crate) fn spawn(shared: &Arc<Shared>, device: OwnedFd) -> io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    let drive = move || {
        signals::block_all();
        // Departure times of paced packets are in microseconds; the default slack is 50 us.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        if let Err(error) = drive(&shared, &device) {
            tracing::error!(%error, "the device failed; the stack stops");
            shared.end(Errno(libc::ENETDOWN));
        }
    };
    thread::Builder::new().name("fullsend".into()).spawn(drive)
}

fn drive(shared: &Shared, device: &OwnedFd) -> io::Result<()> {
    loop {
        match poll_once(shared)? {
            DriverAction::Again => {}
            DriverAction::Sleep { blocked, deadline } => sleep(shared, device, blocked, deadline)?,
            DriverAction::End => return Ok(()),
        }
    }
}

/// Receives one batch, runs timers and transmits.
fn poll_once(shared: &Shared) -> io::Result<DriverAction> {
    if let Some(driver_waker) = &shared.driver_waker {
        driver_waker.begin_batch();
    }
    let (mut shard, _) = shared.lock();
    if shard.end_error.is_some() {
        return Ok(DriverAction::End);
    }
    let polled = shard.poll_device()?;
    if polled.received >= RX_BATCH || polled.more {
        return Ok(DriverAction::Again);
    }
    let notices = shard.posix.host_mut().take_notices(polled.now);
    drop(shard);
    for notice in notices {
        NOTICES.warn(notice.to_string(), || notice.to_string());
    }
    // `deadline` need not include the timeouts of threads: these threads wake by themselves.
    Ok(DriverAction::Sleep {
        blocked: polled.blocked,
        deadline: polled.deadline,
    })
}

fn sleep(
    shared: &Shared,
    device: &OwnedFd,
    blocked: bool,
    deadline: Option<Instant>,
) -> io::Result<()> {
    let Some(driver_waker) = &shared.driver_waker else {
        return Ok(());
    };
    let span = deadline.map(|at| at.since(shared.clock.now()).as_nanos());
    let timeout = span.map(|ns| Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as _,
    });
    let writable = if blocked {
        PollFlags::OUT
    } else {
        PollFlags::empty()
    };
    let mut files = [
        PollFd::new(device, PollFlags::IN | writable),
        PollFd::new(driver_waker.file(), PollFlags::IN),
    ];
    match poll(&mut files, timeout.as_ref()) {
        Ok(_) => {
            if !files[1].revents().is_empty() {
                driver_waker.take_signal();
            }
            Ok(())
        }
        Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

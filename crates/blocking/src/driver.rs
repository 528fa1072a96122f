//! The thread of a stack with a device. It receives, runs timers, and transmits what no call
//! transmitted.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use fullsend_driver::RX_BATCH;
use fullsend_posix::Errno;
use fullsend_units::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use rustix::thread::set_current_timer_slack;

pub(crate) use crate::kick::Kick;
use crate::signals;
use crate::stack::Shared;

/// What to do after a poll.
enum Next {
    /// Poll again at once.
    Again,
    /// Poll when the device is readable, or writable if `blocked`, or at `until`.
    Sleep {
        blocked: bool,
        until: Option<Instant>,
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
        match turn(shared)? {
            Next::Again => {}
            Next::Sleep { blocked, until } => sleep(shared, device, blocked, until)?,
            Next::End => return Ok(()),
        }
    }
}

/// Receives one batch, runs timers and transmits.
fn turn(shared: &Shared) -> io::Result<Next> {
    if let Some(kick) = &shared.kick {
        kick.begin_batch();
    }
    let (mut shard, _) = shared.lock();
    if shard.dead.is_some() {
        return Ok(Next::End);
    }
    let turn = shard.turn()?;
    if turn.received >= RX_BATCH || turn.more {
        return Ok(Next::Again);
    }
    let notices = shard.posix.host_mut().take_notices(turn.now);
    drop(shard);
    for notice in notices {
        tracing::warn!("{notice}");
    }
    // `until` need not include the timeouts of threads: these threads wake by themselves.
    Ok(Next::Sleep {
        blocked: turn.blocked,
        until: turn.deadline,
    })
}

fn sleep(
    shared: &Shared,
    device: &OwnedFd,
    blocked: bool,
    until: Option<Instant>,
) -> io::Result<()> {
    let Some(kick) = &shared.kick else {
        return Ok(());
    };
    let span = until.map(|at| at.since(shared.clock.now()).as_nanos());
    let timeout = span.map(|ns| Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as _,
    });
    let room = if blocked {
        PollFlags::OUT
    } else {
        PollFlags::empty()
    };
    let mut files = [
        PollFd::new(device, PollFlags::IN | room),
        PollFd::new(kick.file(), PollFlags::IN),
    ];
    match poll(&mut files, timeout.as_ref()) {
        Ok(_) => {
            if !files[1].revents().is_empty() {
                kick.take_signal();
            }
            Ok(())
        }
        Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

//! What all personalities do once their settings are known: relay until there is a reason to end.

use std::future::Future;
use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result};
use fullsend_gateway::Gateway;
use tokio::signal::unix::{SignalKind, signal};

/// Returns a runtime on the calling thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("cannot start")
}

/// Relays until `end` is ready, SIGTERM arrives, or SIGINT where `interruptible`.
pub(crate) async fn relay<T>(
    gateway: Gateway,
    interruptible: bool,
    end: impl Future<Output = io::Result<T>>,
) -> Result<Option<T>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let interrupted = async {
        while interrupt.recv().await.is_some() {
            if interruptible {
                return;
            }
        }
    };
    tokio::select! {
        done = gateway.run() => {
            done.context("the guest's network device is lost")?;
            Ok(None)
        }
        ended = end => Ok(Some(ended?)),
        _ = terminate.recv() => Ok(None),
        () = interrupted => Ok(None),
    }
}

/// Returns the exit status of a command, or of a gateway that a signal ended before it.
pub(crate) fn exit_status(status: Option<i32>) -> ExitCode {
    let status = status.unwrap_or(128 + nix::libc::SIGTERM);
    ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX))
}

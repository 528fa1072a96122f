//! The checks of a builder's arguments, and the texts of its errors.

use std::io::{self, Error, ErrorKind};

use fullsend_driver::MAX_SHARDS;
use fullsend_stack::{ParseCidrError, QdiscConfig};

use super::Builder;

/// Least memory of a stack with a limit, in bytes.
pub(super) const MIN_MEMORY_BYTES: u64 = 8 << 20;

/// Returns an error for a number of shards that a stack cannot have.
pub(crate) fn check_shards(shards: usize) -> io::Result<()> {
    if (1..=MAX_SHARDS).contains(&shards) {
        return Ok(());
    }
    Err(invalid(&format!(
        "{shards} is not a number of shards; choose 1 to {MAX_SHARDS}"
    )))
}

impl Builder {
    /// Returns the first error of an argument, or else of arguments that exclude each other.
    pub(super) fn check(&mut self) -> io::Result<()> {
        self.take_error()?;
        check_shards(self.shards)?;
        self.check_timer()?;
        self.check_memory()
    }

    /// Returns the first error of an argument.
    pub(super) fn take_error(&mut self) -> io::Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    fn check_timer(&self) -> io::Result<()> {
        if self.timer.is_none() {
            return Ok(());
        }
        if self.shards > 1 {
            return Err(invalid(&format!(
                "a timer wakes the driver of one shard, and the stack has {}; call shards(1)",
                self.shards
            )));
        }
        if self.busy_poll.is_some() {
            return Err(invalid(
                "a timer and busy polling exclude each other: time may not pass while the driver \
                 polls; remove busy_poll()",
            ));
        }
        Ok(())
    }

    fn check_memory(&self) -> io::Result<()> {
        let least = MIN_MEMORY_BYTES * self.shards as u64;
        if let Some(bytes) = self.memory_bytes.filter(|bytes| *bytes < least) {
            return Err(invalid(&format!(
                "{bytes} bytes of memory are not enough for {} shards; allow at least {least} ({} MiB \
                 for each) or use fewer shards",
                self.shards,
                MIN_MEMORY_BYTES >> 20
            )));
        }
        Ok(())
    }

    /// Returns an error for a qdisc that shards cannot share.
    pub(super) fn check_qdisc(&self) -> io::Result<()> {
        if self.shards > 1 && matches!(self.net.qdisc, QdiscConfig::Tbf(_)) {
            return Err(invalid(
                "a token bucket limits the rate of each of the stack's queues; use one shard with \
                 the qdisc tbf, or set the rate of the sockets with fq",
            ));
        }
        Ok(())
    }
}

pub(super) fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

pub(super) fn invalid_cidr(error: &ParseCidrError) -> Error {
    invalid(&error.to_string())
}

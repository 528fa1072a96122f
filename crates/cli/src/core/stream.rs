//! Bulk transfer between two driven hosts.

use anyhow::{Result, bail};
use fullsend_buf::{Chain, Slice};
use fullsend_stack::{StackError, TcpId};
use fullsend_tcp::TcpError;
use fullsend_units::Instant;

use super::{GRACE, Wire, stack_error, unless_blocked};
use crate::args::Pump;
use crate::flow::READ_MAX;
use crate::pattern::{PERIOD, Pattern};
use crate::progress::Progress;

/// The parameters of a transfer.
pub(crate) struct Plan {
    pub(crate) message: usize,
    pub(crate) zerocopy: bool,
    pub(crate) verify: bool,
    pub(crate) pump: Pump,
    pub(crate) ends: Instant,
}

/// A connection from the client to the server.
struct Flow {
    client: TcpId,
    server: TcpId,
    sent: u64,
    received: u64,
}

struct Run<'a> {
    wire: &'a mut Wire,
    plan: &'a Plan,
    pattern: Pattern,
    /// The pattern as memory to lend.
    lent: Slice,
    scratch: Vec<u8>,
}

/// Transfers until the time is up and all data has arrived; returns the bytes received.
pub(crate) fn run(
    wire: &mut Wire,
    flows: &[(TcpId, TcpId)],
    plan: &Plan,
    progress: &Progress,
) -> Result<u64> {
    let pattern = Pattern::new(plan.message.max(READ_MAX));
    let mut run = Run {
        lent: pattern.bytes_at(0, PERIOD - 1 + plan.message).into(),
        pattern,
        wire,
        plan,
        scratch: vec![0; READ_MAX],
    };
    let mut flows: Vec<Flow> = flows
        .iter()
        .map(|&(client, server)| Flow {
            client,
            server,
            sent: 0,
            received: 0,
        })
        .collect();
    let mut told = 0;
    loop {
        let now = run.wire.now();
        run.wire.timers(now);
        let writing = now < plan.ends;
        if writing {
            for flow in &mut flows {
                run.write_turn(flow, now)?;
            }
        }
        run.wire.forth(now);
        for flow in &mut flows {
            run.read(flow, now)?;
        }
        run.wire.back(now);
        let received: u64 = flows.iter().map(|f| f.received).sum();
        progress.add(received - told, 0);
        told = received;
        if !writing && flows.iter().all(|f| f.sent == f.received) {
            return Ok(received);
        }
        if now > plan.ends + GRACE.into() {
            bail!(
                "the transfer stalled: sent data did not arrive within {} s after the test's time",
                GRACE.as_secs()
            );
        }
    }
}

impl Run<'_> {
    /// Writes until the connection accepts no more, up to a limit that bounds the delay of the clock
    /// and of the receiver: its card collects the packets of one call, like one with interrupt
    /// moderation.
    fn write_turn(&mut self, flow: &mut Flow, now: Instant) -> Result<()> {
        const BYTES: u64 = 256 << 10;
        const WRITES: u64 = 256;
        let until = flow.sent + BYTES.min(WRITES * self.plan.message as u64);
        while flow.sent < until {
            let Some(taken) = self.write(flow, now)? else {
                break;
            };
            flow.sent += taken as u64;
            if self.plan.pump == Pump::Write {
                self.wire.transmit(now);
            }
        }
        Ok(())
    }

    /// Writes one message; returns the number of bytes accepted, `None` if the write would block.
    #[inline]
    fn write(&mut self, flow: &Flow, now: Instant) -> Result<Option<usize>> {
        let message = self.plan.message;
        let place = if self.plan.verify { flow.sent } else { 0 };
        let host = &mut self.wire.client.host;
        if !self.plan.zerocopy {
            let data = self.pattern.at(place, message);
            return unless_blocked(host.tcp_write(now, flow.client, data, false));
        }
        let start = (place % PERIOD as u64) as usize;
        let data = self.lent.slice(start..start + message);
        match host.tcp_write_slice(now, flow.client, data) {
            Ok(()) => Ok(Some(message)),
            Err((StackError::Tcp(TcpError::WouldBlock), rest)) => {
                let taken = message - rest.len();
                Ok((taken > 0).then_some(taken))
            }
            Err((error, _)) => Err(stack_error(error)),
        }
    }

    /// Reads the available data.
    #[inline]
    fn read(&mut self, flow: &mut Flow, now: Instant) -> Result<()> {
        loop {
            let read = if self.plan.zerocopy {
                self.take(flow, now)?
            } else {
                self.copy(flow, now)?
            };
            flow.received += read.unwrap_or(0) as u64;
            // A short read has taken all data.
            if read.is_none_or(|n| n < READ_MAX) {
                return Ok(());
            }
        }
    }

    #[inline]
    fn copy(&mut self, flow: &Flow, now: Instant) -> Result<Option<usize>> {
        let host = &mut self.wire.server.host;
        let read = unless_blocked(host.tcp_read(now, flow.server, &mut self.scratch))?;
        if let Some(n) = read {
            self.check(flow.received, &self.scratch[..n])?;
        }
        Ok(read)
    }

    #[inline]
    fn take(&mut self, flow: &Flow, now: Instant) -> Result<Option<usize>> {
        let host = &mut self.wire.server.host;
        let chain = unless_blocked(host.tcp_read_chain(now, flow.server, READ_MAX))?;
        let mut at = flow.received;
        for slice in chain.iter().flat_map(Chain::slices) {
            self.check(at, slice)?;
            at += slice.len() as u64;
        }
        Ok(chain.map(|chain| chain.len()))
    }

    #[inline]
    fn check(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.plan.verify
            && let Some(place) = self.pattern.mismatch(offset, data)
        {
            bail!(
                "byte {place} of a stream differs from the byte that was sent; please report this"
            );
        }
        Ok(())
    }
}

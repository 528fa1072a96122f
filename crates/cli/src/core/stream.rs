//! Bulk transfer between two driven hosts.

use anyhow::{Result, bail};
use fullsend_offload::{Chain, Slice};
use fullsend_stack::{StackError, TcpId};
use fullsend_tcp::TcpError;
use fullsend_wire::Instant;

use super::{FINISH_TIMEOUT, HostPair, stack_error, would_block_to_none};
use crate::args::PumpMode;
use crate::flow::READ_MAX;
use crate::pattern::{PERIOD, Pattern};
use crate::progress::TestProgress;

/// The parameters of a transfer.
pub(crate) struct TransferParams {
    pub(crate) message: usize,
    pub(crate) zerocopy: bool,
    pub(crate) verify: bool,
    pub(crate) pump: PumpMode,
    pub(crate) deadline: Instant,
}

/// A connection from the client to the server.
struct StreamFlow {
    client: TcpId,
    server: TcpId,
    sent: u64,
    received: u64,
}

struct Transfer<'a> {
    pair: &'a mut HostPair,
    params: &'a TransferParams,
    pattern: Pattern,
    /// The pattern as memory that writes lend to the stack.
    lent: Slice,
    scratch: Vec<u8>,
}

/// Transfers until the time is up and all data has arrived. Returns the number of bytes received.
pub(crate) fn run(
    pair: &mut HostPair,
    flows: &[(TcpId, TcpId)],
    params: &TransferParams,
    progress: &TestProgress,
) -> Result<u64> {
    let pattern = Pattern::new(params.message.max(READ_MAX));
    let mut run = Transfer {
        lent: pattern.bytes_at(0, PERIOD - 1 + params.message).into(),
        pattern,
        pair,
        params,
        scratch: vec![0; READ_MAX],
    };
    let mut flows: Vec<StreamFlow> = flows
        .iter()
        .map(|&(client, server)| StreamFlow {
            client,
            server,
            sent: 0,
            received: 0,
        })
        .collect();
    let mut reported = 0;
    loop {
        let now = run.pair.now();
        run.pair.poll_timers(now);
        let writing = now < params.deadline;
        if writing {
            for flow in &mut flows {
                run.write_batch(flow, now)?;
            }
        }
        run.pair.carry_to_server(now);
        for flow in &mut flows {
            run.read(flow, now)?;
        }
        run.pair.carry_to_client(now);
        let received: u64 = flows.iter().map(|f| f.received).sum();
        progress.add(received - reported, 0);
        reported = received;
        if !writing && flows.iter().all(|f| f.sent == f.received) {
            return Ok(received);
        }
        if now > params.deadline + FINISH_TIMEOUT.into() {
            bail!(
                "the transfer stalled: sent data did not arrive within {} s after the test's time",
                FINISH_TIMEOUT.as_secs()
            );
        }
    }
}

impl Transfer<'_> {
    /// Writes until the connection accepts no more, up to a limit that bounds the delay of the clock and
    /// of the receiver: the receiver's card collects the packets of one call, like a card with interrupt
    /// moderation.
    fn write_batch(&mut self, flow: &mut StreamFlow, now: Instant) -> Result<()> {
        const BYTES: u64 = 256 << 10;
        const WRITES: u64 = 256;
        let until = flow.sent + BYTES.min(WRITES * self.params.message as u64);
        while flow.sent < until {
            let Some(accepted) = self.write(flow, now)? else {
                break;
            };
            flow.sent += accepted as u64;
            if self.params.pump == PumpMode::Write {
                self.pair.transmit(now);
            }
        }
        Ok(())
    }

    /// Writes one message. Returns the number of bytes accepted, or `None` if the write would block.
    #[inline]
    fn write(&mut self, flow: &StreamFlow, now: Instant) -> Result<Option<usize>> {
        let message = self.params.message;
        let offset = if self.params.verify { flow.sent } else { 0 };
        let host = &mut self.pair.client.host;
        if !self.params.zerocopy {
            let data = self.pattern.at(offset, message);
            return would_block_to_none(host.tcp(flow.client).write(now, data, false));
        }
        let start = (offset % PERIOD as u64) as usize;
        let data = self.lent.slice(start..start + message);
        match host.tcp(flow.client).write_slice(now, data) {
            Ok(()) => Ok(Some(message)),
            Err((StackError::Tcp(TcpError::WouldBlock), rest)) => {
                let accepted = message - rest.len();
                Ok((accepted > 0).then_some(accepted))
            }
            Err((error, _)) => Err(stack_error(error)),
        }
    }

    /// Reads the available data.
    #[inline]
    fn read(&mut self, flow: &mut StreamFlow, now: Instant) -> Result<()> {
        loop {
            let read = if self.params.zerocopy {
                self.read_chain(flow, now)?
            } else {
                self.read_copy(flow, now)?
            };
            flow.received += read.unwrap_or(0) as u64;
            // A short read has returned all data.
            if read.is_none_or(|n| n < READ_MAX) {
                return Ok(());
            }
        }
    }

    #[inline]
    fn read_copy(&mut self, flow: &StreamFlow, now: Instant) -> Result<Option<usize>> {
        let host = &mut self.pair.server.host;
        let read = would_block_to_none(host.tcp(flow.server).read(now, &mut self.scratch))?;
        if let Some(n) = read {
            self.verify_data(flow.received, &self.scratch[..n])?;
        }
        Ok(read)
    }

    #[inline]
    fn read_chain(&mut self, flow: &StreamFlow, now: Instant) -> Result<Option<usize>> {
        let host = &mut self.pair.server.host;
        let chain = would_block_to_none(host.tcp(flow.server).read_chain(now, READ_MAX))?;
        let mut at = flow.received;
        for slice in chain.iter().flat_map(Chain::slices) {
            self.verify_data(at, slice)?;
            at += slice.len() as u64;
        }
        Ok(chain.map(|chain| chain.len()))
    }

    #[inline]
    fn verify_data(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.params.verify
            && let Some(offset) = self.pattern.mismatch(offset, data)
        {
            bail!(
                "byte {offset} of a stream differs from the byte that was sent; please report this"
            );
        }
        Ok(())
    }
}

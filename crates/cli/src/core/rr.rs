//! Requests and responses between two driven hosts.

use anyhow::{Result, bail};
use fullsend_stack::{Host, TcpId};
use fullsend_wire::Instant;
use hdrhistogram::Histogram;

use super::{FINISH_TIMEOUT, HostPair, would_block_to_none};
use crate::flow::READ_MAX;
use crate::pattern::Pattern;
use crate::progress::TestProgress;
use crate::report::new_histogram;

/// Connections that are served between two polls of the timers.
const GROUP: usize = 16;

/// One end of a connection, which writes a message and reads a message alternately.
struct RrEnd {
    id: TcpId,
    to_write: usize,
    to_read: usize,
}

/// A connection, and the start of its current transaction.
struct RrFlow {
    client: RrEnd,
    server: RrEnd,
    started: Instant,
}

/// The buffers that all steps use.
struct RrBuffers {
    pattern: Pattern,
    scratch: Vec<u8>,
}

impl RrEnd {
    /// Writes the rest of the current message, until the send buffer is full.
    #[inline]
    fn write(&mut self, host: &mut Host, buffers: &RrBuffers, now: Instant) -> Result<()> {
        while self.to_write > 0 {
            let data = buffers.pattern.at(0, self.to_write);
            match would_block_to_none(host.tcp(self.id).write(now, data, false))? {
                Some(n) => self.to_write -= n,
                None => break,
            }
        }
        Ok(())
    }

    /// Writes and reads the rest of the current messages. Returns whether both are complete.
    #[inline]
    fn step(&mut self, host: &mut Host, buffers: &mut RrBuffers, now: Instant) -> Result<bool> {
        self.write(host, buffers, now)?;
        if self.to_write > 0 {
            return Ok(false);
        }
        while self.to_read > 0 {
            let len = self.to_read.min(READ_MAX);
            match would_block_to_none(host.tcp(self.id).read(now, &mut buffers.scratch[..len]))? {
                Some(0) => bail!("a connection ended before the end of the test"),
                Some(n) => self.to_read -= n,
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// A running test.
struct RrTest<'a> {
    pair: &'a mut HostPair,
    buffers: RrBuffers,
    /// Bytes of a request and of a response.
    sizes: (usize, usize),
    /// The time after which no transaction starts.
    deadline: Instant,
    now: Instant,
    histogram: Histogram<u64>,
}

impl RrTest<'_> {
    /// Sends requests on connections without one, answers them, and reads the responses. Returns the
    /// numbers of open and of completed transactions.
    fn step(&mut self, group: &mut [RrFlow]) -> Result<(usize, u64)> {
        let Self { pair, buffers, .. } = self;
        let (request, response) = self.sizes;
        let (mut open, mut finished) = (0, 0);
        pair.poll_timers(self.now);
        for RrFlow {
            client, started, ..
        } in &mut *group
        {
            if client.to_read == 0 && self.now < self.deadline {
                (client.to_write, client.to_read) = (request, response);
                *started = self.now;
            }
            open += usize::from(client.to_read > 0);
            client.write(&mut pair.client.host, buffers, self.now)?;
        }
        pair.carry_to_server(self.now);
        for RrFlow { server, .. } in &mut *group {
            if server.step(&mut pair.server.host, buffers, self.now)? {
                (server.to_write, server.to_read) = (response, request);
                server.write(&mut pair.server.host, buffers, self.now)?;
            }
        }
        pair.carry_to_client(self.now);
        self.now = pair.now();
        for RrFlow {
            client, started, ..
        } in group
        {
            let is_waiting = client.to_read > 0;
            if is_waiting && client.step(&mut pair.client.host, buffers, self.now)? {
                finished += 1;
                let elapsed = self.now.since(*started);
                self.histogram.saturating_record(elapsed.as_nanos());
            }
        }
        Ok((open, finished))
    }
}

/// Runs transactions until `deadline`. Returns their number and latencies.
pub(crate) fn run(
    pair: &mut HostPair,
    flows: &[(TcpId, TcpId)],
    (request, response): (usize, usize),
    deadline: Instant,
    progress: &TestProgress,
) -> Result<(u64, Histogram<u64>)> {
    let end = |id, to_write, to_read| RrEnd {
        id,
        to_write,
        to_read,
    };
    let started = pair.now();
    let mut flows: Vec<RrFlow> = flows
        .iter()
        .map(|&(client, server)| RrFlow {
            client: end(client, request, response),
            server: end(server, 0, request),
            started,
        })
        .collect();
    let mut test = RrTest {
        pair,
        buffers: RrBuffers {
            pattern: Pattern::new(request.max(response)),
            scratch: vec![0; READ_MAX],
        },
        sizes: (request, response),
        deadline,
        now: started,
        histogram: new_histogram(),
    };
    let mut transactions = 0;
    loop {
        let mut open = 0;
        // The connections are served in small groups, as by an event loop: the data that one host writes
        // is still in the cache when the other reads it.
        for group in flows.chunks_mut(GROUP) {
            let (begun, finished) = test.step(group)?;
            open += begun;
            transactions += finished;
            progress.add(finished * (request + response) as u64, finished);
        }
        if open == 0 {
            return Ok((transactions, test.histogram));
        }
        if test.now > deadline + FINISH_TIMEOUT.into() {
            bail!(
                "{open} transactions did not finish within {} s after the test's time",
                FINISH_TIMEOUT.as_secs()
            );
        }
    }
}

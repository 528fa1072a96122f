//! Requests and responses between two driven hosts.

use anyhow::{Result, bail};
use fullsend_stack::{Host, TcpId};
use fullsend_units::Instant;
use hdrhistogram::Histogram;

use super::{GRACE, Wire, unless_blocked};
use crate::flow::READ_MAX;
use crate::pattern::Pattern;
use crate::progress::Progress;
use crate::report::new_histogram;

/// Connections that are served between two polls of the link.
const GROUP: usize = 16;

/// One end of a connection, which writes a message and reads a message alternately.
struct End {
    id: TcpId,
    to_write: usize,
    to_read: usize,
}

/// A connection, and the start of its current transaction.
struct Flow {
    client: End,
    server: End,
    began: Instant,
}

/// The buffers of every step.
struct Buffers {
    pattern: Pattern,
    scratch: Vec<u8>,
}

impl End {
    /// Writes the rest of the current message, as far as there is room.
    #[inline]
    fn write(&mut self, host: &mut Host, buffers: &Buffers, now: Instant) -> Result<()> {
        while self.to_write > 0 {
            let data = buffers.pattern.at(0, self.to_write);
            match unless_blocked(host.tcp_write(now, self.id, data, false))? {
                Some(n) => self.to_write -= n,
                None => break,
            }
        }
        Ok(())
    }

    /// Writes and reads the rest of the current messages; returns whether both are complete.
    #[inline]
    fn step(&mut self, host: &mut Host, buffers: &mut Buffers, now: Instant) -> Result<bool> {
        self.write(host, buffers, now)?;
        if self.to_write > 0 {
            return Ok(false);
        }
        while self.to_read > 0 {
            let len = self.to_read.min(READ_MAX);
            match unless_blocked(host.tcp_read(now, self.id, &mut buffers.scratch[..len]))? {
                Some(0) => bail!("a connection ended before the end of the test"),
                Some(n) => self.to_read -= n,
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// A running test.
struct Transactions<'a> {
    wire: &'a mut Wire,
    buffers: Buffers,
    /// Bytes of a request and of a response.
    sizes: (usize, usize),
    /// The time after which no transaction starts.
    ends: Instant,
    now: Instant,
    histogram: Histogram<u64>,
}

impl Transactions<'_> {
    /// Sends requests on connections without one, answers them, and reads the responses. Returns the
    /// number of open transactions, and of those completed.
    fn step(&mut self, group: &mut [Flow]) -> Result<(usize, u64)> {
        let Self { wire, buffers, .. } = self;
        let (request, response) = self.sizes;
        let (mut open, mut finished) = (0, 0);
        wire.timers(self.now);
        for Flow { client, began, .. } in &mut *group {
            if client.to_read == 0 && self.now < self.ends {
                (client.to_write, client.to_read) = (request, response);
                *began = self.now;
            }
            open += usize::from(client.to_read > 0);
            client.write(&mut wire.client.host, buffers, self.now)?;
        }
        wire.forth(self.now);
        for Flow { server, .. } in &mut *group {
            if server.step(&mut wire.server.host, buffers, self.now)? {
                (server.to_write, server.to_read) = (response, request);
                server.write(&mut wire.server.host, buffers, self.now)?;
            }
        }
        wire.back(self.now);
        self.now = wire.now();
        for Flow { client, began, .. } in group {
            let waits = client.to_read > 0;
            if waits && client.step(&mut wire.client.host, buffers, self.now)? {
                finished += 1;
                let took = self.now.since(*began);
                self.histogram.saturating_record(took.as_nanos());
            }
        }
        Ok((open, finished))
    }
}

/// Runs transactions until `ends`; returns their number and latencies.
pub(crate) fn run(
    wire: &mut Wire,
    flows: &[(TcpId, TcpId)],
    (request, response): (usize, usize),
    ends: Instant,
    progress: &Progress,
) -> Result<(u64, Histogram<u64>)> {
    let end = |id, to_write, to_read| End {
        id,
        to_write,
        to_read,
    };
    let began = wire.now();
    let mut flows: Vec<Flow> = flows
        .iter()
        .map(|&(client, server)| Flow {
            client: end(client, request, response),
            server: end(server, 0, request),
            began,
        })
        .collect();
    let mut test = Transactions {
        wire,
        buffers: Buffers {
            pattern: Pattern::new(request.max(response)),
            scratch: vec![0; READ_MAX],
        },
        sizes: (request, response),
        ends,
        now: began,
        histogram: new_histogram(),
    };
    let mut transactions = 0;
    loop {
        let mut open = 0;
        // A few connections at a time, like an event loop: the data that one host writes is still in
        // the cache when the other reads it.
        for group in flows.chunks_mut(GROUP) {
            let (begun, finished) = test.step(group)?;
            open += begun;
            transactions += finished;
            progress.add(finished * (request + response) as u64, finished);
        }
        if open == 0 {
            return Ok((transactions, test.histogram));
        }
        if test.now > ends + GRACE.into() {
            bail!(
                "{open} transactions did not finish within {} s after the test's time",
                GRACE.as_secs()
            );
        }
    }
}

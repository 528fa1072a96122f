//! Applications that send as much as possible, and their readers.

use fullsend_offload::Slice;
use fullsend_wire::{Instant, Nanos};

use crate::experiment::Progress;
use crate::net::{App, CLIENT, FlowEnd, Net, Ready, SERVER};

/// Clients that write whenever they can, and servers that read.
///
/// All writes lend the same memory, so that gigabytes can be queued and transferred.
pub(crate) struct Bulk {
    message: Slice,
    /// Bytes read by all servers.
    pub(crate) read: u64,
    /// Number of times that writers were woken because there was room again.
    pub(crate) wakeups: u64,
}

impl Bulk {
    /// Makes every client write messages of `bytes`: the first from now on, each other client `gap`
    /// after the one before.
    pub(crate) fn start(net: &mut Net, bytes: usize, gap: Nanos) -> Self {
        let this = Self {
            message: Slice::copied_from(&vec![b'n'; bytes]),
            read: 0,
            wakeups: 0,
        };
        for flow in 0..net.flows() {
            net.notify_when(FlowEnd { side: SERVER, flow }, Ready::Read);
            net.set_timer(
                net.now() + gap * flow as u64,
                FlowEnd { side: CLIENT, flow },
            );
        }
        this
    }

    fn fill(&self, net: &mut Net, end: FlowEnd) {
        while net.lend(end, self.message.clone()) {}
    }
}

impl App for Bulk {
    fn on_ready(&mut self, net: &mut Net, end: FlowEnd, ready: Ready) {
        match ready {
            Ready::Read => self.read += net.read(end),
            Ready::Timer => self.fill(net, end),
            Ready::Write => {
                self.wakeups += 1;
                self.fill(net, end);
            }
        }
    }
}

/// Runs `app` for `span`, and calls `on_sample` at intervals.
pub(crate) fn run_sampled<A: App>(
    net: &mut Net,
    app: &mut A,
    (span, every): (Nanos, Nanos),
    progress: &Progress,
    mut on_sample: impl FnMut(&mut Net, &mut A, Instant),
) {
    let samples = span.as_nanos() / every.as_nanos().max(1);
    for sample in 1..=samples {
        let next = net.now() + every;
        net.run(next, app);
        on_sample(net, app, next);
        progress.set(sample as f64 / samples as f64);
    }
}

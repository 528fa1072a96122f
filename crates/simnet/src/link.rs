//! The public handle of a link.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use fullsend_device::Capture;
use fullsend_offload::Link as LinkLayer;
use fullsend_sim::Netem;

use crate::shared::Shared;
use crate::topology::invalid;
use crate::wire::LinkStats;

/// A link between two hosts or switches. Clones refer to the same link.
///
/// Its properties are those of `tc netem`, in the same words: see [`Netem`] for the list. The test or a
/// host's software may change them while the simulation runs.
///
/// ```
/// use fullsend_simnet::Simulation;
///
/// let mut sim = Simulation::new(1);
/// sim.host("server", async |_| Ok(()))?;
/// sim.client("client", async |_| Ok(()))?;
/// let link = sim.connect("client", "server", "delay 20ms 2ms loss 1% rate 100mbit limit 1000")?;
/// link.set_from("client", "delay 20ms rate 10mbit")?;
/// link.down();
/// assert!(!link.is_up());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
    number: usize,
}

impl Link {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Self { shared, number }
    }

    /// Changes the properties of both directions for later packets.
    ///
    /// # Errors
    /// `InvalidInput` for a text that does not parse; the message names the word and the fix.
    pub fn set(&self, netem: &str) -> io::Result<()> {
        let netem = parse(netem)?;
        let mut kernel = self.shared.lock();
        for from in 0..2 {
            kernel.set_netem(self.number, from, netem);
        }
        Ok(())
    }

    /// Changes the properties of the direction from `host` for later packets.
    ///
    /// # Errors
    /// `InvalidInput` for a text that does not parse, or a name that is not an end of the link.
    pub fn set_from(&self, host: &str, netem: &str) -> io::Result<()> {
        let netem = parse(netem)?;
        let end = self.end(host)?;
        self.shared.lock().set_netem(self.number, end, netem);
        Ok(())
    }

    /// Returns the properties of the direction from `host`.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is not an end of the link.
    pub fn netem_from(&self, host: &str) -> io::Result<Netem> {
        let end = self.end(host)?;
        Ok(self.shared.lock().wires[self.number].directions[end].netem)
    }

    /// Cuts the link: packets that are sent into it or would arrive are lost until it is [up](Self::up)
    /// again. Neither end is notified.
    pub fn down(&self) {
        self.shared.lock().wires[self.number].is_up = false;
    }

    /// Restores the link after [`down`](Self::down).
    pub fn up(&self) {
        self.shared.lock().wires[self.number].is_up = true;
    }

    /// Returns whether the link is up, which it is initially.
    pub fn is_up(&self) -> bool {
        self.shared.lock().wires[self.number].is_up
    }

    /// Returns the counters of the direction from `host`.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is not an end of the link.
    pub fn stats_from(&self, host: &str) -> io::Result<LinkStats> {
        let end = self.end(host)?;
        Ok(self.shared.lock().wires[self.number].directions[end].stats)
    }

    /// Records later packets at both ends as pcapng to `out`, which should be buffered. Replaces an
    /// earlier capture. Each end is an interface with the name of its host; a lost packet appears only at
    /// its sender. Timestamps are virtual: the simulation starts at the epoch. If `out` fails later,
    /// recording stops with a warning.
    ///
    /// # Errors
    /// The error of writing to `out`.
    pub fn capture(&self, out: impl Write + Send + 'static) -> io::Result<()> {
        let capture = Capture::new(out)?;
        let mut kernel = self.shared.lock();
        let ends = kernel.wires[self.number].ends;
        let [a, b] =
            ends.map(|end| capture.add_interface(kernel.topology.name(end), LinkLayer::Ip));
        kernel.wires[self.number].set_captures([a?, b?]);
        Ok(())
    }

    /// Returns the index of the link's end at `host`.
    fn end(&self, host: &str) -> io::Result<usize> {
        let kernel = self.shared.lock();
        let wire = &kernel.wires[self.number];
        let end = kernel
            .topology
            .find(host)
            .ok()
            .and_then(|node| wire.end_at(node));
        end.ok_or_else(|| {
            let [a, b] = wire.ends.map(|end| kernel.topology.name(end));
            invalid(format!(
                "`{host}` is not an end of the link between `{a}` and `{b}`; write one of them"
            ))
        })
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernel = self.shared.lock();
        let wire = &kernel.wires[self.number];
        let ends = wire.ends.map(|end| kernel.topology.name(end));
        f.debug_struct("Link")
            .field("ends", &ends)
            .field("is_up", &wire.is_up)
            .finish_non_exhaustive()
    }
}

/// Parses the properties of a link.
pub(crate) fn parse(netem: &str) -> io::Result<Netem> {
    let parsed: Result<Netem, _> = netem.parse();
    parsed.map_err(|error| invalid(error.to_string()))
}

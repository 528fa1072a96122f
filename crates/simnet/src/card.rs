//! The network card of a host: the device and the timer of its stack.

use std::collections::VecDeque;
use std::io::{self, Error, ErrorKind};
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use fullsend::{Caps, Device, DriverTimer};
use fullsend_offload::{Link, Packet};
use tokio::time;

use crate::agenda::Source;
use crate::kernel::Kernel;
use crate::machine::Epoch;
use crate::shared::Shared;
use crate::topology::NodeId;

/// The MTU of every host, in bytes.
const MTU: u32 = 1500;

/// The network card of a host, from its start to its crash.
///
/// It sends packets of at most the MTU, so that links lose packets instead of super-segments, with
/// checksums that the receiver verifies. It has no queue: accepted packets are on the link.
#[derive(Clone)]
pub(crate) struct Card {
    shared: Arc<Shared>,
    node: NodeId,
    incarnation: u64,
    epoch: Epoch,
}

impl Card {
    /// Connects a new card, which replaces an earlier one.
    pub(crate) fn connect(shared: &Arc<Shared>, node: NodeId, epoch: Epoch) -> Self {
        let card = &mut shared.lock().cards[node.0];
        card.incarnation += 1;
        card.is_connected = true;
        Self {
            shared: shared.clone(),
            node,
            incarnation: card.incarnation,
            epoch,
        }
    }

    /// Disconnects the card of a host, and wakes its driver, which then stops the stack.
    pub(crate) fn disconnect(shared: &Shared, node: NodeId) {
        let mut kernel = shared.lock();
        let card = &mut kernel.cards[node.0];
        card.is_connected = false;
        card.received.clear();
        let driver = card.driver.take();
        kernel.agenda.set(Source::Stack(node), None);
        drop(kernel);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    fn is_connected(&self, kernel: &Kernel) -> bool {
        let card = &kernel.cards[self.node.0];
        card.is_connected && card.incarnation == self.incarnation
    }
}

impl Device for Card {
    fn caps(&self) -> Caps {
        Caps::plain(Link::Ip, MTU)
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let now = self.shared.now();
        let mut kernel = self.shared.lock();
        if !self.is_connected(&kernel) {
            batch.clear();
        }
        for packet in batch.drain(..) {
            kernel.transmit(now, self.node, packet);
        }
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let mut kernel = self.shared.lock();
        if !self.is_connected(&kernel) {
            let text = "the simulated host has crashed";
            return Err(Error::new(ErrorKind::NetworkDown, text));
        }
        let received = &mut kernel.cards[self.node.0].received;
        let taken = max.min(received.len());
        batch.extend(received.drain(..taken));
        Ok(taken)
    }

    #[cfg(unix)]
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl DriverTimer for Card {
    fn poll_until(&mut self, cx: &mut Context<'_>, deadline: Option<time::Instant>) -> Poll<()> {
        let deadline = deadline.map(|at| self.epoch.instant(at));
        let now = self.shared.now();
        let mut kernel = self.shared.lock();
        if !self.is_connected(&kernel) {
            return Poll::Ready(());
        }
        let is_due = deadline.is_some_and(|at| at <= now);
        let source = Source::Stack(self.node);
        kernel.agenda.set(source, deadline.filter(|_| !is_due));
        if is_due {
            return Poll::Ready(());
        }
        let driver = &mut kernel.cards[self.node.0].driver;
        match driver {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

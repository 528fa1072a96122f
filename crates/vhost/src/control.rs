//! The connections of monitors, one after another.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use fullsend_device::LogLimit;

use crate::backend::Backend;
use crate::connection::{Connection, End};
use crate::pair::{Pair, Pairs};
use crate::source::Source;
use crate::stats::VhostUserStats;

/// The limit of the log lines about connections of monitors.
static LOG: LogLimit = LogLimit::new();

/// Tokens of the events at the first pair's epoll.
pub(crate) const CONTROL: u64 = 2;
pub(crate) const SOURCE: u64 = 3;

/// The callback that [`VhostUserBuilder::on_disconnect`](crate::VhostUserBuilder::on_disconnect) sets.
pub(crate) type Callback = Box<dyn FnMut() + Send>;

/// The part of the first device that serves the monitor.
pub(crate) struct Control {
    pairs: Arc<Pairs>,
    source: Source,
    on_disconnect: Option<Callback>,
    connection: Option<Connection>,
    /// The state that the messages set, which the connection's handler also uses.
    backend: Arc<Mutex<Backend>>,
    connections: u64,
    protocol_errors: u64,
    memory_faults: u64,
}

impl Control {
    pub(crate) fn new(
        pairs: Arc<Pairs>,
        source: Source,
        on_disconnect: Option<Callback>,
        handles_sigbus: bool,
    ) -> Self {
        Self {
            backend: Arc::new(Mutex::new(Backend::new(pairs.clone(), handles_sigbus))),
            pairs,
            source,
            on_disconnect,
            connection: None,
            connections: 0,
            protocol_errors: 0,
            memory_faults: 0,
        }
    }

    pub(crate) fn count(&self, stats: &mut VhostUserStats) {
        stats.connections = self.connections;
        stats.protocol_errors = self.protocol_errors;
        stats.memory_faults = self.memory_faults;
    }

    /// Ends the connection of a monitor whose guest has lost memory. The guest's driver cannot continue
    /// without the device's writes, and only the monitor knows the state of its file.
    pub(crate) fn on_lost_memory(&mut self) -> io::Result<()> {
        if self.connection.is_none() {
            return Ok(());
        }
        self.memory_faults += 1;
        let text = "a page of the guest's memory is gone: the file has become shorter, or its file system \
                    is full";
        self.end_connection(&End::Violation(text.to_owned()))
    }

    /// Handles the messages that have arrived, and starts the next connection if there is none.
    pub(crate) fn handle(&mut self, has_messages: bool, has_source: bool) -> io::Result<()> {
        if has_messages && let Some(connection) = &mut self.connection {
            let processed = connection.process();
            if let Err(end) = processed {
                self.end_connection(&end)?;
            }
            // Started rings may already have chains, and packets may wait for a guest that is gone.
            self.pairs.iter().skip(1).try_for_each(Pair::wake)?;
        }
        if has_source && self.connection.is_none() {
            self.connect()?;
        }
        Ok(())
    }

    fn end_connection(&mut self, end: &End) -> io::Result<()> {
        match end {
            End::Closed => tracing::debug!("the virtual machine monitor has closed its connection"),
            End::Violation(error) => {
                self.protocol_errors += 1;
                LOG.warn(error, || {
                    format!("closed the connection of a virtual machine monitor: {error}")
                });
            }
        }
        self.connection = None;
        let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
        let only_queues = backend.take_only_queues();
        backend.reset();
        drop(backend);
        if only_queues {
            self.report_queues();
        }
        if let Some(callback) = &mut self.on_disconnect {
            callback();
        }
        // A monitor that ends each connection at once must not keep this process busy.
        if self.source.connects() && self.source.retry_later()? {
            return Ok(());
        }
        self.connect()
    }

    /// Reports that the monitor has read the number of pairs of queues and closed its connection. A
    /// monitor that needs more pairs does so, and may reconnect for ever.
    fn report_queues(&self) {
        let pairs = self.pairs.len();
        let more = pairs + 1;
        LOG.warn("queues", || {
            format!(
                "the virtual machine monitor has closed its connection before its guest used the card, which \
                 has {pairs} pair(s) of queues; if it was started with queues={more} or more, use {pairs}"
            )
        });
    }

    /// Starts the next connection, if there is one.
    pub(crate) fn connect(&mut self) -> io::Result<()> {
        let Some(socket) = self.source.next()? else {
            return Ok(());
        };
        let epoll = self.pairs.first().epoll().clone();
        match Connection::new(socket, self.backend.clone(), epoll, CONTROL) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.connections += 1;
            }
            // The error may be temporary, e.g. a lack of descriptors.
            Err(error) if self.source.retry_later()? => {
                LOG.warn(error.kind(), || {
                    format!("cannot use a vhost-user connection: {error}")
                });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Drop for Control {
    /// The other devices may exist longer, and must not use the memory of a guest that is no longer
    /// served.
    fn drop(&mut self) {
        self.pairs.reset();
    }
}

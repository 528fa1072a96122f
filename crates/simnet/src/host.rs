//! The hosts of a network with their software.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fullsend::{Builder, Stack};
use fullsend_wire::{Instant, Rng};
use tokio::task::{JoinError, JoinHandle};

use crate::error::SoftwareResult;
use crate::machine::Machine;
use crate::net::Net;
use crate::topology::NodeId;

/// The host on which a software runs, passed to the software. Clones refer to the same host.
#[derive(Clone)]
pub struct Host {
    pub(crate) net: Net,
    pub(crate) name: Arc<str>,
    pub(crate) stack: Stack,
    pub(crate) seed: u64,
}

impl Host {
    /// Returns the name of the host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the host's stack, on which the software opens sockets.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Returns the network, through which the software can change links and crash hosts.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Returns the IPv4 socket address of a host and port, e.g. `"server:80"`: see
    /// [`Net::resolve`].
    ///
    /// # Errors
    /// `NotFound` for an unknown name, and `InvalidInput` without a port.
    pub fn resolve(&self, host_and_port: &str) -> io::Result<SocketAddr> {
        self.net.resolve(host_and_port)
    }

    /// Returns a number with which the software can seed its own random number generators. It derives
    /// from the simulation's seed, and differs after each start of the host.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

pub(crate) type SoftwareFuture = Pin<Box<dyn Future<Output = SoftwareResult> + Send>>;

/// A function that changes the settings of a host's stack.
pub(crate) type Configure = Arc<dyn Fn(Builder) -> Builder + Send + Sync>;

/// The software of a host, ready to start.
pub(crate) type Start = Box<dyn FnOnce(Host) -> SoftwareFuture + Send>;

/// The software of a host.
pub(crate) enum Software {
    /// A software that runs until the end of the simulation, and can be started again.
    Server(Arc<dyn Fn(Host) -> SoftwareFuture + Send + Sync>),
    /// A software that runs once to its end, for which the simulation waits. `None` after its start.
    Client(Option<Start>),
}

impl Software {
    /// Returns the software to start, or `None` for a client that has already started.
    pub(crate) fn start(&mut self) -> Option<Start> {
        match self {
            Self::Server(software) => {
                let software = software.clone();
                Some(Box::new(move |host| software(host)))
            }
            Self::Client(software) => software.take(),
        }
    }

    fn is_client(&self) -> bool {
        matches!(self, Self::Client(_))
    }
}

/// The state of a host.
pub(crate) enum State {
    /// The host starts with the next run.
    New,
    Running,
    /// The software has ended; the stack still runs.
    Ended,
    Crashed,
}

/// A host of the network.
pub(crate) struct HostEntry {
    pub(crate) node: NodeId,
    pub(crate) name: Arc<str>,
    pub(crate) software: Software,
    pub(crate) configure: Option<Configure>,
    pub(crate) rng: Rng,
    pub(crate) state: State,
    pub(crate) stack: Option<Stack>,
    /// The machine on which the host runs; `None` if it does not run.
    pub(crate) machine: Option<Arc<Machine>>,
    /// The task of the software, until it has ended.
    pub(crate) task: Option<JoinHandle<SoftwareResult>>,
}

impl HostEntry {
    /// Returns the result of the software, only once.
    pub(crate) fn take_result(&mut self) -> Option<Result<SoftwareResult, JoinError>> {
        let task = self.task.as_mut().filter(|task| task.is_finished())?;
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(result) = Pin::new(task).poll(&mut cx) else {
            return None;
        };
        self.task = None;
        Some(result)
    }
}

/// The hosts of a network in the order of definition.
#[derive(Default)]
pub(crate) struct Hosts {
    pub(crate) entries: Vec<HostEntry>,
    /// The machines of crashed hosts, which end before another task runs.
    pub(crate) crashed: Vec<Arc<Machine>>,
    /// The machine of all hosts, if they share one.
    pub(crate) shared_machine: Option<Arc<Machine>>,
    pub(crate) shares_machine: bool,
    /// Whether a run is in progress, rather than only the test.
    pub(crate) is_running: bool,
    /// The settings of every stack.
    pub(crate) configure_all: Option<Configure>,
}

impl Hosts {
    /// Returns the host of a node.
    pub(crate) fn entry(&mut self, node: NodeId) -> Option<&mut HostEntry> {
        // Nodes are added in ascending order.
        let index = self.entries.binary_search_by_key(&node, |entry| entry.node);
        index.ok().map(|index| &mut self.entries[index])
    }

    /// Returns the machines of the running hosts.
    pub(crate) fn machines(&self) -> Vec<Arc<Machine>> {
        if self.shares_machine {
            return self.shared_machine.iter().cloned().collect();
        }
        let machines = self.entries.iter().map(|entry| entry.machine.clone());
        machines.flatten().collect()
    }

    /// Returns the machine of a host that starts.
    pub(crate) fn new_machine(&mut self, now: Instant, seed: u64) -> io::Result<Arc<Machine>> {
        if let Some(machine) = &self.shared_machine {
            return Ok(machine.clone());
        }
        let machine = Arc::new(Machine::new(now, seed)?);
        if self.shares_machine {
            self.shared_machine = Some(machine.clone());
        }
        Ok(machine)
    }

    /// Returns the names of the clients whose software runs or has not started yet.
    pub(crate) fn pending_clients(&self) -> impl Iterator<Item = &str> {
        let is_pending = |entry: &&HostEntry| {
            entry.software.is_client() && matches!(entry.state, State::New | State::Running)
        };
        self.entries
            .iter()
            .filter(is_pending)
            .map(|entry| &*entry.name)
    }
}

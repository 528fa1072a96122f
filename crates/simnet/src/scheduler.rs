//! The order in which the machines of a simulation run, and the passage of its time.
//!
//! Time stands still while a task of any machine can run. Then it advances to the next event: an event of
//! the agenda (a packet, a deadline of a stack, the end of the run), or a timer of a machine. tokio does
//! not report a runtime's next timer, but advances its paused clock to it. A machine's clock may
//! therefore be ahead of the simulation's, but no further than the least delay of a link, within which no
//! other host can affect it.

use fullsend_wire::{Instant, Nanos};

use crate::error::Failure;
use crate::host::State;
use crate::machine::{tick_after, tick_before};
use crate::net::Net;

/// Most times that machines run at one instant: otherwise two hosts that answer each other over links
/// without delay and rate would stop time for ever.
const MAX_ROUNDS_PER_INSTANT: u32 = 100_000;

/// The event that ends a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The end of all clients' software.
    ClientsEnded,
    /// A time.
    Time,
}

/// A run of a simulation.
pub(crate) struct Run<'a> {
    pub(crate) net: &'a Net,
    pub(crate) until: Until,
    /// The latest time at which the run ends.
    pub(crate) end: Instant,
}

impl Run<'_> {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let _running = Running::begin(self.net);
        let shared = &self.net.inner().shared;
        let mut rounds = 0;
        loop {
            let now = shared.now();
            while self.run_machines(now)? || shared.run_due(now) {
                rounds += 1;
                if rounds > MAX_ROUNDS_PER_INSTANT {
                    return Err(Failure::Stalled);
                }
                if self.clients_have_ended() {
                    return Ok(());
                }
            }
            if self.clients_have_ended() {
                return Ok(());
            }
            if now >= self.end {
                return self.end_of_time();
            }
            let next = self.next_time(now);
            if next > now {
                rounds = 0;
                shared.set_now(next);
            } else {
                rounds += 1;
            }
        }
    }

    /// Returns whether the run waits for clients, and the software of all has ended.
    fn clients_have_ended(&self) -> bool {
        let hosts = self.net.inner().hosts.lock();
        self.until == Until::ClientsEnded && hosts.pending_clients().next().is_none()
    }

    fn end_of_time(&self) -> Result<(), Failure> {
        if self.until == Until::Time {
            return Ok(());
        }
        let hosts = self.net.inner().hosts.lock();
        let clients = hosts.pending_clients().map(str::to_owned).collect();
        Err(Failure::TimeLimit { clients })
    }

    /// Runs each machine whose tasks can run, in the order of the hosts. Returns whether there was one.
    fn run_machines(&self, now: Instant) -> Result<bool, Failure> {
        let hosts = &self.net.inner().hosts;
        let mut ran = false;
        let count = hosts.lock().entries.len();
        for index in 0..count {
            let machine = hosts.lock().entries[index].machine.clone();
            let Some(machine) = machine.filter(|machine| machine.ready_at(now) == Some(now)) else {
                continue;
            };
            ran = true;
            machine.run(now);
            drop(machine);
            self.net.bury_crashed();
        }
        if ran {
            self.take_results()?;
        }
        Ok(ran)
    }

    /// Processes the results of software that has ended.
    fn take_results(&self) -> Result<(), Failure> {
        let mut hosts = self.net.inner().hosts.lock();
        for entry in &mut hosts.entries {
            match entry.take_result() {
                None => {}
                // The result of a crashed host is ignored.
                Some(_) if !matches!(entry.state, State::Running) => {}
                Some(Ok(result)) => {
                    entry.state = State::Ended;
                    if let Err(error) = result {
                        let host = entry.name.to_string();
                        return Err(Failure::Software { host, error });
                    }
                }
                Some(Err(error)) => {
                    drop(hosts);
                    if let Ok(panic) = error.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the time of the next event after `now`, when nothing more can happen at `now`.
    fn next_time(&self, now: Instant) -> Instant {
        let machines = self.net.inner().hosts.lock().machines();
        let (event, lookahead) = self.net.inner().shared.next_event();
        // A single machine waits only for its own timers and the agenda.
        let lookahead = match machines.len() {
            0 | 1 => MAX_LOOKAHEAD,
            _ => lookahead,
        };
        let event = event.unwrap_or(self.end);
        let ready = || {
            let ready = machines.iter().filter_map(|machine| machine.ready_at(now));
            ready.fold(event, Instant::min)
        };
        let horizon = tick_before(now + lookahead).max(tick_after(now));
        let tick = tick_before(ready().min(horizon));
        if tick <= now {
            // tokio's timers fire at whole milliseconds, so none fires in between.
            return ready();
        }
        for machine in &machines {
            machine.advance_to_timer(tick);
        }
        ready().min(tick.max(now))
    }
}

/// A mark that the hosts are running, removed on drop, also by a panic of a software.
struct Running<'a>(&'a Net);

impl<'a> Running<'a> {
    fn begin(net: &'a Net) -> Self {
        net.inner().hosts.lock().is_running = true;
        Self(net)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.inner().hosts.lock().is_running = false;
    }
}

/// The greatest lookahead, used for hosts without links.
pub(crate) const MAX_LOOKAHEAD: Nanos = Nanos::from_secs(365 * 86_400);

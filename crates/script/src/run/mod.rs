//! Runs a script against the stack, in virtual time.

mod args;
mod calls;
mod datagram;
mod expect;
mod flow;
mod inject;
pub(crate) mod settings;
pub(crate) mod target;
mod virtual_stack;
mod wire;

use std::collections::BTreeMap;
use std::fmt;

use calls::{Attempt, CallProgress, Descriptors, Disk};
use flow::Flow;
pub use flow::segment_text;
use settings::RunSettings;
pub use settings::{Family, families};
use target::Target;
use virtual_stack::VirtualStack;
pub use wire::{IpPacket, WireSegment};

use crate::code::{self, Scope};
use crate::constants::constant;
use crate::error::{Pos, ScriptError};
use crate::info::SocketState;
use crate::library::{Library, LibraryTarget};
use crate::script::{Action, Call, Event, Nanos, Script, Seconds, Time};

/// The report of a run that succeeded.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The events of the run, one line each.
    pub trace: Vec<String>,
    /// Commands that were not recognised, and skipped.
    pub skipped: Vec<String>,
}

/// The report of a run that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run's address family.
    pub family: &'static str,
    /// The position, what was expected and what happened.
    pub error: ScriptError,
    /// The script's line, if the failure has one.
    pub line: String,
    /// The events up to the failure, one line each.
    pub trace: Vec<String>,
    /// Commands that were not recognised, and skipped.
    pub skipped: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} ({})",
            self.error.pos, self.error.message, self.family
        )?;
        if !self.line.is_empty() {
            writeln!(f, "  script: {}", self.line)?;
        }
        for command in &self.skipped {
            writeln!(f, "  not supported, skipped: {command}")?;
        }
        self.trace
            .iter()
            .try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl std::error::Error for Failure {}

/// Runs `script` once, in virtual time.
///
/// # Errors
/// Returns the first event that differs from the script.
pub fn run(script: &Script, family: Family) -> Result<Report, Box<Failure>> {
    run_on(script, family, |settings| {
        Ok(Box::new(VirtualStack::new(settings)?))
    })
}

/// Runs `script` once through `library`, like packetdrill.
///
/// # Errors
/// Returns the first event that differs from the script.
pub fn run_through(
    library: &Library,
    script: &Script,
    family: Family,
) -> Result<Report, Box<Failure>> {
    run_on(script, family, |settings| {
        Ok(Box::new(LibraryTarget::new(library, settings)?))
    })
}

fn run_on(
    script: &Script,
    family: Family,
    target: impl FnOnce(&RunSettings) -> Result<Box<dyn Target>, String>,
) -> Result<Report, Box<Failure>> {
    let fail = |error: ScriptError, line: String, report: Report| {
        Box::new(Failure {
            family: family.name(),
            error,
            line,
            trace: report.trace,
            skipped: report.skipped,
        })
    };
    let mut runner = ScriptRunner::new(script, family, target)
        .map_err(|error| fail(error, String::new(), Report::default()))?;
    for event in &script.events {
        if let Err(error) = runner.event(event) {
            runner.log_unexpected();
            return Err(fail(error, event.text.clone(), runner.report));
        }
    }
    match runner.finish() {
        Ok(()) => Ok(runner.report),
        Err(error) => Err(fail(error, String::new(), runner.report)),
    }
}

/// A call that has not returned yet.
struct PendingCall<'a> {
    call: &'a Call,
    pos: Pos,
    progress: CallProgress,
    /// The time at which the call should return.
    end: Nanos,
}

pub(crate) struct ScriptRunner<'a> {
    settings: RunSettings,
    target: Box<dyn Target>,
    files: Descriptors,
    disk: Disk,
    flows: Vec<Flow>,
    /// The flow that packets of the script belong to.
    under_test: Option<usize>,
    /// The listening port, to which a SYN creates a new flow.
    listening: Option<u16>,
    next_remote_port: u16,
    pending: Option<PendingCall<'a>>,
    /// The time of the last event, according to the script.
    last: Nanos,
    scope: Scope,
    report: Report,
    /// Payload may differ from the pattern, and is not compared.
    skip_payload_check: bool,
    /// Bytes written and read, by the script's descriptor.
    streams: BTreeMap<i64, StreamOffsets>,
}

/// The bytes that an application has written to and read from a connection.
#[derive(Clone, Copy, Default, Debug)]
struct StreamOffsets {
    written: u64,
    read: u64,
}

/// Time to wait for a packet after its window, to report when it was sent.
const LATE_PACKET_TIMEOUT: Nanos = 200_000_000_000;
/// The remote end's first port.
const REMOTE_PORT: u16 = 36_840;

/// The time window of an event.
#[derive(Clone, Copy, Debug)]
struct TimeWindow {
    from: Nanos,
    to: Nanos,
    tolerance: Nanos,
    any: bool,
}

fn at_start(message: String) -> ScriptError {
    ScriptError::new(Pos { line: 1, column: 1 }, message)
}

impl<'a> ScriptRunner<'a> {
    fn new(
        script: &Script,
        family: Family,
        target: impl FnOnce(&RunSettings) -> Result<Box<dyn Target>, String>,
    ) -> Result<Self, ScriptError> {
        let settings = RunSettings::new(script, family)?;
        let target = target(&settings).map_err(at_start)?;
        Ok(Self {
            settings,
            target,
            files: Descriptors::default(),
            disk: Disk::default(),
            flows: Vec::new(),
            under_test: None,
            listening: None,
            next_remote_port: REMOTE_PORT,
            pending: None,
            last: 0,
            scope: Scope::default(),
            report: Report::default(),
            skip_payload_check: false,
            streams: BTreeMap::new(),
        })
    }

    fn event(&mut self, event: &'a Event) -> Result<(), ScriptError> {
        let window = self.window(event);
        let started = match &event.action {
            // As in packetdrill, later relative times count from when the packet was sent.
            Action::Expect(packet) => {
                let before = self.target.now();
                self.expect(event.pos, packet, window)?.max(before)
            }
            action => {
                self.advance(window.from)?;
                let at = if window.any {
                    self.target.now()
                } else {
                    window.from
                };
                self.act(event, action)?;
                at
            }
        };
        self.last = started;
        Ok(())
    }

    fn window(&self, event: &Event) -> TimeWindow {
        let (from, to, any) = match event.time {
            Time::Any => (
                self.target.now(),
                self.target.now() + LATE_PACKET_TIMEOUT,
                true,
            ),
            Time::At(at) => (at, at, false),
            Time::Between(from, to) => (from, to, false),
            Time::After(gap) => (self.last + gap, self.last + gap, false),
            Time::AfterBetween(from, to) => (self.last + from, self.last + to, false),
        };
        // As in packetdrill, a long wait has a tolerance in proportion, but at least the setting.
        let tolerance = self.settings.tolerance.max((from - self.last) / 8);
        TimeWindow {
            from,
            to,
            tolerance,
            any,
        }
    }

    fn act(&mut self, event: &'a Event, action: &'a Action) -> Result<(), ScriptError> {
        match action {
            Action::Inject(packet) => {
                self.inject(event.pos, packet)?;
                self.retry()
            }
            Action::Expect(_) => Ok(()),
            Action::Call(call) => {
                self.log(&event.text);
                self.start_call(event, call)
            }
            Action::Shell(command) => {
                self.disk.run_command(command);
                let skipped = self.target.command(command);
                let skipped = skipped.map_err(|what| ScriptError::new(event.pos, what))?;
                self.report.skipped.extend(skipped);
                Ok(())
            }
            Action::Code(text, pos) => self.code(text, *pos),
        }
    }

    /// Adds a line to the trace.
    fn log(&mut self, text: &str) {
        let now = Seconds(self.target.now());
        self.report.trace.push(format!("{now} {text}"));
    }

    /// Advances the time to `to`.
    fn advance(&mut self, to: Nanos) -> Result<(), ScriptError> {
        while self.target.now() < to {
            if self.target.step(to) {
                self.retry()?;
            }
            self.expire_pending()?;
        }
        // Runs what is due at exactly this time.
        while self.target.step(to) {
            self.retry()?;
            if self.target.now() > to {
                break;
            }
        }
        Ok(())
    }

    fn code(&mut self, text: &str, pos: Pos) -> Result<(), ScriptError> {
        let at = |line: u32| pos.down(line);
        let statements =
            code::parse(text).map_err(|(line, what)| ScriptError::new(at(line), what))?;
        let info = self.option_bytes(pos, ("SOL_TCP", "TCP_INFO"), 280)?;
        let memory = if text.contains("SK_MEMINFO_") {
            self.option_bytes(pos, ("SOL_SOCKET", "SO_MEMINFO"), 36)?
        } else {
            Vec::new()
        };
        let state = SocketState {
            info: &info,
            memory: &memory,
        };
        let mut printed = Vec::new();
        let done = self.scope.run(&statements, &state, &mut printed);
        for line in &printed {
            self.log(line);
        }
        done.map_err(|failure| ScriptError::new(at(failure.line), failure.message))
    }

    /// Returns the value of an option of the socket under test, up to `len` bytes.
    fn option_bytes(
        &mut self,
        pos: Pos,
        (level, name): (&str, &str),
        len: usize,
    ) -> Result<Vec<u8>, ScriptError> {
        let flow = self.under_test.and_then(|index| self.flows[index].fd);
        let Some(fd) = flow.or(self.files.last()) else {
            let message = format!("there is no socket to read {name} from; create one first");
            return Err(ScriptError::new(pos, message));
        };
        let handle = self.files.fd(fd, pos)?;
        let mut bytes = vec![0; len];
        let number = |name| constant(name).unwrap_or(0) as i32;
        let len = self
            .target
            .getsockopt_of_code(handle, number(level), number(name), &mut bytes)
            .map_err(|errno| ScriptError::new(pos, format!("cannot read {name}: {errno}")))?;
        bytes.truncate(len);
        Ok(bytes)
    }

    fn start_call(&mut self, event: &'a Event, call: &'a Call) -> Result<(), ScriptError> {
        // One call at a time, as of a single thread.
        if let Some(pending) = &self.pending {
            let end = pending.end + self.settings.tolerance;
            if self.target.wait_for_call() {
                self.retry_now()?;
            } else {
                self.advance(end)?;
            }
        }
        self.target.may_block(call.end.is_some());
        let mut progress = CallProgress::new(self.target.now());
        let step = self.attempt(event.pos, call, &mut progress)?;
        self.target.transmit_pending();
        let end = match (call.end, event.time) {
            (None, _) => None,
            (Some(end), Time::After(_) | Time::AfterBetween(..)) => Some(self.last + end),
            (Some(end), _) => Some(end),
        };
        match step {
            Attempt::Returned(result) => {
                self.check_end(event.pos, end)?;
                self.check_result(event.pos, call, result)
            }
            Attempt::Blocked => {
                self.pending = Some(PendingCall {
                    call,
                    pos: event.pos,
                    progress,
                    end: end.unwrap_or(Nanos::MAX / 2),
                });
                if end.is_none() { self.wait() } else { Ok(()) }
            }
        }
    }

    /// Waits for a call without an end in the script, which blocks all events, as in packetdrill.
    fn wait(&mut self) -> Result<(), ScriptError> {
        let limit = self.target.now() + LATE_PACKET_TIMEOUT;
        while let Some(pending) = &self.pending {
            let pos = pending.pos;
            let until = pending.progress.deadline.unwrap_or(limit);
            self.target.step(until.min(limit));
            self.retry()?;
            self.expire_pending()?;
            if self.target.now() >= limit && self.pending.is_some() {
                let message = "the call blocks; write the time at which it returns (t...end)";
                return Err(ScriptError::new(pos, message));
            }
        }
        Ok(())
    }

    /// Retries the pending call if the stack's state has changed.
    fn retry(&mut self) -> Result<(), ScriptError> {
        if self.target.take_ready() {
            self.retry_now()
        } else {
            Ok(())
        }
    }

    fn retry_now(&mut self) -> Result<(), ScriptError> {
        let Some(mut pending) = self.pending.take() else {
            return Ok(());
        };
        let step = self.attempt(pending.pos, pending.call, &mut pending.progress)?;
        self.target.transmit_pending();
        match step {
            Attempt::Blocked => {
                self.pending = Some(pending);
                Ok(())
            }
            Attempt::Returned(result) => {
                self.log(&format!("{} returns", pending.call.name));
                if pending.end < Nanos::MAX / 2 {
                    self.check_end(pending.pos, Some(pending.end))?;
                }
                self.check_result(pending.pos, pending.call, result)
            }
        }
    }

    /// Ends the pending call if its own timeout has expired; fails if the script's has.
    fn expire_pending(&mut self) -> Result<(), ScriptError> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let now = self.target.now();
        if pending
            .progress
            .deadline
            .is_some_and(|deadline| now >= deadline)
        {
            return self.retry_now();
        }
        let (pos, end) = (pending.pos, pending.end);
        if now > end + self.settings.tolerance && !self.target.blocks_itself() {
            let message = format!("{} has not returned by {}", pending.call.name, Seconds(end));
            return Err(ScriptError::new(pos, message));
        }
        Ok(())
    }

    fn check_end(&mut self, pos: Pos, end: Option<Nanos>) -> Result<(), ScriptError> {
        let now = self.target.returned_at();
        let Some(end) = end else { return Ok(()) };
        let tolerance = self.settings.tolerance.max((end - self.last) / 8);
        if (now - end).abs() <= tolerance {
            return Ok(());
        }
        let message = format!("returned at {}, expected {}", Seconds(now), Seconds(end));
        Err(ScriptError::new(pos, message))
    }

    /// Waits for the call that is pending at the end of the script.
    fn finish(&mut self) -> Result<(), ScriptError> {
        if let Some(pending) = &self.pending {
            let (pos, end) = (pending.pos, pending.end);
            if self.target.wait_for_call() {
                self.retry_now()?;
            } else {
                self.advance(end + self.settings.tolerance)?;
            }
            if self.pending.is_some() {
                let message = format!("the call has not returned by {}", Seconds(end));
                return Err(ScriptError::new(pos, message));
            }
        }
        self.log_unexpected();
        self.target.finish().map_err(at_start)
    }
}

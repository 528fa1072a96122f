//! Runs a script against the stack, in virtual time.

mod args;
mod calls;
mod expect;
mod flow;
mod inject;
mod live;
mod settings;
mod world;

use std::collections::BTreeMap;
use std::fmt;

use calls::{Files, Progress, Step};
use flow::Flow;
use settings::Settings;
pub use settings::{Family, families};
use world::World;

use crate::code::{self, Scope};
use crate::constants::constant;
use crate::error::{Pos, ScriptError};
use crate::info::TcpInfo;
use crate::script::{Action, Call, Event, Nanos, Script, Seconds, Time};
use crate::shell::{self, Wish};

/// What a run that succeeded has to tell.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Everything that happened, a line each.
    pub trace: Vec<String>,
    /// Commands that were not understood, and left out.
    pub skipped: Vec<String>,
}

/// Why a run failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which run.
    pub family: &'static str,
    /// Where, what was expected and what happened.
    pub error: ScriptError,
    /// The script's line, if the failure has one.
    pub line: String,
    /// Everything up to there.
    pub trace: Vec<String>,
    /// Commands that were not understood, and left out.
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
            writeln!(f, "  not supported, left out: {command}")?;
        }
        self.trace
            .iter()
            .try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl std::error::Error for Failure {}

/// Runs `script` once.
///
/// # Errors
/// The first thing that was not as the script has it.
pub fn run(script: &Script, family: Family) -> Result<Report, Box<Failure>> {
    let fail = |error: ScriptError, line: String, report: Report| {
        Box::new(Failure {
            family: family.name(),
            error,
            line,
            trace: report.trace,
            skipped: report.skipped,
        })
    };
    let mut runner = Runner::new(script, family)
        .map_err(|error| fail(error, String::new(), Report::default()))?;
    for event in &script.events {
        if let Err(error) = runner.event(event) {
            runner.note_unseen();
            return Err(fail(error, event.text.clone(), runner.report));
        }
    }
    match runner.finish() {
        Ok(()) => Ok(runner.report),
        Err(error) => Err(fail(error, String::new(), runner.report)),
    }
}

/// A call that has not returned yet.
struct Pending<'a> {
    call: &'a Call,
    pos: Pos,
    progress: Progress,
    /// When it should return.
    end: Nanos,
}

pub(crate) struct Runner<'a> {
    settings: Settings,
    world: World,
    files: Files,
    flows: Vec<Flow>,
    /// The flow that packets are about.
    under_test: Option<usize>,
    /// A port that listens, and whether the next SYN makes a new flow.
    listening: Option<u16>,
    next_remote_port: u16,
    pending: Option<Pending<'a>>,
    /// When the last event was, as the script has it.
    last: Nanos,
    scope: Scope,
    report: Report,
    /// Sequence numbers of each flow's payload that are not of the pattern.
    odd_data: bool,
    /// What was written and read, by script descriptor.
    streams: BTreeMap<i64, Stream>,
}

/// How far an application's side of a connection has come.
#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    written: u64,
    read: u64,
}

/// How long to look for a packet beyond its time, to say when it came.
const LOOK_AHEAD: Nanos = 200_000_000_000;
/// The remote end's first port.
const REMOTE_PORT: u16 = 36_840;

/// When an event may happen.
#[derive(Clone, Copy, Debug)]
struct Window {
    from: Nanos,
    to: Nanos,
    tolerance: Nanos,
    any: bool,
}

impl<'a> Runner<'a> {
    fn new(script: &Script, family: Family) -> Result<Self, ScriptError> {
        let settings = Settings::new(script, family)?;
        let world = World::new(&settings)
            .map_err(|message| ScriptError::new(Pos { line: 1, column: 1 }, message))?;
        Ok(Self {
            settings,
            world,
            files: Files::default(),
            flows: Vec::new(),
            under_test: None,
            listening: None,
            next_remote_port: REMOTE_PORT,
            pending: None,
            last: 0,
            scope: Scope::default(),
            report: Report::default(),
            odd_data: false,
            streams: BTreeMap::new(),
        })
    }

    fn event(&mut self, event: &'a Event) -> Result<(), ScriptError> {
        let window = self.window(event);
        let started = match &event.action {
            Action::Expect(packet) => {
                let at = self.expect(event.pos, packet, window)?;
                if window.any || window.from != window.to {
                    at
                } else {
                    window.from
                }
            }
            action => {
                self.advance(window.from)?;
                let at = if window.any {
                    self.world.now()
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

    fn window(&self, event: &Event) -> Window {
        let (from, to, any) = match event.time {
            Time::Any => (self.world.now(), self.world.now() + LOOK_AHEAD, true),
            Time::At(at) => (at, at, false),
            Time::Between(from, to) => (from, to, false),
            Time::After(gap) => (self.last + gap, self.last + gap, false),
            Time::AfterBetween(from, to) => (self.last + from, self.last + to, false),
        };
        // As packetdrill has it: a part of a long wait, and never less than the setting.
        let tolerance = self.settings.tolerance.max((from - self.last) / 8);
        Window {
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
                self.shell(command);
                Ok(())
            }
            Action::Code(text, pos) => self.code(text, *pos),
        }
    }

    /// Adds a line to the trace.
    fn log(&mut self, text: &str) {
        let now = Seconds(self.world.now());
        self.report.trace.push(format!("{now} {text}"));
    }

    /// Lets time pass up to `to`.
    fn advance(&mut self, to: Nanos) -> Result<(), ScriptError> {
        while self.world.now() < to {
            if self.world.step(to) {
                self.retry()?;
            }
            self.give_up_pending()?;
        }
        // What is due at this very moment.
        while self.world.step(to) {
            self.retry()?;
            if self.world.now() > to {
                break;
            }
        }
        Ok(())
    }

    fn shell(&mut self, command: &str) {
        for wish in shell::wishes(command) {
            match wish {
                Wish::Nothing => {}
                Wish::Sysctl(key, value) => {
                    let now = self.world.instant();
                    if let Err(error) = self.world.posix.host_mut().set_sysctl(now, &key, &value) {
                        self.report.skipped.push(format!("{key}={value}: {error}"));
                    }
                }
                Wish::Unknown(text) => self.report.skipped.push(text),
            }
        }
        self.world.settle();
    }

    fn code(&mut self, text: &str, pos: Pos) -> Result<(), ScriptError> {
        let at = |line: u32| pos.down(line);
        let statements =
            code::read(text).map_err(|(line, what)| ScriptError::new(at(line), what))?;
        let info = self.tcp_info(pos)?;
        let mut printed = Vec::new();
        let done = self.scope.run(&statements, &TcpInfo(&info), &mut printed);
        for line in &printed {
            self.log(line);
        }
        done.map_err(|failure| ScriptError::new(at(failure.line), failure.message))
    }

    /// What `TCP_INFO` says of the socket under test.
    fn tcp_info(&mut self, pos: Pos) -> Result<Vec<u8>, ScriptError> {
        let flow = self.under_test.and_then(|index| self.flows[index].fd);
        let Some(fd) = flow.or(self.files.last()) else {
            return Err(ScriptError::new(
                pos,
                "there is no socket to ask for TCP_INFO",
            ));
        };
        let handle = self.files.handle(fd, pos)?;
        let mut bytes = vec![0; 280];
        let now = self.world.instant();
        let (level, name) = (
            constant("SOL_TCP").unwrap_or(0) as i32,
            constant("TCP_INFO").unwrap_or(0) as i32,
        );
        let len = self
            .world
            .posix
            .getsockopt(now, handle, level, name, &mut bytes)
            .map_err(|errno| ScriptError::new(pos, format!("TCP_INFO: {errno}")))?;
        bytes.truncate(len);
        Ok(bytes)
    }

    fn start_call(&mut self, event: &'a Event, call: &'a Call) -> Result<(), ScriptError> {
        // One call at a time, as one thread makes them.
        if let Some(pending) = &self.pending {
            let end = pending.end + self.settings.tolerance;
            self.advance(end)?;
        }
        let mut progress = Progress::new(self.world.now());
        let step = self.attempt(event.pos, call, &mut progress)?;
        self.world.settle();
        let end = match (call.end, event.time) {
            (None, _) => None,
            (Some(end), Time::After(_) | Time::AfterBetween(..)) => Some(self.last + end),
            (Some(end), _) => Some(end),
        };
        match step {
            Step::Returned(result) => {
                self.check_end(event.pos, end)?;
                self.check_result(event.pos, call, result)
            }
            Step::Blocks => {
                self.pending = Some(Pending {
                    call,
                    pos: event.pos,
                    progress,
                    end: end.unwrap_or(Nanos::MAX / 2),
                });
                if end.is_none() { self.wait() } else { Ok(()) }
            }
        }
    }

    /// A call without an end in the script blocks all else, as it does in packetdrill.
    fn wait(&mut self) -> Result<(), ScriptError> {
        let limit = self.world.now() + LOOK_AHEAD;
        while let Some(pending) = &self.pending {
            let pos = pending.pos;
            let until = pending.progress.deadline.unwrap_or(limit);
            self.world.step(until.min(limit));
            self.retry()?;
            self.give_up_pending()?;
            if self.world.now() >= limit && self.pending.is_some() {
                let message = "the call blocks; give it the time at which it returns (t...end)";
                return Err(ScriptError::new(pos, message));
            }
        }
        Ok(())
    }

    /// The stack has moved: perhaps the pending call can go on.
    fn retry(&mut self) -> Result<(), ScriptError> {
        let mut ready = Vec::new();
        self.world.posix.take_ready(&mut ready);
        if ready.is_empty() {
            return Ok(());
        }
        self.retry_now()
    }

    fn retry_now(&mut self) -> Result<(), ScriptError> {
        let Some(mut pending) = self.pending.take() else {
            return Ok(());
        };
        let step = self.attempt(pending.pos, pending.call, &mut pending.progress)?;
        self.world.settle();
        match step {
            Step::Blocks => {
                self.pending = Some(pending);
                Ok(())
            }
            Step::Returned(result) => {
                self.log(&format!("{} returns", pending.call.name));
                if pending.end < Nanos::MAX / 2 {
                    self.check_end(pending.pos, Some(pending.end))?;
                }
                self.check_result(pending.pos, pending.call, result)
            }
        }
    }

    /// Ends the pending call if its own time-out has come, or fails if the script's has.
    fn give_up_pending(&mut self) -> Result<(), ScriptError> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let now = self.world.now();
        if pending
            .progress
            .deadline
            .is_some_and(|deadline| now >= deadline)
        {
            return self.retry_now();
        }
        let (pos, end) = (pending.pos, pending.end);
        if now > end + self.settings.tolerance {
            let message = format!("{} has not returned by {}", pending.call.name, Seconds(end));
            return Err(ScriptError::new(pos, message));
        }
        Ok(())
    }

    fn check_end(&mut self, pos: Pos, end: Option<Nanos>) -> Result<(), ScriptError> {
        let now = self.world.now();
        let Some(end) = end else { return Ok(()) };
        let tolerance = self.settings.tolerance.max((end - self.last) / 8);
        if (now - end).abs() <= tolerance {
            return Ok(());
        }
        let message = format!("returned at {}, expected {}", Seconds(now), Seconds(end));
        Err(ScriptError::new(pos, message))
    }

    /// What the script leaves open.
    fn finish(&mut self) -> Result<(), ScriptError> {
        if let Some(pending) = &self.pending {
            let (pos, end) = (pending.pos, pending.end);
            self.advance(end + self.settings.tolerance)?;
            if self.pending.is_some() {
                let message = format!("the call has not returned by {}", Seconds(end));
                return Err(ScriptError::new(pos, message));
            }
        }
        self.note_unseen();
        Ok(())
    }
}

//! What became of bytes that a user watches (`SO_TIMESTAMPING`), and when bytes arrived.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use fullsend_units::{Instant, SeqNum};

use super::{Connection, Extras};
use crate::Cx;

/// Most bytes watched, and most events not taken, of one connection; then the newest are not
/// told.
const MAX_WATCHED: usize = 1024;
/// Most times of arrival kept; beyond, the newest text shares a time.
const MAX_RX_TIMES: usize = 1024;

/// What happens to a byte that was written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TxStage {
    /// It left the connection for the host's queues (`SCM_TSTAMP_SCHED`).
    Scheduled = 0,
    /// The device has it (`SCM_TSTAMP_SND`).
    Sent = 1,
    /// The peer acknowledged it and all before it (`SCM_TSTAMP_ACK`).
    Acked = 2,
}

/// A set of stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxStages(u8);

impl TxStages {
    /// None.
    pub const NONE: Self = Self(0);

    /// With `stage`.
    #[must_use]
    pub const fn with(self, stage: TxStage) -> Self {
        Self(self.0 | 1 << stage as u8)
    }

    /// `stage` is one of them.
    pub const fn has(self, stage: TxStage) -> bool {
        self.0 & 1 << stage as u8 != 0
    }

    const fn without(self, stage: TxStage) -> Self {
        Self(self.0 & !(1 << stage as u8))
    }
}

/// A watched byte reached a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxEvent {
    /// The watched offset, as given to [`Connection::watch_tx`].
    pub end: u64,
    /// What happened.
    pub stage: TxStage,
    /// When.
    pub at: Instant,
}

#[derive(Debug)]
struct Watched {
    end: u64,
    /// Stages not reached yet.
    left: TxStages,
    /// The number of the unit that it left in.
    number: Option<u16>,
}

/// Watched bytes, in the stream's order, and what is to be told of them.
#[derive(Debug, Default)]
pub(crate) struct TxWatches {
    watched: VecDeque<Watched>,
    events: VecDeque<TxEvent>,
}

impl TxWatches {
    fn tell(&mut self, i: usize, stage: TxStage, at: Instant) -> bool {
        let watched = &mut self.watched[i];
        let told = watched.left.has(stage) && self.events.len() < MAX_WATCHED;
        watched.left = watched.left.without(stage);
        if told {
            let end = watched.end;
            self.events.push_back(TxEvent { end, stage, at });
        }
        told
    }

    /// The text up to offset `to` left in the unit `number`.
    fn on_scheduled(&mut self, to: u64, number: u16, at: Instant) -> bool {
        let mut told = false;
        let start = self.watched.partition_point(|w| w.number.is_some());
        for i in start..self.watched.len() {
            if self.watched[i].end > to {
                break;
            }
            self.watched[i].number = Some(number);
            told |= self.tell(i, TxStage::Scheduled, at);
        }
        told
    }

    fn on_sent(&mut self, at: Instant, in_host: impl Fn(u16) -> bool) -> bool {
        let mut told = false;
        for i in 0..self.watched.len() {
            match self.watched[i].number {
                Some(number) if !in_host(number) => told |= self.tell(i, TxStage::Sent, at),
                Some(_) => {}
                None => break,
            }
        }
        told
    }

    fn on_acked(&mut self, to: u64, at: Instant) -> bool {
        let mut told = false;
        while self.watched.front().is_some_and(|w| w.end <= to) {
            // What was acknowledged has been sent, whatever the device said.
            for stage in [TxStage::Sent, TxStage::Acked] {
                told |= self.tell(0, stage, at);
            }
            self.watched.pop_front();
        }
        told
    }

    fn on_end(&mut self) {
        self.watched.clear();
    }
}

/// When text arrived: `(end, time)` of runs that came at the same time.
#[derive(Debug, Default)]
pub(crate) struct RxTimes {
    runs: VecDeque<(SeqNum, Instant)>,
    /// Of the last byte read.
    last: Option<Instant>,
}

fn tx_of(extras: &mut Option<Box<Extras>>) -> Option<&mut TxWatches> {
    extras.as_mut()?.tx.as_deref_mut()
}

impl Connection {
    /// Bytes written since the connection began.
    pub fn written(&self) -> u64 {
        self.sent_offset() + self.snd.queue.len() as u64
    }

    /// Of these, sent.
    fn sent_offset(&self) -> u64 {
        let sent = self.snd.text_in_flight() - self.syn_in_flight();
        self.acked_offset() + u64::from(sent)
    }

    /// Of these, acknowledged.
    fn acked_offset(&self) -> u64 {
        self.stats.bytes_acked
    }

    /// Asks to be told when the bytes up to `end` (counted as [`written`](Self::written) does, and
    /// at once after their write) reach `stages`.
    pub fn watch_tx(&mut self, end: u64, stages: TxStages) {
        let tx = self.extras_mut().tx.get_or_insert_default();
        let room = tx.watched.len() < MAX_WATCHED;
        if room && tx.watched.back().is_none_or(|last| last.end <= end) {
            tx.watched.push_back(Watched {
                end,
                left: stages,
                number: None,
            });
        }
    }

    /// The next thing to tell of a watched byte.
    pub fn take_tx_event(&mut self) -> Option<TxEvent> {
        self.extras.as_mut()?.tx.as_mut()?.events.pop_front()
    }

    /// [`take_tx_event`](Self::take_tx_event) would give something.
    pub fn has_tx_event(&self) -> bool {
        let tx = self.extras.as_ref().and_then(|extras| extras.tx.as_ref());
        tx.is_some_and(|tx| !tx.events.is_empty())
    }

    /// Text left in the unit `number`, for the first time.
    #[cold]
    pub(crate) fn watch_scheduled(&mut self, cx: &Cx<'_>, number: u16) {
        let to = self.sent_offset();
        if let Some(tx) = tx_of(&mut self.extras) {
            self.user.wakes.read |= tx.on_scheduled(to, number, cx.now);
        }
    }

    /// The device completed a unit.
    #[cold]
    pub(crate) fn watch_sent(&mut self, cx: &Cx<'_>) {
        if let (Some(tx), Some(flow)) = (tx_of(&mut self.extras), &self.snd.flow) {
            let in_host = |number| flow.is_in_host(number);
            self.user.wakes.read |= tx.on_sent(cx.now, in_host);
        }
    }

    /// `snd_una` moved.
    #[cold]
    pub(crate) fn watch_acked(&mut self, cx: &Cx<'_>) {
        let to = self.acked_offset();
        if let Some(tx) = tx_of(&mut self.extras) {
            self.user.wakes.read |= tx.on_acked(to, cx.now);
        }
    }

    /// Nothing more will be acknowledged.
    pub(crate) fn watch_end(&mut self) {
        if let Some(tx) = tx_of(&mut self.extras) {
            tx.on_end();
        }
    }

    pub(super) fn keeps_rx_times(&self) -> bool {
        self.extras
            .as_ref()
            .is_some_and(|extras| extras.rx.is_some())
    }

    pub(super) fn set_rx_times(&mut self, on: bool) {
        if on != self.keeps_rx_times() {
            self.extras_mut().rx = on.then(Box::default);
        }
    }

    /// When the last byte that was read arrived, if that is kept
    /// ([`SoTimestampRx`](crate::SocketOption::SoTimestampRx)) and was when it arrived.
    pub fn rx_time(&self) -> Option<Instant> {
        self.extras.as_ref()?.rx.as_ref()?.last
    }

    /// Text arrived in order.
    #[cold]
    pub(crate) fn note_rx_time(&mut self, now: Instant) {
        let rcv_nxt = self.rcv.queue.rcv_nxt();
        let Some(rx) = self.extras.as_mut().and_then(|extras| extras.rx.as_mut()) else {
            return;
        };
        let is_full = rx.runs.len() >= MAX_RX_TIMES;
        match rx.runs.back_mut() {
            Some(run) if run.1 == now => run.0 = rcv_nxt,
            Some(run) if is_full => *run = (rcv_nxt, now),
            _ => rx.runs.push_back((rcv_nxt, now)),
        }
    }

    /// The user took text.
    #[cold]
    pub(crate) fn note_rx_read(&mut self) {
        let fin = u32::from(self.rcv.queue.fin_received());
        let read_to = self.rcv.queue.rcv_nxt() - fin - self.rcv.queue.readable() as u32;
        let Some(rx) = self.extras.as_mut().and_then(|extras| extras.rx.as_mut()) else {
            return;
        };
        // The run of the last byte read: the first that reaches up to it.
        while let Some(&(end, at)) = rx.runs.front() {
            rx.last = Some(at);
            if end.after_eq(read_to) {
                if end == read_to {
                    rx.runs.pop_front();
                }
                return;
            }
            rx.runs.pop_front();
        }
    }
}

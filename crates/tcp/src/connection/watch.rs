//! Progress of bytes that the application watches (`SO_TIMESTAMPING`), and arrival times.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use fullsend_wire::{Instant, SeqNum};

use super::{Connection, Uncommon};
use crate::Cx;

/// Most watched bytes, and most unread events, of one connection; beyond that the newest are not
/// reported.
const MAX_WATCHED: usize = 1024;
/// Most arrival times recorded; beyond that the newest data shares one.
const MAX_RX_TIMES: usize = 1024;

/// A stage of a written byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TxStage {
    /// The byte was passed to the host's queues (`SCM_TSTAMP_SCHED`).
    Scheduled = 0,
    /// The device has sent the byte (`SCM_TSTAMP_SND`).
    Sent = 1,
    /// The peer acknowledged the byte and all before it (`SCM_TSTAMP_ACK`).
    Acked = 2,
}

/// A set of stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxStages(u8);

impl TxStages {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Returns the set with `stage` added.
    #[must_use]
    pub const fn with(self, stage: TxStage) -> Self {
        Self(self.0 | 1 << stage as u8)
    }

    /// Returns whether the set contains `stage`.
    pub const fn has(self, stage: TxStage) -> bool {
        self.0 & 1 << stage as u8 != 0
    }

    const fn without(self, stage: TxStage) -> Self {
        Self(self.0 & !(1 << stage as u8))
    }
}

/// An event of a watched byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxEvent {
    /// The watched offset, as given to [`Connection::watch_tx`].
    pub end: u64,
    /// The stage that the byte reached.
    pub stage: TxStage,
    /// The time of the event.
    pub at: Instant,
}

#[derive(Debug)]
struct WatchedByte {
    end: u64,
    /// Stages not reached yet.
    pending_stages: TxStages,
    /// The number of the super-segment that carried the byte.
    number: Option<u16>,
}

/// The watched bytes, in stream order, and their pending events.
#[derive(Debug, Default)]
pub(crate) struct TxWatches {
    watched: VecDeque<WatchedByte>,
    events: VecDeque<TxEvent>,
}

impl TxWatches {
    fn push_event(&mut self, i: usize, stage: TxStage, at: Instant) -> bool {
        let watched = &mut self.watched[i];
        let reported = watched.pending_stages.has(stage) && self.events.len() < MAX_WATCHED;
        watched.pending_stages = watched.pending_stages.without(stage);
        if reported {
            let end = watched.end;
            self.events.push_back(TxEvent { end, stage, at });
        }
        reported
    }

    /// Records that the data up to offset `to` was sent in super-segment `number`.
    fn on_scheduled(&mut self, to: u64, number: u16, at: Instant) -> bool {
        let mut reported = false;
        let start = self.watched.partition_point(|w| w.number.is_some());
        for i in start..self.watched.len() {
            if self.watched[i].end > to {
                break;
            }
            self.watched[i].number = Some(number);
            reported |= self.push_event(i, TxStage::Scheduled, at);
        }
        reported
    }

    fn on_sent(&mut self, at: Instant, in_host_queue: impl Fn(u16) -> bool) -> bool {
        let mut reported = false;
        for i in 0..self.watched.len() {
            match self.watched[i].number {
                Some(number) if !in_host_queue(number) => {
                    reported |= self.push_event(i, TxStage::Sent, at);
                }
                Some(_) => {}
                None => break,
            }
        }
        reported
    }

    fn on_acked(&mut self, to: u64, at: Instant) -> bool {
        let mut reported = false;
        while self.watched.front().is_some_and(|w| w.end <= to) {
            // Acknowledged data has been sent, whatever the device reported.
            for stage in [TxStage::Sent, TxStage::Acked] {
                reported |= self.push_event(0, stage, at);
            }
            self.watched.pop_front();
        }
        reported
    }

    fn on_end(&mut self) {
        self.watched.clear();
    }
}

/// Arrival times of received data: `(end, time)` of runs with the same time.
#[derive(Debug, Default)]
pub(crate) struct RxTimes {
    runs: VecDeque<(SeqNum, Instant)>,
    /// The arrival time of the last byte read.
    last: Option<Instant>,
}

fn tx_watches(uncommon: &mut Option<Box<Uncommon>>) -> Option<&mut TxWatches> {
    uncommon.as_mut()?.tx.as_deref_mut()
}

impl Connection {
    /// Returns the number of bytes written since the connection began.
    pub fn written(&self) -> u64 {
        self.sent_offset() + self.snd.unsent_bytes() as u64
    }

    /// Returns the number of bytes sent since the connection began.
    fn sent_offset(&self) -> u64 {
        let sent = self.snd.bytes_in_flight() - self.syn_in_flight();
        self.acked_offset() + u64::from(sent)
    }

    /// Returns the number of bytes acknowledged since the connection began.
    fn acked_offset(&self) -> u64 {
        self.stats.bytes_acked
    }

    /// Requests an event when the bytes up to `end` reach each of `stages`. `end` counts as
    /// [`written`](Self::written) does; the call must directly follow their write.
    pub fn watch_tx(&mut self, end: u64, stages: TxStages) {
        let tx = self.uncommon_mut().tx.get_or_insert_default();
        let room = tx.watched.len() < MAX_WATCHED;
        if room && tx.watched.back().is_none_or(|last| last.end <= end) {
            tx.watched.push_back(WatchedByte {
                end,
                pending_stages: stages,
                number: None,
            });
        }
    }

    /// Returns the next event of a watched byte.
    pub fn take_tx_event(&mut self) -> Option<TxEvent> {
        self.uncommon.as_mut()?.tx.as_mut()?.events.pop_front()
    }

    /// Returns whether [`take_tx_event`](Self::take_tx_event) would return an event.
    pub fn has_tx_event(&self) -> bool {
        let tx = self
            .uncommon
            .as_ref()
            .and_then(|uncommon| uncommon.tx.as_ref());
        tx.is_some_and(|tx| !tx.events.is_empty())
    }

    /// Records the first transmission of data in super-segment `number`.
    #[cold]
    pub(crate) fn watch_scheduled(&mut self, cx: &Cx<'_>, number: u16) {
        let to = self.sent_offset();
        if let Some(tx) = tx_watches(&mut self.uncommon) {
            self.user.wakes.read |= tx.on_scheduled(to, number, cx.now);
        }
    }

    /// Records the device's completion of a super-segment.
    #[cold]
    pub(crate) fn watch_sent(&mut self, cx: &Cx<'_>) {
        if let Some(tx) = tx_watches(&mut self.uncommon) {
            let in_host_queue = |number| self.snd.is_in_host_queue(number);
            self.user.wakes.read |= tx.on_sent(cx.now, in_host_queue);
        }
    }

    /// Records that `snd_una` advanced.
    #[cold]
    pub(crate) fn watch_acked(&mut self, cx: &Cx<'_>) {
        let to = self.acked_offset();
        if let Some(tx) = tx_watches(&mut self.uncommon) {
            self.user.wakes.read |= tx.on_acked(to, cx.now);
        }
    }

    /// Drops all watches, as nothing more will be acknowledged.
    pub(crate) fn watch_end(&mut self) {
        if let Some(tx) = tx_watches(&mut self.uncommon) {
            tx.on_end();
        }
    }

    pub(super) fn records_rx_times(&self) -> bool {
        self.uncommon
            .as_ref()
            .is_some_and(|uncommon| uncommon.rx.is_some())
    }

    pub(super) fn set_rx_times(&mut self, on: bool) {
        if on != self.records_rx_times() {
            self.uncommon_mut().rx = on.then(Box::default);
        }
    }

    /// Returns the arrival time of the last byte read, if
    /// [`SoTimestampRx`](crate::SocketOption::SoTimestampRx) was set when it arrived and still is.
    pub fn rx_time(&self) -> Option<Instant> {
        self.uncommon.as_ref()?.rx.as_ref()?.last
    }

    /// Records the arrival time of data received in order.
    #[cold]
    pub(crate) fn record_rx_time(&mut self, now: Instant) {
        let rcv_nxt = self.rcv.nxt();
        let Some(rx) = self
            .uncommon
            .as_mut()
            .and_then(|uncommon| uncommon.rx.as_mut())
        else {
            return;
        };
        let is_full = rx.runs.len() >= MAX_RX_TIMES;
        match rx.runs.back_mut() {
            Some(run) if run.1 == now => run.0 = rcv_nxt,
            Some(run) if is_full => *run = (rcv_nxt, now),
            _ => rx.runs.push_back((rcv_nxt, now)),
        }
    }

    /// Determines the arrival time of the data that was just read.
    #[cold]
    pub(crate) fn record_rx_read(&mut self) {
        let fin = u32::from(self.rcv.fin_received());
        let read_to = self.rcv.nxt() - fin - self.rcv.readable() as u32;
        let Some(rx) = self
            .uncommon
            .as_mut()
            .and_then(|uncommon| uncommon.rx.as_mut())
        else {
            return;
        };
        // The first run that reaches up to `read_to` contains the last byte read.
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

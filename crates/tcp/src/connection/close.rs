//! Closing (RFC 9293 3.6): FIN and its ways, RST, TIME-WAIT's beginning.

use alloc::boxed::Box;

use fullsend_units::{Instant, Nanos};

use super::{Connection, Fin, Reset, State};
use crate::send::Force;
use crate::time_wait::TwTimestamps;
use crate::{Cx, Linger, TcpError, TimeWait};

impl Connection {
    /// `shutdown(SHUT_WR)`: FIN after what is queued.
    pub fn shutdown_write(&mut self, _cx: &mut Cx<'_>) {
        if self.user.write_shut {
            return;
        }
        self.user.write_shut = true;
        match self.state {
            State::Established => self.transition(State::FinWait1),
            State::CloseWait => self.transition(State::LastAck),
            // The handshake's end finds the FIN queued.
            State::SynSent | State::SynReceived => {}
            _ => return,
        }
        self.snd.fin = Fin::Queued;
        self.snd.more = false;
        self.rcv.ack.expect_no_answers();
        self.out.any = true;
    }

    /// Text that arrives once both ways are shut resets the connection (RFC 1122 4.2.2.13); what
    /// came before can be read.
    pub fn expect_no_text(&mut self) {
        self.user.refuses_text = true;
    }

    /// `shutdown(SHUT_RD)`: reads give end of stream.
    pub fn shutdown_read(&mut self, cx: &mut Cx<'_>) {
        self.user.read_shut = true;
        self.expect_no_text();
        self.rcv.queue.clear();
        self.rcv.window.on_taken(0, 0);
        self.charge(cx);
        self.wake_reader();
    }

    /// The user let go (`close`): FIN, or RST when unread data is thrown away (RFC 2525 2.17) or
    /// linger is zero. The connection lives on as an orphan until done ([`State::Closed`]).
    pub fn close(&mut self, cx: &mut Cx<'_>) {
        self.user.orphan = true;
        let unread = self.rcv.queue.readable() > 0;
        self.rcv.queue.clear();
        self.rcv.window.on_taken(0, 0);
        match self.state {
            State::Closed => {}
            State::SynSent => {
                self.transition(State::Closed);
                self.finish();
            }
            _ if unread => {
                cx.mib.abort_on_close += 1;
                self.abort(cx);
            }
            _ if self.settings.linger() == Linger::For(Nanos::ZERO) => {
                cx.mib.abort_on_data += 1;
                self.abort_unfinished(cx);
            }
            _ => {
                self.shutdown_write(cx);
                // Keepalive ends here; an orphan's patience begins.
                self.timers.set_idle(Instant::FAR_FUTURE);
                if self.state == State::FinWait2 {
                    self.arm_orphan(cx);
                }
            }
        }
        self.charge(cx);
    }

    /// RST at once (RFC 9293 3.10.5).
    pub fn abort(&mut self, cx: &mut Cx<'_>) {
        if self.state == State::Closed {
            return;
        }
        if self.state != State::SynSent {
            self.out.reset = Some(Reset::Abort);
        }
        self.fail(TcpError::ConnectionAborted);
        self.out.any = self.out.reset.is_some();
        self.charge(cx);
    }

    /// Forgets the connection, with a RST unless both ends have sent all they have (RFC 9293 3.10.5:
    /// none in CLOSING and LAST-ACK).
    fn abort_unfinished(&mut self, cx: &mut Cx<'_>) {
        let ends = matches!(self.state, State::Closing | State::LastAck);
        if ends && !self.snd.has_unsent() {
            self.transition(State::Closed);
            self.finish();
        } else {
            self.abort(cx);
        }
    }

    /// An orphan in FIN-WAIT-2 does not wait for ever.
    fn arm_orphan(&mut self, cx: &mut Cx<'_>) {
        match self.settings.linger2(cx.sysctl) {
            Some(wait) => self.timers.set_idle(cx.now + wait),
            // TCP_LINGER2 below zero: nobody waits for the peer's FIN.
            None => self.abort(cx),
        }
    }

    /// The peer has acknowledged our FIN.
    pub(crate) fn fin_acked(&mut self, cx: &mut Cx<'_>) {
        match self.state {
            State::FinWait1 => {
                self.transition(State::FinWait2);
                if self.user.orphan {
                    self.arm_orphan(cx);
                }
            }
            State::Closing => self.begin_time_wait(cx),
            State::LastAck => {
                self.transition(State::Closed);
                self.finish();
            }
            _ => {}
        }
        self.wake_writer();
    }

    /// The peer's FIN is next in order (RFC 9293 3.10.7.4, eighth).
    pub(crate) fn take_fin(&mut self, cx: &mut Cx<'_>) {
        self.wake_reader();
        if self.state == State::Established {
            let rcv_nxt = self.rcv.queue.rcv_nxt();
            self.rcv.ack.on_end(cx.now, rcv_nxt);
            self.out.any |= self.rcv.ack.is_due();
            self.transition(State::CloseWait);
            return;
        }
        self.rcv.ack.now();
        self.out.any = true;
        match self.state {
            State::FinWait1 => self.transition(State::Closing),
            State::FinWait2 => self.begin_time_wait(cx),
            _ => {}
        }
    }

    fn begin_time_wait(&mut self, cx: &mut Cx<'_>) {
        cx.mib.time_waits += 1;
        let rcv_nxt = self.rcv.queue.rcv_nxt();
        let mut time_wait = TimeWait {
            expires: cx.now,
            local_port: self.local_port,
            remote_port: self.remote_port,
            snd_nxt: self.snd.nxt,
            rcv_nxt,
            window: self.window_field(cx),
            timestamps: self.agreed.timestamps.then_some(TwTimestamps {
                recent: self.ts.recent,
                offset: self.ts.offset,
            }),
            last_reply: None,
        };
        time_wait.restart(cx.now);
        self.time_wait = Some(Box::new(time_wait));
        self.transition(State::Closed);
        self.finish();
    }

    /// The connection is over, and this is why.
    pub(crate) fn fail(&mut self, error: TcpError) {
        self.user.error = Some(error);
        self.transition(State::Closed);
        self.rcv.ack.on_sent(self.rcv.queue.rcv_nxt());
        self.finish();
    }

    /// Nothing more will be sent but what is pending; what arrived can still be read.
    pub(crate) fn finish(&mut self) {
        self.timers.all_off();
        self.watch_end();
        if self.extras.is_some() {
            self.fastopen_finished();
        }
        self.rcv.ack.cancel_delay();
        self.user.lost_data |= !self.is_flushed();
        self.snd.queue.clear();
        self.snd.rtx.clear();
        self.snd.pacing = None;
        if let Some(flow) = &mut self.snd.flow {
            flow.wake_at = Instant::FAR_FUTURE;
        }
        self.snd.fin = match self.snd.fin {
            Fin::Queued => Fin::No,
            fin => fin,
        };
        self.out.syn = false;
        self.out.probe = false;
        self.out.force = Force::No;
        self.wake_reader();
        self.wake_writer();
    }
}

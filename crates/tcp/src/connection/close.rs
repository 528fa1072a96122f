//! Closing (RFC 9293 3.6): FIN, RST, and the start of TIME-WAIT.

use alloc::boxed::Box;

use fullsend_wire::{Instant, Nanos};

use super::{Connection, State};
use crate::send::Reset;
use crate::time_wait::TwTimestamps;
use crate::{Cx, Linger, TcpError, TimeWait};

impl Connection {
    /// Sends a FIN after the queued data (`shutdown(SHUT_WR)`).
    pub fn shutdown_write(&mut self, _cx: &mut Cx<'_>) {
        if self.user.write_shut {
            return;
        }
        self.user.write_shut = true;
        match self.state {
            State::Established => self.transition(State::FinWait1),
            State::CloseWait => self.transition(State::LastAck),
            // The FIN is sent when the handshake ends.
            State::SynSent | State::SynReceived => {}
            _ => return,
        }
        self.snd.queue_fin();
        self.rcv.end_interactive();
    }

    /// Resets the connection when data arrives after both directions were shut down (RFC 1122
    /// 4.2.2.13). Data received before can be read.
    pub fn reset_on_data(&mut self) {
        self.user.resets_on_data = true;
    }

    /// Ends reading (`shutdown(SHUT_RD)`): reads return the end of the stream.
    pub fn shutdown_read(&mut self, cx: &mut Cx<'_>) {
        self.user.read_shut = true;
        self.reset_on_data();
        self.rcv.discard();
        self.charge(cx);
        self.wake_reader();
    }

    /// Closes the socket (`close`): sends a FIN, or a RST if unread data is discarded (RFC 2525
    /// 2.17) or linger is zero. The connection continues as an orphan until [`State::Closed`].
    pub fn close(&mut self, cx: &mut Cx<'_>) {
        self.user.orphan = true;
        let unread = self.rcv.readable() > 0;
        self.rcv.discard();
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
                // Keepalive ends, and the orphan timeout begins.
                self.timers.set_idle(Instant::FAR_FUTURE);
                if self.state == State::FinWait2 {
                    self.arm_orphan(cx);
                }
            }
        }
        self.charge(cx);
    }

    /// Resets the connection immediately (RFC 9293 3.10.5).
    pub fn abort(&mut self, cx: &mut Cx<'_>) {
        if self.state == State::Closed {
            return;
        }
        if self.state != State::SynSent {
            self.snd.pending_mut().request_reset(Reset::Abort);
        }
        self.fail(TcpError::ConnectionAborted);
        self.charge(cx);
    }

    /// Drops the connection, with a RST unless both ends have sent everything (RFC 9293 3.10.5: no
    /// RST in CLOSING and LAST-ACK).
    fn abort_unfinished(&mut self, cx: &mut Cx<'_>) {
        let ends = matches!(self.state, State::Closing | State::LastAck);
        if ends && !self.snd.has_unsent() {
            self.transition(State::Closed);
            self.finish();
        } else {
            self.abort(cx);
        }
    }

    /// Starts the timeout of an orphan in FIN-WAIT-2.
    fn arm_orphan(&mut self, cx: &mut Cx<'_>) {
        match self.settings.linger2(cx.sysctl) {
            Some(wait) => self.timers.set_idle(cx.now + wait),
            // TCP_LINGER2 below zero: do not wait for the peer's FIN.
            None => self.abort(cx),
        }
    }

    /// Processes the acknowledgement of our FIN.
    pub(crate) fn on_fin_acked(&mut self, cx: &mut Cx<'_>) {
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

    /// Processes the peer's FIN once it is next in order (RFC 9293 3.10.7.4, eighth).
    pub(crate) fn on_fin(&mut self, cx: &mut Cx<'_>) {
        self.wake_reader();
        if self.state == State::Established {
            self.rcv.on_fin(cx.now);
            self.transition(State::CloseWait);
            return;
        }
        self.rcv.ack_now();
        match self.state {
            State::FinWait1 => self.transition(State::Closing),
            State::FinWait2 => self.begin_time_wait(cx),
            _ => {}
        }
    }

    fn begin_time_wait(&mut self, cx: &mut Cx<'_>) {
        cx.mib.time_waits += 1;
        let rcv_nxt = self.rcv.nxt();
        let mut time_wait = TimeWait {
            expires: cx.now,
            local_port: self.local_port,
            remote_port: self.remote_port,
            snd_nxt: self.snd.nxt(),
            rcv_nxt,
            window: self.window_field(cx),
            timestamps: self.negotiated.timestamps.then_some(TwTimestamps {
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

    /// Ends the connection with `error`.
    pub(crate) fn fail(&mut self, error: TcpError) {
        self.user.error = Some(error);
        self.transition(State::Closed);
        self.rcv.cancel_ack();
        self.finish();
    }

    /// Ends all sending except pending segments; received data can still be read.
    pub(crate) fn finish(&mut self) {
        self.timers.stop_all();
        self.watch_end();
        if self.uncommon.is_some() {
            self.fastopen_finished();
        }
        self.rcv.cancel_ack_delay();
        self.user.lost_data |= !self.is_flushed();
        self.snd.end();
        self.recovery.rtx.clear();
        self.wake_reader();
        self.wake_writer();
    }
}

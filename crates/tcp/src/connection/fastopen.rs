//! TCP Fast Open (RFC 7413), the connection's part: text in the SYN, before the handshake ends.
//! Cookies are the host's.

use alloc::boxed::Box;

use fullsend_buf::Chain;
use fullsend_units::{Mss, SeqNum};
use fullsend_wire::tcp::{FastopenCookie, TcpRepr};

use super::{Connection, State};
use crate::recovery::TransmitUnit;
use crate::{Cx, TcpError};

/// Consecutive timeouts after which the path is suspected to swallow what Fast Open sends
/// (RFC 7413 4.1.3.1).
const BLACKHOLE_TIMEOUTS: u8 = 2;

/// What a client may do, by its host's settings and memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastopenClient {
    /// Put on the SYN; the request for one if none is known; `None`: Fast Open is not used.
    pub cookie: Option<FastopenCookie>,
    /// Text may go without a cookie, and then without the option.
    pub no_cookie: bool,
    /// The peer's MSS as it last said, if that is known.
    pub mss: Option<u16>,
    /// The host did without for a while, and wants to hear if it works again.
    pub on_trial: bool,
}

/// What a host should know of a connection's Fast Open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastopenNews {
    /// The peer answered a client's SYN.
    Answer {
        /// Its MSS.
        mss: u16,
        /// The cookie that it gave.
        cookie: Option<FastopenCookie>,
        /// It was asked for one, in the option's older form or not, and gave none.
        refused: Option<bool>,
    },
    /// The path seems to swallow what Fast Open sends.
    Blackhole,
    /// A connection on trial received text: the path is good.
    Works,
    /// A connection that a SYN with text opened is no longer in the handshake; true: as the peer
    /// reset it.
    HandshakeOver(bool),
}

/// Why a client's text in the SYN did not arrive with it (`tcpi_fastopen_client_fail`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum FastopenFail {
    #[default]
    Unspecified = 0,
    CookieUnavailable = 1,
    DataNotAcked = 2,
    SynRetransmitted = 3,
}

/// State of one connection, in its box.
#[derive(Debug, Default)]
pub(crate) struct Fastopen {
    client: Option<FastopenClient>,
    /// The SYN waits for the first write.
    deferred: bool,
    /// The SYN went with the option, or with text.
    used: bool,
    /// The option.
    asked: Option<FastopenCookie>,
    /// The user waits to write.
    writes_next: bool,
    /// Text bytes in the SYN.
    syn_text: u32,
    /// The text in the SYN was taken, by the peer or by us.
    pub(crate) syn_text_taken: bool,
    pub(crate) fail: FastopenFail,
    /// A server's: opened by a SYN with a cookie; its handshake is not over.
    child: bool,
    /// The same, whether it is over or not.
    pub(crate) opened_at_once: bool,
    /// For the first SYN-ACK.
    syn_ack_cookie: Option<FastopenCookie>,
    news: [Option<FastopenNews>; 2],
}

impl Fastopen {
    fn tell(&mut self, news: FastopenNews) {
        if let Some(slot) = self.news.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(news);
        }
    }

    /// Text may ride on the SYN. `no_cookie`: the socket's own option.
    fn carries_text(&self, no_cookie: bool) -> bool {
        self.client.is_some_and(|client| {
            let known = client.cookie.is_some_and(|cookie| !cookie.is_request());
            known || client.no_cookie || no_cookie
        })
    }

    /// What stands in the first SYN's option.
    fn syn_option(&self, no_cookie: bool) -> Option<FastopenCookie> {
        let client = self.client?;
        client.cookie.filter(|_| !(client.no_cookie || no_cookie))
    }
}

impl Connection {
    pub(crate) fn fastopen(&self) -> Option<&Fastopen> {
        self.extras.as_ref()?.fastopen.as_deref()
    }

    fn fastopen_mut(&mut self) -> Option<&mut Fastopen> {
        self.extras.as_mut()?.fastopen.as_deref_mut()
    }

    /// The SYN waits for the first write, which may ride on it, or for
    /// [`send_syn`](Self::send_syn).
    pub fn defer_syn(&mut self, client: FastopenClient) {
        if self.state == State::SynSent && self.snd.rtx.is_empty() {
            self.out.syn = false;
            self.extras_mut().fastopen = Some(Box::new(Fastopen {
                client: Some(client),
                deferred: true,
                ..Fastopen::default()
            }));
        }
    }

    /// A deferred SYN goes, without text.
    pub fn send_syn(&mut self) {
        let no_cookie = self.settings.fastopen_no_cookie();
        if self.is_syn_deferred()
            && let Some(fastopen) = self.fastopen_mut()
        {
            fastopen.deferred = false;
            if !fastopen.carries_text(no_cookie) {
                fastopen.fail = FastopenFail::CookieUnavailable;
            }
            self.out.syn = true;
            self.out.any = true;
        }
    }

    /// The user of a connection that was deferred waits to write: the ACK of the SYN-ACK need not
    /// go by itself.
    pub fn expect_write(&mut self) {
        if let Some(fastopen) = self.fastopen_mut() {
            fastopen.writes_next = true;
        }
    }

    pub(super) fn is_write_expected(&self) -> bool {
        self.fastopen().is_some_and(|f| f.writes_next)
    }

    /// The SYN waits for a write.
    #[inline]
    pub(super) fn is_syn_deferred(&self) -> bool {
        self.state == State::SynSent && self.fastopen().is_some_and(|f| f.deferred)
    }

    /// A write now would ride on the SYN.
    pub fn fastopen_ready(&self) -> bool {
        let no_cookie = self.settings.fastopen_no_cookie();
        self.is_syn_deferred() && self.fastopen().is_some_and(|f| f.carries_text(no_cookie))
    }

    /// The first write of a deferred connection: as much as the SYN carries.
    #[cold]
    pub(super) fn write_syn_text(
        &mut self,
        cx: &mut Cx<'_>,
        data: &[u8],
    ) -> Result<usize, TcpError> {
        if !self.fastopen_ready() {
            self.send_syn();
            self.user.wants_write = true;
            return Err(TcpError::WouldBlock);
        }
        let most = data.len().min(self.syn_room() as usize);
        let goal = self.snd.size_goal as usize;
        let n = self
            .snd
            .queue
            .append(cx.pool, &data[..most], goal.max(most), true);
        if n < most.min(1) {
            return Err(TcpError::OutOfMemory);
        }
        if let Some(fastopen) = self.fastopen_mut() {
            fastopen.deferred = false;
        }
        self.out.syn = true;
        self.out.any = true;
        self.charge(cx);
        Ok(n)
    }

    /// Text bytes that fit into a SYN beside 40 bytes of options.
    fn syn_room(&self) -> u32 {
        let known = self.fastopen().and_then(|f| f.client?.mss);
        // Linux: a peer that never told its MSS is taken to be like us.
        let mss = known.unwrap_or(self.adv_mss.get()).min(self.snd.mss_clamp);
        u32::from(mss).min(self.snd.mss.bytes()).saturating_sub(40)
    }

    /// The first SYN leaves: its option, and the text that rides on it.
    #[cold]
    pub(super) fn fastopen_syn(&mut self, cx: &Cx<'_>) -> (Option<FastopenCookie>, Chain) {
        let no_cookie = self.settings.fastopen_no_cookie();
        let state = self.state;
        let Some(fastopen) = self.fastopen_mut() else {
            return (None, Chain::new());
        };
        if state == State::SynReceived {
            return (fastopen.syn_ack_cookie.take(), Chain::new());
        }
        let option = fastopen.syn_option(no_cookie);
        fastopen.used = option.is_some();
        fastopen.asked = option;
        if !fastopen.carries_text(no_cookie) {
            return (option, Chain::new());
        }
        (option, self.take_syn_text(cx))
    }

    /// Moves what was written from the write queue into the retransmission queue, behind the SYN.
    fn take_syn_text(&mut self, cx: &Cx<'_>) -> Chain {
        let room = self.syn_room() as usize;
        let taken = self.snd.queue.take(room);
        let len = taken.payload.len() as u32;
        if len == 0 {
            return taken.payload;
        }
        self.snd.rtx.push(TransmitUnit {
            seq: self.snd.nxt,
            payload: taken.payload.clone(),
            syn: false,
            fin: false,
            push: true,
            sent_at: cx.now,
            truesize: taken.truesize,
            number: 0,
        });
        self.snd.nxt += len;
        self.snd.pushed = self.snd.nxt;
        self.stats.data_segs_out += 1;
        if let Some(fastopen) = self.fastopen_mut() {
            fastopen.used = true;
            fastopen.syn_text = len;
        }
        self.watch_scheduled(cx, 0);
        taken.payload
    }

    /// The SYN was larger than the path takes: once more, without text.
    pub(super) fn fastopen_too_big(&mut self) {
        if self.fastopen().is_some_and(|f| f.syn_text > 0) {
            self.out.syn = true;
            self.out.any = true;
        }
    }

    /// The peer's SYN-ACK came: its cookie, and what became of our text.
    #[cold]
    pub(super) fn fastopen_syn_ack(&mut self, cx: &mut Cx<'_>, repr: &TcpRepr) {
        let retransmitted = self.stats.total_retrans > 0;
        self.hear_cookie(repr, retransmitted);
        let unacked = !self.snd.rtx.is_empty();
        let Some(fastopen) = self.fastopen_mut().filter(|f| f.syn_text > 0) else {
            return;
        };
        if !unacked {
            fastopen.syn_text_taken = true;
            cx.mib.fastopen_active += 1;
            return;
        }
        fastopen.fail = if retransmitted {
            FastopenFail::SynRetransmitted
        } else {
            FastopenFail::DataNotAcked
        };
        cx.mib.fastopen_active_fail += 1;
        // RFC 7413 4.1.3: sent again at once; nothing is known of congestion.
        self.resend_too_big();
    }

    /// What the host is to remember of the peer.
    fn hear_cookie(&mut self, repr: &TcpRepr, retransmitted: bool) {
        let Some(fastopen) = self.fastopen_mut().filter(|f| f.used) else {
            return;
        };
        let (asked, option) = (fastopen.asked, repr.options.fastopen);
        let refused = option.is_none() && fastopen.syn_text == 0 && !retransmitted;
        let news = FastopenNews::Answer {
            mss: repr.options.mss.unwrap_or(Mss::DEFAULT_V4.get()),
            // One that was not asked for is not to be trusted.
            cookie: option.filter(|cookie| asked.is_some() && !cookie.is_request()),
            refused: asked
                .filter(|_| refused)
                .map(|asked| asked.is_experimental()),
        };
        fastopen.tell(news);
        self.user.wakes.read = true;
    }

    /// The handshake is over, whichever way it began.
    #[cold]
    pub(super) fn fastopen_established(&mut self, cx: &mut Cx<'_>, repr: &TcpRepr) {
        if self.state == State::SynSent {
            self.fastopen_syn_ack(cx, repr);
        }
        self.end_fastopen_child(false);
    }

    fn end_fastopen_child(&mut self, reset: bool) {
        if let Some(fastopen) = self.fastopen_mut()
            && core::mem::take(&mut fastopen.child)
        {
            fastopen.tell(FastopenNews::HandshakeOver(reset));
            self.user.wakes.read = true;
        }
    }

    /// The connection is over.
    #[cold]
    pub(super) fn fastopen_finished(&mut self) {
        let reset = self.user.error == Some(TcpError::ConnectionReset);
        self.end_fastopen_child(reset);
        let received = self.stats.data_segs_in > 0;
        if !received && self.rcv.queue.has_bare_fin() {
            self.suspect_fastopen();
        }
        if let Some(fastopen) = self.fastopen_mut()
            && fastopen.client.is_some_and(|client| client.on_trial)
            && fastopen.used
            && received
        {
            fastopen.tell(FastopenNews::Works);
            self.user.wakes.read = true;
        }
    }

    /// A reset that lies in the window, but not where the peer would place it.
    #[cold]
    pub(super) fn fastopen_odd_reset(&mut self) {
        if self.state == State::Established && self.stats.data_segs_in == 0 {
            self.suspect_fastopen();
        }
    }

    /// RFC 7413 4.1.3.1: what a client sent with its SYN is lost to a box in the path.
    fn suspect_fastopen(&mut self) {
        if let Some(fastopen) = self.fastopen_mut()
            && fastopen.client.is_some()
            && fastopen.used
        {
            fastopen.tell(FastopenNews::Blackhole);
            self.user.wakes.read = true;
        }
    }

    /// The retransmission timer fired, `gave_up`: for the last time.
    #[cold]
    pub(super) fn fastopen_timeout(&mut self, gave_up: bool) {
        let timeouts = self.timers.retransmits;
        let suspect = timeouts == BLACKHOLE_TIMEOUTS || (timeouts < BLACKHOLE_TIMEOUTS && gave_up);
        if suspect {
            self.suspect_fastopen();
        }
    }

    /// The host has found the cookie of the SYN that opened this connection good, or needs none:
    /// the text that rode on it is there to be read before the handshake ends.
    pub fn open_at_once(&mut self, cx: &mut Cx<'_>, syn: &TcpRepr, text: Chain) {
        let fastopen = self.extras_mut().fastopen.get_or_insert_default();
        fastopen.child = true;
        fastopen.opened_at_once = true;
        fastopen.syn_text_taken = !text.is_empty();
        // The SYN's window begins behind our SYN, which is still in flight when data follows it.
        self.snd.wnd += 1;
        self.take_text_of_syn(cx, syn.seq + 1, text);
    }

    fn take_text_of_syn(&mut self, cx: &mut Cx<'_>, seq: SeqNum, mut text: Chain) {
        text.truncate(self.rcv.window.current(seq).0 as usize);
        if text.is_empty() {
            return;
        }
        self.stats.bytes_received += text.len() as u64;
        self.stats.data_segs_in += 1;
        self.rcv.queue.insert(cx.pool, seq, text, false);
        // The SYN-ACK is for all of it, and its window begins behind it.
        let rcv_nxt = self.rcv.queue.rcv_nxt();
        self.rcv.ack.on_sent(rcv_nxt);
        let scaled = self.agreed.window_scale;
        let told = self.told_segment();
        self.rcv.window.establish(cx.now, rcv_nxt, scaled, told);
        self.charge(cx);
    }

    /// The cookie to send with the first SYN-ACK.
    pub fn offer_cookie(&mut self, cookie: FastopenCookie) {
        let fastopen = self.extras_mut().fastopen.get_or_insert_default();
        fastopen.syn_ack_cookie = Some(cookie);
    }

    /// Opened by a SYN with a cookie and in the handshake: text may be sent already
    /// (RFC 7413 4.2.2).
    #[inline]
    pub(crate) fn is_fastopen_child(&self) -> bool {
        self.extras.is_some() && self.fastopen().is_some_and(|f| f.child)
    }

    /// [`take_fastopen_news`](Self::take_fastopen_news) has something. Readers are woken then.
    #[inline]
    pub fn has_fastopen_news(&self) -> bool {
        self.extras.is_some() && self.fastopen().is_some_and(|f| f.news[0].is_some())
    }

    /// The next thing that the host should know.
    pub fn take_fastopen_news(&mut self) -> Option<FastopenNews> {
        let [first, second] = &mut self.fastopen_mut()?.news;
        core::mem::replace(first, second.take())
    }
}

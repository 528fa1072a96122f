//! The host's part of TCP Fast Open (RFC 7413): cookies of both sides, and the decision which SYNs
//! open a connection at once.

use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;

use fullsend_tcp::{FastopenClient, FastopenEvent, FastopenKeys, SegmentIn};
use fullsend_wire::tcp::FastopenCookie;
use fullsend_wire::{Instant, Nanos};

use super::ListenerId;
use super::socket::{ConnectionOwner, SocketEntry};
use crate::Host;
use crate::demux::{Addr, FlowKey};
use crate::siphash::SipKey;

#[cfg(test)]
mod tests;

/// Bits of `tcp_fastopen`.
mod enable {
    pub(super) const CLIENT: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const CLIENT_NO_COOKIE: u32 = 4;
    pub(super) const SERVER_NO_COOKIE: u32 = 0x200;
    pub(super) const ALL_LISTENERS: u32 = 0x400;
}

/// Maximum number of destinations whose cookies are kept; a further one replaces the oldest.
const MAX_COOKIES: usize = 1024;

/// Time that a connection that was reset in the handshake occupies the queue (RFC 7413 5.1), so that an
/// attacker cannot make room by resetting connections.
const RESET_PENALTY: Nanos = Nanos::from_secs(60);

/// Each further period without Fast Open is twice as long, with at most this many doublings.
const MAX_DOUBLINGS: u32 = 6;

/// The occupancy of a listener's Fast Open queue.
#[derive(Debug, Default)]
pub(super) struct FastopenQueue {
    /// Number of connections in the handshake.
    pending: usize,
    /// The times at which the connections that were reset stop counting, in order.
    resets: VecDeque<Instant>,
}

impl FastopenQueue {
    fn has_room(&mut self, now: Instant, qlen: usize) -> bool {
        while self.resets.front().is_some_and(|until| *until <= now) {
            self.resets.pop_front();
        }
        self.pending + self.resets.len() < qlen
    }
}

/// The properties of a server that the next connection uses.
#[derive(Clone, Copy, Debug, Default)]
struct CachedServer {
    /// The server's cookie; a cookie request as long as the server has sent none.
    cookie: FastopenCookie,
    mss: Option<u16>,
    /// Whether the experimental form of the option was tried, too, and not answered either.
    both_forms_failed: bool,
}

/// The cookie and the MSS of a server, as one host of a stack passes them to another.
#[derive(Clone, Copy, Debug)]
pub struct FastopenServer(CachedServer);

/// The Fast Open state of the host.
#[derive(Debug)]
pub(super) struct FastopenState {
    /// The keys that are used unless others are set.
    default_keys: FastopenKeys,
    cookies: BTreeMap<IpAddr, CachedServer>,
    /// The keys of `cookies` in the order of insertion.
    order: VecDeque<IpAddr>,
    /// Connections of servers in the handshake: their socket slots, with their listeners.
    children: BTreeMap<u32, ListenerId>,
    /// The time of the last suspension of Fast Open by a client, and the number of consecutive ones.
    disabled_at: Instant,
    disable_count: u32,
}

/// The handling of a SYN.
pub(super) enum SynHandling {
    /// A connection was opened at once.
    Opened,
    /// The SYN is to be answered without Fast Open, with this cookie in the SYN-ACK.
    WithoutFastopen(Option<FastopenCookie>),
}

/// Returns the cookie for a peer. As on Linux, it is a SipHash of both addresses.
fn make_cookie(key: &[u8; 16], peer: Addr, local: Addr) -> FastopenCookie {
    let (words, _) = key.as_chunks::<8>();
    let key = SipKey(u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
    let hash = if peer.is_v4() {
        let mut both = [0; 8];
        both[..4].copy_from_slice(&peer.v4_octets());
        both[4..].copy_from_slice(&local.v4_octets());
        key.hash_2_4(&[u64::from_le_bytes(both)])
    } else {
        let mut words = [0; 4];
        for (pair, addr) in words.as_chunks_mut::<2>().0.iter_mut().zip([peer, local]) {
            let octets = addr.v6_octets();
            let (halves, _) = octets.as_chunks::<8>();
            *pair = [u64::from_le_bytes(halves[0]), u64::from_le_bytes(halves[1])];
        }
        key.hash_2_4(&words)
    };
    FastopenCookie::new(&hash.to_le_bytes()).unwrap_or(FastopenCookie::REQUEST)
}

impl FastopenState {
    /// Derives the default cookie keys from `key`.
    pub(super) fn new(key: SipKey) -> Self {
        let mut primary = [0; 16];
        for (n, half) in primary.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *half = key.hash_2_4(&[n as u64]).to_le_bytes();
        }
        Self {
            default_keys: FastopenKeys {
                primary,
                backup: None,
            },
            cookies: BTreeMap::new(),
            order: VecDeque::new(),
            children: BTreeMap::new(),
            disabled_at: Instant::ZERO,
            disable_count: 0,
        }
    }

    /// Stores what a server has sent.
    fn store(&mut self, peer: IpAddr, server: CachedServer) {
        if self.cookies.insert(peer, server).is_some() {
            return;
        }
        self.order.push_back(peer);
        if self.order.len() > MAX_COOKIES
            && let Some(oldest) = self.order.pop_front()
        {
            self.cookies.remove(&oldest);
        }
    }

    /// Processes a server's answer to a SYN. As on Linux, a server that sent no cookie may support
    /// the experimental form of the option; if it does not answer that one either, no further form
    /// is tried.
    fn on_syn_ack(
        &mut self,
        peer: IpAddr,
        mss: u16,
        cookie: Option<FastopenCookie>,
        refused: Option<bool>,
    ) {
        let mut server = self.cookies.get(&peer).copied().unwrap_or_default();
        server.mss = Some(mss);
        match (cookie, refused) {
            (Some(cookie), _) => server.cookie = cookie,
            (None, Some(old)) if !server.both_forms_failed && server.cookie.is_request() => {
                server.cookie = FastopenCookie::REQUEST.with_experimental(!old);
                server.both_forms_failed = old;
            }
            _ => {}
        }
        self.store(peer, server);
    }

    /// Returns whether clients have suspended Fast Open; `first_span_s` is the length of the first
    /// suspension, seconds.
    fn is_disabled(&self, now: Instant, first_span_s: u32) -> bool {
        let doublings = self.disable_count.saturating_sub(1).min(MAX_DOUBLINGS);
        let span = Nanos::from_secs(u64::from(first_span_s) << doublings);
        self.disable_count > 0 && now < self.disabled_at + span
    }
}

impl Host {
    /// Returns the cookie of the Fast Open server `peer`, for another shard of the stack; `None` if
    /// the server has sent this host none.
    pub fn fastopen_server(&self, peer: IpAddr) -> Option<FastopenServer> {
        let server = self.tcp.fastopen.cookies.get(&peer.to_canonical())?;
        (!server.cookie.is_request()).then_some(FastopenServer(*server))
    }

    /// Adds the cookie that the server `peer` has sent to another shard of the stack, unless this
    /// host has one of its own.
    pub fn add_fastopen_server(&mut self, peer: IpAddr, FastopenServer(server): FastopenServer) {
        if self.fastopen_server(peer).is_none() {
            self.tcp.fastopen.store(peer.to_canonical(), server);
        }
    }

    /// Returns what a client may use of Fast Open towards `peer`.
    pub(super) fn fastopen_client(&self, now: Instant, peer: IpAddr) -> FastopenClient {
        let (fastopen, sysctl) = (&self.tcp.fastopen, &self.env.sysctl);
        let bits = sysctl.tcp_fastopen;
        let span = sysctl.tcp_fastopen_blackhole_timeout_sec;
        if bits & enable::CLIENT == 0 || fastopen.is_disabled(now, span) {
            return FastopenClient {
                cookie: None,
                no_cookie: false,
                mss: None,
                on_trial: false,
            };
        }
        let server = fastopen.cookies.get(&peer.to_canonical());
        FastopenClient {
            cookie: Some(server.map_or(FastopenCookie::REQUEST, |server| server.cookie)),
            no_cookie: bits & enable::CLIENT_NO_COOKIE != 0,
            mss: server.and_then(|server| server.mss),
            on_trial: fastopen.disable_count > 0,
        }
    }

    /// Processes the Fast Open option of a SYN to a listener.
    pub(super) fn try_fastopen(
        &mut self,
        now: Instant,
        listener: u32,
        key: &FlowKey,
        segment: &mut SegmentIn,
    ) -> SynHandling {
        let option = segment.repr.options.fastopen;
        if option.is_none() && segment.payload.is_empty() {
            return SynHandling::WithoutFastopen(None);
        }
        let is_cookie_request = option.is_some_and(|cookie| cookie.is_request());
        self.env.mib.fastopen_cookie_reqd += u64::from(is_cookie_request);
        if !self.fastopen_has_room(now, listener) {
            return SynHandling::WithoutFastopen(None);
        }
        let Some(settings) = self.tcp.listeners.table.get(listener).map(|l| &l.settings) else {
            return SynHandling::WithoutFastopen(None);
        };
        let sysctl = &self.env.sysctl;
        let needs_no_cookie =
            settings.fastopen_no_cookie || sysctl.tcp_fastopen & enable::SERVER_NO_COOKIE != 0;
        let host_keys = sysctl
            .tcp_fastopen_key
            .unwrap_or(self.tcp.fastopen.default_keys);
        let keys = settings.fastopen_keys.unwrap_or(host_keys);
        // The answer has the same form of the option as the request.
        let old = option.is_some_and(|cookie| cookie.is_experimental());
        let make_for_key =
            |k: &[u8; 16]| make_cookie(k, key.remote, key.local).with_experimental(old);
        let (valid, backup) = (
            make_for_key(&keys.primary),
            keys.backup.as_ref().map(make_for_key),
        );
        let opened = match option {
            _ if needs_no_cookie => self.fastopen_child(now, listener, key, segment, None),
            None => return SynHandling::WithoutFastopen(None),
            Some(cookie) if cookie.is_request() => false,
            Some(cookie) if cookie == valid => {
                self.fastopen_child(now, listener, key, segment, None)
            }
            Some(cookie) if Some(cookie) == backup => {
                self.env.mib.fastopen_passive_alt_key += 1;
                self.fastopen_child(now, listener, key, segment, Some(valid))
            }
            Some(_) => {
                self.env.mib.fastopen_passive_fail += 1;
                false
            }
        };
        if opened {
            SynHandling::Opened
        } else {
            SynHandling::WithoutFastopen(Some(valid))
        }
    }

    /// Returns whether Fast Open is enabled for servers and the listener's queue has room.
    fn fastopen_has_room(&mut self, now: Instant, listener: u32) -> bool {
        let bits = self.env.sysctl.tcp_fastopen;
        let Some(listener) = self.tcp.listeners.table.get_mut(listener) else {
            return false;
        };
        let qlen = match listener.settings.fastopen_qlen {
            0 if bits & enable::ALL_LISTENERS != 0 => listener.config.backlog,
            qlen => qlen as usize,
        };
        if bits & enable::SERVER == 0 || qlen == 0 {
            return false;
        }
        let has_room = listener.fastopen.has_room(now, qlen);
        self.env.mib.fastopen_listen_overflow += u64::from(!has_room);
        has_room
    }

    /// Opens a connection at once and adds it to the listener's accept queue. `cookie` is sent in
    /// the SYN-ACK.
    fn fastopen_child(
        &mut self,
        now: Instant,
        listener: u32,
        key: &FlowKey,
        segment: &mut SegmentIn,
        cookie: Option<FastopenCookie>,
    ) -> bool {
        let syn = segment.repr;
        let owner = ConnectionOwner::Listener(listener);
        let iss = self.initial_sequence(now, key);
        let Ok(mut socket) = self.create_child(now, key, (&syn, segment.ecn), iss, owner) else {
            self.env.mib.fastopen_passive_fail += 1;
            return false;
        };
        let data = core::mem::take(&mut segment.payload);
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        socket.conn.open_early(&mut cx, &syn, data);
        if let Some(cookie) = cookie {
            socket.conn.offer_cookie(cookie);
        }
        let Some(id) = self.insert_connection(now, socket) else {
            self.env.mib.fastopen_passive_fail += 1;
            return false;
        };
        let index = self.tcp.table.by_id(id).map(|(index, _)| index);
        let listeners = &mut self.tcp.listeners.table;
        if let (Some(index), Some((l, id))) = (index, listeners.get_mut_with_id(listener)) {
            l.fastopen.pending += 1;
            l.accept_queue.push_back(index);
            l.accept_waiters.wake(&mut self.wakers);
            self.tcp.fastopen.children.insert(index, ListenerId(id));
            self.env.mib.fastopen_passive += 1;
            self.env.mib.passive_opens += 1;
        }
        true
    }

    /// Processes the Fast Open events of a connection.
    #[cold]
    pub(super) fn on_fastopen_events(&mut self, now: Instant, index: u32) {
        while let Some(SocketEntry::Conn(socket)) = self.tcp.table.get_mut(index)
            && let Some(event) = socket.conn.take_fastopen_event()
        {
            let peer = socket.key.remote.to_ip();
            match event {
                FastopenEvent::SynAckReceived {
                    mss,
                    cookie,
                    refused,
                } => self.tcp.fastopen.on_syn_ack(peer, mss, cookie, refused),
                FastopenEvent::Blackhole => self.disable_fastopen(now),
                FastopenEvent::TrialSucceeded => self.tcp.fastopen.disable_count = 0,
                FastopenEvent::HandshakeEnded(reset) => {
                    self.on_fastopen_handshake_ended(now, index, reset);
                }
            }
        }
    }

    /// Suspends Fast Open for clients, as the path seems to drop segments with its option or data
    /// (RFC 7413 4.1.3.1).
    fn disable_fastopen(&mut self, now: Instant) {
        if self.env.sysctl.tcp_fastopen_blackhole_timeout_sec == 0 {
            return;
        }
        self.env.mib.fastopen_blackhole += 1;
        let fastopen = &mut self.tcp.fastopen;
        fastopen.disable_count = fastopen.disable_count.saturating_add(1);
        fastopen.disabled_at = now;
    }

    /// Drops what is stored of servers: their cookies and their MSS (`ip tcp_metrics flush`).
    pub fn flush_tcp_metrics(&mut self) {
        self.tcp.fastopen.cookies.clear();
        self.tcp.fastopen.order.clear();
    }

    /// Ends a suspension. As on Linux, setting `tcp_fastopen_blackhole_timeout_sec` does so.
    pub(crate) fn clear_fastopen_blackholes(&mut self) {
        self.tcp.fastopen.disable_count = 0;
    }

    fn on_fastopen_handshake_ended(&mut self, now: Instant, index: u32, reset: bool) {
        let Some(listener) = self.tcp.fastopen.children.remove(&index) else {
            return;
        };
        if let Some(listener) = self.tcp.listeners.get_mut(listener) {
            let queue = &mut listener.fastopen;
            queue.pending = queue.pending.saturating_sub(1);
            if reset {
                queue.resets.push_back(now + RESET_PENALTY);
            }
        }
    }
}

//! The stack in virtual time, and its device.

mod sockets;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use fullsend_device::Device;
use fullsend_driver::Pump;
use fullsend_offload::{Caps, Link, Packet, Slice, segment};
use fullsend_posix::{Handle, Posix};
use fullsend_stack::{Cidr, Host, HostConfig, IfaceChange, IfaceConfig, Mac, QdiscConfig};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Seed};

use super::settings::RunSettings;
use super::target::{SentPacket, Target};
use crate::script::{Nanos, Seconds};
use crate::shell::{self, ShellEffect};

/// The host's time at the script's time 0, in ns.
const BASE: u64 = 1_000_000_000;
/// Most packets that the stack may send at a time; more is an endless loop.
const MAX_PENDING_PACKETS: usize = 100_000;
/// Most steps of a script; it fails if the stack's timers fire endlessly.
const MAX_STEPS: u32 = 20_000_000;

pub(crate) struct VirtualStack {
    posix: Posix,
    /// The posix handles, by descriptor.
    handles: Vec<Handle>,
    pump: Pump<RecordingDevice>,
    now: Nanos,
    /// The time at which a packet was last sent or received.
    last_packet_at: Nanos,
    steps: u32,
}

/// A device that keeps sent packets for the script.
struct RecordingDevice {
    caps: Caps,
    now: Nanos,
    /// Packets sent and not yet compared, the oldest first.
    sent: VecDeque<SentPacket>,
    /// Most packets that `sent` may hold.
    capacity: usize,
    /// Keep super-segments whole.
    keep_super_segments: bool,
}

impl RecordingDevice {
    fn record(&mut self, mut packet: Packet) {
        let at = self.now;
        if self.keep_super_segments {
            packet.complete_checksum();
            let bytes = packet.to_bytes();
            self.sent.push_back(SentPacket { at, bytes });
            return;
        }
        let mut segments = Vec::new();
        segment(packet, &mut segments);
        for piece in segments {
            let bytes = piece.to_bytes();
            self.sent.push_back(SentPacket { at, bytes });
        }
    }
}

impl Device for RecordingDevice {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        while self.sent.len() < self.capacity
            && let Some(packet) = batch.pop_front()
        {
            self.record(packet);
        }
        Ok(())
    }

    fn receive(&mut self, _: &mut Vec<Packet>, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl VirtualStack {
    pub(crate) fn new(settings: &RunSettings) -> Result<Self, String> {
        let mut host = Host::new(HostConfig {
            seed: Seed([7; 4]),
            sysctl: Sysctl::default(),
            pool_bytes: 1 << 20,
        });
        let caps = Caps::offloading(Link::Ip, settings.mtu);
        let iface = host.add_interface(IfaceConfig::new(caps, Mac([0; 6])));
        let config = |error| format!("{error:?}");
        let now = Instant::from_nanos(BASE);
        host.add_address(now, iface, settings.local_net())
            .map_err(config)?;
        let any_destination = Cidr {
            addr: settings.unspecified(),
            prefix: 0,
        };
        host.add_route(any_destination, None, iface)
            .map_err(config)?;
        Ok(Self {
            posix: Posix::new(host),
            handles: Vec::new(),
            pump: Pump::transmit_only(
                iface,
                RecordingDevice {
                    caps,
                    now: 0,
                    sent: VecDeque::new(),
                    capacity: MAX_PENDING_PACKETS,
                    keep_super_segments: settings.strict_segments,
                },
            ),
            now: 0,
            last_packet_at: -1,
            steps: 0,
        })
    }

    /// Returns the host's time.
    fn instant(&self) -> Instant {
        Instant::from_nanos(BASE + self.now.max(0) as u64)
    }

    fn change_link(&mut self, key: &str, value: &str) -> Result<(), String> {
        let is_on = || match value {
            "on" | "off" => Ok(value == "on"),
            _ => Err("not valid; write on or off".to_owned()),
        };
        let change = match key {
            "mtu" => IfaceChange::Mtu(
                value
                    .parse()
                    .map_err(|_| "not valid; write a number of bytes".to_owned())?,
            ),
            "tso" => IfaceChange::Tso(is_on()?),
            _ => {
                let qdisc = value.parse::<QdiscConfig>();
                IfaceChange::Qdisc(qdisc.map_err(|error| error.to_string())?)
            }
        };
        let (now, iface) = (self.instant(), self.pump.iface());
        let changed = self.posix.host_mut().change_interface(now, iface, change);
        changed.map_err(|error| error.to_string())
    }

    /// Returns the script's time of the stack's next own action.
    fn next_deadline(&self) -> Option<Nanos> {
        let first = self.posix.host().poll_deadline()?;
        if first == Instant::FAR_FUTURE {
            return None;
        }
        Some((first.as_nanos().saturating_sub(BASE) as Nanos).max(self.now))
    }
}

impl Target for VirtualStack {
    fn now(&self) -> Nanos {
        self.now
    }

    fn script_time(&self, stamp: i64) -> Nanos {
        stamp - BASE as i64
    }

    fn step(&mut self, end: Nanos) -> bool {
        self.steps += 1;
        assert!(
            self.steps < MAX_STEPS,
            "the stack's timers expire endlessly at {}",
            Seconds(self.now)
        );
        let next = self.next_deadline().filter(|next| *next <= end);
        let moved = next.is_none_or(|next| next > self.now);
        self.now = next.unwrap_or(end).max(self.now);
        if next.is_none() {
            return false;
        }
        let now = self.instant();
        self.posix.host_mut().poll(now);
        self.transmit_pending();
        // A deadline that stays in the past would stop the clock.
        if !moved && self.next_deadline().is_some_and(|next| next <= self.now) {
            self.now += 1000;
        }
        true
    }

    fn transmit_pending(&mut self) {
        let now = self.instant();
        let device = self.pump.device_mut();
        let before = device.sent.len();
        device.now = self.now;
        device.capacity = before + MAX_PENDING_PACKETS;
        let _ = self.pump.transmit(self.posix.host_mut(), now, &now);
        if self.pump.device().sent.len() > before {
            self.last_packet_at = self.now;
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        // Packets with the same time in a script arrive one after the other, and no answer takes no
        // time.
        if self.last_packet_at == self.now {
            self.now += 1000;
        }
        self.last_packet_at = self.now;
        let now = self.instant();
        let mut frames = vec![Packet::from_frame(Slice::copied_from(bytes))];
        self.pump.input(self.posix.host_mut(), now, &mut frames);
        self.transmit_pending();
    }

    fn sent(&mut self) -> &mut VecDeque<SentPacket> {
        &mut self.pump.device_mut().sent
    }

    fn command(&mut self, command: &str) -> Result<Vec<String>, String> {
        let mut skipped = Vec::new();
        for effect in shell::effects(command) {
            match effect {
                // The runner handles files.
                ShellEffect::Nothing | ShellEffect::WriteFile(..) | ShellEffect::RemoveFile(_) => {}
                ShellEffect::FlushTcpMetrics => self.posix.host_mut().flush_tcp_metrics(),
                ShellEffect::Sysctl(key, value) => {
                    let now = self.instant();
                    if let Err(error) = self.posix.host_mut().set_sysctl(now, &key, &value) {
                        skipped.push(format!("{key}={value}: {error}"));
                    }
                }
                ShellEffect::ChangeLink(key, value) => {
                    if let Err(error) = self.change_link(key, &value) {
                        skipped.push(format!("{key}={value}: {error}"));
                    }
                }
                ShellEffect::Unknown(text) => skipped.push(text),
            }
        }
        self.transmit_pending();
        Ok(skipped)
    }
}

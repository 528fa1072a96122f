//! Notifications about the virtual machine, for the program that started gvproxy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fullsend_device::LogLimit;
use fullsend_gateway::namespace::StartedSockets;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Most notifications that wait for their receiver; further ones are dropped.
const WAITING_MAX: usize = 64;
/// Longest time for sending a notification.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of the log lines about notifications that are not sent, which guests can cause at will.
static LOG: LogLimit = LogLimit::new();

/// An event that the caller is notified of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Notification {
    /// The gateway serves requests.
    Ready,
    /// The virtual machine with this Ethernet address has connected.
    Connected([u8; 6]),
    /// The connection of this virtual machine has ended.
    Disconnected([u8; 6]),
}

impl Notification {
    /// Returns the line that represents the notification.
    pub(super) fn to_line(self) -> String {
        let with_mac = |kind: &str, mac: [u8; 6]| json!({"notification_type": kind, "mac_address": format_mac(mac)});
        let value = match self {
            Self::Ready => json!({"notification_type": "ready"}),
            Self::Connected(mac) => with_mac("connection_established", mac),
            Self::Disconnected(mac) => with_mac("connection_closed", mac),
        };
        format!("{value}\n")
    }
}

/// Returns an Ethernet address in the form `5a:94:ef:e4:0c:ee`.
pub(super) fn format_mac(mac: [u8; 6]) -> String {
    let bytes: Vec<_> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

/// A queue of notifications, which may be used while the stack is locked.
#[derive(Clone)]
pub(super) struct Sender(mpsc::Sender<Notification>);

impl Sender {
    pub(super) fn send(&self, notification: Notification) {
        // A slow receiver gets fewer notifications.
        let _ = self.0.try_send(notification);
    }
}

/// The notifications that wait to be sent.
pub(super) struct Notifications {
    socket: Option<PathBuf>,
    receiver: mpsc::Receiver<Notification>,
}

impl Notifications {
    /// Returns the receiving and the sending side of the notifications to a Unix socket. Without
    /// `socket`, they are dropped.
    pub(super) fn new(socket: Option<PathBuf>) -> (Self, Sender) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self { socket, receiver }, Sender(sender))
    }

    /// Returns the path of the socket.
    pub(super) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Sends the notifications, each over its own connection made by `sockets`.
    pub(super) async fn send(mut self, sockets: StartedSockets) {
        while let Some(notification) = self.receiver.recv().await {
            let Some(path) = &self.socket else {
                continue;
            };
            let sent = timeout(TIMEOUT, async {
                let mut stream = UnixStream::from_std(sockets.connect().await?)?;
                stream.write_all(notification.to_line().as_bytes()).await
            });
            match sent.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    LOG.warn(error.kind(), || {
                        format!("cannot send a notification to {}: {error}", path.display())
                    });
                }
                Err(_) => LOG.warn("timeout", || {
                    format!("{} reads no notification", path.display())
                }),
            }
        }
    }
}

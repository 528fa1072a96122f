//! Opening of an interface, negotiation of its offloads, and configuration of the kernel's side.

use std::fs::{File, OpenOptions};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use fullsend_offload::{Link, Pool};
use fullsend_wire::vnet::VNET_HDR_LEN;
use libc::c_int;

use super::interface_config::InterfaceConfig;
use super::negotiate::negotiate;
use super::{OpenError, Tun};
use crate::sys::{self, IfName};
use crate::{Caps, OffloadSet};

/// Bytes of free memory that a device's own pool keeps.
const POOL_BYTES: usize = 16 << 20;

/// The configuration of a TUN or TAP device to open, created by [`Tun::tun`] or [`Tun::tap`].
///
/// Opening attaches to the interface with that name, or creates it. A created interface is removed
/// when its last device is dropped.
#[derive(Clone)]
#[must_use]
pub struct TunBuilder {
    name: String,
    link: Link,
    offload: OffloadSet,
    napi: bool,
    multi_queue: bool,
    pool: Option<Pool>,
    interface_config: InterfaceConfig,
}

/// The file of an interface that is not a device yet.
struct Attached {
    file: File,
    name: String,
    offload: OffloadSet,
}

impl TunBuilder {
    pub(super) fn new(name: &str, link: Link) -> Self {
        Self {
            name: name.to_owned(),
            link,
            offload: OffloadSet::ALL,
            napi: false,
            multi_queue: false,
            pool: None,
            interface_config: InterfaceConfig::default(),
        }
    }

    /// Sets the offloads to request, by default all. Offloads that the kernel refuses are not used, and
    /// reported as a [warning](Tun::warnings).
    pub fn offload(mut self, set: OffloadSet) -> Self {
        self.offload = set.normalized();
        self
    }

    /// Sets `IFF_NAPI`, which passes packets sent here through the kernel's GRO; off by default.
    pub fn napi(mut self, on: bool) -> Self {
        self.napi = on;
        self
    }

    /// Sets the pool for received packets, by default a pool of the device's own.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Sets the interface's MTU in bytes; by default it is unchanged (1500 when new).
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.interface_config.mtu = Some(mtu);
        self
    }

    /// Adds an address with its on-link route to the kernel's side; may be repeated.
    ///
    /// This stack has another address on the link: see
    /// [`default_kernel_address`](crate::default_kernel_address).
    pub fn kernel_address(mut self, address: IpAddr, prefix: u8) -> Self {
        self.interface_config.addresses.push((address, prefix));
        self
    }

    /// Opens the device with one queue, and brings the interface up.
    ///
    /// # Errors
    /// Returns an [`OpenError`] if the interface cannot be opened, or a setting is refused.
    pub fn open(self) -> Result<Tun, OpenError> {
        self.open_first()
    }

    /// Opens a queue for each pool (at least one) as its own device, which allocates received packets
    /// from that pool, and brings the interface up. The kernel distributes flows over the queues: it
    /// delivers the packets of a flow to the queue that last sent the flow's other direction.
    ///
    /// # Errors
    /// Returns an [`OpenError`] if the interface cannot be opened, or a setting is refused.
    pub fn open_queues(mut self, pools: &[Pool]) -> Result<Vec<Tun>, OpenError> {
        self.multi_queue = true;
        self.pool = pools.first().cloned();
        let mut all = vec![self.open_first()?];
        let name = all[0].name().to_owned();
        for pool in pools.iter().skip(1) {
            let (file, _) = self.attach(&name, all[0].offload().vnet_hdr)?;
            let next = all[0].another_queue(file, pool.clone());
            all.push(next);
        }
        Ok(all)
    }

    /// Attaches to the interface with the offloads that the kernel accepts, and returns its file and its
    /// full name. Does not change the interface's settings.
    ///
    /// Another process may make a device of the file with [`adopt`](Self::adopt), even if the interface
    /// is in a network namespace that this process never enters.
    ///
    /// # Errors
    /// Returns an [`OpenError`] if the interface cannot be opened.
    pub fn open_file(self) -> Result<(OwnedFd, String), OpenError> {
        let mut warnings = Vec::new();
        let attached = self.attach_with_offloads(&mut warnings)?;
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        Ok((attached.file.into(), attached.name))
    }

    /// Makes a device of an attached file, from [`open_file`](Self::open_file) or another program.
    ///
    /// Does not change the interface's settings. [`mtu`](Self::mtu) must be the interface's, 1500 by
    /// default, because its network namespace may be out of reach. The file becomes non-blocking.
    ///
    /// # Errors
    /// Returns an [`OpenError`] if `file` is not attached to an interface of the builder's kind
    /// (TUN or TAP), or has `IFF_NO_PI` unset.
    pub fn adopt(self, file: OwnedFd) -> Result<Tun, OpenError> {
        let (name, flags) =
            sys::tun_get_iff(file.as_fd()).map_err(|e| OpenError::from_attach(e, &self.name))?;
        let kind = libc::IFF_TUN | libc::IFF_TAP | libc::IFF_NO_PI;
        if flags & kind != self.flags(false) & kind {
            return Err(OpenError::WrongKind { name });
        }
        sys::set_nonblocking(file.as_fd()).map_err(OpenError::Io)?;
        let mut warnings = Vec::new();
        let offload = if flags & libc::IFF_VNET_HDR == 0 {
            // The interface's last user may have left offloads on, which frames without the header cannot
            // express.
            if let Err(e) = sys::tun_set_offload(file.as_fd(), 0) {
                warnings.push(format!("{name}: cannot turn off offloads: {e}"));
            }
            OffloadSet::NONE
        } else {
            // With `IFF_NO_PI` unset or another header size, the frames would be shifted.
            sys::tun_set_vnet_hdr(file.as_fd(), VNET_HDR_LEN).map_err(OpenError::Io)?;
            let requested = OffloadSet {
                vnet_hdr: true,
                ..self.offload
            };
            let set_offload = |bits| sys::tun_set_offload(file.as_fd(), bits);
            negotiate(requested, set_offload, &mut warnings)
        };
        let mtu = self.interface_config.mtu.unwrap_or(1500);
        let file = File::from(file);
        Ok(self.device(
            Attached {
                file,
                name,
                offload,
            },
            mtu,
            warnings,
        ))
    }

    fn pool_or_default(&self) -> Pool {
        self.pool.clone().unwrap_or_else(|| Pool::new(POOL_BYTES))
    }

    fn open_first(&self) -> Result<Tun, OpenError> {
        let mut warnings = Vec::new();
        let attached = self.attach_with_offloads(&mut warnings)?;
        let mtu = self.interface_config.apply(&attached.name, &mut warnings)?;
        Ok(self.device(attached, mtu, warnings))
    }

    /// Returns the device of an attached file, and logs the warnings.
    fn device(&self, attached: Attached, mtu: u32, warnings: Vec<String>) -> Tun {
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        let offload = attached.offload;
        let caps = Caps {
            link: self.link,
            mtu,
            tso4: offload.tso4,
            tso6: offload.tso6,
            uso: offload.uso,
            tx_checksum: offload.csum,
            gso_max_size: Caps::GSO_MAX_SIZE,
        };
        Tun::new(
            attached.file,
            attached.name,
            caps,
            offload,
            self.pool_or_default(),
            warnings,
        )
    }

    /// Attaches to the interface with the offloads that the kernel accepts.
    fn attach_with_offloads(&self, warnings: &mut Vec<String>) -> Result<Attached, OpenError> {
        if self.offload.vnet_hdr {
            let (file, name) = self.attach(&self.name, true)?;
            if sys::tun_set_vnet_hdr(file.as_fd(), VNET_HDR_LEN).is_ok() {
                let set_offload = |bits| sys::tun_set_offload(file.as_fd(), bits);
                let offload = negotiate(self.offload, set_offload, warnings);
                return Ok(Attached {
                    file,
                    name,
                    offload,
                });
            }
            warnings.push(format!(
                "{name}: the kernel refused vnet_hdr; using no offload"
            ));
        }
        let (file, name) = self.attach(&self.name, false)?;
        // An existing interface may have offloads on from its last user.
        if let Err(e) = sys::tun_set_offload(file.as_fd(), 0) {
            warnings.push(format!("{name}: cannot turn off offloads: {e}"));
        }
        Ok(Attached {
            file,
            name,
            offload: OffloadSet::NONE,
        })
    }

    /// Opens a file of the interface `name`, and returns it with the interface's full name.
    fn attach(&self, name: &str, vnet_hdr: bool) -> Result<(File, String), OpenError> {
        let if_name = IfName::new(name).ok_or_else(|| OpenError::BadName {
            name: name.to_owned(),
        })?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .map_err(|e| OpenError::from_driver(e, name))?;
        let name = sys::tun_set_iff(file.as_fd(), if_name, self.flags(vnet_hdr))
            .map_err(|e| OpenError::from_attach(e, name))?;
        Ok((file, name))
    }

    fn flags(&self, vnet_hdr: bool) -> c_int {
        let kind = match self.link {
            Link::Ip => libc::IFF_TUN,
            Link::Ethernet => libc::IFF_TAP,
        };
        let options = [
            (vnet_hdr, libc::IFF_VNET_HDR),
            (self.napi, libc::IFF_NAPI),
            (self.multi_queue, libc::IFF_MULTI_QUEUE),
        ];
        let options = options.iter().filter(|o| o.0).map(|o| o.1);
        kind | libc::IFF_NO_PI | options.sum::<c_int>()
    }
}

//! The state that a monitor's messages set: features, memory and rings.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};
use vm_memory::GuestMemoryMmap;

use crate::features::Features;
use crate::memory::Memory;
use crate::ring::{Direction, Ring};

/// The device as the connected monitor has set it up.
pub(crate) struct Backend {
    epoll: Arc<OwnedFd>,
    features: Features,
    /// Whether the monitor has accepted `REPLY_ACK`.
    replies: bool,
    memory: Option<Memory>,
    /// The guest's receive queue and its transmit queue, in virtio's order.
    rings: [Ring; 2],
}

/// The parts of a [`Backend`] that move packets.
pub(crate) struct Queues<'a> {
    pub(crate) memory: &'a GuestMemoryMmap<()>,
    pub(crate) features: Features,
    pub(crate) to_guest: &'a mut Ring,
    pub(crate) from_guest: &'a mut Ring,
}

impl Backend {
    /// Returns a device that no monitor has set up. Notifications of ring `i` arrive at `epoll` with the
    /// token `i`.
    pub(crate) fn new(epoll: Arc<OwnedFd>) -> Self {
        Self {
            epoll,
            features: Features::default(),
            replies: false,
            memory: None,
            rings: [
                Ring::new(Direction::ToGuest),
                Ring::new(Direction::FromGuest),
            ],
        }
    }

    /// Discards everything that the monitor has set, at the end of its connection.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.epoll.clone());
    }

    /// Returns the queues, if there is memory.
    pub(crate) fn queues(&mut self) -> Option<Queues<'_>> {
        let [to_guest, from_guest] = &mut self.rings;
        Some(Queues {
            memory: self.memory.as_ref()?.guest(),
            features: self.features,
            to_guest,
            from_guest,
        })
    }

    /// Returns whether the monitor can request replies to all messages.
    pub(crate) fn replies(&self) -> bool {
        self.replies
    }

    /// Returns whether packets reach the guest.
    pub(crate) fn has_guest(&self) -> bool {
        let [to_guest, _] = &self.rings;
        to_guest.is_active()
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        self.rings
            .get_mut(index as usize)
            .ok_or(Error::InvalidParam)
    }

    fn update(&mut self) {
        let memory = self.memory.as_ref().map(Memory::guest);
        for ring in &mut self.rings {
            ring.update(memory);
        }
    }
}

/// The error of a message that needs a feature which is not offered.
fn unsupported<T>() -> Result<T> {
    Err(Error::ReqHandlerError(io::ErrorKind::Unsupported.into()))
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        // Deprecated, because some devices discarded everything: disables the rings and keeps the rest.
        for ring in &mut self.rings {
            ring.set_enabled(false);
        }
        self.update();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        // The negotiated features of the protocol stay valid, as in the library.
        let replies = self.replies;
        self.reset();
        self.replies = replies;
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(Features::OFFERED.bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.features = Features::accepted(features).ok_or(Error::InvalidParam)?;
        for ring in &mut self.rings {
            ring.set_event_idx(self.features.event_idx());
            if !self.features.rings_begin_disabled() {
                ring.set_enabled(true);
            }
        }
        self.update();
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        // If this fails, the rings must not go on with addresses of the old memory.
        self.memory = None;
        self.update();
        self.memory = Some(Memory::map(regions, files)?);
        self.update();
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.ring(index)?.set_size(num)?;
        self.update();
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let memory = self.memory.as_ref().ok_or(Error::InvalidParam)?;
        let descriptor = memory.guest_address(descriptor)?;
        let available = memory.guest_address(available)?;
        let used = memory.guest_address(used)?;
        self.ring(index)?
            .set_addresses(descriptor, available, used)?;
        self.update();
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.ring(index)?.set_base(base)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.ring(index)?.stop();
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        // Without a file the device would have to poll the ring.
        let file = file.ok_or(Error::InvalidParam)?;
        let epoll = self.epoll.clone();
        let ring = self.ring(u32::from(index))?;
        ring.start(file, &epoll, u64::from(index))?;
        self.update();
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.ring(u32::from(index))?.set_call(file)
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.ring(u32::from(index))?.set_error(file)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        // The library adds REPLY_ACK.
        Ok(VhostUserProtocolFeatures::MQ)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        // The library rejects messages whose feature is not set.
        self.replies = features & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        // Pairs of queues: Ethernet interfaces of a stack have one shard, which uses one pair.
        Ok(1)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.set_enabled(enable);
        self.update();
        Ok(())
    }

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        unsupported()
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        unsupported()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        unsupported()
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        unsupported()
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        unsupported()
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        unsupported()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        unsupported()
    }

    fn add_mem_region(
        &mut self,
        _: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> Result<Option<u64>> {
        unsupported()
    }

    fn remove_mem_region(&mut self, _: &VhostUserSingleMemoryRegion) -> Result<()> {
        unsupported()
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        unsupported()
    }

    fn check_device_state(&mut self) -> Result<()> {
        unsupported()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unsupported()
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        unsupported()
    }
}

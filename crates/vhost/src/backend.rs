//! The state that a monitor's messages set: features, memory and rings.

use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};

use crate::features::Features;
use crate::memory::Memory;
use crate::pair::{PairState, Pairs};

/// The network card as the connected monitor has set it up.
pub(crate) struct Backend {
    pairs: Arc<Pairs>,
    /// Whether the program permits the handler of missing pages.
    handles_sigbus: bool,
    /// Whether the monitor has accepted `REPLY_ACK`.
    replies: bool,
    memory: Option<Arc<Memory>>,
    /// Whether the monitor has read the number of pairs of queues.
    has_read_queues: bool,
    /// Whether the monitor has passed the guest's memory, so that its guest has started to use the card.
    has_begun: bool,
}

impl Backend {
    /// Returns a card that no monitor has set up yet.
    pub(crate) fn new(pairs: Arc<Pairs>, handles_sigbus: bool) -> Self {
        Self {
            pairs,
            handles_sigbus,
            replies: false,
            memory: None,
            has_read_queues: false,
            has_begun: false,
        }
    }

    /// Returns whether the monitor has only read the number of pairs of queues, like a monitor that needs
    /// more pairs, and resets this record.
    pub(crate) fn take_only_queues(&mut self) -> bool {
        let has_begun = std::mem::take(&mut self.has_begun);
        std::mem::take(&mut self.has_read_queues) && !has_begun
    }

    /// Discards all settings of the monitor at the end of its connection.
    pub(crate) fn reset(&mut self) {
        self.replies = false;
        self.memory = None;
        self.pairs.reset();
    }

    /// Returns whether the monitor can request replies to all messages.
    pub(crate) fn replies(&self) -> bool {
        self.replies
    }

    fn offered(&self) -> Features {
        Features::offered(self.pairs.len())
    }
}

/// Returns the error of a message that needs a feature that is not offered.
fn unsupported<T>() -> Result<T> {
    Err(Error::ReqHandlerError(io::ErrorKind::Unsupported.into()))
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        // The message is deprecated because some devices discarded all settings. It disables the rings
        // and keeps the other settings.
        self.pairs.change_all(PairState::disable);
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        // The negotiated protocol features stay valid, as in the library.
        let replies = self.replies;
        self.reset();
        self.replies = replies;
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered().bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let accepted = self.offered().accepted(features);
        let features = accepted.ok_or(Error::InvalidParam)?;
        self.pairs.change_all(|pair| pair.set_features(features));
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        self.has_begun = true;
        // If this fails, the rings must not continue with addresses of the old memory.
        self.memory = None;
        self.pairs.change_all(|pair| pair.set_memory(None));
        let memory = Arc::new(Memory::map(regions, files, self.handles_sigbus)?);
        self.pairs
            .change_all(|pair| pair.set_memory(Some(memory.clone())));
        self.memory = Some(memory);
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.pairs.change_ring(index, |ring, _| ring.set_size(num))
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
        self.pairs.change_ring(index, |ring, _| {
            ring.set_addresses(descriptor, available, used)
        })
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.pairs.change_ring(index, |ring, _| ring.set_base(base))
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.pairs.change_ring(index, |ring, _| Ok(ring.stop()))?;
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        // Without a file, the device would have to poll the ring.
        let file = file.ok_or(Error::InvalidParam)?;
        let token = u64::from(index % 2);
        self.pairs
            .change_ring(index.into(), |ring, epoll| ring.start(file, epoll, token))
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.pairs
            .change_ring(index.into(), |ring, _| ring.set_call(file))
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.pairs
            .change_ring(index.into(), |ring, _| ring.set_error(file))
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
        self.has_read_queues = true;
        // For network cards, the number counts pairs.
        Ok(self.pairs.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.pairs.change_ring(index, |ring, _| {
            ring.set_enabled(enable);
            Ok(())
        })
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

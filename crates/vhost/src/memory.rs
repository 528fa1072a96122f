//! The memory of a guest, mapped from the files that the virtual machine monitor passes.

use std::fs::File;
use std::io;

use rustix::fs::{FileType, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

use crate::fault::{Guarded, MappedRange};

/// Most memory of one guest, bytes. A file may have holes, so that its size costs the monitor nothing, while the
/// address space of the process is all guests'.
const MEMORY_MAX: u64 = 1 << 40;

/// The mapped memory, and its addresses in the monitor's own address space.
pub(crate) struct Memory {
    /// The guard of the mappings, dropped before them. `None` if the program does not permit the handler of missing pages; then
    /// the files keep their size.
    guarded: Option<Guarded>,
    guest: GuestMemoryMmap<()>,
    monitor_ranges: Vec<MonitorRange>,
}

/// A region in the monitor's address space, to which its addresses of rings refer.
struct MonitorRange {
    start: u64,
    len: u64,
    guest_start: u64,
}

impl Memory {
    /// Maps the regions. Fails if they overlap, are not entirely within their files, or are larger than
    /// [`MEMORY_MAX`] together, or if a file can become shorter and the program does not permit the handler of
    /// missing pages (`handles_sigbus`).
    pub(crate) fn map(
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        handles_sigbus: bool,
    ) -> Result<Self> {
        let sizes = regions.iter().map(|region| u128::from(region.memory_size));
        if sizes.sum::<u128>() > u128::from(MEMORY_MAX) {
            let text = format!("the guest has more than {} GiB of memory", MEMORY_MAX >> 30);
            let error = io::Error::new(io::ErrorKind::InvalidInput, text);
            return Err(Error::ReqHandlerError(error));
        }
        files.iter().try_for_each(close_on_exec)?;
        let mut mapped = Vec::new();
        let mut monitor_ranges = Vec::new();
        let mut ranges = Vec::new();
        for (region, file) in regions.iter().zip(files) {
            let huge_page = check_file_system(&file)?;
            if !prevent_shrinking(&file) && !handles_sigbus {
                return Err(refused(CAN_SHRINK));
            }
            check_size(region, &file, huge_page)?;
            let start = GuestAddress(region.guest_phys_addr);
            let mapping = region.mmap_region(file)?;
            ranges.push(MappedRange {
                start: mapping.as_ptr(),
                len: mapping.size(),
            });
            mapped.push(GuestRegionMmap::new(mapping, start).ok_or(Error::InvalidParam)?);
            monitor_ranges.push(MonitorRange {
                start: region.user_addr,
                len: region.memory_size,
                guest_start: region.guest_phys_addr,
            });
        }
        // The monitor may list the regions in any order.
        mapped.sort_by_key(GuestMemoryRegion::start_addr);
        let guest = GuestMemoryMmap::from_regions(mapped)
            .map_err(|e| Error::ReqHandlerError(io::Error::other(e)))?;
        Ok(Self {
            guarded: handles_sigbus.then(|| guard(&ranges)).transpose()?,
            guest,
            monitor_ranges,
        })
    }

    /// Returns whether an accessed page of a file was missing. Data read since then may not be the
    /// guest's, and the guest will not see data written since then.
    pub(crate) fn is_lost(&self) -> bool {
        self.guarded.as_ref().is_some_and(Guarded::is_lost)
    }

    pub(crate) fn guest(&self) -> &GuestMemoryMmap<()> {
        &self.guest
    }

    /// Translates an address in the monitor's address space.
    pub(crate) fn guest_address(&self, monitor_address: u64) -> Result<GuestAddress> {
        self.monitor_ranges
            .iter()
            .find_map(|range| {
                let offset = monitor_address.checked_sub(range.start)?;
                (offset < range.len).then(|| range.guest_start.checked_add(offset))?
            })
            .map(GuestAddress)
            .ok_or(Error::InvalidParam)
    }
}

/// Sets `FD_CLOEXEC` on a received descriptor. `vhost` receives descriptors without `MSG_CMSG_CLOEXEC`,
/// so a program that another thread executes before this call inherits it.
pub(crate) fn close_on_exec(file: &File) -> Result<()> {
    fcntl_getfd(file)
        .and_then(|flags| fcntl_setfd(file, flags | FdFlags::CLOEXEC))
        .map_err(|error| Error::ReqHandlerError(error.into()))
}

/// Guards the mappings of a [`Memory`] against missing pages.
#[allow(unsafe_code, reason = "its caller keeps the mappings")]
fn guard(ranges: &[MappedRange]) -> Result<Guarded> {
    // SAFETY: `GuestMemoryMmap` has mapped these files, unmaps them after the guard is dropped, and
    // accesses them as memory that others change concurrently: by copies of bytes and by atomic integers.
    let guarded = unsafe { Guarded::new(ranges) };
    guarded.map_err(Error::ReqHandlerError)
}

/// Fails if a region is not entirely within a regular file, or does not consist of whole huge pages if
/// its file has them: the kernel would map more than the region, and not unmap it.
fn check_size(region: &VhostUserMemoryRegion, file: &File, huge_page: usize) -> Result<()> {
    let stat = fstat(file).map_err(|error| Error::ReqHandlerError(error.into()))?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let end = region.mmap_offset.checked_add(region.memory_size);
    let is_whole = huge_page == 0 || region.memory_size.is_multiple_of(huge_page as u64);
    if is_regular && is_whole && end.is_some_and(|end| end <= stat.st_size as u64) {
        return Ok(());
    }
    Err(Error::InvalidParam)
}

/// Seals the size of the file, if possible: the guest would end with the first access to a page that is
/// no longer in the file. Returns whether it is sealed. A memfd can be sealed only if it was created with
/// `MFD_ALLOW_SEALING`, and other files cannot.
fn prevent_shrinking(file: &File) -> bool {
    if fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return true;
    }
    fcntl_add_seals(file, SealFlags::SHRINK)
        .inspect_err(|error| tracing::debug!(%error, "cannot seal the file of the guest's memory"))
        .is_ok()
}

/// The reason why memory is refused whose missing pages would end the process.
const CAN_SHRINK: &str = "the file of the guest's memory can become shorter, and the next access would end \
    this process by SIGBUS; let the monitor use a memfd that can be sealed (QEMU: memory-backend-memfd), or \
    build the device with VhostUserBuilder::handle_sigbus";

fn refused(text: &str) -> Error {
    Error::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Returns the size of the file's huge pages, or 0 if it has none.
///
/// Fails if another process or host provides the pages of the file: it may not answer, and each access
/// would then block the stack. The check finds a mistake of the monitor, not an attack: the system call
/// may block as well, and an overlay hides the file system below it. Files in tmpfs, e.g. a memfd, are
/// recognized without it.
pub(crate) fn check_file_system(file: &File) -> Result<usize> {
    let is_in_memory = fcntl_get_seals(file).is_ok();
    let stat = match fstatfs(file) {
        Ok(stat) => stat,
        Err(_) if is_in_memory => return Ok(0),
        Err(error) => return Err(Error::ReqHandlerError(error.into())),
    };
    // The type has 32 bits, in a field whose size and sign depend on the system.
    match stat.f_type as u32 {
        HUGETLBFS => Ok(stat.f_bsize as usize),
        file_system if !is_in_memory && has_remote_pages(file_system) => {
            let text =
                "the guest's memory is in a file of FUSE or of a network; use memory-backend-memfd";
            Err(refused(text))
        }
        _ => Ok(0),
    }
}

/// The type of file systems with huge pages, as in `linux/magic.h`.
const HUGETLBFS: u32 = 0x9584_58f6;

/// Returns whether a file system type of `linux/magic.h` belongs to FUSE or a network.
pub(crate) fn has_remote_pages(file_system: u32) -> bool {
    const FUSE: u32 = 0x6573_5546;
    const NFS: u32 = 0x6969;
    const CIFS: u32 = 0xff53_4d42;
    const SMB2: u32 = 0xfe53_4d42;
    const V9FS: u32 = 0x0102_1997;
    const CEPH: u32 = 0x00c3_6400;
    matches!(file_system, FUSE | NFS | CIFS | SMB2 | V9FS | CEPH)
}

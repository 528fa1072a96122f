//! Restrictions of the gateway's own process.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use caps::{CapSet, Capability, CapsHashSet};
use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    path_beneath_rules,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_no_new_privs;
use nix::unistd::{chdir, chroot, pivot_root};

use super::own_addresses::open_before_sandbox;
use super::{failed, id_maps, mounts, seccomp};
use crate::inspect::open_resident_memory;

/// The directory at which the empty root file system is mounted before it becomes the root.
const NEW_ROOT: &str = "/tmp";
/// Directories that exist in the new root, even if they are empty: slirp4netns has them.
const FOLDERS: [&str; 2] = ["etc", "run"];
/// The Landlock version whose accesses are restricted; older kernels restrict fewer accesses.
const LANDLOCK_ABI: ABI = ABI::V5;

/// Restrictions of the gateway's process, applied once, after the TAP and the other files are open, and
/// before the process has threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sandbox {
    /// Whether the process gets its own root file system, in which only `visible` exists.
    pub own_root: bool,
    /// Whether Landlock hides the files outside of `visible` if the process has no own root. Unlike a
    /// root, Landlock does not restrict the paths that open Unix sockets can send or connect to.
    pub hide_files: bool,
    /// The directories that stay visible, read-only; none by default. The gateway reads the host's
    /// resolvers through [`Builder::resolv_conf_opener`](crate::Builder::resolv_conf_opener).
    pub visible: Vec<PathBuf>,
    /// Whether all capabilities are given up, except the one to bind low ports.
    pub drop_capabilities: bool,
    /// Whether only the system calls of a gateway are allowed. Others fail with `ENOSYS`.
    pub seccomp: bool,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self {
            own_root: true,
            hide_files: true,
            visible: Vec::new(),
            drop_capabilities: true,
            seccomp: true,
        }
    }
}

impl Sandbox {
    /// Applies all restrictions.
    ///
    /// # Errors
    /// The first restriction that the kernel refuses, with its reason. The earlier ones stay in effect.
    pub fn apply(&self) -> io::Result<()> {
        open_resident_memory();
        open_before_sandbox();
        if self.own_root {
            enter_own_root(&self.visible)?;
        } else if self.hide_files {
            hide_files(&self.visible)?;
        }
        self.restrict()
    }

    /// Applies the restrictions that the kernel allows, and returns those that it refuses, one line each.
    /// If the process may not mount, Landlock hides other files instead.
    pub fn apply_where_possible(&self) -> Vec<String> {
        open_resident_memory();
        open_before_sandbox();
        let root = self.own_root.then(|| enter_own_root(&self.visible));
        let has_root = matches!(root, Some(Ok(())));
        let hidden = (self.hide_files && !has_root).then(|| hide_files(&self.visible));
        let steps = [root, hidden, Some(self.restrict())];
        let errors = steps.into_iter().flatten().filter_map(Result::err);
        errors.map(|error| error.to_string()).collect()
    }

    fn restrict(&self) -> io::Result<()> {
        if self.drop_capabilities {
            keep_capability(Capability::CAP_NET_BIND_SERVICE)
                .map_err(|e| failed("give up capabilities", e))?;
        }
        set_no_new_privs().map_err(|e| failed("set no_new_privs", e))?;
        if self.seccomp {
            seccomp::apply().map_err(|e| failed("filter system calls", e))?;
        }
        Ok(())
    }
}

/// Replaces the root file system with an empty one that contains only `visible`.
fn enter_own_root(visible: &[PathBuf]) -> io::Result<()> {
    unshare_mounts().map_err(|e| failed("make a mount namespace for the sandbox", e))?;
    build_root(visible).map_err(|e| failed("build the root file system of the sandbox", e))
}

/// Moves into a new mount and IPC namespace; a user without the privilege also into a user namespace.
fn unshare_mounts() -> io::Result<()> {
    let namespaces = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC;
    match unshare(namespaces) {
        Ok(()) => {}
        Err(nix::errno::Errno::EPERM) => {
            let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
            unshare(CloneFlags::CLONE_NEWUSER | namespaces)?;
            id_maps::map_ids((uid.as_raw(), gid.as_raw()), (uid.as_raw(), gid.as_raw()))?;
        }
        Err(error) => return Err(error.into()),
    }
    // Mounts of the sandbox do not propagate to the host. Unmounts of the host propagate to the sandbox,
    // so that it keeps no file system busy.
    mounts::mount_none("/", MsFlags::MS_REC | MsFlags::MS_SLAVE)
}

fn build_root(visible: &[PathBuf]) -> io::Result<()> {
    let new_root = Path::new(NEW_ROOT);
    let sources: Vec<_> = visible.iter().filter(|path| path.is_dir()).collect();
    // Opened before the new root hides a directory below it.
    let opened: Vec<_> = sources
        .iter()
        .map(std::fs::File::open)
        .collect::<io::Result<_>>()?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let options = Some("mode=755,size=64k");
    mount(Some("tmpfs"), new_root, Some("tmpfs"), flags, options)?;
    for folder in FOLDERS {
        // Fails if the user namespace does not have the user.
        let _ = std::fs::create_dir(new_root.join(folder));
    }
    for (source, file) in sources.iter().zip(&opened) {
        let relative = source.strip_prefix("/").unwrap_or(source);
        let target = new_root.join(relative);
        std::fs::create_dir_all(&target)?;
        let from = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(&from), &target, None::<&str>, bind, None::<&str>)?;
        // Fails for a mount whose flags another user namespace has locked; the directory's permissions
        // apply.
        let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | flags;
        let _ = mounts::mount_none(&target, read_only);
    }
    chdir(new_root)?;
    match pivot_root(".", ".") {
        // The old root is mounted over the new one.
        Ok(()) => umount2(".", MntFlags::MNT_DETACH)?,
        // The initial RAM file system cannot be replaced.
        Err(_) => chroot(".")?,
    }
    chdir("/")?;
    mounts::mount_none(
        "/",
        MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | flags,
    )
}

/// Restricts file access to reading below `visible`.
fn hide_files(visible: &[PathBuf]) -> io::Result<()> {
    let restrict = || {
        Ruleset::default()
            .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
            .create()?
            .add_rules(path_beneath_rules(
                visible,
                AccessFs::from_read(LANDLOCK_ABI),
            ))?
            .restrict_self()
    };
    match restrict() {
        Ok(status) if status.ruleset != RulesetStatus::NotEnforced => Ok(()),
        Ok(_) => Err(io::Error::other(
            "cannot hide files: the kernel has no Landlock",
        )),
        Err(error) => Err(io::Error::other(format!("cannot hide files: {error}"))),
    }
}

/// Gives up all capabilities, for this process and its children.
pub(super) fn keep_no_capability() -> io::Result<()> {
    keep_capabilities(None)
}

/// Gives up all capabilities except `kept`, for this process and its children.
pub(super) fn keep_capability(kept: Capability) -> io::Result<()> {
    keep_capabilities(Some(kept))
}

fn keep_capabilities(kept: Option<Capability>) -> io::Result<()> {
    let other = |error: caps::errors::CapsError| io::Error::other(error.to_string());
    let permitted = caps::read(None, CapSet::Permitted).map_err(other)?;
    if permitted.contains(&Capability::CAP_SETPCAP) {
        for capability in caps::all() {
            // The kernel may not know the newest capabilities.
            if Some(capability) != kept
                && caps::has_cap(None, CapSet::Bounding, capability).unwrap_or(false)
            {
                caps::drop(None, CapSet::Bounding, capability).map_err(other)?;
            }
        }
    }
    let left: CapsHashSet = permitted.into_iter().filter(|c| Some(*c) == kept).collect();
    // Fails on kernels without ambient capabilities, which have none to give up.
    let _ = caps::clear(None, CapSet::Ambient);
    caps::clear(None, CapSet::Inheritable).map_err(other)?;
    caps::set(None, CapSet::Effective, &left).map_err(other)?;
    caps::set(None, CapSet::Permitted, &left).map_err(other)
}

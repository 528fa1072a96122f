//! The file of a device, on which the driver waits. A device without one wakes the driver.

#[cfg(target_os = "linux")]
pub(crate) use unix::register;
#[cfg(unix)]
pub(crate) use unix::{DeviceFile, Readable};
#[cfg(not(unix))]
pub(crate) use without::{DeviceFile, Readable};

#[cfg(unix)]
mod unix {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use tokio::io::Interest;
    use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

    use crate::runtime::with_io;

    /// Number of consecutive calls with room after which room is no longer reported. Bulk transfers keep
    /// running out of room.
    const CALLS_WITH_ROOM: u8 = 32;

    /// A duplicate of the descriptor of a device, registered with tokio.
    pub(crate) struct DeviceFile {
        fd: Arc<AsyncFd<OwnedFd>>,
        room: Room,
        /// Future that completes when the device is lost.
        lost: Pin<Box<dyn Future<Output = ()> + Send>>,
    }

    /// The readiness of a device, until it is cleared.
    pub(crate) type Readable<'a> = AsyncFdReadyGuard<'a, OwnedFd>;

    impl DeviceFile {
        /// Registers a descriptor. Must be called within a tokio runtime.
        pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
            let room = Room::new(fd.try_clone()?);
            let fd = Arc::new(register(fd, Interest::READABLE)?);
            let lost = Box::pin(device_lost(fd.clone()));
            Ok(Self { fd, room, lost })
        }

        /// Returns the readiness. If there is none, the task is woken when there is.
        pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<Readable<'_>>> {
            self.fd.poll_read_ready(cx)
        }

        /// Returns whether a blocked device may have become writable. If not, the task is woken when
        /// it has.
        pub(crate) fn poll_writable(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
            self.room.poll(cx)
        }

        /// Records that the device has accepted all packets.
        pub(crate) fn on_room(&mut self) {
            self.room.on_room();
        }

        /// Returns whether the device is lost. If not, the task is woken when it is. Must not be called
        /// after it has returned true.
        pub(crate) fn poll_lost(&mut self, cx: &mut Context<'_>) -> bool {
            self.lost.as_mut().poll(cx).is_ready()
        }
    }

    /// Another duplicate of the descriptor, registered only while the device is blocked: the kernel
    /// reports room at a Unix socket whenever its peer has read something, which would wake the thread
    /// for each packet that is sent.
    enum Room {
        NotAwaited(Option<OwnedFd>),
        Awaited {
            fd: AsyncFd<OwnedFd>,
            calls_with_room: u8,
        },
    }

    impl Room {
        fn new(fd: OwnedFd) -> Self {
            Self::NotAwaited(Some(fd))
        }

        fn poll(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
            if let Self::NotAwaited(fd) = self
                && let Some(fd) = fd.take()
            {
                *self = Self::Awaited {
                    fd: register(fd, Interest::WRITABLE)?,
                    calls_with_room: 0,
                };
            }
            let Self::Awaited {
                fd,
                calls_with_room,
            } = self
            else {
                // An earlier registration has failed, which has ended the stack.
                return Ok(false);
            };
            *calls_with_room = 0;
            match fd.poll_write_ready(cx) {
                Poll::Ready(guard) => {
                    guard?.clear_ready();
                    Ok(true)
                }
                Poll::Pending => Ok(false),
            }
        }

        #[inline]
        fn on_room(&mut self) {
            if let Self::Awaited {
                calls_with_room, ..
            } = self
            {
                *calls_with_room += 1;
                if *calls_with_room >= CALLS_WITH_ROOM
                    && let Self::Awaited { fd, .. } =
                        std::mem::replace(self, Self::NotAwaited(None))
                {
                    *self = Self::new(fd.into_inner());
                }
            }
        }
    }

    /// Completes when the device is lost, e.g. when `ip link delete` removes a TUN: its file then
    /// reports an error, but neither readability nor writability.
    async fn device_lost(fd: Arc<AsyncFd<OwnedFd>>) {
        // The next receive returns the error itself.
        let _ = fd.ready(Interest::ERROR).await;
    }

    #[allow(
        unsafe_code,
        reason = "tokio has no safe way to register a file with its reactor"
    )]
    pub(crate) fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
        with_io(|| {
            // SAFETY: the `AsyncFd` owns the descriptor, so no other code can close it, and `OwnedFd`
            // always returns the same one.
            unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
        })
    }
}

#[cfg(not(unix))]
mod without {
    use std::convert::Infallible;
    use std::io;
    use std::task::{Context, Poll};

    /// The file of a device, which does not exist on this system.
    pub(crate) struct DeviceFile(Infallible);

    /// The readiness of a device's file, which does not exist on this system.
    pub(crate) struct Readable<'a>(&'a DeviceFile);

    impl DeviceFile {
        pub(crate) fn poll_readable(&self, _: &mut Context<'_>) -> Poll<io::Result<Readable<'_>>> {
            match self.0 {}
        }

        pub(crate) fn poll_writable(&mut self, _: &mut Context<'_>) -> io::Result<bool> {
            match self.0 {}
        }

        pub(crate) fn on_room(&mut self) {
            match self.0 {}
        }

        pub(crate) fn poll_lost(&mut self, _: &mut Context<'_>) -> bool {
            match self.0 {}
        }
    }

    impl Readable<'_> {
        pub(crate) fn clear_ready(&mut self) {
            match self.0.0 {}
        }
    }
}

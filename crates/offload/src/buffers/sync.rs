//! Synchronisation primitives of the pool; `crates/models` replaces them by loom's.

/// Reference to memory that an application lends.
pub(crate) use alloc::sync::Arc as LoanArc;
/// Reference to a block, or to the shared state of a pool. It has no weak references, unlike that of the
/// standard library, so the only owner gets `&mut` with a load instead of an atomic read-modify-write.
pub(crate) use triomphe::Arc;

pub use mutex::Mutex;

mod mutex {
    use core::ops::DerefMut;

    #[cfg(feature = "std")]
    use parking_lot as implementation;
    #[cfg(not(feature = "std"))]
    use spin as implementation;

    /// A mutex: that of `parking_lot` with the feature `std`, otherwise one that spins, as a thread
    /// cannot sleep without an operating system.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(implementation::Mutex<T>);

    impl<T> Mutex<T> {
        /// Returns an unlocked mutex.
        pub const fn new(value: T) -> Self {
            Self(implementation::Mutex::new(value))
        }

        /// Locks the mutex, and waits while another thread holds it. Dropping the result unlocks it.
        #[inline]
        pub fn lock(&self) -> impl DerefMut<Target = T> + '_ {
            self.0.lock()
        }

        /// Locks the mutex unless another thread holds it.
        #[inline]
        pub fn try_lock(&self) -> Option<impl DerefMut<Target = T> + '_> {
            self.0.try_lock()
        }
    }
}

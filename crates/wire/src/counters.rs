//! Counters with the names that `nstat` shows.

/// Declares a struct of `u64` counters, each with its `nstat` name.
///
/// ```
/// fullsend_wire::counters! {
///     /// A few of them.
///     pub struct Mib {
///         /// Segments sent.
///         tcp_out_segs: "TcpOutSegs",
///     }
/// }
/// let mib = Mib { tcp_out_segs: 3 };
/// assert_eq!(mib.iter().collect::<Vec<_>>(), [("TcpOutSegs", 3)]);
/// ```
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$fmeta:meta])* $field:ident: $nstat:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        $vis struct $name { $($(#[$fmeta])* pub $field: u64),* }

        impl $name {
            /// Returns an iterator over the `nstat` names and values of the counters.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($nstat, self.$field)),*].into_iter()
            }
        }
    };
}

//! The DNS relay: queries of the guest to the host's resolvers.

mod relay;
mod stream;
mod upstream;
mod zones;

pub(crate) use relay::relay_query;
pub(crate) use stream::relay_stream;
pub use zones::Zone;
pub(crate) use zones::Zones;

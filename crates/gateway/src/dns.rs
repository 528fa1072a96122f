//! The DNS relay, which passes queries of the guest to the host's resolvers.

mod address_names;
mod race;
mod relay;
mod screen;
mod stream;
mod upstream;
mod zones;

pub(crate) use address_names::{ADDRESSES_MAX, AddressNames, Learnt, NAMES_MAX, Names};
pub(crate) use relay::relay_query;
pub(crate) use stream::relay_stream;
pub use zones::Zone;
pub(crate) use zones::Zones;

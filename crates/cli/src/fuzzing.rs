//! Entry points for fuzz targets: requests of the programs' sockets.

pub use crate::gateway::fuzzing::{answer_slirp4netns, parse_gvproxy, parse_pesto};

//! Entry points for fuzz targets of the requests to the programs' sockets.

pub use crate::gateway::fuzzing::{answer_slirp4netns, parse_gvproxy, parse_pesto};
